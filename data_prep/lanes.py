"""Lanes: which tokens of which document stand in which row of the global batch, at every step.

A lane is one row of the global batch. A document stays on its lane from its first token to its last, so that a model can
carry its state from one step to the next. Time on a lane is counted in blocks; a step is `K = segment_length / block` of
them. A document begins at a block boundary, also in the middle of a segment, and `fresh` marks the block where it begins.
Three lanes, two steps, four blocks to a step (a letter is a block of a document, capital and `*` where it is fresh):

                 step 0          step 1
    block       0  1  2  3      0  1  2  3
    lane 0      A* a  a  a      a  a  a  E*      A is long: its state crosses the step
    lane 1      B* b  C* c      c  c  c  c       B ended in block 1, so C begins in block 2 of the same step
    lane 2      D* d  d  d      d  F* f  f       the lane that is free first takes the next document

The last block of a document may be part filled: its tail is padding, whose targets are -1. Nothing else is wasted.

In a store that labels its tokens (`store.labelled`), the input is the token itself and its target the label, or -1.

The schedule is a pure function of its arguments and of the step. It knows nothing of workers: a worker reads the range of
lanes that it owns, and the union of all ranges is the global batch. Used as

    lanes = TrainingLanes(store.lengths, lanes=8, segment_length=1024, block=256, seed=0)
    batch = read_batch(store, lanes, step=0, lane_start=0, lane_stop=8)

Shapes: B lanes, T tokens of a segment, K blocks of a segment.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol

import numpy as np
import xxhash

from common.choices import IGNORED
from common.errors import UserError
from data_prep.timeline import Span, Timeline

IDLE = -1
"""The document and the offset of an idle block."""


@dataclass(frozen=True)
class Batch:
    """Some lanes of one step of the global batch."""

    tokens_BT: np.ndarray
    """int64. Inputs: the targets shifted right by one within the document; begin-of-document before its first token. In a labelled
    store: the document's tokens themselves."""
    targets_BT: np.ndarray
    """int64. The tokens to predict, or the labels of a labelled store; -1 in padding after a document's end and on idle lanes."""
    fresh_BK: np.ndarray
    """bool. A new document (or an idle stretch) begins at this block: the state before it must not be seen."""
    document_BK: np.ndarray
    """int32. Index in the manifest of the document in this block; -1 where the lane is idle."""
    offset_BK: np.ndarray
    """int64. Token offset in the document of the block's first target; -1 where the lane is idle."""


class TokenStore(Protocol):
    """The interface that `read_batch` needs of a store; `data_prep.store.SegmentStore` has it."""

    @property
    def bod_id(self) -> int: ...

    @property
    def labelled(self) -> bool: ...

    def targets(self, document: int, start: int, stop: int) -> np.ndarray: ...

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray: ...


def _usable(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.int64)
    if not (lengths > 0).any():
        raise UserError("no document has any token: there is nothing to put on the lanes")
    return lengths


Order = Literal["shuffled", "sequential"]
"""How the documents of an epoch follow each other."""


