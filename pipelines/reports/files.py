"""The files of a report, written atomically: tables as CSV, plots as PNG."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # a second to import
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""The colours of Okabe and Ito, which colour-blind readers can distinguish."""
LINES = ("-", "--", ":")
"""Line styles of curves; the next is taken when the colours are used up."""


def colour_of(number: int) -> str:
    """The colour of a picture's curve with this number, from 0. After the last colour the first one comes again."""
    return COLOURS[number % len(COLOURS)]


def line_of(number: int) -> str:
    """The line style of a picture's curve with this number, from 0."""
    return LINES[number // len(COLOURS) % len(LINES)]


def save(path: Path, data: bytes) -> Path:
    """Write a file atomically. Its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows as CSV. The columns are the keys of the first row."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return save(path, text.getvalue().encode())


def brief(name: str, letters: int = 44) -> str:
    """A name cut to ``letters`` characters for a picture: its beginning and its end."""
    half = letters // 2
    return name if len(name) <= letters else f"{name[: half - 1]}…{name[-half:]}"


def briefly(names: Iterable[str]) -> dict[str, str]:
    """Each name cut by `brief`. Names that would become the same stay whole."""
    cut = {name: brief(name) for name in names}
    return {name: text if list(cut.values()).count(text) == 1 else name for name, text in cut.items()}


LEGEND_INSIDE = 6
"""Entries up to which a legend is among the curves. With more, it would cover them."""


def add_legend(figure: Figure, axes: Axes, width: int) -> None:
    """A legend of the curves of ``axes``: among them, or below the figure, which becomes higher by it, in rows of ``width``
    characters.
    """
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= LEGEND_INSIDE:
        axes.legend(fontsize=9, framealpha=0.9)
        return
    columns = max(1, width // (max(map(len, labels)) + 8))
    figure.set_figheight(figure.get_figheight() + 0.19 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, ncols=columns, fontsize=8, loc="outside lower center", frameon=False)


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG, atomically. Returns its path."""
    data = io.BytesIO()
    figure.savefig(data, dpi=dpi, format="png")
    return save(path, data.getvalue())
