"""A table's values, the paper's beside ours: their order, and the table as text, files and a picture.

    results = Results("block-recurrent table-1", table, "tiny", seeds=(0, 1), cells={("Slide:13L", "arXiv"): (2.31, 2.33)})
    results.markdown()                       # as it stands in results/block_recurrent
    results.write(folder)                    # table.md, table.json, table.png

A value is the mean over seeds, and its bar their standard deviation. In columns of the best seed, they are its value and the range
over all seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import log2
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from common.files import write_atomically
from pipelines.reports.files import COLOURS, colour_of, save_figure
from pipelines.terminal.tables import short
from studies.papers.tables import COSTS, LOWER, PERCENTAGES, Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 12
"""The most pairs of rows that a sentence names; the JSON has all."""
MAX_RADIUS = 20.0
"""Radius of a panel's largest circle, in points."""
MARKERS = "os^D"
"""Shapes of the points; the next is taken when the colours are used up."""


class Ordering(NamedTuple):
    """Pairs of rows that differ in a column of the paper, the paper's better one first: whether our order agrees."""

    holds: list[tuple[str, str]]
    fails: list[tuple[str, str]]
    undecided: list[tuple[str, str]]
    """Our values differ by no more than the larger standard deviation of their seeds; for best seeds: they are printed alike."""


class Point(NamedTuple):
    """A row in a panel."""

    x: float
    y: float
    bar: tuple[float, float]
    """How far the error bar goes below and above."""
    size: float | None
    """Value that the circle's size is proportional to; None: no circle."""


