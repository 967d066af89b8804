"""Models on the same text, token by token, on one page: an HTML file that needs nothing beside itself, two pictures, two tables.

paths = write_pages(comparison, folder)               # tokens.html, position.png, distance.png, words.csv, distances.csv
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from data_prep.manifest import write_atomically
from pipelines.reports.files import COLOURS, save_figure, write_csv
from pipelines.reports.html_parts import SCRIPT, STYLE, sorting_table
from pipelines.reports.words import Words, around, by_distance, pieces_of, rare, top, where

STEPS = (0.25, 1.0, 2.0, 4.0)
"""Nats of difference from which a token's colour is one stronger."""
COLUMNS = ("document", "token", "word", "gain", "last_seen", "where", "name", "text", "from", "to", "words")
"""What tables have beside a column for each model, which cannot be called so."""


@dataclass(frozen=True)
class TokenComparison:
    """Two passes over one split, or more."""

    names: tuple[str, ...]
    """What is compared with first, and what is looked at last; between them what the study of distances has besides."""
    split: str
    titles: Sequence[str]
    """Of the documents."""
    tokens: Callable[[int], np.ndarray]
    """Ids [T] of a document."""
    nats: Callable[[int], Sequence[np.ndarray]]
    """Of each pass, float32 [T]."""
    write: Callable[[Sequence[int]], str]
    words: Words
    window: int
    """Tokens that the models see without recurrence."""
    segment: int
    """Tokens after which State is cleared, or would be."""
    cut: int
    """The token before which it is cleared instead; 0 for none."""
    shown: int
    """The document whose text is on the page, and"""
    shown_tokens: int
    """how many tokens of it at most."""
    count: int = 40
    """Words in the table."""
    common: int = 1000
    """The most frequent words of the split, which the distances leave out."""

    @property
    def pair(self) -> tuple[str, str]:
        """What is compared with, then what is looked at."""
        return self.names[0], self.names[-1]

    def both(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """The nats of these two."""
        nats = self.nats(document)
        return nats[0], nats[-1]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Its `summary`, for which all losses are read."""
        return summary(self)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Its `top_rows`."""
        return top_rows(self)

    @cached_property
    def distance_rows(self) -> list[dict[str, Any]]:
        """Its `distances`."""
        return distances(self)

    def place(self, before: int, offset: int) -> str:
        """`where` a word stood last."""
        begins = self.cut * (offset >= self.cut) if self.cut else offset // self.segment * self.segment
        return where(before, self.window, begins, offset)


def summary(comparison: TokenComparison) -> dict[str, Any]:
    """The figures over all documents: bits per token of each pass, and shares among the top words."""
    sums, tokens = np.zeros(len(comparison.names)), 0
    for document in range(len(comparison.titles)):
        nats = comparison.nats(document)
        sums += [float(column.sum(dtype=np.float64)) for column in nats]
        tokens += len(nats[0])
    best = top(comparison.words, comparison.count)  # fewer where fewer have a gain
    places = [comparison.place(*pair) for pair in zip(best.before_N.tolist(), best.offset_N.tolist(), strict=True)]
    return {
        "tokens": tokens,
        "words": len(comparison.words),
        "top": len(best),
        "bits_per_token": (sums / math.log(2) / tokens).tolist(),
        "names_among_top": float(best.name_N.mean()) if len(best) else math.nan,
        "names_among_all": float(comparison.words.name_N.mean()) if len(comparison.words) else math.nan,
        "top_places": {place: places.count(place) for place in sorted(set(places))},
    }


def said_of_names(comparison: TokenComparison, facts: Mapping[str, Any]) -> str:
    """The share of names among the words with most gain, in a sentence."""
    base, better = comparison.pair
    if not facts["top"]:
        return f"No word costs {better} less than {base}."
    shares = f"{facts['names_among_top']:.0%} are names, of all words {facts['names_among_all']:.0%}."
    return f"Of the {_counted(facts['top'], 'word')} that {better} predicts better by most, {shares}"


def top_rows(comparison: TokenComparison) -> list[dict[str, Any]]:
    """One row for each of the words by which the last pass is better than the first, the most first."""
    best, (base, better) = top(comparison.words, comparison.count), comparison.pair
    rows = []
    for number in range(len(best)):
        document, offset, count = int(best.document_N[number]), int(best.offset_N[number]), int(best.tokens_N[number])
        left, word, right = around(comparison.write, comparison.tokens(document), offset, count)
        before = int(best.before_N[number])
        first, *_, second = best.nats_MN[:, number].tolist()
        rows.append(
            {
                "document": comparison.titles[document],
                "token": offset,
                "word": best.text_N[number],
                "gain": first - second,
                base: first,
                better: second,
                "last_seen": before,
                "where": comparison.place(before, offset),
                "name": bool(best.name_N[number]),
                "text": (left, word, right),
            }
        )
    return rows


def plot_position(comparison: TokenComparison, path: Path) -> Path:
    """Figures 4 and 5 of the block-recurrent paper: the difference of each token of the shown document over its position, and their
    mean over a hundredth of it.
    """
    (first, second), (base, better) = comparison.both(comparison.shown), comparison.pair
    gain = (first - second).astype(np.float64)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(gain, color=COLOURS[0], linewidth=0.4, alpha=0.6)
    size = max(len(gain) // 100, 1)
    bins = gain[: len(gain) // size * size].reshape(-1, size).mean(1)
    axes.plot(
        (np.arange(len(bins)) + 0.5) * size, bins, color=COLOURS[5], linewidth=1.6, label=f"mean of {size:,} tokens"
    )
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("position in the document, tokens")
    axes.set_ylabel(f"nats, {base}\nless {better}")
    axes.set_title(f"{comparison.titles[comparison.shown]}: above 0, {better} predicts better", fontsize=11)
    axes.legend(fontsize=9)
    return save_figure(figure, path, dpi=110)


def distances(comparison: TokenComparison) -> list[dict[str, Any]]:
    """What rare words cost, by how far back they stood last."""
    return by_distance(comparison.words.at(rare(comparison.words, comparison.common)))


def plot_distance(comparison: TokenComparison, path: Path) -> Path:
    """What a repeated rare word costs each model over the distance to its last occurrence, with standard errors."""
    rows = [row for row in comparison.distance_rows if row["from"]]
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(comparison.names):
        values, errors = ([row[key][number] for row in rows] for key in ("nats", "errors"))
        centres = [math.sqrt(row["from"] * (row["to"] + 1)) for row in rows]
        colour = COLOURS[number % len(COLOURS)]
        axes.errorbar(centres, values, errors, color=colour, marker="o", markersize=4, capsize=2, label=name)
    for at, what in ((comparison.window, "window"), *([] if comparison.cut else [(comparison.segment, "segment")])):
        axes.axvline(at, color="0.6", linestyle=":", linewidth=1)
        axes.annotate(
            what, (at, 1), (2, -10), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("tokens since the word stood last")
    axes.set_ylabel("nats per word")
    axes.set_title("What a rare word costs that has stood before", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    return save_figure(figure, path, dpi=110)


def coloured(comparison: TokenComparison) -> str:
    """The shown document's text in spans of one colour, as HTML."""
    ids = comparison.tokens(comparison.shown)[: comparison.shown_tokens]
    first, second = (column[: comparison.shown_tokens] for column in comparison.both(comparison.shown))
    written, gains, held = list[str](), list[float](), 0.0
    for text, gain in zip(pieces_of(comparison.write, ids.tolist()), (first - second).tolist(), strict=True):
        held += gain
        if text is not None:  # of a character of several tokens, what all of them gain
            written.append(text)
            gains.append(held)
            held = 0.0
    level = np.searchsorted(STEPS, np.abs(gains), "right") * np.sign(gains).astype(int)
    parts = []
    for colour, group in groupby(zip(level.tolist(), written, strict=True), lambda pair: pair[0]):
        text = html.escape("".join(text for _, text in group), quote=False)
        parts.append(f'<span class="{"b" if colour > 0 else "w"}{abs(colour)}">{text}</span>' if colour else text)
    return "".join(parts)


def page(comparison: TokenComparison, pictures: Sequence[Path]) -> str:
    """The whole page."""
    base, better = map(html.escape, comparison.pair)
    facts = comparison.facts
    figures = zip(pictures, ("Difference over position", "Cost over distance"), strict=True)
    images = "".join(
        f'<p><img alt="{about}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"></p>'
        for path, about in figures
    )
    bits = facts["bits_per_token"]
    each = ", ".join(f"{html.escape(name)} {value:.4f}" for name, value in zip(comparison.names, bits, strict=True))
    places = ", ".join(f"{count} {place}" for place, count in facts["top_places"].items())
    stood = f" They stood last: {places}." if places else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{better} against {base}, token by token</title><style>{STYLE}</style></head><body><main>
<h1>{better} against {base}, token by token</h1>
<p>{html.escape(comparison.split)}: {facts["tokens"]:,} tokens of {_counted(len(comparison.titles), "document")}.
Bits per token: {each}; {better} less {base}: {bits[-1] - bits[0]:+.4f}.</p>
<p>{html.escape(said_of_names(comparison, facts))}{stood}</p>
<h2>Words that {better} predicts better</h2>{_top_table(comparison)}
<h2>Over position and distance</h2>{images}{_distance_table(comparison)}
<h2>{html.escape(comparison.titles[comparison.shown])}</h2>
<p>The first {min(comparison.shown_tokens, len(comparison.tokens(comparison.shown))):,} tokens. <span class="b3">Green</span>:
{better} predicts better, <span class="w3">red</span>: {base}; stronger from {", ".join(f"{step:g}" for step in STEPS)} nats on.</p>
<pre>{coloured(comparison)}</pre></main><script>{SCRIPT}</script></body></html>
"""


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


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
            f"<td>{row['nats'][0] - row['nats'][-1]:+.3f}</td></tr>"
        )
    return sorting_table(
        ("tokens since it stood last", "rare words", *comparison.names, "difference"), rows, "Rare words by distance"
    )


def write_pages(comparison: TokenComparison, folder: Path) -> list[Path]:
    """tokens.html, position.png, distance.png, words.csv and distances.csv, each atomically. Returns their paths."""
    pictures = [
        plot_position(comparison, folder / "position.png"),
        plot_distance(comparison, folder / "distance.png"),
    ]
    write_atomically(folder / "tokens.html", page(comparison, pictures).encode())
    rows = [{**row, "text": "".join(row["text"])} for row in comparison.rows]
    tables = {folder / "words.csv": rows, folder / "distances.csv": _flat(comparison)}
    for path in tables:
        path.unlink(missing_ok=True)  # of another comparison: one without a word has no table
    return [folder / "tokens.html", *pictures, *(write_csv(rows, path) for path, rows in tables.items() if rows)]


def _flat(comparison: TokenComparison) -> list[dict[str, Any]]:
    """The distances, a column for each model's mean and for its standard error."""
    return [
        {
            **{key: row[key] for key in ("from", "to", "words")},
            **dict(zip(comparison.names, row["nats"], strict=True)),
            **{f"{name}_error": error for name, error in zip(comparison.names, row["errors"], strict=True)},
        }
        for row in comparison.distance_rows
    ]
