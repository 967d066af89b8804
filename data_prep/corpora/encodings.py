"""The text of a corpus's files: UTF-8, or what a byte-order mark says. A file of anything else, or a packed one, is refused.

text = read_utf8(folder / "a.txt")
text = decode_utf8(data, "a.jsonl", offset=4096)         # of bytes from the middle of a file
"""

from __future__ import annotations

from common.files import mark_of
from common.places import Place
from data_prep.documents import CorpusError
from data_prep.packing import HEAD, packing_of

NUL_HEAD = 1 << 16
"""Bytes at a file's beginning in which NULs are counted."""
MAX_NULS = 0.05
"""The largest share of NUL bytes in a text with more than one. UTF-16 has one for each Latin letter, and for each blank."""


def as_utf8(data: bytes) -> bytes:
    """The bytes of a file without its byte-order mark, in UTF-8 where the mark says UTF-16 or UTF-32.

    Raises UnicodeDecodeError where the mark is wrong.
    """
    size, encoding = mark_of(data)
    if encoding != "UTF-8":
        return data[size:].decode(encoding).encode()
    return data[size:] if size else data


def decode(data: bytes, codec: str) -> str | None:
    """The text of some bytes; None where they are not of this encoding."""
    try:
        return data.decode(codec)
    except UnicodeDecodeError:
        return None


def refuse_packed(head: bytes, where: str) -> None:
    """Raises CorpusError if a file that begins with these bytes is packed, and so no text."""
    packing = packing_of(head[:HEAD])
    if packing:
        raise CorpusError(f"{where} is packed ({packing}): unpack it, and give the file that is in it")


def refuse_nuls(data: bytes, where: str) -> None:
    """Raises CorpusError for a file full of NULs, each of which is valid UTF-8."""
    if data.count(0, 0, NUL_HEAD) > max(1, MAX_NULS * min(len(data), NUL_HEAD)):
        raise CorpusError(
            f"{where} is not UTF-8 but full of NUL bytes, as UTF-16 without a byte-order mark is: convert the file to UTF-8 "
            "or take it out of the folder"
        )


def decode_utf8(data: bytes, where: str, offset: int = 0) -> str:
    """The text of some bytes. A byte-order mark at a file's beginning gives the encoding, and is not part of the text.

    Args:
        where: name of the file, for errors.
        offset: position in the file at which the bytes begin.

    Raises CorpusError naming the file, and the byte that is not UTF-8 or the packing of a file that is packed. Also for a file
    full of NULs.
    """
    size = 0
    encoding = "UTF-8"
    if offset == 0:
        refuse_packed(data, where)
        size, encoding = mark_of(data)
        if encoding == "UTF-8":
            refuse_nuls(data, where)
    try:
        return str(memoryview(data)[size:] if size else data, encoding)
    except UnicodeDecodeError as error:
        at = size + error.start
        raise CorpusError(
            f"{where} is not {encoding}: byte 0x{data[at]:02x} at offset {offset + at} ({error.reason}); "
            "convert the file to UTF-8 or take it out of the folder"
        ) from None


def read_utf8(file: Place) -> str:
    """The text of a file, line ends as they are; raises as `decode_utf8` does."""
    return decode_utf8(file.read_bytes(), file.shown)


def text_of_cell(cell: str | bytes, where: str) -> str:
    """The text of a table's cell; bytes are read as UTF-8. Raises CorpusError, with the row, for any other bytes."""
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{where} is not UTF-8: byte 0x{cell[error.start]:02x} at offset {error.start} ({error.reason}); correct it, "
                "or read another column"
            ) from None
    return cell.removeprefix("\ufeff")
