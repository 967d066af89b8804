"""Start the Ray session of an entry script: on the cluster that this machine belongs to, else a local one.

    from pipelines.cluster import ray_session
    ray_session.start(num_cpus=2)

RAY_ADDRESS decides. On the nodes of a cluster it is `auto` (clusters/environment.sh), and in a Ray job it is the cluster's address:
the script joins the Ray that runs on its node. Where nothing runs there, or without RAY_ADDRESS, a local session is started: a
laptop never joins a session that it happens to find.

`set_environment` keeps Ray quiet and offline. `start` calls it first; a command that imports Ray earlier calls it before that.
Variables that the user has set stay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil

from common.errors import UserError
from pipelines import PACKAGE_ROOT, PACKAGES
from pipelines.cluster.machine import temporary
from pipelines.terminal import home, plugins
from pipelines.training.stopping import NOTICES, STOPPED_STATUS

T = TypeVar("T")

LOOK_SECONDS = 2.0
SILENT_SECONDS = 10.0
"""How long Ray's head may be silent: a supervisor may restart it in this time."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # else a train worker's lines appear twice
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # how often the controller looks at its workers: 2 s by default
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one more process, not needed: a run resumes after a lost machine
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "OMP_WAIT_POLICY": "passive",  # threads that spin starve each other on a shared CPU
    "KMP_BLOCKTIME": "0",
}

OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a session for this machine alone, as on those systems: all its ports on 127.0.0.1
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_worker_niceness": "0",  # by default workers wait for whatever else the machine does, and may get a twentieth of a core
}
"""Environment of a local session. A cluster's ports must be open to its other machines; clusters/environment.sh sets the rest where
Ray is started on its nodes. Ray reads these variables when it is imported."""

STARTS = 3
"""Attempts to start a local session: a machine under heavy load may be too slow for Ray's own patience."""
SOCKET_NAME = 107
"""Bytes of the longest name that a socket may have."""


def cluster_address() -> str:
    """The address of the cluster that this process is to join; empty where it is to start a session of its own."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address != "auto":
        return "" if address == "local" else address
    try:  # what `ray start` leaves on a node
        address = Path(temporary(), "ray", "ray_current_cluster").read_text().strip()
        knock(address, LOOK_SECONDS)
        return address
    except (OSError, ValueError):
        return ""


def knock(address: str, seconds: float) -> None:
    """Raise OSError or ValueError where nothing answers at ``host:port``."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()


def set_environment() -> None:
    """Set the variables of `QUIET`, and for a local session those of `OWN`, unless the user has set them."""
    settings = QUIET if cluster_address() else QUIET | OWN
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def start(num_cpus: int | None = None, log_to_driver: bool = True) -> None:
    """Join the cluster, or start a local session that ends with this process.

    Does nothing where this process has a session already, as in a test or under another entry script.

    Args:
        num_cpus: CPUs of a local session, all by default; ignored on a cluster.
        log_to_driver: whether what workers print is shown here.

    Raises UserError where RAY_ADDRESS is no address that a program can join or the cluster there does not answer, and where a local
    session does not start.
    """
    set_environment()
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": log_to_driver}
    address = cluster_address()
    if address:
        _join(address, options)
    else:
        _start_local(num_cpus, options)


def _join(address: str, options: dict[str, Any]) -> None:
    """Join the cluster. ``options``: those of `ray.init`."""
    import ray
    import ray.exceptions

    if "://" in address:
        raise UserError(
            f"RAY_ADDRESS is {address}, which takes jobs but is not what a program joins: submit this command with "
            "`ray job submit --working-dir . -- …`, or unset RAY_ADDRESS to work on this machine"
        )
    try:
        knock(address, SILENT_SECONDS)  # Ray would try a dead address for minutes
        ray.init(address=address, runtime_env=surroundings(address), **options)
    except (OSError, ValueError, ray.exceptions.AuthenticationError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the Ray cluster at {address} (RAY_ADDRESS) cannot be joined: {why}; is it up (`ray up`), and has this machine "
            "its token (in ~/.ray/auth_token, which `export RAY_AUTH_MODE=token` makes it use)?"
        ) from None


