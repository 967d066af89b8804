"""Locks a folder for one writing process, against processes on this machine and on others that share the folder.

It is a lock of the system (flock) on the file `.lock` in the folder. Over NFS, a lock on a file holds for all machines, one on a
folder does not. It ends with its process, however that ends. An object store has no locks: there it excludes only processes of this
user on this machine. Two machines that prepare the same thing in a bucket at once write the same bytes, and both succeed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from common.errors import WITHOUT_LOCKS, UserError
from common.places import Place

LOCK = ".lock"
APPEARS_SECONDS = 5.0
"""Seconds for which a new folder may be missing again: other commands remove empty folders."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a folder where nobody can write."""


class Locked(UserError):
    """Another process has the folder."""


@contextmanager
def file_lock(folder: Path | Place, who: str, patience: float = 0.0) -> Iterator[None]:
    """Lock the folder, and make it if it is missing. The lock file exists meanwhile; a killed process leaves it behind, empty.

    A folder that was made for the lock is removed with it if it is still empty.

    Raises Locked, naming ``who`` ("another preparation"), when another process still holds it after ``patience`` seconds.
    """
    place = Place.parse(folder)
    try:
        name = f"throughline-{os.getuid()}-{xxhash.xxh3_64_hexdigest(place.recorded.encode())}"
    except UnicodeEncodeError:
        raise UserError(f"the name of the folder {place.recorded!a} is not UTF-8: choose another one") from None
    path = Path(place.path) / LOCK if place.is_local else _on_this_machine(name)
    made = _missing_above(path)
    taken = Locked(f"{who} is writing to {folder}: wait for it to end")
    try:
        lock = _acquired(path, patience, taken)
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            print(f"warning: no locks on the file system of {folder}: another machine is not kept out", file=sys.stderr)
            path.unlink(missing_ok=True)
            here = _on_this_machine(name)
            made += _missing_above(here)
            lock = _acquired(here, patience, taken)
        # Only once the attempt has failed: a folder that another process has just removed looks unwritable too.
        elif error.errno in READ_ONLY and path.parent.is_dir() and not os.access(path.parent, os.W_OK):
            lock = None
        else:
            raise
    if lock is None:
        yield  # nobody can write there: a command that only reads continues, and any other fails when it writes
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # an error of the block matters more than one of the folder
            os.unlink(lock.lock_file)  # a waiting process sees that the file it opened is gone
        lock.release()
        for above in made:
            with contextlib.suppress(OSError):  # it is not empty
                above.rmdir()


def _on_this_machine(name: str) -> Path:
    """A lock file below the folder for temporary files, which a container may lack: only buckets and old file systems need it."""
    return Path(tempfile.gettempdir()) / name / LOCK


def _missing_above(path: Path) -> list[Path]:
    return [above for above in path.parents if not above.exists()]


def _acquired(path: Path, patience: float, taken: Locked) -> FileLock:
    """Acquire the lock. Raises ``taken`` if another process still holds it after ``patience`` seconds."""
    lock = FileLock(path, timeout=patience, mode=0o666, fallback_to_soft=False)
    began = time.monotonic()
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            return lock
        except Timeout:
            raise taken from None
        except FileNotFoundError:  # another process removed the folder meanwhile
            if time.monotonic() - began > patience + APPEARS_SECONDS:
                raise
            time.sleep(0.001)
        except FileExistsError as error:  # mkdir also raises this for a folder that has just been removed
            with contextlib.suppress(FileNotFoundError):
                in_the_way = os.lstat(error.filename)  # the folder, or a link above it that leads nowhere
                if not stat.S_ISDIR(in_the_way.st_mode):
                    raise
