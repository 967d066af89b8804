"""Readers that corpora share for files that may be packed, damaged or hostile: forward, within a limit, and never extracted.

with reading(file.shown), decompressed(file) as stream:      # a packing is known by its first bytes
    head = stream.peek(512)
    data = stream.read(size)
"""

from __future__ import annotations

import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from common.places import Place
from data_prep.corpora.encodings import refuse_packed
from data_prep.documents import CorpusError
from data_prep.packing import HEAD, READ, PackingError, packing_of, unpacked

MAX_DOCUMENT_BYTES = 512 << 20
"""A document that is larger once it is decompressed is left out."""
CHUNK = 1 << 20
DAMAGE = (
    OSError, EOFError, ValueError, RuntimeError, NotImplementedError, KeyError, IndexError, OverflowError,
    struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip
"""Errors that archive readers raise on damaged bytes."""


class TooLarge(Exception):
    """More decompressed bytes than a document may have."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn the errors of a reader on damaged bytes into a CorpusError of one sentence. System errors stay as they are."""
    try:
        yield
    except CorpusError:
        raise
    except PackingError as error:
        raise CorpusError(f"{what} {error}") from None
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if re.search("encrypt|decrypt", reason, re.IGNORECASE):
            remedy = "decrypt it first"
        elif isinstance(error, NotImplementedError):
            remedy = "it is packed in a way that is not known here; pack it with another method"
        else:
            remedy = "it is damaged; get it again, or take it away"
        raise CorpusError(f"{what} cannot be read ({reason}): {remedy}") from None


def open_seekable(file: Place) -> pa.NativeFile:
    """A file for reading at any place; not mapped into memory, where all that was read would stay."""
    return file.open_stream() if file.is_local else file.open_random()


def packing_at(file: Place) -> str:
    """The packing of a file; "" where it is not packed."""
    with open_seekable(file) as raw:
        return packing_of(raw.read(HEAD))


@contextmanager
def open_forward(file: Place) -> Iterator[Forward]:
    """The bytes of a file, decompressed where it is packed by one of READ; a truncated one raises at its end."""
    packing = packing_at(file)
    with open_seekable(file) as raw:
        yield Forward(unpacked(raw, packing), checked=True) if packing in READ else Forward(raw, size=raw.size())


@contextmanager
def decompressed(file: Place) -> Iterator[Forward]:
    """As `open_forward`. Raises CorpusError where the file is packed in a way that is not read here, or twice."""
    with open_forward(file) as stream:
        refuse_packed(stream.peek(HEAD), f"the content of {file}" if stream.checked else f"{file}")
        yield stream


class Forward:
    """A stream that is read forward only and up to a limit: archive readers need no more.

    Args:
        limit: decompressed bytes after which it raises TooLarge.
        size: bytes of a file that can be read at any place; unwanted bytes are then skipped instead of read.
        checked: reading raises where the stream ends early, as that of a packed file does.
    """

    def __init__(self, stream: Any, limit: int | None = None, size: int | None = None, checked: bool = False) -> None:
        self._stream = stream
        self._limit = limit
        self.size = size
        self.checked = checked
        self._position = 0
        self._ahead = b""

    def tell(self) -> int:
        return self._position

    def peek(self, size: int) -> bytes:
        """The next bytes, without moving past them; fewer at the end."""
        self._ahead += self._fill(size - len(self._ahead))
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the stream. Raises TooLarge, without reading, where they pass the limit."""
        if self._limit is not None and self._position + size > self._limit:
            raise TooLarge
        data = self._ahead[:size]
        self._ahead = self._ahead[size:]
        if len(data) < size:
            data += self._fill(size - len(data))
        self._position += len(data)
        return data

    def rest(self) -> bytes:
        """All that is left. Raises TooLarge where it passes the limit."""
        pieces = []
        while True:
            size = CHUNK if self._limit is None else min(CHUNK, self._limit - self._position)
            piece = self.read(size)
            if not piece:
                break
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
        """Move forward to ``position``. Raises tarfile.ReadError for a position that was passed."""
        if position < self._position:
            raise tarfile.ReadError("a member that lies before its header")
        if self.size is not None:
            self._stream.seek(min(position, self.size))
            self._ahead = b""
            self._position = position
        else:
            self._skip(position - self._position)

    def _skip(self, size: int) -> int:
        """Read over some bytes without keeping them. Returns how many there were; raises TooLarge past the limit."""
        before = self._position
        while size > 0:
            piece = min(len(self._ahead), size)
            self._ahead = self._ahead[piece:]
            if not piece:
                piece = len(self._stream.read(min(size, CHUNK)))
            if not piece:
                break
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


class Joined:
    """A stream that reads consecutive pieces of bytes as one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        data = self._rest[:size]
        self._rest = self._rest[size:]
        return data
