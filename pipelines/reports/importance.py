"""The importance of each swept field: how much of the trials' order it explains by itself, and how much chance would.

    shares, trials, tokens = importances(read_sweep(Path("runs/sweep")))
    share, chance = shares["optim.lr"]

With 24 trials over four fields that do nothing, Optuna's importance (fANOVA, PED-ANOVA) gives the first field 57 to 60 % on
average. Here one in 23 of such fields passes the share that chance explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.reports.sweep_result import SweepResult

SHUFFLES = 2000
"""Random orders of the trials, to see what chance explains."""


def explained(values: Sequence[Any], values_reached: np.ndarray) -> tuple[float, float] | None:
    """Share of the variance of the trials' ranks that a field alone explains, and the 95th percentile of this share over random
    orders. Numbers are fitted by a parabola in their rank, so that a best value in the middle counts too; other values by the means
    of their groups. None where the field does not vary.
    """
    texts = [value if isinstance(value, str) else repr(value) for value in values]
    if len(set(texts)) < 2 or len(values) < 3:
        return None
    if are_numbers(values) and len(set(texts)) > 2:
        design = np.vander(ranks(np.array(values, dtype=np.float64)), 3)
    else:
        design = np.array(texts)[:, None] == np.unique(texts)
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


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether all values are numbers; a truth value is none."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


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


class Scale:
    """Maps a field's values to an axis from 0 to 1: numbers linearly or by logarithm, anything else evenly spaced."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        present = [value for value in values if value is not None]
        self.numeric = bool(present) and are_numbers(present)
        self._names = [] if self.numeric else sorted({text_of(value) for value in values})
        self.log = self.numeric and min(present) > 0 and max(present) / min(present) >= 4
        ends = [self._number(value) for value in (present if self.numeric else self._names)]
        self._low = min(ends)
        self._high = max(ends)

    def __call__(self, value: Any) -> float | None:
        """Position of a value on the axis; None for a number that the trial does not have."""
        if value is None and self.numeric:
            return None
        return 0.5 if self._high == self._low else (self._number(value) - self._low) / (self._high - self._low)

    def _number(self, value: Any) -> float:
        if not self.numeric:
            return self._names.index(text_of(value))
        return math.log(value) if self.log else value

    def beside(self, index: int) -> float | None:
        """Position of the value of trial ``index``, shifted a little if several trials share it, so that no line hides another."""
        place = self(self._values[index])
        same = [i for i, value in enumerate(self._values) if text_of(value) == text_of(self._values[index])]
        apart = min(0.008, 0.05 / len(same))
        return place if place is None else place + apart * (same.index(index) - (len(same) - 1) / 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels: the values themselves where they are few, else five along the axis."""
        distinct = sorted({value for value in self._values if value is not None}) if self.numeric else self._names
        if self.numeric and len(distinct) > 6:
            spread = np.linspace(self._low, self._high, 5)
            distinct = [math.exp(at) if self.log else float(at) for at in spread]
        return [(self(value) or 0.0, text_of(value)) for value in distinct]


def text_of(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
