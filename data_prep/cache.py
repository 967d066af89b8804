"""Caches segment files of a store in a bucket on this machine's disk: each is fetched once for all processes.

    file = SegmentCache.of(None).file(place, entry)         # ~/.cache/throughline/segments, or $XDG_CACHE_HOME/…

A file is named by its checksum, so that nothing in the cache is ever out of date, and stores share what they have in common. It is
checked as a whole once it has arrived, and its record batches once more when they are first read from the disk (store.py). Where
the folder would grow beyond `most_bytes`, the files that were used longest ago are removed first; one that a process reads stays
readable to it. The folder can be removed at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from common.credentials import without_credentials
from common.errors import UserError
from common.places import Place, staged_for
from common.uris import is_local
from data_prep.manifest import PartEntry

MAX_BYTES = 64 << 30
CHUNK = 4 << 20
OWN_NAME = re.compile(r"[0-9a-f]{16}-\d+\.arrow")
"""Names of the cache's files."""
ABANDONED_SECONDS = 3600
"""Seconds without a write after which a temporary file counts as left by a killed process."""


def cache_folder() -> Path:
    """The user's cache folder for all of Throughline. Raises UserError if the user has no home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "throughline"
    except RuntimeError:
        raise UserError("this user has no home folder to keep a cache in: set XDG_CACHE_HOME, or HOME") from None


@dataclass(frozen=True)
class SegmentCache:
    """A cache of segment files in a folder of this machine."""

    folder: Path
    most_bytes: int = MAX_BYTES

    @staticmethod
    def of(text: str | None) -> SegmentCache | None:
        """The cache that an option names: a folder, `none`, or nothing for the default. Raises UserError for a URI."""
        if text == "none":
            return None
        if text and not is_local(text):
            raise UserError(f"data.cache is {without_credentials(text)}: name a folder that each machine has, or none")
        return SegmentCache(Path(Place.parse(text).path) if text else cache_folder() / "segments")

    def file(self, place: Place, entry: PartEntry) -> Path | None:
        """The local copy of a part, fetched if need be. None if the file in the bucket is not the one in the manifest.

        Raises OSError where the bucket cannot be read, or the disk is full.
        """
        path = self.folder / f"{entry.xxh3}-{entry.bytes}.arrow"
        if not self._touch(path, entry):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(entry.xxh3[:2]):
                if not self._touch(path, entry) and not self._fetch(place, entry, path):
                    return None
        return path

    def _touch(self, path: Path, entry: PartEntry) -> bool:
        """Whether the file is there. If so, it is marked as the one used last."""
        try:
            if path.stat().st_size == entry.bytes:
                os.utime(path)
                return True
        except OSError:
            pass
        return False

    def _fetch(self, place: Place, entry: PartEntry, path: Path) -> bool:
        self._make_room(entry.bytes)
        staged = Place.parse(path).staged()
        try:
            with place.open_stream() as stream, open(staged.path, "wb") as file:
                shutil.copyfileobj(stream, file, CHUNK)
            if staged.xxh3() != entry.xxh3:
                return False
            os.replace(staged.path, path)  # not synced: a file that a power cut damages is fetched again
        finally:
            staged.delete()
        return True

    def _make_room(self, size: int) -> None:
        """Remove the files used longest ago until ``size`` bytes fit, and the temporary files that killed processes left."""
        with self._alone("room"):
            files = []
            for path in self.folder.iterdir():
                if not OWN_NAME.fullmatch(staged_for(path.name) or path.name):
                    continue  # --data.cache may name a folder that holds more
                with contextlib.suppress(OSError):
                    files.append((path.stat().st_mtime, path.stat().st_size, path))
            filled = sum(bytes for _, bytes, _ in files) + size
            for modified, bytes, path in sorted(files):
                left = staged_for(path.name) and modified < time.time() - ABANDONED_SECONDS
                if left or (filled > self.most_bytes and path.suffix == ".arrow"):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        if path.stat().st_mtime != modified:  # another process is about to read it
                            continue
                        path.unlink()
                    filled -= bytes

    def _alone(self, name: str) -> FileLock:
        """A lock that one process of this machine holds at a time. It ends with its process."""
        return FileLock(self.folder / f".{name}.lock", fallback_to_soft=False)
