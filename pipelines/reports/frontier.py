"""Draws results over their cost: over FLOPs per token (with several tokenizers: per byte) with the Pareto frontier, and over the
window if runs differ in it.

    plot_frontier(spots, "validation perplexity", "FLOPs of the forward pass per token", Path("frontier.png"))

Figures 5 and 4 of *Adding Recurrence to Pretrained Transformers* (Yoshida et al. 2020): a curve for each model and overlap where
the windows differ, else for each model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipelines.reports.files import briefly, colour_of, line_of, save_figure
from pipelines.tracking.metrics import about
from pipelines.tracking.score import perplexity

LEAST_DIFFERENCE = 0.01
"""Share by which the dearest spot must cost more than the cheapest. With less, costs count as equal."""
FRONTIER: dict[str, Any] = {"color": "0.75", "linewidth": 6, "marker": "o", "markersize": 13}
"""The broad line of the Pareto frontier; with a single spot it is a disc."""
NAMED = 40
"""Most spots that get labels; with more, none does."""


@dataclass(frozen=True)
class Spot:
    """A run, an evaluation, several seeds of one, or a trial. A lower value of its metric is better."""

    name: str
    model: str
    """Architecture: spots of one are joined by a line."""
    windows: Mapping[str, int]
    """The `window` that the model's attention sees, and its `overlap`, if it has them."""
    flops: float
    """FLOPs for one token or one byte."""
    value: float


def as_plotted(metric: str, values: Sequence[float]) -> tuple[str, list[float]]:
    """Label and values of a metric as the papers plot it: bits per token as perplexity, any other metric as it is."""
    words = about(metric)
    if not metric.endswith("bits_per_token"):
        return words, [*values]
    return words.replace("bits", "perplexity"), [perplexity(value) for value in values]


def pareto(spots: Sequence[Spot]) -> list[Spot]:
    """The Pareto frontier, ordered by FLOPs: the spots with a better value than all that cost less."""
    best: list[Spot] = []
    for spot in sorted(spots, key=lambda spot: (spot.flops, spot.value)):
        if not best or spot.value < best[-1].value:
            best.append(spot)
    return best


def curves_of(spots: Sequence[Spot], by_overlap: bool) -> dict[str, list[Spot]]:
    """The spots of each model, or of each model and overlap, by label; those of a curve from the shortest window on."""
    curves: dict[str, list[Spot]] = {}
    for spot in spots:
        overlap = f", overlap {spot.windows['overlap']}" if by_overlap and "overlap" in spot.windows else ""
        curves.setdefault(spot.model + overlap, []).append(spot)
    for curve in curves.values():
        curve.sort(key=lambda spot: (*spot.windows.values(), spot.flops))
    return curves


def without_beaten(curve: Sequence[Spot]) -> list[Spot]:
    """The spots of a curve that its line joins: of those that cost the same and have the same windows, the best."""
    best: dict[tuple[float, ...], Spot] = {}
    for spot in curve:
        key = (spot.flops, *spot.windows.values())
        if key not in best or spot.value < best[key].value:
            best[key] = spot
    return list(best.values())


def draw_curve(axes: Axes, curve: Sequence[Spot], x: Callable[[Spot], float], look: dict[str, Any]) -> None:
    """Draw all spots of a curve over their ``x``, and a line through those of `without_beaten`."""
    lowest = without_beaten(curve)
    axes.plot([x(spot) for spot in curve], [spot.value for spot in curve], **look | {"linestyle": ""})
    axes.plot([x(spot) for spot in lowest], [spot.value for spot in lowest], **look)


def label_spots(axes: Axes, spots: Sequence[Spot]) -> str:
    """Write beside each spot its window, or its overlap or name where all have one window; nothing where its model has no window
    and others have several. It stands on the side of the middle, where a long name has room. Returns which of them it is.
    """
    beside = "name"
    for field in ("overlap", "window"):
        if len({spot.windows[field] for spot in spots if field in spot.windows}) > 1:
            beside = field
    names = briefly(spot.name for spot in spots)
    flops = [spot.flops for spot in spots]
    middle = math.sqrt(min(flops) * max(flops))  # of a logarithmic axis
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": "0.35"}
    for spot in spots:
        text = names[spot.name] if beside == "name" else str(spot.windows.get(beside, ""))
        at = (spot.flops, spot.value)
        if spot.flops > middle:
            axes.annotate(text, at, xytext=(-4, 4), horizontalalignment="right", **look)
        else:
            axes.annotate(text, at, xytext=(4, 4), **look)
    return beside


def plot_frontier(spots: Sequence[Spot], what: str, of_flops: str, path: Path) -> list[Path]:
    """Plot the metric (label ``what``) over FLOPs (label ``of_flops``), and over the window if there are several. Returns
    its file, and none if the costs differ by less than `LEAST_DIFFERENCE`.
    """
    flops = [spot.flops for spot in spots]
    if not flops or max(flops) < (1 + LEAST_DIFFERENCE) * min(flops):
        return []
    windows = sorted({spot.windows["window"] for spot in spots if "window" in spot.windows})
    several = len(windows) > 1
    figure = Figure(figsize=(13 if several else 8.5, 5), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 1 + several, sharey=True, squeeze=False)[0])
    best = pareto(spots)
    panels[0].plot([spot.flops for spot in best], [spot.value for spot in best], zorder=0, **FRONTIER)
    handles = [Line2D([], [], label="Pareto frontier", **FRONTIER)]
    for number, (label, curve) in enumerate(curves_of(spots, by_overlap=several).items()):
        drawn: dict[str, Any] = {"color": colour_of(number), "linestyle": line_of(number), "linewidth": 1.4}
        drawn |= {"marker": "o", "markersize": 5}
        draw_curve(panels[0], curve, lambda spot: spot.flops, drawn)
        handles.append(Line2D([], [], label=label, **drawn))
        sized = [spot for spot in curve if "window" in spot.windows]
        if several and sized:
            draw_curve(panels[1], sized, lambda spot: spot.windows["window"], drawn)
    x_label = f"{of_flops} (log)"
    if len(spots) <= NAMED:
        x_label += f"; beside each, its {label_spots(panels[0], spots)}"
    panels[0].set_xscale("log")
    panels[0].margins(x=0.1)
    panels[0].tick_params(axis="x", which="both", labelsize=8)
    panels[0].set_xlabel(x_label)
    panels[0].set_ylabel(what)
    if several:
        panels[1].set_xlabel("tokens that attention sees")
        panels[1].set_xticks(windows if len(windows) <= 10 else windows[:: len(windows) // 8])
    for axes in panels:
        axes.grid(alpha=0.25, which="both" if axes is panels[0] else "major")
    figure.legend(handles=handles, fontsize=8, loc="outside right upper", frameon=False)
    figure.suptitle(f"{what} by what it costs; lower is better", fontsize=11)
    return [save_figure(figure, path)]
