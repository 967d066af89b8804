"""WikiText-2 and WikiText-103, raw or tokenised: `wiki.{train,valid,test}.{tokens,raw}` in a folder, a zip or a tar, or the
Parquet files of a data hub, which hold a line in each row and are joined to the same text.

A document is an article, from its line ` = Title = ` to the next one's. Such a line stands between two empty ones (` `): a line
of an article that only looks like a title, ` = 1 rad / s and a nominal impedance k = `, does not, and ` = = Section = = ` is none.
Nothing is lost: the documents of a split, one after the other, are its file. Merity et al. 2016, arXiv:1609.07843.

    python -m pipelines.prepare wikitext --source wikitext-2-v1.zip --tokenizer sentencepiece:8192
    python -m pipelines.prepare wikitext --source wikitext/wikitext-103-raw-v1     # train-00000-of-00002.parquet…

`prepare` prints the words plus one for each line end, which is the token count that the release and papers give.
A store takes both sizes as one corpus: give each its --store. A file in an archive is decompressed from its beginning for every
part: unpack WikiText-103 first.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from common.checks import check_options
from common.places import Place
from data_prep.corpora.encodings import decode_utf8, text_of_cell
from data_prep.corpora.files import files_in, is_hidden, place_of, split_named
from data_prep.corpora.left_out import LeftOut, skipped_of
from data_prep.corpora.parquet import is_text, open_parquet
from data_prep.corpora.spans import Line, lines
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, Forward, Joined, open_seekable, packing_at, reading
from data_prep.corpora.tars import is_safe, open_tar, read_member, tar_members
from data_prep.corpora.wikitext_lines import line_of
from data_prep.corpora.zips import zip_archive, zip_members
from data_prep.documents import CorpusError, Document, Scanned, Skipped, Source
from data_prep.packing import READ

FILES = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}
PUBLISHED = {
    ("train", 2_088_628): "WikiText-2",
    ("train", 103_227_021): "WikiText-103",
    ("validation", 217_646): "WikiText-2 and WikiText-103",
    ("test", 245_569): "WikiText-2 and WikiText-103",
}
"""Token counts of the release."""
LINE = 64 << 20


@dataclass(frozen=True)
class WikiText:
    """WikiText-2 or WikiText-103, one document per article."""

    name: ClassVar[str] = "wikitext"

    source: str = ""
    """Folder, zip or tar (.tar.gz…) with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or the same in raw; or folder
    of a hub's Parquet files, train-00000-of-00001.parquet…"""
    form: Literal["any", "tokens", "raw"] = "any"
    """Which files to read where there are both."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A larger article is left out, and counted."""

    def __post_init__(self) -> None:
        check_options(self, max_document_bytes=1)

    def options(self) -> dict[str, Any]:
        return {}

    def sources(self, split: str) -> list[Source]:
        """One source for each article of the split's file."""
        members = self._members().get(split)
        if members is None:
            return []
        where = self._where(members)
        articles = []
        left_out = LeftOut()
        with self._open(members) as stream:
            for number, (title, offset, size, count) in enumerate(_articles(stream, where)):
                if size > self.max_document_bytes:
                    left_out.add("too large")
                else:
                    articles.append(Source(f"{split}/{number}", title, split, size, (offset, size, count)))
        articles += left_out.sources(members[0], split)
        if not articles:
            raise CorpusError(f"{where} holds no line ' = Title = ': it is not a file of WikiText")
        return articles

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each article as a document, titled by its heading."""
        members = self._members().get(sources[0].split) if sources else None
        if members is None:
            return
        where = self._where(members)
        with self._open(members) as stream:
            for source in sources:
                skipped = skipped_of(source)
                if skipped:
                    yield skipped
                    continue
                offset, size, _ = source.place
                stream.seek(offset)
                data = stream.read(size)
                if len(data) < size:
                    raise CorpusError(f"{where} has become shorter: start again")
                yield Document(source.id, source.title, decode_utf8(data, where, offset))

    def remarks(self, split: str, documents: Sequence[Scanned]) -> list[str]:
        """The split's tokens as the release counts them."""
        count = sum(document.words + document.place[2] for document in documents)
        known = PUBLISHED.get((split, count))
        published = f", the published count of {known}" if known else ""
        return [f"{count:,} tokens, counted as words and line ends{published}"]

    def _where(self, members: Sequence[str]) -> str:
        """The name of a split's file, for messages."""
        root = Place.parse(self.source)
        return root.shown if members[0] == root.name and not root.is_dir() else f"{root}/{members[0]}"

    def _members(self) -> dict[str, tuple[str, ...]]:
        """The names of each split's files in the folder or the archive: one file, or for Parquet all shards."""
        root = place_of(self.name, self.source, "folder: give --source FOLDER, or the zip of the release")
        in_archive = root.is_file()
        names = _names_in(root, root.size(), root.changed()) if in_archive else [file.name for file in files_in(root)]
        forms = ("tokens", "raw") if self.form == "any" else (self.form,)
        found: dict[str, tuple[str, ...]] = {}
        for split, stem in FILES.items():
            for name in names:
                if re.split(r"[/\\]", name)[-1] in [f"{stem}.{form}" for form in forms]:
                    if split in found:
                        raise CorpusError(f"{root} holds {found[split][0]} and {name}: choose with --form, or --source")
                    found[split] = (name,)
        if not in_archive or root.name.endswith(".parquet"):
            found = found or self._shards(root, names)
        if not found:
            expected = ", ".join(f"{stem}.{forms[0]}" for stem in FILES.values())
            raise CorpusError(
                f"{root} holds none of {expected}: give --source the folder or the zip of the release, or that of a hub's Parquet "
                "files of one form"
            )
        return found

    def _shards(self, root: Place, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The Parquet files of each split. Their form is in the name of the folder, as on the hub, or not known."""
        shards = sorted(name for name in names if name.endswith(".parquet") and not is_hidden(name))
        form = self.form
        if "wikitext" in root.name or "raw" in root.name:
            form = "raw" if "raw" in root.name else "tokens"
        if shards and self.form not in ("any", form):
            raise CorpusError(f"{root} has the form {form} by its name: give --source another folder, or --form {form}")
        found = {split: tuple(name for name in shards if split_named(name) == split) for split in FILES}
        return {split: named for split, named in found.items() if named}

    @contextmanager
    def _open(self, members: Sequence[str]) -> Iterator[Forward]:
        root = Place.parse(self.source)
        with reading(self._where(members)):
            if members[0].endswith(".parquet"):
                folder = root if root.is_dir() else root.parent
                yield Forward(Joined(_row_lines([folder / name for name in members])))
            elif root.is_dir():
                with open_seekable(root / members[0]) as file:
                    yield Forward(file, size=file.size())
            elif packing_at(root) == "zip":
                with zip_archive(root) as archive, archive.open(members[0]) as stream:
                    yield Forward(stream)
            else:
                with open_tar(root) as stream:
                    member = next(member for member in tar_members(stream) if member.name == members[0])
                    yield Forward(Joined(read_member(stream, member)))


@lru_cache(maxsize=1)  # a packed tar is read from its beginning to its end
def _names_in(root: Place, size: int, changed: int) -> list[str]:
    """The names of the files in an archive, or that of a Parquet file. A packed tar is checked as a whole."""
    if root.name.endswith(".parquet"):
        return [root.name]
    with reading(root.shown):
        packing = packing_at(root)
        if not packing:
            raise CorpusError(
                f"{root} is not an archive: give --source the folder that holds it, or the zip of the release"
            )
        if packing in ("tar", *READ):
            with open_tar(root) as stream:
                names = [m.name for m in tar_members(stream) if m.isreg() and not m.issparse() and is_safe(m.name)]
                stream.skip_rest()
                return names
        with zip_archive(root) as archive:
            return zip_members(archive)


def _row_lines(files: Sequence[Place]) -> Iterator[bytes]:
    """The lines of a split's Parquet files, some at a time."""
    for file in files:
        with reading(file.shown), open_parquet(file) as parquet:
            if "text" not in parquet.schema_arrow.names:
                raise CorpusError(f"{file} has no column 'text': it is no Parquet file of WikiText")
            kind = parquet.schema_arrow.field("text").type
            if not is_text(kind):
                raise CorpusError(f"{file} has no text in column 'text' but {kind}: it is no Parquet file of WikiText")
            for batch in parquet.iter_batches(1024, columns=["text"]):
                yield "".join(
                    line_of(text_of_cell(row or "", file.shown)) for row in batch.column(0).to_pylist()
                ).encode()


def _articles(stream: Forward, where: str) -> Iterator[tuple[str, int, int, int]]:
    """Title, offset, bytes and lines of every article. Lines before the first title belong to it."""
    title = ""
    begin = 0
    count = 0
    candidate: Line | None = None
    end = 0
    after_blank = True
    for line in lines(stream, LINE):
        if line.data is None:
            raise CorpusError(f"{where} has a line of {line.size:,} bytes at offset {line.offset}: it is no WikiText")
        if candidate is not None and line.blank:
            if title:
                yield title, begin, candidate.offset - begin, count - 1
                begin = candidate.offset
                count = 1
            title = _title(candidate)
        candidate = line if after_blank and _title(line) else None
        count += 1
        after_blank = line.blank
        end = line.offset + line.size
    if title:
        yield title, begin, end - begin, count


def _title(line: Line) -> str:
    """`Title` of a line ` = Title = `; empty for another line."""
    data = line.data or b""
    if line.offset == 0:
        data = data.removeprefix(BOM_UTF8)
    if not data.startswith(b" = ") or data.startswith(b" = = ") or not data.rstrip(b"\r\n").endswith(b" = "):
        return ""
    return data.decode(errors="replace").strip()[2:-2].strip() if len(data.strip()) > 3 else ""
