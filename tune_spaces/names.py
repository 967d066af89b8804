"""Our names for searchers, schedulers and stoppers of Ray Tune's; this module imports none of it."""

from __future__ import annotations

SEARCHERS = {
    "optuna": ("ray.tune.search.optuna:OptunaSearch", "optuna"),
    "bohb": ("ray.tune.search.bohb:TuneBOHB", "hpbandster ConfigSpace"),
}
"""Where they are, and the packages that they need."""
SCHEDULERS = {
    "asha": "ray.tune.schedulers:ASHAScheduler",
    "median": "ray.tune.schedulers:MedianStoppingRule(min_samples_required=2)",
    "pbt": "ray.tune.schedulers:PopulationBasedTraining",
    "none": "ray.tune.schedulers:FIFOScheduler",
}
STOPPERS = {"none": "ray.tune.stopper:NoopStopper", "plateau": "ray.tune.stopper:TrialPlateauStopper"}


def is_path(text: str) -> bool:
    """Whether it is an import path, ``module:Name``, and not one of our names."""
    return ":" in text
