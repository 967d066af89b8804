"""What readiness.py asks of each machine of a cluster: functions that run there.

facts_here(("torch", "ray"))        # versions, free memory and disk
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import xxhash

from common.places import Place
from pipelines import PACKAGES

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """A machine's report of itself."""

    versions: dict[str, str]
    memory: int
    """Bytes that are free for programs."""
    disk: int
    """Bytes that are free where Ray keeps its files."""
    gpu_memory: int
    """Bytes of the smallest GPU; 0 without one."""


def facts_here(libraries: Sequence[str]) -> Facts:
    """Versions, free memory and disk, and the smallest GPU of the machine that runs this."""
    versions = {"Python": platform.python_version()}
    for library in libraries:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            versions[library] = "(not installed)"
    versions["our code"] = code_digest()
    return Facts(versions, psutil.virtual_memory().available, free_bytes(temporary()), smallest_gpu())


def temporary() -> str:
    """The folder below which Ray has its sockets, logs and addresses."""
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def code_digest() -> str:
    """A digest of the Python files of our packages, as this process would import them."""
    total = xxhash.xxh3_64()
    for package in PACKAGES:
        folder = Path(str(getattr(importlib.util.find_spec(package), "origin", ""))).parent
        for path in sorted(folder.rglob("*.py")):
            total.update(f"{package}/{path.relative_to(folder)}".encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:12]


def smallest_gpu() -> int:
    """Bytes of the smallest GPU; 0 without one."""
    if not shutil.which("nvidia-smi"):
        return 0
    import torch

    count = torch.cuda.device_count()
    return min((torch.cuda.get_device_properties(i).total_memory for i in range(count)), default=0)


def free_bytes(path: str) -> int:
    """Free bytes on the disk that holds a folder, or would hold it."""
    return shutil.disk_usage(next(folder for folder in (Path(path), *Path(path).parents) if folder.exists())).free


def attempt(function: Callable[..., T], *arguments: Any) -> tuple[T | None, str]:
    """A function's result and an empty reason; None and the reason if it raised OSError or ValueError."""
    try:
        return function(*arguments), ""
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "strerror", "") or error)


def leave_file(folder: Place) -> str:
    """Write a file with a random name into a folder. Returns the name."""
    folder.make_folder()
    name = secrets.token_hex(6)
    (folder / name).write_atomically(b"")
    return name


def visible_files(folder: Place, names: Sequence[str]) -> list[str]:
    """The names whose files exist. Waits up to 2 s for the others, since network file systems cache folders."""
    deadline = time.monotonic() + 2
    while True:
        there = [name for name in names if (folder / name).exists()]
        if len(there) == len(names) or time.monotonic() > deadline:
            return there
        time.sleep(0.1)


_open: list[socket.socket] = []


def listen(address: str) -> int:
    """Open a port at this address, which stays open until the process ends. Returns the port."""
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    _open.append(listener)
    return listener.getsockname()[1]


def connect(address: str, port: int) -> None:
    """Raise OSError where nothing listens at the port."""
    socket.create_connection((address, port), timeout=5).close()
