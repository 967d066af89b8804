"""Sweeps as their folders tell them: equal cost, early stopping, kills, populations, budgets. Trials run here, one by one."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.tune.stopper import Stopper

from common.errors import UserError
from common.places import Place
from pipelines import train as training
from pipelines import tune
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_file import presets_with
from pipelines.checkpoints.run_place import RunPlace
from pipelines.config.dotted import options, with_fields
from pipelines.config.run import to_json
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import read_sweep
from pipelines.sweeps import population, run_sweep, scheduler
from pipelines.sweeps.command import read_and_check, read_command
from pipelines.sweeps.planning import open_or_plan
from pipelines.sweeps.results import results
from pipelines.sweeps.running import conclude, write_best
from pipelines.sweeps.scheduler import SweepScheduler
from pipelines.sweeps.sweep import Sweep, Trial
from pipelines.sweeps.tracking import SweepTracking
from pipelines.sweeps.trial import Figures
from pipelines.terminal import cli
from pipelines.training.stopping import Stop, Stopped
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World
from tests.small_corpus import contents
from tests.small_runs import TINY
from tests.tune_spaces.test_named import OWN
from tune_spaces.drawing import fields


class Killed(Exception):
    """As if by SIGKILL: nothing is said to anyone."""


class Here:
    """A sweep in this process: like pipelines.tune, less Ray and MLflow."""

    def __init__(self, words: list[str], kill_at: int = -1) -> None:
        self.config, domains = read_and_check(words)
        self.sweep = Sweep(self.config, fields(domains))
        self.sweep.begin("command", open_or_plan(self.sweep, domains))
        self.scheduler = SweepScheduler(self.sweep, domains)
        self.scheduler.restore()
        self._steps_left = kill_at

    def run(self) -> Sweep:
        while trial := self.scheduler.next():
            self.scheduler.ended(trial, *self._train(trial))
        return self.sweep

    def _train(self, trial: Trial) -> tuple[Any, str]:
        run = self.scheduler.run_of(trial)
        stop, figures = Stop(RunPlace.of(run).folder).asked, Figures(run, self.config.metric)

        def told() -> bool:
            new = figures.new()
            leaves = [self.scheduler.result(trial, step, value) for step, value in new]
            return any(leaves) or (bool(new) and self.scheduler.stays(trial, new[-1][0]))

        def asked() -> bool:
            self._steps_left -= 1
            if self._steps_left == 0:
                raise Killed
            leaves = told()
            self.scheduler.watch(trial)
            return stop() or leaves

        try:
            train_as_worker(run, World.alone(), asked)
        except Stopped:
            return "stopped", ""
        except ValueError as error:
            return "failed", cli.sentence(error)
        told()
        return "finished", ""


Make = Callable[..., Here]


@pytest.fixture
def here(store: Path, tmp_path: Path) -> Make:
    def make(space: str, *extra: str, name: str = "sweep", kill_at: int = -1) -> Here:
        tiny = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name]
        return Here([space, *TINY[1:], *tiny, *extra], kill_at)

    return make


GRID = ("optim.lr=1e-3,1e-2+model.states=2,4", "--search", "grid", "--scheduler", "none", "--model.dropout", "0")


def test_a_grid_and_the_preset_itself(here: Make) -> None:
    sweep = here(*GRID).run()
    assert [trial.values for trial in sweep.trials.values()] == [
        {"optim.lr": 0.002, "model.states": 4},  # small-rec's rate, and what TINY says of the states
        *({"optim.lr": lr, "model.states": states} for lr in (1e-3, 1e-2) for states in (2, 4)),
    ]
    for trial in sweep.trials.values():
        saved = json.loads((sweep.place(trial) / "trial.json").read_text())
        figures = {"best": sweep.named(trial.best), "last": sweep.named(trial.last)}
        assert saved == vars(trial) | figures and saved["status"] == "finished"
        assert (trial.steps, trial.tokens) == (20, 20 * 4 * 32) and trial.baseline == (trial.id == "000")
        checkpoint = Checkpoint.open(sweep.place(trial) / "checkpoints" / "step-00000020")
        assert checkpoint.meta["validation"]["bits_per_token"] == value(trial)
        assert checkpoint.meta["config"]["optim"]["lr"] == trial.values["optim.lr"]
    best = sweep.best()
    assert best and best.best == min((t.best for t in sweep.trials.values() if t.best), key=lambda best: best.value)


def value(trial: Trial) -> float:
    """Its last figure."""
    assert trial.last
    return trial.last.value


def test_each_metric_has_its_own_name_and_old_files_are_read(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("optim.lr=1e-3", "--search", "grid", "--metric", "validation/bits_per_byte")
    sweep = here(*words).run()
    best = sweep.best()
    assert best and best.best and sweep.trials.keys() == {"000", "001"}
    for trial in sweep.trials.values():  # by which its best checkpoint is kept
        checkpoint = Checkpoint.open(sweep.place(trial) / "checkpoints" / f"step-{trial.steps:08d}")
        assert checkpoint.meta["validation"]["best_by"] == value(trial)
    write_best(sweep, best)
    files = [sweep.folder / "best.json", *(sweep.place(trial) / "trial.json" for trial in sweep.trials.values())]
    for path in files:
        assert "validation/bits_per_byte" in path.read_text() and "bits_per_token" not in path.read_text()
    found = read_sweep(sweep.folder)
    assert found.scored[0].best == best.best.value == found.scored[0].points[-1].value

    again = here(*words).run()
    assert finished(again) == finished(sweep) and again.best() == best and conclude(again) == 0
    assert f"best: trial {best.id}, {best.best.value:.4f} at step {best.best.step}" in capsys.readouterr().out


def test_killed_at_random_steps_it_ends_with_the_same_figures(here: Make) -> None:
    calm = here(*GRID, name="calm").run()
    rng = random.Random(4)
    kills = 0
    while True:
        try:
            killed = here(*GRID, name="killed", kill_at=rng.randrange(1, 25)).run()
            break
        except Killed:
            kills += 1
    assert kills >= 4
    for trial in calm.trials.values():
        other = killed.trials[trial.id]
        assert (other.values, other.status, other.best, other.last) == (
            trial.values,
            "finished",
            trial.best,
            trial.last,
        )
        ours, theirs = (contents(sweep.place(trial) / "checkpoints" / "step-00000020") for sweep in (killed, calm))
        assert {name: data for name, data in ours.items() if name.endswith(".safetensors")} == {
            name: data for name, data in theirs.items() if name.endswith(".safetensors")
        }
    assert finished(here(*GRID, name="killed").run()) == finished(calm)  # once more: there is nothing to do


def finished(sweep: Sweep) -> list[Any]:
    return [(trial.id, trial.values, trial.status, trial.last) for trial in sweep.trials.values()]


ASHA = ("optim.lr=1e-7,1e-6,1e-5,3e-3,1e-2", "--search", "grid", "--validate-every", "2", "--rung-tokens", "512")


def test_asha_stops_bad_trials_early_and_says_why(here: Make) -> None:
    sweep = here(*ASHA).run()
    stopped = [trial for trial in sweep.trials.values() if trial.status == "stopped"]
    assert {trial.values["optim.lr"] for trial in stopped} >= {1e-7, 1e-6, 1e-5}
    for trial in stopped:
        assert trial.steps == 4 and "asha stopped it at step 4 (512 tokens)" in trial.reason
        assert Checkpoint.open(sweep.place(trial) / "checkpoints" / "step-00000004").step == 4  # it saved first
    baseline = sweep.trials["000"]
    assert baseline.baseline and baseline.status == "finished"
    best = sweep.best()
    assert best and best.values["optim.lr"] >= 2e-3
    decided = [event["trial"] for event in sweep.events() if event.get("decision") == "stop"]
    assert decided == [trial.id for trial in stopped]


def test_asha_killed_keeps_its_decisions(here: Make) -> None:
    with pytest.raises(Killed):
        here(*ASHA, kill_at=28).run()
    again = here(*ASHA)
    before = [event for event in again.sweep.events() if event["event"] == "result"]
    over = {trial.id: (trial.status, trial.last) for trial in again.sweep.trials.values() if trial.over}
    sweep = again.run()
    assert over and all((sweep.trials[name].status, sweep.trials[name].last) == state for name, state in over.items())
    events = [event for event in sweep.events() if event["event"] == "result"]
    assert events[: len(before)] == before
    assert len({(event["trial"], event["step"]) for event in events}) == len(events)  # none counts twice


def test_a_plateau_stops_trials_and_a_scheduler_by_its_path_too(here: Make) -> None:
    """Killed, both decide again as they did."""
    plateau = "ray.tune.stopper:TrialPlateauStopper(std=9, num_results=2, grace_period=2)"
    above = "tests.tune_spaces.test_named:StopsAbove(limit=8.4)"
    words = ("optim.lr=1e-7,3e-3", "--search", "grid", "--validate-every", "2", "--stop", plateau, "--scheduler")
    sweep = here(*words, "none", name="plateau").run()
    assert [(trial.status, trial.steps) for trial in sweep.trials.values()] == [("finished", 20), *[("stopped", 4)] * 2]
    assert f"{plateau} stopped it at step 4 (512 tokens)" in sweep.trials["001"].reason
    with pytest.raises(Killed):
        here(*words, above, kill_at=24).run()
    sweep = here(*words, above).run()
    assert "StopsAbove(limit=8.4) stopped it at step 2" in sweep.trials["001"].reason
    assert "TrialPlateauStopper" in sweep.trials["002"].reason and sweep.trials["002"].steps == 4


def test_brackets_pause_stop_and_go_on_after_a_kill_as_without(here: Make) -> None:
    """HyperBand holds trials back until their bracket has come as far, and stops some that wait."""
    words = (
        "optim.lr=1e-7,1e-6,3e-3",
        "--search",
        "grid",
        "--validate-every",
        "5",
        "--rung-tokens",
        "640",
        "--baseline",
        "no",
    )
    brackets = (*words, "--scheduler", "ray.tune.schedulers:HyperBandForBOHB(reduction_factor=2)")
    calm = here(*brackets, name="calm").run()
    assert [(trial.status, trial.steps) for trial in calm.trials.values()] == [
        ("stopped", 5),
        ("stopped", 10),
        ("finished", 20),
    ]
    assert "HyperBandForBOHB(reduction_factor=2) stopped it at step 5" in calm.trials["000"].reason
    for kill_at in (4, 13, 12):  # in the first one; in the second; where the third is to go on
        with pytest.raises(Killed):
            here(*brackets, kill_at=kill_at).run()
    assert finished(here(*brackets).run()) == finished(calm)


def test_the_preset_is_not_stopped_where_others_halve_its_bracket_while_it_saves(here: Make) -> None:
    brackets = ("--scheduler", "ray.tune.schedulers:HyperBandForBOHB", "--rung-tokens", "640")
    memory = here("optim.lr=1e-7,3e-3", "--search", "grid", "--validate-every", "5", *brackets).scheduler
    begun = [trial for trial in (memory.next(), memory.next(), memory.next()) if trial]
    for trial, figure in zip(begun, (9.0, 5.0, 6.0), strict=True):
        memory.result(trial, 5, figure)
    memory.ended(begun[0], "stopped")
    assert begun[0].baseline and (begun[0].status, begun[0].reason) == ("pending", "")
    assert memory.next() is begun[0]


OPTUNA = (
    "lr+states",
    "--search",
    "optuna",
    "--scheduler",
    "none",
    "--baseline",
    "no",
    "--samples",
    "4",
    "--steps",
    "10",
)


def test_optuna_goes_on_where_it_was(here: Make) -> None:
    pytest.importorskip("optuna")
    calm = here(*OPTUNA, name="calm").run()
    with pytest.raises(Killed):
        here(*OPTUNA, name="killed", kill_at=25).run()
    assert finished(here(*OPTUNA, name="killed").run()) == finished(calm)


PBT = ("optim.lr=1e-7..1e-2", "--scheduler", "pbt", "--samples", "4", "--validate-every", "5")


def test_optuna_draws_beside_the_preset_which_it_has_not_drawn(here: Make) -> None:
    pytest.importorskip("optuna")
    words = ("lr", "--search", "optuna", "--samples", "3", "--validate-every", "5")
    calm = here(*words, name="calm").run()
    assert [(trial.baseline, trial.over) for trial in calm.trials.values()] == [
        (True, True),
        (False, True),
        (False, True),
    ]
    with pytest.raises(Killed):
        here(*words, name="killed", kill_at=28).run()
    assert finished(here(*words, name="killed").run()) == finished(calm)


@pytest.mark.parametrize("words", [GRID, OPTUNA])
def test_what_a_damaged_trial_file_said_is_made_again(
    here: Make, words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if words is OPTUNA:
        pytest.importorskip("optuna")
    calm = here(*words, name="calm").run()
    killed = here(*words, name="killed", kill_at=28)
    with pytest.raises(Killed):
        killed.run()
    first, *rest = [killed.sweep.place(trial) / "trial.json" for trial in killed.sweep.trials.values()]
    first.write_text(first.read_text()[:40])
    for path in rest:  # as where a kill came before they were written
        path.unlink()
    again = here(*words, name="killed").run()
    assert f"{first} is damaged: it is made again of results.jsonl" in capsys.readouterr().err
    assert finished(again) == finished(calm)
    assert [(t.best, t.steps, t.tokens) for t in again.trials.values()] == [
        (t.best, t.steps, t.tokens) for t in calm.trials.values()
    ]


def test_a_population_leaves_alone_what_a_stopper_has_stopped(here: Make) -> None:
    """The last to come, and the worst, is stopped where it would go on from another one."""
    stops = ("--stop", "ray.tune.stopper:TrialPlateauStopper(std=9, num_results=1, grace_period=1)")
    sweep = here("optim.lr=1e-2,3e-3,1e-7", *PBT[1:], "--search", "grid", *stops).run()
    stopped = [trial for trial in sweep.trials.values() if trial.status == "stopped"]
    assert [trial.values["optim.lr"] for trial in stopped] == [1e-2, 3e-3, 1e-7]
    for trial in stopped:
        assert trial.last and trial.last.step == 5 and f"{trial.last.value:.3f}" in trial.reason
        assert not trial.exploited


def test_a_population_stays_among_the_values_that_are_listed(here: Make) -> None:
    sweep = here("optim.lr=1e-7,1e-3,1e-2", *PBT[1:], "--baseline", "no", "--samples", "3").run()
    taken = [each["values"]["optim.lr"] for trial in sweep.trials.values() for each in trial.exploited]
    assert taken and set(taken) <= {1e-7, 1e-3, 1e-2}


def test_a_searcher_may_have_no_more_or_nothing_that_fits(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    space = "model.window=8,16+data.segment_length=32,16"  # of which the second two do not fit together
    words = (space, "--search", f"{OWN}:First(often=2)", "--samples", "9")
    assert [trial.values["model.window"] for trial in here(*words).run().trials.values()] == [8, 8, 8]
    misfits = (space, "--search", f"{OWN}:First(often=999, place=1)")
    for _ in range(2):
        sweep = here(*misfits, name="misfits").run()
        assert [trial.status for trial in sweep.trials.values()] == ["finished"]  # the preset
    assert capsys.readouterr().out.count("suggests nothing more that fits small-rec") == 2
    none = here(*misfits, "--baseline", "no", name="none").run()
    with pytest.raises(UserError, match="has suggested no trial: vary something else"):
        conclude(none)


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


def test_a_population_without_a_trial_file_is_refused(here: Make) -> None:
    sweep = here(*PBT).run()
    copy = next(trial for trial in sweep.trials.values() if trial.exploited)
    (sweep.place(copy) / "trial.json").unlink()
    with pytest.raises(
        UserError, match=f"{copy.id}/trial.json, which says whose checkpoint .* is lost: choose another"
    ):
        here(*PBT)


def test_an_exploited_trial_takes_weights_optimizer_and_state(here: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, int, bool, float]] = []
    take_over = population.take_over

    def look(source: Place, target: Place, step: int) -> None:
        take_over(source, target, step)
        theirs, ours = (Checkpoint.open(Path((root / f"step-{step:08d}").path)) for root in (source, target))
        assert ours.weights().keys() == theirs.weights().keys()
        state, other = ours.lanes(0, 4)[0], theirs.lanes(0, 4)[0]
        same = all(state[name].equal(other[name]) for name in other) and any("states" in name for name in state)
        same &= all(ours.weights()[name].equal(value) for name, value in theirs.weights().items())
        same &= str(ours.optimizer()) == str(theirs.optimizer())
        seen.append((target.parent.name, source.parent.name, step, same, 0.0))

    monkeypatch.setattr(population, "take_over", look)
    sweep = here(*PBT).run()
    assert [(step, same) for _, _, step, same, _ in seen] == [(5, True), (10, True), (15, True)]
    assert all(trial.status == "finished" and trial.steps == 20 for trial in sweep.trials.values())
    for name, source, step, *_ in seen:
        trial = sweep.trials[name]
        noted = next(each for each in trial.exploited if each["step"] == step)
        assert noted["from"] == source
        later = Checkpoint.open(sweep.place(trial) / "checkpoints" / "step-00000020")  # it went on with the new rate
        assert (
            later.meta["config"]["optim"]["lr"] == trial.values["optim.lr"] == trial.exploited[-1]["values"]["optim.lr"]
        )


def test_nobody_goes_on_from_a_damaged_checkpoint(
    here: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is seen before it is decided, so that the sweep goes on."""
    find, damaged = population.find, list[Path]()

    def damage(checkpoints: Place, step: int) -> Place:
        if step == 10 and not damaged:
            weights = Path((checkpoints / f"step-{step:08d}" / "model.safetensors").path)
            damaged.append(weights)
            weights.write_bytes(weights.read_bytes()[:-1])
        return find(checkpoints, step)

    monkeypatch.setattr(population, "find", damage)
    sweep = here(*PBT).run()
    source = damaged[0].parents[2].name
    assert f"step 10: nobody goes on from trial {source}: " in capsys.readouterr().out
    told = [(event["step"], len(event["exploits"])) for event in sweep.events() if event["event"] == "generation"]
    assert told == [(5, 1), (10, 0), (15, 1)]
    assert {(trial.status, trial.reason, trial.steps) for trial in sweep.trials.values()} == {("finished", "", 20)}
    assert finished(here(*PBT).run()) == finished(sweep)


