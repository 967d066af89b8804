"""Runs a sweep's trials on Ray Tune: Tune's Tuner holds actors, resources and failures, and asks the sweep's own memory what to do.

    fit(Recorded(memory, stop, tracking.below, room))

Tune's snapshots lag behind, and lack the scheduler: nothing is restored from them, and they are empty. What Tune asks, the
scheduler of pipelines/sweeps/scheduler.py answers, which has written it into results.jsonl before; each start of the command gives
Tune the trials that are left.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ray import tune
from ray.tune import TuneError
from ray.tune.execution import class_cache
from ray.tune.execution.tune_controller import TuneController
from ray.tune.impl.tuner_internal import TunerInternal
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from common.errors import UserError
from pipelines.checkpoints.run_place import RunPlace
from pipelines.cluster.ray_train import first_line
from pipelines.config.run import TrainConfig, to_json
from pipelines.sweeps import sweep as sweeps
from pipelines.sweeps.capacity import Room
from pipelines.sweeps.scheduler import SweepScheduler
from pipelines.sweeps.trial import NotSaved, Trial
from pipelines.training.stopping import Stop

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # each trial tracks itself
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C saves first
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # nothing is restored from snapshots
}
LOOK_SECONDS = 0.1
"""How often it is looked how far trials are, and whether to stop."""
KEEP_SECONDS = 10.0
"""How often the seconds that the sweep has taken are written down."""


KEPT = ("_trials", "_stopped_trials", "_failed_trials", "_trials_to_cache")
"""Where Tune's controller keeps trials that are over, for its own ResultGrid and snapshots."""


def fit(recorded: Recorded, trainable: type[tune.Trainable] = Trial) -> None:
    """Run what is left of a sweep."""
    config, notes = recorded.sweep.config, recorded.sweep.run.place / ".tune"
    notes.delete()
    with settings_of_tune({**ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(recorded.room.at_once())}):
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=Offered(recorded),
                scheduler=recorded,
                reuse_actors=config.workers == "reuse",
                trial_dirname_creator=lambda trial: trial.config["trial"],
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=notes.path,
                storage_filesystem=None if notes.is_local else notes.filesystem,
                verbose=0,
                callbacks=[Silent()],
                # With a number to keep, each would take a snapshot.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            ),
        )
        try:
            tuner.fit()
        except TuneError as error:
            raise wrapped_by(error) from None
        if recorded.error:
            raise recorded.error
        if recorded.hindered:
            raise UserError(recorded.hindered)


@contextmanager
def settings_of_tune(environment: Mapping[str, str]) -> Iterator[None]:
    """What has happened to a trial is told in our own words. Afterwards Tune is as it was: a notebook may have its own Tuner."""
    logger, passed = logging.getLogger("ray.tune"), class_cache.ENV_VARS_TO_PROPAGATE
    before, level = {name: os.environ.get(name) for name in environment}, logger.level
    snapshot, state = TuneController.save_to_dir, TunerInternal.__getstate__
    os.environ.update(environment)
    logger.setLevel(logging.CRITICAL)
    # A machine has the keys of buckets in its own environment. Those that Ray Tune passes to trials, Ray writes into its logs.
    class_cache.ENV_VARS_TO_PROPAGATE = {name for name in passed if not name.startswith("AWS_")}
    TuneController.save_to_dir, TunerInternal.__getstate__ = empty_snapshot, lambda self: {}
    try:
        yield
    finally:
        TuneController.save_to_dir, TunerInternal.__getstate__ = snapshot, state
        class_cache.ENV_VARS_TO_PROPAGATE = passed
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def empty_snapshot(self: Any) -> None:
    """In place of Tune's, which hold what every trial is given: passwords and keys of buckets too. At its end it asks for one."""
    folder = Path(self._storage.experiment_driver_staging_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / self.experiment_state_file_name).write_text('{"trial_data": []}')


def wrapped_by(error: BaseException) -> BaseException:
    """An error of ours, which was raised in Tune's loop; Tune's own where there is none."""
    while isinstance(error, TuneError) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error


class Silent(TrialProgressCallback):
    """In place of Tune's, which keeps every trial to print of it what nobody asks for."""

    def on_trial_result(self, *args: Any, **info: Any) -> None: ...

    on_trial_error = on_trial_complete = on_trial_result


