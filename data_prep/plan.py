"""What will be written, decided before anything is: the scan of a split, its parts, and the fingerprints that follow.

A plan depends on the documents and the parameters alone, never on the number of workers or on time. The chain is
corpus content → tokenizer → parameters → fingerprint of the manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from data_prep.documents import Corpus, Document, Scanned, Skipped, Source, reread, scan
from data_prep.manifest import SCHEMA, DocumentEntry, Manifest, PartEntry, TokenizerInfo, Totals, digest
from data_prep.segments import PartPlan, PartResult
from data_prep.tokenizers import Tokenizer, TokenizerError, bod_id, is_lossless, token_dtype

SAMPLE_BYTES = 16 << 20
"""A tokenizer is trained on about so much text of the train split."""


@dataclass(frozen=True)
class SplitScan:
    """The documents of a split, each read once."""

    corpus: Corpus
    split: str
    documents: tuple[Scanned, ...]
    skipped: dict[str, int]
    """What was left out, by reason."""

    @property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The corpus's link of the fingerprint chain."""
        content = [[document.id, self.split, document.bytes, document.xxh3] for document in self.documents]
        return {
            "name": self.corpus.name,
            "split": self.split,
            "options": self.corpus.options(),
            "documents": len(content),
            "content": digest(content),
        }


def scan_group(corpus: Corpus, sources: Sequence[Source]) -> list[Scanned | Skipped]:
    """Read and scan some documents. Raises CorpusError for one that cannot be read."""
    places = {source.id: source.place for source in sources}
    # Not a loop with a name for the document: it would keep one while the next is read.
    return [scan(item, places[item.id]) if isinstance(item, Document) else item for item in corpus.read(sources)]


def count_skipped(items: Iterable[Scanned | Skipped]) -> dict[str, int]:
    """How many things were skipped for each reason, the reasons sorted."""
    counts: Counter[str] = Counter()
    for item in items:
        if isinstance(item, Skipped):
            counts[item.reason] += item.count
    return dict(sorted(counts.items()))


def group_by_bytes(sizes: Sequence[int], limit: int) -> list[range]:
    """Consecutive runs of items, each closed as soon as its sizes sum to `limit`."""
    groups, start, filled = [], 0, 0
    for i, size in enumerate(sizes):
        filled += size
        if filled >= limit or i == len(sizes) - 1:
            groups.append(range(start, i + 1))
            start, filled = i + 1, 0
    return groups


@dataclass(frozen=True)
class SplitPlan:
    """Everything that decides the bytes of a split."""

    scan: SplitScan
    tokenizer: TokenizerInfo
    segment_length: int
    part_bytes: int

    @cached_property
    def inputs(self) -> dict[str, Any]:
        return {
            "corpus": self.scan.inputs,
            "tokenizer": {"fingerprint": self.tokenizer.fingerprint, "vocab_size": self.tokenizer.vocab_size},
            "parameters": {"segment_length": self.segment_length, "part_bytes": self.part_bytes, "schema": SCHEMA},
        }

    @property
    def fingerprint(self) -> str:
        return digest(self.inputs)

    @cached_property
    def parts(self) -> tuple[PartPlan, ...]:
        """Consecutive documents, until a part holds `part_bytes` of text."""
        documents = self.scan.documents
        parts = []
        for index, run in enumerate(group_by_bytes([document.bytes for document in documents], self.part_bytes)):
            own = documents[run.start : run.stop]
            content = [[document.id, document.title, document.bytes, document.xxh3] for document in own]
            inputs = [SCHEMA, self.tokenizer.fingerprint, self.segment_length, index, run.start, content]
            parts.append(PartPlan(index, run.start, own, digest(inputs)))
        return tuple(parts)

    def manifest(self, results: Sequence[PartResult]) -> Manifest:
        """The manifest, once every part is committed. `results` are in the order of the parts."""
        parts: list[PartEntry] = [result.part for result in results]
        documents: list[DocumentEntry] = [document for result in results for document in result.documents]
        totals = Totals(
            documents=len(documents),
            skipped=self.scan.skipped,
            tokens=sum(document.tokens for document in documents),
            words=sum(document.words for document in documents),
            bytes=sum(document.bytes for document in documents),
        )
        return Manifest(
            fingerprint=self.fingerprint,
            inputs=self.inputs,
            corpus=self.scan.corpus.name,
            split=self.scan.split,
            tokenizer=self.tokenizer,
            segment_length=self.segment_length,
            token_dtype=token_dtype(self.tokenizer.vocab_size).name,
            totals=totals,
            parts=tuple(parts),
            documents=tuple(documents),
        )


def describe(tokenizer: Tokenizer, scan: SplitScan) -> TokenizerInfo:
    """The manifest's entry on the tokenizer; whether it is lossless is measured on a sample of the split.

    Raises TokenizerError where the corpus is of bytes and the tokenizer takes text.
    """
    step = max(1, len(scan.documents) // 16)
    texts = (document.text[: 1 << 16] for document in reread(scan.corpus, scan.documents[::step], scan.split))
    return TokenizerInfo(
        name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        bod_id=bod_id(tokenizer),
        fingerprint=tokenizer.fingerprint,
        lossless=is_lossless(tokenizer, (text_for(tokenizer, scan.corpus, text) for text in texts)),
    )


def text_for(tokenizer: Tokenizer, corpus: Corpus, text: str | bytes) -> str | bytes:
    """The text, where this tokenizer takes its type; raises TokenizerError where not."""
    if isinstance(text, bytes) and not tokenizer.takes_bytes:
        raise TokenizerError(
            f"corpus {corpus.name} is of bytes, which tokenizer {tokenizer.name} cannot cut: give --tokenizer bytes"
        )
    return text


def sample_documents(scan: SplitScan) -> list[Scanned]:
    """About `SAMPLE_BYTES` of documents, chosen by a hash of their ids, in the corpus's order."""
    order = sorted(scan.documents, key=lambda document: xxhash.xxh3_64_intdigest(document.id.encode()))
    chosen, total = set(), 0
    for document in order:
        if total >= SAMPLE_BYTES:
            break
        chosen.add(document.id)
        total += document.bytes
    return [document for document in scan.documents if document.id in chosen]


def sample_lines(scan: SplitScan, documents: Sequence[Scanned]) -> Iterator[str]:
    """The lines of some documents, the longest cut so that SentencePiece does not leave them out."""
    for document in reread(scan.corpus, documents, scan.split):
        text = document.text
        if isinstance(text, bytes):
            raise TokenizerError(f"corpus {scan.corpus.name} is of bytes, which need --tokenizer bytes")
        for line in text[:SAMPLE_BYTES].split("\n"):
            for start in range(0, len(line), 1000):
                yield line[start : start + 1000]
