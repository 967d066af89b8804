"""What corpora share to read files that may be packed, damaged or hostile: forward, within a limit, and never extracted.

with reading(file.shown), decompressed(file) as stream:      # gzip and zstd are known by their first bytes
    for offset, line in lines(stream, limit): ...

for member in tar_members(forward):                          # one at a time; its data is read with forward.read(...)
    ...
"""

from __future__ import annotations

import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from data_prep.documents import SPLITS, CorpusError, Skipped, Source
from data_prep.places import Listed, Place

MAX_DOCUMENT_BYTES = 512 << 20
"""A document that is larger once it is decompressed is left out."""
CHUNK = 1 << 20
BOM = b"\xef\xbb\xbf"
"""The byte order mark with which some programs begin a file in UTF-8."""
SKIPPABLE = tuple(bytes([byte]) for byte in range(0x50, 0x60))
HEADER = 64 << 10
"""A tar header that wants more than this at once is not one."""
DAMAGE = (
    OSError, EOFError, ValueError, RuntimeError, NotImplementedError, KeyError, IndexError, OverflowError,
    struct.error, zlib.error, tarfile.TarError, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip
"""What the readers of archives raise on bytes that make no sense."""


class TooLarge(Exception):
    """More decompressed bytes than a document may have."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever a reader raises on damaged bytes becomes one sentence. What the system says of a file stays as it is."""
    try:
        yield
    except CorpusError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CorpusError(f"{what} cannot be read ({reason}): it is damaged; get it again, or take it away") from None


def files_in(folder: Place, recursive: bool = False, links: bool = True) -> list[Listed]:
    """The ordinary files of a folder, in the order of their names; pipes and devices are none.

    Args:
        links: follow links to files.
    """
    files = [file for file in folder.list(recursive) if not file.is_dir]
    if not folder.is_local:
        return files
    return [file for file in files if os.path.isfile(file.place.path) and (links or not is_link(file.place))]


def shards(name: str, source: str, endings: tuple[str, ...], left_out: frozenset[str] = frozenset()) -> list[Listed]:
    """The files with some endings that `--source` names: one file, or all in a folder and the folders in it."""
    if not source:
        raise CorpusError(f"corpus {name} needs a folder: give --source FOLDER, or a file")
    root = Place.parse(source)
    if root.is_file():
        check_name(root.parent, root.name)
        return [Listed(root, root.name, root.size(), False)]
    if not root.is_dir():
        raise CorpusError(f"{root} is not there: give --source the folder or the file that holds the corpus {name}")
    files = [file for file in files_in(root, recursive=True) if file.name.lower().endswith(endings)]
    files = [file for file in files if file.place.name not in left_out]
    if not files:
        raise CorpusError(f"{root} holds no file that ends in {', '.join(endings)}: give --source another folder")
    for file in files:
        check_name(root, file.name)
    return files


_NAMED = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}


def split_named(name: str) -> str | None:
    """The split that a file's name says, `data/train-00000-of-00002.parquet`; of several the last one. None where it says none."""
    words = [_NAMED.get(word, word) for word in re.split("[^a-z]+", name.lower())]
    named = [word for word in words if word in SPLITS]
    return named[-1] if named else None


def is_link(place: Place) -> bool:
    return place.is_local and os.path.islink(place.path)


def check_name(root: Place, name: str) -> None:
    """Raises CorpusError for a name that is not UTF-8: Python keeps such bytes as surrogates, and a manifest cannot."""
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise CorpusError(f"{root} holds a file whose name is not UTF-8, {name!a}: rename it")


def open_seekable(file: Place) -> pa.NativeFile:
    """A file for reading at any place; not mapped into memory, where all that was read would stay."""
    return file.open_stream() if file.is_local else file.open_random()


@contextmanager
def decompressed(file: Place) -> Iterator[Forward]:
    """The bytes of a file, those of gzip and zstd decompressed; a truncated one raises at its end."""
    with open_seekable(file) as raw:
        codec = codec_of(raw.read(4))
        raw.seek(0)
        if codec is None:
            yield Forward(raw, size=raw.size())
        else:
            with pa.CompressedInputStream(raw, codec) as stream:
                yield Forward(stream)


def codec_of(head: bytes) -> str | None:
    """What a file is packed with, by its first four bytes; zstd may begin with a frame that is to be skipped."""
    zstd = head[:4] == b"\x28\xb5\x2f\xfd" or (head[:1] in SKIPPABLE and head[1:4] == b"\x2a\x4d\x18")
    return "gzip" if head[:2] == b"\x1f\x8b" else "zstd" if zstd else None