class Recorded(TrialScheduler):
    """What Tune asks of a scheduler, answered by the sweep's memory; ``below`` puts a run below the sweep's.

    A trial that goes on is a new one to Tune, which itself resumes none: a run finds its own checkpoint.
    """

    def __init__(
        self, memory: SweepScheduler, stop: Stop, below: Callable[[TrainConfig], TrainConfig], room: Room
    ) -> None:
        super().__init__()
        self._memory, self._stop, self._below, self.room, self.sweep = memory, stop, below, room, memory.sweep
        self._given: dict[str, Any] = {}
        """Tune's trials that are not over, by our names."""
        self._kept = self._looked = 0.0
        self.error: Exception | None = None
        """Of ours, where Tune would take it for a trial's."""
        self.hindered = ""
        """Why no trial goes on, where a person has to see to something first."""

    # What Tune is given

    def offer(self) -> Any:
        """The config of a trial to begin; None where there is none now, FINISHED where there will be none."""
        if len(self._given) < self.room.at_once() and (ours := self._memory.next()):
            return self._config(ours)
        return None if self._given else Searcher.FINISHED

    def _config(self, ours: sweeps.Trial) -> dict[str, Any]:
        run = self._below(self._memory.run_of(ours))
        (RunPlace.of(run).place / "config.json").write_atomically(json.dumps(to_json(run), indent=1).encode())
        if ours.steps == 0:
            print(f"trial {ours.id} begins: {ours.told()}", flush=True)
        return {"trial": ours.id, "run": run, "metric": self.sweep.config.metric, "use_gpu": self.room.use_gpu}

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._given[trial.config["trial"]] = trial

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Called at every turn of Tune's loop, which handles one event. Tune itself begins what it was given."""
        if self.error:
            raise self.error
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look(tune_controller)
            self._looked = time.monotonic()

    def _look(self, controller: Any) -> None:
        for trial in self._memory.busy:
            self._memory.watch(trial)
        if asked := bool(self._stop.asked() or self.hindered):
            self._memory.interrupt()
        for trial in list(self._given.values()):
            if trial.status == "PAUSED" or (trial.status == "PENDING" and asked):
                controller.stop_trial(trial)
        for trial in [trial for trial in controller.get_trials() if trial.is_finished()]:
            for name in KEPT:  # results are made of the sweep's files
                if trial in (kept := getattr(controller, name, [])):
                    kept.remove(trial)
        if time.monotonic() - self._kept > KEEP_SECONDS:
            self._memory.budget.keep()
            self._kept = time.monotonic()

    # What Tune tells

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        ours = self.sweep.trials[trial.config["trial"]]
        if self._hear(ours, result):
            return self.STOP
        return self.PAUSE if self._memory.stays(ours, result["step"]) else self.CONTINUE

    def _hear(self, ours: sweeps.Trial, result: Mapping[str, Any]) -> bool:
        return any([self._memory.result(ours, step, value) for step, value in result.get("figures", ())])

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._ended(trial, result.get("outcome", "stopped"), result.get("said", ""), result)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        trial.run_metadata.pickled_error_filename = None  # never read
        said = why(trial)
        found = NotSaved.FORM.search(said)
        outcome, said = found.groups() if found else ("died", f"a worker died ({said})")
        self._ended(trial, outcome, said)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._ended(trial, "stopped")

    def _ended(
        self, trial: Any, outcome: Any, said: str = "", result: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        ours = self.sweep.trials[trial.config["trial"]]
        if self._given.get(ours.id) is not trial or self.error:  # Tune says twice that one has died
            return
        del self._given[ours.id]
        if outcome == "hindered":
            self.hindered = self.hindered or f"trial {ours.id}: {said}"
        try:
            self._hear(ours, result)
            self._memory.ended(ours, outcome, said)
            if self.hindered:
                self._memory.interrupt()  # before Tune asks for one more
        except Exception as error:
            self.error = error
            raise
        if ours.over:
            figure = f"{ours.last.value:.4f} at step {ours.last.step}" if ours.last else "no figure"
            print(f"trial {ours.id} {ours.status}: {figure}{', ' + ours.reason if ours.reason else ''}", flush=True)


def why(trial: Any) -> str:
    """What ended a trial's worker, in a line."""
    # Not yet where Tune's own `get_error` looks for it.
    said = Path(trial.error_file).read_text("utf-8") if trial.error_file else ""
    said = said.rpartition("Failure # ")[2].partition("\n")[2]  # of the newest failure
    ends = "ray::" in said.partition("\n")[0]
    return said.strip().rpartition("\n")[2] if ends else first_line(RuntimeError(said))


class Offered(Searcher):
    """What Tune asks of a searcher: the trials that the memory has next."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self._recorded = recorded

    def suggest(self, trial_id: str) -> Any:
        return self._recorded.offer()

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...
