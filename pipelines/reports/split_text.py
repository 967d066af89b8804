"""The text of a split, beside which a model's scores are put: its characters, and what token frequencies alone predict of it.

characters_of(SegmentStore.open("runs/store", "pg19", "test"))     # what bits per character are divided by
unigram_bits_per_byte(train, test)                                  # a model that knows more needs fewer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from data_prep.store import SegmentStore
from pipelines.reports.characters import BYTES, writing_of

UNIGRAM_TOKENS = 20_000_000
"""Most training tokens from which the unigram reference is counted."""
CHUNK_TOKENS = 65_536
"""Tokens of a document that are read into memory at a time."""


def characters_of(store: SegmentStore) -> int:
    """Number of characters of the split's text; 0 if its tokenizer is lossy or the split is labelled."""
    if store.labelled or not store.manifest.tokenizer.lossless:
        return 0
    tokenizer = store.tokenizer()
    write = writing_of(tokenizer)
    characters = 0
    for document, length in enumerate(store.lengths.tolist()):
        start = 0
        while start < length:
            ids = store.tokens(document, start, min(start + CHUNK_TOKENS + BYTES, length)).tolist()
            if start + len(ids) < length:
                ids = ids[: whole_characters(write, ids, CHUNK_TOKENS)]
            characters += len(write(ids) if start else tokenizer.decode(ids))
            start += len(ids)
    return characters


def whole_characters(write: Callable[[Sequence[int]], str], ids: Sequence[int], most: int) -> int:
    """The largest number of ids, at most ``most``, after which the text can be cut without breaking a character."""
    for cut in range(most, most - BYTES, -1):
        before = ids[max(cut - BYTES, 0) : cut]
        after = ids[cut : cut + BYTES]
        if write(before) + write(after) == write([*before, *after]):
            return cut
    return most


def unigram_bits_per_byte(train: SegmentStore, test: SegmentStore) -> float:
    """Bits per byte of the model that knows only how often each token occurs in training text (add-one smoothing)."""
    counts = np.ones(train.vocab_size)
    read = 0
    for document, length in enumerate(train.lengths.tolist()):
        for tokens in chunks_of(train, document):
            counts += np.bincount(tokens, minlength=train.vocab_size)
        read += length
        if read >= UNIGRAM_TOKENS:
            break
    bits = -np.log2(counts / counts.sum())
    total = sum(bits[tokens].sum() for document in range(len(test.lengths)) for tokens in chunks_of(test, document))
    return float(total / sum(document.bytes for document in test.manifest.documents if document.tokens))


def chunks_of(store: SegmentStore, document: int) -> Iterator[np.ndarray]:
    """A document's tokens, in chunks of `CHUNK_TOKENS`."""
    length = int(store.lengths[document])
    for start in range(0, length, CHUNK_TOKENS):
        yield store.tokens(document, start, min(start + CHUNK_TOKENS, length))
