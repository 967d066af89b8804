"""Draws rooms.png: the folders of the code and who imports whom, as the imports themselves say it.

    python docs/rooms.py

An arrow says who imports whom; it is left out where others imply it. A room stands one row below the lowest that imports it. Each
says its purpose (the first sentence of its package), and which of the large libraries its modules import.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import pipelines

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(name for name in pipelines.PACKAGES if name != "pipelines")
SCRIPTS = "commands"
LIBRARIES = {"torch": "C3", "ray": "C0", "mlflow": "C2", "transformers": "C4"}
WIDTH = 2.75
HEIGHT = 1.2
COLUMN = 3.0
ROW = 1.9
COLUMNS = {
    **{SCRIPTS: 0, "sweeps": 0, "studies": 1},
    **{"tune_spaces": -2, "presets": -1, "reports": 0, "inference": 1, "cluster": 2},
    **{
        "terminal": -1.95,
        "training": 2.5,
        "checkpoints": 1.4,
        "tracking": 2.4,
        "config": 0.3,
        "data_prep": -2,
        "recur_models": 1.25,
        "common": 0,
    },
}
"""Where a room stands in its row, so that few arrows pass behind others' boxes. Rows, arrows and texts follow from the files."""
BOTTOM = ("common",)


@dataclass
class Room:
    """A folder, or all scripts together."""

    name: str
    purpose: str = ""
    imports: set[str] = field(default_factory=set)
    """Names of rooms."""
    libraries: set[str] = field(default_factory=set)


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(dotted: str) -> str:
    """The room that a dotted name lies in: `training` for `pipelines.training.loop.train`; empty outside of ours."""
    first, second, *_ = f"{dotted}.".split(".")
    if first != "pipelines":
        return first if first in PACKAGES else ""
    if (ROOT / "pipelines" / second).is_dir():
        return second
    return SCRIPTS if (ROOT / "pipelines" / f"{second}.py").exists() else ""


def purpose(docstring: str) -> str:
    """The first sentence, of a long one its beginning."""
    sentence = " ".join(docstring.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    for end in (":", ","):
        if len(sentence) > 80:
            sentence = sentence.split(end)[0]
    return sentence


def read() -> dict[str, Room]:
    """Every room by its name, from the files."""
    rooms: dict[str, Room] = {}
    for package in (*PACKAGES, "pipelines"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
            if path == ROOT / "pipelines" / "__init__.py":
                continue
            room = rooms.setdefault(name, Room(name))
            tree = ast.parse(path.read_text("utf-8"))
            if path.name == "__init__.py" and not room.purpose:
                room.purpose = purpose(ast.get_docstring(tree) or "")
            names = list(imported(tree))
            room.imports |= {room_of(other) for other in names} - {name, ""}
            room.libraries |= {other.split(".")[0] for other in names} & LIBRARIES.keys()
    rooms[SCRIPTS].purpose = "one script each: a config and a main"
    return rooms


def below(rooms: dict[str, Room], name: str) -> set[str]:
    """All that a room stands on, at first hand or not."""
    reached: set[str] = set()
    open_names = set(rooms[name].imports)
    while open_names:
        reached |= open_names
        open_names = {other for each in open_names for other in rooms[each].imports} - reached
    return reached


def implied(rooms: dict[str, Room], name: str) -> set[str]:
    """The imports of a room that follow from its other imports."""
    return {other for other in rooms[name].imports for each in rooms[name].imports if other in below(rooms, each)}


def heights(rooms: dict[str, Room]) -> dict[str, int]:
    """The row of each room, from the bottom. Raises ValueError where rooms import each other in a circle."""
    for name in rooms:
        if name in below(rooms, name):
            raise ValueError(f"{name} imports itself through others: the rooms have no order")
    depths: dict[str, int] = {}
    while left := [name for name in rooms if name not in depths]:
        for name in left:
            importers = {other for other in rooms if name in rooms[other].imports}
            if importers <= depths.keys():
                depths[name] = 1 + max((depths[other] for other in importers), default=-1)
    lowest = max(depths.values())
    return {name: lowest if name in BOTTOM else depths[name] for name in rooms}


def places(rooms: dict[str, Room]) -> dict[str, tuple[float, float]]:
    """The middle of each room's box. A room that COLUMNS does not know stands at the right end of its row."""
    rows = heights(rooms)
    free = 1 + max(COLUMNS.values())
    return {name: (COLUMNS.get(name, free) * COLUMN, -rows[name] * ROW) for name in rooms}


def draw_room(axes: Axes, room: Room, x: float, y: float) -> None:
    colour = "#eef3f8" if room.name not in PACKAGES else "#f4efe2"
    style = "round,pad=0.02,rounding_size=0.12"
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=colour, edgecolor="0.35", zorder=3))
    axes.text(x, y + 0.4, room.name, ha="center", va="center", fontsize=12, weight="bold", zorder=4)
    axes.text(x, y - 0.02, textwrap.fill(room.purpose, 33), ha="center", va="center", fontsize=8, zorder=4)
    small: dict[str, Any] = {"va": "center", "fontsize": 7, "zorder": 4}
    right = x + WIDTH / 2 - 0.1
    for library in sorted(room.libraries):
        axes.text(right, y - 0.45, library, ha="right", color=LIBRARIES[library], weight="bold", **small)
        right -= 0.09 * len(library) + 0.08


def told(rooms: dict[str, Room]) -> str:
    """The picture in words, which it carries."""
    lines = [
        f"{name} ({room.purpose}; {', '.join(sorted(room.libraries))}): {', '.join(sorted(room.imports - implied(rooms, name)))}"
        for name, room in sorted(rooms.items())
    ]
    return "\n".join(lines)


def draw(rooms: dict[str, Room], path: Path) -> None:
    found = places(rooms)
    xs, ys = zip(*found.values(), strict=True)
    figure = Figure(figsize=((max(xs) - min(xs) + COLUMN) * 0.8, (max(ys) - min(ys) + ROW) * 0.8), layout="constrained")
    axes = figure.add_subplot()
    for name, room in rooms.items():
        x, y = found[name]
        draw_room(axes, room, x, y)
        for other in sorted(room.imports - implied(rooms, name)):
            to_x, to_y = found[other]
            above = (x, y - HEIGHT / 2)
            onto = (to_x, to_y + HEIGHT / 2)
            axes.add_patch(
                FancyArrowPatch(above, onto, arrowstyle="-|>", mutation_scale=11, color="0.3", linewidth=1.2)
            )
    axes.set_xlim(min(xs) - COLUMN / 2, max(xs) + COLUMN / 2)
    axes.set_ylim(min(ys) - ROW / 2, max(ys) + ROW / 2)
    axes.set_aspect("equal")
    axes.axis("off")
    FigureCanvasAgg(figure).print_figure(path, dpi=110, metadata={"Software": None, "Description": told(rooms)})


def main() -> None:
    path = Path(__file__).with_suffix(".png")
    draw(read(), path)
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}", file=sys.stderr)


if __name__ == "__main__":
    main()
