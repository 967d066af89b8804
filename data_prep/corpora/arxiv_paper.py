"""The TeX files of one arXiv paper: a gzipped tar, a single gzipped file, or a folder; streamed, within a limit, never extracted.

text, left_out = unpack(whole_file(place), "2101.00001", limit)        # in reading order (latex.py); links are left out

A TeX file has an ending of TeX, or an \\input names it (`\\input{main.bbl}`). Where none of these is a main file, one without an
ending or with `.txt` may be. The paper's 00README says which file is the main one, and which are ignored (arxiv_readme.py).
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pyarrow as pa

from common.places import Listed, Place
from data_prep.corpora import latex
from data_prep.corpora.arxiv_readme import MAX_BYTES as MAX_README
from data_prep.corpora.arxiv_readme import Directives, is_readme
from data_prep.corpora.arxiv_readme import read as read_readme
from data_prep.corpora.files import files_in, is_hidden, printable
from data_prep.corpora.left_out import LeftOut
from data_prep.corpora.streams import Forward, TooLarge
from data_prep.corpora.tars import is_safe, is_tar, tar_members
from data_prep.corpora.tex_encoding import decoded, text_bytes
from data_prep.packing import HEAD, READ, packing_of, unpacked

TEX = (".tex", ".ltx", ".latex")
MAX_FILES = 10_000
"""A paper with more TeX files is too large."""
GZIP_RATIO = 1032
"""The most bytes to which gzip can decompress one byte."""
MAX_CHAIN = 4
"""Times that a paper is read again for the files that its files name: `\\input{main.bbl}`."""


class NoPaper(Exception):
    """A paper that gives no document. The argument is the reason."""


Opener = Callable[[], AbstractContextManager[tuple[Any, int]]]
"""Opens the bytes of a paper, any number of times, and gives their number."""


def slice_of(file: pa.NativeFile, offset: int, size: int) -> Opener:
    """Open the ``size`` bytes of a file that begin at ``offset``. Raises EOFError where the file ends before."""

    @contextmanager
    def open_slice() -> Iterator[tuple[Any, int]]:
        if offset + size > file.size():
            raise EOFError("an early end")
        with file.get_stream(offset, size) as stream:
            yield stream, size

    return open_slice


def whole_file(place: Place) -> Opener:
    """Opens a paper that is a file of its own."""

    @contextmanager
    def open_file() -> Iterator[tuple[Any, int]]:
        with place.open_stream() as stream:
            yield stream, place.size()

    return open_file


def unpack(member: Opener, id: str, limit: int) -> tuple[str, LeftOut]:
    """The text of a packed paper. Raises NoPaper or TooLarge, or what a damaged archive raises."""
    with _decompressed(member, limit) as (stream, size):
        head = stream.peek(HEAD)
        whole = is_tar(head)
        reason = None if whole else _not_tex(head)
    if whole:
        return _text_of(partial(_members, member, limit))
    if reason is not None:
        raise NoPaper(reason)
    if size * GZIP_RATIO > limit:  # it might be too large: check before it is in memory
        with _decompressed(member, limit) as (stream, _):
            stream.skip_rest()
    with _decompressed(member, limit) as (stream, _):
        data = stream.rest()
    reason = _not_tex(data)
    if reason is not None:
        raise NoPaper(reason)
    return _text_of(lambda left_out: iter([_Member(f"{id}.tex", len(data), lambda: data)]))


def folder_of_tex(folder: Place, limit: int) -> tuple[str, LeftOut]:
    """The text of a paper that is a folder. Raises as `unpack` does."""
    return _text_of(partial(_files, folder, limit))


@contextmanager
def _decompressed(member: Opener, limit: int) -> Iterator[tuple[Forward, int]]:
    with member() as (raw, size):
        packing = packing_of(raw.read(HEAD))
    if packing not in ("", "tar", *READ):
        raise NoPaper(f"packed ({packing})")
    with member() as (raw, size):
        yield Forward(unpacked(raw, packing) if packing in READ else raw, limit, checked=packing in READ), size


@dataclass(frozen=True)
class _Member:
    """A file of a paper, which can be read until the next one is asked for."""

    name: str
    size: int
    read: Callable[[], bytes]


_Members = Callable[[LeftOut], Iterator[_Member]]
"""Gives the files of a paper that are not empty, any number of times, and counts those that it leaves out."""


def _members(member: Opener, limit: int, left_out: LeftOut) -> Iterator[_Member]:
    """Members of a tar archive."""
    with _decompressed(member, limit) as (stream, _):
        for info in tar_members(stream):
            if info.isdir():
                continue
            name = printable(info.name.removeprefix("./"))
            if not info.isreg() or info.issparse():
                left_out.add("link or device")
            elif not is_safe(info.name):
                left_out.add("unsafe name")
            elif is_hidden(name):
                if is_tex(name):
                    left_out.add("hidden")
            elif info.size:
                yield _Member(name, info.size, partial(_data, stream, info))


def _data(stream: Forward, info: tarfile.TarInfo) -> bytes:
    stream.seek(info.offset_data)
    data = stream.read(info.size)
    if len(data) < info.size:
        raise EOFError(f"{info.name} ends early")
    return data


def _files(folder: Place, limit: int, left_out: LeftOut) -> Iterator[_Member]:
    """Files of a folder. Raises TooLarge if more bytes than the limit would be read."""
    size = 0
    for file in files_in(folder, recursive=True, links=False):
        tex = is_tex(file.name)
        size += file.bytes if tex else 0
        if size > limit:
            raise TooLarge
        if is_hidden(file.name):
            if tex:
                left_out.add("hidden")
        elif file.bytes:
            yield _Member(printable(file.name), file.bytes, partial(_bounded, file, limit))


def _bounded(file: Listed, limit: int) -> bytes:
    if file.bytes > limit:
        raise TooLarge
    return file.place.read_bytes()


def _text_of(members: _Members) -> tuple[str, LeftOut]:
    """The paper as one text, and what was left out of it. Raises NoPaper where there is none."""
    left_out = LeftOut()
    found = _read(members, left_out)
    scan = cache(latex.scan)
    files = _tex_files(found, scan)
    others = found.others - files.keys()
    for _ in range(MAX_CHAIN):
        scanned = {name: scan(text) for name, text in decoded(files).items()}
        wanted = latex.input_names(scanned, others) | others.intersection(found.readme.main)
        if not wanted:
            break
        for member in members(LeftOut()):
            if member.name in wanted:
                _keep(files, member.name, member.read(), left_out)
        others -= wanted
    if not files:
        raise NoPaper("PDF only" if found.has_pdf else "no TeX")
    if _is_withdrawn(files):
        raise NoPaper("withdrawn")
    texts = decoded(files)
    main = [name for name in found.readme.main if name in files]
    return latex.paper(texts, main, {name: scan(text) for name, text in texts.items()}), left_out


@dataclass
class _Found:
    """The files of a paper after one pass over it, by name."""

    tex: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Those with the ending of TeX."""
    spare: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Others that look like TeX."""
    others: set[str] = field(default_factory=set[str])
    """Names of all that are not in ``tex``, up to `MAX_FILES`."""
    readme: Directives = field(default_factory=Directives)
    has_pdf: bool = False


def _read(members: _Members, left_out: LeftOut) -> _Found:
    """Read a paper's files, without those that its 00README ignores. Raises TooLarge where there are too many."""
    found = _Found()
    for member in members(left_out):
        name = member.name
        found.has_pdf = found.has_pdf or name.lower().endswith(".pdf")
        if is_readme(name):
            found.readme = _directives(member, left_out)
        elif is_tex(name):
            _keep(found.tex, name, member.read(), left_out)
        elif may_be_tex(name):
            data = text_bytes(member.read())
            if data is not None and _looks_like_tex(data):
                found.spare[name] = data
        if name not in found.tex and len(found.others) < MAX_FILES:
            found.others.add(name)
        if len(found.tex) > MAX_FILES or len(found.spare) > MAX_FILES:
            raise TooLarge
    for name in found.readme.ignored & found.tex.keys():
        del found.tex[name]
        left_out.add("ignored by 00README")
    found.others -= found.readme.ignored
    found.spare = {name: data for name, data in found.spare.items() if name not in found.readme.ignored}
    return found


