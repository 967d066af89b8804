"""Where documents stand on the lanes: the book-keeping under both schedules of `data_prep.lanes`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from data_prep.errors import UserError


class Span(NamedTuple):
    """A run of one document's tokens within one segment of one lane."""

    column: int
    """Block of the segment at which the span begins."""
    document: int
    offset: int
    """Token offset in the document of the span's first token: a multiple of the block."""
    length: int
    """Tokens, padding not counted."""


@dataclass
class Timeline:
    """Where documents were placed: per lane, in order of time. All times are in blocks."""

    lanes: int
    segment_length: int
    block: int
    starts: list[list[int]] = field(init=False)
    documents: list[list[int]] = field(init=False)
    lengths: list[list[int]] = field(init=False)
    tokens_before: list[list[int]] = field(init=False)
    """Per lane: the tokens of all documents placed there before this one."""
    valid: np.ndarray = field(init=False)
    """Valid tokens over all lanes, per step. Longer than needed: it grows by doubling."""

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise UserError(f"lanes is {self.lanes}: give at least 1")
        if self.block < 1:
            raise UserError(f"block is {self.block}: give at least 1")
        if self.segment_length < 1 or self.segment_length % self.block:
            raise UserError(
                f"segment_length {self.segment_length} is not a multiple of the model's block {self.block}: "
                "choose a segment length that the block divides"
            )
        self.starts = [[] for _ in range(self.lanes)]
        self.documents = [[] for _ in range(self.lanes)]
        self.lengths = [[] for _ in range(self.lanes)]
        self.tokens_before = [[0] for _ in range(self.lanes)]
        self.valid = np.zeros(64, dtype=np.int64)

    @property
    def blocks_per_step(self) -> int:
        return self.segment_length // self.block

    def place(self, lane: int, start: int, document: int, length: int) -> int:
        """Put a document on a lane. Returns the block at which the lane is free again."""
        self.starts[lane].append(start)
        self.documents[lane].append(document)
        self.lengths[lane].append(length)
        self.tokens_before[lane].append(self.tokens_before[lane][-1] + length)
        T = self.segment_length
        first, last = start * self.block, start * self.block + length  # in token slots of the lane
        step, last_step = first // T, (last - 1) // T
        if last_step >= len(self.valid):
            self.valid = np.concatenate([self.valid, np.zeros(max(len(self.valid), last_step), dtype=np.int64)])
        if step == last_step:
            self.valid[step] += length
        else:
            self.valid[step] += (step + 1) * T - first
            self.valid[step + 1 : last_step] += T
            self.valid[last_step] += last - last_step * T
        return start + -(-length // self.block)

    def spans(self, step: int, lane: int) -> list[Span]:
        K = self.blocks_per_step
        begin, end = step * K, (step + 1) * K
        starts, found = self.starts[lane], []
        for i in range(max(bisect_right(starts, begin) - 1, 0), bisect_left(starts, end)):
            length = self.lengths[lane][i]
            first = max(starts[i], begin)
            offset = (first - starts[i]) * self.block
            if offset < length:
                valid = min(length - offset, (end - first) * self.block)
                found.append(Span(first - begin, self.documents[lane][i], offset, valid))
        return found

    def cursor(self, step: int) -> np.ndarray:
        begin = step * self.blocks_per_step
        cursor = np.zeros(self.lanes, dtype=np.int64)
        for lane, starts in enumerate(self.starts):
            i = bisect_right(starts, begin) - 1
            if i >= 0:
                into = min((begin - starts[i]) * self.block, self.lengths[lane][i])
                cursor[lane] = self.tokens_before[lane][i] + into
        return cursor