def _start_local(num_cpus: int | None, options: dict[str, Any]) -> None:
    """Start a session on this machine, in up to `STARTS` tries. ``options``: those of `ray.init`."""
    import ray

    if os.environ.get("RAY_ADDRESS") == "auto":
        print("RAY_ADDRESS is auto, and no Ray runs on this machine: starting a local session", file=sys.stderr)
    if len(f"{temporary()}/ray/session_2026-01-31_12-00-00_000000_{os.getpid()}/sockets/plasma_store") > SOCKET_NAME:
        raise UserError(
            f"the temporary folder is {temporary()}, whose name is too long for Ray's sockets: set RAY_TMPDIR to a shorter one, "
            "such as /tmp"
        )
    # Else Ray keeps a token in the home folder, where others may read it, or nobody can write.
    if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray._private import ray_constants

    # Ray read OWN when it was imported, perhaps before this module, as in a notebook.
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, True)
    before = psutil.Process().children(recursive=True)
    for left in reversed(range(STARTS)):
        # Ray's processes inherit this: a terminal that closes sends SIGHUP to them too, and this one has to save first.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
        try:
            # Without an address ray.init would join any session that it finds on this machine.
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **options)
            return
        except ValueError:
            raise
        except Exception as error:  # Ray gives its processes 30 s to come up, and raises Exception, RuntimeError…
            ray.shutdown()
            abandon(but=before)
            why = str(error).strip().partition(". ")[0]
            if not left:
                raise UserError(
                    f"Ray did not start in {STARTS} tries ({why}): repeat the command when the machine is less busy; "
                    "prepare and train need no Ray with --num-workers 0"
                ) from error
            print(f"Ray did not start ({why}): trying again", file=sys.stderr, flush=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def surroundings(address: str) -> dict[str, Any]:
    """The runtime environment that gives the workers this process's code, folder and network. A job that brings a folder has given
    the code already."""
    given: dict[str, Any] = {
        "env_vars": {
            "THROUGHLINE_HOME": os.getcwd(),
            home.HEAD: address,
            plugins.VARIABLE: os.environ.get(plugins.VARIABLE, ""),
        },
        "worker_process_setup_hook": "pipelines.terminal.home.follow",
    }
    if not home.in_job_folder():
        own = {sys.modules[module.__name__.partition(".")[0]] for module in plugins.load()}
        given["py_modules"] = [*(str(PACKAGE_ROOT.parent / name) for name in PACKAGES), *own]
    return given


def cpus() -> int:
    """CPUs of all machines of the Ray session; before it is started, of this machine."""
    if "ray" in sys.modules:
        import ray

        if ray.is_initialized():
            return max(1, int(ray.cluster_resources().get("CPU", 1)))
    return os.cpu_count() or 1


def machines() -> list[dict[str, float]]:
    """The total resources of each machine that is alive, whether free or taken."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_resources() -> list[tuple[dict[str, float], dict[str, float]]]:
    """The free and the total resources of each machine that is alive. Ray has no public call for this."""
    import ray._private.state

    free = ray._private.state.available_resources_per_node()
    return [
        (free[node["NodeID"]], node["Resources"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] in free
    ]


class Node:
    """A machine of the cluster, and a process on it that calls functions for us. The process reserves no CPU."""

    def __init__(self, node: dict[str, Any]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        class Caller:
            def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
                return function(*arguments)

        self.name = node["NodeManagerHostname"]
        self.address = node["NodeManagerAddress"]
        self.resources: dict[str, float] = node["Resources"]
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        self._caller: Any = ray.remote(Caller).options(num_cpus=0, scheduling_strategy=there).remote()  # type: ignore[attr-defined]

    def begin(self, function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Start a call of a function on the machine. Returns a function that waits for its result."""
        import ray

        reference = self._caller.call.remote(function, arguments)
        return lambda: ray.get(reference)


def nodes() -> list[Node]:
    """The machines of the session, the head first."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return [Node(node) for node in sorted(alive, key=lambda node: "node:__internal_head__" not in node["Resources"])]


class RayLost(Exception):
    """Ray itself has died: its head, or its process on this machine."""


class Watch:
    """Checks whether the Ray that this process has joined is alive, at most every LOOK_SECONDS.

    Without it, Ray itself ends a process that has lost it after a minute, and prints no hint about what to do.
    """

    def __init__(self) -> None:
        import ray

        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
        self._addresses = {
            f"head (gcs_server at {context.gcs_address})": context.gcs_address,
            f"process on this machine (raylet at {raylet})": raylet,
        }
        self._looked = time.monotonic()
        self._answered = dict.fromkeys(self._addresses, self._looked)

    def check(self) -> bool:
        """Whether all parts of Ray answered at the last check. Raises RayLost if one has been silent for SILENT_SECONDS."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for name, address in self._addresses.items():
                try:
                    knock(address, LOOK_SECONDS)
                    self._answered[name] = now
                except OSError as error:
                    if now - self._answered[name] >= SILENT_SECONDS:
                        why = error.strerror or error
                        raise RayLost(f"Ray's {name} does not answer any more: {why}") from None
        return all(answered == self._looked for answered in self._answered.values())


def end_process(lost: RayLost, saved: str, then: str, asked_to_stop: bool) -> NoReturn:
    """Print what to do when Ray itself has died, and end this process, which Ray would hold for another minute.

    Args:
        saved: what is saved, and where.
        then: what the command does when it is repeated.
        asked_to_stop: whether this process was asked to stop, perhaps by a signal that has ended Ray too.
    """
    end = "stopped" if asked_to_stop else "error"
    print(
        f"{end}: {lost}; {saved}: start Ray again where it is a cluster's (`ray up`), and repeat the command, which {then}",
        file=sys.stderr,
        flush=True,
    )
    abandon()
    sys.stdout.flush()
    os._exit(STOPPED_STATUS if asked_to_stop else 1)


def abandon(but: Sequence[psutil.Process] = ()) -> None:
    """End the processes of a local session that Ray can no longer end, except those in ``but``, which were there before it."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process not in but:
                process.kill()
