"""The pictures of an evaluation.

`cumulative.png` is Figure 6 of the block-recurrent paper: the gain from carrying State over the position in a document; `worth.png`
has the differences alone. A labelled split has `errors.png` too: the error rate over the position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipelines.reports.files import add_legend, briefly, colour_of, save_figure
from pipelines.reports.seeds import members, plot_mean
from pipelines.terminal.tables import short
from pipelines.tracking.score import Evaluation, Score

DOCUMENTS_COLOUR = "#C44E52"
LEGEND_WIDTH = 128
"""Characters in a row of a legend below worth.png."""
PASSES = (
    ("carried", "State carried", "-"),
    ("cleared_states", "recurrent states cleared", "--"),
    ("cleared_all", "all State cleared", ":"),
)
"""The passes of an Evaluation: field, label and line style."""


def is_labelled(evaluations: Sequence[Evaluation]) -> bool:
    """Whether any evaluation is of a labelled split. Such a split has errors, and no metrics by word or byte."""
    return any(e.carried.errors is not None for e in evaluations)


def of_one_text(evaluations: Sequence[Evaluation]) -> bool:
    """Whether all evaluations have the same tokens, so that metrics by token can be compared."""
    return len({e.store_fingerprint for e in evaluations}) == 1


def by_position(score: Score) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of the position buckets in tokens [P], mean bits per token up to there [P], and the number of documents in the bucket
    [P], averaged over its positions. In a labelled split labels alone count: NaN before the first of them.
    """
    tokens = np.asarray(score.bucket_tokens, dtype=np.float64)
    nats = np.cumsum(score.bucket_nats)
    ends = score.bucket * np.arange(1, len(tokens) + 1)
    return ends, _share(nats / math.log(2), np.cumsum(tokens)), tokens / score.bucket