class Forward:
    """A stream that is read forward only and up to a limit: all that is asked of the file below an archive.

    Args:
        limit: decompressed bytes after which it raises TooLarge.
        size: of a file at any place of which one can read; what is not wanted is then jumped over instead of read.
    """

    def __init__(self, stream: Any, limit: int | None = None, size: int | None = None) -> None:
        self._stream, self._limit, self.size = stream, limit, size
        self._position = 0
        self._ahead = b""

    def tell(self) -> int:
        return self._position

    def peek(self, size: int) -> bytes:
        """The next bytes, which stay the next ones; fewer at the end."""
        self._ahead += self._fill(size - len(self._ahead))
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the stream. Raises TooLarge, without reading, where they pass the limit."""
        if self._limit is not None and self._position + size > self._limit:
            raise TooLarge
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(data) < size:
            data += self._fill(size - len(data))
        self._position += len(data)
        return data

    def rest(self) -> bytes:
        """All that is left. Raises TooLarge where it passes the limit."""
        pieces = []
        while piece := self.read(CHUNK if self._limit is None else min(CHUNK, self._limit - self._position)):
            pieces.append(piece)
        self._skip(1)
        return b"".join(pieces)

    def skip_rest(self) -> int:
        """Read to the end without keeping anything. Returns how many bytes there were."""
        before = self._position
        while self._skip(CHUNK):
            pass
        return self._position - before

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a member that lies before its header")
        if self.size is not None:
            self._stream.seek(min(position, self.size))
            self._ahead, self._position = b"", position
        else:
            self._skip(position - self._position)

    def _skip(self, size: int) -> int:
        """Read over some bytes without keeping them. Returns how many there were; raises TooLarge past the limit."""
        before = self._position
        while size > 0 and (piece := min(len(self._ahead), size) or len(self._stream.read(min(size, CHUNK)))):
            self._ahead = self._ahead[piece:]
            size -= piece
            self._position += piece
            if self._limit is not None and self._position > self._limit:
                raise TooLarge
        return self._position - before

    def _fill(self, size: int) -> bytes:
        pieces = []
        while size > 0 and (piece := self._stream.read(min(size, CHUNK))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def is_tar(block: bytes) -> bool:
    """Whether a stream that begins with these 512 bytes is a tar."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return True  # one without members
    except (tarfile.HeaderError, ValueError):
        return False
    return True


class _Headers:
    """What tarfile reads a tar's headers from."""

    def __init__(self, stream: Forward) -> None:
        self._stream = stream
        self.tell, self.seek = stream.tell, stream.seek
        self.last = b""
        """What was read last: at the proper end of a tar, a block of zeros."""

    def read(self, size: int) -> bytes:
        if size > HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._stream.read(size)
        return self.last


def tar_members(stream: Forward) -> Iterator[tarfile.TarInfo]:
    """The members of an uncompressed tar, one at a time: at each the stream may be read on, to the member's data and over it.

    Raises tarfile.ReadError where the archive ends early or a header is damaged; tarfile itself would take that for the end.
    """
    headers = _Headers(stream)
    with tarfile.open(fileobj=headers, mode="r:") as tar:  # type: ignore[arg-type]
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it keeps them all
            if member.size < 0:
                raise tarfile.ReadError(f"a member of {member.size} bytes")
            yield member
    if headers.last != bytes(tarfile.BLOCKSIZE):
        what = "a damaged header" if len(headers.last) == tarfile.BLOCKSIZE else "an early end"
        raise tarfile.ReadError(f"{what} at offset {stream.tell() - len(headers.last):,}")


def is_safe(name: str) -> bool:
    """Whether a member's name stays within its archive."""
    return not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def printable(name: str) -> str:
    """A member's name for a line of its own: bytes that are not UTF-8, and signs that cannot be seen, as U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)


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
        if int.from_bytes(tail[end + 12 : end + 16], "little") > HEADER * 16:
            raise CorpusError(f"{file} has a directory of too many members: it is not the archive of a corpus")
        raw.seek(0)
        with zipfile.ZipFile(raw) as archive:  # type: ignore[arg-type]
            yield archive


@dataclass(frozen=True)
class Line:
    offset: int
    size: int
    """With its line end."""
    data: bytes | None
    """None where it was not to be kept."""
    blank: bool


def lines(stream: Any, keep: int) -> Iterator[Line]:
    """The lines of a stream, however long; the data of those of at most `keep` bytes."""
    offset, size, blank, data = 0, 0, True, bytearray()
    while chunk := stream.read(CHUNK):
        start = 0
        while start < len(chunk):
            newline = chunk.find(b"\n", start)
            stop = newline + 1 if newline >= 0 else len(chunk)
            size += stop - start
            if size <= keep:
                data += chunk[start:stop]
            else:
                data = bytearray()
            piece = chunk[start:stop]
            blank = blank and not (piece.removeprefix(BOM) if offset == start == 0 else piece).strip()
            start = stop
            if newline >= 0:
                yield Line(offset, size, bytes(data) if size <= keep else None, blank)
                offset, size, blank, data = offset + size, 0, True, bytearray()
    if size:
        yield Line(offset, size, bytes(data) if size <= keep else None, blank)


class LeftOut:
    """Counts, while a corpus is listed, what cannot be a document; one source stands for all of one reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, count: int = 1) -> None:
        self._counts[reason] += count

    def sources(self, archive: str, split: str) -> list[Source]:
        return [
            Source(f"{archive}: {reason}", reason, split, 0, f"{LEFT_OUT}{count}")
            for reason, count in sorted(self._counts.items())
        ]

    def skipped(self, id: str) -> Iterator[Skipped]:
        for reason, count in sorted(self._counts.items()):
            yield Skipped(id, reason, count)


LEFT_OUT = "left out: "


def skipped_of(source: Source) -> Skipped | None:
    """What a source of `LeftOut.sources` stands for; None for another."""
    count = source.place.removeprefix(LEFT_OUT)
    return None if count == source.place else Skipped(source.id, source.title, int(count))
