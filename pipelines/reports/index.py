"""One page that names all reports below a root: evaluations, comparisons, tokens, continuations, papers' tables, sweeps.

    path = refresh_index(Path("runs/reports/rec-vs-slide"))        # runs/reports/index.html

It stands in the folder `reports` and needs nothing beside it; its links lead to the reports' own files, and its table sorts by a
click. Every command that writes a report there writes it anew.
"""

from __future__ import annotations

import csv
import html
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from operator import itemgetter
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.files import parse_json, write_atomically
from pipelines.config.run import REPORTS
from pipelines.reports.html_parts import page, sorting_table
from pipelines.terminal import cli
from pipelines.terminal.tables import counted

NAME = "index.html"
BEGINNING = 20_000
"""Characters that are read of a page of tokens: they hold its title, and the page may have megabytes."""


@dataclass(frozen=True)
class Kind:
    """A kind of report, known by a file of its own."""

    name: str
    file: str
    look: str
    """The file to look at first, if it is there."""
    about: Callable[[Path], str]
    """Describes the report's contents in a line."""


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _metrics(path: Path, name: str, *metrics: str) -> str:
    """For each row the first of these metrics that it has, as text."""
    said = []
    for row in _rows(path):
        key = next((key for key in metrics if row.get(key)), None)
        if key:
            said.append(f"{row[name]} {float(row[key]):.4f} {key.replace('_', ' ')}")
    return "; ".join(said)


def _of_evaluation(path: Path) -> str:
    rows = _rows(path)
    text = ", ".join(dict.fromkeys(row["split"] for row in rows if row.get("split")))
    return f"{text}: " * bool(text) + _metrics(path, "name", "error_rate", "bits_per_byte", "bits_per_token")


def _of_tokens(path: Path) -> str:
    """The text that a page of tokens is about, and the page's title."""
    with path.open(encoding="utf-8") as file:
        found = re.search(r"<h1>(.*?)</h1>\s*<p>(.*?):", file.read(BEGINNING), re.DOTALL)
    return html.unescape(f"{found[2]}: {found[1]}") if found else ""


def _of_table(path: Path) -> str:
    values = parse_json(path.read_bytes())
    found: list[dict[str, Any]] = list(values["orderings"].values())
    held = sum(len(each["holds"]) for each in found)
    all_pairs = sum(len(pairs) for each in found for pairs in each.values())
    order = f", {held} of {all_pairs} pairs in the paper's order" if all_pairs else ""
    return f"{values['about']}, scale {values['scale']}, {counted(len(values['seeds']), 'seed')}{order}"


KINDS = (
    Kind("evaluation", "table.csv", "cumulative.png", _of_evaluation),
    Kind(
        "comparison",
        "comparison.csv",
        "comparison.png",
        lambda path: _metrics(
            path, "run", "best_error_rate", "best_bits_per_token", "best_bits_per_byte", "best_train_bits_per_token"
        ),
    ),
    Kind("tokens", "tokens.html", "tokens.html", _of_tokens),
    Kind("continuations", "continuations.md", "continuations.md", lambda _: ""),
    Kind("paper's table", "table.json", "table.png", _of_table),
    Kind("sweep", "trials.csv", "curves.png", lambda path: counted(len(_rows(path)), "trial")),
)


def refresh_index(report: Path) -> Path | None:
    """Write the page of all reports below this report's root, and print its path. Returns the path; None if the report is in no
    folder `reports` or `tables`, or the page cannot be written.
    """
    root = next((above.parent for above in (report, *report.parents[:2]) if above.name in (REPORTS, "tables")), None)
    if root is None:
        return None
    folders = [
        *(root / REPORTS).glob("*"),
        *(root / "tables").glob("*"),
        *(root / "tables").glob("*/tokens"),
        *(root / "tables").glob("*/continuations"),
        *root.glob("*/report"),
    ]
    found: list[tuple[float, Kind, Path]] = []
    for kind, folder in product(KINDS, folders):
        with suppress(OSError):  # a folder of another user's, or one that has just been removed
            file = folder / kind.file
            if file.is_file():
                found.append((file.stat().st_mtime, kind, folder))
    found.sort(key=itemgetter(0), reverse=True)
    path = root / REPORTS / NAME
    try:
        path.parent.mkdir(exist_ok=True)
        text = page_of([row(kind, folder, time, path.parent) for time, kind, folder in found], root.name)
        write_atomically(path, text.encode(errors="replace"))  # a folder's name may not be UTF-8
    except OSError:
        return None
    print(f"  index     {cli.shown(path)}")
    return path


def row(kind: Kind, folder: Path, time: float, home: Path) -> str:
    """A report, made at this time, as a row of the table. One whose file is damaged says so."""
    about = "cannot be read: make it again"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        about = kind.about(folder / kind.file)
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix in (".html", ".png", ".md", ".csv", ".json")
    )
    first = next((path for path in files if path.name == kind.look), folder / kind.file)
    made = datetime.fromtimestamp(time)
    name = folder.parent.name if folder.name in ("report", "tokens", "continuations") else folder.name

    def link(path: Path, text: str) -> str:
        return f'<a href="{html.escape(quote(os.fsencode(relpath(path, home))))}">{html.escape(text)}</a>'

    links = " ".join(link(path, path.name) for path in files)
    return (
        f'<tr><td class="t">{link(first, name)}</td><td class="t">{kind.name}</td>'
        f'<td class="t" data-v="{made:%Y%m%d%H%M%S}">{made:%Y-%m-%d %H:%M}</td>'
        f'<td class="c">{html.escape(about)}</td><td class="c">{links}</td></tr>'
    )


def page_of(rows: list[str], name: str) -> str:
    """The page with these rows of the root ``name``."""
    table = sorting_table(("report", "kind", "made", "what it says", "files"), rows, "Reports")
    count = counted(len(rows), "report")
    return page(
        f"Reports in {html.escape(name)}", f"<p>{count}, the newest first. Click a heading to sort by it.</p>{table}"
    )
