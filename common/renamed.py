"""Options and values whose names have changed: an error about an old name gives the new one."""

from __future__ import annotations

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
"""New name of a field, by its old name. An option that still has such a name in a command keeps its meaning."""
RENAMED_VALUES = {
    ("data.order", "listed"): "sequential",
    ("tracking.models", "figures"): "metrics",
}
"""New name of a value, by its field and its old name."""


def new_value(field: str, value: object) -> str:
    """A sentence with the new name of a field's value, to put after a message; empty if the value has not been renamed."""
    new = RENAMED_VALUES.get((field, str(value)))
    return f"; {value!r} is called {new!r} now" if new else ""
