"""Early stopping by Ray Tune's rules, fed with results by whoever runs the trials.

    rule = Rule("asha", least=3072, most=27648, reduction=3)      in tokens
    rule.add("000")
    rule.result("000", tokens=3072, value=6.1)                    # True: stop it
    Rule("ray.tune.schedulers:AsyncHyperBandScheduler(grace_period=3072, max_t=27648)", …)      any that decides by results
    stops = Plateau("plateau"); stops.result("000", tokens=3072, value=6.1)

Their state is a pure function of the results in their order: feeding these again restores it, and nothing is pickled.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.stopper import Stopper

from tune_spaces.named import is_path, make

STEERING = (
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)
"""Schedulers that do not decide by results alone, but pause and change the trials of Tune's controller."""


class Rule:
    """When a trial is stopped, by the lower-is-better value that it has after so many tokens.

    - asha: at rungs of ``least``, ``least · reduction``, … tokens, unless it is among the best 1/``reduction`` of those so far.
    - median: from ``least`` tokens on, when its best is worse than the median of the others' running means.
    - an import path: any other scheduler that decides by results. Raises ValueError for one that does not.
    """

    def __init__(self, name: str, least: int, most: int, reduction: int = 3) -> None:
        if name == "asha":
            self._rule: Any = ASHAScheduler(
                time_attr="tokens",
                metric="value",
                mode="min",
                grace_period=least,
                max_t=max(most, least + 1),
                reduction_factor=reduction,
                stop_last_trials=False,  # a trial ends by itself
            )
        elif name == "median":
            self._rule = MedianStoppingRule(
                time_attr="tokens", metric="value", mode="min", grace_period=least, min_samples_required=2
            )
        elif is_path(name):
            self._rule = make(name, time_attr="tokens", metric="value", mode="min")
            if not isinstance(self._rule, TrialScheduler) or isinstance(self._rule, STEERING):
                raise ValueError(
                    f"{name} is no scheduler that decides by results alone, so that a sweep could not go on with it after a kill: "
                    "choose asha, median or pbt"
                )
        else:
            self._rule = FIFOScheduler()
        self._trials: dict[str, Any] = {}
        self._sweep: Any = SimpleNamespace(get_live_trials=list)

    def add(self, trial: str) -> None:
        if trial not in self._trials:
            self._trials[trial] = _Trial(trial)
            self._rule.on_trial_add(self._sweep, self._trials[trial])

    def result(self, trial: str, tokens: int, value: float) -> bool:
        """Whether to stop it."""
        told = {"tokens": tokens, "value": value, "training_iteration": tokens}
        return self._rule.on_trial_result(self._sweep, self._trials[trial], told) == TrialScheduler.STOP


class Plateau:
    """When a trial has come to rest: Tune's TrialPlateauStopper, or any other stopper by its import path; none never."""

    def __init__(self, name: str) -> None:
        path = "ray.tune.stopper:TrialPlateauStopper" if name == "plateau" else name
        self._stopper: Any = make(path, metric="value", mode="min") if is_path(path) else None
        if self._stopper is not None and not isinstance(self._stopper, Stopper):
            raise ValueError(
                f"{name} is no stopper of Ray Tune's: choose plateau, or write ray.tune.stopper:Name(field=value, …)"
            )

    def result(self, trial: str, tokens: int, value: float) -> bool:
        """Whether to stop it."""
        told = {"tokens": tokens, "value": value, "training_iteration": tokens}
        return self._stopper is not None and bool(self._stopper(trial, told))

    def over(self) -> bool:
        """Whether to stop them all."""
        return self._stopper is not None and bool(self._stopper.stop_all())


class _Trial:
    """What the rules need of a trial."""

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