def test_a_population_killed_makes_the_same_choices(here: Make) -> None:
    calm = here(*PBT, name="calm").run()
    rng, kills = random.Random(1), 0
    while True:
        try:
            killed = here(*PBT, name="killed", kill_at=rng.randrange(5, 40)).run()
            break
        except Killed:
            kills += 1
    assert kills >= 2
    assert [(t.exploited, t.values, t.last) for t in killed.trials.values()] == [
        (t.exploited, t.values, t.last) for t in calm.trials.values()
    ]


@pytest.mark.parametrize(("equal", "steps"), [("tokens", [20, 40, 10]), ("steps", [20, 20, 20])])
def test_trials_cost_the_same(here: Make, equal: str, steps: list[int]) -> None:
    trials = here("data.segment_length=32,16,64", "--search", "grid", "--equal", equal)
    runs = [trials.sweep.run_of(trial) for trial in trials.sweep.trials.values()]
    assert [run.steps for run in runs] == steps
    wide = here("model.d_model=16,64", "--search", "grid", "--equal", "flops", name="wide")
    small, large = (wide.sweep.run_of(trial) for trial in wide.sweep.trials.values())
    flops = [run.steps * run.tokens_per_step * wide.sweep.flops_per_token(run) for run in (small, large)]
    assert large.steps < small.steps and flops[1] == pytest.approx(flops[0], rel=0.5 / large.steps)


