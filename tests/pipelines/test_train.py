"""Training in this process: State carried, resume bit for bit, damaged and foreign checkpoints, and bad input."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from common.errors import UserError
from common.places import Place
from data_prep.document_table import write_table
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint, CheckpointError, digest_json
from pipelines.checkpoints.run_file import presets_with
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import Saver
from pipelines.config.dotted import with_fields
from pipelines.config.run import DataConfig, OptimConfig, to_json
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records
from pipelines.training import loop, scoring
from pipelines.training.optim import build_optimizer
from pipelines.training.reading import SEGMENTS, StateMode, StateReset, read_segments
from pipelines.training.restoring import restore_lanes, seed_dropout
from pipelines.training.scoring import has_states, score_split
from pipelines.training.utilisation import Speed
from pipelines.training.world import World
from recur_models import StaircaseConfig, clear, health
from tests.small_corpus import contents, flip, words
from tests.small_runs import TINY, curve, forget, records_with, values_of, without_run_name

Train = Callable[..., Path]


def test_a_run_writes_its_metrics_and_checkpoints(train: Train) -> None:
    folder = train()
    assert [record.step for record in records_with(folder, "train/bits_per_token")] == list(range(1, 21))
    validated = records_with(folder, "validation/bits_per_token")
    assert [record.step for record in validated] == [10, 20]
    assert set(validated[0].metrics) >= {"validation/bits_per_token_states_cleared", "validation/worth_of_states_bits"}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [f"step-{n:08d}" for n in (10, 15, 20)]
    checkpoint = Checkpoint.open(folder / "checkpoints" / "step-00000020")
    assert len(checkpoint.meta["cursor"]) == 4 and sum(checkpoint.meta["cursor"]) == checkpoint.meta["tokens"]


@pytest.mark.usefixtures("short_documents")
def test_the_announcement_says_when_the_steps_read_a_small_train_split_often(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--steps", "2", "--validate-every", "0", "--model.window", "8")
    train(*words, name="few")
    assert "times" not in capsys.readouterr().out
    train(*words, "--data.segment-length", "8192", name="many")
    shown = capsys.readouterr().out
    epochs = float(re.findall(r"([\d.]+) epochs", shown)[0])
    assert epochs > 20
    assert f"  note    the steps read the train split {epochs:,.0f} times" in shown and "fewer --steps" in shown


def test_the_loss_falls(train: Train) -> None:
    losses = values_of(train("--optim.lr", "1e-2", "--steps", "60"), "train/bits_per_token")
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("log_every", ["1", "4"])  # 4: the checkpoint of step 10 lies between two points of the curve
def test_resumed_equals_undisturbed_bit_for_bit(train: Train, log_every: str, precision: str) -> None:
    words = ("--log-every", log_every, "--validate-every", "6", "--precision", precision)
    undisturbed, resumed = train(*words, name="whole"), train(*words, name="halves")
    forget(resumed, 15, 20)
    train(*words, name="halves")
    last = "checkpoints/step-00000020"
    assert without_run_name(contents(undisturbed / last)) == without_run_name(contents(resumed / last))
    assert curve(undisturbed) == curve(resumed)


def test_lanes_in_groups_learn_what_all_at_once_learn_and_resume_bit_for_bit(train: Train) -> None:
    """At a rate of nothing, so that what differs by rounding does not grow: AdamW takes a gradient of nearly 0 by its sign."""
    words = ("--steps", "10", "--validate-every", "0", "--model.dropout", "0", "--optim.lr", "1e-15")
    whole = train(*words, name="whole")
    groups = train(*words, "--micro-lanes", "3", name="groups")
    (ours, mine), (theirs, other) = (
        (found.lanes(0, 4)[0], found.optimizer()["state"])
        for found in (Checkpoint.open(folder / "checkpoints" / "step-00000010") for folder in (whole, groups))
    )
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=1e-6, atol=1e-6, msg=name)
    for parameter, moments in mine.items():
        scale = moments["exp_avg"].abs().max().item()
        torch.testing.assert_close(other[parameter]["exp_avg"], moments["exp_avg"], rtol=0, atol=1e-5 * scale)
    for (_, all_at_once), (_, by_three) in zip(curve(whole), curve(groups), strict=True):
        same = {name: value for name, value in all_at_once.items() if name.startswith("train/")}
        assert {name: by_three[name] for name in same} == pytest.approx(same, rel=1e-5)
    before = contents(groups / "checkpoints" / "step-00000010")
    forget(groups, 10)
    train(*words, "--micro-lanes", "3", name="groups")
    assert without_run_name(contents(groups / "checkpoints" / "step-00000010")) == without_run_name(before)


def test_lanes_that_move_to_other_processes_keep_each_bit_of_their_state(train: Train) -> None:
    found = Checkpoint.open(train("--precision", "bfloat16", "--steps", "5") / "checkpoints" / "step-00000005")
    saved, _ = found.lanes(0, 4)
    assert {saved[name].dtype for name in saved if name.endswith(".keys")} == {torch.bfloat16}
    # A slow gate moves these too.
    assert {saved[name].dtype for name in saved if name.endswith(".states")} == {torch.float32}
    fresh, nats = model_of(found).initial_state(2), torch.zeros((), dtype=torch.float64)
    for rank in range(2):
        world = World(rank, 2, torch.device("cpu"))
        with torch.random.fork_rng():
            config = replace(PRESETS["small-rec"], data=DataConfig(lanes=4))
            restored = restore_lanes(found, config, world, fresh, nats)
        assert restored
        for name, value in restored[0].items():
            was = saved[f"state/{name}"][2 * rank : 2 * rank + 2]
            assert value.dtype == was.dtype and torch.equal(value, was), name


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_changed_fields_of_the_optimizer_take_effect(train: Train, name: str) -> None:
    words, changed = (
        ("--optim.name", name, "--optim.lr", "0.01"),
        ("--optim.weight-decay", "0.5", "--optim.betas", "0.5", "0.6"),
    )
    allowed = ("--allow-change", "optim.weight_decay", "optim.betas")
    for run in ("same", "changed"):
        forget(train(*words, name=run), 15, 20)
    same, other = train(*words, name="same"), train(*words, *changed, *allowed, name="changed")
    before, after = (Checkpoint.open(folder / "checkpoints" / "step-00000020") for folder in (same, other))
    assert after.meta["config"]["optim"]["weight_decay"] == 0.5
    groups = after.meta["optimizer"]["groups"]
    assert {group["weight_decay"] for group in groups} <= {0.5, 0.0} and groups[0]["weight_decay"] == 0.5
    assert 0.5 in numbers(groups[0].get("betas", groups[0].get("beta1")))
    assert not torch.equal(*(saved.weights()["embedding.weight"] for saved in (before, after)))


def numbers(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def test_the_epoch_counts_tokens(train: Train, store: Path) -> None:
    total = SegmentStore.open(store, "text", "train").manifest.totals.tokens
    points = [record.metrics for record in records_with(train("--steps", "40"), "train/epoch")]
    assert [point["train/epoch"] for point in points] == [point["train/tokens"] / total for point in points]
    assert len({point["train/epoch"] for point in points}) == 40  # no staircase


def test_the_speed_leaves_out_saves_and_validation(train: Train) -> None:
    def slow(function: Callable[..., object]) -> Callable[..., object]:
        pauses = [1.0]  # the first time

        def slowly(*args: object, **kwargs: object) -> object:
            time.sleep(pauses.pop() if pauses else 0)
            return function(*args, **kwargs)

        return slowly

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "save", slow(Saver.save))
        patch.setattr(loop, "validate", slow(loop.validate))
        words = ("--steps", "12", "--log-every", "4", "--checkpoint.every", "6", "--validate-every", "6")
        folder = train(*words)
    speeds = [record.metrics["train/tokens_per_second"] for record in records_with(folder, "train/epoch")]
    # Four steps of four lanes, in less than one of the pauses.
    assert len(speeds) == 3 and min(speeds) > 4 * 4 * 32 / 1.0


def test_the_speed_counts_no_padding(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    metrics = Speed.metrics

    def counting(speed: Speed, tokens: int) -> dict[str, float]:
        counted.append(tokens)
        return metrics(speed, tokens)

    monkeypatch.setattr(Speed, "metrics", counting)
    folder = train("--steps", "8", "--log-every", "4")
    logged = [record.metrics["train/tokens"] for record in records_with(folder, "train/epoch")]
    assert list(itertools.accumulate(counted)) == logged
    assert logged[-1] < 8 * 4 * 32, "documents end within blocks"


@pytest.mark.parametrize(
    ("run", "store", "refused"),
    [
        ("store", "runs/store", True),
        ("store/text", "runs/store", True),
        ("store/text/a", "runs/store", True),
        ("mine", "runs/mine/data", True),
        ("store/a", "runs/store", False),
        ("mine", "runs", False),
    ],
)
def test_a_run_whose_removal_would_remove_the_corpus_is_refused(run: str, store: str, refused: bool) -> None:
    config = with_fields(PRESETS["small-rec"], {"run": run, "root": "runs", "data.store": store})
    if not refused:
        assert config.located().run == run
        return
    with pytest.raises(
        UserError, match=rf"run is '{run}', and its folder would share files with .*/{store}/text/: choose"
    ):
        config.located()


def test_a_staircase_of_one_pass_has_no_states() -> None:
    sizes = {"chunk": 4, "d_model": 8, "heads": 2, "layers": 1}
    found = [has_states(StaircaseConfig(**sizes, passes=passes).build(5)) for passes in (1, 2)]
    assert found == [False, True]


def test_a_checkpoint_of_another_version_is_refused(train: Train) -> None:
    folder = train("--steps", "10")
    path = folder / "checkpoints" / "step-00000010" / "checkpoint.json"
    meta = {**json.loads(path.read_text()), "schema": 1}
    path.write_text(json.dumps({**meta, "digest": digest_json(meta)}))
    with pytest.raises(
        CheckpointError, match="was written by another version of Throughline: train under another --run"
    ):
        Checkpoint.open(path.parent)


def test_without_a_validation_split_it_trains_unvalidated(
    train: Train, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "text" / "validation")
    folder = train("--steps", "5")
    assert "has no validation split" in capsys.readouterr().out
    assert len(values_of(folder, "train/bits_per_token")) == 5 and not values_of(folder, "validation/bits_per_token")


def test_a_finished_run_is_left_alone(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train()
    before = contents(folder)
    capsys.readouterr()
    train()
    assert "nothing to do" in capsys.readouterr().out
    assert contents(folder) == before


def test_a_recurrence_with_a_rate_of_its_own_trains_by_it_and_resumes(train: Train) -> None:
    how = ("--validate-every", "0", "--checkpoint.every", "2", "--allow-change", "steps")
    words = ("--optim.recurrent-lr-scale", "0", *how)
    first, last = (
        dict(model_of(find_checkpoint(train(*words, "--steps", steps))).named_parameters()) for steps in ("2", "4")
    )
    own = {name for name in first if ".states." in name}
    assert own and all(torch.equal(first[name], last[name]) == (name in own) for name in first)
    with pytest.raises(UserError, match=r"trained with optim\.recurrent_lr_scale=0.0, and this command says 1"):
        train(*how, "--steps", "6")


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_the_recurrences_rate_may_change_and_every_moment_stays_with_its_parameter(train: Train, name: str) -> None:
    how = ("--optim.name", name, "--validate-every", "0", "--checkpoint.every", "2")
    gone = (
        "--allow-change",
        "steps",
        "optim.recurrent_lr_scale",
        "optim.max_grad_norm",
        "--optim.max-grad-norm",
        "1e-20",
    )

    def moments(folder: Path, scale: float) -> dict[str, torch.Tensor]:
        checkpoint = find_checkpoint(folder)
        model = model_of(checkpoint)
        optimizer = build_optimizer(model, OptimConfig(name=name, recurrent_lr_scale=scale))  # pyrefly: ignore
        optimizer.load_state_dict(checkpoint.optimizer())
        return {key: optimizer.state[parameter]["exp_avg"].clone() for key, parameter in model.named_parameters()}

    before = moments(train(*how, "--steps", "2"), 1)
    assert all(tensor.any() for key, tensor in before.items() if "initial_SD" not in key)
    for steps, scale in (("4", "2"), ("6", "1")):  # two more steps, of gradients that are nothing beside the first ones
        after = moments(train(*how, *gone, "--steps", steps, "--optim.recurrent-lr-scale", scale), float(scale))
        for key, tensor in before.items():
            decayed = tensor * 0.9 ** int(steps) / 0.9**2
            torch.testing.assert_close(after[key], decayed, rtol=1e-3, atol=1e-3 * float(tensor.abs().max()), msg=key)


@pytest.mark.usefixtures("short_documents")
def test_reading_in_segments_of_another_length_gives_the_same_nats(train: Train, store: Path) -> None:
    model = model_of(find_checkpoint(train("--optim.lr", "1e-2", "--steps", "40")))
    train_split, short = (SegmentStore.open(store, "text", name) for name in ("train", "test"))

    def nats(
        segment_length: int, clearing: StateMode = "nothing", reset: StateReset = SEGMENTS, lanes: int = 4
    ) -> np.ndarray:
        split = train_split if reset is SEGMENTS else short
        how: dict[str, Any] = {"lanes": lanes, "segment_length": segment_length, "world": World.alone()}
        return np.array(score_split(model, split, clearing=clearing, reset=reset, **how).bucket_nats)

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


def test_training_steps_of_one_segment_read_what_half_as_many_of_two_read(train: Train) -> None:
    words = ("--optim.lr", "0", "--data.lanes", "1", "--model.dropout", "0", "--schedule.name", "constant")
    once = train(*words, "--data.segment-length", "32", "--steps", "24", "--log-every", "2", name="once")
    twice = train(*words, "--data.segment-length", "64", "--steps", "12", "--log-every", "1", name="twice")
    ours, theirs = (values_of(folder, "train/bits_per_token") for folder in (once, twice))
    assert len(ours) == 12
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


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


class TestDamage:
    """A checkpoint that is not whole is never loaded; the one before it is, with a message; if none is good, nothing is touched."""

    def test_the_previous_one_is_used(self, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = train("--steps", "10")
        whole = shutil.copytree(folder, tmp_path / "whole")
        for name, how in itertools.product(
            ("model", "optimizer", "lanes-0-4-of-4", "checkpoint"), ("flip", "truncate", "remove")
        ):
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            damage(folder / "checkpoints" / "step-00000010", name, how)
            capsys.readouterr()
            train("--steps", "11", "--allow-change", "steps")
            out = capsys.readouterr().out
            assert "passed over a checkpoint" in out and out.count("resumes from step 5") == 1, (name, how)
            assert re.search(r"  steps .*\n  resumes from step 5 \(step-00000005\): 6 steps are left\n  into ", out), (
                name,
                how,
            )

    def test_without_a_good_one_it_stops(self, train: Train) -> None:
        folder = train("--steps", "10")
        for step in (5, 10):
            damage(folder / "checkpoints" / f"step-{step:08d}", "model", "flip")
        before = contents(folder)
        with pytest.raises(CheckpointError, match=r"no checkpoint below .* can be used"):
            train("--steps", "20", "--allow-change", "steps")
        assert contents(folder) == before

    def test_a_half_written_folder_is_ignored(self, train: Train) -> None:
        folder = train("--steps", "10")
        shutil.copytree(folder / "checkpoints" / "step-00000010", folder / "checkpoints" / ".step-00000015.tmp")
        train("--steps", "20", "--allow-change", "steps")
        assert not list((folder / "checkpoints").glob(".*"))


def damage(checkpoint: Path, name: str, how: str) -> None:
    path = next(checkpoint.glob(f"{name}.*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(data if how == "flip" else data[: len(data) // 2])


class TestRefusals:
    """One sentence that names the value and the remedy; what is there stays as it was."""

    def test_a_changed_field(self, train: Train) -> None:
        folder = train("--steps", "10")
        before = contents(folder)
        with pytest.raises(
            ValueError, match=r"trained with optim.lr=0.002, and this command says 0.1: .*--allow-change optim.lr"
        ):
            train("--steps", "20", "--optim.lr", "0.1", "--allow-change", "steps")
        assert contents(folder) == before

    def test_dropout_at_other_places(self, train: Train) -> None:
        folder = train("--model.dropout-places", "usual")
        whole = without_run_name(contents(folder / "checkpoints" / "step-00000020"))
        forget(folder, 15, 20)
        with pytest.raises(UserError, match=r"trained with model.dropout_places=usual, and this command says meliad"):
            train()
        train("--model.dropout-places", "usual")
        assert without_run_name(contents(folder / "checkpoints" / "step-00000020")) == whole

    def test_another_store(
        self,
        train: Train,
        make_config: Callable[..., PrepareConfig],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        train("--steps", "10")
        (tmp_path / "corpus" / "train" / "new.txt").write_text("one more document\n")
        other = str(tmp_path / "other")
        prepare(make_config(store=other))
        words = ("--steps", "20", "--data.store", other, "--allow-change", "steps")
        with pytest.raises(ValueError, match=r"made from another store .*--allow-change store"):
            train(*words)
        capsys.readouterr()
        train(*words, "store")
        assert "State begins anew" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                ("optim.name", "--optim.name", "adafactor"),
                r"with optim.name=adamw, and the moments .*=adafactor: .* --run, which",
            ),
            (("model", "--model.layers", "3"), r"begun with model.layers=2, and its weights .* with model.layers=3: "),
            (
                ("model.states", "--model.states", "8"),
                r"begun with model.states=4, and its weights .*=8: .* --run, which",
            ),
            (
                ("model.states", "model.window", "--model.states", "8", "--model.window", "4"),
                r"begun with model.states=4, and its weights cannot be used with model.states=8: ",
            ),
            (
                ("model", "--model.d-model", "24", "--model.mlp-dim", "48"),
                r"with model.d_model=16, model.mlp_dim=32, .* with model.d_model=24, model.mlp_dim=48: ",
            ),
        ],
    )
    def test_another_optimizer_or_size_for_weights_that_do_not_fit(
        self, train: Train, fields: tuple[str, ...], message: str
    ) -> None:
        folder = train("--steps", "1", "--validate-every", "0")
        before = contents(folder)
        words = ("--steps", "20", "--allow-change", "steps", *fields)
        with pytest.raises(UserError, match=message) as caught:
            train(*words)
        assert "state_dict" not in str(caught.value) and "\n" not in str(caught.value)
        assert contents(folder) == before

    def test_another_seed_begins_state_anew_though_each_lane_has_read_as_much(
        self,
        train: Train,
        tmp_path: Path,
        make_config: Callable[..., PrepareConfig],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for number in range(8):  # so long that no lane comes to a second one
            text = "".join(f"{number} and {i}\n" for i in range(400))
            (tmp_path / "corpus" / "train" / f"long{number}.txt").write_text(text)
        for path in (tmp_path / "corpus" / "train").glob("doc*"):
            path.unlink()
        store = str(tmp_path / "long")
        prepare(make_config(store=store))
        words = ("--data.store", store, "--checkpoint.every", "2")
        folder = train("--steps", "2", *words)
        cursor = json.loads((folder / "checkpoints/step-00000002/checkpoint.json").read_text())["cursor"]
        assert len(set(cursor)) == 1
        capsys.readouterr()
        train("--steps", "4", *words, "--seed", "7", "--allow-change", "seed", "steps")
        assert "State begins anew" in capsys.readouterr().out

    @pytest.mark.parametrize("window", ["4", "16"])
    def test_a_model_of_another_state_begins_it_anew(
        self, window: str, train: Train, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train("--steps", "5")
        capsys.readouterr()
        again = ("--model.window", window, "--allow-change", "model.window", "steps")
        folder = train("--steps", "8", *again)
        assert "than before: State begins anew" in capsys.readouterr().out
        assert (folder / "checkpoints" / "step-00000008").is_dir()

    def test_another_vocabulary(self, train: Train, make_config: Callable[..., PrepareConfig], tmp_path: Path) -> None:
        train("--steps", "10")
        other = str(tmp_path / "other")
        prepare(make_config(store=other, tokenizer="sentencepiece:300"))
        with pytest.raises(ValueError, match=r"the vocabulary of .* is not that of"):
            train("--steps", "20", "--data.store", other, "--allow-change", "steps", "store")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--num-workers", "5"), "data.lanes is 4, which 5 workers cannot share: each needs a lane of its own"),
            (("--data.lanes", "0", "--num-workers", "0"), "data.lanes is 0: it must be at least 1"),
            (("--data.segment-length", "0"), "data.segment_length is 0: it must be at least 1"),
            (("--data.segment-length", "33"), "not a multiple of the model's block of 8 tokens: choose 32"),
            (("--data.segment-length", "8"), "learns its recurrence across blocks, so choose at least 16"),
            (("--data.corpus", "tex"), "tex"),
            (("--steps", "0"), "steps is 0"),
            (("--steps", "many"), "steps"),
            (("--model.stats", "4"), r"did you mean --model.states\?"),
            (("--model.layers", "0"), "model.layers is 0: it must be at least 1"),
            (("--optim.max-grad-norm", "-1"), "optim.max_grad_norm is -1.0: it must be at least 0"),
            (("--optim.betas", "1.5", "0.9"), r"optim.betas is \(1.5, 0.9\): each must be"),
            (("--allow-change", "optim.lrr"), r"allow_change has 'optim.lrr', .* did you mean 'optim.lr'\?"),
            (("--allow-change", "steps", "store", "model.stats"), r"'model.stats', .* did you mean 'model.states'\?"),
            (("--allow-change", "tracking", "model.name", "stor"), r"allow_change has 'stor', .* did you mean 'store'"),
            (("--validate-tokens", "-5"), "validate_tokens is -5: it must be at least 0"),
            (("--hang-seconds", "-1"), "hang_seconds is -1.0: it must be at least 0"),
            (("--run", ""), "run is '': it must be the name of a folder below --root"),
            (("--run", "../x"), "run is '../x'"),
            (
                ("--run", "mlflow.db", "--tracking.backend", "mlflow"),
                "run is 'mlflow.db', and MLflow's own mlflow.db is",
            ),
            (
                ("--run", "mlartifacts/one", "--tracking.backend", "mlflow"),
                "and MLflow's own mlartifacts is below --root",
            ),
            (("--use-gpu", "yes"), "use_gpu is yes, and torch cannot use a GPU for each process"),
            (("--tracking.uri", "postgresql://me:pa?ss@host/db"), "a character that hides its end"),
            (("--tracking.uri", "http://me:pa#ss@127.0.0.1:1"), "a character that hides its end"),
            (("--tracking.uri", "http://m e:pass@127.0.0.1:1"), "a character that hides its end"),
            (("--tracking.uri", "postgresql://m'e:pass@host/db"), "a character that hides its end"),
            (("--optim.lr", "inf"), "optim.lr is inf: it must be finite"),
            (
                ("--data.order", "listed"),
                "invalid choice 'listed' for argument '--data.order'.*--help lists the options",
            ),
        ],
    )
    def test_bad_words(self, train: Train, words: tuple[str, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train(*words)

    def test_seeds_of_64_bits(self, train: Train) -> None:
        """A time in nanoseconds, say."""
        folder = train("--steps", "1", "--seed", "1764074521000000000", name="wide")
        assert (folder / "checkpoints" / "step-00000001").is_dir()

    def test_weights_that_are_no_numbers_are_not_saved(self, train: Train, tmp_path: Path) -> None:
        """Though the loss, which is of the weights before the step, was one."""
        with pytest.raises(UserError, match=r"the loss became nan by step 1: lower optim\.lr"):
            train("--optim.lr", "1e38", "--schedule.warmup-steps", "0", "--checkpoint.every", "1", name="wild")
        assert not (tmp_path / "runs" / "wild" / "checkpoints").exists()

    def test_a_changed_byte_in_a_part(self, train: Train, store: Path) -> None:
        part = next((store / "text" / "train").glob("part-*.arrow"))
        flip(part)
        with pytest.raises(ValueError, match=r"part-\d+.arrow is damaged"):
            train("--steps", "60")

    def test_a_damaged_or_missing_manifest(self, train: Train, store: Path) -> None:
        manifest = store / "text" / "train" / "manifest.json"
        text = manifest.read_text()
        manifest.write_text(text.replace('"tokens": 6', '"tokens": 7', 1) if '"tokens": 6' in text else text[:-40])
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            train()
        manifest.unlink()
        with pytest.raises(ValueError, match="prepare"):
            train()

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_a_split_without_tokens(self, train: Train, store: Path, split: str) -> None:
        folder = Place.parse(store / "text" / split)
        manifest = SegmentStore.open(folder).manifest
        entries = [replace(document, tokens=0) for document in manifest.documents]
        columns = {name: [getattr(entry, name) for entry in entries] for name in vars(entries[0])}
        table = write_table(folder, [columns])
        empty = replace(manifest, table=table, totals=replace(manifest.totals, tokens=0))
        (folder / "manifest.json").write_atomically(empty.to_json())
        with pytest.raises(
            UserError, match=f"text/{split} has no document with any token: prepare it again with another"
        ):
            train()

    def test_a_loss_that_is_no_number(self, train: Train) -> None:
        wild = ("--optim.lr", "1e30", "--optim.max-grad-norm", "0", "--validate-every", "0")
        with pytest.raises(
            UserError, match=r"the loss became .*optim.max_grad_norm; no checkpoint was saved, so .* begins anew$"
        ):
            train(*wild)
        train("--steps", "5", "--validate-every", "0", name="begun")
        allowed = ("--allow-change", "steps", "optim.lr", "optim.max_grad_norm")
        with pytest.raises(UserError, match=r"the loss became .* resumes from the checkpoint of step 5$"):
            train(*wild, *allowed, name="begun")

    def test_a_second_process_of_the_same_run(self, train: Train) -> None:
        from common.lock import file_lock

        folder = train("--steps", "5")
        with file_lock(folder, "a test"), pytest.raises(ValueError, match="another training run is writing to"):
            train("--steps", "10", "--allow-change", "steps")


def test_what_models_and_spaces_refuse_is_a_users_error(tmp_path: Path) -> None:
    """They know nothing of ours, and raise ValueError."""
    from pipelines import tune  # imports Ray

    with pytest.raises(UserError, match="unknown space 'stats'"):
        tune.main(["stats", "--root", str(tmp_path)])
    with pytest.raises(UserError, match=r"model\.states is 0"):
        with_fields(PRESETS["demo-rec"], {"model.states": 0})
    values = to_json(PRESETS["demo-rec"])
    for model, sentence in (
        ({"name": "rnn"}, "model 'rnn' is unknown"),
        ({"name": "rec", "odd": 1}, "no field 'odd'"),
        ({"name": "mixers", "layers": ["gru"]}, r"layers is .*: it must be a list, each one of delta, "),
    ):
        (tmp_path / "run.json").write_text(json.dumps({**values, "model": model}))
        with pytest.raises(UserError, match=sentence):
            presets_with(PRESETS, [str(tmp_path / "run.json")])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": 2.5}, "steps is 2.5: it must be a whole number"),
        ({"optim.name": "sgd"}, "optim.name is 'sgd': it must be one of adamw, adafactor"),
        ({"precision": "fp16"}, "precision is 'fp16': it must be one of auto, float32, bfloat16"),
        ({"optim.betas": [0.9]}, r"optim.betas is \(0.9,\): it must be a list of 2, each a number"),
        ({"num_workers": 1.5}, "num_workers is 1.5: it must be a whole number or a word"),
        ({"checkpoint.keep": True}, "checkpoint.keep is True: it must be a whole number"),
        ({"data.corpus": 3}, "data.corpus is 3: it must be a word"),
        ({"placement.strategy": "far"}, "placement.strategy is 'far': it must be one of pack, spread, strict-spread"),
        ({"allow_change": [1]}, r"allow_change is \(1,\): it must be a list, each a word"),
        ({"optim": 1}, "has no field 'optim': did you mean 'optim.lr'"),
        ({"model": 1}, "model cannot be set: another model has other fields"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_wherever_it_comes_from(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        with_fields(PRESETS["demo-rec"], values)
    (field, value), config = *values.items(), to_json(PRESETS["demo-rec"])
    part, _, name = field.rpartition(".")
    if isinstance(config.get(field), dict):
        return
    (config[part] if part else config)[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        presets_with(PRESETS, [str(tmp_path / "config.json")])


def test_one_value_is_a_list_of_one() -> None:
    assert to_json(with_fields(PRESETS["demo-rec"], {"model.recurrent_layers": 2}))["model"]["recurrent_layers"] == [2]


def test_a_trial_fails_for_a_users_error_alone(store: Path, tmp_path: Path) -> None:
    """Whatever else ends it is raised: the sweep starts it again."""
    from pipelines.sweeps.trial import train_trial  # imports Ray

    words = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", "trial"]
    config = cli.parse_preset(PRESETS, [*TINY, *words], "").located()
    diverging = with_fields(config, {"run": "diverging", "optim.lr": 1e38, "optim.max_grad_norm": 0.0})
    outcome, said = train_trial(diverging, World.alone(), lambda: False)
    assert outcome == "failed" and "lower optim.lr" in said
    missing = replace(config, data=replace(config.data, store=str(tmp_path / "nowhere")))
    outcome, said = train_trial(missing, World.alone(), lambda: False)
    assert outcome == "retryable" and "nowhere" in said
    (RunFolder.of(config).folder / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        train_trial(config, World.alone(), lambda: False)


def test_checkpoints_hold_no_pickle(train: Train) -> None:
    files = contents(train("--steps", "5") / "checkpoints")
    assert {Path(name).suffix for name in files} == {".safetensors", ".json"}
    assert json.loads(files["step-00000005/checkpoint.json"])["step"] == 5


def test_the_health_of_the_recurrence_is_logged(train: Train) -> None:
    points = [record.metrics for record in records_with(train("--steps", "6"), "train/bits_per_token")]
    assert len(points) == 6
    for name in ("state_share", "gate_openness", "state_change"):
        assert all(0 < point[f"recurrence/{name}"] < 10 for point in points)


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


def test_a_model_that_ignores_its_state_is_told_of(
    train: Train, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "MIN_SHARE", 0.999)  # any share is too little
        train("--steps", "8", "--log-every", "2", "--tracking.backend", "mlflow", "--tracking.system-metrics", "off")
    told = [line for line in capsys.readouterr().out.splitlines() if "ignore its recurrent State" in line]
    assert len(told) == 1 and told[0].startswith("step 6:")  # after warm-up, and not at every point
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert "ignore its recurrent State" in run.data.tags["recurrence"]


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


@pytest.mark.long
def test_compiled_equals_uncompiled(train: Train) -> None:
    sizes = (
        "--model.layers",
        "1",
        "--model.recurrent-layers",
        "1",
        "--data.segment-length",
        "16",
        "--model.dropout",
        "0",
    )
    words = (
        *sizes,
        "--steps",
        "6",
        "--log-every",
        "3",
        "--validate-every",
        "0",
    )  # steps 3 and 6 are watched
    compiled = train(*words, "--compile", "layer", name="compiled")
    plain = train(*words, name="plain")
    assert [step for step, _ in curve(compiled)] == [step for step, _ in curve(plain)] == [3, 6]
    for (_, theirs), (_, ours) in zip(curve(compiled), curve(plain), strict=True):
        assert theirs.keys() == ours.keys() and "recurrence/state_share" in ours and "train/mfu" not in ours
        assert theirs == pytest.approx(ours, rel=1e-4)
    assert contents(compiled / "checkpoints").keys() == contents(plain / "checkpoints").keys()


def test_each_process_and_each_move_draws_dropout_of_its_own() -> None:
    def drawn(rank: int, step: int) -> float:
        with torch.random.fork_rng():
            seed_dropout(7, World(rank, 2, torch.device("cpu")), step)
            return float(torch.rand(()))

    assert len({drawn(rank, step) for rank in range(2) for step in (0, 20)}) == 4


def test_lanes_that_begin_anew_begin_the_curves_next_point_too(train: Train) -> None:
    words = ("--log-every", "4", "--checkpoint.every", "5", "--validate-every", "0", "--optim.lr", "1e-15")
    folder = train(*words, "--steps", "10")
    forget(folder, 10)
    train(*words, "--steps", "10", "--seed", "7", "--allow-change", "seed")
    bits = {r.step: r.metrics["train/bits_per_token"] for r in read_records(folder / "metrics.jsonl")}
    assert bits[8] == pytest.approx(bits[4], rel=0.1)  # of steps 6 to 8 alone
