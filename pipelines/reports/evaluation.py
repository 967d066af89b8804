"""Tables and figures from evaluations, and from the curves of runs. Plain files in, plain files out: no torch, no mlflow.

    paths = write_report(evaluations, Path("runs/reports/rec-vs-slide"), unigram=4.1)    # report.json, table.csv, cumulative.png
    Console(markup=False).print(comparison_table(evaluations, unigram=4.1))
    plot_curves({"rec": Path("runs/rec/metrics.jsonl")}, Path("curves.png"))

`cumulative.png` is Figure 6 of the block-recurrent paper: what carrying the State is worth, as a document goes on.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from rich.table import Table
from rich.text import Text

from data_prep.errors import UserError
from data_prep.manifest import write_atomically
from pipelines.tracking.metrics import further
from pipelines.tracking.metrics_file import Record, read_records

if TYPE_CHECKING:
    from pipelines.tracking.score import Evaluation, Score

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart."""
DOCUMENTS_COLOUR = "#C44E52"
LOWER_IS_BETTER = ("bits_per_token", "bits_per_byte", "word_perplexity")


def comparison_rows(evaluations: Sequence[Evaluation], unigram: float | None = None) -> list[dict[str, Any]]:
    """One row for each evaluation, in their order, then the unigram reference (bits per byte) if given.

    What does not apply is None: cleared figures of a model without that State, bytes and words of clipped documents.
    """
    rows = [
        {
            "name": e.name,
            "model": e.model,
            "split": e.split,
            "parameters": e.parameters,
            "steps": e.step,
            "train_tokens": e.train_tokens,
            "bits_per_token": _number(e.carried.bits_per_token),
            "bits_per_byte": _number(e.carried.bits_per_byte),
            "word_perplexity": _number(e.carried.word_perplexity),
            **{metric.column: _number(metric.of(e.carried)) for metric in further() if metric.of},
            "states_cleared_bits_per_byte": _number(e.cleared_states.bits_per_byte) if e.cleared_states else None,
            "states_cleared_difference": _difference(e.cleared_states, e.carried),
            "all_cleared_bits_per_byte": _number(e.cleared_all.bits_per_byte) if e.cleared_all else None,
            "all_cleared_difference": _difference(e.cleared_all, e.carried),
        }
        for e in evaluations
    ]
    if unigram is not None:
        reference = dict.fromkeys(rows[0] if rows else ("name", "bits_per_byte"))
        rows.append({**reference, "name": "unigram", "bits_per_byte": unigram})
    return rows


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _difference(cleared: Score | None, carried: Score) -> float | None:
    return None if cleared is None else _number(cleared.bits_per_byte - carried.bits_per_byte)


def comparison_table(evaluations: Sequence[Evaluation], unigram: float | None = None) -> Table:
    """The rows for a terminal; of evaluations on the same split, the best figures are bold."""
    splits = list(dict.fromkeys(e.split for e in evaluations))
    table = Table(title=splits[0] if len(splits) == 1 else None, title_justify="left", title_style="bold")
    table.add_column("model")
    if len(splits) > 1:
        table.add_column("split")
    for heading in (
        "parameters",
        "steps",
        "tokens\ntrained",
        "bits/\ntoken",
        "bits/\nbyte",
        "word\nperplexity",
        *(metric.unit for metric in further()),
        "bits/byte with\nstates cleared",
        "bits/byte with\nall State cleared",
    ):
        table.add_column(heading, justify="right")
    rows = comparison_rows(evaluations, unigram)
    best = {key: min((v for row in rows if (v := row.get(key)) is not None), default=None) for key in LOWER_IS_BETTER}

    def figure(row: dict[str, Any], key: str, form: str) -> str | Text:
        value = row.get(key)
        if value is None:
            return "–"
        bold = len(splits) == 1 and len(evaluations) > 1 and value == best.get(key)
        return Text(f"{value:{form}}", "bold" if bold else "")

    def cleared(row: dict[str, Any], what: str) -> str:
        difference = row.get(f"{what}_difference")
        return "–" if difference is None else f"{row[f'{what}_bits_per_byte']:.4f} ({difference:+.4f})"

    for row in rows:
        name = row["name"] if row.get("model") in (None, row["name"]) else f"{row['name']} ({row['model']})"
        table.add_row(
            name,
            *([row["split"] or ""] if len(splits) > 1 else []),
            short(row.get("parameters")),
            figure(row, "steps", ","),
            short(row.get("train_tokens")),
            figure(row, "bits_per_token", ".4f"),
            figure(row, "bits_per_byte", ".4f"),
            figure(row, "word_perplexity", ",.2f"),
            *(figure(row, metric.column, metric.form) for metric in further()),
            cleared(row, "states_cleared"),
            cleared(row, "all_cleared"),
        )
    return table


