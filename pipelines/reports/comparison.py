"""Runs side by side: what each cost and reached, and its curve over tokens, FLOPs and wall time.

    comparison = compare([run_of_folder(Path("runs/demo-rec")), run_of_folder(Path("runs/demo-slide"))])
    write_comparison(comparison, Path("runs/reports/compare"))      # comparison.csv, comparison.png

Runs of different tokenizers are compared in bits per byte alone, those on labels in errors.

Letters: S seeds · P points of a curve.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from common.errors import UserError
from pipelines.reports.evaluation import kept_evaluation
from pipelines.reports.evaluation_figures import of_one_text, plot_cumulative
from pipelines.reports.files import add_legend, briefly, colour_of, line_of, save_figure, write_csv
from pipelines.reports.finished_runs import BYTE, CLEARED, ERROR, TOKEN, TRAIN, TRAIN_ERROR, WORTH, FinishedRun
from pipelines.reports.frontier import Spot, as_plotted, plot_frontier
from pipelines.reports.scales import unit_of_time
from pipelines.reports.seeds import members, over_seeds, plot_mean, seeds_table
from pipelines.reports.sweep_result import TOKENS
from pipelines.terminal.cli import duration
from pipelines.terminal.tables import Form, short, table
from pipelines.tracking.metrics import METRICS, Metric, about, further

NOTE_LENGTH = 450
"""Most characters of a note in the title of comparison.png."""

LEGEND_WIDTH = 200
"""Characters in a row of a legend below comparison.png."""


@dataclass(frozen=True)
class Comparison:
    """Runs, the metric that is compared, and notes for the reader."""

    runs: tuple[FinishedRun, ...]
    metric: str
    notes: tuple[str, ...]

    @property
    def of_one_text(self) -> bool:
        """Whether no two runs are known to have other text: only then is one the best."""
        return len({run.text for run in self.runs}) == 1 and not have_several_stores(self.runs)


def compare(runs: Sequence[FinishedRun]) -> Comparison:
    """Choose a metric that all runs have and that means the same for all. Raises UserError when there is none."""
    names = [run.name for run in runs]
    runs = [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({i})") for i, run in enumerate(runs, 1)
    ]
    for run in runs:
        if not any(map(run.curve, (TOKEN, BYTE, TRAIN))):
            raise UserError(f"{run.name} has no metric to compare: train it first")
    metric = metric_for(runs)
    return Comparison(tuple(runs), metric, tuple(notes_on(runs, metric)))


def have_several_tokenizers(runs: Sequence[FinishedRun]) -> bool:
    """Whether it is known that the runs have different tokenizers."""
    return len({run.tokenizer for run in runs} - {""}) > 1


def have_several_stores(runs: Sequence[FinishedRun]) -> bool:
    """Whether it is known that two runs, other than those of different tokenizers, have different stores."""
    return any(
        len({one.store, other.store} - {""}) > 1 and not have_several_tokenizers((one, other))
        for one, other in combinations(runs, 2)
    )


def metric_for(runs: Sequence[FinishedRun]) -> str:
    """The metric to compare: the first that all runs have, of those that mean the same for all. Raises UserError where none is."""
    wanted = (TOKEN, BYTE, TRAIN)
    if have_several_tokenizers(runs):
        wanted = (BYTE,)
    elif any(run.curve(ERROR) for run in runs):
        wanted = (ERROR, *wanted)
    for key in wanted:
        if all(run.curve(key) for run in runs):
            return key
    lacking = {run.name: [key for key in wanted if not run.curve(key)] for run in runs}
    told = "; ".join(f"{name} has no {' and no '.join(keys)}" for name, keys in lacking.items() if keys)
    raise UserError(f"the runs have no metric in common: {told}")


def notes_on(runs: Sequence[FinishedRun], metric: str) -> list[str]:
    """Sentences on how far the runs can be compared by this metric."""
    notes = []
    unknown = [run.name for run in runs if not run.tokenizer]
    if have_several_tokenizers(runs):
        notes.append(
            "the runs have different tokenizers: only bits per byte can be compared, and only if the stores hold the same text"
        )
    elif unknown and len(runs) > 1:
        notes.append(
            f"the tokenizer of {', '.join(unknown)} is not known: bits per token compare only if all runs have the same one"
        )
    if len({run.text for run in runs}) > 1:
        notes.append("they were validated on different text: " + "; ".join(f"{run.name} on {run.text}" for run in runs))
    elif have_several_stores(runs):
        read = "; ".join(f"{run.name} on {run.store[:8] or 'one that is not known'}" for run in runs)
        notes.append(f"they were trained on different stores, so their text may differ: {read}")
    if metric == TRAIN:
        notes.append(
            "not all of them were validated: the training metric is compared, though each step reads other text"
        )
    return notes


def metrics_of(comparison: Comparison) -> list[Metric]:
    """The metrics whose best and last values are in the table."""

    def known(*names: str) -> list[Metric]:
        return [METRICS[name] for name in names if any(run.curve(name) for run in comparison.runs)]

    if comparison.metric == TRAIN:
        return [METRICS[TRAIN], *known(TRAIN_ERROR)]
    errors = known(ERROR)
    own = known(*(metric.name for metric in further()))
    of_text = known(BYTE) if errors else [METRICS[BYTE]]  # labels have no bytes
    return [*([METRICS[TOKEN]] if comparison.metric != BYTE else []), *of_text, *errors, *own]


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for each run, in their order. Unknown values are None."""
    made = []
    metrics = metrics_of(comparison)
    for run in comparison.runs:
        tokens = max(record.metrics[TOKENS] for record in run.with_metric(TOKENS))
        found = run.with_metric(comparison.metric)
        best = min(found, key=lambda record: record.metrics[comparison.metric])
        final = found[-1]
        row: dict[str, Any] = {
            "run": run.name,
            "model": run.model,
            "parameters": run.parameters,
            "forward_flops_per_token": run.forward_flops_per_token,
            "tokens": int(tokens),
            "flops": run.training_flops_per_token * tokens if run.training_flops_per_token else None,
            "seconds": round(run.curve(TOKENS)[-1].time, 1),
            "best_step": best.step,
        }
        for metric in metrics:
            values = [record.metrics[metric.name] for record in run.with_metric(metric.name)]
            choose = max if metric.better == "higher" else min
            row[f"best_{metric.column}"] = choose(values, default=None)
            row[f"final_{metric.column}"] = final.metrics.get(metric.name)
        made.append({**row, "worth_of_states_bits_per_token": best.metrics.get(WORTH)})
    return made


