"""Runs a sweep's trials on Ray Tune, by its public interface: any scheduler of Tune's under Tune's own controller.

    grid = fit(record, domains, tracking, capacity, stop)       # Tune's own ResultGrid

Each start gives Tune all trials of the sweep. A trial that is over, or further than this start of Tune knows, first reports the
metrics of its metrics.jsonl again, without training. So schedulers, searchers and the ResultGrid know every trial of every start. A
decision is in results.jsonl before it is acted on, and holds. Nothing is restored from Tune's own snapshots. They hold no secret:
Tune knows a trial's values, and the trial takes the rest of its run from Ray's object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune import TuneError
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import TrialScheduler
from ray.tune.stopper import Stopper

from common.errors import UserError
from pipelines.cluster.ray_train import first_line
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.offering import NotKept, QueueSearcher, name_of, space
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.scheduling import Keys, RecordedScheduler
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.tracking import SweepTracking
from pipelines.sweeps.trial import NotSaved, TrialActor, pointer_of
from pipelines.training.stopping import Stop
from tune_spaces.drawing import METRIC, Searcher
from tune_spaces.stopping import pauses_trials, stopper

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # each trial tracks itself
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C saves first
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no metric
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # nothing is restored from snapshots
}
LOOK_SECONDS = 0.1
"""Polling interval for progress and stop requests."""
KEEP_SECONDS = 10.0
"""Seconds between records of the sweep's time."""


class Watch(NotKept, tune.Callback, Stopper):
    """Follows the trials: changes by a population, their progress, and their ends. Ends Tune's run once no trial is running and
    none is to begin.
    """

    def __init__(self, record: SweepRecord, stop: Stop, capacity: TrialCapacity, keys: Keys) -> None:
        self._keys = keys
        self._capacity = capacity
        self._record = record
        self._sweep = record.sweep
        self._stop = stop
        self._looked = 0.0
        self._kept = 0.0
        self.trials: list[Any] = []
        """Tune's trials in their present state."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Whether Tune's run is over. Tune asks once per turn, after it has made actors, so the keys are put back here."""
        self._keys.show()
        return self._record.closed() and not any(trial.status == "RUNNING" for trial in self.trials)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """From time to time check for a request to stop, read the trials' progress, and save the seconds that were spent."""
        self.trials[:] = trials
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._record.asked = self._record.asked or self._stop.asked()
            self._record.watch()
            self._capacity.at_once()  # prints when machines come and go
        if now - self._kept > KEEP_SECONDS:
            self._kept = now
            self._record.budget.keep()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial begins, and what a population changed of its values."""
        ours = self._sweep.trials[str(trial)]
        if ours.over:
            return
        if trial.checkpoint:
            values = {field: trial.config[field] for field in self._sweep.fields}
            source, step = pointer_of(trial.checkpoint)
            self._record.exploit(ours, values, source, step)
        self._record.begin(ours)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        ours = self._sweep.trials[str(trial)]
        if METRIC in result and self._record.known(ours, result["step"]) is None:  # the last, which ends the trial
            self._record.add(ours, result["step"], result[METRIC], TrialScheduler.CONTINUE)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ours = self._sweep.trials[str(trial)]
        reason = why(trial)
        refused = NotSaved.FORM.search(reason)
        if refused is None:
            self._record.died(ours, f"a worker died ({reason})")
        elif refused[1] == "retryable":
            self._record.interrupt(ours, refused[2])
        else:
            self._record.died(ours, refused[2])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A kept actor could not take the trial. Tune does not try it again in this start, so the sweep saves and stops."""
        ours = self._sweep.trials[str(trial)]
        reason = why(trial)
        self._record.interrupt(ours, reason)
        self._record.ended(ours, "retryable", reason)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        result = trial.last_result or {}
        ours = self._sweep.trials[str(trial)]
        self._record.ended(ours, result.get("outcome", "stopped"), result.get("reason", ""))


