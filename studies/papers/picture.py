"""The picture of a table: the paper's values above, ours below.

plot(results, folder / "table.png")
"""

from __future__ import annotations

from math import log2
from operator import attrgetter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.reports.files import COLOURS, colour_of, save_figure
from pipelines.terminal.tables import short
from studies.papers.results import Results
from studies.papers.tables import COSTS, PERCENTAGES, Column, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_RADIUS = 20.0
"""Radius of a panel's largest circle, in points."""
CLOSE = 0.1
"""Share of a panel's width and height within which points have one list of names."""
MARKERS = "os^D"
"""Shapes of the points; the next is taken when the colours are used up."""
LINE = 8.5
"""Height in points of a line of a list of names."""
UNITS = {"error_percent": "labels that are wrong, %", "names_wrong": "names that are wrong, %"}
"""An axis's label, of metrics whose name does not say what is counted."""


class Point(NamedTuple):
    """A row in a panel."""

    x: float
    y: float
    bar: tuple[float, float]
    """How far the error bar goes below and above."""
    size: float | None
    """Value that the circle's size is proportional to; None: no circle."""


def drawn_columns(results: Results) -> tuple[list[Column], list[str]]:
    """The columns that are drawn, without the x and the circles' size; and whose values: "paper" and "ours", or "ours" alone.

    Columns with values of the paper go first; without any, those that we have measured.
    """
    drawn = (results.table.x, results.table.size)
    columns = [column for column in results.table.columns if column.name not in drawn] or list(results.table.columns)
    in_paper = [column for column in columns if results.in_paper(column)]
    if in_paper:
        return in_paper, ["paper", "ours"]
    reached = [column for column in columns if column.metric not in COSTS] or columns
    measured = [column for column in reached if any(results.ours(row, column) for row in results.table.rows)]
    return measured or reached, ["ours"]


def plot(results: Results, path: Path) -> Path:
    """The paper's values above, ours below, a panel for each of `drawn_columns`: over the x, or row by row."""
    from matplotlib.figure import Figure  # a second to import

    columns, whose = drawn_columns(results)
    high = max(0.5 * len(results.table.rows) + 2, 4.4)  # less, and no room is left for axes
    size = (max(4.6 * len(columns), 6), 3.75 * len(whose)) if results.table.x else (2.6 * len(columns) + 2, high)
    if is_crowded(results):
        size = (size[0] + 1, 1.6 * size[1])
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(whose), len(columns), squeeze=False, sharey=not results.table.x)
    said = {"paper": "paper", "ours": f"ours, {results.source}"}
    is_alone = bool(results.table.x) and len(columns) == len(whose) == 1
    for number, column in enumerate(columns):
        for axes, of in zip(panels[:, number], whose, strict=True):
            draw(results, axes, column, of == "paper")
            if is_alone:
                axes.set_ylabel(column.name, fontsize=10)
                continue
            title = f"{column.name}: {said[of]}" if len(whose) > 1 else column.name
            axes.set_title(fill(title, 60 if results.table.x else 28), fontsize=10)
    title = results.table.about if len(whose) > 1 else f"{results.table.about}: {said['ours']}"
    figure.suptitle(fill(title, 60), fontsize=11)
    return save_figure(figure, path)


def is_crowded(results: Results) -> bool:
    """Whether there are so many series that a legend would cover them. Then their names stand beside the points."""
    return bool(results.table.x) and len({row.series for row in results.table.rows}) > 2 * len(COLOURS)


def points_of(results: Results, column: Column, of_paper: bool) -> dict[str, list[Point]]:
    """The rows that have a value, by series, ordered by x. Rows without an x have their number instead."""
    named = {each.name: each for each in results.table.columns}
    x_column = named.get(results.table.x)
    size_column = named.get(results.table.size)

    def value_of(row: Row, of: Column) -> float | None:
        if of_paper:
            return row.paper.get(of.name)
        return results.value(row, of) if results.ours(row, of) else None

    series: dict[str, list[Point]] = {}
    for number, row in enumerate(results.table.rows):
        x = float(number) if row.x is None else row.x
        if x_column:
            x = value_of(row, x_column)
        value = value_of(row, column)
        if x is not None and value is not None:
            bar = (0.0, 0.0) if of_paper else results.spread(row, column)
            size = value_of(row, size_column) if size_column else None
            point = Point(x, value, bar, size)
            series.setdefault(row.series if results.table.x else "", []).append(point)
    return {name: sorted(points, key=attrgetter("x")) for name, points in series.items()}


