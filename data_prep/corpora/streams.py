"""Readers that corpora share for files that may be packed, damaged or hostile: forward, within a limit, and never extracted.

with reading(file.shown), decompressed(file) as stream:      # a packing is known by its first bytes
    head = stream.peek(512)
    data = stream.read(size)
"""

from __future__ import annotations

import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from common.places import Listed, Place
from data_prep.documents import SPLITS, CorpusError, decode_utf8, place_of, refuse_packed
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


def files_in(folder: Place, recursive: bool = False, links: bool = True, follow: bool = False) -> list[Listed]:
    """The ordinary files of a folder, in the order of their names, without pipes and devices.

    Args:
        links: follow links to files.
        follow: list the files in linked folders too.
    """
    files = [file for file in folder.list(recursive, follow) if not file.is_dir]
    if not folder.is_local:
        return files
    return [file for file in files if os.path.isfile(file.place.path) and (links or not is_link(file.place))]


def shards(name: str, source: str, endings: tuple[str, ...], left_out: frozenset[str] = frozenset()) -> list[Listed]:
    """The files with some endings that `--source` names: one file, or all in a folder and the folders in it that are not hidden."""
    root = place_of(name, source)
    if root.is_file():
        check_name(root.parent, root.name)
        return [Listed(root, root.name, root.size(), is_dir=False)]
    files = [file for file in files_in(root, recursive=True, follow=True) if file.name.lower().endswith(endings)]
    files = [file for file in files if file.place.name not in left_out and not is_hidden(file.name)]
    if not files:
        raise CorpusError(f"{root} holds no file that ends in {', '.join(endings)}: give --source another folder")
    for file in files:
        check_name(root, file.name)
    return files


_NAMED = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}


def split_named(name: str) -> str | None:
    """The split in a file's name, such as `data/train-00000-of-00002.parquet`: the last if there are several, None without one."""
    words = [_NAMED.get(word, word) for word in re.split("[^a-z]+", name.lower())]
    named = [word for word in words if word in SPLITS]
    return named[-1] if named else None


def split_folders(root: Place) -> dict[str, str]:
    """The folders that are named as splits, and the split of each: train, validation or test.

    ``training``, ``valid``, ``val`` and ``dev`` count only beside the folder of another split: alone, such a folder may hold
    anything. Empty where there is no folder of a split.
    """
    names = {**_NAMED, **{name: name for name in SPLITS}}
    found = {listed.name: names[listed.name] for listed in root.list() if listed.is_dir and listed.name in names}
    return found if len(set(found.values())) > 1 or not found.keys().isdisjoint(SPLITS) else {}


def is_link(place: Place) -> bool:
    return place.is_local and os.path.islink(place.path)


def check_name(root: Place, name: str) -> None:
    """Raises CorpusError for a name that is not UTF-8: Python keeps such bytes as surrogates, and a manifest cannot."""
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise CorpusError(f"{root} holds a file whose name is not UTF-8, {name!a}: rename it")


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


def is_hidden(name: str) -> bool:
    """Whether a file lies in a hidden folder or is hidden itself, `.ipynb_checkpoints/a.txt` or macOS's `._a.txt`."""
    parts = [part for part in name.split("/") if part not in (".", "..")]
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def printable(name: str) -> str:
    """A member's name for a line of its own: bytes that are not UTF-8, and signs that cannot be seen, as U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)


def text_of_cell(cell: str | bytes, where: str) -> str:
    """The text of a table's cell; bytes are read as UTF-8. Raises CorpusError, with the row, for any other bytes."""
    return decode_utf8(cell, where) if isinstance(cell, bytes) else cell.removeprefix("\ufeff")
