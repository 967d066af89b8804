"""WikiText-2 and WikiText-103, raw or tokenised, as released: `wiki.{train,valid,test}.{tokens,raw}` in a folder or a zip.

A document is an article, from its line ` = Title = ` to the next one's. Such a line stands between two empty ones (` `): a line
of an article that only looks like a title, ` = 1 rad / s and a nominal impedance k = `, does not, and ` = = Section = = ` is none.
Nothing is lost: the documents of a split, one after the other, are its file. Merity et al. 2016, arXiv:1609.07843.

    python -m pipelines.prepare wikitext --source wikitext-2-v1.zip --tokenizer sentencepiece:8192

`prepare` prints the words plus one for each line end, which is the token count that the release and papers give.
Both sizes are one corpus to a store: give each its own --store. A file in a zip is decompressed from its beginning for every
part: unpack WikiText-103 first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from data_prep.corpora.streams import (
    MAX_DOCUMENT_BYTES,
    Forward,
    LeftOut,
    Line,
    files_in,
    lines,
    open_seekable,
    reading,
    skipped_of,
    zip_archive,
)
from data_prep.documents import CorpusError, Document, Scanned, Skipped, Source, decode_utf8
from data_prep.places import Place

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
    """WikiText-2 or WikiText-103, a document an article."""

    name: ClassVar[str] = "wikitext"

    source: str = ""
    """Folder or zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or the same in raw."""
    form: Literal["any", "tokens", "raw"] = "any"
    """Which files to read where there are both."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A larger article is left out, and counted."""

    def options(self) -> dict[str, Any]:
        return {}

    def sources(self, split: str) -> list[Source]:
        member = self._members().get(split)
        if member is None:
            return []
        where = f"{Place.parse(self.source)}/{member}"
        articles, left_out = [], LeftOut()
        with self._open(member) as stream:
            for number, (title, offset, size, count) in enumerate(_articles(stream, where)):
                if size > self.max_document_bytes:
                    left_out.add("too large")
                else:
                    articles.append(Source(f"{split}/{number}", title, split, size, f"{offset} {size} {count}"))
        articles += left_out.sources(member, split)
        if not articles:
            raise CorpusError(f"{where} holds no line ' = Title = ': it is not a file of WikiText")
        return articles

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        member = self._members().get(sources[0].split) if sources else None
        if member is None:
            return
        where = f"{Place.parse(self.source)}/{member}"
        with self._open(member) as stream:
            for source in sources:
                if skipped := skipped_of(source):
                    yield skipped
                    continue
                offset, size, _ = map(int, source.place.split())
                stream.seek(offset)
                data = stream.read(size)
                if len(data) < size:
                    raise CorpusError(f"{where} has become shorter: start again")
                yield Document(source.id, source.title, decode_utf8(data, where, offset))

    def remarks(self, split: str, documents: Sequence[Scanned]) -> list[str]:
        """The split's tokens as the release counts them."""
        count = sum(document.words + int(document.place.split()[2]) for document in documents)
        known = PUBLISHED.get((split, count))
        published = f", the published count of {known}" if known else ""
        return [f"{count:,} tokens, counted as words and line ends{published}"]

    def _members(self) -> dict[str, str]:
        """The file of each split that is there: its name in the folder, or in the zip."""
        if not self.source:
            raise CorpusError(f"corpus {self.name} needs a folder: give --source FOLDER, or the zip of the release")
        root = Place.parse(self.source)
        if root.is_dir():
            names = [file.name for file in files_in(root)]
        elif root.is_file():
            with reading(root.shown), zip_archive(root) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
        else:
            raise CorpusError(f"{root} is not there: give --source the folder or the zip of the release")
        forms = ("tokens", "raw") if self.form == "any" else (self.form,)
        found: dict[str, str] = {}
        for split, stem in FILES.items():
            for name in names:
                if name.rsplit("/", 1)[-1] in [f"{stem}.{form}" for form in forms]:
                    if split in found:
                        raise CorpusError(f"{root} holds {found[split]} and {name}: choose with --form, or --source")
                    found[split] = name
        if not found:
            expected = ", ".join(f"{stem}.{forms[0]}" for stem in FILES.values())
            raise CorpusError(f"{root} holds none of {expected}: give --source the folder or the zip of the release")
        return found

    @contextmanager
    def _open(self, member: str) -> Iterator[Forward]:
        root = Place.parse(self.source)
        with reading(f"{root}/{member}"):
            if root.is_dir():
                with open_seekable(root / member) as file:
                    yield Forward(file, size=file.size())
            else:
                with zip_archive(root) as archive, archive.open(member) as stream:
                    yield Forward(stream)


def _articles(stream: Forward, where: str) -> Iterator[tuple[str, int, int, int]]:
    """Title, offset, bytes and lines of every article. What stands before the first title belongs to it."""
    title, begin, count = "", 0, 0
    candidate: Line | None = None
    end, after_blank = 0, True
    for line in lines(stream, LINE):
        if line.data is None:
            raise CorpusError(f"{where} has a line of {line.size:,} bytes at offset {line.offset}: it is no WikiText")
        if candidate is not None and line.blank:
            if title:
                yield title, begin, candidate.offset - begin, count - 1
                begin, count = candidate.offset, 1
            title = _title(candidate)
        candidate = line if after_blank and _title(line) else None
        count += 1
        after_blank, end = line.blank, line.offset + line.size
    if title:
        yield title, begin, end - begin, count


def _title(line: Line) -> str:
    """`Title` of a line ` = Title = `; empty for another line."""
    data = line.data or b""
    if not data.startswith(b" = ") or data.startswith(b" = = ") or not data.rstrip(b"\r\n").endswith(b" = "):
        return ""
    return data.decode(errors="replace").strip()[2:-2].strip() if len(data.strip()) > 3 else ""
