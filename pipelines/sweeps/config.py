"""What a sweep is told: the options of `pipelines.tune` before those of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from data_prep.errors import UserError, nearest
from pipelines.config.run import TrainConfig
from pipelines.tracking.metrics import METRICS
from tune_spaces import Rule
from tune_spaces.drawing import SEARCHERS
from tune_spaces.named import is_path
from tune_spaces.stopping import SCHEDULERS, changes_values

NAMES = {
    "search": ("random", "grid", *SEARCHERS),
    "scheduler": tuple(SCHEDULERS),
    "stop": ("none", "plateau"),
}
"""Of fields that take an import path too."""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep over a preset. Repeating the command resumes it. The fields of a run come after those of the sweep."""

    space: tyro.conf.Suppress[str]
    """What is varied: named spaces and fields joined by +."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The run that is varied; `run` names the sweep."""
    preset: str = "small-rec"
    """Named run around which the space is laid."""
    samples: int = 12
    """Trials to draw; a grid has as many as it has."""
    search: str = "random"
    """random: independent draws; grid: every combination; or what optuna (pip install optuna) or bohb (pip install hpbandster
    ConfigSpace) suggests from the results so far; or another searcher of Ray Tune's by its import path, with arguments:
    'ray.tune.search.hyperopt:HyperOptSearch(n_initial_points=5)'."""
    points: int = 3
    """Values that a grid takes of a range."""
    scheduler: str = "asha"
    """Which trials are stopped early: asha those not among the best of a rung; median those worse than the others' median; none;
    pbt none, but at every validation the worst quarter goes on from copies of the best quarter's checkpoints, with other rates.
    Or another scheduler of Ray Tune's by its import path (docs/sweeps.md); its time is in tokens, HyperBand's in rungs:
    'ray.tune.schedulers:HyperBandScheduler', 'ray.tune.schedulers:ASHAScheduler(brackets=2)', 'ray.tune.schedulers.pb2:PB2'."""
    stop: str = "none"
    """Which trials are stopped besides: none; plateau those whose last four figures differ by less than 0.01; or a stopper of Ray
    Tune's by its import path: 'ray.tune.stopper:TrialPlateauStopper(std=0.001, num_results=6)'."""
    reduction: int = 3
    """asha: one in so many goes on from a rung to the next."""
    rung_tokens: int = 0
    """Tokens before a trial may be stopped (asha: its first rung); 0 is a ninth of a trial."""
    equal: Literal["tokens", "flops", "steps"] = "tokens"
    """What all trials have as much of as the preset; their steps follow from it."""
    metric: str = "validation/bits_per_token"
    """The figure to make small: one that is better when lower, of validation or of training (pipelines/tracking/metrics.py).
    validation/bits_per_byte compares vocabularies."""
    concurrent: int = 0
    """Trials at once, at most; 0 for as many as fit."""
    baseline: Literal["yes", "no"] = "yes"
    """Whether the preset itself is the first trial, which is never stopped early."""
    workers: Literal["reuse", "fresh"] = "reuse"
    """Whether the actors of a trial that has ended take the next one, or new ones are started for each."""
    seconds: float = 0
    """Budget of wall time, over all starts of the command; 0 for none."""
    tokens: int = 0
    """Budget of training tokens over all trials; 0 for none."""
    trials: int = 0
    """Budget of trials: those beyond are not begun; 0 for none."""
    num_cpus: int = 0
    """CPUs that the sweep may use of this machine; 0 for all."""

    def __post_init__(self) -> None:
        choices = [metric.name for metric in METRICS.values() if metric.better == "lower"]
        if self.metric not in choices:
            raise UserError(f"metric is {self.metric!r}: {nearest(self.metric, choices)}")
        for name, known in NAMES.items():
            if getattr(self, name) not in known and not is_path(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)!r}: {nearest(getattr(self, name), known)}")
        least = {"samples": 1, "points": 1, "reduction": 2}
        for name in (*least, "rung_tokens", "concurrent", "seconds", "tokens", "trials", "num_cpus"):
            if getattr(self, name) < least.get(name, 0):
                raise UserError(f"{name} is {getattr(self, name)}: it must be at least {least.get(name, 0)}")

    @property
    def populates(self) -> bool:
        """Whether trials go on from each other. Raises ValueError for a scheduler that is none."""
        return changes_values(self.scheduler)

    @property
    def suggested(self) -> bool:
        """Whether a searcher chooses trials by the results of those before."""
        return self.search not in ("random", "grid")

    @property
    def whole(self) -> int:
        """Tokens of a trial, where all have the same."""
        return self.train.steps * self.train.tokens_per_step


def rule_of(config: SweepConfig, domains: Mapping[str, Any]) -> Rule:
    """The scheduler of a sweep. Raises ValueError where it cannot be."""
    least, every = (
        config.rung_tokens or max(1, config.whole // 9),
        config.train.validate_every * config.train.tokens_per_step,
    )
    return Rule(config.scheduler, least, config.whole, config.reduction, every, domains, config.train.seed)
