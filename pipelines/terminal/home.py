"""Where a command stands: relative paths begin in the working directory, and on a cluster in the folder that its nodes share.

THROUGHLINE_HOME names that folder (clusters/environment.sh sets it on every node). The processes that Ray starts for a command, on
whichever machine, stand where the command does, and talk to each other through the network in which they reach the head.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import psutil

from common.errors import UserError
from pipelines import PACKAGE_ROOT

HEAD = "THROUGHLINE_HEAD"
"""Environment variable by which worker processes learn the head's address, as host:port."""


def enter() -> None:
    """Make THROUGHLINE_HOME the working directory where it is set. Raises ValueError where that cannot be.

    Without it, a Ray job would run in a copy of its folder, which is removed with the job: the home folder is taken then.
    """
    try:
        Path.home()
    except RuntimeError:
        raise UserError("this user has no home folder, which Ray and MLflow ask for: set HOME to a folder") from None
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the working directory has been removed: change to another one") from None
    home = os.environ.get("THROUGHLINE_HOME", "")
    if not home and in_job_folder():
        home = "~"
    if home:
        try:
            os.chdir(os.path.expanduser(home))
        except OSError as error:
            raise UserError(
                f"THROUGHLINE_HOME is {home}, where relative paths begin: {error.strerror}; mount it, or name another folder"
            ) from None


def follow() -> None:
    """Set up a worker process: change to the command's working directory, if this machine has it, and point gloo and NCCL to the
    network interface that reaches the head, unless variables name another.

    By default gloo takes the address that the host's name resolves to, which often is a loopback one.
    """
    with contextlib.suppress(ValueError):
        enter()
    interface = interface_towards(os.environ.get(HEAD, ""))
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def interface_towards(address: str) -> str:
    """The name of the network interface through which this machine reaches an address; empty where it cannot."""
    host, _, port = address.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))  # sends nothing: it chooses the route
            own = probe.getsockname()[0]
    except (OSError, ValueError):
        return ""
    found = [name for name, rows in psutil.net_if_addrs().items() if own in (row.address for row in rows)]
    return found[0] if found else ""


def in_job_folder() -> bool:
    """Whether this is a Ray job that brought its folder: its code is in a copy of that."""
    return any("_ray_pkg_" in path for path in (os.getcwd(), *sys.path))


def submitted_script() -> Path | None:
    """The script that runs, where it is the copy in the home folder that `ray submit` makes."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or not file or Path(file).resolve().parent != Path.home().resolve():
        return None
    return Path(file)


def stale_module() -> Path | None:
    """The module that such a script is a copy of, where they differ: then the other modules may be older than the script too."""
    script = submitted_script()
    if script is None:
        return None
    module = PACKAGE_ROOT / script.name
    return module if module.is_file() and module.read_bytes() != script.read_bytes() else None
