"""Writes a token-by-token comparison of models: one HTML file that needs no other, and its pictures and tables.

paths = write_pages(comparison, folder)     # tokens.html, position.png, documents.png, distance.png, words.csv, …
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from common.files import write_atomically
from pipelines.reports.files import write_csv
from pipelines.reports.html_parts import page, sorting_table
from pipelines.terminal.tables import counted
from studies.token_comparison import TokenComparison
from studies.token_figures import plot_distance, plot_documents, plot_position
from studies.words import pieces_of

STEPS = (0.25, 1.0, 2.0, 4.0)
"""Differences in nats from which a token's colour is one step stronger."""


def coloured(comparison: TokenComparison) -> str:
    """The shown document's text in spans of one colour, as HTML."""
    ids = comparison.tokens(comparison.shown)[: comparison.shown_tokens]
    first, second = (column[: comparison.shown_tokens] for column in comparison.both(comparison.shown))
    written = list[str]()
    gains = list[float]()
    held = 0.0
    for text, gain in zip(pieces_of(comparison.write, ids.tolist()), (first - second).tolist(), strict=True):
        held += gain
        if text is not None:  # if a character has several tokens, the sum of their gains
            written.append(text)
            gains.append(held)
            held = 0.0
    level = np.searchsorted(STEPS, np.abs(gains), "right") * np.sign(gains).astype(int)
    parts = []
    for colour, group in groupby(zip(level.tolist(), written, strict=True), lambda pair: pair[0]):
        text = html.escape("".join(text for _, text in group), quote=False)
        parts.append(f'<span class="{"b" if colour > 0 else "w"}{abs(colour)}">{text}</span>' if colour else text)
    return "".join(parts)


def page_of(comparison: TokenComparison, pictures: Mapping[str, Path]) -> str:
    """The page as HTML. ``pictures``: by what they show."""
    base, better = map(html.escape, comparison.pair)
    facts = comparison.facts
    images = "".join(
        f'<p><img alt="{about}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"></p>'
        for about, path in pictures.items()
    )
    bits = facts["bits_per_token"]
    each = ", ".join(f"{html.escape(name)} {value:.4f}" for name, value in zip(comparison.names, bits, strict=True))
    places = ", ".join(f"{count} {place}" for place, count in facts["top_places"].items())
    stood = f" They stood last: {places}." if places else ""
    content = f"""
<p>{html.escape(comparison.split)}: {facts["tokens"]:,} tokens of {counted(len(comparison.titles), "document")}.
Bits per token: {each}; {better} less {base}: {comparison.difference()}.</p>
<p>{html.escape(comparison.share_of_names())}{stood}</p>
<h2>{comparison.by.capitalize()}s that {better} predicts better</h2>{_top_table(comparison)}
<h2>Over position and distance</h2>{images}{_distance_table(comparison)}
<h2>{html.escape(comparison.titles[comparison.shown])}</h2>
<p>The first {min(comparison.shown_tokens, comparison.lengths[comparison.shown]):,} tokens. <span class="b3">Green</span>:
{better} predicts better, <span class="w3">red</span>: {base}; stronger from {", ".join(f"{step:g}" for step in STEPS)} nats on.</p>
<pre>{coloured(comparison)}</pre>"""
    return page(f"{better} against {base}, token by token", content)


def _top_table(comparison: TokenComparison) -> str:
    base, better = comparison.pair
    rows = []
    for row in comparison.rows:
        left, word, right = map(html.escape, row["text"])
        rows.append(
            f'<tr><td class="t">{html.escape(row["word"])}</td><td class="c">{left}<mark>{word}</mark>{right}</td>'
            f"<td>{row['gain']:.2f}</td><td>{row[base]:.2f}</td>"
            f'<td>{row[better]:.2f}</td><td data-v="{row["last_seen"]}">{row["last_seen"] or "–"}</td>'
            f'<td class="t">{row["where"]}</td><td class="t">{"name" if row["name"] else ""}</td>'
            f'<td class="t">{html.escape(row["document"])}</td><td>{row["token"]}</td></tr>'
        )
    headings = ("word", "text", "gain, nats", base, better, "tokens back", "where", "name", "document", "token")
    return sorting_table(headings, rows, "Words by gain")


def _distance_table(comparison: TokenComparison) -> str:
    rows = []
    for row in comparison.distance_rows:
        span = f"{row['from']:,} to {row['to']:,}" if row["from"] else "not before"
        means = "".join(
            f'<td data-v="{mean}">{mean:.3f} ± {error:.3f}</td>'
            for mean, error in zip(row["nats"], row["errors"], strict=True)
        )
        rows.append(
            f'<tr><td data-v="{row["from"]}">{span}</td><td data-v="{row["words"]}">{row["words"]:,}</td>{means}'
            f'<td data-v="{row["difference"]}">{row["difference"]:+.3f} ± {row["difference_error"]:.3f}</td></tr>'
        )
    return sorting_table(
        ("tokens since it stood last", "rare words", *comparison.names, "difference"), rows, "Rare words by distance"
    )


OPTIONAL = ("documents.png", "words.csv", "distances.csv", "positions.csv")
"""Files that only some comparisons have."""


def write_pages(comparison: TokenComparison, folder: Path) -> list[Path]:
    """Write tokens.html, position.png, documents.png for several documents, distance.png, words.csv, distances.csv and
    positions.csv, each atomically. Returns their paths."""
    (folder / "documents.png").unlink(missing_ok=True)  # of another comparison
    pictures = {"Difference over position": plot_position(comparison, folder / "position.png")}
    if len(comparison.titles) > 1:
        pictures["In each document"] = plot_documents(comparison, folder / "documents.png")
    pictures["Cost over distance"] = plot_distance(comparison, folder / "distance.png")
    write_atomically(folder / "tokens.html", page_of(comparison, pictures).encode())
    rows = [{**row, "text": "".join(row["text"])} for row in comparison.rows]
    tables = {
        folder / "words.csv": rows,
        folder / "distances.csv": _flat(comparison),
        folder / "positions.csv": comparison.positions(),
    }
    for path in tables:
        path.unlink(missing_ok=True)  # of another comparison: one without a word has no table
    return [
        folder / "tokens.html",
        *pictures.values(),
        *(write_csv(rows, path) for path, rows in tables.items() if rows),
    ]


def _flat(comparison: TokenComparison) -> list[dict[str, Any]]:
    """Rows of distances.csv: a column for each model's mean and one for its standard error, and the same of the difference."""
    return [
        {
            **{key: row[key] for key in ("from", "to", "words")},
            **dict(zip(comparison.names, row["nats"], strict=True)),
            **{f"{name}_error": error for name, error in zip(comparison.names, row["errors"], strict=True)},
            **{key: row[key] for key in ("difference", "difference_error")},
        }
        for row in comparison.distance_rows
    ]