def comparison_table(comparison: Comparison) -> Table:
    """The rows for a terminal. If all runs are on one text, the best value of a column is bold."""
    columns: dict[str, tuple[str, Form]] = {
        "run": ("run", None),
        "model": ("model", None),
        "parameters": ("parameters", short),
        "forward_flops_per_token": ("forward\nFLOPs/\ntoken", ".2e"),
        "tokens": ("tokens", short),
        "flops": ("training\nFLOPs", ".2e"),
        "seconds": ("wall\ntime", duration),
        "best_step": ("best at\nstep", ","),
    }
    best = {}
    for metric in metrics_of(comparison):
        heading = f"train {metric.unit}" if comparison.metric == TRAIN else metric.unit
        for name, word in ((f"best_{metric.column}", "best"), (f"final_{metric.column}", "last")):
            columns[name] = (f"{heading}\n{word}", metric.form)
            best[name] = max if metric.better == "higher" else min
    columns["worth_of_states_bits_per_token"] = ("worth of\nstates (bits)", METRICS[WORTH].form)
    return table(rows(comparison), columns, best if len(comparison.runs) > 1 and comparison.of_one_text else {})


def seeds_of(comparison: Comparison) -> Table | None:
    """Table of means over seeds; None if no runs differ in the seed alone."""
    columns = {f"best_{metric.column}": (f"best {metric.unit}", metric.form) for metric in metrics_of(comparison)}
    found = over_seeds(comparison.runs, rows(comparison), list(columns))
    return seeds_table(found, columns) if found else None


class Curve(NamedTuple):
    """A curve to draw."""

    run: FinishedRun
    """The run, or the first one of several seeds."""
    tokens_P: np.ndarray
    seconds_P: np.ndarray
    """Wall time in seconds, mean over the seeds."""
    values_SP: np.ndarray
    """The metric's values, a row for each seed."""


def curves_of(comparison: Comparison, metric: str) -> dict[str, Curve]:
    """Curves by name, of the runs that have the metric. Runs that differ in the seed alone are one curve if their steps agree."""
    made = dict[str, Curve]()
    for name, runs in members(comparison.runs).items():
        steps = {tuple(point.step for point in run.curve(metric)) for run in runs}
        curves = {name: runs} if len(steps) == 1 else {run.name: [run] for run in runs}
        made |= {name: _curve(seeds, metric) for name, seeds in curves.items() if seeds[0].curve(metric)}
    return made


def _curve(seeds: list[FinishedRun], metric: str) -> Curve:
    points_SPC = np.array([[(p.tokens, p.time, p.value) for p in run.curve(metric)] for run in seeds])
    return Curve(seeds[0], points_SPC[0, :, 0], points_SPC[:, :, 1].mean(0), points_SPC[:, :, 2])


def plot_comparison(comparison: Comparison, path: Path) -> Path:
    """Plot the metric over tokens, FLOPs and wall time; the best point of each run is filled. The first panel also has bits per
    token with recurrent states cleared (dashed): the gap is the worth of the states.
    """
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 3, sharey=True))
    unit, size = unit_of_time(max(run.curve(comparison.metric)[-1].time for run in comparison.runs))
    drawn = curves_of(comparison, comparison.metric)
    cleared = curves_of(comparison, CLEARED) if comparison.metric == TOKEN else {}
    names = briefly(drawn)
    for number, (name, curve) in enumerate(drawn.items()):
        _draw_over_costs(panels, curve, size, number, names[name])
        without = cleared.get(name)
        if without:
            look: dict[str, Any] = {"markersize": 3, "label": f"{names[name]}, states cleared"}
            plot_mean(panels[0], without.tokens_P, without.values_SP, "o--", color=colour_of(number), **look)
    _label_costs(panels, comparison, unit)
    add_legend(figure, panels[0], LEGEND_WIDTH)
    figure.suptitle(title_of(comparison), fontsize=11, parse_math=False)
    return save_figure(figure, path)


