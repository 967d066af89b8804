"""Sweeps on Ray Tune: equal cost, early stopping, kills, populations, searchers, budgets. The driver is killed at a metric."""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune as ray_tune
from ray.tune.stopper import NoopStopper, Stopper

from common.errors import UserError
from common.places import Place
from common.uris import PlaceError
from data_prep.manifest import MissingSplit, StoreError
from pipelines import train as training
from pipelines import tune
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_file import presets_with
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError
from pipelines.config.dotted import options, with_fields
from pipelines.config.run import TrackingConfig, to_json
from pipelines.inference.registering import register_winner
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import Trial, read_sweep, read_trial
from pipelines.sweeps import run_sweep
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.command import read_command
from pipelines.sweeps.offering import QueueSearcher
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.running import conclude
from pipelines.sweeps.scheduling import Keys, RecordedScheduler
from pipelines.sweeps.sweep import BUDGET, Budget, Sweep
from pipelines.sweeps.tracking import SweepTracking
from pipelines.sweeps.trial import POINTER
from pipelines.sweeps.trial_loop import outcome_of
from pipelines.sweeps.tuner import Watch
from pipelines.terminal import cli
from pipelines.training.stopping import Stop
from tests.ray_sweeps import ASHA, Here, Killed, ends, results
from tests.small_corpus import contents
from tests.small_runs import TINY
from tests.tune_spaces.test_named import OWN
from tune_spaces.drawing import METRIC, Searcher

Make = Callable[..., Here]


@pytest.fixture
def here(store: Path, tmp_path: Path) -> Make:
    def make(space: str, *extra: str, name: str = "sweep") -> Here:
        tiny = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name, "--num-workers", "1"]
        return Here([space, *TINY[1:], *tiny, "--num-cpus", "1", *extra])

    return make


