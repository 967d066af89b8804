"""An evaluation's table and figure. Plain files in, plain files out: no torch, no mlflow.

    paths = write_report(evaluations, Path("runs/reports/rec-vs-slide"), unigram=4.1)    # report.json, table.csv, pictures
    Console(markup=False).print(evaluation_table(evaluations, unigram=4.1))

`cumulative.png` is Figure 6 of the block-recurrent paper: what carrying the State is worth, as a document goes on; `worth.png` has
the differences alone. Of labelled splits there is `errors.png` too: the error rate, as a document goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table

from data_prep.manifest import write_atomically
from pipelines.reports.files import COLOURS, save_figure, write_csv
from pipelines.reports.frontier import Spot, differ, plot_frontier
from pipelines.reports.seeds import groups, over_seeds, seeds_table
from pipelines.terminal.tables import Form, short, table
from pipelines.tracking.metrics import METRICS, further
from pipelines.tracking.score import Evaluation, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENTS_COLOUR = "#C44E52"
OF_TEXT = ("bits_per_byte", "bits_per_character", "word_perplexity", "states_cleared", "all_cleared")
"""Columns that labels have nothing for."""
OF_SOME = ("word_perplexity", "states_cleared", "all_cleared")
"""Columns that are left out where no model has a figure."""


def evaluation_rows(evaluations: Sequence[Evaluation], unigram: float | None = None) -> list[dict[str, Any]]:
    """One row for each evaluation, in their order, then the unigram reference (bits per byte) if given.

    What does not apply is None: cleared figures of a model without that State, bytes and words of clipped documents.
    """
    rows, labelled = [], is_labelled(evaluations)
    for e in evaluations:
        row = {
            "name": e.name,
            "model": e.model,
            "split": e.split,
            "parameters": e.parameters,
            "steps": e.step,
            "train_tokens": e.train_tokens,
            "forward_flops_per_token": e.flops_per_token,
            "bits_per_token": e.carried.bits_per_token,
            "bits_per_byte": e.carried.bits_per_byte,
            "bits_per_character": e.bits_per_character,
            "word_perplexity": e.carried.word_perplexity,
            "published_word_perplexity": e.published_word_perplexity,
            **({"error_rate": e.carried.error_rate} if labelled else {}),
            **{metric.column: metric.of(e.carried) for metric in further() if metric.of},
        }
        for what, cleared in (("states_cleared", e.cleared_states), ("all_cleared", e.cleared_all)):
            bits = cleared.bits_per_byte if cleared else math.nan
            row |= {f"{what}_bits_per_byte": bits, f"{what}_difference": bits - e.carried.bits_per_byte}
            row |= {f"{what}_error_rate": cleared.error_rate if cleared else math.nan} if labelled else {}
        rows.append({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()})
    if unigram is not None:
        rows.append({**dict.fromkeys(rows[0]), "name": "unigram", "bits_per_byte": unigram})
    return rows


def is_labelled(evaluations: Sequence[Evaluation]) -> bool:
    """Whether any of them is of a labelled split: then there are errors, and figures by word or byte of none of these."""
    return any(e.carried.errors is not None for e in evaluations)


def evaluation_table(evaluations: Sequence[Evaluation], unigram: float | None = None) -> Table:
    """The rows for a terminal; of evaluations on the same split, the best figures are bold."""
    splits = {e.split for e in evaluations}
    rows = evaluation_rows(evaluations, unigram)
    for row in rows:
        row["name"] += f" ({row['model']})" if row["model"] not in (None, row["name"]) else ""
        row["split"] = row["split"] or ""
        for what in ("states_cleared", "all_cleared"):
            if (difference := row[f"{what}_difference"]) is not None:
                row[what] = f"{row[f'{what}_bits_per_byte']:.4f} ({difference:+.4f})"
    form = METRICS["validation/error_rate"].form
    errors: dict[str, tuple[str, Form]] = {
        "error_rate": ("errors", form),
        "states_cleared_error_rate": ("errors with\nstates cleared", form),
        "all_cleared_error_rate": ("errors with\nall State cleared", form),
    }
    characters: dict[str, tuple[str, Form]] = {"bits_per_character": ("bits/\ncharacter", ".4f")}
    published: dict[str, tuple[str, Form]] = {"published_word_perplexity": ("by the count\npublished", ",.2f")}
    columns: dict[str, tuple[str, Form]] = {
        "name": ("model", None),
        **({"split": ("split", None)} if len(splits) > 1 else {}),
        "parameters": ("parameters", short),
        "steps": ("steps", ","),
        "train_tokens": ("tokens\ntrained", short),
        "forward_flops_per_token": ("FLOPs/\ntoken", ".2e"),
        "bits_per_token": ("bits/\ntoken", ".4f"),
        "bits_per_byte": ("bits/\nbyte", ".4f"),
        **(characters if any(_differ(row) for row in rows) else {}),
        "word_perplexity": ("word\nperplexity", ",.2f"),
        **(published if any(row["published_word_perplexity"] for row in rows) else {}),
        **{metric.column: (metric.unit, metric.form) for metric in further()},
        "states_cleared": ("bits/byte with\nstates cleared", str),
        "all_cleared": ("bits/byte with\nall State cleared", str),
        **(errors if is_labelled(evaluations) else {}),
    }
    if all(e.carried.errors is not None for e in evaluations):
        columns = {key: column for key, column in columns.items() if key not in OF_TEXT}
    known = {key for row in rows for key, value in row.items() if value is not None}
    columns = {key: column for key, column in columns.items() if key in known or key not in OF_SOME}
    one = len(splits) == 1
    best = ("bits_per_token", "bits_per_byte", "word_perplexity", "error_rate") if one and len(evaluations) > 1 else ()
    title = splits.pop() if one else None
    return table(
        rows,
        columns,
        {key: min for key in best if key in columns},
        title=title,
        title_justify="left",
        title_style="bold",
    )


def _differ(row: dict[str, Any]) -> bool:
    """Whether its characters are known, and tell more than its bytes."""
    bits, other = row["bits_per_byte"], row["bits_per_character"]
    return None not in (bits, other) and f"{bits:.4f}" != f"{other:.4f}"


SEEDS = {
    "bits_per_token": ("bits/token", ".4f"),
    "bits_per_byte": ("bits/byte", ".4f"),
    "bits_per_character": ("bits/character", ".4f"),
    "word_perplexity": ("word perplexity", ",.2f"),
    "error_rate": ("errors", ".2%"),
    "states_cleared_difference": ("states cleared, bits/byte", "+.4f"),
}
"""Figures whose mean over seeds is told."""


def seeds_of(evaluations: Sequence[Evaluation]) -> Table | None:
    """Means over seeds, where there are several of one thing on one split."""
    rows = over_seeds(evaluations, evaluation_rows(evaluations), list(SEEDS))
    return seeds_table(rows, SEEDS) if rows and len({e.split for e in evaluations}) == 1 else None


def by_position(score: Score) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of the buckets in tokens [P], bits per token averaged over all tokens up to there [P], and the documents that have
    tokens in the bucket [P] (of its tokens, the mean). Of a labelled split: labels alone, NaN before the first of them.
    """
    tokens, nats = np.asarray(score.bucket_tokens, dtype=np.float64), np.cumsum(score.bucket_nats)
    ends = score.bucket * np.arange(1, len(tokens) + 1)
    return ends, _share(nats / math.log(2), np.cumsum(tokens)), tokens / score.bucket


