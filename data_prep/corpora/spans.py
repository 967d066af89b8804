"""Lines and ranges of a stream, one by one or many at a time: to take short ones one by one costs more than to read them.

for line in lines(stream, limit):                        # line.offset, line.data
    ...
for offsets, sizes, blank in line_spans(stream):
    ...
window = Window(stream)
data = window.read(offset, size)
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.corpora.streams import CHUNK, Forward

LINES_AT_ONCE = 1 << 17
"""Bytes that are searched for lines at a time: a chunk of nothing but line ends takes some 70 times its size in memory."""

SPACES = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))
"""Which bytes `bytes.strip` takes for white space."""


@dataclass(frozen=True)
class Line:
    """A line of a stream."""

    offset: int
    """Bytes before it."""
    size: int
    """Bytes, its line end included."""
    data: bytes | None
    """None for a line that is too long to be kept."""
    blank: bool


def lines(stream: Any, keep: int) -> Iterator[Line]:
    """The lines of a stream, however long. Lines of at most `keep` bytes have their data."""
    offset = 0
    size = 0
    blank = True
    data = bytearray()
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
            blank = blank and not (piece.removeprefix(BOM_UTF8) if offset == start == 0 else piece).strip()
            start = stop
            if newline >= 0:
                yield Line(offset, size, bytes(data) if size <= keep else None, blank)
                offset = offset + size
                size = 0
                blank = True
                data = bytearray()
    if size:
        yield Line(offset, size, bytes(data) if size <= keep else None, blank)


def line_spans(stream: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The lines of a stream, as `lines` gives them, but many at a time: offsets and sizes (int64), and which are blank."""
    position = start = 0  # of the chunk, and of the line that is not ended yet
    blank = True  # as far as that line has been read
    while chunk := stream.read(LINES_AT_ONCE):
        data = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(data == ord("\n")) + 1
        starts = np.concatenate([[0], ends])
        # A line whose first byte is no white space is not blank. Only the others are looked at.
        blanks = SPACES[data[np.minimum(starts, len(data) - 1)]]
        blanks[0] = blank
        for i in np.flatnonzero(blanks).tolist():
            piece = chunk[starts[i] : ends[i] if i < len(ends) else None]
            blanks[i] = not (piece.removeprefix(BOM_UTF8) if position == i == 0 else piece).strip()
        if len(ends):
            offsets = position + starts[:-1]
            offsets[0] = start
            yield offsets, position + ends - offsets, blanks[:-1]
            start = position + int(ends[-1])
        blank = bool(blanks[-1])
        position += len(chunk)
    if position > start:
        yield np.array([start]), np.array([position - start]), np.array([blank])


AHEAD = 1 << 16
"""Bytes that are read at once for short ranges of a stream."""


class Window:
    """Ranges of a stream, which are asked for in order: many short ones are read together."""

    def __init__(self, stream: Forward) -> None:
        self._stream = stream
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes; fewer at the end of the stream."""
        first = offset - self._start
        if first < 0 or first + size > len(self._data):
            rest = self._data[first:] if first >= 0 else b""
            self._stream.seek(offset + len(rest))
            self._data = rest + self._stream.read(max(size, AHEAD) - len(rest))
            self._start = offset
            first = 0
        if size < AHEAD:
            return self._data[first : first + size]
        # a long one is not kept
        data = self._data
        self._data = b""
        self._start = offset + size
        return data
