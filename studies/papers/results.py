"""A table's values, the paper's beside ours: their order, and the table as text and files. picture.py draws it.

    results = Results("block-recurrent table-1", table, "tiny", seeds=(0, 1), cells={("Slide:13L", "arXiv"): (2.31, 2.33)})
    results.markdown()                       # as it stands in results/block_recurrent
    results.write(folder)                    # table.md, table.json

A value is the mean over seeds, and its bar their standard deviation. In columns of the best seed, they are its value and the range
over all seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from pipelines.reports.files import save
from studies.papers.tables import COSTS, LOWER, Column, Row, Table

SHOWN = 12
"""The most pairs of rows that a sentence names; the JSON has all."""


class Ordering(NamedTuple):
    """Pairs of rows that differ in a column of the paper, the paper's better one first: whether our order agrees."""

    holds: list[tuple[str, str]]
    fails: list[tuple[str, str]]
    undecided: list[tuple[str, str]]
    """Our values differ by no more than the larger standard deviation of their seeds; for best seeds: they are printed alike."""


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
    runs: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Names of the runs behind each row, by its label."""
    best: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """The best seed's values by row and column, for the columns that show the best seed."""
    corpus: str = ""
    """The corpus that our trainings read instead of the columns' corpora of text; empty if they read those."""

    @property
    def source(self) -> str:
        """The scale of our values and the corpus that replaces others: "tiny, text of python-source"."""
        return f"{self.scale}, text of {self.corpus}" if self.corpus else self.scale

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
                f"{name}: {len(ordering.holds)} of {count} pairs of rows that the paper puts apart are ordered as in the paper"
            )
            close = "level" if name in self.of_best() else "closer than the seeds differ"
            for verdict, pairs in (("in another order than in the paper", ordering.fails), (close, ordering.undecided)):
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
        return f"{self.name} ({self.table.about}), ours at scale {self.source}, {seeds}{beside}"

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
        about = {
            "name": self.name,
            "about": self.table.about,
            "scale": self.scale,
            "corpus": self.corpus,
            "seeds": self.seeds,
        }
        orderings = {name: found._asdict() for name, found in self.orderings().items()}
        return {
            **about,
            "command": self.command,
            "facts": self.facts,
            "rows": rows,
            "orderings": orderings,
            "runs": self.runs,
        }

    def write(self, folder: Path) -> list[Path]:
        """Write table.md and table.json, each atomically. Returns their paths."""
        values = json.dumps(self.to_json(), indent=1) + "\n"
        return [
            save(folder / "table.md", self.markdown().encode()),
            save(folder / "table.json", values.encode()),
        ]
