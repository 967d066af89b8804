"""arXiv papers as LaTeX: the bulk source `arXiv_src_YYMM_NNN.tar`, or a folder or a file for each paper. Papers may also lie in
folders of months, as an unpacked bulk archive has them (`0001/astro-ph0001001.gz`).

A bulk archive holds a gzipped tar, a single gzipped TeX file or a PDF for each paper. Archives are streamed and never unpacked.
A paper is one document (see `data_prep.corpora.latex`); its files are UTF-8, or as a byte-order mark or the package inputenc says,
else Windows-1252. Its 00README decides on its files. Its split follows from a hash of its id.
Left out and counted: papers without TeX (PDF only…), withdrawn ones (TeX that begins with %auto-ignore, or a few lines that say
so), damaged ones, and within papers binary and hidden files, links, devices and names that lead out of the archive. An archive or
a paper's folder may itself be a link.

    python -m pipelines.prepare arxiv --source FOLDER --tokenizer sentencepiece:32000
    python -m pipelines.prepare arxiv --source s3://BUCKET/src --metadata arxiv-metadata-oai-snapshot.json --subject math
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from common.checks import check_options
from common.places import Listed, Place
from data_prep.corpora.arxiv_paper import NoPaper, folder_of_tex, is_tex, may_be_tex, slice_of, unpack, whole_file
from data_prep.corpora.encodings import read_utf8, refuse_packed
from data_prep.corpora.files import check_name, files_in, is_hidden, is_link, place_of, printable
from data_prep.corpora.left_out import LeftOut, skipped_of
from data_prep.corpora.spans import lines
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, Forward, TooLarge, decompressed, open_seekable, reading
from data_prep.corpora.tars import is_safe, tar_members
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, Source, split_of
from data_prep.packing import HEAD, packing_of

BULK = re.compile(r"arXiv_src_\w+\.tar", re.IGNORECASE)
PACKED_BULK = re.compile(r"arXiv_src_\w+\.(tar\.\w+|tgz)", re.IGNORECASE)
PACKED = re.compile(r"(\.tar)?\.(gz|bz2|xz|zst)$|\.tgz$", re.IGNORECASE)
"""Endings of a packed file."""
FILE = re.compile(rf"({PACKED.pattern}|\.(tar|tex|pdf))$", re.IGNORECASE)
"""Endings of a paper that is a file of its own, named by its id."""
ID = re.compile(
    r"(?:(?i:arxiv):\s*|https?://arxiv\.org/(?:abs|pdf)/)?(?:(\d{4}\.\d{4,5})|([a-z-]+)(?:\.[A-Z]{2})?/?(\d{7}))(?:v\d+)?"
)
MONTH = re.compile(r"\d{4}")
"""Name of the folder to which a bulk archive unpacks."""
LINE = 16 << 20
"""Bytes of the longest line of --metadata."""
LISTED_AT_ONCE = 8
"""Archives whose papers are listed at the same time."""
_NEWEST: dict[tuple[object, ...], list[Source]] = {}
"""The sources of the corpus that was listed last."""


@dataclass(frozen=True)
class Arxiv:
    """LaTeX sources of arXiv papers."""

    name: ClassVar[str] = "arxiv"

    source: str = ""
    """Folder or bucket with arXiv_src_*.tar, or with a folder or a packed file (.gz, .tar.gz…) for each paper; or one .tar."""
    ids: str = ""
    """File with the ids of the papers to take, one to a line."""
    metadata: str = ""
    """JSON lines with id, title and categories, as the snapshot on Kaggle has them; with --subject."""
    subject: str = ""
    """Papers in a category of this subject alone: math, math.AG, hep-th."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A paper that is larger, all its files decompressed, is left out and counted."""

    def __post_init__(self) -> None:
        check_options(self, max_document_bytes=1)

    def options(self) -> dict[str, Any]:
        return {"subject": self.subject}

    def splits_by_hash(self) -> bool:
        return True

    def sources(self, split: str) -> list[Source]:
        return [source for source in self._sources() if source.split == split]

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each paper's TeX as one document, or why there is none. Raises CorpusError for an archive that cannot be read."""
        root = place_of(self.name, self.source)
        with ExitStack() as stack:
            opened: Place | None = None
            file: pa.NativeFile | None = None
            for source in sources:
                skipped = skipped_of(source)
                if skipped:
                    yield skipped
                    continue
                kind, offset, size, name = source.place
                place = root / name if name else root
                limit = self.max_document_bytes
                if kind == "folder":
                    text_of = partial(folder_of_tex, place, limit)
                elif kind == "file":
                    text_of = partial(unpack, whole_file(place), source.id, limit)
                else:
                    if opened != place:
                        stack.close()
                        opened = place
                        file = stack.enter_context(open_seekable(place))
                    assert file is not None
                    text_of = partial(unpack, slice_of(file, offset, size), source.id, limit)
                yield from self._document(source, text_of)

    def _document(self, source: Source, text_of: Callable[[], tuple[str, LeftOut]]) -> Iterator[Document | Skipped]:
        """Yield a Skipped for each kind of file left out, then the paper; or a single Skipped if it is no document."""
        try:
            with reading(source.id):
                text, left_out = text_of()
        except NoPaper as error:
            yield Skipped(source.id, str(error))
        except TooLarge:
            yield Skipped(source.id, "too large")
        except CorpusError:
            yield Skipped(source.id, "damaged")
        else:
            yield from left_out.skipped(source.id)
            yield Document(source.id, source.title, text)

    def _sources(self) -> list[Source]:
        """The sources of all splits. Archives take long to list: as long as no file changes, the newest listing is used again."""
        root = place_of(self.name, self.source)
        is_archive = root.is_file()
        files = [Listed(root, "", root.size(), is_dir=False)] if is_archive else _files(root)
        lists = [Place.parse(path) for path in (self.ids, self.metadata) if path]
        inputs = [*files, *(Listed(place, place.name, place.size(), is_dir=False) for place in lists)]
        key = (self, *((file.name, file.bytes, file.place.changed()) for file in inputs))
        if key not in _NEWEST:
            found = self._listed(root, files, self._wanted())
            _NEWEST.clear()
            _NEWEST[key] = found
        return _NEWEST[key]

    def _listed(self, root: Place, files: list[Listed], wanted: dict[str, str] | None) -> list[Source]:
        """The sources of all splits. ``wanted``: ids and titles of the papers to take; None for all.

        Raises CorpusError where there are none, or two of one paper.
        """
        packed, folders = _packed_and_folders(root, files)
        found: list[Source] = []
        held: set[str] = set()  # ids of wanted papers that are there, even if left out
        with ThreadPoolExecutor(LISTED_AT_ONCE) as pool:
            archives = pool.map(partial(_bulk, wanted=wanted), [file for file in packed if _is_bulk(file)])
            for file in packed:
                papers, ids = next(archives) if _is_bulk(file) else _single(file, wanted)
                found += papers
                held |= ids
        for name, inside in sorted(folders.items()):
            paper = _folder(name, inside)
            if wanted is None or paper.id in wanted:
                found.append(paper)
                held.add(paper.id)
        counts = Counter(source.id for source in found if skipped_of(source) is None)
        if not counts:
            which = " that --ids, --metadata and --subject ask for" if wanted is not None else ""
            raise CorpusError(
                f"{root} holds no paper{which}: give --source the folder of arXiv_src_*.tar, or of a folder for each paper"
            )
        id, count = counts.most_common(1)[0]
        if count > 1:
            raise CorpusError(f"{root} holds paper {id} twice: take one of them out")
        if wanted is not None:
            found = [source._replace(title=wanted.get(source.id) or source.title) for source in found]
        if self.ids:
            found += _missing([id for id in wanted or () if id not in held])
        return found

    def _wanted(self) -> dict[str, str] | None:
        """The ids of the papers to take, with their titles where they are known; None for all."""
        if bool(self.metadata) != bool(self.subject):
            raise CorpusError("--subject needs --metadata FILE, and --metadata a --subject: give both, or neither")
        wanted = None
        if self.ids:
            written = map(str.strip, read_utf8(Place.parse(self.ids)).splitlines())
            wanted = {canonical(id): "" for id in written if id}
        if self.metadata:
            chosen = _of_subject(Place.parse(self.metadata), self.subject)
            wanted = chosen if wanted is None else {id: chosen[id] for id in wanted if id in chosen}
        return wanted


