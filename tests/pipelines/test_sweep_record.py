"""A sweep's record of its trials: their seconds and ends, spent budgets, what searchers are told, and damaged files."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.stopper import NoopStopper

from common.errors import UserError
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import TrackingConfig
from pipelines.inference.registering import register_winner
from pipelines.reports.sweep_result import Trial, read_trial
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.offering import QueueSearcher
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.running import conclude
from pipelines.sweeps.scheduling import Keys, RecordedScheduler
from pipelines.sweeps.sweep import BUDGET, Budget
from pipelines.sweeps.tracking import SweepTracking
from pipelines.training.stopping import Stop
from tests.ray_sweeps import GRID, Make
from tests.tune_spaces.test_named import OWN
from tune_spaces.drawing import METRIC, Searcher


def test_a_person_who_stops_a_trial_is_heard_though_its_workers_die(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    Stop(record.sweep.run_folder(trial).folder).ask()
    record.died(trial, "a worker died")
    record.ended(trial, "stopped")
    assert trial.status == "stopped" and "a file `stop`" in trial.reason


def test_a_trial_that_an_earlier_start_began_continues(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("begins", "continues"):
        record = SweepRecord(here(*GRID).sweep)
        record.begin(record.sweep.trials["001"])
        record.begin(record.sweep.trials["001"])  # again in the same start
        assert capsys.readouterr().out.count(f"trial 001 {word}: ") == 1


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
    assert trial.status == "stopped" and trial.reason == "none stopped it at step 10 (1,280 tokens): 1.000"


def test_a_paused_trial_of_a_sweep_that_saves_and_stops_is_not_over(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    record.add(trial, 10, 1.0, "PAUSE")
    record.asked = True
    record.ended(trial, "stopped")
    assert trial.status == "pending"


def test_a_paused_trial_keeps_its_value_and_does_not_run_after_the_end(here: Make) -> None:
    """As Tune pauses a population's trials: nobody says that they end when the command does."""
    record = SweepRecord(here(*GRID).sweep)
    trial = record.sweep.trials["001"]
    record.begin(trial)
    record.add(trial, 2, 8.4, "PAUSE")
    record.settle()
    written = read_trial(Path(record.sweep.folder) / "trials" / "001" / "trial.json", record.sweep.config.metric)
    assert written.status == "pending"
    assert written.best and written.best.value == 8.4


def test_why_a_trial_was_stopped_compares_equal_amounts_of_training(here: Make) -> None:
    record = SweepRecord(here(*GRID).sweep)
    baseline = record.sweep.trials["000"]
    trial = record.sweep.trials["001"]
    for each in (baseline, trial):
        record.begin(each)
    record.add(trial, 1, 8.5, "STOP", "asha")
    assert trial.reason.endswith(": 8.500")  # no other trial has got there
    record.add(baseline, 2, 8.389, "CONTINUE")
    record.add(baseline, 4, 7.177, "CONTINUE")
    trial.reason = ""
    record.add(trial, 2, 8.407, "STOP", "asha")
    assert "asha stopped it at step 2 (" in trial.reason
    assert trial.reason.endswith(": 8.407, and the best other trial had 8.389 there")


class Told(Searcher):
    """Keeps the value with which each trial ended."""

    def __init__(self, domains: dict[str, Any]) -> None:
        super().__init__("optuna", domains, seed=0)
        self.ends: dict[str, float | None] = {}

    def complete(self, trial: str, time: int, value: float | None) -> None:
        self.ends[trial] = value


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


def test_a_budget_that_is_spent_says_what_it_leaves(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    spent = "the sweep's budget of 3,000 tokens is spent"
    sweep = here("model.window=8,16", "--search", f"{OWN}:First(often=9)", "--num-samples", "3").sweep
    record = SweepRecord(sweep)
    record.begin(sweep.trials["000"])
    record.add(sweep.trials["000"], 20, 5.0, "CONTINUE")
    record.ended(sweep.trials["000"], "finished")
    conclude(sweep, spent)
    assert f"{spent}: 2 trials not done" in capsys.readouterr().out  # which have not been drawn
    conclude(sweep)
    assert "--max-trials" not in capsys.readouterr().out  # a stopper has ended it, or the searcher has no more
    conclude(replace(sweep, config=replace(sweep.config, max_trials=1)))
    assert "--max-trials 1: 2 trials left; rerun the command with more" in capsys.readouterr().out


def test_lines_that_are_no_events_and_copies_of_trials_are_passed_over(here: Make) -> None:
    sweep = here(*GRID).sweep
    SweepRecord(sweep).add(sweep.trials["001"], 10, 5.0, "CONTINUE")
    statuses = {name: trial.status for name, trial in sweep.trials.items()}
    with open(sweep.folder / "results.jsonl", "a") as file:
        file.write('null\n{"a": 1}\n')
    shutil.copytree(sweep.folder / "trials" / "001", sweep.folder / "trials" / "old-001")
    again = here(*GRID).sweep
    assert {name: trial.status for name, trial in again.trials.items()} == statuses


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