def errors_by_position(score: Score) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the buckets in tokens [P], and the error rate in each [P]; NaN where it has no label."""
    errors = np.asarray(score.bucket_errors, dtype=np.float64)
    tokens = np.asarray(score.bucket_tokens)
    return score.bucket * np.arange(1, len(tokens) + 1), _share(errors, tokens)


def _share(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.divide(sums, counts, out=np.full(len(sums), math.nan), where=counts > 0)


def plot_cumulative(evaluations: Sequence[Evaluation], path: Path) -> Path:
    """Figure 6 of the block-recurrent paper: cumulative bits per token against position in the document, State carried (solid) and
    cleared at each segment (recurrent states: dashed; all of it: dotted), and how many documents reach that position.
    """
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.add_subplot()
    handles = _curves(axes, evaluations, lambda score: by_position(score)[:2])
    axes.set_ylabel("bits per token, mean up to the position")
    splits = ", ".join(dict.fromkeys(e.split for e in evaluations))
    axes.set_title(f"Cumulative cross-entropy on {splits}", fontsize=11)

    reach = axes.twinx()
    longest = max(evaluations, key=lambda e: len(e.carried.bucket_tokens) * e.carried.bucket).carried
    positions, _, documents = by_position(longest)
    # A step at each bucket's end: on a logarithmic axis the first bucket has no start.
    reach.fill_between(positions, documents, step="pre", color=DOCUMENTS_COLOUR, alpha=0.10, linewidth=0)
    reach.set_ylim(0, None)
    reach.locator_params(axis="y", integer=True)
    what = "reach" if longest.errors is None else "have a label at"
    reach.set_ylabel(f"documents that {what} the position", color=DOCUMENTS_COLOUR)
    reach.tick_params(axis="y", colors=DOCUMENTS_COLOUR)
    axes.set_zorder(reach.get_zorder() + 1)  # lines above the shading
    axes.patch.set_visible(False)
    axes.legend(handles=handles, fontsize=9, framealpha=0.9)
    return save_figure(figure, path)


class Worth(NamedTuple):
    """The worth of State: how many more bits the others need than the best."""

    best: str
    bits: float
    """Bits per token that the best one needs."""
    seeds_SP: np.ndarray
    """How many percent more bits each seed of the best one needs than their mean, up to each position [seeds, P]."""
    ends_P: np.ndarray
    """Positions in the document, in tokens."""
    lines: list[tuple[str, str, str, np.ndarray]]
    """Model, pass, line style, and how many percent more bits each seed needs up to each position [seeds, P]."""


def worth_of(evaluations: Sequence[Evaluation]) -> Worth:
    """Compare each seed's cleared pass with its own carried one, and other models with the mean over the best model's seeds."""
    curves = members(evaluations)
    best = min(curves, key=lambda name: np.mean([e.carried.bits_per_token for e in curves[name]]))
    ends_P = by_position(curves[best][0].carried)[0]

    def bits(scores: Sequence[Score]) -> np.ndarray:
        curves = [by_position(score)[:2] for score in scores]
        # The last bucket ends with the text: where another model's is longer, its total stands at the best model's end.
        return np.stack([np.interp(ends_P, np.minimum(own_P, ends_P[-1]), bits_P) for own_P, bits_P in curves])

    own_SP = bits([e.carried for e in curves[best]])
    mean_P = own_SP.mean(0)
    lines = list[tuple[str, str, str, np.ndarray]]()
    for name, of in curves.items():
        for what, style, scores in _passes_of(of):
            if (name, style) != (best, "-"):
                against = own_SP if name == best and len(scores) == len(of) else mean_P
                lines.append((name, what, style, 100 * (bits(scores) / against - 1)))
    return Worth(best, float(mean_P[-1]), 100 * (own_SP / mean_P - 1), ends_P, lines)


def plot_worth(evaluations: Sequence[Evaluation], path: Path) -> list[Path]:
    """Draw the worth of State: cumulative bits per token, in percent above the model that needs the fewest. Lines and bands are as
    in `plot_cumulative`, on whose scale a few percent cannot be seen. Returns its file, and none if there is nothing to compare
    with the best.
    """
    if not of_one_text(evaluations) or is_labelled(evaluations):
        return []
    best, bits, seeds_SP, ends_P, lines = worth_of(evaluations)
    if not lines:
        return []
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    shown = ends_P >= ends_P[-1] / 64  # before that a mean is over few tokens
    names = briefly(members(evaluations))
    colours = {name: colour_of(number) for number, name in enumerate(names)}
    for name, what, style, more_SP in lines:
        label = f"{names[name]}, {what}: {more_SP[:, -1].mean():+.1f} %"
        plot_mean(axes, ends_P[shown], more_SP[:, shown], style, color=colours[name], linewidth=1.8, label=label)
    label = f"{names[best]}, State carried: {bits:.4f} bits per token"
    plot_mean(axes, ends_P[shown], seeds_SP[:, shown], "-", color=colours[best], linewidth=1.8, label=label)
    _label_positions(axes)
    axes.yaxis.set_major_formatter("{x:+.1f} %")
    axes.set_ylabel("more bits per token,\nmean up to the position")
    axes.set_title(f"What State is worth on {evaluations[0].split}: lower is better", fontsize=11)
    add_legend(figure, axes, LEGEND_WIDTH)
    return [save_figure(figure, path)]


def plot_errors(evaluations: Sequence[Evaluation], path: Path) -> Path:
    """The error rate against position in the document, of labelled splits; lines as in `plot_cumulative`."""
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.add_subplot()
    labelled = [e for e in evaluations if e.carried.errors is not None]
    axes.legend(handles=_curves(axes, labelled, errors_by_position), fontsize=9, framealpha=0.9)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("errors per label, at the position")
    axes.set_title(f"Errors on {', '.join(dict.fromkeys(e.split for e in labelled))}", fontsize=11)
    return save_figure(figure, path)


def _passes_of(evaluations: Sequence[Evaluation]) -> Iterator[tuple[str, Any, list[Score]]]:
    """Label, line style and Scores of each pass that at least one evaluation has."""
    for field, what, style in PASSES:
        scores = [getattr(evaluation, field) for evaluation in evaluations]
        known = [score for score in scores if score is not None]
        if known:
            yield what, style, known


def _label_positions(axes: Axes) -> None:
    """Set up the axis of positions, which all the figures have."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("position in the document (tokens)")
    axes.grid(alpha=0.25)


def _curves(
    axes: Axes, evaluations: Sequence[Evaluation], curve: Callable[[Score], tuple[np.ndarray, np.ndarray]]
) -> list[Line2D]:
    """Draw the curve of each Score against position; for several seeds of one model their mean, with a band of their standard
    deviation. Returns the legend's handles."""
    handles = []
    used = {}
    curves = members(evaluations)
    names = briefly(curves)
    for number, (name, of) in enumerate(curves.items()):
        colour = colour_of(number)
        label = f"{names[name]}: {short(of[0].parameters)} parameters, step {of[0].step:,}"
        handles.append(Line2D([], [], color=colour, label=label))
        for what, style, scores in _passes_of(of):
            used[what] = Line2D([], [], color="0.3", linestyle=style, label=what)
            positions = curve(scores[0])[0]
            values = np.stack([curve(score)[1] for score in scores])
            width = 1.6 if style == "-" else 1.2
            plot_mean(axes, positions, values, style, color=colour, linewidth=width)
    _label_positions(axes)
    return [*handles, *used.values()]
