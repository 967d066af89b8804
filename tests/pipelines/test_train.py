"""Training in this process: its curve and speed, resumed bit for bit, past damaged checkpoints, with changed fields, compiled."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.errors import UserError, sentence
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint, digest_json
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.saving import Saver
from pipelines.config.run import DataConfig, OptimConfig
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.presets import PRESETS
from pipelines.tracking.metrics_file import read_records
from pipelines.train import main
from pipelines.training import loop, utilisation
from pipelines.training.optim import build_optimizer
from pipelines.training.restoring import restore_lanes, seed_dropout
from pipelines.training.utilisation import Speed
from pipelines.training.world import World
from recur_models import health
from tests.ordinary_user import let_all_read, ordinary_user
from tests.small_corpus import contents
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


def test_the_announcement_says_when_the_warm_up_outlasts_the_steps(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for warmup, is_said in (("2", False), ("3", True)):
        train("--steps", "2", "--schedule.warmup-steps", warmup, name=f"warm-{warmup}")
        assert ("  note    the warm-up has 3 steps, so the learning rate stays" in capsys.readouterr().out) == is_said


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
    """By a clock that each of them sets forward by 1,000 s."""
    ahead = 0.0

    def slow(function: Callable[..., object]) -> Callable[..., object]:
        def slowly(*args: object, **kwargs: object) -> object:
            nonlocal ahead
            ahead += 1000.0
            return function(*args, **kwargs)

        return slowly

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilisation, "time", clock)
        patch.setattr(Saver, "save", slow(Saver.save))
        patch.setattr(loop, "validate", slow(loop.validate))
        words = ("--steps", "12", "--log-every", "4", "--checkpoint.every", "6", "--validate-every", "6")
        folder = train(*words)
    speeds = [record.metrics["train/tokens_per_second"] for record in records_with(folder, "train/epoch")]
    # Four steps of four lanes, in less than one of the pauses.
    assert len(speeds) == 3 and min(speeds) > 4 * 4 * 32 / 1000.0


def test_the_speed_counts_no_padding(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    metrics = Speed.metrics

    def counting(speed: Speed, tokens: int) -> dict[str, float]:
        counted.append(tokens)
        return metrics(speed, tokens)

    monkeypatch.setattr(Speed, "metrics", counting)
    folder = train("--steps", "8", "--log-every", "4")
    logged = [record.metrics["train/tokens"] for record in records_with(folder, "train/epoch")]
    assert counted == logged
    assert logged[-1] < 8 * 4 * 32, "documents end within blocks"


def test_a_checkpoint_of_another_version_is_refused(train: Train) -> None:
    folder = train("--steps", "10")
    path = folder / "checkpoints" / "step-00000010" / "checkpoint.json"
    meta = {**json.loads(path.read_text()), "schema": 1}
    path.write_text(json.dumps({**meta, "digest": digest_json(meta)}))
    with pytest.raises(
        CheckpointError, match="was written by another version of Throughline: train under another --run"
    ):
        Checkpoint.open(path.parent)


def test_a_finished_run_is_left_alone(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train()
    before = contents(folder)
    capsys.readouterr()
    train()
    assert "nothing to do" in capsys.readouterr().out
    assert contents(folder) == before


def test_a_finished_run_of_another_user_is_no_error(
    store: Path, reachable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(store, reachable / "store")
    where = ["--data.store", str(reachable / "store"), "--root", str(reachable / "runs"), "--run", "run"]
    words = [*TINY, *where, "--validate-every", "0"]
    main([*words, "--steps", "2"])
    let_all_read(reachable)
    capsys.readouterr()
    with ordinary_user():
        assert main([*words, "--steps", "2"]) == 0
        assert "nothing to do" in capsys.readouterr().out
        with pytest.raises(PermissionError) as error:
            main([*words, "--steps", "4", "--allow-change", "steps"])
    assert sentence(error.value).endswith("Permission denied: ask its owner for access, or choose another place")


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
    gone = ("--optim.max-grad-norm", "1e-20")
    gone += ("--allow-change", "steps", "optim.recurrent_lr_scale", "optim.max_grad_norm")

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


def test_training_steps_of_one_segment_read_what_half_as_many_of_two_read(train: Train) -> None:
    words = ("--optim.lr", "0", "--data.lanes", "1", "--model.dropout", "0", "--schedule.name", "constant")
    once = train(*words, "--data.segment-length", "32", "--steps", "24", "--log-every", "2", name="once")
    twice = train(*words, "--data.segment-length", "64", "--steps", "12", "--log-every", "1", name="twice")
    ours, theirs = (values_of(folder, "train/bits_per_token") for folder in (once, twice))
    assert len(ours) == 12
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


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


def test_checkpoints_hold_no_pickle(train: Train) -> None:
    files = contents(train("--steps", "5") / "checkpoints")
    assert {Path(name).suffix for name in files} == {".safetensors", ".json"}
    assert json.loads(files["step-00000005/checkpoint.json"])["step"] == 5


def test_the_health_of_the_recurrence_is_logged(train: Train) -> None:
    points = [record.metrics for record in records_with(train("--steps", "6"), "train/bits_per_token")]
    assert len(points) == 6
    for name in ("state_share", "gate_openness", "state_change"):
        assert all(0 < point[f"recurrence/{name}"] < 10 for point in points)


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


@pytest.mark.long
def test_compiled_equals_uncompiled(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--model.layers", "1", "--model.recurrent-layers", "1", "--data.segment-length", "16")
    steps = ("--steps", "6", "--log-every", "3", "--validate-every", "0")  # steps 3 and 6 are watched
    words = (*sizes, *steps, "--model.dropout", "0")
    compiled = train(*words, "--compile", "layer", name="compiled")
    assert "  compile  each layer, in the first step" in capsys.readouterr().out
    plain = train(*words, name="plain")
    assert "  compile" not in capsys.readouterr().out
    assert [step for step, _ in curve(compiled)] == [step for step, _ in curve(plain)] == [3, 6]
    for (_, theirs), (_, ours) in zip(curve(compiled), curve(plain), strict=True):
        assert theirs.keys() == ours.keys() and "recurrence/state_share" in ours and "train/mfu" not in ours
        assert theirs == pytest.approx(ours, rel=1e-4)
    assert contents(compiled / "checkpoints").keys() == contents(plain / "checkpoints").keys()


def test_a_missing_compiler_is_named_with_its_remedy(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(UserError, match="there is no no-compiler: install it, name another one in the environment"):
        train("--compile", "layer", "--steps", "1")


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