def _tex_files(found: _Found, scan: Callable[[str], latex.Scanned]) -> dict[str, bytes]:
    """The files that are TeX: those with its ending, and the spare ones where these are none or have no main file."""
    if not found.tex:
        return found.spare
    whole: dict[str, bytes] = {}
    if found.spare and not any(scan(text).is_whole for text in decoded(found.tex).values()):
        whole = {name: found.spare[name] for name, text in decoded(found.spare).items() if scan(text).is_whole}
    return found.tex | whole


def _directives(member: _Member, left_out: LeftOut) -> Directives:
    if member.size <= MAX_README:
        data = member.read()
        try:
            return read_readme(member.name, data)
        except ValueError:
            pass
    left_out.add("damaged 00README")
    return Directives()


def _keep(files: dict[str, bytes], name: str, data: bytes, left_out: LeftOut) -> None:
    """Add a file of text; count any other."""
    text = text_bytes(data)
    if text is None:
        left_out.add("binary")
    else:
        files[name] = text


def is_tex(name: str) -> bool:
    return name.lower().endswith(TEX)


def may_be_tex(name: str) -> bool:
    """Whether a file without an ending of TeX may be TeX all the same: old papers have none, and some `.txt`."""
    base = name.rsplit("/", 1)[-1]
    return "." not in base or base.lower().endswith(".txt")


def _looks_like_tex(data: bytes) -> bool:
    return any(
        mark in data for mark in (b"\\documentclass", b"\\documentstyle", b"\\begin{document}", b"\\bye", b"\\input")
    )


def _not_tex(data: bytes) -> str | None:
    """The kind of a single file that is not TeX; None if it may be TeX."""
    begin = data[:512].lstrip()
    if not begin and not data.strip():
        return "empty"
    if begin.startswith(b"%PDF"):
        return "PDF only"
    if begin.startswith(b"%!PS"):
        return "PostScript only"
    if begin[:9].lower().startswith((b"<html", b"<!doctype")):
        return "HTML only"
    return "no TeX" if text_bytes(data) is None else None


def _is_withdrawn(files: dict[str, bytes]) -> bool:
    """Whether a paper is a stub that says that it was withdrawn."""
    ignored = all(data.lstrip()[:12] == b"%auto-ignore" for data in files.values())
    short = sum(map(len, files.values())) < 2000 and any(b"withdrawn" in data.lower() for data in files.values())
    return ignored or short
