"""The plan of a split, made before anything is written: its scan, its parts, and the fingerprints that follow.

A plan depends on the documents and the parameters alone, never on the number of workers or on time. The chain is
corpus content → tokenizer → parameters → fingerprint of the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from common.files import digest
from data_prep.documents import Labelled
from data_prep.manifest import LABELLED_SCHEMA, SCHEMA, Manifest, TableEntry, TokenizerInfo, Totals
from data_prep.parts import PartPlan, PartResult
from data_prep.scanning import SplitScan
from data_prep.segments import rows_of
from data_prep.sources import group_by_bytes
from data_prep.tokenizers import Tokenizer, TokenizerError, bod_id, token_dtype

SAMPLED = 16
"""About this many documents of a split are decoded again, to see whether the tokenizer is lossless."""

MIN_PART_BYTES = 1 << 20
"""A small split is cut into more parts than `part_bytes` asks for, so that workers can share it, but none smaller than this."""

ROW_TOKENS = 1024
"""Tokens of a row in a store of long documents."""

BYTES_PER_TOKEN = 4
"""Estimated bytes of text per token, unless the tokenizer is `bytes`."""


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
    def labelled(self) -> bool:
        """Whether the corpus labels its tokens itself."""
        return isinstance(self.scan.corpus, Labelled)

    @property
    def schema(self) -> int:
        return LABELLED_SCHEMA if self.labelled else SCHEMA

    @cached_property
    def fingerprint(self) -> str:
        """The digest of `inputs`. A split with the same one need not be prepared again."""
        return digest(self.inputs)

    def difference(self, made: Manifest) -> str:
        """The differences of a split with another fingerprint, in words: `segment_length (512, now 1024)`.

        ``made``: the split's manifest, with its documents.
        """
        old = made.inputs
        new = self.inputs
        words = []
        if old["corpus"] != new["corpus"]:
            before = old["corpus"]["options"]
            now = new["corpus"]["options"]
            options = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
            words += [f"option {name} of the corpus ({before.get(name)}, now {now.get(name)})" for name in options]
            if not options:
                counts = f"documents: {old['corpus']['documents']:,}, now {new['corpus']['documents']:,}"
                words.append(f"text ({counts}; {self._changes(made)})")
        if old["tokenizer"] != new["tokenizer"]:
            before = f"{made.tokenizer.name} of {old['tokenizer']['vocab_size']:,}"
            now = f"{self.tokenizer.name} of {new['tokenizer']['vocab_size']:,}"
            words.append(f"tokenizer ({before} ids, now {'another ' * (before == now)}{now})")
        for name, value in new["parameters"].items():
            if old["parameters"].get(name) != value:
                words.append(f"{name} ({old['parameters'].get(name)}, now {value})")
        return " and ".join(words)

    def _changes(self, made: Manifest) -> str:
        """How many documents changed, are new or are gone, each with an example: `1 changed ('a.txt'), 2 gone ('b.txt', …)`."""
        documents = self.scan.documents
        before = {entry.id: entry.xxh3 for entry in made.documents}
        ids, _ = documents.names_of(range(len(documents)))
        now = dict(zip(ids, documents.group.checksums(slice(None)), strict=True))
        found = {
            "changed": [id for id in now if id in before and now[id] != before[id]],
            "new": [id for id in now if id not in before],
            "gone": [id for id in before if id not in now],
        }
        words = [f"{len(ids):,} {kind} ({ids[0]!r}{', …' * (len(ids) > 1)})" for kind, ids in found.items() if ids]
        return ", ".join(words) or "in another order"

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
            corpus=self.scan.corpus,
            segment_length=self.segment_length,
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

    def manifest(self, results: Sequence[PartResult], table: TableEntry) -> Manifest:
        """The manifest, once every part is committed and the table of the documents is written. ``results``: of all parts."""
        totals = Totals(
            documents=len(self.scan.documents),
            skipped=self.scan.skipped,
            tokens=sum(int(result.tokens.sum()) for result in results),
            words=int(self.scan.documents.group.words.sum()),
            bytes=self.scan.bytes,
            labels=sum(result.labels or 0 for result in results) if self.labelled else None,
        )
        tokenizer = TokenizerInfo(
            name=self.tokenizer.name,
            vocab_size=self.tokenizer.vocab_size,
            bod_id=bod_id(self.tokenizer),
            fingerprint=self.tokenizer.fingerprint,
            lossless=all(result.lossless for result in results),
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
            parts=tuple(result.part for result in results),
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
