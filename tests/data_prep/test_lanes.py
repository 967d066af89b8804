"""The lanes against a naive restatement: one list of slots per lane, filled document by document."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.choices import IGNORED
from data_prep import timeline
from data_prep.lanes import IDLE, Batch, EvaluationLanes, TrainingLanes, read_batch

BOD = 1_000_000


class Store:
    """Document d's token at position p is 1000 d + p: unique, so that a misplaced token shows."""

    bod_id = BOD
    labelled = False

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def targets(self, document: int, start: int, stop: int) -> np.ndarray:
        raise AssertionError("the store is not labelled")

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray:
        assert 0 <= start <= stop <= self.lengths[document]
        return np.arange(start, stop) + 1000 * document


cases = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
        "lanes": st.integers(1, 5),
        "block": st.integers(1, 5),
        "blocks": st.integers(1, 4),
        "seed": st.integers(0, 3),
    }
)


def naive(
    order: list[int], lengths: list[int], lanes: int, block: int, slots: int
) -> list[list[tuple[int, int] | None]]:
    """Per lane, the (document, position) in every token slot: the next document goes to the shortest lane."""
    rows: list[list[tuple[int, int] | None]] = [[] for _ in range(lanes)]
    for document in order:
        row = min(rows, key=len)
        if len(row) >= slots:
            break
        row += [(document, position) for position in range(lengths[document])]
        row += [None] * (-len(row) % block)
    return [(row + [None] * slots)[:slots] for row in rows]


