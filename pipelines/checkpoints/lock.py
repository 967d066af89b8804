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
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from data_prep.errors import UserError
from data_prep.places import Place

LOCK = ".lock"
NO_LOCKS = -1
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What a file system says that has no locks: Lustre that is mounted without `flock`, NFS 3 without lockd."""


class Locked(UserError):
    """Another process has the folder."""


@contextmanager
def hold(folder: Path | Place, who: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder, which is made if need be. The lock's file is there meanwhile; a process that was killed leaves it, empty.

    A folder that was made for the lock goes with it, where nothing was written to it.

    Raises Locked, naming ``who`` (\"another preparation\"), when another process still holds it after ``patience`` seconds.
    """
    place = Place.parse(folder)
    name = f"throughline-{os.getuid()}-{xxhash.xxh3_64_hexdigest(place.recorded.encode())}"
    here = Path(tempfile.gettempdir()) / name / LOCK
    path = Path(place.path) / LOCK if place.is_local else here
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        yield  # nobody can write there: a command that only looks goes on, and another one is told so when it writes
        return
    made = [above for above in (here.parent, *path.parents) if not above.exists()]
    deadline = time.monotonic() + patience
    while (descriptor := _lock(path)) is None or descriptor == NO_LOCKS:
        if descriptor == NO_LOCKS:
            print(f"warning: no locks on the file system of {folder}: another machine is not kept out", file=sys.stderr)
            path.unlink(missing_ok=True)
            path = here
        elif time.monotonic() >= deadline:
            raise Locked(f"{who} is writing to {folder}: wait for it to end")
        else:
            time.sleep(0.1)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # whatever has become of the folder: what went wrong inside is to be told
            path.unlink()
        os.close(descriptor)
        for above in made:
            with contextlib.suppress(OSError):  # it is not empty
                above.rmdir()


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock; None where another process holds it; NO_LOCKS where the file system has none.

    The file is opened anew each time: who holds it removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the folder, or the file, went between
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                kept, descriptor = descriptor, -1
                return kept
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in WITHOUT_LOCKS:
                return NO_LOCKS
            raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None
