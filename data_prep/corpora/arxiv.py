"""arXiv papers as LaTeX: the bulk source `arXiv_src_YYMM_NNN.tar`, or a folder for each paper.

A bulk archive holds a gzipped tar, a single gzipped TeX file or a PDF for each paper. Archives are streamed and never unpacked.
A paper is one document (see `data_prep.corpora.latex`); its files are UTF-8, else Latin-1. Its split follows from a hash of its id.
Left out and counted: papers without TeX (PDF only…), withdrawn ones (TeX that begins with %auto-ignore, or a few lines that say
so), damaged ones, and within papers links, devices and names that lead out of the archive.

    python -m pipelines.prepare arxiv --source FOLDER --tokenizer sentencepiece:32000
    python -m pipelines.prepare arxiv --source s3://BUCKET/src --metadata arxiv-metadata-oai-snapshot.json --subject math
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import pyarrow as pa

from data_prep.corpora import latex
from data_prep.corpora.streams import (
    MAX_DOCUMENT_BYTES,
    Forward,
    LeftOut,
    TooLarge,
    check_name,
    codec_of,
    decompressed,
    files_in,
    is_safe,
    is_tar,
    lines,
    open_seekable,
    printable,
    reading,
    skipped_of,
    tar_members,
)
from data_prep.documents import CorpusError, Document, Skipped, Source, decode_utf8, split_of
from data_prep.places import Listed, Place

TEX = (".tex", ".ltx", ".latex")
BULK = re.compile(r"arXiv_src_\w+\.tar", re.IGNORECASE)
ID = re.compile(r"(?:(\d{4}\.\d{4,5})|([a-z-]+)(?:\.[A-Z]{2})?/?(\d{7}))(?:v\d+)?")
MAX_FILES = 10_000
"""A paper with more TeX files is too large."""
GZIP_RATIO = 1032
"""Gzip cannot make more of a byte."""
LINE = 16 << 20


class _NoPaper(Exception):
    """Its argument is the reason for which this is no document."""


@dataclass(frozen=True)
class Arxiv:
    """LaTeX sources of arXiv papers."""

    name: ClassVar[str] = "arxiv"

    source: str = ""
    """Folder or bucket with arXiv_src_*.tar, or with a folder or a .gz file for each paper; or one .tar."""
    ids: str = ""
    """File with the ids of the papers to take, one to a line."""
    metadata: str = ""
    """JSON lines with id, title and categories, as the snapshot on Kaggle has them; with --subject."""
    subject: str = ""
    """Papers in a category of this subject alone: math, math.AG, hep-th."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A paper that is larger, all its files decompressed, is left out and counted."""

    def options(self) -> dict[str, Any]:
        return {"subject": self.subject}

    def splits_by_hash(self) -> bool:
        return True

    def sources(self, split: str) -> list[Source]:
        wanted = self._wanted()
        found: list[Source] = []
        seen: set[str] = set()
        for paper in self._listed(split, wanted):
            if skipped_of(paper) is None:
                if paper.id in seen:
                    raise CorpusError(f"{self._root()} holds paper {paper.id} twice: take one of them out")
                seen.add(paper.id)
            if paper.split == split:
                title = wanted.get(paper.id, "") if wanted else ""
                found.append(replace(paper, title=title or paper.title))
        if not seen:
            which = " that --ids, --metadata and --subject ask for" if wanted is not None else ""
            raise CorpusError(
                f"{self._root()} holds no paper{which}: give --source the folder of arXiv_src_*.tar, or of a folder for each paper"
            )
        return found

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        root = self._root()
        with ExitStack() as stack:
            opened: Place | None = None
            file: pa.NativeFile | None = None
            for source in sources:
                if skipped := skipped_of(source):
                    yield skipped
                    continue
                kind, offset, size, name = source.place.split("\t", 3)
                place = root / name if name else root
                limit = self.max_document_bytes
                if kind == "folder":
                    unpack = partial(_folder, place, limit)
                elif kind == "file":
                    unpack = partial(_unpack, _file(place), source.id, limit)
                else:
                    if opened != place:
                        stack.close()
                        opened, file = place, stack.enter_context(open_seekable(place))
                    assert file is not None
                    unpack = partial(_unpack, _slice(file, int(offset), int(size)), source.id, limit)
                yield from self._document(source, unpack)

    def _document(
        self, source: Source, unpack: Callable[[], tuple[dict[str, bytes], LeftOut]]
    ) -> Iterator[Document | Skipped]:
        """A paper, after what was left out of it."""
        try:
            with reading(source.id):
                files, left_out = unpack()
                text = _text(files)
        except _NoPaper as error:
            yield Skipped(source.id, str(error))
        except TooLarge:
            yield Skipped(source.id, "too large")
        except CorpusError:
            yield Skipped(source.id, "damaged")
        else:
            del files
            yield from left_out.skipped(source.id)
            yield Document(source.id, source.title, text)

    def _root(self) -> Place:
        if not self.source:
            raise CorpusError(f"corpus {self.name} needs a folder: give --source FOLDER")
        root = Place.parse(self.source)
        if not root.exists():
            raise CorpusError(f"{root} is not there: give --source the folder that holds the corpus {self.name}")
        return root

    def _listed(self, split: str, wanted: dict[str, str] | None) -> Iterator[Source]:
        root = self._root()
        if root.is_file():
            single = Listed(root, "", root.size(), False)
            yield from _bulk(single, split, wanted) if root.name.lower().endswith(".tar") else _single(single, wanted)
            return
        folders: dict[str, list[Listed]] = {}
        for file in files_in(root, recursive=True, links=False):
            top, _, below = file.name.partition("/")
            check_name(root, top)
            if BULK.fullmatch(file.place.name) or (not below and file.name.lower().endswith(".tar")):
                yield from _bulk(file, split, wanted)
            elif below:
                folders.setdefault(top, []).append(file)
            elif file.name.lower().endswith(".gz"):
                yield from _single(file, wanted)
        for name, files in sorted(folders.items()):
            if wanted is None or canonical(name) in wanted:
                size = sum(file.bytes for file in files if _is_tex(file.name))
                yield Source(canonical(name), name, split_of(canonical(name)), size, f"folder\t0\t{size}\t{name}")

    def _wanted(self) -> dict[str, str] | None:
        """The ids of the papers to take, with their titles where they are known; None for all."""
        if bool(self.metadata) != bool(self.subject):
            raise CorpusError("--subject needs --metadata FILE, and --metadata a --subject: give both, or neither")
        wanted = None
        if self.ids:
            file = Place.parse(self.ids)
            text = decode_utf8(file.read_bytes(), file.shown)
            wanted = {canonical(line.strip()): "" for line in text.splitlines() if line.strip()}
        if self.metadata:
            file = Place.parse(self.metadata)
            chosen = _of_subject(file, file.size(), self.subject)
            wanted = chosen if wanted is None else {id: chosen[id] for id in wanted if id in chosen}
        return wanted