@dataclass(frozen=True)
class Results:
    """Our results for one table, at one scale."""

    name: str
    table: Table
    scale: str
    seeds: tuple[int, ...]
    cells: Mapping[tuple[str, str], tuple[float, ...]]
    """Our values by row and column, one for each seed."""
    command: str = ""
    facts: tuple[str, ...] = ()
    """Sentences on data, tokens and time."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other values for the JSON."""
    best: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """The best seed's values by row and column, for the columns that show the best seed."""

    def ours(self, row: Row, column: Column) -> tuple[float, ...]:
        return self.cells.get((row.label, column.name), ())

    def value(self, row: Row, column: Column) -> float:
        """The best seed's value in a column of best seeds; else the mean over our seeds."""
        best = self.best.get((row.label, column.name))
        return mean(self.ours(row, column)) if best is None else best

    def spread(self, row: Row, column: Column) -> tuple[float, float]:
        """How far below and above `value` a bar goes: to the least and the most of the seeds, or by their standard deviation."""
        ours = self.ours(row, column)
        value = self.value(row, column)
        if self.is_best(row, column):
            return value - min(ours), max(ours) - value
        deviation = stdev(ours) if len(ours) > 1 else 0.0
        return deviation, deviation

    def is_best(self, row: Row, column: Column) -> bool:
        """Whether the cell shows the best seed instead of a mean."""
        return (row.label, column.name) in self.best

    def ordering(self, column: Column) -> Ordering:
        """The order of the rows for which both the paper and we have values."""
        found = Ordering([], [], [])
        known = [row for row in self.table.rows if column.name in row.paper and self.ours(row, column)]
        for pair in combinations(known, 2):
            better, worse = sorted(pair, key=lambda row: row.paper[column.name])
            if better.paper[column.name] == worse.paper[column.name]:
                continue
            low = self.value(better, column)
            high = self.value(worse, column)
            spread = max(*self.spread(better, column), *self.spread(worse, column))
            if any(self.is_best(row, column) for row in pair):
                low = float(f"{low:{column.form}}")
                high = float(f"{high:{column.form}}")
                spread = 0.0
            if abs(high - low) <= spread:
                pairs = found.undecided
            elif high > low:
                pairs = found.holds
            else:
                pairs = found.fails
            pairs.append((better.label, worse.label))
        return found

    def orderings(self) -> dict[str, Ordering]:
        """The orderings by column, without columns that have no values to order."""
        made = {column.name: self.ordering(column) for column in self.table.columns if column.metric in LOWER}
        return {name: ordering for name, ordering in made.items() if any(ordering)}

    def remarks(self) -> list[str]:
        """Sentences on which parts of the paper's order hold here."""
        sentences = []
        orderings = self.orderings()
        if orderings and len(self.seeds) == 1:
            sentences.append(
                "one seed: how far seeds differ is not known, and pairs that are close may lie the other way round"
            )
        for name, ordering in orderings.items():
            count = sum(map(len, ordering))
            sentences.append(
                f"{name}: of {count} pairs of rows that the paper puts apart, {len(ordering.holds)} are in its order here"
            )
            close = "level" if name in self.of_best() else "closer than the seeds differ"
            for verdict, pairs in (("not", ordering.fails), (close, ordering.undecided)):
                named = [f"{better} below {worse}" for better, worse in pairs[:SHOWN]]
                more = f"; and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
                if pairs:
                    sentences.append(f"{name}, {verdict}: {'; '.join(named)}{more}")
        return sentences

    def lacking(self) -> list[str]:
        """A list with a sentence on values that lack some seeds; empty if there are none."""
        cells = [(row, column, len(self.ours(row, column))) for column in self.table.columns for row in self.table.rows]
        few = [f"{row.label} ({column.name}) of {count}" for row, column, count in cells if 0 < count < len(self.seeds)]
        return [f"not of all {len(self.seeds)} seeds: {'; '.join(few)}"] if few else []

    def of_best(self) -> list[str]:
        """The columns of the best seed."""
        return [column.name for column in self.table.columns if any(name == column.name for _, name in self.best)]

    def selection(self) -> list[str]:
        """A list with a sentence on the columns that show the best seed; empty if there are none, or only one seed."""
        named = " and ".join(self.of_best() if len(self.seeds) > 1 else [])
        how = "that of the seed which is the best on validation, as in the paper, and in brackets all seeds' range"
        return [f"{named}: {how}"] if named else []

    def sentences(self) -> list[str]:
        """Notes that a reader needs beside the results."""
        note = filter(None, [self.table.note.get(self.scale)])
        return [*note, *self.selection(), *self.facts, *self.lacking(), *self.remarks()]

    def text(self, row: Row, column: Column) -> tuple[str, str]:
        """The paper's value and ours, as they are written."""
        paper = row.paper.get(column.name)
        ours = self.ours(row, column)
        form = column.form
        spread = ""
        if len(ours) > 1 and column.metric not in COSTS:  # no seed changes a cost
            spread = f" ± {stdev(ours):{form}}"
            if self.is_best(row, column):
                spread = f" ({min(ours):{form}} to {max(ours):{form}})"
        return (
            "–" if paper is None else f"{paper:{form}}",
            f"{self.value(row, column):{form}}{spread}" if ours else "–",
        )

    def in_paper(self, column: Column) -> bool:
        """Whether the paper has values for any of the rows."""
        return any(column.name in row.paper for row in self.table.rows)

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of text: for each column the paper's values, if it has some, then ours."""
        headings = [""]
        rows = [[row.label] for row in self.table.rows]
        for column in self.table.columns:
            in_paper = self.in_paper(column)
            headings += [f"{column.name}, paper", f"{column.name}, ours"] if in_paper else [column.name]
            for row, cells in zip(self.table.rows, rows, strict=True):
                papers, ours = self.text(row, column)
                cells += [papers, ours] if in_paper else [ours]
        return headings, rows

    def title(self) -> str:
        """The table's name and title, with scale and seeds."""
        seeds = f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"
        means = any(column.name not in self.of_best() and column.metric not in COSTS for column in self.table.columns)
        beside = " ± standard deviation" if len(self.seeds) > 1 and means else ""
        return f"{self.name} ({self.table.about}), ours at scale {self.scale}, {seeds}{beside}"

    def markdown(self) -> str:
        """The table, its command and its sentences as Markdown."""
        headings, rows = self.grid()
        rule = ["---", *["---:"] * (len(headings) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]
        parts = [
            f"**{self.title()}**: `{self.command}`",
            "\n".join(lines),
            "\n".join(f"- {sentence}" for sentence in self.sentences()),
        ]
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All values of the table, by seed, beside the paper's."""
        rows = [
            {
                "label": row.label,
                "column": column.name,
                "metric": column.metric,
                "paper": row.paper.get(column.name),
                "ours": list(self.ours(row, column)),
                "best": self.best.get((row.label, column.name)),
            }
            for row in self.table.rows
            for column in self.table.columns
        ]
        about = {"name": self.name, "about": self.table.about, "scale": self.scale, "seeds": self.seeds}
        orderings = {name: found._asdict() for name, found in self.orderings().items()}
        return {
            **about,
            "command": self.command,
            "facts": self.facts,
            "rows": rows,
            "orderings": orderings,
            **self.notes,
        }

    def write(self, folder: Path) -> list[Path]:
        """table.md, table.json and table.png, each atomically. Returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        text = folder / "table.md"
        values = folder / "table.json"
        write_atomically(text, self.markdown().encode())
        write_atomically(values, (json.dumps(self.to_json(), indent=1) + "\n").encode())
        return [text, values, self.plot(folder / "table.png")]

    def panels(self) -> tuple[list[Column], list[str]]:
        """The columns that are drawn, without the x and the circles' size; and whose values: "paper" and "ours", or "ours" alone.

        Columns with values of the paper go first; without any, those that we have measured.
        """
        drawn = (self.table.x, self.table.size)
        columns = [column for column in self.table.columns if column.name not in drawn] or list(self.table.columns)
        in_paper = [column for column in columns if self.in_paper(column)]
        if in_paper:
            return in_paper, ["paper", "ours"]
        reached = [column for column in columns if column.metric not in COSTS] or columns
        measured = [column for column in reached if any(self.ours(row, column) for row in self.table.rows)]
        return measured or reached, ["ours"]

    def plot(self, path: Path) -> Path:
        """The paper's values above, ours below, a panel for each of `panels`: over the x, or row by row."""
        from matplotlib.figure import Figure  # a second to import

        columns, whose = self.panels()
        high = max(0.5 * len(self.table.rows) + 2, 4.4)  # less, and no room is left for axes
        size = (max(4.6 * len(columns), 6), 3.75 * len(whose)) if self.table.x else (2.6 * len(columns) + 2, high)
        if self.crowded:
            size = (size[0] + 3, 1.6 * size[1])
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(whose), len(columns), squeeze=False, sharey=not self.table.x)
        said = {"paper": "paper", "ours": f"ours, {self.scale}"}
        for number, column in enumerate(columns):
            for axes, of in zip(panels[:, number], whose, strict=True):
                self.draw(axes, column, of == "paper")
                title = f"{column.name}: {said[of]}" if len(whose) > 1 else column.name
                axes.set_title(fill(title, 60 if self.table.x else 28), fontsize=10)
        title = self.table.about if len(whose) > 1 else f"{self.table.about}: {said['ours']}"
        figure.suptitle(fill(title, 60), fontsize=11)
        return save_figure(figure, path)

    @property
    def crowded(self) -> bool:
        """Whether the legend names so many series that it would cover them."""
        return bool(self.table.x) and len({row.series for row in self.table.rows}) > 2 * len(COLOURS)

    def points(self, column: Column, of_paper: bool) -> dict[str, list[Point]]:
        """The rows that have a value, by series, ordered by x. Rows without an x have their number instead."""
        named = {each.name: each for each in self.table.columns}
        x_column = named.get(self.table.x)
        size_column = named.get(self.table.size)

        def value_of(row: Row, of: Column) -> float | None:
            if of_paper:
                return row.paper.get(of.name)
            return self.value(row, of) if self.ours(row, of) else None

        series: dict[str, list[Point]] = {}
        for number, row in enumerate(self.table.rows):
            x = float(number) if row.x is None else row.x
            if x_column:
                x = value_of(row, x_column)
            value = value_of(row, column)
            if x is not None and value is not None:
                bar = (0.0, 0.0) if of_paper else self.spread(row, column)
                size = value_of(row, size_column) if size_column else None
                point = Point(x, value, bar, size)
                series.setdefault(row.series if self.table.x else "", []).append(point)
        return {name: sorted(points, key=attrgetter("x")) for name, points in series.items()}

    def draw(self, axes: Axes, column: Column, of_paper: bool) -> None:
        """Points with error bars over x, those of a series joined; or rows below each other, as the table has them."""
        series = self.points(column, of_paper)
        largest = max((point.size or 0.0 for points in series.values() for point in points), default=0.0)
        for name, points in series.items():
            self._draw_series(axes, name, points, largest)
        if not series:
            axes.text(0.5, 0.5, "no values", ha="center", transform=axes.transAxes, color="0.4")
        unit = column.metric.replace("_", " ")
        if not self.table.x:
            self._label_rows(axes)
            if column.metric in PERCENTAGES:
                axes.set_xlim(-4, 104)
            axes.set_xlabel(unit, fontsize=8)
        else:
            axes.set_xlabel(self.table.x)
            axes.set_ylabel(unit, fontsize=8)
            _scale_x(axes, [point.x for points in series.values() for point in points])
            if largest:
                axes.margins(0.12)  # room for circles
            if any(series):
                title = f"{self.table.sized}: {self.table.size}, the largest {short(largest)}" if largest else None
                aside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if self.crowded else {}
                axes.legend(fontsize=7, title=title, title_fontsize=7, **aside)
        axes.grid(alpha=0.25)

    def _draw_series(self, axes: Axes, name: str, points: list[Point], largest: float) -> None:
        """Draw one series in its colour and marker. ``largest``: size of the panel's largest circle; 0 where there are none."""
        names = list(dict.fromkeys(row.series for row in self.table.rows))
        number = names.index(name) if name in names else 0
        colour = colour_of(number)
        marker = MARKERS[number // len(COLOURS) % len(MARKERS)]
        xs = [point.x for point in points]
        ys = [point.y for point in points]
        has_bars = any(any(point.bar) for point in points)
        bars = [[point.bar[0] for point in points], [point.bar[1] for point in points]] if has_bars else None
        look: dict[str, Any] = {
            "fmt": f"-{marker}" if self.table.x and len(points) > 1 else marker,
            "color": colour,
            "capsize": 3,
            "markersize": 2 if largest and not self.crowded else 4,  # no wider than a small circle
            "label": name or None,
        }
        if self.table.x:
            axes.errorbar(xs, ys, yerr=bars, **look)
        else:
            axes.errorbar(ys, xs, xerr=bars, **look)
        if largest:
            shares = [(point.size or 0.0) / largest for point in points]
            power = 2 if self.table.sized == "radius" else 1
            # Matplotlib's areas are those of the squares around.
            areas = [(2 * MAX_RADIUS) ** 2 * share**power for share in shares]
            axes.scatter(xs, ys, areas, color=colour, alpha=0.35)

    def _label_rows(self, axes: Axes) -> None:
        """Name the rows on the y axis, the first at the top."""
        from matplotlib.ticker import MaxNLocator

        rows = self.table.rows
        axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))


def _scale_x(axes: Axes, xs: list[float]) -> None:
    """Take a logarithmic x axis where these values span more than a factor of 8: to base 2 if all are powers of two."""
    from matplotlib.ticker import LogLocator

    if xs and min(xs) > 0 and max(xs) > 8 * min(xs):
        base = 2 if all(log2(x).is_integer() for x in xs) else 10
        axes.set_xscale("log", base=base, subs=[])
        axes.xaxis.set_major_locator(LogLocator(base, subs=(1.0,) if base == 2 else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
