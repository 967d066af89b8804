"""Runs a sweep from its command to what it has found: the winner, its command and its preset file.

done = begin_or_resume(config, domains, ["lr", "--preset", "small-rec", "--num-workers", "1"])     # of read_and_check
done.status, done.results.get_best_result(scope="all").config
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune

from common.background import in_background
from common.credentials import without_credentials
from common.errors import UserError
from common.lock import file_lock
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_file import BEST
from pipelines.checkpoints.run_folder import root_of
from pipelines.cluster import ray_session
from pipelines.config.dotted import options
from pipelines.config.run import TrainConfig, to_json
from pipelines.presets import PRESETS
from pipelines.reports.sweep_findings import print_findings
from pipelines.reports.sweep_result import Trial, named, read_sweep
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.command import SweepConfig
from pipelines.sweeps.planning import open_or_plan, print_plan
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.tracking import SweepTracking
from pipelines.sweeps.tuner import fit
from pipelines.sweeps.values import fitting
from pipelines.terminal import cli
from pipelines.terminal.tables import counted
from pipelines.tracking.client import check_tracking
from pipelines.tracking.mlflow_run import Status
from pipelines.training.beginning import check_same_model, open_initial, other_tokenizer
from pipelines.training.stopping import STOPPED_STATUS, Stop
from tune_spaces import fields
from tune_spaces.drawing import expand, listed_or_ends


@dataclass(frozen=True)
class Done:
    """The outcome of a sweep's command."""

    status: int
    """Exit status of `pipelines.tune`."""
    sweep: Sweep
    """The sweep that was run."""
    results: tune.ResultGrid
    """Ray Tune's ResultGrid of all trials, those of earlier starts included."""


def begin_or_resume(config: SweepConfig, domains: dict[str, Any], words: Sequence[str]) -> Done:
    """Begin or resume a sweep. ``config`` and ``domains`` were read from ``words``.

    Raises UserError, and SystemExit after --dry-run.
    """
    sweep = Sweep(config, fields(domains))
    run = sweep.run_of(Trial("", config.own_values(sweep.fields) or {}))  # raises now what every trial would raise
    check_tracking(config.train.tracking, root_of(sweep.run.folder, config.train.run))
    store = SegmentStore.open(run.data.store, run.data.corpus, "train")
    store.check_tokenizer()
    command = shlex.join(["python", "-m", "pipelines.tune", *map(without_credentials, words)])
    with file_lock(sweep.folder, "another process of this sweep"):
        print(
            f"sweep {config.train.run}: {config.space} around {config.preset}, {config.search} search, {config.scheduler}\n"
            f"  metric  {config.metric}, the lower the better; a trial is {config.tokens_per_trial:,} tokens",
            flush=True,
        )
        planned = open_or_plan(sweep, domains)  # raises its errors before Ray starts
        if not planned:
            check_initial(sweep, domains, run, store)
            complaint = other_tokenizer(run.model, store)
            if complaint:
                print(f"  warning {complaint}", flush=True)
        if config.dry_run:
            print_plan(sweep)
            sys.exit(0)
        ray_session.start(num_cpus=config.num_cpus or None, log_to_driver=False)
        capacity = TrialCapacity(config)
        if not planned:
            sweep.write_plan(command)
        return run_trials(SweepRecord(sweep), domains, capacity, command)


def check_initial(sweep: Sweep, domains: Mapping[str, Any], run: TrainConfig, store: SegmentStore) -> None:
    """Raise UserError where the preset or a trial could not begin with the weights of `initial_weights`."""
    initial = open_initial(run, store)
    if initial is None:
        return
    trials = list(sweep.trials.values())
    if sweep.config.suggested:  # a searcher may choose each of these
        values = [expand({key: value}) for key, domain in domains.items() for value in listed_or_ends(domain)]
        trials += [Trial("", dict(each)) for each in fitting(values, sweep.config.run_with)]
    for trial in trials:
        try:
            check_same_model(initial, sweep.run_of(trial).model)
        except UserError as error:
            raise UserError(
                f"the space {sweep.config.space} cannot be searched with {trial.described()}: {error}"
            ) from None


