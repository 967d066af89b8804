"""A table of models over needs whose cells are taken from recorded tables, so that each figure is written down once.

A study's JSON may list such `summaries`, which its page shows before the records, and their `models`: the rows,
each with the names under which records have it. The first name that a record has is taken. A summary has these fields:

    name, text   heading and paragraphs, as a record has them
    columns      for each column its `heading`; the `record` and the `column` of it that have the values; the `study` of the record
                 where it is another one; and which value is `best`, "least" or "most": it is set in bold
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOT_RUN = ""
"""The cell of a model that a record does not have."""

Models = Mapping[str, Sequence[str]]
BEST: Mapping[str, Callable[[Sequence[float]], float]] = {"least": min, "most": max}


class Table(Protocol):
    """What a summary reads of a record: its headings, and a list of cells for each row, the first of them a model."""

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> Sequence[Sequence[int | float | str]]: ...


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a summary. The module's docstring describes the fields."""

    heading: str
    record: str
    column: str
    study: str = ""
    best: str = ""

    def __post_init__(self) -> None:
        if self.best not in ("", *BEST):
            raise ValueError(f"{self.heading}: best is {self.best!r}, where it must be one of {', '.join(BEST)}")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A table that is taken from other tables. The module's docstring describes the fields."""

    name: str
    columns: Sequence[Column]
    text: Sequence[str] = ()

    def headings(self) -> list[str]:
        return ["model", *(column.heading for column in self.columns)]

    def rows(self, models: Models, table: Callable[[str, str], Table]) -> list[list[str]]:
        """A list of cells for each model. ``table`` finds a record by the name of its study ("" for the summary's own) and its own.

        Raises:
            ValueError: a record lacks a column, or has none of the models.
        """
        columns = [self._cells(column, models, table(column.study, column.record)) for column in self.columns]
        return [list(row) for row in zip(models, *columns, strict=True)]

    def _cells(self, column: Column, models: Models, table: Table) -> list[str]:
        if column.column not in table.columns:
            raise ValueError(f"the record {column.record!r} has no column {column.column!r}")
        at = table.columns.index(column.column)
        values = {str(row[0]): plain(row[at]) for row in table.rows}
        cells = [next((values[name] for name in names if name in values), NOT_RUN) for names in models.values()]
        if not any(cells):
            raise ValueError(f"the record {column.record!r} has none of the models")
        return bold(cells, BEST[column.best]) if column.best else cells


def plain(cell: int | float | str) -> str:
    """A cell without the marks of bold text, and without what it adds in parentheses."""
    return str(cell).replace("**", "").partition(" (")[0]


def bold(cells: Sequence[str], best: Callable[[Sequence[float]], float]) -> list[str]:
    """The cells with the best value in bold. A cell with the values of several seeds counts by its first one."""
    values = [number(cell) for cell in cells]
    wanted = best([value for value in values if value is not None])
    return [first_in_bold(cell) if value == wanted else cell for cell, value in zip(cells, values, strict=True)]


def first_in_bold(cell: str) -> str:
    """The cell with its first value in bold."""
    first, comma, others = cell.partition(", ")
    return f"**{first}**{comma}{others}"


def number(cell: str) -> float | None:
    """The number that a cell begins with, or None."""
    try:
        return float(cell.partition(", ")[0])
    except ValueError:
        return None
