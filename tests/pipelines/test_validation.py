"""Scores of whole splits by validation, whatever the lanes and segments, and what they say State is worth."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_prep.lanes import EvaluationLanes
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.dotted import with_fields
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.training import scoring
from pipelines.training.reading import SEGMENTS, StateMode, StateReset, read_segments
from pipelines.training.scoring import add_to, has_states, score_split
from pipelines.training.train_state import TrainState
from pipelines.training.world import World
from recur_models import StaircaseConfig, clear, health
from tests.small_corpus import words
from tests.small_runs import records_with, values_of

Train = Callable[..., Path]


def test_a_staircase_of_one_pass_has_no_states() -> None:
    sizes = {"chunk": 4, "d_model": 8, "heads": 2, "layers": 1}
    found = [has_states(StaircaseConfig(**sizes, passes=passes).build(5)) for passes in (1, 2)]
    assert found == [False, True]


def test_one_process_warns_that_a_checkpoint_is_not_ranked(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_fields(PRESETS["demo-rec"], {"checkpoint.best_by": "validation/error_rate"})
    validated = SegmentStore.open(store, "text", "validation")
    for rank in range(2):
        world = World(rank, 2, torch.device("cpu"))
        TrainState().note_validation({"validation/bits_per_token": 5.0}, 10, config, validated, world)
    assert capsys.readouterr().out.count("step 10 has no validation/error_rate") == 1


def test_without_a_validation_split_it_trains_unvalidated(
    train: Train, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "text" / "validation")
    folder = train("--steps", "5")
    assert "has no validation split" in capsys.readouterr().out
    assert len(values_of(folder, "train/bits_per_token")) == 5 and not values_of(folder, "validation/bits_per_token")


@pytest.mark.usefixtures("short_documents")
def test_reading_in_segments_of_another_length_gives_the_same_nats(train: Train, store: Path) -> None:
    model = model_of(find_checkpoint(train("--optim.lr", "1e-2", "--steps", "40")))
    train_split, short = (SegmentStore.open(store, "text", name) for name in ("train", "test"))

    def nats(
        segment_length: int, clearing: StateMode = "nothing", reset: StateReset = SEGMENTS, lanes: int = 4
    ) -> np.ndarray:
        split = train_split if reset is SEGMENTS else short
        schedule = EvaluationLanes(split.lengths, lanes=lanes, segment_length=segment_length, block=8)
        sums_3P = np.zeros((3, -(-int(split.lengths.max()) // 8)))
        cpu = torch.device("cpu")
        with torch.no_grad():
            for segment in read_segments(model, split, schedule, (0, lanes), cpu, clearing=clearing, reset=reset):
                add_to(sums_3P, segment, 8)
        return sums_3P[0]

    def one_by_one(places: Container[int]) -> np.ndarray:
        """A document after the other, a block at a time, the states cleared before some tokens."""
        sums = np.zeros(-(-int(short.lengths.max()) // 8))
        for document, length in enumerate(short.lengths.tolist()):
            text = torch.from_numpy(short.tokens(document, 0, length).astype(np.int64))
            read = F.pad(torch.cat([torch.tensor([short.bod_id]), text[:-1]]), (0, -length % 8))
            targets, state = F.pad(text, (0, -length % 8), value=-1), model.initial_state(1)
            for start in range(0, length, 8):
                block = slice(start, start + 8)
                state = clear(state, model.initial_state(1), ("states",)) if start in places else state
                with torch.no_grad():
                    found, state = model(read[None, block], state, torch.tensor([[start == 0]]), targets[None, block])
                sums[start // 8] += float(found.double().sum())
        return sums

    carried = nats(32)
    np.testing.assert_allclose(carried, nats(64), rtol=1e-5)
    np.testing.assert_allclose(carried, nats(8), rtol=1e-5)
    assert not np.allclose(carried, nats(32, "everything"), rtol=1e-3)
    kept = one_by_one(())
    for reset, places in ((StateReset(every=3), range(0, 10_000, 24)), (StateReset(at=40), (40,))):
        cleared = nats(32, "states", reset)
        np.testing.assert_allclose(cleared, one_by_one(places), rtol=1e-5)
        np.testing.assert_allclose(cleared, nats(64, "states", reset, lanes=1), rtol=1e-5)
        np.testing.assert_allclose(nats(32, reset=reset), kept, rtol=1e-5)
        assert not np.allclose(cleared, kept, rtol=1e-6)


@pytest.mark.usefixtures("short_documents")
def test_score_counts_every_token_word_and_byte_once(train: Train, store: Path) -> None:
    model = model_of(find_checkpoint(train()))
    split = SegmentStore.open(store, "text", "train")
    totals = split.manifest.totals
    one = score_split(model, split, lanes=1, segment_length=16, world=World.alone())
    many = score_split(model, split, lanes=5, segment_length=64, world=World.alone())
    for score in (one, many):
        assert (score.tokens, score.words, score.bytes) == (totals.tokens, totals.words, totals.bytes)
        assert score.documents == totals.documents and sum(score.bucket_tokens) == totals.tokens
    assert one.nats == pytest.approx(many.nats, rel=1e-5)
    assert one.bits_per_byte == pytest.approx(one.nats / np.log(2) / totals.bytes)


def test_a_state_whose_clearing_costs_nothing_is_told_of_when_validation_has_shown_it(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "MIN_WORTH", 1e9)  # no State is worth that
        run = train("--steps", "14", "--log-every", "1", "--validate-every", "4")
    told = [line for line in capsys.readouterr().out.splitlines() if "ignore its recurrent State" in line]
    assert len(told) == 1 and told[0].startswith("step 13:") and "clearing it changes validation by" in told[0]
    newest = values_of(run, "validation/worth_of_states_bits")[-2:]
    # A resumed run continues with them.
    assert Checkpoint.open(run / "checkpoints/step-00000014").meta["worths"] == newest


def validated_on(make_config: Callable[..., PrepareConfig], text_folder: Path, documents: int, words_each: int) -> None:
    """Make the store with these documents in its validation split, in place of the two."""
    for i in range(documents):
        (text_folder / "validation" / f"doc{i}.txt").write_bytes(words(f"many{i}", words_each).encode())
    prepare(make_config(overwrite=True))


def test_the_worth_is_seen_where_many_documents_are_validated(
    train: Train, make_config: Callable[..., PrepareConfig], text_folder: Path
) -> None:
    """60 documents of some ten segments: 800 tokens would be a block of each."""
    validated_on(make_config, text_folder, 60, 60)
    folder = train("--validate-tokens", "800", "--optim.lr", "1e-2")
    worths = values_of(folder, "validation/worth_of_states_bits")
    assert len(worths) == 2 and all(abs(worth) > 1e-6 for worth in worths)


def test_a_limited_validation_is_the_same_on_any_number_of_lanes(
    train: Train, make_config: Callable[..., PrepareConfig], text_folder: Path, store: Path
) -> None:
    validated_on(make_config, text_folder, 60, 60)
    model = model_of(find_checkpoint(train("--steps", "2", "--validate-every", "0")))
    split = SegmentStore.open(store, "text", "validation")
    scores = [
        score_split(model, split, lanes=n, segment_length=32, world=World.alone(), limit_tokens=800) for n in (1, 3, 16)
    ]
    assert len({(score.tokens, score.documents, score.bucket_tokens) for score in scores}) == 1
    assert 700 < scores[0].tokens <= 800 and scores[0].documents == 8 and scores[0].shows_worth
    np.testing.assert_allclose([score.nats for score in scores], scores[0].nats, rtol=1e-6)


@pytest.mark.parametrize("limit", [None, 100_000])
def test_a_validation_reads_no_more_lanes_than_it_has_documents(
    train: Train,
    make_config: Callable[..., PrepareConfig],
    text_folder: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
) -> None:
    validated_on(make_config, text_folder, 3, 60)
    model = model_of(find_checkpoint(train("--steps", "2", "--validate-every", "0")))
    split = SegmentStore.open(store, "text", "validation")
    documents = int(np.count_nonzero(split.lengths))
    read = []

    def counting(*args: Any, **options: Any) -> Any:
        read.append(args[2].lanes)
        return read_segments(*args, **options)

    monkeypatch.setattr(scoring, "read_segments", counting)
    scores = [
        score_split(model, split, lanes=n, segment_length=32, world=World.alone(), limit_tokens=limit)
        for n in (documents, 16)
    ]
    assert documents < 16 and read == [documents, documents]
    assert scores[0].nats == scores[1].nats


def test_a_worth_that_cannot_be_seen_is_neither_told_nor_warned_of(
    train: Train, make_config: Callable[..., PrepareConfig], text_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    validated_on(make_config, text_folder, 60, 3)  # none is as long as a segment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "MIN_WORTH", 1e9)
        validated = [record.metrics for record in records_with(train(), "validation/bits_per_token")]
    assert len(validated) == 2
    assert not {"validation/worth_of_states_bits", "validation/bits_per_token_states_cleared"} & validated[0].keys()
    assert "ignore its recurrent State" not in capsys.readouterr().out