def test_a_budget_is_kept_and_a_larger_one_goes_on(here: Make) -> None:
    sweep = here(*GRID, "--tokens", "4000").run()
    tokens = sum(trial.tokens for trial in sweep.trials.values())
    assert 4000 <= tokens < 4000 + 2 * 128
    cut = [trial for trial in sweep.trials.values() if trial.status == "stopped"]
    assert len(cut) == 1 and cut[0].reason == "the sweep's budget of 4,000 tokens is spent"
    late = here(*GRID, "--seconds", "1e-9")  # spent before anything begins, on any machine
    late.run()
    assert late.scheduler.out_of_budget() == "the sweep's budget of 1e-09 s is spent"
    assert [trial.status for trial in late.sweep.trials.values()].count("pending") == 4  # nothing more was begun
    some = here(*GRID, "--trials", "4").run()
    assert [trial.status for trial in some.trials.values()] == [*["finished"] * 4, "pending"]
    assert all(trial.status == "finished" for trial in here(*GRID).run().trials.values())


def test_what_a_kill_leaves_running_waits_where_a_smaller_budget_leaves_it_out(here: Make) -> None:
    with pytest.raises(Killed):
        here(*GRID, kill_at=30).run()
    assert [trial.status for trial in read_sweep(here(*GRID).sweep.folder).trials][:3] == [
        "finished",
        "pending",
        "pending",
    ]
    sweep = here(*GRID, "--trials", "1").run()
    saved = read_sweep(sweep.folder).trials
    assert [trial.status for trial in saved] == ["finished"] + ["pending"] * 4
    assert [trial.status for trial in here(*GRID).run().trials.values()] == ["finished"] * 5