def _files(root: Place) -> list[Listed]:
    """The files of the corpus. An archive or a paper's folder may be a link; links within a paper are not followed."""
    found = files_in(root, recursive=True, links=False)
    if not root.is_local:
        return found
    found += [file for file in files_in(root) if is_link(file.place)]
    for folder in [listed for listed in root.list() if listed.is_dir and is_link(listed.place)]:
        inside = files_in(folder.place, recursive=True, links=False)
        found += [replace(file, name=f"{folder.name}/{file.name}") for file in inside]
    return sorted(found, key=lambda file: file.name)


def _packed_and_folders(root: Place, files: list[Listed]) -> tuple[list[Listed], dict[str, list[Listed]]]:
    """The archives and packed papers among the files of a corpus, and the files of each paper's folder, by its path.

    Raises CorpusError for a bulk archive that is packed itself.
    """
    packed: list[Listed] = []
    folders: dict[str, list[Listed]] = {}
    months = {file.name.split("/")[0] for file in files if _is_of_month(file.name)}
    for file in files:
        parts = file.name.split("/")
        depth = 2 if parts[0] in months else 1
        paper = "/".join(parts[:depth])
        below = parts[depth:]
        check_name(root, paper or file.place.name)
        if PACKED_BULK.fullmatch(file.place.name):
            raise CorpusError(f"{file.place} is packed: unpack it, since papers are read at any place of an archive")
        if is_hidden(paper):
            continue
        if _is_bulk(file) or file.place == root or (not below and _is_single(file.place.name)):
            packed.append(file)
        elif below:
            folders.setdefault(paper, []).append(file)
    return packed, folders