def draw(results: Results, axes: Axes, column: Column, of_paper: bool) -> None:
    """Points with error bars over x, those of a series joined; or rows below each other, as the table has them."""
    series = points_of(results, column, of_paper)
    largest = max((point.size or 0.0 for points in series.values() for point in points), default=0.0)
    for name, points in series.items():
        _draw_series(results, axes, name, points, largest)
    if not series:
        axes.text(0.5, 0.5, "no values", ha="center", transform=axes.transAxes, color="0.4")
    unit = UNITS.get(column.metric, column.metric.replace("_", " "))
    if not results.table.x:
        _label_rows(results, axes)
        if column.metric in PERCENTAGES:
            axes.set_xlim(-4, 104)
        axes.set_xlabel(unit, fontsize=8)
    else:
        axes.set_xlabel(results.table.x)
        axes.set_ylabel(unit, fontsize=8)
        _scale_x(axes, [point.x for points in series.values() for point in points])
        if largest:
            axes.margins(0.12)  # room for circles
        title = f"{results.table.sized}: {results.table.size}, the largest {short(largest)}" if largest else ""
        if is_crowded(results):
            axes.set_title(title, loc="right", fontsize=7)
            _name_points(axes, {name: look_of(results, name)[0] for name in series}, series)
        elif any(series):
            axes.legend(fontsize=7, title=title, title_fontsize=7)
    axes.grid(alpha=0.25)


def look_of(results: Results, name: str) -> tuple[str, str]:
    """The colour and the marker of a series."""
    names = list(dict.fromkeys(row.series for row in results.table.rows))
    number = names.index(name) if name in names else 0
    return colour_of(number), MARKERS[number // len(COLOURS) % len(MARKERS)]


def _draw_series(results: Results, axes: Axes, name: str, points: list[Point], largest: float) -> None:
    """Draw one series in its colour and marker. ``largest``: size of the panel's largest circle; 0 where there are none."""
    colour, marker = look_of(results, name)
    xs = [point.x for point in points]
    ys = [point.y for point in points]
    has_bars = any(any(point.bar) for point in points)
    bars = [[point.bar[0] for point in points], [point.bar[1] for point in points]] if has_bars else None
    look: dict[str, Any] = {
        "fmt": f"-{marker}" if results.table.x and len(points) > 1 else marker,
        "color": colour,
        "capsize": 3,
        "markersize": 2 if largest and not is_crowded(results) else 4,  # no wider than a small circle
        "label": name or None,
    }
    if results.table.x:
        axes.errorbar(xs, ys, yerr=bars, **look)
    else:
        axes.errorbar(ys, xs, xerr=bars, **look)
    if largest:
        shares = [(point.size or 0.0) / largest for point in points]
        power = 2 if results.table.sized == "radius" else 1
        # Matplotlib's areas are those of the squares around.
        areas = [(2 * MAX_RADIUS) ** 2 * share**power for share in shares]
        axes.scatter(xs, ys, areas, color=colour, alpha=0.35)


def _label_rows(results: Results, axes: Axes) -> None:
    """Name the rows on the y axis, the first at the top."""
    from matplotlib.ticker import MaxNLocator

    rows = results.table.rows
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))


def _name_points(axes: Axes, colours: dict[str, str], series: dict[str, list[Point]]) -> None:
    """Write each series' name in its colour beside its first point, where the panel has room. The names of close points form a
    list, ordered as the points are.
    """
    axes.autoscale_view()
    to_panel = axes.transData + axes.transAxes.inverted()
    places = {name: to_panel.transform((point.x, point.y)) for name, (point, *_) in series.items()}
    groups: list[list[str]] = []
    for name in sorted(places, key=lambda name: -places[name][1]):
        close = (group for group in groups if max(abs(places[name] - places[group[-1]])) < CLOSE)
        group = next(close, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    for group in groups:
        point = series[group[len(group) // 2]][0]
        is_left = places[group[0]][0] < 0.5
        for line, name in enumerate(group):
            axes.annotate(
                name,
                (point.x, point.y),
                (MAX_RADIUS if is_left else -MAX_RADIUS, LINE * ((len(group) - 1) / 2 - line)),
                textcoords="offset points",
                ha="left" if is_left else "right",
                va="center",
                fontsize=7,
                color=colours[name],
            )


def _scale_x(axes: Axes, xs: list[float]) -> None:
    """Take a logarithmic x axis where these values span more than a factor of 8: to base 2 if all are powers of two."""
    from matplotlib.ticker import LogLocator

    if xs and min(xs) > 0 and max(xs) > 8 * min(xs):
        base = 2 if all(log2(x).is_integer() for x in xs) else 10
        axes.set_xscale("log", base=base, subs=[])
        axes.xaxis.set_major_locator(LogLocator(base, subs=(1.0,) if base == 2 else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