def canonical(id: str) -> str:
    """An arXiv id as the bulk source writes it, without version: math.GT/0309136v1 is math0309136. Another name stays."""
    match = ID.fullmatch(id)
    return (match[1] or match[2] + match[3]) if match else id


@lru_cache(maxsize=1)
def _of_subject(file: Place, size: int, subject: str) -> dict[str, str]:
    """Ids and titles of the papers with a category of the subject; the file is long, and read once for all splits."""
    found = {}
    with reading(file.shown), decompressed(file) as stream:
        for number, line in enumerate(lines(stream, LINE), 1):
            if line.blank:
                continue
            where = f"{file} line {number}"
            try:
                if line.data is None:
                    raise ValueError(f"a line of {line.size:,} bytes")
                entry = json.loads(line.data)
                id, title, categories = entry["id"], entry.get("title") or "", entry["categories"]
                listed = categories.split() if isinstance(categories, str) else " ".join(categories).split()
                if any(category == subject or category.startswith(f"{subject}.") for category in listed):
                    found[canonical(id)] = " ".join(title.split())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CorpusError(
                    f"{where} is not a record with id, title and categories ({error}): give --metadata another file"
                ) from None
    return found


def _bulk(file: Listed, split: str, wanted: dict[str, str] | None) -> Iterator[Source]:
    """The papers of a bulk archive, then what it holds besides."""
    left_out = LeftOut()
    with reading(file.place.shown), file.place.open_stream() as raw:
        # A local file is read at its headers alone; from a bucket one stream of all is faster than so many requests.
        stream = Forward(raw, size=file.bytes if file.place.is_local else None)
        for member in tar_members(stream):
            if member.isdir():
                continue
            base = printable(member.name.rsplit("/", 1)[-1])
            stem = re.sub(r"\.(tar\.gz|tgz|gz|pdf|tar)$", "", base, flags=re.IGNORECASE)
            id = canonical(stem)
            if wanted is not None and id not in wanted:
                continue
            paper = Source(id, id, split_of(id), member.size, f"tar\t{member.offset_data}\t{member.size}\t{file.name}")
            reason = _reason(member, base)
            if reason is None:
                yield paper
            elif paper.split == split:
                left_out.add(reason)
    yield from left_out.sources(file.name or file.place.name, split)