def check(batch: Batch, expected: list[list[tuple[int, int] | None]], block: int) -> None:
    """A batch against the naive slots of its step."""
    for row, slots in enumerate(expected):
        for column, slot in enumerate(slots):
            target = IGNORED if slot is None else 1000 * slot[0] + slot[1]
            assert batch.targets_BT[row, column] == target
            if slot is not None:
                assert batch.tokens_BT[row, column] == (BOD if slot[1] == 0 else target - 1)
        for k in range(len(slots) // block):
            first = slots[k * block]
            assert batch.fresh_BK[row, k] == (first is None or first[1] == 0)
            assert (batch.document_BK[row, k], batch.offset_BK[row, k]) == (first or (IDLE, IDLE))


@settings(max_examples=60, deadline=None)
@given(cases)
def test_training_lanes_against_naive(case: dict) -> None:
    lengths, lanes, block, K = case["lengths"], case["lanes"], case["block"], case["blocks"]
    T, steps = K * block, 6
    schedule = TrainingLanes(lengths, lanes=lanes, segment_length=T, block=block, seed=case["seed"])
    order = [int(d) for epoch in range(steps * T * lanes + lanes) for d in schedule.order(epoch)][
        : steps * T * lanes + lanes
    ]
    slots = naive(order, lengths, lanes, block, steps * T)
    store = Store(lengths)
    for step in (3, 0, 5, 1, 2, 4):  # in any order: the schedule is pure in the step
        batch = read_batch(store, schedule, step, 0, lanes)
        check(batch, [row[step * T : (step + 1) * T] for row in slots], block)
        assert schedule.valid_tokens(step) == (batch.targets_BT != IGNORED).sum()
        before = [sum(slot is not None for slot in row[: step * T]) for row in slots]
        assert schedule.cursor(step).tolist() == before
        assert schedule.tokens_before(step) == sum(before)
        assert schedule.epoch(step) == sum(before) / sum(lengths)
        # Whoever reads which lanes, the union is the global batch.
        halves = [read_batch(store, schedule, step, a, b) for a, b in ((0, lanes // 2), (lanes // 2, lanes))]
        for name in ("tokens_BT", "targets_BT", "fresh_BK", "document_BK", "offset_BK"):
            assert np.array_equal(np.concatenate([getattr(half, name) for half in halves]), getattr(batch, name))


class Plain:
    """The schedule as it always was, document by document in lists: what a run begun with it is resumed on."""

    def __init__(self, schedule: TrainingLanes, lengths: list[int], steps: int) -> None:
        self.lanes, self.block, self.K = schedule.lanes, schedule.block, schedule.segment_length // schedule.block
        self.placed: list[list[tuple[int, int, int]]] = [[] for _ in range(self.lanes)]  # start, document, length
        free, pending, epoch = [(0, lane) for lane in range(self.lanes)], [], 0
        while min(free)[0] < steps * self.K:
            if not pending:
                pending, epoch = schedule.order(epoch)[::-1].tolist(), epoch + 1
            document = pending.pop()
            start, lane = min(free)
            self.placed[lane].append((start, document, lengths[document]))
            free[lane] = (start - (-lengths[document] // self.block), lane)

    def spans(self, step: int, lane: int) -> list[tuple[int, int, int, int]]:
        begin, end, found = step * self.K, (step + 1) * self.K, []
        for start, document, length in self.placed[lane]:
            first = max(start, begin)
            offset = (first - start) * self.block
            if start < end and offset < length:
                found.append((first - begin, document, offset, min(length - offset, (end - first) * self.block)))
        return found

    def cursor(self, step: int) -> list[int]:
        begin = step * self.K
        return [
            sum(min(max((begin - start) * self.block, 0), length) for start, _, length in lane) for lane in self.placed
        ]


QUESTIONS = ("spans", "valid_tokens", "tokens_before", "epoch", "cursor")


@settings(max_examples=100, deadline=None)
@given(
    cases, st.lists(st.tuples(st.sampled_from(QUESTIONS), st.integers(0, 30)), min_size=1, max_size=30), st.booleans()
)
def test_the_schedule_is_the_one_that_it_always_was(case: dict, asked: list[tuple[str, int]], onwards: bool) -> None:
    """Whatever is asked, in whatever order, and however few documents are kept and placed at a time."""
    lengths, lanes, block = case["lengths"], case["lanes"], case["block"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "PLACED", 3)
        schedule = TrainingLanes(
            lengths, lanes=lanes, segment_length=case["blocks"] * block, block=block, seed=case["seed"]
        )
        plain = Plain(schedule, lengths, 31)
        for question, step in sorted(asked, key=lambda one: one[1]) if onwards else asked:
            if question == "spans":
                assert [schedule.spans(step, lane) for lane in range(lanes)] == [
                    plain.spans(step, lane) for lane in range(lanes)
                ]
            elif question == "cursor":
                assert schedule.cursor(step).tolist() == plain.cursor(step)
            elif question == "epoch":
                assert schedule.epoch(step) == sum(plain.cursor(step)) / schedule.tokens_per_epoch
            elif question == "tokens_before":
                assert schedule.tokens_before(step) == sum(plain.cursor(step))
            else:
                assert schedule.valid_tokens(step) == sum(plain.cursor(step + 1)) - sum(plain.cursor(step))


def test_a_schedule_keeps_the_present_alone() -> None:
    """Resuming after very many documents takes the time to place each once, and no memory for those that ended."""
    lengths = np.random.default_rng(0).integers(1, 2000, 200_000)
    tracemalloc.start()
    try:
        schedule = TrainingLanes(lengths, lanes=16, segment_length=1024, block=256, seed=0)
        of_the_store = tracemalloc.get_traced_memory()[0]
        step = int(lengths.sum()) // (16 * 1024) - 1
        assert schedule.cursor(step).sum() == schedule.tokens_before(step) and schedule.epoch(step) < 1
        kept, peak = (size - of_the_store for size in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert kept / len(lengths) < 16 and peak / len(lengths) < 64


@given(cases)
def test_every_document_once_per_epoch(case: dict) -> None:
    schedule = TrainingLanes(case["lengths"], lanes=2, segment_length=4, block=2, seed=case["seed"])
    usable = [d for d, length in enumerate(case["lengths"]) if length]
    for epoch in range(3):
        assert sorted(schedule.order(epoch).tolist()) == usable


@settings(deadline=None)
@given(cases, st.one_of(st.none(), st.integers(1, 300)))
def test_evaluation_covers_every_token_once(case: dict, limit: int | None) -> None:
    lengths, lanes, block = case["lengths"], case["lanes"], case["block"]
    T = case["blocks"] * block
    schedule = EvaluationLanes(lengths, lanes=lanes, segment_length=T, block=block, limit_tokens=limit)
    seen: dict[int, list[int]] = {d: [] for d in range(len(lengths))}
    valid = 0
    for step in range(schedule.steps):
        batch = read_batch(Store(lengths), schedule, step, 0, lanes)
        assert schedule.valid_tokens(step) == (batch.targets_BT != IGNORED).sum() > 0
        valid += schedule.valid_tokens(step)
        idle = batch.document_BK == IDLE
        assert batch.fresh_BK[idle].all() and (batch.offset_BK[idle] == IDLE).all()
        for target in batch.targets_BT[batch.targets_BT != IGNORED].tolist():
            seen[target // 1000].append(target % 1000)
    assert seen == {d: list(range(length)) for d, length in enumerate(schedule.lengths.tolist())}  # in order, once
    assert valid == schedule.tokens and schedule.valid_tokens(schedule.steps) == 0
    if limit is None:
        assert schedule.lengths.tolist() == lengths
    else:
        assert schedule.tokens <= max(limit, block)
        clipped = (schedule.lengths != lengths) & (schedule.lengths > 0)
        assert not (schedule.lengths[clipped] % block).any()


def test_longest_document_first_on_the_least_loaded_lane() -> None:
    schedule = EvaluationLanes([3, 9, 5, 4], lanes=2, segment_length=2, block=1)
    assert [span.document for span in schedule.spans(0, 0)] == [1]
    assert [span.document for span in schedule.spans(0, 1)] == [2]
    assert schedule.steps == 6 and schedule.fill() == 21 / 24


def test_limit_does_not_depend_on_the_order_of_documents() -> None:
    lengths = np.array([700, 20, 310, 5, 90])
    for limit in (1, 64, 200, 600, 5000):
        assert np.array_equal(sample(lengths, 16, limit), sample(lengths[::-1], 16, limit, lanes=3)[::-1])


def test_the_sample_that_validation_reads() -> None:
    """Pinned: where it changes, curves of before and after compare no longer."""
    lengths = np.array([17, 900, 40, 333, 250, 8, 61, 120, 77, 500, 29, 410])
    assert sample(lengths, 16, 640).tolist() == [0, 80, 0, 80, 80, 0, 61, 80, 0, 80, 29, 80]
    assert sample(lengths, 16, 1000).tolist() == [17, 128, 40, 128, 128, 8, 61, 120, 77, 128, 29, 128]


def sample(lengths: Sequence[int] | np.ndarray, block: int, limit: int, lanes: int = 2) -> np.ndarray:
    """What is read of each document."""
    sizes = {"lanes": lanes, "segment_length": 4 * block, "block": block}
    return EvaluationLanes(lengths, **sizes, limit_tokens=limit).lengths


@pytest.mark.parametrize(("typical", "limit"), [(3_000, 50_000), (3_000, 100_000), (80_000, 40_000), (300, 20_000)])
def test_a_sample_reads_far_into_documents_of_all_lengths(typical: int, limit: int) -> None:
    lengths = np.random.default_rng(1).lognormal(np.log(typical), 1.2, 2_000).astype(np.int64)
    read = sample(lengths, 64, limit)
    chosen = np.flatnonzero(read)
    assert 0.9 * limit < read.sum() <= limit
    assert ((read[chosen] == lengths[chosen]) | (read[chosen] >= limit // 8 // 64 * 64)).all()
    # Half of the sample's documents are such as hold half of the split's tokens: neither the longest nor the shortest alone.
    ranked = np.sort(lengths)
    median = ranked[np.searchsorted(np.cumsum(ranked), lengths.sum() / 2)]
    assert 0.3 < (lengths[chosen] > median).mean() < 0.7


def test_a_sample_of_a_few_documents_reads_the_beginning_of_each() -> None:
    assert sample([40_000, 3, 50_000, 60_000], 64, 30_000).tolist() == [9_984, 3, 9_984, 9_984]
    assert sample([400, 3, 500], 64, 1_000).tolist() == [400, 3, 500]
    assert sample([400, 3, 500], 64, 1).tolist() == [0, 0, 64]


def test_order_follows_seed_epoch_and_fingerprint() -> None:
    def order(seed: int, epoch: int, fingerprint: str = "") -> list[int]:
        lengths = range(1, 101)
        kind = TrainingLanes(lengths, lanes=1, segment_length=8, block=8, seed=seed, fingerprint=fingerprint)
        return kind.order(epoch).tolist()

    orders = [order(0, 0), order(0, 1), order(1, 0), order(0, 0, "f")]
    assert order(0, 0) == orders[0] and len({tuple(o) for o in orders}) == 4
    # The order of a committed seed may never change: a resumed run depends on it.
    assert order(0, 0)[:8] == [38, 89, 61, 24, 81, 34, 13, 46]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"segment_length": 100, "block": 64}, "segment_length 100 is not a multiple of the model's block 64"),
        ({"lanes": 0}, "lanes is 0"),
        ({"block": 0}, "block is 0"),
        ({"lengths": [0, 0]}, "no document has any token"),
    ],
)
def test_errors(arguments: dict, words: str) -> None:
    fields: dict[str, Any] = {"lengths": [10], "lanes": 1, "segment_length": 64, "block": 16, **arguments}
    with pytest.raises(ValueError, match=words):
        TrainingLanes(fields.pop("lengths"), **fields, seed=0)
    with pytest.raises(ValueError, match=words):
        EvaluationLanes([10] if "lengths" not in arguments else [0, 0], **fields)


def test_pg19_sized_schedule_is_quick() -> None:
    lengths = np.random.default_rng(0).lognormal(11.2, 0.8, 28_602).astype(np.int64) + 1
    start = time.process_time()
    schedule = TrainingLanes(lengths, lanes=4096, segment_length=4096, block=512, seed=0)
    assert schedule.valid_tokens(500) > 0
    assert schedule.fill(500) > 0.99
    assert time.process_time() - start < 20
