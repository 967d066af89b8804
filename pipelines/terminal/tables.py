"""Tables of numbers on a terminal. Where it is too narrow, a cell takes several lines; none is cut.

columns = {"run": ("run", None), "steps": ("steps", ","), "bits": ("bits", ".4f")}
Console(markup=False).print(table(rows, columns, {"bits": min}))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

Form = str | Callable[[Any], str] | None
"""How a value is written: a format, or a function; None for text, which is aligned left."""


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, tuple[str, Form]],
    best: Mapping[str, Callable[[Iterable[Any]], Any]],
    **style: Any,
) -> Table:
    """A table of rows. ``columns``: heading and form of each column, by the rows' key. Missing values are dashes.

    Args:
        best: min or max of the columns in which the best value is bold.
        style: options of rich's Table.
    """
    made = Table(**style)
    for heading, form in columns.values():
        made.add_column(heading, justify="left" if form is None else "right", overflow="fold")
    known = {key: [row[key] for row in rows if row.get(key) is not None] for key in columns}
    bold = {key: choose(known[key]) for key, choose in best.items() if known[key]}
    for row in rows:
        made.add_row(*(_cell(row.get(key), form, bold.get(key)) for key, (_, form) in columns.items()))
    return made


def _cell(value: Any, form: Form, best: Any) -> str | Text:
    if value is None:
        return "–"
    return Text(written(value, form), "bold" if value == best else "")


def written(value: Any, form: Form) -> str:
    """A value in a column's form."""
    return form(value) if callable(form) else format(value, form or "")


def perplexity(value: float) -> str:
    """A perplexity with two decimals; from a million on, where untrained models are, with three significant digits."""
    return f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Words in columns without rules between them, the first to the left."""
    made = Table(box=None, pad_edge=False)
    for column, heading in enumerate(headings):
        made.add_column(heading, justify="right" if column else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def counted(count: int, what: str) -> str:
    """A number with its noun: 1 document, 2,000 documents."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def short(count: float) -> str:
    """A large number in short: 1234567 → 1.23M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}" if count < 100 * size else f"{count / size:.0f}{letter}"
    return f"{count:.0f}"