def why(trial: Any) -> str:
    """The cause of a worker's end, in a line. ``trial``: Tune's, whose error file has all failures, the newest last."""
    text = Path(trial.error_file).read_text("utf-8") if trial.error_file else ""
    newest = text.rpartition("Failure # ")[2].partition("\n")[2]
    if "ray::" in newest.partition("\n")[0]:  # a worker's traceback, whose last line is the error
        return newest.strip().rpartition("\n")[2]
    return first_line(RuntimeError(newest))


def fit(
    record: SweepRecord,
    domains: Mapping[str, Any],
    tracking: SweepTracking,
    capacity: TrialCapacity,
    stop: Stop,
    actor: type[TrialActor] = TrialActor,
) -> tune.ResultGrid:
    """Run the trials of a sweep that are left. Raises UserError where a person has to fix something first."""
    config = record.sweep.config
    notes = record.sweep.run.place / ".tune"
    notes.delete()
    keys = Keys()
    stops = stopper(config.stop)
    watch = Watch(record, stop, capacity, keys)
    queue = None
    if config.suggested:
        searcher = Searcher(config.search, domains, config.train.seed, record.sweep.drawn())
        queue = QueueSearcher(record, searcher, stops, capacity, watch.trials)
    waiting = pauses_trials(config.scheduler)
    # A searcher's queue keeps the limit itself; trials that wait for each other must all begin.
    limit = None if config.suggested or waiting else config.most_at_once
    # HyperBand compares the trials that Tune knows: with one more than run, it would find nothing to compare them with.
    ahead = len(record.sweep.known) if waiting and queue is None else 0
    tune_config = tune.TuneConfig(
        metric=config.metric,
        mode="min",
        num_samples=-1 if queue else 1,
        max_concurrent_trials=limit,
        search_alg=queue,
        scheduler=RecordedScheduler(config.make_scheduler(domains), record, stops, keys),
        reuse_actors=config.workers == "reuse",
        trial_name_creator=name_of,
        trial_dirname_creator=name_of,
    )
    run_config = tune.RunConfig(
        name="trials",
        storage_path=notes.recorded,
        verbose=0,
        stop=watch,
        callbacks=[watch, JsonLoggerCallback(), CSVLoggerCallback()],
        failure_config=tune.FailureConfig(max_failures=-1),  # the record counts those without progress
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
    )
    trainable = trainable_of(record.sweep, tracking, capacity, actor)
    param_space = None if queue else space(record.sweep)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a sweep prints its own reports
    with settings_of_tune({**ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(max(ahead, capacity.at_once()))}):
        tuner = tune.Tuner(trainable, param_space=param_space, tune_config=tune_config, run_config=run_config)
        try:
            grid = tuner.fit()
        except TuneError as error:
            raise wrapped_by(error) from None
        except RuntimeError as error:
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            raise killed_for_memory(error.__cause__) from None
        finally:
            keys.show()
    record.budget.keep()
    if record.retryable:
        raise UserError(record.retryable)
    return grid


def trainable_of(sweep: Sweep, tracking: SweepTracking, capacity: TrialCapacity, actor: type[TrialActor]) -> Any:
    """What Tune runs as a trial: an actor with the sweep, which tracks itself as a child, and with the resources that it takes."""
    train = sweep.config.train
    theirs = Sweep(replace(sweep.config, train=tracking.as_child(train)), sweep.fields)
    with_sweep = tune.with_parameters(actor, sweep=theirs, use_gpu=capacity.use_gpu)
    return tune.with_resources(with_sweep, actor.resources(train, capacity.use_gpu))


@contextlib.contextmanager
def settings_of_tune(environment: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs, and restore them afterwards: a notebook may have its own Tuner."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def wrapped_by(error: BaseException) -> BaseException:
    """The error of ours behind an error of Tune's loop; Tune's own where there is none."""
    while isinstance(error, TuneError):
        cause = error.__cause__ or error.__context__
        if cause is None:
            break
        error = cause
    return error


def killed_for_memory(error: OutOfMemoryError) -> UserError:
    """The sentence for workers that Ray has killed to free memory. Tune's loop ends with them, and retries no trial."""
    return UserError(
        f"{first_line(error)}: free memory, or run fewer trials at once (--max-concurrent-trials), and rerun the command to resume"
    )
