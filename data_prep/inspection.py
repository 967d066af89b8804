"""Statistics of a prepared split: lengths of documents, and how full the lanes would be.

fill(store.lengths, lanes=8, segment_length=4096, block=512)        # share of the token slots of an epoch that hold a target
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.lanes import TrainingLanes
from data_prep.store import SegmentStore

QUANTILES = {"shortest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "longest": 1.0}


def length_quantiles(lengths: np.ndarray) -> dict[str, int]:
    """Length of a document, in tokens, at each of QUANTILES."""
    values = (
        np.quantile(lengths, list(QUANTILES.values()), method="nearest") if len(lengths) else np.zeros(len(QUANTILES))
    )
    return {name: int(value) for name, value in zip(QUANTILES, values, strict=True)}


def fill(lengths: np.ndarray, lanes: int, segment_length: int, block: int) -> float:
    """Share of the token slots of an epoch that hold a target, when documents begin at multiples of `block` in the lanes.

    With `block=segment_length`, documents begin at the start of a segment alone.
    """
    schedule = TrainingLanes(lengths, lanes=lanes, segment_length=segment_length, block=block, seed=0)
    blocks = int((-(-np.asarray(lengths) // block)).sum())
    return schedule.fill(max(blocks * block // (lanes * segment_length), 1))  # whole steps of one epoch


@dataclass(frozen=True)
class LanePassage:
    """A run of one document's tokens as it stands on a lane."""

    step: int
    column: int
    """Token slot of the segment at which it begins."""
    document: int
    title: str
    offset: int
    """Offset of its first token in the document; 0 if the document begins here."""
    tokens: int
    """Tokens of the passage in this segment."""
    of: int
    """Tokens of the whole document."""
    text: str
    """Text of its first tokens if the document begins here; else of its last ones."""


def passages(store: SegmentStore, lanes: int, segment_length: int, block: int, tokens: int) -> Iterator[LanePassage]:
    """The passages on the first lane, segment by segment, each with the text of `tokens` of its tokens."""
    tokenizer = store.tokenizer()
    schedule = TrainingLanes(store.lengths, lanes=lanes, segment_length=segment_length, block=block, seed=0)
    step = 0
    while True:
        for column, document, offset, length in schedule.spans(step, 0):
            entry = store.manifest.documents[document]
            shown = min(tokens, length)
            first = offset + length - shown if offset else 0
            text = tokenizer.decode(store.tokens(document, first, first + shown))
            yield LanePassage(step, column * block, document, entry.title, offset, length, entry.tokens, text)
        step += 1