def title_of(comparison: Comparison) -> str:
    """The title of comparison.png, and below it the notes, since a picture is shown without the terminal's text."""
    best = f"{about(comparison.metric)} by what it cost; the large points are the best ones"
    title = f"{best}, lower is better" if comparison.of_one_text else f"{best} of each run"
    shortened = [
        textwrap.shorten(note, NOTE_LENGTH, placeholder=" …", break_on_hyphens=False) for note in comparison.notes
    ]
    return "\n".join([title, *(textwrap.fill(note, 150, break_on_hyphens=False) for note in shortened)])


def _draw_over_costs(panels: Sequence[Axes], curve: Curve, size: float, number: int, label: str) -> None:
    """Draw a curve over its tokens, FLOPs (if known) and wall time in units of ``size`` seconds; ``number``: of its colour."""
    flops = curve.run.training_flops_per_token
    bits_P = curve.values_SP.mean(0)
    least = bits_P.argmin()
    colour = colour_of(number)
    look: dict[str, Any] = {"marker": "o" if len(bits_P) <= 60 else "", "markersize": 3, "linewidth": 1.5}
    costs = (curve.tokens_P, curve.tokens_P * flops if flops else None, curve.seconds_P / size)
    for axes, at_P in zip(panels, costs, strict=True):
        if at_P is not None:
            plot_mean(axes, at_P, curve.values_SP, line_of(number), color=colour, label=label, **look)
            axes.plot(at_P[least], bits_P[least], "o", color=colour, markersize=8, markeredgecolor="white")


def _label_costs(panels: Sequence[Axes], comparison: Comparison, unit: str) -> None:
    """Label the axes of tokens, FLOPs and wall time in this unit."""
    unknown = ", ".join(run.name for run in comparison.runs if run.training_flops_per_token is None)
    flops_label = "FLOPs of training (needed ones)" + (f"\nnot known of {unknown}" if unknown else "")
    labels = ("tokens read in training", flops_label, f"wall time ({unit}, pauses left out)")
    for axes, label in zip(panels, labels, strict=True):
        axes.set_xlabel(label)
        axes.set_xlim(0, None)
        axes.grid(alpha=0.25)
    panels[0].xaxis.set_major_formatter(lambda value, _: short(value))
    panels[0].set_ylabel(about(comparison.metric))


def spots_of(comparison: Comparison) -> tuple[str, list[Spot]]:
    """The metric's label, and FLOPs and best result of the runs whose vocabulary is known, the mean of those that differ in the
    seed alone; none of several texts. FLOPs are per token, or per byte where the tokenizers differ.
    """
    runs = members(comparison.runs)
    by_byte = have_several_tokenizers(comparison.runs)
    best = [
        mean(min(point.value for point in run.curve(comparison.metric)) for run in seeds) for seeds in runs.values()
    ]
    what, values = as_plotted(comparison.metric, best)
    spots = []
    for (name, seeds), value in zip(runs.items(), values, strict=True):
        first = seeds[0]
        if first.forward_flops_per_token:
            tokens = tokens_per_byte(first) if by_byte else 1
            spots.append(Spot(name, first.model, first.windows, tokens * first.forward_flops_per_token, value))
    return what, spots if comparison.of_one_text else []


def tokens_per_byte(run: FinishedRun) -> float:
    """Tokens of the run's tokenizer in a byte of the text that it was last validated on."""
    return run.curve(BYTE)[-1].value / run.curve(TOKEN)[-1].value


PICTURES = ("comparison.png", "frontier.png", "cumulative.png")
"""All pictures of `write_comparison`. Some of them are not made for every set of runs."""


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write comparison.csv and comparison.png; frontier.png if all are on one text and it does not cost all the same;
    cumulative.png if all were evaluated on one text. Returns their paths."""
    what, spots = spots_of(comparison)
    unit = "byte" if have_several_tokenizers(comparison.runs) else "token"
    found = [kept_evaluation(run.folder, run.config_hash, run.seed) if run.folder else None for run in comparison.runs]
    evaluations = [evaluation for evaluation in found if evaluation]
    whole = len(evaluations) == len(found) and of_one_text(evaluations)
    return [
        write_csv(rows(comparison), folder / "comparison.csv"),
        plot_comparison(comparison, folder / "comparison.png"),
        *plot_frontier(spots, what, f"FLOPs of the forward pass per {unit}", folder / "frontier.png"),
        *([plot_cumulative(evaluations, folder / "cumulative.png")] if whole else []),
    ]
