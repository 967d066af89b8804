"""Search spaces, and the searchers, schedulers and stoppers of Ray Tune by name.

from tune_spaces import combine
domains = combine("lr+states", preset_values)        # {"optim.lr": tune.loguniform(…), "model.states": tune.choice([…])}

This module does not import Ray Tune, which takes seconds: spaces are listed, and unknown ones refused, without it.
"""

from tune_spaces.spaces import SPACES, Space, combine, fields, parts_of

__all__ = ["SCHEDULERS", "SEARCHERS", "SPACES", "STOPPERS", "Space", "combine", "fields", "parts_of"]

SEARCHERS = {
    "optuna": ("ray.tune.search.optuna:OptunaSearch", "optuna"),
    "bohb": ("ray.tune.search.bohb:TuneBOHB", "hpbandster ConfigSpace"),
}
"""Import path of each searcher, and the packages that it needs."""
SCHEDULERS = {
    "asha": "ray.tune.schedulers:ASHAScheduler",
    "median": "ray.tune.schedulers:MedianStoppingRule(min_samples_required=2)",
    "pbt": "ray.tune.schedulers:PopulationBasedTraining",
    "none": "ray.tune.schedulers:FIFOScheduler",
}
STOPPERS = {"none": "ray.tune.stopper:NoopStopper", "plateau": "ray.tune.stopper:TrialPlateauStopper"}
