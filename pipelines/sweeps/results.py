"""A sweep's results as Ray Tune's ResultGrid, made of the sweep's own files: trials of all starts are in it, and Ray need not run.

grid = results(Path("runs/small-rec-lr"))
grid.get_best_result(scope="all").config        # {"optim.lr": 0.003}: lower is better, at whichever validation it was
grid.get_dataframe()
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pandas import DataFrame
from ray import tune
from ray.tune import ExperimentAnalysis, TuneError
from ray.tune.experiment import Trial as TuneTrial

from common.places import Place
from pipelines.checkpoints.run_place import RunPlace
from pipelines.reports.sweep_result import TrialResult, read_sweep


class _Files(ExperimentAnalysis):
    """Tune's, with the curves of our own files."""

    def _load_trials(self) -> list[Any]:
        return []  # Tune unpickles them where it is given none

    def get_best_trial(self, *args: Any, **kwargs: Any) -> Any:
        """One that has not failed, if any: as best.json says."""
        every = self.trials
        self.trials = [trial for trial in every if trial.status != "ERROR"] or every
        try:
            return super().get_best_trial(*args, **kwargs)
        finally:
            self.trials = every

    def _fetch_trial_dataframe(self, trial: Any) -> DataFrame:
        return DataFrame(trial.results)


def results(folder: Path, place: Place | None = None) -> tune.ResultGrid:
    """The results of a sweep by its folder, and its place where that is in a bucket; a trial's figures are those of the sweep's
    metric. Raises UserError.
    """
    found = read_sweep(folder)
    place = place or Place.parse(folder)
    trials: list[Any] = [_as_tunes(place / f"trials/{trial.id}", found.metric, trial) for trial in found.trials]
    files = _Files(
        str((folder / "sweep.json").absolute()), trials=trials, default_metric=found.metric, default_mode="min"
    )
    return tune.ResultGrid(files)


def _as_tunes(place: Place, metric: str, trial: TrialResult) -> Any:
    """A trial as Tune knows one."""
    ours: Any = TuneTrial("Trial", config=dict(trial.values), trial_id=trial.id, stub=True)
    ours.storage = SimpleNamespace(trial_fs_path=place.path, storage_filesystem=place.filesystem)
    ours.status = {"failed": "ERROR", "pending": "PENDING", "running": "PAUSED"}.get(trial.status, "TERMINATED")
    said = {"config": ours.config, "trial_id": trial.id, "status": trial.status, "reason": trial.reason}
    error = TuneError(trial.reason) if trial.status == "failed" else None
    ours.get_pickled_error, ours.get_error = lambda: None, lambda: error
    ours.results = [{metric: point.value, "step": point.step, "tokens": point.tokens} for point in trial.points]
    ours.update_last_result(said)
    for number, result in enumerate(ours.results, start=1):
        result["training_iteration"] = number
        ours.update_last_result({**result, **said})
    for name in RunPlace(place).checkpoint_names()[:1]:
        checkpoint = tune.Checkpoint((place / f"checkpoints/{name}").path, place.filesystem)
        saved: Any = SimpleNamespace(checkpoint=checkpoint, metrics=ours.last_result)
        ours.run_metadata.checkpoint_manager.register_checkpoint(saved)
    return ours
