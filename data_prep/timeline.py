"""Places documents on the lanes: the book-keeping for both schedules of `data_prep.lanes`.

All times are in blocks. A place on the lanes is one number, `start * lanes + lane`. The smallest place belongs to the lane that is
free first; if several are, to the lowest. Documents are kept in arrays until they are forgotten. Then only sums remain: tokens read
for each lane, and valid tokens for each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapreplace
from typing import NamedTuple

import numpy as np

from common.errors import UserError

PLACED = 1 << 14
"""Number of documents that are placed one by one before they are put into arrays."""


class Span(NamedTuple):
    """A run of one document's tokens within one segment of one lane."""

    column: int
    """Block of the segment at which the span begins."""
    document: int
    offset: int
    """Token offset in the document of the span's first token: a multiple of the block."""
    length: int
    """Tokens, padding not counted."""


class Timeline:
    """Documents on lanes: each goes to the lane that is free first (ties: the lowest), at that lane's next block.

    Args:
        lengths: int64 [documents]. Tokens of every document that may come.
        stream: arrays of documents (int64) in the order in which they are placed; it may be endless.
        aligned: documents begin only where segments begin, not at any block.

    Attributes:
        valid: int64. Valid tokens of each step over all lanes; longer than needed, since it grows by doubling.
        forgotten: the block before which documents are no longer known.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        stream: Iterable[np.ndarray],
        *,
        lanes: int,
        segment_length: int,
        block: int,
        aligned: bool = False,
    ) -> None:
        if lanes < 1:
            raise UserError(f"lanes is {lanes}: give at least 1")
        if block < 1:
            raise UserError(f"block is {block}: give at least 1")
        if segment_length < 1 or segment_length % block:
            raise UserError(
                f"segment_length {segment_length} is not a multiple of the model's block {block}: "
                "choose a segment length that the block divides"
            )
        self.lanes = lanes
        self.segment_length = segment_length
        self.block = block
        self.blocks_per_step = segment_length // block
        self._unit = self.blocks_per_step if aligned else 1
        self.valid = np.zeros(64, dtype=np.int64)
        self.forgotten = 0
        self._lengths = lengths
        self._stream = self._one_by_one(stream)
        self._free = list(range(lanes))  # a heap: the place at which each lane is free
        self._read = np.zeros(lanes, dtype=np.int64)  # per lane: tokens of the documents that are forgotten
        self._places = self._documents = np.empty(0, dtype=np.int64)  # of documents not forgotten, in their order
        self._by_lane: tuple[list[int], np.ndarray, np.ndarray] | None = None

    @property
    def end(self) -> int:
        """The block at which the last document ends."""
        return max(self._free) // self.lanes

    def extend(self, end: float, begin: int = 0) -> None:
        """Place documents until no lane is free before block `end`; forget those that ended at block `begin` or before."""
        free = self._free
        most = end * self.lanes
        while free[0] < most:
            places = []
            documents = []
            for document, taken in self._stream:
                place = free[0]
                places.append(place)
                documents.append(document)
                heapreplace(free, place + taken)
                if free[0] >= most or len(places) == PLACED:
                    break
            if not places:
                return
            self._add(np.array(places), np.array(documents), begin)

    def spans(self, step: int, lane: int) -> list[Span]:
        """The documents of one lane in one step, in order. If the step begins before `forgotten`, some are missing."""
        begin = step * self.blocks_per_step
        end = (step + 1) * self.blocks_per_step
        first, starts, documents = self._sorted_by_lane()
        own = slice(first[lane], first[lane + 1])
        starts = starts[own]
        documents = documents[own]
        known = slice(max(int(starts.searchsorted(begin, "right")) - 1, 0), int(starts.searchsorted(end)))
        starts = starts[known]
        documents = documents[known]
        found = []
        for start, document, length in zip(
            starts.tolist(), documents.tolist(), self._lengths[documents].tolist(), strict=True
        ):
            column = max(start, begin)
            offset = (column - start) * self.block
            if offset < length:
                found.append(Span(column - begin, document, offset, min(length - offset, (end - column) * self.block)))
        return found

    def cursor(self, step: int) -> np.ndarray:
        """int64 [lanes]: tokens that each lane has read before a step, which must not begin before `forgotten`."""
        starts, lanes = np.divmod(self._places, self.lanes)
        into = (step * self.blocks_per_step - starts) * self.block
        cursor = self._read.copy()
        np.add.at(cursor, lanes, np.clip(into, 0, self._lengths[self._documents]))
        return cursor

    def _one_by_one(self, stream: Iterable[np.ndarray]) -> Iterator[tuple[int, int]]:
        """Each document, and by how much it moves the place at which its lane is free."""
        for documents in stream:
            for start in range(0, len(documents), PLACED):
                some = documents[start : start + PLACED]
                yield from zip(some.tolist(), (self._blocks(some) * self.lanes).tolist(), strict=True)

    def _blocks(self, documents: np.ndarray) -> np.ndarray:
        """Blocks that each document takes on its lane: those that it fills, and those before the place where the next may begin."""
        return -(-self._lengths[documents] // (self.block * self._unit)) * self._unit

    def _add(self, places: np.ndarray, documents: np.ndarray, begin: int) -> None:
        """Enter newly placed documents, count their tokens in `valid`, and forget those that ended at block `begin` or before.

        A document's first and last step get what it fills of them, and each step between gets a whole segment, T. These are a
        running sum over the steps: +T after the first step, −T at the last. In a document of one step the two parts are T too much
        together, and the running sum takes T away.
        """
        T = self.segment_length
        first = places // self.lanes * self.block  # in token slots of the lane
        last = first + self._lengths[documents]
        step = first // T
        last_step = (last - 1) // T
        lowest = int(step.min())
        steps = int(last_step.max()) + 2
        if steps > len(self.valid):
            more = np.zeros(max(steps - len(self.valid), len(self.valid)), dtype=np.int64)
            self.valid = np.concatenate([self.valid, more])
        np.add.at(self.valid, step, (step + 1) * T - first)
        np.add.at(self.valid, last_step, last - last_step * T)
        between = np.zeros(steps - lowest, dtype=np.int64)
        np.add.at(between, step + 1 - lowest, T)
        np.add.at(between, last_step - lowest, -T)
        self.valid[lowest:steps] += np.cumsum(between)
        self._places = np.append(self._places, places)
        self._documents = np.append(self._documents, documents)
        self._by_lane = None
        self.forgotten = max(self.forgotten, begin)
        starts, lanes = np.divmod(self._places, self.lanes)
        known = starts + self._blocks(self._documents) > begin
        np.add.at(self._read, lanes[~known], self._lengths[self._documents[~known]])
        self._places = self._places[known]
        self._documents = self._documents[known]

    def _sorted_by_lane(self) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Index of each lane's first document in two arrays, and these arrays: starts and documents, sorted by lane."""
        if self._by_lane is None:
            starts, lanes = np.divmod(self._places, self.lanes)
            order = np.argsort(lanes, kind="stable")
            first = lanes[order].searchsorted(np.arange(self.lanes + 1)).tolist()
            self._by_lane = first, starts[order], self._documents[order]
        return self._by_lane
