"""Pictures of a token-by-token comparison: over position, in one document and in several, and over distance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reports.files import COLOURS, brief, briefly, colour_of, save_figure
from pipelines.terminal.tables import short
from studies.token_comparison import TokenComparison

PANELS = 12
"""Number of documents that `plot_documents` draws: the longest ones."""
NO_WORDS = "too few rare words have stood before:\na smaller --common counts more words as rare"
"""Text of `plot_distance` without a point, as for a short split, whose words are all among the most frequent ones."""


def plot_position(comparison: TokenComparison, path: Path) -> Path:
    """Draw each token's difference over its position in the shown document, and the means over hundredths of it, as Figures 4 and 5
    of the block-recurrent paper do.
    """
    (first, second) = comparison.both(comparison.shown)
    (base, better) = briefly(comparison.pair).values()
    gain = (first - second).astype(np.float64)
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(gain, color=COLOURS[0], linewidth=0.4, alpha=0.6)
    bounds, means = comparison.gains(comparison.shown)
    axes.plot(_centres(bounds), means, color=COLOURS[5], linewidth=1.6, label="means of a hundredth of it")
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("position in the document, tokens")
    axes.set_ylabel(f"nats, {base}\nless {better}")
    axes.set_title(
        f"{brief(comparison.titles[comparison.shown])}: above 0, {better} predicts better",
        fontsize=11,
        parse_math=False,
    )
    axes.legend(fontsize=9)
    return save_figure(figure, path, dpi=110)


def _centres(bounds: np.ndarray) -> np.ndarray:
    return (bounds[:-1] + bounds[1:]) / 2


def plot_documents(comparison: TokenComparison, path: Path) -> Path:
    """Draw the difference over position in each of the longest documents, side by side, in the way of Figures 4 and 5."""
    chosen = comparison.longest(PANELS)
    figure = Figure(figsize=(9, 1.7 * math.ceil(len(chosen) / 3) + 0.6), layout="constrained")
    panels = figure.subplots(math.ceil(len(chosen) / 3), 3, sharey=True, squeeze=False).flat
    for axes, document in zip(panels, chosen, strict=False):
        bounds, means = comparison.gains(document)
        axes.plot(_centres(bounds), means, color=COLOURS[5], linewidth=1.1)
        axes.axhline(0, color="0.3", linewidth=0.8)
        axes.set_title(brief(comparison.titles[document], 36), fontsize=8, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
    for axes in list(panels)[len(chosen) :]:
        axes.set_visible(False)
    base, better = briefly(comparison.pair).values()
    figure.suptitle(f"Nats, {base}\nless {better}: means of a hundredth of each document", fontsize=10)
    return save_figure(figure, path, dpi=110)


def plot_distance(comparison: TokenComparison, path: Path) -> Path:
    """Draw the cost of a repeated rare word for each model over the distance to its last occurrence, and below it the difference
    over the same words, all with standard errors. Without such words, a sentence says so."""
    rows = [row for row in comparison.distance_rows if row["from"]]
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    names = briefly(comparison.names)
    centres = [math.sqrt(row["from"] * (row["to"] + 1)) for row in rows]
    for number, name in enumerate(comparison.names):
        values, errors = ([row[key][number] for row in rows] for key in ("nats", "errors"))
        look: dict[str, Any] = {"color": colour_of(number), "marker": "o", "markersize": 4, "capsize": 2}
        axes.errorbar(centres, values, errors, label=names[name], **look)
    marks = {"window": comparison.window, "segment": 0 if comparison.cut else comparison.segment}
    for what, at in marks.items():
        if not at:
            continue
        axes.axvline(at, color="0.6", linestyle=":", linewidth=1)
        axes.annotate(
            what, (at, 1), (2, -10), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8
        )
    if not rows:
        axes.text(0.5, 0.5, NO_WORDS, ha="center", va="center", transform=axes.transAxes, color="0.4")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("nats per word")
    axes.set_title("What a rare word costs that has stood before", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    base, better = briefly(comparison.pair).values()
    differences, errors = ([row[key] for row in rows] for key in ("difference", "difference_error"))
    below.errorbar(centres, differences, errors, color=COLOURS[5], marker="o", markersize=4, capsize=2)
    below.axhline(0, color="0.3", linewidth=0.8)
    below.set_xlabel("tokens since the word stood last")
    below.set_ylabel(f"nats, {base}\nless {better}")
    below.grid(alpha=0.25)
    return save_figure(figure, path, dpi=110)
