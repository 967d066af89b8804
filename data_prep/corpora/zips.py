"""Zips of a few members, never extracted.

with zip_archive(file) as archive:
    for name in zip_members(archive):
        with archive.open(name) as stream:
            ...
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from common.places import Place
from data_prep.corpora.streams import open_seekable
from data_prep.documents import CorpusError

DIRECTORY = 1 << 20
"""Bytes. A zip with a larger directory is not taken for a corpus."""

ZIP64 = 0xFFFFFFFF
"""Stands in a zip in place of a size that is written elsewhere, with 64 bits."""


@contextmanager
def zip_archive(file: Place) -> Iterator[zipfile.ZipFile]:
    """A zip of a few members. Raises CorpusError for one with a directory so large that it cannot be one of a corpus."""
    with open_seekable(file) as raw:
        size = raw.size()
        raw.seek(max(0, size - (1 << 16) - 22))
        tail = raw.read()
        end = tail.rfind(b"PK\5\6")
        if end < 0 or len(tail) < end + 22:
            raise CorpusError(f"{file} is not a zip archive, or a truncated one: get it again")
        size = int.from_bytes(tail[end + 12 : end + 16], "little")
        if size == ZIP64 and tail[max(0, end - 76) :].startswith(b"PK\6\6"):  # it stands in a record before that one
            size = int.from_bytes(tail[end - 36 : end - 28], "little")
        if size > DIRECTORY:
            raise CorpusError(f"{file} has a directory of too many members: it is not the archive of a corpus")
        raw.seek(0)
        with zipfile.ZipFile(raw) as archive:  # type: ignore[arg-type]
            yield archive


def zip_members(archive: zipfile.ZipFile) -> list[str]:
    """The names of a zip's files. Some programs of Windows write backslashes between a name's parts."""
    return [name for name in archive.namelist() if not name.endswith(("/", "\\"))]