def errors_by_position(score: Score) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the buckets in tokens [P], and the error rate in each [P]; NaN where it has no label."""
    errors, tokens = np.asarray(score.bucket_errors, dtype=np.float64), np.asarray(score.bucket_tokens)
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
    what = "reach" if longest.errors is None else "have a label at"
    reach.set_ylabel(f"documents that {what} the position", color=DOCUMENTS_COLOUR)
    reach.tick_params(axis="y", colors=DOCUMENTS_COLOUR)
    axes.set_zorder(reach.get_zorder() + 1)  # lines above the shading
    axes.patch.set_visible(False)
    axes.legend(handles=handles, fontsize=9, framealpha=0.9)
    return save_figure(figure, path)


def plot_worth(evaluations: Sequence[Evaluation], path: Path) -> Path | None:
    """What State is worth: cumulative bits per token, in percent more than those of the model that needs the fewest; lines as in
    `plot_cumulative`, on whose scale a few percent are not to be seen. None where there is nothing to set beside the best.
    """
    best = min(evaluations, key=lambda e: e.carried.bits_per_token)
    lines: list[tuple[str, int, str, Score]] = []
    for number, e in enumerate(evaluations):
        passes = [
            (f"{e.name}", "-", e.carried if e is not best else None),
            (f"{e.name}, its recurrent states cleared", "--", e.cleared_states),
            (f"{e.name}, all of its State cleared", ":", e.cleared_all),
        ]
        lines += [(label, number, style, score) for label, style, score in passes if score is not None]
    if not lines or len({e.store_fingerprint for e in evaluations}) > 1 or is_labelled(evaluations):
        return None
    ends_P, bits_P, _ = by_position(best.carried)
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    shown = ends_P >= ends_P[-1] / 64  # before that a mean is over few tokens
    for label, number, style, score in lines:
        more_P = 100 * (np.interp(ends_P, *by_position(score)[:2]) / bits_P - 1)
        label = f"{label}: {more_P[-1]:+.1f} %"
        axes.plot(ends_P[shown], more_P[shown], style, color=COLOURS[number % len(COLOURS)], linewidth=1.8, label=label)
    colour = COLOURS[list(evaluations).index(best) % len(COLOURS)]
    axes.axhline(0, color=colour, linewidth=1.8, label=f"{best.name}, State carried: {bits_P[-1]:.4f} bits per token")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:+.1f} %")
    axes.set_xlabel("position in the document (tokens)")
    axes.set_ylabel("more bits per token,\nmean up to the position")
    axes.set_title(f"What State is worth on {best.split}: lower is better", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9, framealpha=0.9)
    return save_figure(figure, path)


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


def curves_of(evaluations: Sequence[Evaluation]) -> dict[str, list[int]]:
    """What is drawn as one, by its name in the legend: several seeds of one thing on one text, or an evaluation by itself."""
    several = {
        name: places
        for name, places in groups(evaluations).items()
        if len({(evaluations[p].store_fingerprint, evaluations[p].carried.bucket) for p in places}) == 1
    }
    grouped = {place for places in several.values() for place in places}
    alone = [place for place in range(len(evaluations)) if place not in grouped]
    names = [evaluations[place].name for place in alone]
    labels = [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]
    return {**several, **{label: [place] for label, place in zip(labels, alone, strict=True)}}


def _curves(
    axes: Axes, evaluations: Sequence[Evaluation], curve: Callable[[Score], tuple[np.ndarray, np.ndarray]]
) -> list[Line2D]:
    """Draw the curve of each Score against position; of several seeds of one thing their mean, with a band of their standard
    deviation. The legend's handles."""
    handles, used = [], {}
    for number, (name, places) in enumerate(curves_of(evaluations).items()):
        of, colour = [evaluations[place] for place in places], COLOURS[number % len(COLOURS)]
        label = f"{name}: {short(of[0].parameters)} parameters, step {of[0].step:,}"
        handles.append(Line2D([], [], color=colour, label=label))
        scores: list[tuple[str, Any, list[Score | None]]] = [
            ("State carried", "-", [e.carried for e in of]),
            ("recurrent states cleared", "--", [e.cleared_states for e in of]),
            ("all State cleared", ":", [e.cleared_all for e in of]),
        ]
        for what, style, passes in scores:
            if known := [score for score in passes if score is not None]:
                used[what] = Line2D([], [], color="0.3", linestyle=style, label=what)
                positions, values = curve(known[0])[0], np.stack([curve(score)[1] for score in known])
                middle = values.mean(0)
                axes.plot(positions, middle, style, color=colour, linewidth=1.6 if style == "-" else 1.2)
                if len(known) > 1:
                    spread = values.std(0, ddof=1)
                    axes.fill_between(positions, middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("position in the document (tokens)")
    axes.grid(alpha=0.25)
    return [*handles, *used.values()]


def write_report(evaluations: Sequence[Evaluation], folder: Path, unigram: float | None = None) -> list[Path]:
    """Write report.json (every figure, by position too), table.csv, cumulative.png, worth.png where something stands beside the
    best, of labelled splits errors.png, and where they cost differently frontier.png, each atomically. Returns their paths.
    """
    rows, report = evaluation_rows(evaluations, unigram), folder / "report.json"
    seeds = over_seeds(evaluations, rows, list(SEEDS))
    values = {
        "unigram_bits_per_byte": unigram,
        "table": rows,
        "seeds": seeds,
        "evaluations": [asdict(e) for e in evaluations],
    }
    table, plot = write_csv(rows, folder / "table.csv"), plot_cumulative(evaluations, folder / "cumulative.png")
    write_atomically(report, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
    errors = [plot_errors(evaluations, folder / "errors.png")] if is_labelled(evaluations) else []
    worth = [made] if (made := plot_worth(evaluations, folder / "worth.png")) else []
    what, spots = spots_of(evaluations)
    path = folder / "frontier.png"
    costs = [plot_frontier(spots, what, "FLOPs of the forward pass per token", path)] if differ(spots) else []
    return [report, table, plot, *worth, *errors, *costs]


def read_report(folder: Path) -> list[Evaluation]:
    """What `write_report` was given. Raises OSError, ValueError, KeyError or TypeError where there is no such report."""
    read = []
    for values in json.loads((folder / "report.json").read_bytes())["evaluations"]:
        passes = {name: values[name] and Score(**values[name]) for name in ("carried", "cleared_states", "cleared_all")}
        read.append(Evaluation(**values | passes))
    return read


def kept_evaluation(run: Path, split: str = "test") -> Evaluation | None:
    """The newest that a report beside a run has of it, over the windows of its training; None where there is none."""
    reports = [path for path in run.parent.glob("reports/*/report.json") if run.name in path.parent.name]
    for path in sorted(reports, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # cut short, or of another version
            for found in read_report(path.parent):
                if found.name == run.name and found.split.endswith(f"/{split}"):
                    return found
    return None


def spots_of(evaluations: Sequence[Evaluation]) -> tuple[str, list[Spot]]:
    """What each costs and gives, of evaluations on one split: word perplexity where it is known, else perplexity per token."""
    scores = [e.carried for e in evaluations]
    by_word = all(math.isfinite(score.word_perplexity) for score in scores)
    values = [score.word_perplexity if by_word else 2**score.bits_per_token for score in scores]
    spots = [
        Spot(e.name, e.model, e.windows, e.flops_per_token, value)
        for e, value in zip(evaluations, values, strict=True)
        if e.flops_per_token is not None
    ]
    alike = len({e.split for e in evaluations}) == 1
    return f"perplexity per {'word' if by_word else 'token'}", spots if alike else []
