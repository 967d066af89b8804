"""The axes of a sweep's charts on which a field's values stand, whether they are numbers or not.

scale = Scale([1e-3, 3e-3, 1e-2])
scale(3e-3), scale.log          # 0.477, True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

CLOSEST = 0.06
"""Shortest distance between two labels of an axis, whose length is 1."""
LABEL = 20
"""Most characters in a line of a label."""


def unit_of_time(longest: float) -> tuple[str, float]:
    """The unit of an axis that goes to so many seconds, and the seconds in it."""
    if longest < 180:
        return "seconds", 1.0
    if longest < 3 * 3600:
        return "minutes", 60.0
    return "hours", 3600.0


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether all values are numbers; a truth value is none."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


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
        """Places and labels: the values themselves where they are few, else five along the axis. A number whose label would hide
        another one's is left out; a long label has several lines.
        """
        distinct = sorted({value for value in self._values if value is not None}) if self.numeric else self._names
        if self.numeric and len(distinct) > 6:
            spread = np.linspace(self._low, self._high, 5)
            distinct = [math.exp(at) if self.log else float(at) for at in spread]
        found = [(self(value) or 0.0, fill(text_of(value), LABEL)) for value in distinct]
        return spaced(found) if self.numeric else found


def spaced(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks that are at least `CLOSEST` apart, from the lowest to the highest, which are both among them."""
    kept = [ticks[0]]
    for tick in ticks[1:-1]:
        if tick[0] - kept[-1][0] >= CLOSEST and ticks[-1][0] - tick[0] >= CLOSEST:
            kept.append(tick)
    return [*kept, *ticks[1:][-1:]]


def text_of(value: Any) -> str:
    """A value as it stands beside an axis."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
