"""Keeps a second process out of a folder that one is writing to.

A local folder is locked itself. An object store has no locks: there the lock keeps out other processes of this machine, and two
machines that prepare the same thing at once write the same bytes.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from data_prep.errors import UserError
from data_prep.places import Place


class Locked(UserError):
    """Another process has the folder."""


@contextmanager
def hold(folder: Path | Place, who: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder, which is made if need be. The lock ends with the process, however it ends, and leaves no file.

    Raises Locked, naming ``who`` (\"another preparation\"), when another process still holds it after ``patience`` seconds.
    """
    place = Place.parse(folder)
    place.make_folder()
    locked = place.path
    if not place.is_local:
        locked = f"{tempfile.gettempdir()}/throughline-{xxhash.xxh3_64_hexdigest(place.recorded.encode())}"
        os.makedirs(locked, exist_ok=True)
    descriptor = os.open(locked, os.O_RDONLY)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise Locked(f"{who} is writing to {folder}: wait for it to end") from None
            time.sleep(0.1)
    try:
        yield
    finally:
        os.close(descriptor)