def short(count: float | None) -> str:
    """1234567 → 1.23M."""
    if count is None:
        return "–"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}" if count < 100 * size else f"{count / size:.0f}{letter}"
    return f"{count:.0f}"


def cumulative_bits(score: Score) -> tuple[np.ndarray, np.ndarray]:
    """Positions [P] (the ends of the buckets, in tokens) and bits per token averaged over all tokens up to there [P]."""
    tokens = np.fromiter(accumulate(score.bucket_tokens), dtype=np.float64)
    nats = np.fromiter(accumulate(score.bucket_nats), dtype=np.float64)
    return score.bucket * np.arange(1, len(tokens) + 1), nats / math.log(2) / tokens


def documents_reaching(score: Score) -> tuple[np.ndarray, np.ndarray]:
    """Starts of the buckets [P] in tokens, and the documents that have tokens there [P] (of the bucket's tokens, the mean)."""
    tokens = np.asarray(score.bucket_tokens, dtype=np.float64)
    return score.bucket * np.arange(len(tokens)), tokens / score.bucket


def plot_cumulative(evaluations: Sequence[Evaluation], path: Path) -> Path:
    """Figure 6 of the block-recurrent paper: cumulative bits per token against position in the document, State carried (solid) and
    cleared at each segment (recurrent states: dashed; all of it: dotted), and how many documents reach that position.
    """
    if not evaluations:
        raise UserError(f"{path.name} needs at least one evaluation")
    splits = list(dict.fromkeys(e.split for e in evaluations))
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.add_subplot()
    styles: dict[str, Literal["-", "--", ":"]] = {
        "State carried": "-",
        "recurrent states cleared": "--",
        "all State cleared": ":",
    }
    used: dict[str, Literal["-", "--", ":"]] = {}
    for number, evaluation in enumerate(evaluations):
        scores = dict(zip(styles, (evaluation.carried, evaluation.cleared_states, evaluation.cleared_all), strict=True))
        for what, score in scores.items():
            if score is not None:
                used[what] = styles[what]
                positions, bits = cumulative_bits(score)
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(
                    positions, bits, styles[what], color=colour, linewidth=1.6 if what == "State carried" else 1.2
                )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("position in the document (tokens)")
    axes.set_ylabel("bits per token, mean up to the position")
    axes.set_title(f"Cumulative cross-entropy on {', '.join(splits)}", fontsize=11)
    axes.grid(alpha=0.25)

    reach = axes.twinx()
    longest = max(evaluations, key=lambda e: len(e.carried.bucket_tokens) * e.carried.bucket).carried
    positions, documents = documents_reaching(longest)
    # A step at each bucket's end: on a logarithmic axis the first bucket has no start.
    reach.fill_between(
        positions + longest.bucket, documents, step="pre", color=DOCUMENTS_COLOUR, alpha=0.10, linewidth=0
    )
    reach.set_ylim(0, None)
    reach.set_ylabel("documents that reach the position", color=DOCUMENTS_COLOUR)
    reach.tick_params(axis="y", colors=DOCUMENTS_COLOUR)
    axes.set_zorder(reach.get_zorder() + 1)  # lines above the shading
    axes.patch.set_visible(False)

    handles = [Line2D([], [], color=COLOURS[n % len(COLOURS)], label=_label(e)) for n, e in enumerate(evaluations)]
    handles += [Line2D([], [], color="0.3", linestyle=style, label=what) for what, style in used.items()]
    axes.legend(handles=handles, fontsize=9, framealpha=0.9)
    return save_figure(figure, path)


