"""The plan of a split, made before anything is written: its scan, its parts, and the fingerprints that follow.

A plan depends on the documents and the parameters alone, never on the number of workers or on time. The chain is
corpus content → tokenizer → parameters → fingerprint of the manifest.

The driver keeps a source and three numbers for each document, in arrays, and little else.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import xxhash

from common.files import digest
from data_prep.documents import Corpus, Document, Labelled, Scanned, Skipped, Source, scan
from data_prep.manifest import LABELLED_SCHEMA, SCHEMA, Manifest, PartEntry, TableEntry, TokenizerInfo, Totals
from data_prep.segments import PartPlan, PartResult, rows_of
from data_prep.sources import names_of, take
from data_prep.tokenizers import SymbolsTokenizer, Tokenizer, TokenizerError, bod_id, encode_labelled, token_dtype

SAMPLED = 16
"""About this many documents of a split are decoded again, to see whether the tokenizer is lossless."""

MIN_PART_BYTES = 1 << 20
"""A small split is cut into more parts than `part_bytes` asks for, so that workers can share it, but none smaller than this."""

ROW_TOKENS = 1024
"""Tokens of a row in a store of long documents."""

BYTES_PER_TOKEN = 4
"""Estimated bytes of text per token, unless the tokenizer is `bytes`."""

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

    def checksums(self, run: slice = slice(None)) -> list[str]:
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

    def look_at(item: Document | Skipped) -> None:
        nonlocal raw
        if isinstance(item, Document):
            raw = raw or isinstance(item.text, bytes)
            if symbols:
                encode_labelled(item, symbols)  # before a byte is written: raises for an unknown symbol or no target
        found = item if isinstance(item, Skipped) else scan(item)
        if isinstance(found, Skipped):
            skipped[found.reason] += found.count
            return
        number = numbers[found.id]
        if found.title != source_titles[number]:
            titles[len(kept)] = found.title
        kept.append(number)
        sizes.append(found.bytes)
        words.append(found.words)
        checksums.append(found.xxh3)

    # Not a loop: its variable would keep one document in memory while the next is read.
    deque(map(look_at, corpus.read(sources)), maxlen=0)
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


def group_by_bytes(sizes: np.ndarray, limit: int) -> list[range]:
    """Consecutive runs of items, each closed as soon as its sizes sum to `limit`."""
    ends = np.cumsum(sizes)
    groups = []
    start = 0
    while start < len(sizes):
        filled = ends[start] - sizes[start]
        stop = min(int(np.searchsorted(ends, filled + limit)) + 1, len(sizes))
        groups.append(range(start, stop))
        start = stop
    return groups


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """Everything that decides the bytes of a split."""

    scan: SplitScan
    tokenizer: Tokenizer
    segment_length: int
    part_bytes: int

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The values that the fingerprint is made of, as the manifest records them."""
        return {
            "corpus": self.scan.inputs,
            "tokenizer": {"fingerprint": self.tokenizer.fingerprint, "vocab_size": self.tokenizer.vocab_size},
            "parameters": {"segment_length": self.segment_length, "part_bytes": self.part_bytes, "schema": self.schema},
        }

    @property
    def schema(self) -> int:
        return LABELLED_SCHEMA if isinstance(self.scan.corpus, Labelled) else SCHEMA

    @cached_property
    def fingerprint(self) -> str:
        """The digest of `inputs`. A split with the same one need not be prepared again."""
        return digest(self.inputs)

    def difference(self, made: Manifest) -> str:
        """The differences of a split with another fingerprint, in words: `segment_length (512, now 1024)`."""
        old = made.inputs
        new = self.inputs
        words = []
        if old["corpus"] != new["corpus"]:
            counts = f"{old['corpus']['documents']:,} documents, now {new['corpus']['documents']:,}"
            same = old["corpus"]["options"] == new["corpus"]["options"]
            words.append(f"text ({counts})" if same else "corpus options")
        if old["tokenizer"] != new["tokenizer"]:
            words.append(f"tokenizer ({old['tokenizer']['vocab_size']:,} ids, now {new['tokenizer']['vocab_size']:,})")
        for name, value in new["parameters"].items():
            if old["parameters"].get(name) != value:
                words.append(f"{name} ({old['parameters'].get(name)}, now {value})")
        return " and ".join(words)

    @cached_property
    def parts(self) -> tuple[range, ...]:
        """The documents of each part: consecutive ones, until it holds `part_bytes` of text; in a small split a 32nd of it, but at
        least MIN_PART_BYTES.
        """
        limit = min(self.part_bytes, max(MIN_PART_BYTES, self.scan.bytes // 32))
        return tuple(group_by_bytes(self.scan.documents.group.bytes, limit))

    @property
    def described(self) -> str:
        """The plan in words."""
        parts = f"{len(self.parts)} part{'s' * (len(self.parts) > 1)}"
        text = f"{self.scan.bytes / 1e6:,.1f} MB in {parts} to write, {rows_of(self.segment_length)}"
        if is_mostly_padding(self.scan, self.tokenizer, self.segment_length):
            text += ", which hold more padding than tokens, since documents are short: leave out --segment-length"
        return text

    def bytes_of(self, part: int) -> int:
        """UTF-8 bytes of the text of a part's documents."""
        run = self.parts[part]
        return int(self.scan.documents.group.bytes[run.start : run.stop].sum())

    def part_fingerprint(self, index: int) -> str:
        """The digest of a part's documents, the tokenizer and the parameters."""
        run = self.parts[index]
        group = self.scan.documents.group
        some = slice(run.start, run.stop)
        content = xxhash.xxh3_128_hexdigest(group.bytes[some].tobytes() + group.xxh3[some].tobytes())
        return digest([self.schema, self.tokenizer.fingerprint, self.segment_length, index, run.start, content])

    def part(self, index: int) -> PartPlan:
        """Everything a task needs to write one part."""
        run = self.parts[index]
        return PartPlan(
            index=index,
            first_document=run.start,
            sources=self.scan.documents.sources_of(run),
            xxh3=self.scan.documents.group.xxh3[run.start : run.stop],
            fingerprint=self.part_fingerprint(index),
            sample_every=max(1, len(self.scan.documents) // SAMPLED),
        )

    def table(self, index: int, result: PartResult) -> dict[str, Any]:
        """The rows of the table of the documents for a part: a column for each field of DocumentEntry."""
        run = self.parts[index]
        group = self.scan.documents.group
        some = slice(run.start, run.stop)
        ids, titles = self.scan.documents.names_of(run)
        return {
            "id": ids,
            "title": titles,
            "tokens": result.tokens,
            "words": group.words[some],
            "bytes": group.bytes[some],
            "xxh3": group.checksums(some),
            "part": np.full(len(run), index),
            "batch": result.batches,
            "row": result.rows,
        }

    def manifest(
        self, parts: Sequence[PartEntry], table: TableEntry, tokens: int, lossless: bool, labels: int | None
    ) -> Manifest:
        """The manifest, once every part is committed and the table of the documents is written."""
        totals = Totals(
            documents=len(self.scan.documents),
            skipped=self.scan.skipped,
            tokens=tokens,
            words=int(self.scan.documents.group.words.sum()),
            bytes=self.scan.bytes,
            labels=labels,
        )
        tokenizer = TokenizerInfo(
            name=self.tokenizer.name,
            vocab_size=self.tokenizer.vocab_size,
            bod_id=bod_id(self.tokenizer),
            fingerprint=self.tokenizer.fingerprint,
            lossless=lossless,
        )
        return Manifest(
            fingerprint=self.fingerprint,
            inputs=self.inputs,
            corpus=self.scan.corpus.name,
            split=self.scan.split,
            tokenizer=tokenizer,
            segment_length=self.segment_length,
            token_dtype=token_dtype(self.tokenizer.vocab_size).name,
            totals=totals,
            table=table,
            parts=tuple(parts),
        )


def is_mostly_padding(scan: SplitScan, tokenizer: Tokenizer, segment_length: int) -> bool:
    """Whether rows of `segment_length` tokens would hold more padding than tokens, estimated from the documents' sizes."""
    group = scan.documents.group
    if isinstance(scan.corpus, Labelled):
        tokens = group.words
    else:
        tokens = group.bytes if tokenizer.takes_bytes else -(-group.bytes // BYTES_PER_TOKEN)
    return bool((-tokens % segment_length).sum() > tokens.sum())


def plan(scan: SplitScan, tokenizer: Tokenizer, segment_length: int, part_bytes: int) -> SplitPlan:
    """The plan of a split.

    Args:
        segment_length: tokens of a row; 0 for ROW_TOKENS, or for 1 where such rows would be mostly padding.
    """
    if segment_length == 0:
        segment_length = 1 if is_mostly_padding(scan, tokenizer, ROW_TOKENS) else ROW_TOKENS
    return SplitPlan(scan, tokenizer, segment_length, part_bytes)


def check_type(tokenizer: Tokenizer, scan: SplitScan) -> None:
    """Raises TokenizerError where the corpus is of bytes and the tokenizer takes text."""
    if scan.documents.group.raw and not tokenizer.takes_bytes:
        raise TokenizerError(
            f"corpus {scan.corpus.name} is of bytes, which tokenizer {tokenizer.name} cannot cut: give --tokenizer bytes"
        )
