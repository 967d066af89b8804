"""Recognises packed files by their first bytes, and reads those that can be read as a stream.

packing_of(head)                                  # "gzip", "bzip2", "7z", "tar"…; "" for a file that is not packed
unpacked(raw, "gzip").read(1 << 20)               # the bytes inside, as many as asked for
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa

HEAD = 512
"""Bytes at a file's beginning that `packing_of` needs."""
PIECE = 1 << 16
XZ_MEMORY = 256 << 20
"""Memory that unpacking an .xz or .lzma file may take; `xz -9` needs 65 MiB."""
ZSTD_WINDOW_LOG = 31
"""`zstd --long=31` has the longest window that zstd writes: 2 GiB, which unpacking then keeps in memory."""

_PACKINGS = {
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)",
    "xz": rb"\xfd7zXZ\0",
    "lzma": rb"\x5d\0\0.\0",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",  # the second begins a frame that is to be skipped
    "zip": rb"PK(?:\x03\x04|\x05\x06|\x07\x08)",
    "7z": rb"7z\xbc\xaf\x27\x1c",
    "rar": rb"Rar!\x1a\x07",
    "lz4": rb"\x04\x22\x4d\x18",
    "lzip": rb"LZIP[\x00\x01]",
    "lzop": rb"\x89LZO\0\r\n\x1a\n",
    "compress": rb"\x1f[\x9d\xa0\x1e]",
    "snappy": rb"\xff\x06\0\0sNaPpY",
    "cabinet": rb"MSCF\0\0\0\0",
    "tar": rb".{257}ustar",
}
"""Regular expressions for the first bytes of a file, by packing."""
READ = ("gzip", "bzip2", "xz", "lzma", "zstd")
"""The packings that `unpacked` reads."""


class PackingError(ValueError):
    """A file cannot be unpacked and is not damaged: the message, after the file's name, says why and what to do."""


def packing_of(head: bytes) -> str:
    """The packing of a file that begins with these bytes, at most HEAD of them; "" where it is not packed."""
    return next((name for name, begin in _PACKINGS.items() if re.match(begin, head, re.DOTALL)), "")


def unpacked(raw: Any, packing: str) -> Any:
    """A stream of the unpacked bytes of `raw`, which has a method `read`. Packed streams that follow each other are read as one.

    Zeros behind the last one, which tapes and some disks add, are left out.

    Args:
        packing: one of READ.

    Reading raises EOFError, ValueError or OSError where the packed bytes are damaged or end early.
    """
    zstd = zstd_module()
    if packing == "zstd" and zstd is None:
        return _PlainZstd(raw)
    start: dict[str, Callable[[], Any]] = {
        "gzip": _Gzip,
        "bzip2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY),
        "lzma": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, XZ_MEMORY),
        "zstd": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}),
    }
    return io.BufferedReader(_Unpacked(raw, start[packing]), PIECE)


@cache
def zstd_module() -> Any:
    """zstd of the standard library, which Python has from 3.14 on, or its backport; None where neither is installed."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of packed streams that follow each other.

    Args:
        start: makes a decompressor of one stream, with the interface that bz2, lzma and zstd of the standard library share.
    """

    def __init__(self, raw: Any, start: Callable[[], Any]) -> None:
        self._raw = raw
        self._start = start
        self._stream = start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        """Some of the next bytes, at most `size`; none at the end."""
        while True:
            packed = b""
            ended = False
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0") or self._after_zeros()
                if not packed:
                    return b""
                self._stream = self._start()
            elif self._stream.needs_input:
                packed = self._raw.read(PIECE)
                ended = not packed
            data = self._decompressed(packed, size)
            if data:
                return data
            if ended and not self._stream.eof:
                raise EOFError("the packed data ends early: truncated")

    def _after_zeros(self) -> bytes:
        """The next packed bytes that are not zeros only, without those at their beginning."""
        while True:
            piece = self._raw.read(PIECE)
            rest = piece.lstrip(b"\0")
            if rest or not piece:
                return rest

    def _decompressed(self, packed: bytes, size: int) -> bytes:
        try:
            return self._stream.decompress(packed, size)
        except Exception as error:  # zlib, bz2, lzma and zstd have errors of their own
            raise ValueError(str(error)) from None


class _Gzip:
    """zlib's decompressor of one gzip stream, with the interface that bz2, lzma and zstd have."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail and not self.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


class _PlainZstd:
    """zstd by pyarrow, which refuses windows of more than 128 MiB."""

    def __init__(self, raw: Any) -> None:
        self._stream = pa.CompressedInputStream(raw, "zstd")

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            if "too much memory" not in str(error):
                raise
            raise PackingError(
                "is packed by zstd with a window of more than 128 MiB (--long): pip install backports.zstd, which reads it, or "
                "pack it again without --long"
            ) from None