def _is_of_month(name: str) -> bool:
    """Whether a file's path is that of a paper, or in its folder, in the folder of a month: `2001/2001.00001.gz`."""
    month, _, below = name.partition("/")
    return MONTH.fullmatch(month) is not None and ID.fullmatch(FILE.sub("", below.split("/")[0])) is not None


def _folder(name: str, files: list[Listed]) -> Source:
    """The source of a paper that is a folder with these files."""
    id = canonical(name.rpartition("/")[2])
    size = sum(file.bytes for file in files if is_tex(file.name))
    size = size or sum(file.bytes for file in files if may_be_tex(file.name))
    return Source(id, name, split_of(id), size, ("folder", 0, size, name))


def canonical(id: str) -> str:
    """An arXiv id as the bulk source writes it: arXiv:math.GT/0309136v1 is math0309136. Another name stays."""
    match = ID.fullmatch(id)
    return (match[1] or match[2] + match[3]) if match else id


def _of_subject(file: Place, subject: str) -> dict[str, str]:
    """Ids and titles of the papers with a category of the subject."""
    found = {}
    with reading(file.shown), decompressed(file) as stream:
        for number, line in enumerate(lines(stream, LINE), 1):
            if line.blank:
                continue
            try:
                if line.data is None:
                    raise ValueError(f"a line of {line.size:,} bytes")
                entry = json.loads(line.data)
                id = entry["id"]
                title = entry.get("title") or ""
                categories = entry["categories"]
                listed = categories.split() if isinstance(categories, str) else " ".join(categories).split()
                if any(category == subject or category.startswith(f"{subject}.") for category in listed):
                    title.encode()  # a lone surrogate is in no UTF-8
                    found[canonical(id)] = " ".join(title.split())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CorpusError(
                    f"{file} line {number} is not a record with id, title and categories ({error}): give --metadata another file"
                ) from None
    return found


def _is_bulk(file: Listed) -> bool:
    """Whether a file is an archive of papers: a .tar that is neither in a paper's folder nor named by a paper's id."""
    name = file.place.name
    plain = "/" not in file.name and name.lower().endswith(".tar") and not ID.fullmatch(FILE.sub("", name))
    return bool(BULK.fullmatch(name)) or plain


def _is_single(name: str) -> bool:
    """Whether a file in no paper's folder is a paper: packed, or named by the paper's id as a download is."""
    return bool(PACKED.search(name) or ID.fullmatch(FILE.sub("", name)))


def _bulk(file: Listed, wanted: dict[str, str] | None) -> tuple[list[Source], set[str]]:
    """Sources of a bulk archive's papers and of its other members, and the wanted ids that are among them."""
    papers: list[Source] = []
    held: set[str] = set()
    left_out = {split: LeftOut() for split in SPLITS}
    with reading(file.place.shown), file.place.open_stream() as raw:
        # A local file is read at its headers alone; from a bucket one stream of all is faster than so many requests.
        stream = Forward(raw, size=file.bytes if file.place.is_local else None)
        head = stream.peek(HEAD)
        if packing_of(head) != "tar":
            refuse_packed(head, file.place.shown)
        for member in tar_members(stream):
            if member.isdir():
                continue
            base = printable(member.name.rsplit("/", 1)[-1])
            stem = re.sub(r"\.(pdf|tar)$", "", PACKED.sub("", base), flags=re.IGNORECASE)
            id = canonical(stem)
            if wanted is not None:
                if id not in wanted:
                    continue
                held.add(id)
            split = split_of(id)
            reason = _reason(member, base)
            if reason is None:
                papers.append(Source(id, id, split, member.size, ("tar", member.offset_data, member.size, file.name)))
            else:
                left_out[split].add(reason)
    for split in SPLITS:
        papers += left_out[split].sources(file.name or file.place.name, split)
    return papers, held


def _reason(member: Any, base: str) -> str | None:
    """The reason to leave out a member of a bulk archive; None if it may be a paper with a source."""
    if not member.isreg() or member.issparse():
        return "link or device"
    if not is_safe(member.name):
        return "unsafe name"
    if is_hidden(member.name):
        return "hidden"
    if member.size == 0:
        return "empty"
    if base.lower().endswith(".pdf"):
        return "PDF only"
    return None


def _single(file: Listed, wanted: dict[str, str] | None) -> tuple[list[Source], set[str]]:
    """The source and the id of a paper that is a file of its own; none if it is not wanted."""
    id = canonical(FILE.sub("", file.place.name))
    if wanted is not None and id not in wanted:
        return [], set()
    return [Source(id, id, split_of(id), file.bytes, ("file", 0, file.bytes, file.name))], {id}


def _missing(ids: list[str]) -> list[Source]:
    """Sources that stand for the papers of `--ids` that were not found."""
    left_out = {split: LeftOut() for split in SPLITS}
    for id in ids:
        left_out[split_of(id)].add(f"of --ids not found ({', '.join(ids[:3])}{', …' * (len(ids) > 3)})")
    return [source for split in SPLITS for source in left_out[split].sources("--ids", split)]
