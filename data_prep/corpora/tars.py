"""Tars, read forward and never extracted.

with open_tar(file) as stream:
    for member in tar_members(stream):                       # one at a time; its data is read with stream.read(...)
        b"".join(read_member(stream, member))
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from common.places import Place
from data_prep.corpora.files import printable
from data_prep.corpora.streams import CHUNK, Forward, open_forward
from data_prep.documents import CorpusError
from data_prep.packing import HEAD

HEADER = 64 << 10
"""A tar header that asks for more bytes than this at once is taken for damaged."""


def is_tar(block: bytes) -> bool:
    """Whether a stream that begins with these 512 bytes is a tar."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return True  # one without members
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def is_safe(name: str) -> bool:
    """Whether a member's name stays within its archive."""
    return not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


class _Headers:
    """The file from which tarfile reads a tar's headers."""

    def __init__(self, stream: Forward) -> None:
        self._stream = stream
        self.tell = stream.tell
        self.seek = stream.seek
        self.last = b""
        """The bytes that were read last: at the proper end of a tar, a block of zeros."""

    def read(self, size: int) -> bytes:
        if size > HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._stream.read(size)
        return self.last


def tar_members(stream: Forward) -> Iterator[tarfile.TarInfo]:
    """The members of an uncompressed tar, one at a time. At each, the caller may read the stream up to and over the member's data.

    Raises tarfile.ReadError where the archive ends early or a header is damaged; tarfile itself would take that for the end.
    In a stream that is checked, a tar may end behind a member: some programs write no blocks of zeros at the end.
    """
    headers = _Headers(stream)
    with tarfile.open(fileobj=headers, mode="r:") as tar:  # type: ignore[arg-type]
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
            if member.size < 0:
                raise tarfile.ReadError(f"a member of {member.size} bytes")
            yield member
    ended = stream.checked and not headers.last and stream.tell() % tarfile.BLOCKSIZE == 0
    if headers.last != bytes(tarfile.BLOCKSIZE) and not ended:
        what = "a damaged header" if len(headers.last) == tarfile.BLOCKSIZE else "an early end"
        raise tarfile.ReadError(f"{what} at offset {stream.tell() - len(headers.last):,}")


def read_member(stream: Forward, member: tarfile.TarInfo) -> Iterator[bytes]:
    """The data of a member of a tar, in pieces. Raises EOFError where it ends early."""
    stream.seek(member.offset_data)
    left = member.size
    while left:
        piece = stream.read(min(CHUNK, left))
        if not piece:
            raise EOFError(f"{printable(member.name)} ends early")
        left -= len(piece)
        yield piece


@contextmanager
def open_tar(file: Place) -> Iterator[Forward]:
    """The bytes of a tar, which may be packed. Raises CorpusError where the file is none."""
    with open_forward(file) as stream:
        if not is_tar(stream.peek(HEAD)):
            raise CorpusError(f"{file} holds no tar: unpack it, and give the folder of what is in it")
        yield stream
