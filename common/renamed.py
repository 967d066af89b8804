"""Options whose names have changed: whoever types an old name reads the new one."""

from __future__ import annotations

import difflib
from collections.abc import Collection

RENAMED = {
    "optim.clip": "optim.max_grad_norm",
    "schedule.warmup": "schedule.warmup_steps",
    "schedule.final": "schedule.min_lr_ratio",
    "samples": "num_samples",
    "points": "grid_points",
    "equal": "equalize",
    "concurrent": "max_concurrent_trials",
    "seconds": "time_budget_s",
    "tokens": "token_budget",
    "trials": "max_trials",
}
"""Old and new name, as fields. A command that has an option of the old name still means that one."""


def nearest_option(option: str, options: Collection[str]) -> str:
    """The option among ``options`` that a person who typed an unknown one means: its new name, one that is spelt almost like it,
    or one with its name in a group. Empty where there is none.
    """
    field = option.removeprefix("--").replace("-", "_")
    new = "--" + RENAMED.get(field, "").replace("_", "-")
    grouped = [known for known in options if known.rpartition(".")[2] == option.lstrip("-")]
    near = [new] if new in options else difflib.get_close_matches(option, options, n=1, cutoff=0.6) or grouped
    return next(iter(near), "")
