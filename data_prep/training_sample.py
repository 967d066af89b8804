"""Trains a tokenizer on a sample of a split's documents.

tokenizer = train_tokenizer(asked, scans["train"], console.print)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import xxhash

from data_prep.scanning import SplitScan
from data_prep.tokenizers import (
    SentencePieceTokenizer,
    TokenizerError,
    TokenizerTraining,
    shortfall,
    train_sentencepiece,
)

SAMPLE_BYTES = 16 << 20
"""A tokenizer is trained on about this many bytes of text."""


def train_tokenizer(asked: TokenizerTraining, scan: SplitScan, report: Callable[[str], None]) -> SentencePieceTokenizer:
    """Train a tokenizer on a sample of a split, and report the sample's size, and whether there are fewer pieces than asked for.

    Raises TokenizerError for text that it cannot be trained on.
    """
    documents = sample_documents(scan)
    size = int(np.minimum(scan.documents.group.bytes[documents], SAMPLE_BYTES).sum())
    plural = "s" * (len(documents) != 1)
    report(f"training tokenizer {asked.spec} on {len(documents):,} document{plural}, {size / 1e6:,.1f} MB")
    trained = train_sentencepiece(asked, scan.inputs["content"], sample_lines(scan, documents))
    warning = shortfall(asked, trained)
    if warning:
        report(f"warning: {warning}")
    return trained


def sample_documents(scan: SplitScan) -> np.ndarray:
    """int64. Indices of documents with about `SAMPLE_BYTES` of text, chosen by a hash of their ids, in the corpus's order."""
    documents = scan.documents
    ids, _ = documents.names_of(range(len(documents)))
    keys = np.fromiter((xxhash.xxh3_64_intdigest(id.encode()) for id in ids), np.uint64, len(ids))
    order = np.argsort(keys, kind="stable")
    filled = np.cumsum(documents.group.bytes[order])
    return np.sort(order[: int(np.searchsorted(filled, SAMPLE_BYTES)) + 1])


def sample_lines(scan: SplitScan, documents: np.ndarray) -> Iterator[str]:
    """The lines of some documents, by their indices (int64). Long lines are cut, since SentencePiece would leave them out.

    Raises TokenizerError for a document of bytes, and CorpusError for one that has changed since the scan.
    """
    for document in scan.reread(documents):
        text = document.text
        if isinstance(text, bytes):
            raise TokenizerError(f"corpus {scan.corpus.name} is of bytes, which need --tokenizer bytes")
        for line in text[:SAMPLE_BYTES].split("\n"):
            for start in range(0, len(line), 1000):
                yield line[start : start + 1000]