class TrainingLanes:
    """An endless schedule: epochs of seeded permutations, or of the documents in sequence, one after the other without a gap.

    The next document of the stream goes to the lane that is free first (ties: the lowest lane), at that lane's next block.
    No lane is ever idle. The schedule grows as far as the steps that are asked for; their order does not change the answers.
    Documents that ended before a requested step are forgotten. The `spans` or `cursor` of an earlier step place all documents
    again.

    Args:
        lengths: tokens of each document, in the manifest's order. Documents without tokens are left out.
        lanes: rows of the global batch.
        segment_length: tokens of a lane in one step (T).
        block: the model's block, in tokens; divides `segment_length`.
        seed: seed of the permutations.
        fingerprint: fingerprint of the manifest; part of the permutations' key.
        order: shuffled, or sequential: each epoch in the manifest's order.

    Raises:
        ValueError: fewer than one lane, a segment length that is not a multiple of the block, or no token at all.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        lanes: int,
        segment_length: int,
        block: int,
        seed: int,
        fingerprint: str = "",
        order: Order = "shuffled",
    ) -> None:
        self.lanes = lanes
        self.segment_length = segment_length
        self.block = block
        self.seed = seed
        self.fingerprint = fingerprint
        self.sequential = order == "sequential"
        self._lengths = _usable(lengths)
        self._documents = np.flatnonzero(self._lengths > 0)
        self._timeline = self._begin()

    def _begin(self) -> Timeline:
        """A timeline on which no document is placed yet."""
        orders = map(self.order, count())
        return Timeline(self._lengths, orders, lanes=self.lanes, segment_length=self.segment_length, block=self.block)

    @property
    def tokens_per_epoch(self) -> int:
        return int(self._lengths.sum())

    def order(self, epoch: int) -> np.ndarray:
        """int64 [documents]: the documents of an epoch, in the order in which they are drawn."""
        if self.sequential:
            return self._documents
        key = xxhash.xxh3_128_intdigest(f"{self.fingerprint}:{self.seed}:{epoch}".encode())
        # Sorts raw bits: numpy keeps them the same in all its versions, but not the results of `permutation`.
        bits = np.random.Philox(key=key).random_raw(len(self._documents))
        return self._documents[np.argsort(bits, kind="stable")]

    def _extend(self, step: int) -> None:
        """Place documents until every lane is taken up to the end of `step`, and forget what ended before it."""
        if step < 0:
            raise ValueError(f"step is {step}: steps count from 0")
        blocks = self._timeline.blocks_per_step
        self._timeline.extend((step + 1) * blocks, step * blocks)

    def _recall(self, step: int) -> None:
        """Begin the schedule again if documents of this step were forgotten."""
        if step * self._timeline.blocks_per_step < self._timeline.forgotten:
            self._timeline = self._begin()

    def spans(self, step: int, lane: int) -> list[Span]:
        """The documents of one lane in one step, in order."""
        self._recall(step)
        self._extend(step)
        return self._timeline.spans(step, lane)

    def valid_tokens(self, step: int) -> int:
        """Targets of the step over ALL lanes: every worker divides its summed loss by this, with no communication."""
        self._extend(step)
        return int(self._timeline.valid[step])

    def tokens_before(self, step: int) -> int:
        """Targets of all steps before this one, over all lanes."""
        if step > 0:
            self._extend(step - 1)
        return int(self._timeline.valid[:step].sum())

    def epoch(self, step: int) -> float:
        """Epochs before this step: tokens of all earlier steps, per token of the store."""
        return self.tokens_before(step) / self.tokens_per_epoch

    def cursor(self, step: int) -> np.ndarray:
        """int64 [lanes]: the tokens that each lane has read before this step. Equal cursors do not make equal schedules."""
        self._recall(step)
        if step > 0:
            self._extend(step - 1)
        return self._timeline.cursor(step)

    def fill(self, steps: int) -> float:
        """Share of the token slots of the first `steps` steps that hold a target."""
        return self.tokens_before(steps) / max(steps * self.lanes * self.segment_length, 1)


class EvaluationLanes:
    """A finite schedule: every document once, the longest first, each onto the lane that has least to do.

    Args:
        limit_tokens: read about this many tokens instead of all, for a quick estimate: long beginnings of a few documents, spread
            over the range of lengths (`_clip`).
        aligned: documents begin only where segments begin, so that segments divide a document at the same places whatever the
            number of lanes. The rest of a document's last segment is idle.

    The other arguments, and the errors, are those of `TrainingLanes`.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        lanes: int,
        segment_length: int,
        block: int,
        limit_tokens: int | None = None,
        aligned: bool = False,
    ) -> None:
        self.lanes = lanes
        self.segment_length = segment_length
        self.block = block
        lengths = _usable(lengths)
        if limit_tokens is not None:
            lengths = _clip(lengths, block, limit_tokens)
        self.lengths = lengths
        """int64 [documents]: tokens read of each document; 0 where it is left out."""
        order = np.argsort(-lengths, kind="stable")
        longest_first = order[lengths[order] > 0]
        self._timeline = Timeline(
            lengths, [longest_first], lanes=lanes, segment_length=segment_length, block=block, aligned=aligned
        )
        self._timeline.extend(math.inf)
        self.steps: int = -(-self._timeline.end // self._timeline.blocks_per_step)
        """The number of steps after which every token has been read."""

    @property
    def tokens(self) -> int:
        """Targets of the whole schedule."""
        return int(self.lengths.sum())

    def spans(self, step: int, lane: int) -> list[Span]:
        """The documents of one lane in one step, in order. Empty where the lane is idle."""
        return self._timeline.spans(step, lane)

    def valid_tokens(self, step: int) -> int:
        """Targets of the step over all lanes."""
        return int(self._timeline.valid[step]) if step < self.steps else 0

    def fill(self) -> float:
        """Share of the schedule's token slots that hold a target."""
        return self.tokens / (self.steps * self.lanes * self.segment_length)


SAMPLE_DOCUMENTS = 8
SAMPLE_TOKENS = 16_384
"""Least tokens that a sample reads of a document, unless the document or an eighth of the sample is shorter."""


def _clip(lengths: np.ndarray, block: int, limit: int) -> np.ndarray:
    """int64 [documents]: how many tokens to read of each, about `limit` in all.

    Carried State shows its effect only far into a document. So where the beginnings of all documents would be short, a few long
    beginnings are read, and the other documents are left out (0). To choose them, imagine the tokens of all documents in one row,
    the shortest document first. Evenly spaced tokens of this row choose the documents that hold them: as many as can give
    `SAMPLE_TOKENS` each, or all that they have. All are clipped to one length, the multiple of the block that best fills the limit.
    Lanes and segments do not change the choice: runs that differ in these are compared on the same text.
    """
    if limit < 1:
        raise UserError(f"limit_tokens is {limit}: give at least 1, or leave it out to read everything")
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    enough = max(block, min(limit // SAMPLE_DOCUMENTS, SAMPLE_TOKENS))

    def at(spacing: int) -> np.ndarray:
        """The documents that hold a token at an odd multiple of half the spacing. A spacing of 1 chooses all documents. One as wide
        as all tokens chooses one document.
        """
        return order[np.diff((ends + spacing // 2) // spacing, prepend=0) > 0]

    def fits(spacing: int) -> bool:
        return int(np.minimum(lengths[at(spacing)], enough).sum()) <= limit

    # The wider the spacing, the fewer documents: `fits` is False up to some spacing, and True from there on.
    spacings = range(1, int(ends[-1]))
    too_narrow = bisect_left(spacings, x=True, key=fits)
    chosen = at(1 + too_narrow)  # the widest spacing is taken even if its documents do not fit
    read = np.zeros_like(lengths)
    read[chosen] = _to_one_length(lengths[chosen], block, limit)
    return read


def _to_one_length(lengths: np.ndarray, block: int, limit: int) -> np.ndarray:
    """Clip every document to one length: the most blocks with which the sum is at most `limit`, but at least one."""
    blocks = range(1, int(lengths.max()) // block + 2)
    fit = bisect_right(blocks, limit, key=lambda count: int(np.minimum(lengths, count * block).sum()))
    return np.minimum(lengths, max(fit, 1) * block)


def read_batch(
    store: TokenStore, schedule: TrainingLanes | EvaluationLanes, step: int, lane_start: int, lane_stop: int
) -> Batch:
    """Read lanes `lane_start` to `lane_stop` (not included) of one step; only their tokens are touched.

    Returns arrays whose first dimension is `lane_stop - lane_start`.
    """
    block = schedule.block
    K = schedule.segment_length // schedule.block
    B = lane_stop - lane_start
    tokens_BT = np.full((B, schedule.segment_length), store.bod_id, dtype=np.int64)
    targets_BT = np.full((B, schedule.segment_length), IGNORED, dtype=np.int64)
    fresh_BK = np.ones((B, K), dtype=bool)
    document_BK = np.full((B, K), IDLE, dtype=np.int32)
    offset_BK = np.full((B, K), IDLE, dtype=np.int64)
    for row, lane in enumerate(range(lane_start, lane_stop)):
        for column, document, offset, length in schedule.spans(step, lane):
            first = column * block
            if store.labelled:
                tokens_BT[row, first : first + length] = store.tokens(document, offset, offset + length)
                targets_BT[row, first : first + length] = store.targets(document, offset, offset + length)
            else:
                # The input of the first target is the token before it, or begin-of-document.
                previous = max(offset - 1, 0)
                read = store.tokens(document, previous, offset + length)
                targets_BT[row, first : first + length] = read[offset - previous :]
                shift = 0 if offset else 1
                tokens_BT[row, first + shift : first + length] = read[:-1]
            blocks = -(-length // block)
            fresh_BK[row, column : column + blocks] = False
            fresh_BK[row, column] = offset == 0
            document_BK[row, column : column + blocks] = document
            offset_BK[row, column : column + blocks] = offset + block * np.arange(blocks)
    return Batch(tokens_BT, targets_BT, fresh_BK, document_BK, offset_BK)