GRID = ("optim.lr=1e-3,1e-2", "--search", "grid", "--scheduler", "none", "--model.dropout", "0")
PAUSING = ("--validate-every", "5", "--num-cpus", "4", "--placement.cpus", "3")
"""One trial at a time, so that all share one actor."""
PBT = ("optim.lr=1e-7..1e-2", "--scheduler", "pbt", "--num-samples", "3", *PAUSING)
OPTUNA = ("lr", "--search", "optuna", "--scheduler", "none", "--num-samples", "3", "--steps", "10")


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_grid_the_preset_itself_the_winner_and_tunes_own_results(
    here: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made = here("optim.lr=1e-3,1e38", *GRID[1:], "--optim.max-grad-norm", "0", "--metric", "validation/bits_per_byte")
    done = made.done()
    sweep = made.sweep
    trials = list(sweep.trials.values())
    assert [trial.values for trial in trials] == [{"optim.lr": 0.002}, {"optim.lr": 1e-3}, {"optim.lr": 1e38}]
    assert [trial.status for trial in trials] == ["finished", "finished", "failed"]
    assert trials[0].baseline and "the loss became" in trials[2].reason
    best = sweep.best()
    assert best and best.best
    for trial in trials[:2]:
        assert (trial.steps, trial.tokens) == (20, 20 * 4 * 32)
        checkpoint = Checkpoint.open(sweep.run_folder(trial).folder / "checkpoints" / "step-00000020")
        assert trial.last and checkpoint.meta["validation"]["best_by"] == trial.last.value
        assert checkpoint.meta["config"]["optim"]["lr"] == trial.values["optim.lr"]
    for path in (sweep.folder / "best.json", sweep.run_folder(trials[0]).folder / "trial.json"):
        assert "validation/bits_per_byte" in path.read_text() and "bits_per_token" not in path.read_text()
    found = read_sweep(sweep.folder)
    assert found.scored[0].best_value == best.best.value == found.scored[0].points[-1].value

    grid = done.results
    assert type(grid) is ray_tune.ResultGrid and len(grid) == 3
    assert [result.metrics and result.metrics["trial"] for result in grid] == [trial.id for trial in trials]
    first = grid.get_best_result()
    assert first.config and first.config["optim.lr"] == best.values["optim.lr"]
    assert first.metrics and (first.metrics["trial"], first.metrics["step"]) == (best.id, 20)
    assert first.metrics_dataframe is not None and list(first.metrics_dataframe["step"]) == [10, 20]

    saved = json.loads((sweep.folder / "best.json").read_text())
    assert (saved["trial"], saved["values"], saved["step"]) == (best.id, best.values, best.best.step)
    assert f"best: trial {best.id}, {best.best.value:.4f} at step {best.best.step}" in capsys.readouterr().out
    training.main([str(sweep.folder / "best.json"), "--run", "from-file", "--num-workers", "0"])
    typed = saved["command"].split()
    assert typed[:4] == ["python", "-m", "pipelines.train", "small-rec"]
    training.main([*typed[3:], "--num-workers", "0"])
    for name in ("from-file", "sweep-best"):
        again = Checkpoint.open(Path(sweep.config.train.root) / name / "checkpoints" / "step-00000020")
        assert again.meta["validation"]["best_by"] == best.best.value


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_killed_twice_and_files_damaged_it_ends_as_if_nothing_had_happened(
    here: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = here(*ASHA, name="calm").run()
    for metrics in (4, 7):
        with pytest.raises(Killed):
            here(*ASHA, name="killed").run(kill_after=metrics)
    killed = here(*ASHA, name="killed")
    first, second, *_ = (killed.sweep.run_folder(trial).folder / "trial.json" for trial in killed.sweep.trials.values())
    first.write_text(first.read_text()[:40])
    second.unlink()
    known = results(killed.sweep)
    capsys.readouterr()
    killed = here(*ASHA, name="killed")
    grid = killed.done().results
    assert f"{first} is damaged: it is made again of results.jsonl" in capsys.readouterr().err
    assert results(killed.sweep)[: len(known)] == known
    assert ends(killed.sweep) == ends(calm) == ends(here(*ASHA, name="calm").sweep)
    assert ends(killed.sweep) == ends(here(*ASHA, name="killed").sweep)
    assert results(killed.sweep) == results(calm)
    counted = [(name, step) for name, step, *_ in results(killed.sweep)]
    assert len(counted) == len(set(counted))
    for trial in calm.trials.values():
        name = f"step-{trial.steps:08d}"
        ours, theirs = (
            contents(sweep.run_folder(trial).folder / "checkpoints" / name) for sweep in (killed.sweep, calm)
        )
        weights = {file: data for file, data in theirs.items() if file.endswith(".safetensors")}
        assert {file: data for file, data in ours.items() if file.endswith(".safetensors")} == weights != {}
    told = {row["trial"]: row["step"] for row in grid.get_dataframe().to_dict("records")}
    assert told == {trial.id: trial.steps for trial in calm.trials.values()}
    check_stopped(calm)


def check_stopped(sweep: Sweep) -> None:
    """ASHA has stopped the worse ones, but for the preset; they saved at the step of the decision, and say why."""
    stopped = [trial for trial in sweep.trials.values() if trial.status == "stopped"]
    assert {trial.values["optim.lr"] for trial in stopped} >= {1e-7, 1e-6}
    for trial in stopped:
        assert trial.last and f"asha stopped it at step {trial.steps} (" in trial.reason
        assert (
            Checkpoint.open(sweep.run_folder(trial).folder / "checkpoints" / f"step-{trial.steps:08d}").step
            == trial.steps
        )
    assert [name for name, *_, decision in results(sweep) if decision == "STOP"] == [trial.id for trial in stopped]
    baseline = sweep.trials["000"]
    assert baseline.baseline and baseline.status == "finished"


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_plateau_stops_trials_and_a_scheduler_by_its_path_too(here: Make) -> None:
    plateau = "ray.tune.stopper:TrialPlateauStopper(std=9, num_results=2, grace_period=2)"
    above = "tests.tune_spaces.test_named:StopsAbove(limit=8.4)"
    words = ("optim.lr=1e-7,3e-3", "--search", "grid", "--validate-every", "2", "--stop", plateau, "--scheduler", above)
    sweep = here(*words).run()
    assert "StopsAbove(limit=8.4) stopped it at step 2" in sweep.trials["001"].reason
    assert "TrialPlateauStopper" in sweep.trials["002"].reason and sweep.trials["002"].steps == 4
    assert sweep.trials["000"].status == "finished"


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_searcher_keeps_what_it_drew_and_continues_from_what_is_known(here: Make) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(Killed):
        here(*OPTUNA).run(kill_after=1)
    before = here(*OPTUNA).sweep.drawn()
    sweep = here(*OPTUNA).run()
    assert [trial.baseline for trial in sweep.trials.values()] == [True, False, False]
    assert {trial.status for trial in sweep.trials.values()} == {"finished"}
    assert sweep.drawn()[: len(before)] == before
    assert [draw.values for draw in sweep.drawn()] == [trial.values for trial in list(sweep.trials.values())[1:]]
    counted = [(name, step) for name, step, *_ in results(sweep)]
    assert len(counted) == len(set(counted)) == 3


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_population_exploits_and_resumes_from_its_newest_checkpoints(
    here: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        here(*PBT).run(kill_after=6)
    assert "After a kill each trial continues from its newest checkpoint" in capsys.readouterr().out
    again = here(*PBT)
    newest = {name: again.sweep.run_folder(trial).newest_step() for name, trial in again.sweep.trials.items()}
    known = results(again.sweep)
    sweep = again.run()
    assert {(trial.status, trial.steps) for trial in sweep.trials.values()} == {("finished", 20)}
    after = results(sweep)[len(known) :]
    assert all(step > newest[name] for name, step, *_ in after)  # nothing is trained twice
    exploited = [(trial, each) for trial in sweep.trials.values() for each in trial.exploited]
    assert exploited
    for trial, each in exploited:
        assert each["step"] in (5, 10, 15) and each["from"] in sweep.trials
        later = Checkpoint.open(sweep.run_folder(trial).folder / "checkpoints" / "step-00000020")
        assert later.meta["config"]["optim"]["lr"] == trial.values["optim.lr"]
    told = defaultdict(list)
    for name, step, *_ in results(sweep):
        told[name].append(step)
    assert all(steps == sorted(set(steps)) for steps in told.values())


class TuneTrial:
    """What Tune passes of a trial when it starts one: its name, its config, and the checkpoint that it continues from."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.config = trial.values
        self.checkpoint = ray_tune.Checkpoint(str(folder))
        self._name = trial.id

    def __str__(self) -> str:
        return self._name


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_an_exploit_that_draws_the_same_values_again_is_recorded_once(here: Make, tmp_path: Path) -> None:
    sweep = here(*PBT).sweep
    better, worse = list(sweep.trials.values())[:2]
    pointer = tmp_path / "pointer"
    pointer.mkdir()
    (pointer / POINTER).write_text(json.dumps({"trial": better.id, "step": 5}))
    record = SweepRecord(sweep)
    watch = Watch(record, Stop(sweep.run.place), TrialCapacity(sweep.config), Keys())
    for trial in (better, worse):
        record.add(trial, 5, 2.0, "CONTINUE")
        watch.on_trial_start(0, [], TuneTrial(trial, pointer))
    assert better.best and not better.exploited
    copied = [{"step": 5, "from": better.id, "values": worse.values}]
    assert worse.exploited == copied and worse.best is None, "its value is of weights that it no longer has"
    record.add(worse, 10, 1.0, "CONTINUE")
    watch.on_trial_start(1, [], TuneTrial(worse, pointer))  # its actor died, and starts again from the same checkpoint
    assert worse.exploited == copied and worse.best
    assert SweepRecord(here(*PBT).sweep).sweep.trials[worse.id].exploited == copied


@pytest.mark.parametrize(
    "error", [MissingSplit("gone"), StoreError("damaged"), PlaceError("no bucket"), SaveError("full")]
)
def test_a_trial_whose_surroundings_fail_is_trained_again(error: UserError) -> None:
    assert outcome_of(error) == "retryable" and outcome_of(UserError("its config")) == "failed"


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_hyperband_pauses_trials_and_lets_the_best_continue(here: Make) -> None:
    words = ("optim.lr=1e-7,1e-6,3e-3", "--search", "grid", "--rung-tokens", "640", *PAUSING)
    path = "ray.tune.schedulers:HyperBandScheduler(reduction_factor=2)"
    brackets = (*words, "--baseline", "no", "--scheduler", path)
    with pytest.raises(Killed):
        here(*brackets).run(kill_after=3)
    sweep = here(*brackets).run()
    assert all(trial.over for trial in sweep.trials.values())
    assert sweep.trials["002"].status == "finished"


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_budget_is_kept_and_a_larger_one_continues(here: Make) -> None:
    words = (*GRID, "--steps", "100", "--validate-every", "50", "--checkpoint.every", "50")
    late = here(*words, "--time-budget-s", "1e-9").run()  # spent before anything begins, on any machine
    assert [trial.status for trial in late.trials.values()] == ["pending"] * 3
    budget = 100 * 128 + 1000
    some = here(*words, "--token-budget", str(budget), "--max-trials", "2").run()
    assert budget <= sum(trial.tokens for trial in some.trials.values()) < 2 * 100 * 128
    assert [trial.status for trial in some.trials.values()] == ["finished", "stopped", "pending"]
    assert some.trials["001"].reason == f"the sweep's budget of {budget:,} tokens is spent"
    assert {trial.status for trial in here(*words).run().trials.values()} == {"finished"}


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_searcher_may_have_no_more_or_nothing_that_fits(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    space = "model.window=8,16+data.segment_length=32,16"  # of which the second two do not fit together
    words = (space, "--search", f"{OWN}:First(often=2)", "--num-samples", "9", "--steps", "10")
    assert [trial.values["model.window"] for trial in here(*words).run().trials.values()] == [8, 8, 8]
    misfits = (space, "--search", f"{OWN}:First(often=999, place=1)", "--baseline", "no")
    with pytest.raises(UserError, match="has suggested no trial: vary something else"):
        here(*misfits, name="none").run()
    assert "suggests nothing more that fits small-rec" in capsys.readouterr().out


class Second(Stopper):
    """Ends the sweep with its second metric."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.told += 1
        return self.told > 1

    def stop_all(self) -> bool:
        return self.told > 1


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_stopper_that_ends_the_sweep_stops_each_at_its_next_metric_but_for_the_preset(here: Make) -> None:
    words = ("optim.lr=1e-3,3e-3", "--search", "grid", "--scheduler", "none", "--stop", f"{__name__}:Second")
    sweep = here(*words).run()
    assert [trial.status for trial in sweep.trials.values()] == ["finished", "stopped", "pending"]


def test_a_person_who_stops_a_trial_is_heard_though_its_workers_die(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    Stop(record.sweep.run_folder(trial).folder).ask()
    record.died(trial, "a worker died")
    record.ended(trial, "stopped")
    assert trial.status == "stopped" and "a file `stop`" in trial.reason


def test_workers_that_die_without_progress_fail_their_trial(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    for _ in range(record.run_of(trial).max_failures + 1):
        record.died(trial, "a worker died (no memory)")
    record.ended(trial, "stopped")
    assert (trial.status, trial.reason) == ("failed", "a worker died (no memory)")
    assert capsys.readouterr().out.count("it starts again from the first step") == record.run_of(trial).max_failures


def test_a_trial_that_starts_again_hears_that_it_is_to_leave(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    for _ in range(record.run_of(trial).max_failures + 1):
        record.died(trial, "a worker died (no memory)")
        record.begin(trial)  # as Tune says of each new actor
    assert Stop(record.sweep.run_folder(trial).place).asked()
    record.ended(trial, "stopped")
    assert (trial.status, trial.reason) == ("failed", "a worker died (no memory)")


def test_a_trials_seconds_are_those_in_which_it_trains(here: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("pipelines.sweeps.record.time.monotonic", lambda: clock[0])
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    for end in (
        lambda: record.died(trial, "a worker died"),
        lambda: record.add(trial, 10, 1.0, "PAUSE"),
        lambda: record.ended(trial, "finished"),
    ):
        record.begin(trial)
        clock[0] += 2.0
        end()
        clock[0] += 100.0
    assert trial.seconds == 6.0


def test_the_seconds_in_which_a_trial_waits_do_not_count_where_it_never_begins_again(
    here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("pipelines.sweeps.record.time.monotonic", lambda: clock[0])
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    clock[0] += 2.0
    record.add(trial, 10, 1.0, "PAUSE")
    clock[0] += 100.0
    record.ended(trial, "stopped")  # as HyperBand stops a paused trial
    assert trial.seconds == 2.0


class Told(Searcher):
    """Keeps the value with which each trial ended."""

    def __init__(self, domains: dict[str, Any]) -> None:
        super().__init__("optuna", domains, seed=0)
        self.ends: dict[str, float | None] = {}

    def complete(self, trial: str, time: int, value: float | None) -> None:
        self.ends[trial] = value


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ("1e-3,1e38,1e-2", ("--scheduler", "median", "--rung-tokens", "512")),
        ("1e-3,1e-2,1e38", ("--scheduler", "pbt", "--steps", "10", *PAUSING)),
    ],
)
def test_a_trial_that_fails_holds_up_no_other(here: Make, rates: str, words: tuple[str, ...]) -> None:
    """The median rule must not count its end as a metric, and a population not wait for it if it was the last to come."""
    space = (f"optim.lr={rates}", "--search", "grid", "--optim.max-grad-norm", "0", "--validate-every", "5")
    for _ in range(2):  # the second time from what is recorded
        sweep = here(*space, *words, "--baseline", "no").run()
        status = {trial.values["optim.lr"]: trial.status for trial in sweep.trials.values()}
        assert status.pop(1e38) == "failed"
        assert "finished" in status.values() and set(status.values()) <= {"finished", "stopped"}


@pytest.mark.parametrize("pace", ["side by side", "replayed in another order"])
def test_the_median_rule_hears_no_more_of_a_trial_that_it_stopped(here: Make, pace: str) -> None:
    """The preset is not stopped early, and a recorded decision holds; else the rule would fail at the next metric."""

    class Named:
        def __init__(self, name: str) -> None:
            self.name = self.trial_id = name

        def __str__(self) -> str:
            return self.name

    made = here("optim.lr=1e-3,1e-2,1e-4", "--search", "grid", "--scheduler", "median", "--rung-tokens", "128")
    trials = [Named(name) for name in made.sweep.trials]
    tuning = SimpleNamespace(get_live_trials=lambda: trials)
    values = {trial.name: 9.0 if trial.name == "000" else 5.0 for trial in trials}

    def started() -> Callable[[Any, int], str]:
        scheduler = RecordedScheduler(
            made.config.make_scheduler(made.domains), SweepRecord(made.sweep), NoopStopper(), Keys()
        )
        scheduler.set_search_properties(made.config.metric, "min")
        for trial in trials:
            scheduler.on_trial_add(tuning, trial)

        def decide(trial: Any, step: int) -> str:
            result = {"step": step, "tokens": 128 * step, METRIC: values[trial.name], "training_iteration": step}
            return scheduler.on_trial_result(tuning, trial, result)

        return decide

    decide = started()
    if pace != "side by side":  # the bad one alone, when there was nothing to compare it with
        assert {decide(trial, step) for trial in trials for step in range(1, 5)} == {"CONTINUE"}
        decide = started()
    for step in range(1, 6):
        assert {decide(trial, step) for trial in reversed(trials)} == {"CONTINUE"}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_searcher_is_told_that_a_trial_has_failed(here: Make) -> None:
    made = here(*GRID, "--num-cpus", "2")
    record = SweepRecord(made.sweep)
    told = Told(made.domains)
    queue = QueueSearcher(record, told, NoopStopper(), TrialCapacity(made.config), [])
    for name in ("first", "second"):
        trial = made.sweep.trials[queue.suggest(name)["trial"]]
        record.begin(trial)
        record.add(trial, 10, 5.0, "CONTINUE")
    queue.on_trial_complete("first", {"outcome": "finished", "done": True})
    queue.on_trial_complete("second", {"outcome": "failed", "done": True})
    assert list(told.ends.values()) == [5.0, None]


def test_a_searcher_is_asked_for_as_many_trials_as_there_is_room_for(here: Make) -> None:
    """Also if Tune asks several times before it shows the trials that it has made."""
    made = here("lr", "--search", "optuna", "--num-samples", "9", "--max-concurrent-trials", "3")
    room: Any = SimpleNamespace(at_once=lambda: 3)
    trials = [SimpleNamespace(status=status, is_finished=lambda: False) for status in ("RUNNING", "RUNNING")]
    shown: list[Any] = []
    queue = QueueSearcher(SweepRecord(made.sweep), Told(made.domains), NoopStopper(), room, shown)
    first = [queue.suggest("a"), queue.suggest("b")]
    shown += trials
    assert None not in first and queue.suggest("c") is not None and queue.suggest("d") is None


def test_only_the_options_limit_how_many_trials_run_at_once(here: Make) -> None:
    """Machines that join the cluster make room for more."""
    assert here("lr", "--num-cpus", "3", name="a").config.most_at_once == 3
    assert here("lr", "--num-cpus", "3", "--max-concurrent-trials", "2", name="b").config.most_at_once == 2


def test_a_population_of_a_grid_counts_only_what_fits_together(here: Make) -> None:
    words = ("model.window=8,64+data.segment_length=32,128", "--search", "grid", "--baseline", "no")
    halving = ("--scheduler", "ray.tune.schedulers:HyperBandScheduler")
    assert len(here(*words, *halving, "--max-trials", "3").sweep.trials) == 3
    with pytest.raises(UserError, match="waits until all 3 trials can be compared, and --max-trials 2"):
        here(*words, *halving, "--max-trials", "2", name="fewer")


def test_a_budget_that_is_spent_says_what_it_leaves(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    spent = "the sweep's budget of 3,000 tokens is spent"
    sweep = here("model.window=8,16", "--search", f"{OWN}:First(often=9)", "--num-samples", "3").sweep
    record = SweepRecord(sweep)
    record.begin(sweep.trials["000"])
    record.add(sweep.trials["000"], 20, 5.0, "CONTINUE")
    record.ended(sweep.trials["000"], "finished")
    conclude(sweep, spent)
    assert f"{spent}: 2 trials are not done" in capsys.readouterr().out  # which have not been drawn


@pytest.mark.parametrize(("equal", "steps"), [("tokens", [20, 40, 10]), ("steps", [20, 20, 20])])
def test_trials_cost_the_same(here: Make, equal: str, steps: list[int]) -> None:
    trials = here("data.segment_length=32,16,64", "--search", "grid", "--equalize", equal)
    runs = [trials.sweep.run_of(trial) for trial in trials.sweep.trials.values()]
    assert [run.steps for run in runs] == steps
    wide = here("model.d_model=16,64", "--search", "grid", "--equalize", "flops", name="wide")
    small, large = (wide.sweep.run_of(trial) for trial in wide.sweep.trials.values())
    flops = [run.steps * run.tokens_per_step * wide.sweep.flops_per_token(run) for run in (small, large)]
    assert large.steps < small.steps and flops[1] == pytest.approx(flops[0], rel=0.5 / large.steps)


def test_lines_that_are_no_events_and_copies_of_trials_are_passed_over(here: Make) -> None:
    sweep = here(*GRID).sweep
    SweepRecord(sweep).add(sweep.trials["001"], 10, 5.0, "CONTINUE")
    statuses = {name: trial.status for name, trial in sweep.trials.items()}
    with open(sweep.folder / "results.jsonl", "a") as file:
        file.write('null\n{"a": 1}\n')
    shutil.copytree(sweep.folder / "trials" / "001", sweep.folder / "trials" / "old-001")
    again = here(*GRID).sweep
    assert {name: trial.status for name, trial in again.trials.items()} == statuses


@pytest.mark.parametrize("name", ["small-rec", "pg19-memorizing-64k", "pg19-feedback-fixed-skip", "study-xl"])
def test_a_run_is_its_preset_and_the_words_that_changed_it(name: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    other = with_fields(
        preset, {"optim.betas": [0.8, 0.99], "steps": 7, "tracking.experiment": "a b", "model.dropout": 0.1}
    )
    assert cli.parse_preset(PRESETS, [name, *options(other, preset)], "") == other
    file = tmp_path / "some.json"
    for values in (to_json(other), {"config": to_json(other), "trial": "003"}):
        file.write_text(json.dumps(values))
        assert presets_with(PRESETS, [str(file)])[str(file)] == other


def test_only_a_first_word_names_a_file() -> None:
    for words in ([], ["--data.store=runs/nowhere", "small-rec"], ["small-rec", "runs/nowhere"]):
        assert presets_with(PRESETS, words) is PRESETS


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text('{"run": "a", "model": {"name": "rec"}, "stepz": 3}')
    with pytest.raises(ValueError, match=r"some.json is not a run's config of this version .*stepz"):
        presets_with(PRESETS, [str(file)])
    file.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"some.json is not a run's config of this version .*nested too deeply"):
        presets_with(PRESETS, [str(file)])
    with pytest.raises(ValueError, match=r"has no field 'optim.lrr': did you mean 'optim.lr'"):
        with_fields(PRESETS["small-rec"], {"optim.lrr": 1})
    with pytest.raises(ValueError, match=r"tracking.models is 'figures': it must be one of"):
        with_fields(PRESETS["small-rec"], {"tracking.models": "figures"})
    with pytest.raises(ValueError, match=r"model.name cannot be set: another model has other fields"):
        with_fields(PRESETS["small-rec"], {"model.name": "slide"})


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([], "name a space first"),
        (["--num-samples", "3"], "name a space first"),
        (["lr", "--preset", "small-rek"], "unknown preset 'small-rek': did you mean 'small-rec'"),
        (["lr", "--num-sampels", "3"], "unknown option --num-sampels: did you mean --num-samples"),
        (["lr", "--samples", "3"], "unknown option --samples: did you mean --num-samples?"),
        (["lr", "--concurrent=3"], "unknown option --concurrent: did you mean --max-concurrent-trials?"),
        (["lr", "--num-samples", "0"], "num_samples is 0"),
        (["lr", "--reduction", "1"], "reduction is 1: it must be at least 2"),
        (["lr", "--metric", "accuracy"], "metric"),
        (["lr", "--scheduler", "ahsa"], "scheduler is 'ahsa': did you mean 'asha'"),
        (["lr", "--search", "ray.tune.search:Nothing"], "ray.tune.search:Nothing cannot be made: .*no attribute"),
        (
            ["lr", "--scheduler", "ray.tune.schedulers:ResourceChangingScheduler"],
            "no scheduler that decides by results alone: choose asha",
        ),
        (["lr", "--validate-every", "0"], "no trial would ever be validated"),
        (
            ["lr", "--token-budget", "500"],
            "a budget of 500 tokens ends before the first trial's first result, after 1,280 tokens",
        ),
        (["lr", "--rung-tokens", "99999"], "nothing would be stopped"),
        (["window", "--scheduler", "pbt"], "model.window cannot change in the middle of a run"),
        (["lr+states", "--scheduler", "pbt"], "model.states cannot change in the middle of a run"),
        (
            ["lr", "--scheduler", "pbt", "--num-samples", "4", "--max-trials", "2"],
            "pbt waits until all 4 trials can be compared, and --max-trials 2 leaves some out: lower --num-samples",
        ),
        (
            ["optim.lr=1e-7,1e-3,1e-2", "--search", "grid", "--scheduler", "pbt", "--max-trials", "3"],
            "pbt waits until all 4 trials can be compared, and --max-trials 3 leaves some out",
        ),
        (
            ["lr", "--validate-every", "30", "--token-budget", "2500"],
            "before the first trial's first result, after 2,560 tokens",
        ),
        (["optim.lr=-1,1e-3"], "optim.lr=-1,1e-3 cannot be searched with optim.lr -1.0: .* it must be at least 0"),
        (["optim.lr=1e-3,nan"], "with optim.lr nan: optim.lr is nan: it must be at least 0"),
        (["optim.lr=1e-3..inf"], "the space 'optim.lr=1e-3..inf' does not give values of optim.lr"),
        (
            ["model.dropout=0.1..2", "--search", "optuna"],
            "with model.dropout 2.0: .* it must be at least 0 and below 1",
        ),
        (["model.states=4,0", "--baseline", "no"], "with model.states 0: model.states is 0: it must be at least 1"),
        (
            ["model.window=3,8"],
            "with model.window 3: data.segment_length is 32, not a multiple of the model's block of 3",
        ),
        (["optim.name=adam,adamw", "--search", "grid"], "optim.name is 'adam': it must be one of adamw, adafactor"),
        (["seed=0,9223372036854775808"], "--seed is 9223372036854775808: give less than 9223372036854775808"),
        (["data.corpus=text,pg20"], "pg20"),
        (["validate_every=0,10"], "with validate_every 0: no trial would ever be validated"),
        (
            ["model.name=rec,slide"],
            "model.name cannot be varied: .* vary preset, as in preset=small-rec,small-slide",
        ),
        (["lr", "--data.corpus", "pg20"], "pg20"),
        (["preset=small-rec,small-slide+model.states=4,8"], "cannot be searched with preset small-slide"),
        (["preset=tiny-walk-lstm,tiny-walk-slide", "--preset", "small-rec"], "/random-walk/train"),
        (["preset=small-rec,small-rek"], "unknown preset 'small-rek' in the space .*: did you mean 'small-rec'"),
        (
            ["data.store=a,b", "--equalize", "flops", "--data.store", "nowhere"],
            "--equalize flops counts from the preset's own store, and .*/nowhere/text is not one: choose another --equalize",
        ),
        (["steps=10,20"], "the space varies steps, which --equalize tokens chooses for each trial"),
        (["checkpoint.every=10,20"], "checkpoint.every does not change what a trial learns"),
    ],
)
def test_bad_input_is_one_sentence(command: list[str], sentence: str, store: Path, tmp_path: Path) -> None:
    rest = [*TINY[1:], "--data.store", str(store), "--root", str(tmp_path / "runs")]
    with pytest.raises(ValueError, match=sentence):
        tune.main([command[0], *rest, *command[1:]] if command and command[0][0] != "-" else command)
    assert not (tmp_path / "runs").exists()


def test_a_value_that_fits_beside_others_of_the_space_alone_is_kept(here: Make) -> None:
    """A window of 64 tokens needs a longer segment than the preset's 32."""
    words = ("model.window=8,64+data.segment_length=32,128", "--search", "grid", "--baseline", "no")
    sweep = here(*words).sweep
    assert [tuple(trial.values.values()) for trial in sweep.trials.values()] == [(8, 32), (8, 128), (64, 128)]
    with pytest.raises(UserError, match=r"with model\.window 64: data\.segment_length is 32"):
        here("model.window=8,64+data.segment_length=32,96", *words[1:], name="other")


@pytest.mark.parametrize("further", [["optim.lr=1e-7,2e-3,1e-2"], ["optim.lr=1e-7,1e-3,1e-2", "--baseline", "no"]])
def test_a_population_of_which_no_trial_is_left_out_is_none_to_refuse(here: Make, further: list[str]) -> None:
    """The preset itself is among the combinations, or no trial."""
    assert len(here(*further, "--search", "grid", "--scheduler", "pbt", "--max-trials", "3").sweep.trials) == 3


@pytest.mark.parametrize("space", ["rec-table-5", "rec-table-5+lr", "lr+rec-table-5"])
def test_a_space_keeps_its_defaults_beside_another(space: str) -> None:
    """Those of rec-table-5: it compares vocabularies by bytes."""
    config = read_command([space])
    assert (config.preset, config.search, config.metric) == ("pg19-rec-fixed-skip", "grid", "validation/bits_per_byte")
    assert (read_command(["lr"]).preset, read_command(["lr"]).search) == ("small-rec", "random")


def test_after_a_sweep_a_notebooks_own_tuner_is_heard(store: Path, tmp_path: Path) -> None:
    logger = logging.getLogger("ray.tune")
    before = logger.level
    try:
        logger.setLevel(logging.INFO)
        with pytest.raises(UserError, match="pg20"):
            run_sweep(["lr", *TINY[1:], "--data.store", str(store), "--root", str(tmp_path), "--data.corpus", "pg20"])
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_a_trial_json_with_a_value_of_another_type_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "trial.json"
    trial = Trial("001", {}).to_json("loss")
    for odd in (
        {"steps": "x"},
        {"id": []},
        {"best": {"step": 1, "loss": "x"}},
        {"best": {"step": math.inf, "loss": 1.0}},
        {"last": {"step": None, "loss": 1.0}},
        {"values": [1]},
        {"exploited": 5},
        {"exploited": [5]},
        {"tokens": "x"},
        {"seconds": None},
    ):
        path.write_text(json.dumps(trial | odd))
        with pytest.raises(UserError, match=r"trial\.json is damaged"):
            read_trial(path, "loss")
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"trial\.json is damaged: it is nested too deeply"):
        read_trial(path, "loss")


def test_a_damaged_best_json_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for damaged in ("{}", "[]", '{"trial": "../x", "step": 1}', '{"trial": "001"}'):
        (tmp_path / "best.json").write_text(damaged)
        register_winner(RunFolder.parse(tmp_path), TrackingConfig(models="best"), tmp_path, "")
        assert "best.json is damaged: rerun the sweep's command" in capsys.readouterr().err


def test_what_mlflow_could_not_be_told_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(self: SweepTracking, trial: Trial) -> None:
        raise RuntimeError("an error of its own")

    monkeypatch.setattr(SweepTracking, "_record", gone)
    object.__new__(SweepTracking)._log_end(Trial("003", {}))
    assert "warning: MLflow has no record of how trial 003 ended: an error of its own" in capsys.readouterr().err


def test_a_stop_that_a_kill_kept_from_its_end_has_its_reason_again(here: Make) -> None:
    sweep = here(*GRID).sweep
    trial = sweep.trials["001"]
    trial.status = "running"
    sweep.note(event="begin", trial=trial.id, time=0.0)
    told = {"trial": trial.id, "step": 5, "tokens": 640, "value": 9.0}
    sweep.note(event="result", **told, decision="STOP", reason="asha stopped it at step 5", time=0.0)
    record = SweepRecord(sweep)
    assert (trial.status, trial.reason) == ("pending", "")
    assert record.known(trial, 5) == "STOP" and trial.reason == "asha stopped it at step 5"


def test_every_preset_gets_what_was_typed_though_it_is_one_presets_own() -> None:
    words = [
        "preset=small-rec,demo-rec",
        "--preset",
        "small-rec",
        "--data.corpus",
        "text",
        "--optim.lr=0.002",
        "--run",
        "x",
    ]
    config = read_command(words)
    assert config.typed == ("data.corpus", "optim.lr")
    for name in ("small-rec", "demo-rec"):
        run = config.run_with({"preset": name})
        assert (run.data.corpus, run.optim.lr) == ("text", 0.002)
    assert config.run_with({"preset": "demo-rec"}).steps == PRESETS["demo-rec"].steps != config.train.steps


def test_a_folder_of_something_else_is_refused(
    here: Make, make_config: Callable[..., PrepareConfig], text_folder: Path, tmp_path: Path
) -> None:
    here("lr")
    (text_folder / "train/more.txt").write_text("one more document\n")
    prepare(make_config(store=str(tmp_path / "other-store")))
    with pytest.raises(UserError, match=r"holds another sweep, with store=\w+, and this command says \w+: choose"):
        here("lr", "--data.store", str(tmp_path / "other-store"))
    with pytest.raises(
        ValueError, match="runs/sweep holds another sweep, with space=lr, and this command says states: choose"
    ):
        here("states")
    with pytest.raises(ValueError, match="holds another sweep, with steps=20, and this command says 10"):
        here("lr", "--steps", "10")
    (tmp_path / "runs" / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="other holds something else than a sweep"):
        here("lr", name="other")
    killed = tmp_path / "runs" / "killed"
    killed.mkdir()
    Path((Place.parse(killed) / "sweep.json").staged().path).write_text("{")  # killed while it wrote its plan
    assert here("lr", name="killed").sweep.trials
    path = tmp_path / "runs" / "sweep" / "sweep.json"
    saved = json.loads(path.read_text())
    for odd in ({"identity": 7}, {"plan": None}, {"plan": [{}]}, {"plan": [{"id": "x", "values": {}}]}):
        path.write_text(json.dumps(saved | odd))
        with pytest.raises(UserError, match=r"sweep\.json is damaged \(.*\): choose another --run"):
            here("lr")
    path.write_text(json.dumps({**saved, "schema": 0}))
    with pytest.raises(
        UserError, match=r"^[^(]*sweep\.json was written by another version of Throughline: choose another --run"
    ):
        here("lr")
    assert Trial("000", {}).described() == "the preset"


def test_what_is_written_of_a_decision_is_whole_or_an_error(here: Make) -> None:
    sweep = here(*GRID).sweep
    sweep.note(event="told", text="whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (sweep.folder / "results.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))  # as a disk that has room for ten bytes
    try:
        with pytest.raises(OSError, match="File too large"):
            sweep.note(event="told", text="torn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sweep.note(event="told", text="again")
    assert [event["text"] for event in sweep.events()] == ["whole", "again"]


def test_ray_reads_the_settings_of_a_local_session_when_a_sweep_imports_it() -> None:
    """Else its ports would not be on 127.0.0.1 alone. In a process of its own, since this one has imported Ray."""
    code = """
import sys
from pipelines.sweeps import run_sweep
try:
    run_sweep(["optim.lr=1e-3,1e-2", "--preset", "small-rec", "--data.store", "nowhere"])
except Exception as error:
    assert "ray" in sys.modules, error
from ray._private import ray_constants
print(ray_constants.ENABLE_RAY_CLUSTER)
"""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_a_trial_that_a_budget_stopped_after_a_metric_continues(here: Make) -> None:
    made = here(*GRID)
    record = SweepRecord(made.sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    record.add(trial, 10, 5.0, "CONTINUE")
    trial.reason = f"{BUDGET} of 1,900 tokens is spent"
    record.ended(trial, "stopped")
    assert json.loads((made.sweep.folder / "trials" / "001" / "trial.json").read_text())["status"] == "stopped"
    again = SweepRecord(here(*GRID).sweep).sweep.trials["001"]
    assert (again.status, again.reason) == ("pending", "")


def test_the_first_of_listed_presets_is_the_sweeps_own() -> None:
    assert read_command(["preset=demo-rec,demo-slide"]).preset == "demo-rec"
    assert read_command(["preset=demo-rec,demo-slide", "--preset", "small-rec"]).preset == "small-rec"


def test_a_failed_trial_does_not_win(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    for name, value in (("000", 5.0), ("001", 4.0)):
        record.begin(record.sweep.trials[name])
        record.add(record.sweep.trials[name], 10, value, "CONTINUE")
    record.ended(record.sweep.trials["001"], "failed", "its loss became nan")
    best = record.sweep.best()
    assert best and best.id == "000"


def test_seconds_of_earlier_starts_count_against_the_budget(here: Make) -> None:
    sweep = here(*GRID, "--time-budget-s", "50").sweep
    assert not Budget(sweep).spent()
    sweep.write("budget.json", {"seconds": 60.0})
    assert Budget(sweep).spent() == "the sweep's budget of 50 s is spent"


def test_the_seconds_of_a_trial_are_those_of_all_its_starts(here: Make) -> None:
    sweep = here(*GRID).sweep
    sweep.trials["001"].seconds = 100.0
    record = SweepRecord(sweep)
    record.begin(sweep.trials["001"])
    record.ended(sweep.trials["001"], "finished")
    assert sweep.trials["001"].seconds >= 100


def test_workers_that_die_after_progress_fail_nothing(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    for step in range(1, record.run_of(trial).max_failures + 3):
        (record.sweep.run_folder(trial).folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        record.died(trial, "a worker died (no memory)")
    assert not trial.reason