def _label(evaluation: Evaluation) -> str:
    return f"{evaluation.name}: {short(evaluation.parameters)} parameters, step {evaluation.step:,}"


def plot_curves(metrics: Mapping[str, Path], path: Path, title: str = "Training", smoothing: float = 0.03) -> Path:
    """Training curves of runs, from their metrics.jsonl: bits per token against tokens read, as logged (light) and smoothed, and
    the validation points; with hollow points, validation with the recurrent states cleared.

    Args:
        metrics: label → metrics.jsonl of each run.
        smoothing: width of the running mean, as a share of the curve's points.

    Raises ValueError when a file has no training figures.
    """
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.add_subplot()
    validated = cleared = False
    for number, (label, file) in enumerate(metrics.items()):
        colour = COLOURS[number % len(COLOURS)]
        records = read_records(file)
        tokens, bits = _series(records, "train/bits_per_token")
        if not len(bits):
            raise UserError(f"{file}: no train/bits_per_token in it: name the metrics.jsonl of a run that has trained")
        axes.plot(tokens, bits, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(
            tokens, running_mean(bits, max(1, round(smoothing * len(bits)))), color=colour, linewidth=1.6, label=label
        )
        tokens, bits = _series(records, "validation/bits_per_token")
        validated |= bool(len(bits))
        axes.plot(tokens, bits, "o", color=colour, markersize=5, markeredgecolor="white", markeredgewidth=0.6)
        tokens, bits = _series(records, "validation/bits_per_token_states_cleared")
        cleared |= bool(len(bits))
        axes.plot(tokens, bits, "o", markersize=5, markerfacecolor="none", markeredgecolor=colour)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel("tokens read in training")
    axes.set_ylabel("bits per token")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    handles = [*axes.get_legend_handles_labels()[0]]
    for shown, what, face in (
        (validated, "validation", "0.3"),
        (cleared, "validation, recurrent states cleared", "none"),
    ):
        if shown:
            handles.append(Line2D([], [], color="0.3", marker="o", markerfacecolor=face, linestyle="", label=what))
    axes.legend(handles=handles, fontsize=9, framealpha=0.9)
    return save_figure(figure, path)


def _series(records: Sequence[Record], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens read [N] and the metric [N], of the records that have both; of two at one step, the first."""
    points = {
        r.step: (r.metrics["train/tokens"], r.metrics[key])
        for r in reversed(records)
        if {key, "train/tokens"} <= r.metrics.keys()
    }
    pairs = np.array([points[step] for step in sorted(points)]).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over ``width`` points to both sides, over fewer near the ends, always as many on either side: so it does not lag."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reach = np.minimum(np.minimum(index, len(values) - 1 - index), width)
    return (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)


def write_report(evaluations: Sequence[Evaluation], folder: Path, unigram: float | None = None) -> list[Path]:
    """Write report.json (every figure, by position too), table.csv and cumulative.png, each atomically. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = comparison_rows(evaluations, unigram)
    values = {
        "unigram_bits_per_byte": unigram,
        "table": rows,
        "evaluations": [asdict(evaluation) for evaluation in evaluations],
    }
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    report, table = folder / "report.json", folder / "table.csv"
    plot = plot_cumulative(evaluations, folder / "cumulative.png")
    write_atomically(table, text.getvalue().encode())
    write_atomically(report, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
    return [report, table, plot]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure as a PNG at 150 dpi, atomically."""
    data = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(data, dpi=150, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data.getvalue())
    return path
