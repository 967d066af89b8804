"""Gives Ray Tune the trials of a sweep, one after the other: first the known ones, then those that a searcher suggests.

space(sweep)                  # for Tune's own generator, where all trials are known before the sweep begins
tune.TuneConfig(search_alg=QueueSearcher(record, searcher, stops, capacity, trials))     # where a searcher suggests trials
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from ray import tune
from ray.tune.search import Searcher as TuneSearcher
from ray.tune.stopper import Stopper

from common.errors import UserError
from pipelines.reports.sweep_result import Trial
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.planning import suggest
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.sweep import Sweep
from tune_spaces.drawing import METRIC, Searcher


class NotKept:
    """Part of a Tuner that its snapshots leave out, as nothing is restored from them. A copy made by Tune is the object itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def space(sweep: Sweep) -> dict[str, Any]:
    """The known trials in their order, as Tune's own generator takes them."""
    values = {trial.id: trial.values for trial in sweep.known}
    fields = {field: tune.sample_from(partial(value_of, values, field)) for field in sweep.fields}
    return {"trial": tune.grid_search(list(values)), **fields}


class QueueSearcher(NotKept, TuneSearcher):
    """Gives Tune a sweep's trials, each under its own name: first the known ones, then those that a searcher suggests."""

    def __init__(
        self, record: SweepRecord, searcher: Searcher, stops: Stopper, capacity: TrialCapacity, trials: list[Any]
    ) -> None:
        super().__init__()
        self._record = record
        self._sweep = record.sweep
        self._searcher = searcher
        self._stops = stops
        self._capacity = capacity
        self._trials = trials
        """Tune's trials in their present state; the Watch keeps the list up to date."""
        self._names: dict[str, str] = {}
        """Our name of each trial, by Tune's id."""
        self._known = self._sweep.known
        self._suggests = True
        """Whether the searcher may have more to suggest."""

    def suggest(self, trial_id: str) -> Any:
        """The values of the next trial; None where there is none now."""
        live = sum(trial.status in ("PENDING", "RUNNING") for trial in self._trials)
        live += len(self._names) - len(self._trials)  # given since the list was brought up to date
        if live >= self._capacity.at_once():
            return None
        trial = self._next()
        if trial is None:
            running = any(not trial.is_finished() for trial in self._trials)  # their results bring more trials
            return None if self._may_suggest() and running else TuneSearcher.FINISHED
        self._names[trial_id] = trial.id
        return {"trial": trial.id, **trial.values}

    def _next(self) -> Trial | None:
        if self._known:
            trial = self._known.pop(0)
            if not trial.baseline:
                self._searcher.recall(trial.id)
            return trial
        if not self._may_suggest():
            return None
        try:
            return suggest(self._sweep, self._searcher)
        except UserError as error:
            self._suggests = False
            print(f"note: {error}", flush=True)
            return None

    def _may_suggest(self) -> bool:
        config = self._sweep.config
        most = min(config.max_trials or config.num_samples, config.num_samples)
        ended = self._record.closed() or self._stops.stop_all()
        return self._suggests and len(self._sweep.trials) < most and not ended

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if METRIC in result:
            self._searcher.result(self._names[trial_id], result["tokens"], result[METRIC])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._sweep.trials[self._names[trial_id]]
        failed = error or (result or {}).get("outcome") == "failed"
        value = trial.last.value if trial.last and not failed else None
        self._searcher.complete(trial.id, trial.tokens, value)

    def on_pause(self, trial_id: str) -> None:
        self._searcher.pause(self._names[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        self._searcher.resume(self._names[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the draws are in results.jsonl."""
        Path(checkpoint_path).write_text("{}")

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: `save` keeps nothing."""


def name_of(trial: Any) -> str:
    """Our name of a trial of Tune's that has just been made."""
    return trial.config["trial"]


def value_of(values: Mapping[str, Mapping[str, Any]], field: str, spec: Any) -> Any:
    """A field's value in a trial that Tune's generator makes."""
    return values[spec.config.trial][field]
