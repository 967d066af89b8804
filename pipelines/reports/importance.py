"""The importance of each swept field: how much of the trials' order it explains by itself, and how much chance would.

    shares, trials, tokens = importances(read_sweep(Path("runs/sweep")))
    share, chance = shares["optim.lr"]

With 24 trials over four fields that do nothing, Optuna's importance (fANOVA, PED-ANOVA) gives the first field 57 to 60 % on
average. Here one in 23 of such fields passes the share that chance explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.reports.scales import are_numbers
from pipelines.reports.sweep_result import SweepResult

SHUFFLES = 2000
"""Random orders of the trials, to see what chance explains."""


def explained(values: Sequence[Any], values_reached: np.ndarray) -> tuple[float, float] | None:
    """Share of the variance of the trials' ranks that a field alone explains, and the 95th percentile of this share over random
    orders. Numbers are fitted by a parabola in their rank, so that a best value in the middle counts too; other values by the means
    of their groups. None where the field or the results do not vary, or with so few trials that the fit explains any order.

    Args:
        values: the field's, one for each trial.
        values_reached: float, one for each trial.
    """
    texts = [value if isinstance(value, str) else repr(value) for value in values]
    if len(set(texts)) < 2:
        return None
    if are_numbers(values) and len(set(texts)) > 2:
        design = np.vander(ranks(np.array(values, dtype=np.float64)), 3)
    else:
        design = np.array(texts)[:, None] == np.unique(texts)
    if design.shape[1] >= len(values):
        return None
    directions = np.linalg.qr(design.astype(np.float64)).Q
    centred = ranks(values_reached) - (len(values) - 1) / 2
    total = float(centred @ centred)
    if total == 0:
        return None
    generator = np.random.default_rng(0)
    orders = np.stack([centred, *(generator.permutation(centred) for _ in range(SHUFFLES))])
    # The ranks' mean is zero, and the constant is among the directions
    shares = ((orders @ directions) ** 2).sum(1) / total
    return float(shares[0]), float(np.quantile(shares[1:], 0.95))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of values: 0 for the lowest; equal values share their mean rank."""
    order = np.sort(values)
    return (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") - 1) / 2


def importances(sweep: SweepResult) -> tuple[dict[str, tuple[float, float] | None], int, float]:
    """For each field the share that it explains and the share that chance would. Also the number of trials, and the tokens at which
    they are compared: about those of the trial that was stopped first, which has no later value.
    """
    trials = [trial for trial in sweep.scored if trial.points]
    if not trials:
        return dict.fromkeys(sweep.fields), 0, 0.0
    reached = min(trial.points[-1].tokens for trial in trials)
    reached = max(reached, max(trial.points[0].tokens for trial in trials))
    values_reached = np.array([trial.at(reached) for trial in trials])
    shares = {name: explained([trial.values.get(name) for trial in trials], values_reached) for name in sweep.fields}
    return shares, len(trials), reached
