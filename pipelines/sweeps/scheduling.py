"""The scheduler that Ray Tune asks: the sweep's own, whose decisions are written down first.

RecordedScheduler(rule, record, stops, keys)        # rule: any scheduler of Tune's
"""

from __future__ import annotations

import os
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import MedianStoppingRule, TrialScheduler
from ray.tune.stopper import Stopper

from pipelines.sweeps.offering import NotKept
from pipelines.sweeps.record import SweepRecord
from tune_spaces.drawing import METRIC, seeded
from tune_spaces.stopping import pauses_trials

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
"""The arguments that Ray Tune passes to actors; Ray writes them into its logs. A machine has them in its own environment."""


class Keys:
    """Hides the keys of buckets from Ray Tune until it has made the first actor, since all others get the same settings.

    The thread that writes Tune's snapshots needs the keys, so they are back before Tune begins one.
    """

    def __init__(self) -> None:
        self.starting = False
        """Whether Tune starts an actor before the keys are shown again."""
        self._made = False
        self._hidden: dict[str, str] = {}

    def hide(self) -> None:
        if not self._made:
            self._hidden |= {name: os.environ.pop(name) for name in KEYS if name in os.environ}

    def show(self) -> None:
        """Put the keys back into the environment."""
        self._made = self._made or self.starting
        os.environ.update(self._hidden)
        self._hidden = {}


class RecordedScheduler(NotKept, TrialScheduler):
    """A scheduler that writes each decision to results.jsonl before it returns it. A step in that file keeps its decision."""

    def __init__(self, rule: TrialScheduler, record: SweepRecord, stops: Stopper, keys: Keys) -> None:
        super().__init__()
        self._keys = keys
        self._rule = rule
        self._record = record
        self._stops = stops
        self._by_results = not pauses_trials(record.sweep.config.scheduler)
        """Whether the same results, given again, bring the scheduler back to the same state."""
        self._before = record.settled_tokens() if record.sweep.config.populates else 0
        self._stopped: set[str] = set()
        """Trials that the median rule has stopped: it must not hear of them again, even if they continue."""

    @property
    def metric(self) -> str | None:
        return self._rule.metric

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Give the scheduler the sweep's metric under one name, whatever the sweep calls it."""
        self._rule.set_search_properties(METRIC, "min", **spec)  # one that has them already ignores it
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._rule.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._rule.on_trial_error(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if METRIC in result:
            self._rule.on_trial_complete(tune_controller, trial, result)
        else:  # it ended without a metric, and the median rule would count it all the same
            self._rule.on_trial_remove(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._rule.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        self._keys.hide()  # Tune makes this trial's actor next, and then asks Watch.stop_all
        chosen = self._rule.choose_trial_to_run(tune_controller)
        if chosen is None and self._record.sweep.config.populates:
            self._compare_waiting(tune_controller)
            chosen = self._rule.choose_trial_to_run(tune_controller)
        self._keys.starting = chosen is not None
        return chosen

    def _compare_waiting(self, tune_controller: Any) -> None:
        """Have a population compared if all its trials wait. It is compared at a metric of its last trial, which may have ended
        without one.
        """
        live = tune_controller.get_live_trials()
        if not live or any(trial.status != Trial.PAUSED for trial in live):
            return
        last = max(live, key=str)  # Tune has them in a set: the same one in every start
        self._ask_rule(tune_controller, last, last.last_result)

    def debug_string(self) -> str:
        return self._rule.debug_string()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        ours = self._record.sweep.trials[str(trial)]
        config = self._record.sweep.config
        step = result["step"]
        decision = self._ask_rule(tune_controller, trial, result)
        rests = self._stops(ours.id, result)
        self._record.ended_by_stopper = self._record.ended_by_stopper or self._stops.stop_all()
        known = self._record.known(ours, step)
        if known is not None:
            return known if self._by_results or known == self.STOP else decision
        by = config.scheduler
        if (rests or self._record.ended_by_stopper) and decision != self.STOP:
            decision = self.STOP
            by = config.stop
        if decision == self.STOP and ours.baseline:  # it is never stopped early
            decision = self.CONTINUE
        self._record.add(ours, step, result[METRIC], decision, by)
        return decision

    def _ask_rule(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """The rule's own decision on a metric."""
        if str(trial) in self._stopped:
            return self.CONTINUE
        since_before = {**result, "tokens": max(0, result["tokens"] - self._before)}
        with seeded(f"{self._record.sweep.config.train.seed}/{result['tokens']}"):
            decision = self._rule.on_trial_result(tune_controller, trial, since_before)
        if decision == self.STOP and isinstance(self._rule, MedianStoppingRule):
            self._stopped.add(str(trial))
        return decision
