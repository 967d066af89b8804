"""Keeps a second process out of a folder that one is writing to, on this machine or on another one that shares the folder.

The lock is one of the system's (flock) on a file `.lock` in the folder: on a file it crosses machines over NFS, on a folder it
does not. It ends with the process, however it ends. An object store has no locks: there it keeps out other processes of this user
on this machine. Two machines that prepare the same thing in a bucket at once write the same bytes, and both end well.
"""

from __future__ import annotations

import contextlib
import errno
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

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class Locked(UserError):
    """Another process has the folder."""


@contextmanager
def hold(folder: Path | Place, who: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder, which is made if need be. The lock's file is there meanwhile; a process that was killed leaves it, empty.

    A folder that was made for the lock goes with it, where nothing was written to it.

    Raises Locked, naming ``who`` (\"another preparation\"), when another process still holds it after ``patience`` seconds.
    """
    place = Place.parse(folder)
    path = Path(place.path) / ".lock"
    if not place.is_local:
        name = f"throughline-{os.getuid()}-{xxhash.xxh3_64_hexdigest(place.recorded.encode())}"
        path = Path(tempfile.gettempdir()) / name / ".lock"
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        yield  # nobody can write there: a command that only looks goes on, and another one is told so when it writes
        return
    made = [above for above in path.parents if not above.exists()]
    deadline = time.monotonic() + patience
    while (descriptor := _lock(path)) is None:
        if time.monotonic() >= deadline:
            raise Locked(f"{who} is writing to {folder}: wait for it to end")
        time.sleep(0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # one is not empty
            for above in made:
                above.rmdir()


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock; None where another process holds it. Opened anew each time: its holder removes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # the folder went between
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno in NO_LOCKS:
            raise UserError(
                f"{path.parent} is on a file system without locks ({error.strerror}): mount it with them (NFS 4, or lockd)"
            ) from None
        raise
    os.close(descriptor)
    return None