def run_trials(record: SweepRecord, domains: dict[str, Any], capacity: TrialCapacity, command: str) -> Done:
    """Run the trials to their ends."""
    sweep = record.sweep
    config = sweep.config
    stop = Stop(sweep.run.place)
    stop.clear()
    tracking = SweepTracking(sweep, command)
    record.on_end = tracking.end
    status: Status = "FAILED"
    try:
        tracking.log_missing_ends()
        over = sum(trial.over for trial in sweep.trials.values())
        count = config.num_samples if config.suggested else len(sweep.trials)
        begun = f", {over} of them over" if over else ""
        print(f"  trials  {count}{begun}\n  into    {sweep.shown}", flush=True)
        with stop.on_signals(), ended_without_ray(record, tracking, stop):
            grid = fit(record, domains, tracking, capacity, stop)
        status = "KILLED" if stop.asked() else "FINISHED"
    except Exception as error:
        tracking.fail(error)
        raise
    finally:
        try:
            close(record, tracking, status)
        finally:
            asked = stop.asked()
            stop.clear()
    if asked:
        print("stopped; all that was trained is saved: the same command resumes it")
        return Done(STOPPED_STATUS, sweep, grid)
    return Done(conclude(sweep, record.budget.spent()), sweep, grid)


def close(record: SweepRecord, tracking: SweepTracking, status: Status) -> None:
    """Write down what the sweep has found, and end its run in MLflow."""
    try:
        record.settle()
        best = record.sweep.best()
        if best:
            write_best(record.sweep, best)
    finally:  # also if the disk is full
        tracking.close(status)


@contextlib.contextmanager
def ended_without_ray(record: SweepRecord, tracking: SweepTracking, stop: Stop) -> Iterator[None]:
    """While the block runs, end this process where Ray itself has died. Tune would stand still, until Ray ends the process after a
    minute.
    """
    ray_watch = ray_session.Watch()

    def look(over: threading.Event) -> None:
        while not over.wait(ray_session.LOOK_SECONDS):
            try:
                ray_watch.check()
            except ray_session.RayLost as lost:
                asked = stop.asked()
                try:
                    tracking.fail(lost)
                    close(record, tracking, "KILLED" if asked else "FAILED")
                finally:
                    ray_session.end_process(lost, f"the sweep is in {record.sweep.shown}", "resumes there", asked)

    with in_background(look, "ray watch"):
        yield


def write_best(sweep: Sweep, best: Trial) -> None:
    """best.json: the best trial so far, as a preset, and the command that trains it again."""
    trial = sweep.run_of(best)
    run = replace(
        trial, run=sweep.config.train.run + BEST, allow_change=(), tracking=replace(trial.tracking, parent="")
    )
    preset = best.values.get("preset", sweep.config.preset)
    changed = options(replace(run, root=cli.shown(run.root) or "."), replace(PRESETS[preset], run=""))
    values = {
        "trial": best.id,
        "values": best.values,
        **(named(best.best, sweep.config.metric) or {}),
        "metric": sweep.config.metric,
    }
    command = shlex.join(["python", "-m", "pipelines.train", preset, *changed])
    sweep.write("best.json", {**values, "command": command, "exploited": best.exploited, "config": to_json(run)})


def conclude(sweep: Sweep, spent: str = "") -> int:
    """Print the findings and what to do next. ``spent``: the message that the budget is spent, or empty. Returns the exit status.

    Raises UserError where there are no trials, though there was time for them.
    """
    if not sweep.trials and not spent:
        raise UserError(
            f"--search {sweep.config.search} has suggested no trial: vary something else, or choose --search random"
        )
    left = len(sweep.left)
    if sweep.config.suggested:  # trials that the searcher has not suggested yet
        left += max(0, sweep.config.num_samples - len(sweep.trials))
    most = sweep.config.max_trials
    if left and spent:
        print(f"{spent}: {counted(left, 'trial')} not done; rerun the command with a larger budget to resume")
    elif left and most and sum(trial.over for trial in sweep.trials.values()) >= most:
        print(f"--max-trials {most}: {counted(left, 'trial')} left; rerun the command with more to train them too")
    failed = sum(trial.status == "failed" for trial in sweep.trials.values())
    if failed:
        print(
            f"{counted(failed, 'trial')} failed, for good in this sweep: to train such a trial again, start one by another --run"
        )
    run = sweep.config.train
    ui = cli.typed_ui(Path(run.root).absolute()) if run.tracking.in_own_file else ""
    return print_findings(read_sweep(sweep.folder), sweep.run.place, ui)