def test_a_trial_asked_to_stop_and_killed_heeds_what_comes_later(here: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "SAVE_SECONDS", 0.0)
        patch.setattr(Stop, "asked", lambda self: False)  # its workers have not seen that they are to stop
        with pytest.raises(Killed):
            here(*GRID, "--tokens", "1500", name="budget", kill_at=18).run()
        with pytest.raises(Killed):
            here(*ASHA, "--tokens", "2688", kill_at=23).run()
    trial = here(*GRID, "--tokens", "2300", name="budget").run().trials["000"]
    assert (trial.status, trial.steps, trial.reason) == ("stopped", 18, "the sweep's budget of 2,300 tokens is spent")
    assert here(*GRID, name="budget").run().trials["000"].status == "finished"

    trial = here(*ASHA).run().trials["001"]
    assert (trial.status, trial.steps) == ("stopped", 4) and "asha stopped it" in trial.reason


def test_workers_that_die_after_the_decision_do_not_undo_it(here: Make) -> None:
    asha = here(*ASHA)
    for outcome in ("finished", "died"):
        trial = asha.scheduler.next()
        assert trial
        asha._train(trial)
        asha.scheduler.ended(trial, outcome)
    trial = asha.sweep.trials["001"]
    assert trial.status == "stopped" and "asha stopped it" in trial.reason


