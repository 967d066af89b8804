"""The scan of a split: each of its documents is read once and measured (`documents.scan`) before anything is written.

    group = scan_group(corpus, sources)                                 # of some sources: a task's work
    scan = SplitScan(corpus, "train", ScannedDocuments(sources, group))
    scan.documents[3].words, scan.bytes, scan.inputs                    # `inputs`: the corpus's link of the fingerprint chain

The driver keeps a source and three numbers for each document, in arrays, and little else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import xxhash

from data_prep.documents import Corpus, Document, Labelled, Scanned, Skipped, Source, scan
from data_prep.sources import names_of, read_sources, reread, take
from data_prep.tokenizers import SymbolsTokenizer, encode_labelled

LINES = 1 << 14
"""Documents whose lines (`SplitScan.inputs`) are digested together."""


@dataclass(frozen=True, eq=False)
class ScannedGroup:
    """The scan of some sources, in their order."""

    kept: np.ndarray
    """int64. Indices of the sources that are documents."""
    bytes: np.ndarray
    """int64 [kept]. UTF-8 bytes of the text."""
    words: np.ndarray
    """int64 [kept]. Words of the text."""
    xxh3: np.ndarray
    """uint64 [kept]. xxh3-64 of the bytes."""
    titles: dict[int, str]
    """Titles that are not the source's, by index among the kept."""
    skipped: dict[str, int]
    """Counts of skipped items, by reason."""
    raw: bool
    """Whether some texts are bytes, which are never decoded."""

    def checksums(self, run: slice) -> list[str]:
        """The xxh3-64 of some documents, in hexadecimal digits."""
        digits = self.xxh3[run].astype(">u8").tobytes().hex()
        return [digits[start : start + 16] for start in range(0, len(digits), 16)]

    @staticmethod
    def join(groups: Sequence[ScannedGroup], sizes: Sequence[int]) -> ScannedGroup:
        """Join groups into one. `sizes` are the numbers of sources of each."""
        none = np.empty(0, np.int64)
        kept = [none]
        titles: dict[int, str] = {}
        skipped: Counter[str] = Counter()
        first_source = 0
        first_kept = 0
        for group, size in zip(groups, sizes, strict=True):
            kept.append(group.kept + first_source)
            titles |= {first_kept + i: title for i, title in group.titles.items()}
            skipped.update(group.skipped)
            first_source += size
            first_kept += len(group.kept)
        return ScannedGroup(
            kept=np.concatenate(kept),
            bytes=np.concatenate([none, *(group.bytes for group in groups)]),
            words=np.concatenate([none, *(group.words for group in groups)]),
            xxh3=np.concatenate([np.empty(0, np.uint64), *(group.xxh3 for group in groups)]),
            titles=titles,
            skipped=dict(sorted(skipped.items())),
            raw=any(group.raw for group in groups),
        )


def scan_group(corpus: Corpus, sources: Sequence[Source]) -> ScannedGroup:
    """Read and scan some documents. Raises CorpusError for one that cannot be read."""
    ids, source_titles = names_of(sources)
    numbers = {id: i for i, id in enumerate(ids)}
    # Lists of numbers: the garbage collector would visit every tuple again and again.
    kept: list[int] = []
    sizes: list[int] = []
    words: list[int] = []
    checksums: list[int] = []
    titles: dict[int, str] = {}
    skipped: Counter[str] = Counter()
    raw = False
    symbols = SymbolsTokenizer(corpus.symbols()) if isinstance(corpus, Labelled) else None

    for item in read_sources(corpus, sources):
        if isinstance(item, Document):
            raw = raw or isinstance(item.text, bytes)
            if symbols:
                encode_labelled(item, symbols)  # before a byte is written: raises for an unknown symbol or no target
        found = item if isinstance(item, Skipped) else scan(item)
        del item  # before the next one is read
        if isinstance(found, Skipped):
            skipped[found.reason] += found.count
            continue
        number = numbers[found.id]
        if found.title != source_titles[number]:
            titles[len(kept)] = found.title
        kept.append(number)
        sizes.append(found.bytes)
        words.append(found.words)
        checksums.append(found.xxh3)
    return ScannedGroup(
        kept=np.array(kept, np.int64),
        bytes=np.array(sizes, np.int64),
        words=np.array(words, np.int64),
        xxh3=np.array(checksums, np.uint64),
        titles=titles,
        skipped=dict(sorted(skipped.items())),
        raw=raw,
    )


@dataclass(frozen=True, eq=False)
class ScannedDocuments(Sequence[Scanned]):
    """The documents of a split as the scan saw them, made one by one from arrays as they are asked for."""

    sources: Sequence[Source]
    group: ScannedGroup

    def __len__(self) -> int:
        return len(self.group.kept)

    @overload
    def __getitem__(self, index: int) -> Scanned: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Scanned, ...]: ...
    def __getitem__(self, index: int | slice) -> Scanned | tuple[Scanned, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]  # counted from the front
        group = self.group
        source = self.sources[int(group.kept[index])]
        return Scanned(
            id=source.id,
            title=group.titles.get(index, source.title),
            bytes=int(group.bytes[index]),
            words=int(group.words[index]),
            xxh3=int(group.xxh3[index]),
            place=source.place,
        )

    def sources_of(self, run: range) -> Sequence[Source]:
        """The sources of some documents."""
        return take(self.sources, self.group.kept[run.start : run.stop])

    def names_of(self, run: range) -> tuple[list[str], list[str]]:
        """Ids and titles of some documents."""
        ids, titles = names_of(self.sources_of(run))
        if self.group.titles:
            titles = [self.group.titles.get(i, title) for i, title in zip(run, titles, strict=True)]
        return ids, titles


@dataclass(frozen=True, eq=False)
class SplitScan:
    """The documents of a split, each read once."""

    corpus: Corpus
    split: str
    documents: ScannedDocuments

    @property
    def skipped(self) -> dict[str, int]:
        """Counts of skipped items, by reason."""
        return self.documents.group.skipped

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes of the text of all documents."""
        return int(self.documents.group.bytes.sum())

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The corpus's link of the fingerprint chain."""
        content = xxhash.xxh3_128()
        for start in range(0, len(self.documents), LINES):
            run = range(start, min(start + LINES, len(self.documents)))
            content.update("".join(self._lines(run)).encode())
        return {
            "name": self.corpus.name,
            "split": self.split,
            "options": self.corpus.options(),
            "documents": len(self.documents),
            "content": content.hexdigest(),
        }

    def reread(self, documents: np.ndarray) -> Iterator[Document]:
        """Read some documents once more, by their indices (int64, in ascending order). Raises CorpusError if one has changed."""
        group = self.documents.group
        sources = take(self.documents.sources, group.kept[documents])
        return reread(self.corpus, sources, group.xxh3[documents].tolist())

    def _lines(self, run: range) -> Iterator[str]:
        """JSON lines of some documents: [id, split, bytes, xxh3]."""
        group = self.documents.group
        some = slice(run.start, run.stop)
        ids, _ = self.documents.names_of(run)
        # A line end within an id is escaped: all at once is ten times quicker than one by one.
        quoted = json.dumps(ids, ensure_ascii=False, separators=(",\n", ":"))[1:-1].split(",\n")
        split = json.dumps(self.split)
        for id, size, checksum in zip(quoted, group.bytes[some].tolist(), group.checksums(some), strict=True):
            yield f'[{id}, {split}, {size}, "{checksum}"]\n'
