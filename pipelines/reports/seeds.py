"""Trainings that differ in their seed alone, as one: means, standard deviations, and curves with a band.

groups(runs)                                          # {"rec": [0, 2], …}: which of them belong together, by index
over_seeds(runs, rows, ("bits_per_token",))           # a row of means and deviations for each group
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.table import Table

from pipelines.terminal.tables import Form, plain_table, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # a second to import

    from pipelines.reports.finished_runs import FinishedRun
    from pipelines.tracking.score import Evaluation


Item = TypeVar("Item", "Evaluation", "FinishedRun")


def groups(items: Sequence[Evaluation | FinishedRun]) -> dict[str, list[int]]:
    """Groups of items that differ in the seed alone: their indices, by a name for the group. Items in which a seed appears twice
    are no group: nobody knows which of the two belongs to the others.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for place, item in enumerate(items):
        if item.alike:
            found.setdefault(item.alike, []).append(place)
    several = [places for places in found.values() if len({items[place].seed for place in places}) == len(places) > 1]
    all_names = [[items[place].name for place in places] for places in several]
    common = [_common(names) for names in all_names]
    made = {}
    for places, names, name in zip(several, all_names, common, strict=True):
        told = name if common.count(name) == 1 else f"{names[0]} and others"
        made[f"{told}, {len(names)} seeds"] = places
    return made


def members(items: Sequence[Item]) -> dict[str, list[Item]]:
    """The items of each of the `groups`, and each item outside of them under its own name."""
    several = groups(items)
    inside = {place for places in several.values() for place in places}
    alone = [item for place, item in enumerate(items) if place not in inside]
    names = [item.name for item in alone]
    labels = [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]
    groups_of_items = {name: [items[place] for place in places] for name, places in several.items()}
    return groups_of_items | {label: [item] for label, item in zip(labels, alone, strict=True)}


def plot_mean(
    axes: Axes, positions_P: np.ndarray, values_SP: np.ndarray, style: str, *, color: str, **look: Any
) -> None:
    """Draw a line; for several seeds their mean, with a band of their standard deviation."""
    middle = values_SP.mean(0)
    axes.plot(positions_P, middle, style, color=color, **look)
    if len(values_SP) > 1:
        spread = values_SP.std(0, ddof=1)
        axes.fill_between(positions_P, middle - spread, middle + spread, color=color, alpha=0.2, linewidth=0)


def _common(names: list[str]) -> str:
    """The common beginning of the names without the word "seed"; the first name if there is none."""
    letters = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(each[0] for each in letters)
    if any(name[len(common) :][:1].isdigit() for name in names):  # a number is not cut in two
        common = common.rstrip("0123456789")
    return re.sub(r"(^|[-_.@ ]+)((seed|s)[-_.@ ]*\d*)?[-_.@ ]*$", "", common) or names[0]


def over_seeds(
    items: Sequence[Evaluation | FinishedRun], rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[dict[str, Any]]:
    """The mean over each group of seeds and, as `…_deviation`, the standard deviation; None if one item lacks the value.

    Args:
        rows: one for each item, in their order.
        keys: the columns to average.
    """
    made = []
    for name, places in groups(items).items():
        row: dict[str, Any] = {"name": name}
        for key in keys:
            values = [rows[place].get(key) for place in places]
            known = [value for value in values if value is not None]
            whole = len(known) == len(values)
            row |= {key: mean(known) if whole else None, f"{key}_deviation": stdev(known) if whole else None}
        made.append(row)
    return made


def seeds_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, Form]]) -> Table:
    """Mean ± standard deviation for a terminal. ``columns``: heading and form of each metric. Empty columns are left out."""
    shown = {key: column for key, column in columns.items() if any(row.get(key) is not None for row in rows)}

    def cell(row: Mapping[str, Any], key: str) -> str:
        if row.get(key) is None:
            return "–"
        value, deviation = (written(row[name], shown[key][1]) for name in (key, f"{key}_deviation"))
        return f"{value} ± {deviation.removeprefix('+')}"

    cells = [[row["name"], *(cell(row, key) for key in shown)] for row in rows]
    return plain_table(["mean ± deviation", *(heading for heading, _ in shown.values())], cells)
