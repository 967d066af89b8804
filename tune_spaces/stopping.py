"""Early stopping by Ray Tune's rules, fed with results by whoever runs the trials.

    rule = Rule("asha", least=3072, most=27648, reduction=3)      in tokens
    rule.add("000")
    rule.result("000", tokens=3072, value=6.1)                    # True: stop it

Their state is a pure function of the results in their order: feeding these again restores it, and nothing is pickled.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

Name = Literal["asha", "median", "none"]


class Rule:
    """When a trial is stopped, by the lower-is-better value that it has after so many tokens.

    - asha: at rungs of ``least``, ``least · reduction``, … tokens, unless it is among the best 1/``reduction`` of those so far.
    - median: from ``least`` tokens on, when its best is worse than the median of the others' running means.
    """

    def __init__(self, name: Name, least: int, most: int, reduction: int = 3) -> None:
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


class _Trial:
    """What the rules need of a trial."""

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
