"""The TeX files of one arXiv paper: a gzipped tar, a single gzipped file, or a folder; streamed, within a limit, never extracted.

files, left_out = unpack(whole_file(place), "2101.00001", limit)       # {"ms.tex": b"…"}; links and unsafe names are left out
text_of(files)                                                         # one text, in reading order (latex.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from data_prep.corpora import latex
from data_prep.corpora.streams import (
    Forward,
    LeftOut,
    TooLarge,
    codec_of,
    files_in,
    is_safe,
    is_tar,
    printable,
    tar_members,
)
from data_prep.places import Place

TEX = (".tex", ".ltx", ".latex")
MAX_FILES = 10_000
"""A paper with more TeX files is too large."""
GZIP_RATIO = 1032
"""Gzip cannot make more of a byte."""


class NoPaper(Exception):
    """Its argument is the reason for which this is no document."""


Opener = Callable[[], AbstractContextManager[tuple[Any, int]]]
"""Opens the bytes of a paper, as often as asked, and says how many there are."""


def slice_of(file: pa.NativeFile, offset: int, size: int) -> Opener:
    @contextmanager
    def open_slice() -> Iterator[tuple[Any, int]]:
        if offset + size > file.size():
            raise EOFError("an early end")
        with file.get_stream(offset, size) as stream:
            yield stream, size

    return open_slice


def whole_file(place: Place) -> Opener:
    @contextmanager
    def open_file() -> Iterator[tuple[Any, int]]:
        with place.open_stream() as stream:
            yield stream, place.size()

    return open_file


def unpack(member: Opener, id: str, limit: int) -> tuple[dict[str, bytes], LeftOut]:
    """The TeX files of a packed paper. Raises NoPaper or TooLarge, or what a damaged archive raises."""
    left_out = LeftOut()
    with _decompressed(member, limit) as (stream, size):
        head = stream.peek(512)
        if len(head) == 512 and is_tar(head):
            return _tex_members(stream, left_out), left_out
        if (reason := _not_tex(head)) is not None:
            raise NoPaper(reason)
    if size * GZIP_RATIO > limit:  # it might be too large: see, before it is in memory
        with _decompressed(member, limit) as (stream, _):
            stream.skip_rest()
    with _decompressed(member, limit) as (stream, _):
        data = stream.rest()
    if (reason := _not_tex(data)) is not None:
        raise NoPaper(reason)
    return {f"{id}.tex": data}, left_out


@contextmanager
def _decompressed(member: Opener, limit: int) -> Iterator[tuple[Forward, int]]:
    with member() as (raw, size):
        codec = codec_of(raw.read(4))
    with member() as (raw, size):
        if codec is None:
            yield Forward(raw, limit), size
        else:
            with pa.CompressedInputStream(raw, codec) as stream:
                yield Forward(stream, limit), size


def _tex_members(stream: Forward, left_out: LeftOut) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    bare: dict[str, bytes] = {}
    has_pdf = False
    for member in tar_members(stream):
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            left_out.add("link or device")
        elif not is_safe(member.name):
            left_out.add("unsafe name")
        elif member.size:
            name = printable(member.name.removeprefix("./"))
            has_pdf = has_pdf or name.lower().endswith(".pdf")
            kept = files if is_tex(name) else bare if "." not in name.rsplit("/", 1)[-1] else None
            if kept is None:
                continue
            if len(kept) == MAX_FILES:
                raise TooLarge
            stream.seek(member.offset_data)
            kept[name] = stream.read(member.size)
            if len(kept[name]) < member.size:
                raise EOFError(f"{name} ends early")
    files = files or {name: data for name, data in bare.items() if _looks_like_tex(data)}
    if not files:
        raise NoPaper("PDF only" if has_pdf else "no TeX")
    return files


def folder_of_tex(folder: Place, limit: int) -> tuple[dict[str, bytes], LeftOut]:
    listed = [file for file in files_in(folder, recursive=True, links=False) if is_tex(file.name)]
    if not listed:
        has_pdf = any(file.name.lower().endswith(".pdf") for file in files_in(folder, recursive=True, links=False))
        raise NoPaper("PDF only" if has_pdf else "no TeX")
    if sum(file.bytes for file in listed) > limit or len(listed) > MAX_FILES:
        raise TooLarge
    return {printable(file.name): file.place.read_bytes() for file in listed}, LeftOut()


def is_tex(name: str) -> bool:
    return name.lower().endswith(TEX)


def _looks_like_tex(data: bytes) -> bool:
    return b"\0" not in data and any(
        mark in data for mark in (b"\\documentclass", b"\\documentstyle", b"\\begin{document}", b"\\bye", b"\\input")
    )


def _not_tex(data: bytes) -> str | None:
    """What a single file is that is not TeX."""
    begin = data[:512].lstrip()
    if not begin and not data.strip():
        return "empty"
    if begin.startswith(b"%PDF"):
        return "PDF only"
    if begin.startswith(b"%!PS"):
        return "PostScript only"
    if begin[:9].lower().startswith((b"<html", b"<!doctype")):
        return "HTML only"
    return "no TeX" if b"\0" in data else None


def text_of(files: dict[str, bytes]) -> str:
    """The paper as one text. Raises NoPaper where it is a stub that says that the paper was withdrawn."""
    ignored = all(data.lstrip()[:12] == b"%auto-ignore" for data in files.values())
    short = sum(map(len, files.values())) < 2000 and any(b"withdrawn" in data.lower() for data in files.values())
    if ignored or short:
        raise NoPaper("withdrawn")
    return latex.paper({name: _decode(data) for name, data in files.items()})


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
