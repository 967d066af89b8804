"""Ray Tune's schedulers and stoppers by name, with arguments filled in from the sweep.

    rule = scheduler("asha", domains={}, rung_tokens=3072, trial_tokens=27648)      # tune's ASHAScheduler, in tokens
    stopper("plateau")                      # tune's TrialPlateauStopper

A scheduler's time is in tokens; HyperBand's in rungs of ``rung_tokens``. A lower metric is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.tune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.search.sample import Float, Integer
from ray.tune.stopper import Stopper

from tune_spaces import SCHEDULERS, STOPPERS
from tune_spaces.drawing import METRIC, listed_or_ends, rounded
from tune_spaces.named import Named

REFUSED = (PopulationBasedTrainingReplay, ResourceChangingScheduler)
"""These change a trial's resources, or repeat another sweep's changes."""
PAUSING = (PopulationBasedTraining, HyperBandScheduler)
"""These pause trials or change them: replaying results to them would repeat that."""
TIMES = ("tokens", "rungs", "training_iteration")
"""The units that a scheduler may count in."""
NUMBERS = (
    *("grace_period", "max_t", "reduction_factor", "perturbation_interval", "burn_in_period"),
    *("min_samples_required", "min_time_slice", "resample_probability", "quantile_fraction"),
)
"""Arguments of schedulers that must be numbers. The schedulers notice a mistake only in the middle of a sweep."""
TRIED_RESULTS = 8
"""Results with which a stopper is tested before a sweep: more than the grace period after which Tune's stoppers compare."""


def changes_values(name: str) -> bool:
    """Whether the scheduler changes the values of trials while they run. Raises ValueError if no scheduler has this name."""
    return issubclass(_named(name).kind, PopulationBasedTraining)


def pauses_trials(name: str) -> bool:
    """Whether the scheduler pauses trials until others have come as far. Raises ValueError if no scheduler has this name."""
    return issubclass(_named(name).kind, PAUSING)


def needs_searcher(name: str) -> bool:
    """Whether the scheduler reports to a searcher, as BOHB's does. Raises ValueError if no scheduler has this name."""
    return issubclass(_named(name).kind, HyperBandForBOHB)


def _named(name: str) -> Named:
    """The class of a scheduler, by its name or import path."""
    return Named.parse(SCHEDULERS.get(name, name))


def scheduler(
    name: str,
    domains: Mapping[str, Any],
    *,
    rung_tokens: int,
    trial_tokens: int,
    reduction: int = 3,
    validation_tokens: int = 1,
) -> TrialScheduler:
    """A scheduler by its name or import path, Ray Tune's or your own.

    Args:
        rung_tokens: tokens before a trial may be stopped (ASHA's first rung, and Ray Tune's ``grace_period``).
        trial_tokens: tokens of a whole trial.
        reduction: for ASHA, one trial in this many continues from a rung to the next.
        validation_tokens: tokens between two validations, at which a population is compared.

    Raises ValueError if there is no such scheduler, or it cannot be used in a sweep.
    """
    named = _named(name)
    offered: dict[str, Any] = {
        "metric": METRIC,
        "mode": "min",
        "time_attr": "tokens",
        "grace_period": rung_tokens,
        "max_t": max(trial_tokens, rung_tokens + 1),
        "reduction_factor": reduction,
        "stop_last_trials": False,  # a trial ends by itself
        "min_time_slice": math.inf,  # median: do not pause a trial to let others catch up
        "perturbation_interval": validation_tokens,
        "hyperparam_mutations": {key: getattr(domain, "categories", domain) for key, domain in domains.items()},
        "custom_explore_fn": partial(within_ranges, dict(domains)),
        "hyperparam_bounds": {key: [d.lower, d.upper] for key, d in domains.items() if isinstance(d, Float)},
        "log_config": False,
        "synch": True,
    }
    if issubclass(named.kind, HyperBandScheduler):
        offered |= {"time_attr": "rungs", "max_t": max(1, trial_tokens // rung_tokens)}
    check_written(name, named.given, domains, validation_tokens)
    if "hyperparam_bounds" in named.parameters and not (offered | named.given)["hyperparam_bounds"]:
        raise ValueError(
            f"{name} chooses values between two ends: write a range such as optim.lr=1e-4..1e-2, not a list"
        )
    rule = named.make(**offered)
    if not isinstance(rule, TrialScheduler) or isinstance(rule, REFUSED):
        raise ValueError(f"{name} is no scheduler that decides by results alone: choose asha, median or pbt")
    return rule


def check_written(name: str, given: Mapping[str, Any], domains: Mapping[str, Any], validation_tokens: int) -> None:
    """Raise ValueError for an argument, written with a scheduler's name, that would fail in the middle of a sweep."""
    mutations = given.get("hyperparam_mutations") or {}
    if not isinstance(mutations, dict):
        raise ValueError(f"{name}: hyperparam_mutations is {mutations!r}: write a dict of this sweep's fields")
    odd = sorted(set(mutations) - domains.keys())
    if odd:
        raise ValueError(f"{name}: this sweep does not vary {odd[0]}: it varies {', '.join(domains)}")
    counted = given.get("time_attr", "tokens")
    if counted not in TIMES:
        raise ValueError(
            f"{name}: results have no {counted!r}: count in {' or '.join(TIMES[:2])}, or leave time_attr out"
        )
    if not given.get("synch", True):
        raise ValueError(f"{name}: the State of a trial fits others at the same step alone: leave synch=False out")
    if changes_values(name) and counted != "tokens":
        raise ValueError(f"{name}: a population is compared after equal tokens: leave time_attr out")
    wrong = [
        key for key in NUMBERS if isinstance(given.get(key, 0), bool) or not isinstance(given.get(key, 0), int | float)
    ]
    if wrong:
        raise ValueError(f"{name}: {wrong[0]} is {given[wrong[0]]!r}: write a number")
    if given.get("reduction_factor", 2) <= 1:
        raise ValueError(f"{name}: reduction_factor is {given['reduction_factor']}: it must be greater than 1")
    if given.get("perturbation_interval", validation_tokens) < validation_tokens:
        raise ValueError(
            f"{name}: trials are compared where they are validated, every {validation_tokens:,} tokens: raise "
            "perturbation_interval, or leave it out"
        )


def within_ranges(domains: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The values that a population has changed, rounded, and clipped to the ranges of the sweep."""
    changed = dict(config)
    for key, domain in domains.items():
        if key in config and isinstance(domain, Float | Integer):
            lowest, highest = listed_or_ends(domain) or (-math.inf, math.inf)
            changed[key] = rounded(domain, min(max(config[key], lowest), highest))
    return changed


def stopper(name: str) -> Stopper:
    """A stopper of trials: Tune's TrialPlateauStopper (plateau), any other one by its import path, or none, which never stops.

    Raises ValueError if there is no such stopper, or it fails at a result.
    """
    instead = "choose plateau, or write ray.tune.stopper:Name(field=value, …)"

    def made() -> Stopper:
        named = Named.parse(STOPPERS.get(name, name))  # each time: the trial below must not change its arguments
        return named.make(Stopper, instead, metric=METRIC, mode="min")

    tried = made()
    try:
        for number in range(1, TRIED_RESULTS + 1):
            tried("trial", {"tokens": number, METRIC: 1.0, "training_iteration": number})
        tried.stop_all()
    except Exception as error:  # of any type: the sweep's first result would raise it too
        raise ValueError(f"{name} fails at a result ({type(error).__name__}: {error}): {instead}") from error
    return made()
