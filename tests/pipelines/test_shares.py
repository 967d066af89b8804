"""Whole splits in several processes: sums do not depend on who reads what, killed readings resume, and damage is found."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines import evaluate
from pipelines.inference.trained import config_of, find_checkpoint, model_of
from pipelines.tracking.score import Score
from pipelines.training import reading, scoring
from pipelines.training.processes import over_processes
from pipelines.training.reading import SEGMENTS, Shard, StateMode, StateReset
from pipelines.training.scoring import Scoring, score_split
from pipelines.training.world import World
from recur_models import RECURRENT, RecurrentModel, clear
from recur_models.decoding import begin, read
from tests.small_corpus import words

WAYS: tuple[StateMode, ...] = ("nothing", "states", "everything")
SEGMENT = 32


@pytest.fixture
def scored(text_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Scoring:
    """Scoring of five documents, two of which end in their first segment."""
    for number, size in enumerate((40, 2, 80, 3), 1):
        (text_folder / "validation" / f"doc{number}.txt").write_text(words(f"more{number}", size))
    (text_folder / "test" / "doc0.txt").write_text(words("short", 30))
    train = request.getfixturevalue("train")
    checkpoint = find_checkpoint(train("--steps", "5", "--validate-every", "0", "--optim.lr", "1e-1"))
    split = SegmentStore.open(tmp_path / "store", "text", "validation")
    assert np.count_nonzero(split.lengths <= SEGMENT) == 2
    sizes: dict[str, Any] = {"reset": SEGMENTS, "lanes": 3, "segment_length": SEGMENT, "shards": 1}
    return Scoring(checkpoint, config_of(checkpoint), split, WAYS, **sizes, folder=tmp_path / "partial")


def scores(scored: Scoring, workers: int = 1) -> list[Score]:
    return scored.scores(workers, lambda _: None)


def naive_nats(model: RecurrentModel, text: torch.Tensor, bod_id: int, mode: StateMode) -> float:
    """One document alone, a block at a time; what is cleared is cleared every four blocks."""
    inputs = F.pad(torch.cat([torch.tensor([bod_id]), text[:-1]]), (0, -len(text) % model.block))
    nats, initial = 0.0, model.initial_state(1)
    state = initial
    for start in range(0, len(text), model.block):
        if start % SEGMENT == 0:
            state = clear(state, initial, {"nothing": (), "states": RECURRENT, "everything": None}[mode])
        with torch.no_grad():
            fresh = torch.tensor([[start == 0]])
            logits, state = model(inputs[None, start : start + model.block], state, fresh)
        target = text[start : start + model.block]
        nats += float(F.cross_entropy(logits[0, : len(target)].double(), target, reduction="sum"))
    return nats


@pytest.mark.long
def test_neither_shares_nor_lanes_change_a_sum_and_a_plain_loop_has_the_same(scored: Scoring) -> None:
    found = scores(scored)
    others: list[dict[str, Any]] = [{"shards": 3, "lanes": 1}, {"shards": 2, "lanes": 8}]
    for changed in others:
        for ours, theirs in zip(scores(replace(scored, **changed)), found, strict=True):
            assert ours.nats == pytest.approx(theirs.nats, rel=1e-9)
            np.testing.assert_allclose(ours.bucket_nats, theirs.bucket_nats, rtol=1e-9)
            assert ours.bucket_tokens == theirs.bucket_tokens
    model, split = model_of(scored.checkpoint), scored.store
    totals = split.manifest.totals
    texts = [
        torch.from_numpy(split.tokens(document, 0, length).astype("int64"))
        for document, length in enumerate(split.lengths.tolist())
    ]
    for mode, score in zip(WAYS, found, strict=True):
        assert (score.tokens, score.bytes, score.documents) == (totals.tokens, totals.bytes, totals.documents)
        assert score.nats == pytest.approx(sum(naive_nats(model, text, split.bod_id, mode) for text in texts), rel=1e-6)
    assert len({score.nats for score in found}) == 3
    other = replace(scored, reset=StateReset(every=SEGMENT // model.block), segment_length=2 * SEGMENT, lanes=2)
    assert [score.nats for score in scores(other)] == pytest.approx([score.nats for score in found], rel=1e-9)


def test_the_sums_are_those_of_a_loop_that_reads_token_by_token(scored: Scoring) -> None:
    split, model = SegmentStore.open(scored.store.place.parent, "test"), model_of(scored.checkpoint)
    [score] = scores(replace(scored, store=split, state_modes=("nothing",)))
    text = torch.from_numpy(split.tokens(0, 0, int(split.lengths[0])).astype("int64"))
    decoder = model.incremental_decoder()
    at, nats = begin(decoder, 1), 0.0
    for token, target in zip([split.bod_id, *text[:-1].tolist()], text, strict=True):
        with torch.no_grad():
            logits, at = read(decoder, at, torch.tensor([[token]]))
        nats += float(F.cross_entropy(logits[0, -1].double(), target))
    assert len(split.lengths) == 1 and score.nats == pytest.approx(nats, rel=1e-6)


def split(lengths: np.ndarray, shards: int) -> list[np.ndarray]:
    nowhere: Any = None
    return [shard.lengths for shard in Shard("all", nowhere, lengths, 4, 64).split(shards, 8)]


def test_shares_are_of_similar_size_and_have_each_document_once() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1, 60).astype(np.int64)
    found = split(lengths, 3)
    assert (np.sum(found, axis=0) == lengths).all() and (np.count_nonzero(found, axis=0) == 1).all()
    totals = [shard.sum() for shard in found]
    assert max(totals) < 1.02 * min(totals)
    assert len(split(np.array([5, 0]), 3)) == 1


def test_no_lane_has_segments_that_its_documents_do_not_fill() -> None:
    nowhere: Any = None
    for lengths, lanes, tokens in (
        ([100], 1, 104),
        ([100, 90], 2, 104),
        ([100, 90, 30], 3, 104),
        ([9] * 80, 8, 160),
        ([350, 268, 160, 131, 96], 3, 368),  # the last stands behind the second
    ):
        [shard] = Shard("all", nowhere, np.array(lengths), 8, 10**9).split(1, 8)
        assert (shard.lanes, shard.segment_length) == (lanes, tokens)
    [shard] = Shard("all", nowhere, np.array([1000]), 8, 16).split(1, 8)
    assert (shard.lanes, shard.segment_length) == (1, 128)


def test_a_long_document_has_no_more_positions_than_others(scored: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    fine, block = scores(scored), scored.model.block
    most = 30
    monkeypatch.setattr(scoring, "MAX_POSITIONS", most)
    scored = replace(scored, shards=2, folder=scored.folder.with_name("other"))
    together = 4
    assert 2 < len(fine[0].bucket_nats) / most <= together
    coarse = scores(scored)
    sizes: dict[str, Any] = {"lanes": 3, "segment_length": SEGMENT, "world": World.alone()}
    coarse.append(score_split(model_of(scored.checkpoint), scored.store, **sizes))
    for ours, theirs in zip(coarse, [*fine, fine[0]], strict=True):
        assert (ours.bucket, theirs.bucket, ours.tokens) == (together * block, block, theirs.tokens)
        assert ours.nats == pytest.approx(theirs.nats, rel=1e-6)
        starts = np.arange(0, len(theirs.bucket_nats), together)
        np.testing.assert_allclose(ours.bucket_nats, np.add.reduceat(theirs.bucket_nats, starts), rtol=1e-6)
        assert list(ours.bucket_tokens) == np.add.reduceat(theirs.bucket_tokens, starts).tolist()


def test_a_bucket_holds_few_blocks_and_a_document_few_buckets() -> None:
    most = scoring.MAX_POSITIONS
    for blocks, together in ((0, 1), (most, 1), (most + 1, 2), (2 * most, 2), (2 * most + 1, 4), (9 * most, 16)):
        assert scoring.bucket_of(np.array([7, blocks * 512]), 512) == together * 512


def test_what_was_killed_goes_on_and_what_is_damaged_is_read_again(
    scored: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MAX_POSITIONS", 10)  # of several segments: it is killed within one
    undisturbed = scores(replace(scored, folder=scored.folder.with_name("other")))
    monkeypatch.setattr(reading, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(reading, "SAVE_SHARE", 1e9)
    told: list[int] = []

    def killed(tokens: int) -> None:
        told.append(tokens)
        if sum(told) > scored.reading.tokens // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored.scores(1, killed)
    again: list[int] = []
    assert scored.scores(1, again.append) == undisturbed
    # One shard was over, and some steps of another.
    assert sum(again[:2]) == sum(told) < sum(again) == scored.reading.tokens
    files = sorted(scored.folder.iterdir())
    assert len(files) == 3
    for file, damage in zip(
        files, (lambda data: data[:-9], lambda data: data[:40] + b"\0" + data[41:], None), strict=True
    ):
        data = file.read_bytes()
        file.unlink() if damage is None else file.write_bytes(damage(data))
        assert scored.scores(1, lambda _: None) == undisturbed and file.read_bytes() == data


@pytest.mark.usefixtures("short_documents")
def test_the_command_goes_on_with_what_another_left(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [str(train("--steps", "2", "--validate-every", "0")), "--tracking.backend", "none"]
    evaluate.main([*given, "--output", str(tmp_path / "whole")])
    real = evaluate.write_report

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    monkeypatch.setattr(evaluate, "write_report", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate.main([*given, "--output", str(out)])
    assert {path.name for path in out.iterdir()} == {evaluate.PARTIAL}
    monkeypatch.setattr(evaluate, "write_report", real)
    monkeypatch.setattr(reading, "read_segments", lambda *_, begin, **__: iter([None] * (begin == 0)))  # none is begun
    evaluate.main([*given, "--output", str(out)])
    assert evaluate.PARTIAL not in {path.name for path in out.iterdir()}
    assert (out / "report.json").read_bytes() == (tmp_path / "whole" / "report.json").read_bytes()
    with pytest.raises(UserError, match="--num-workers is -1"):
        evaluate.main([*given, "--num-workers", "-1"])


@dataclass(frozen=True)
class Counting:
    """Work that leaves a file for each piece; what is to happen at the third."""

    folder: Path
    third: str = ""

    def open(self, device: torch.device) -> Callable[[int], Iterator[int]]:
        return self._piece

    def _piece(self, number: int) -> Iterator[int]:
        if number == 2 and self.third == "refused":
            raise UserError("the third piece is damaged: make it again")
        if number == 2 and self.third == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        yield number
        (self.folder / str(number)).write_text(str(os.getpid()))


def test_processes_share_the_work_and_an_error_in_one_is_told(scored: Scoring, tmp_path: Path) -> None:
    folder, told = tmp_path / "pieces", []
    folder.mkdir()
    over_processes(Counting(folder).open, 5, 2, told.append)
    assert sum(told) == 10 and len(list(folder.iterdir())) == 5
    assert str(os.getpid()) not in {path.read_text() for path in folder.iterdir()}
    with pytest.raises(UserError, match="the third piece is damaged: make it again"):
        over_processes(Counting(folder, "refused").open, 5, 2, told.append)
    with pytest.raises(UserError, match=r"ended from outside \(status -9\).*rerun the command to resume"):
        over_processes(Counting(folder, "killed").open, 5, 2, told.append)
    scored = replace(scored, shards=3)
    assert scores(scored, 3) == scores(replace(scored, folder=tmp_path / "alone"))


def test_what_is_read_otherwise_goes_on_with_nothing_of_another(scored: Scoring) -> None:
    changed: list[dict[str, Any]] = [{}, {"reset": StateReset(at=8)}, {"reset": StateReset(every=2)}]
    changed += [{"precision": "bfloat16"}, {"lanes": 4}, {"segment_length": 64}, {"shards": 2}]
    names = [replace(scored, **fields).reading.shards[0].name for fields in changed]
    assert len(set(names)) == len(changed)


def test_the_share_beyond_the_first_segment_is_of_tokens(scored: Scoring) -> None:
    lengths = scored.store.lengths
    share = np.maximum(lengths - SEGMENT, 0).sum() / lengths.sum()
    assert [score.share_beyond for score in scores(scored)] == [pytest.approx(share)] * 3