def test_a_person_who_stops_a_trial_is_heard_though_its_workers_die(here: Make) -> None:
    sweep = here("optim.lr=1e-3,3e-3", "--search", "grid", "--scheduler", "none")
    trial = sweep.scheduler.next()
    assert trial
    Stop(sweep.sweep.place(trial)).ask()
    sweep.scheduler.ended(trial, "died", "a worker died")
    assert trial.status == "stopped" and "a file `stop`" in trial.reason


def test_a_bad_figure_counts_though_the_budget_is_spent(here: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to stop for the budget, it comes to a rung all the same: what was decided there holds under a larger budget."""
    with monkeypatch.context() as patch:
        patch.setattr(Stop, "asked", lambda self: False)
        first = here(*ASHA, "--tokens", "2688")
        for _ in range(2):
            trial = first.scheduler.next()
            assert trial
            first._train(trial)
            first.scheduler.ended(trial, "finished" if trial.id == "000" else "stopped")
    trial = here(*ASHA).sweep.trials["001"]
    assert trial.status == "stopped" and "asha stopped it" in trial.reason


def test_the_results_are_tunes_own(here: Make) -> None:
    sweep = here("optim.lr=1e38,1e-3", "--search", "grid", "--scheduler", "none", "--optim.clip", "0").run()
    grid, best = results(sweep.folder), sweep.best()
    assert (
        best and best.best and len(grid) == 3 and [str(error) for error in grid.errors] == [sweep.trials["001"].reason]
    )
    found = grid.get_best_result(scope="all")
    assert (
        found.metrics and found.metrics["validation/bits_per_token"] == best.best.value and found.config == best.values
    )
    assert found.metrics_dataframe is not None and list(found.metrics_dataframe["step"]) == [10, 20]
    assert found.checkpoint and Checkpoint.open(Path(found.checkpoint.path)).step == 20
    table = grid.get_dataframe(filter_metric="validation/bits_per_token", filter_mode="min")
    assert set(table["config/optim.lr"]) == {2e-3, 1e-3}  # one has no figure


def test_results_hold_no_error_of_what_waits_and_nothing_of_a_file_is_unpickled(here: Make, tmp_path: Path) -> None:
    sweep = here("optim.lr=1e-3,3e-3", "--search", "grid", "--scheduler", "none").sweep
    grid = results(sweep.folder)
    assert len(grid) == 3 and not grid.errors and grid[1].config == {"optim.lr": 1e-3}
    ran = tmp_path / "ran"
    code = pickle.dumps(Runs(f"touch {ran}")).hex()
    (tmp_path / "planted" / "trials").mkdir(parents=True)
    said = json.loads((sweep.folder / "sweep.json").read_text()) | {
        "x": {"_type": "CLOUDPICKLE_FALLBACK", "value": code}
    }
    (tmp_path / "planted" / "sweep.json").write_text(json.dumps(said))
    assert len(results(tmp_path / "planted")) == 0 and not ran.exists()


class Runs:
    """Whoever unpickles it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_lines_that_are_no_events_and_copies_of_trials_are_passed_over(here: Make) -> None:
    sweep = here(*GRID).run()
    statuses = {name: trial.status for name, trial in sweep.trials.items()}
    with open(sweep.folder / "results.jsonl", "a") as file:
        file.write('null\n{"a": 1}\n')
    shutil.copytree(sweep.folder / "trials" / "001", sweep.folder / "trials" / "old-001")
    again = here(*GRID).sweep
    assert {name: trial.status for name, trial in again.trials.items()} == statuses


def test_what_had_begun_when_a_stopper_ended_the_sweep_goes_on_after_a_kill(here: Make) -> None:
    words = ("optim.lr=1e-3,3e-3", "--search", "grid", "--scheduler", "none", "--stop", f"{__name__}:Second")
    first = here(*words)
    for trial in (first.scheduler.next(), first.scheduler.next()):  # two at a time
        assert trial
    for trial in list(first.sweep.trials.values())[:2]:
        first.scheduler.result(trial, 10, 5.0)
    assert first.scheduler.next() is None  # killed here: the first two are being trained, the third has not begun
    sweep = here(*words).run()
    assert [trial.status for trial in sweep.trials.values()] == ["finished", "stopped", "pending"]


class Second(Stopper):
    """Ends the sweep with its second figure."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.told += 1
        return self.told > 1

    def stop_all(self) -> bool:
        return self.told > 1


def test_a_trial_that_diverges_fails_with_the_reason(here: Make) -> None:
    sweep = here("optim.lr=1e38,1e-3", "--search", "grid", "--scheduler", "none", "--optim.clip", "0").run()
    assert [trial.status for trial in sweep.trials.values()] == ["finished", "failed", "finished"]
    assert "the loss became" in sweep.trials["001"].reason


def test_the_winners_command_and_file_repeat_it(here: Make, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = here(*GRID).run()
    best = sweep.best()
    assert best and best.last
    write_best(sweep, best)
    assert conclude(sweep) == 0
    assert "by" in capsys.readouterr().out
    saved = json.loads((sweep.folder / "best.json").read_text())
    assert (saved["trial"], saved["values"], saved["step"]) == (best.id, best.values, best.best and best.best.step)
    training.main([str(sweep.folder / "best.json"), "--run", "from-file", "--num-workers", "0"])
    typed = saved["command"].split()
    assert typed[:4] == ["python", "-m", "pipelines.train", "small-rec"]
    training.main([*typed[3:], "--num-workers", "0"])
    for name in ("from-file", "sweep-best"):
        found = Checkpoint.open(Path(sweep.config.train.root) / name / "checkpoints" / "step-00000020")
        assert found.meta["validation"]["bits_per_token"] == best.last.value


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


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text('{"run": "a", "model": {"name": "rec"}, "stepz": 3}')
    with pytest.raises(ValueError, match=r"some.json is not a run's config of this version .*stepz"):
        presets_with(PRESETS, [str(file)])
    file.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"some.json is not a run's config of this version .*recursion"):
        presets_with(PRESETS, [str(file)])
    with pytest.raises(ValueError, match=r"has no field 'optim.lrr': did you mean 'optim.lr'"):
        with_fields(PRESETS["small-rec"], {"optim.lrr": 1})
    with pytest.raises(ValueError, match=r"model.name cannot be set: another model has other fields"):
        with_fields(PRESETS["small-rec"], {"model.name": "slide"})


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([], "name a space first"),
        (["--samples", "3"], "name a space first"),
        (["lr", "--preset", "small-rek"], "unknown preset 'small-rek': did you mean 'small-rec'"),
        (["lr", "--sampels", "3"], "unknown option --sampels: did you mean --samples"),
        (["lr", "--samples", "0"], "samples is 0"),
        (["lr", "--metric", "accuracy"], "metric"),
        (["lr", "--scheduler", "ahsa"], "scheduler is 'ahsa': did you mean 'asha'"),
        (["lr", "--search", "ray.tune.search:Nothing"], "ray.tune.search:Nothing cannot be made: .*no attribute"),
        (
            ["lr", "--scheduler", "ray.tune.schedulers:ResourceChangingScheduler"],
            "could not go on with it after a kill: choose asha",
        ),
        (["lr", "--validate-every", "0"], "no trial would ever be validated"),
        (
            ["lr", "--tokens", "500"],
            "a budget of 500 tokens ends before the first trial's first figure, after 1,280 tokens",
        ),
        (["lr", "--rung-tokens", "99999"], "nothing would be stopped"),
        (["window", "--scheduler", "pbt"], "model.window cannot change in the middle of a run"),
        (["lr+states", "--scheduler", "pbt"], "model.states cannot change in the middle of a run"),
        (
            ["lr", "--scheduler", "pbt", "--samples", "4", "--trials", "2"],
            "pbt waits until all 4 trials can be compared, and --trials 2 leaves some out: lower --samples",
        ),
        (
            ["optim.lr=1e-7,1e-3,1e-2", "--search", "grid", "--scheduler", "pbt", "--trials", "3"],
            "pbt waits until all 4 trials can be compared, and --trials 3 leaves some out",
        ),
        (
            ["lr", "--validate-every", "30", "--tokens", "2500"],
            "before the first trial's first figure, after 2,560 tokens",
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
        (["preset=small-rec,small-rek"], "unknown preset 'small-rek' in the space .*: did you mean 'small-rec'"),
        (["steps=10,20"], "the space varies steps, which --equal tokens chooses for each trial"),
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
    assert len(here(*further, "--search", "grid", "--scheduler", "pbt", "--trials", "3").sweep.trials) == 3


def test_a_trial_that_is_shorter_than_its_validations_are_apart_has_its_last_figure(here: Make) -> None:
    sweep = here("optim.lr=1e-3", "--search", "grid", "--validate-every", "30").run()
    assert [trial.last and trial.last.step for trial in sweep.trials.values()] == [20, 20]


def test_vocabularies_are_compared_by_bytes_also_beside_another_space() -> None:
    assert read_command(["rec-table-5+lr"]).metric == read_command(["rec-table-5"]).metric == "validation/bits_per_byte"


def test_a_spent_budget_tells_what_it_leaves(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model.window=8,16", "--search", f"{OWN}:First(often=9)", "--samples", "3", "--scheduler", "none")
    spent = "the sweep's budget of 3,000 tokens is spent"
    conclude(here(*words, "--tokens", "3000").run(), spent)
    assert f"{spent}: 2 trials are not done" in capsys.readouterr().out  # one of them has not been drawn
    conclude(here(*words).run(), spent)
    assert spent not in capsys.readouterr().out


def test_after_a_sweep_a_notebooks_own_tuner_is_heard(store: Path, tmp_path: Path) -> None:
    logger = logging.getLogger("ray.tune.schedulers")
    before = logger.level
    try:
        logger.setLevel(logging.INFO)
        with pytest.raises(UserError, match="pg20"):
            run_sweep(["lr", *TINY[1:], "--data.store", str(store), "--root", str(tmp_path), "--data.corpus", "pg20"])
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_what_mlflow_could_not_be_told_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(self: SweepTracking, trial: Trial) -> None:
        raise RuntimeError("an error of its own")

    monkeypatch.setattr(SweepTracking, "_record", gone)
    object.__new__(SweepTracking)._tell(Trial("003", {}))
    assert "warning: MLflow was not told how trial 003 ended: an error of its own" in capsys.readouterr().err


def test_a_folder_of_something_else_is_refused(here: Make, tmp_path: Path) -> None:
    here("lr")
    with pytest.raises(
        ValueError, match="runs/sweep holds another sweep, with space=lr, and this command says states: choose"
    ):
        here("states")
    with pytest.raises(ValueError, match="holds another sweep, with steps=20, and this command says 10"):
        here("lr", "--steps", "10")
    (tmp_path / "runs" / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="other holds something else than a sweep"):
        here("lr", name="other")
    path = tmp_path / "runs" / "sweep" / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 0}))
    with pytest.raises(
        UserError, match=r"sweep\.json was written by another version of Throughline: choose another --run"
    ):
        here("lr")
    assert Trial("000", {}).told() == "the preset"
