"""Sweeps on Ray Tune: equal cost, early stopping, kills, populations, searchers, budgets. The driver is killed at a metric."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from ray import tune as ray_tune
from ray.tune.stopper import Stopper

from common.errors import UserError
from pipelines import train as training
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.reports.sweep_result import Trial, read_sweep
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.scheduling import Keys
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.trial import POINTER
from pipelines.sweeps.tuner import Watch
from pipelines.training.stopping import Stop
from tests.ray_sweeps import ASHA, GRID, Killed, Make, ends, results
from tests.small_corpus import contents
from tests.tune_spaces.test_named import OWN

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


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_hyperband_pauses_trials_and_lets_the_best_continue(here: Make) -> None:
    """Its second bracket, of the last three trials, is halved at step 10; only all trials together fill the first."""
    words = ("optim.lr=1e-3,2e-3,3e-3,1e-7,4e-3,5e-3", "--search", "grid", "--rung-tokens", "640", *PAUSING)
    path = "ray.tune.schedulers:HyperBandScheduler(reduction_factor=2)"
    brackets = (*words, "--baseline", "no", "--scheduler", path)
    with pytest.raises(Killed):
        here(*brackets).run(kill_after=3)
    sweep = here(*brackets).run()
    worst = sweep.trials.pop("003")
    assert (worst.status, worst.steps) == ("stopped", 10)
    assert worst.reason.startswith(f"{path} stopped it at step 10 (1,280 tokens)")
    assert [trial.status for trial in sweep.trials.values()] == ["finished"] * 5


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