def _reason(member: Any, base: str) -> str | None:
    """Why a member of a bulk archive is no paper with a source; None where it may be one."""
    if not member.isreg() or member.issparse():
        return "link or device"
    if not is_safe(member.name):
        return "unsafe name"
    if member.size == 0:
        return "empty"
    if base.lower().endswith(".pdf"):
        return "PDF only"
    return None


def _single(file: Listed, wanted: dict[str, str] | None) -> Iterator[Source]:
    """A paper that is a gzipped file of its own."""
    id = canonical(re.sub(r"(\.tar)?\.gz$", "", file.place.name, flags=re.IGNORECASE))
    if wanted is None or id in wanted:
        yield Source(id, id, split_of(id), file.bytes, f"file\t0\t{file.bytes}\t{file.name}")


_Opener = Callable[[], AbstractContextManager[tuple[Any, int]]]
"""Opens the bytes of a paper, as often as asked, and says how many there are."""


def _slice(file: pa.NativeFile, offset: int, size: int) -> _Opener:
    @contextmanager
    def open_slice() -> Iterator[tuple[Any, int]]:
        if offset + size > file.size():
            raise EOFError("an early end")
        with file.get_stream(offset, size) as stream:
            yield stream, size

    return open_slice


def _file(place: Place) -> _Opener:
    @contextmanager
    def open_file() -> Iterator[tuple[Any, int]]:
        with place.open_stream() as stream:
            yield stream, place.size()

    return open_file


def _unpack(member: _Opener, id: str, limit: int) -> tuple[dict[str, bytes], LeftOut]:
    """The TeX files of a packed paper. Raises _NoPaper or TooLarge, or what a damaged archive raises."""
    left_out = LeftOut()
    with _decompressed(member, limit) as (stream, size):
        head = stream.peek(512)
        if len(head) == 512 and is_tar(head):
            return _tex_members(stream, left_out), left_out
        if (reason := _not_tex(head)) is not None:
            raise _NoPaper(reason)
    if size * GZIP_RATIO > limit:  # it might be too large: see, before it is in memory
        with _decompressed(member, limit) as (stream, _):
            stream.skip_rest()
    with _decompressed(member, limit) as (stream, _):
        data = stream.rest()
    if (reason := _not_tex(data)) is not None:
        raise _NoPaper(reason)
    return {f"{id}.tex": data}, left_out


@contextmanager
def _decompressed(member: _Opener, limit: int) -> Iterator[tuple[Forward, int]]:
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
            kept = files if _is_tex(name) else bare if "." not in name.rsplit("/", 1)[-1] else None
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
        raise _NoPaper("PDF only" if has_pdf else "no TeX")
    return files


def _folder(folder: Place, limit: int) -> tuple[dict[str, bytes], LeftOut]:
    listed = [file for file in files_in(folder, recursive=True, links=False) if _is_tex(file.name)]
    if not listed:
        has_pdf = any(file.name.lower().endswith(".pdf") for file in files_in(folder, recursive=True, links=False))
        raise _NoPaper("PDF only" if has_pdf else "no TeX")
    if sum(file.bytes for file in listed) > limit or len(listed) > MAX_FILES:
        raise TooLarge
    return {printable(file.name): file.place.read_bytes() for file in listed}, LeftOut()


def _is_tex(name: str) -> bool:
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


def _text(files: dict[str, bytes]) -> str:
    """The paper as one text. Raises _NoPaper where it is a stub that says that the paper was withdrawn."""
    ignored = all(data.lstrip()[:12] == b"%auto-ignore" for data in files.values())
    short = sum(map(len, files.values())) < 2000 and any(b"withdrawn" in data.lower() for data in files.values())
    if ignored or short:
        raise _NoPaper("withdrawn")
    return latex.paper({name: _decode(data) for name, data in files.items()})


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
