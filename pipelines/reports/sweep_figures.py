"""The charts of a sweep. See pipelines/reports/sweep_report.py for their list, docs/mlflow.md for how each is read.

    plot_parallel(read_sweep(Path("runs/sweep")), Path("parallel.png"))

Lower is better throughout. Colours: the better a trial the darker; a star is the winner, a diamond the preset itself. Optuna's own
charts of the same sweep leave out what was stopped early, mark no best trial, and cut the fields' names off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill, shorten
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pipelines.reports.files import COLOURS, save_figure
from pipelines.reports.importance import importances
from pipelines.reports.scales import Scale, unit_of_time
from pipelines.reports.sweep_result import SweepResult
from pipelines.terminal.tables import counted, short

STATUS_COLOURS = {
    "finished": COLOURS[0],
    "stopped": COLOURS[1],
    "failed": COLOURS[5],
    "running": COLOURS[2],
    "pending": "0.7",
}
SHADES = colormaps["viridis"]
TITLE = 11
"""Characters of a title in an inch of the figure's width."""
ENDED = "trained to its end"
UNDER_WAY = "stopped early, or under way"


def plot_parallel(sweep: SweepResult, path: Path) -> Path:
    """Parallel coordinates: a line for each trial through its values, and through its best value on the last axis."""
    trials = sweep.scored[::-1]  # the best is drawn last, on top
    scales = [Scale([trial.values.get(name) for trial in trials]) for name in sweep.fields]
    figure = Figure(figsize=(max(7.0, 1.9 * (len(scales) + 1) + 1.5), 5), layout="constrained")
    axes = figure.add_subplot()
    bits = [trial.best_value for trial in trials]
    shade = _shades(bits)
    low = min(bits)
    high = max(bits)
    for number, trial in enumerate(trials):
        heights = [scale.beside(number) for scale in scales]
        heights.append(0.5 if high == low else (bits[number] - low) / (high - low))
        at = [i for i, height in enumerate(heights) if height is not None]
        first = trial is sweep.scored[0]
        axes.plot(
            at,
            [height for height in heights if height is not None],
            linestyle="-" if trial.status == "finished" else "--",
            color=SHADES(shade(bits[number])),
            linewidth=3.2 if first else 1.5,
            alpha=1.0 if first else 0.85,
            marker="o",
            markersize=6 if first else 3.5,
        )
    for column, scale in enumerate(scales):
        _rule(axes, column, scale.ticks())
    spread = [(0.5, f"{low:.4f}")] if high == low else [(i / 4, f"{low + i / 4 * (high - low):.4f}") for i in range(5)]
    _rule(axes, len(scales), spread)
    names = [_wrapped(name) + ("\n(log)" if s.log else "") for s, name in zip(scales, sweep.fields, strict=True)]
    axes.set_xticks(range(len(scales) + 1), [*names, f"best\n{_wrapped(sweep.unit, ' ')}"], fontsize=9)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.set_yticks([])
    axes.set_xlim(-0.25, len(scales) + 0.45)
    axes.set_ylim(-0.05, 1.05)
    axes.spines[:].set_visible(False)
    title = f"{sweep.name}: {counted(len(trials), 'trial')}, each a line; thick: the best, trial {sweep.scored[0].id}"
    set_title(figure, title)
    handles = [
        Line2D([], [], color="0.3", label=ENDED),
        Line2D([], [], color="0.3", linestyle="--", label=UNDER_WAY),
    ]
    axes.legend(handles=handles, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    _colour_bar(figure, axes, shade, sweep.unit)
    return save_figure(figure, path)


def _rule(axes: Axes, at: float, ticks: Sequence[tuple[float, str]]) -> None:
    """A vertical axis with its labels."""
    axes.axvline(at, color="0.55", linewidth=1, zorder=0)
    for height, label in ticks:
        axes.plot([at - 0.02, at + 0.02], [height, height], color="0.4", linewidth=1)
        axes.annotate(
            label,
            (at + 0.035, height),
            fontsize=8,
            va="center",
            color="0.15",
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
            zorder=5,
        )


def plot_fields(sweep: SweepResult, path: Path) -> Path:
    """The best value of each trial against each swept field, by itself; and against FLOPs per token where these differ."""
    trials = sweep.scored
    fields: dict[str, list[Any]] = {name: [trial.values.get(name) for trial in trials] for name in sweep.fields}
    compute = [trial.training_flops_per_token for trial in trials]
    if len({*compute}) > 1:
        fields["FLOPs of training per token"] = compute
    across = min(3, max(1, len(fields)))
    down = -(-len(fields) // across) or 1
    figure = Figure(figsize=(4.1 * across + 0.6, 3.5 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    shade = _shades([trial.best_value for trial in trials])
    for axes, (name, values) in zip(panels, fields.items(), strict=False):
        scale = Scale(values)
        for trial, value in zip(trials[::-1], values[::-1], strict=True):
            at = scale(value)
            if at is None:
                continue
            first = trial is trials[0]
            marker = "D" if trial.baseline else "o"
            axes.plot(
                at,
                trial.best_value,
                "*" if first else marker,
                markersize=13 if first else 7,
                color=SHADES(shade(trial.best_value)),
                markerfacecolor="none" if trial.status != "finished" else None,
                markeredgewidth=1.6,
            )
        places, labels = zip(*scale.ticks(), strict=True)
        axes.set_xticks(places, labels)
        axes.set_xlim(-0.1, 1.1)
        axes.tick_params(axis="x", labelsize=8, rotation=30)
        axes.set_xlabel(f"{name}{' (log)' if scale.log else ''}", fontsize=9)
        axes.grid(alpha=0.25)
    for axes in panels[len(fields) :]:
        axes.set_visible(False)
    for axes in panels[::across]:
        axes.set_ylabel(f"best {sweep.unit}", fontsize=9)
    set_title(figure, f"{sweep.name}: best value against each swept field, lower is better")
    handles = [
        _key("*", f"the best, trial {trials[0].id}", markersize=12),
        _key("o", ENDED),
        _key("o", UNDER_WAY, markerfacecolor="none"),
    ]
    if any(trial.baseline for trial in trials):
        handles.append(_key("D", "the preset itself"))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=min(4, 2 * across), frameon=False)
    return save_figure(figure, path)


def plot_importance(sweep: SweepResult, path: Path) -> Path:
    """Plot how much of the trials' order each field explains by itself, and how much chance would."""
    shares, count, tokens = importances(sweep)
    fields = sorted(sweep.fields, key=lambda name: (shares[name] or (-1.0, 0.0))[0])
    figure = Figure(figsize=(8, 1.9 + 0.55 * len(fields)), layout="constrained")
    axes = figure.add_subplot()
    for row, name in enumerate(fields):
        share = shares[name]
        if share is None:
            axes.annotate("does not vary, or too few trials", (0.01, row), va="center", fontsize=9, color="0.4")
            continue
        value, chance = share
        axes.barh(row, value, color=COLOURS[0] if value > chance else "0.7", height=0.55)
        axes.plot([chance, chance], [row - 0.38, row + 0.38], color=COLOURS[5], linewidth=2)
        axes.annotate(f"{value:.0%}", (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(fields)), fields, fontsize=9)
    axes.set_ylim(-0.6, len(fields) - 0.4)
    axes.set_xlim(0, 1.08)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel(
        f"share of the order of {counted(count, 'trial')} that the field alone explains, at {short(tokens)} tokens",
        fontsize=9,
    )
    few = f" (a hint, from {counted(count, 'trial')})" if count < 10 * len(fields) else ""
    set_title(figure, f"{sweep.name}: importance of each field{few}")
    axes.grid(axis="x", alpha=0.25)
    handles = [
        Patch(color=COLOURS[0], label="more than chance"),
        Patch(color="0.7", label="no more than chance"),
        Line2D([], [], color=COLOURS[5], linewidth=2, label="95 of 100 random orders stay below"),
    ]
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3, frameon=False)
    return save_figure(figure, path)


def plot_curves(sweep: SweepResult, path: Path) -> Path:
    """The metric over the tokens read, a curve for each trial; a cross where it was stopped early."""
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.add_subplot()
    trials = [trial for trial in sweep.scored if trial.points][::-1]
    best = [trial.best_value for trial in sweep.scored]
    values = [point.value for trial in trials for point in trial.points] or best
    shade = _shades(best)
    low = min(values)
    high = min(max(values), max(*best, float(np.quantile(values, 0.9))))  # higher values would squeeze these
    room = 0.05 * ((high - low) or 1.0)
    low = low - room
    high = high + room
    longest = max((trial.points[-1].tokens for trial in trials), default=0.0)
    named: list[tuple[float, float]] = []
    for trial in trials:
        first = trial is sweep.scored[0]
        colour = SHADES(shade(trial.best_value))
        tokens = [p.tokens for p in trial.points]
        bits = [p.value for p in trial.points]
        axes.plot(tokens, bits, "-o", color=colour, linewidth=3 if first else 1.3, markersize=5 if first else 3)
        if trial.status == "stopped":
            axes.plot(tokens[-1], bits[-1], "x", color=STATUS_COLOURS["stopped"], markersize=9, markeredgewidth=2.2)
        copied = trial.copied
        axes.plot([p.tokens for p in copied], [p.value for p in copied], "v", color=COLOURS[3], markersize=9)
        if not any(abs(tokens[-1] - x) < 0.05 * longest and abs(bits[-1] - y) < 0.02 * (high - low) for x, y in named):
            named.append((tokens[-1], bits[-1]))
            axes.annotate(
                trial.id, (tokens[-1], bits[-1]), xytext=(6, 0), textcoords="offset points", fontsize=8, va="center"
            )
    axes.set_ylim(low, high)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel("tokens read in training")
    axes.set_ylabel(sweep.unit)
    set_title(figure, f"{sweep.name}: {counted(len(trials), 'trial')}; thick: the best, trial {sweep.scored[0].id}")
    axes.grid(alpha=0.25)
    handles = [_key("x", "stopped early", STATUS_COLOURS["stopped"], markeredgewidth=2)]
    if any(trial.exploited for trial in trials):
        handles.append(_key("v", "continues from a copy of a better one", COLOURS[3]))
    axes.legend(handles=handles, fontsize=9, framealpha=0.9)
    _colour_bar(figure, axes, shade, f"best {sweep.unit}")
    return save_figure(figure, path)


def plot_timeline(sweep: SweepResult, path: Path) -> Path:
    """When each trial ran, how it ended, and after how many tokens."""
    ran = sorted((trial for trial in sweep.trials if trial.spans), key=lambda trial: (trial.spans[0], trial.id))
    waiting = [trial for trial in sweep.trials if not trial.spans]
    figure = Figure(figsize=(9.5, 1.8 + 0.33 * max(3, len(ran) + len(waiting))), layout="constrained")
    axes = figure.add_subplot()
    began = ran[0].spans[0][0] if ran else 0.0
    ended = max((trial.spans[-1][1] for trial in ran), default=60.0)
    unit, size = unit_of_time(ended - began)
    whole = max(ended - began, 1.0) / size
    for row, trial in enumerate([*ran, *waiting]):
        colour = STATUS_COLOURS.get(trial.status, "0.7")
        for start, stop in trial.spans:
            width = max((stop - start) / size, whole / 300)
            axes.barh(row, width, left=(start - began) / size, height=0.62, color=colour)
        for point in trial.copied:
            axes.plot((point.time - began) / size, row, "v", color=COLOURS[3], markersize=7, markeredgecolor="white")
        end = (trial.spans[-1][1] - began) / size if trial.spans else 0.0
        label = f"{short(trial.tokens)} tokens" + (f", {trial.best.value:.4f}" if trial.best else "")
        if trial.status == "failed":
            label = f"failed: {shorten(trial.reason, 22, placeholder=' …')}"
        axes.annotate(
            label, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color="0.25"
        )
    first = sweep.scored[0].id if sweep.scored else None
    labels = [f"★ {trial.id}" if trial.id == first else trial.id for trial in [*ran, *waiting]]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, whole * 1.28)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.set_xlabel(f"{unit} since the first trial's first metric")
    axes.set_ylabel("trial")
    counts = {status: sum(trial.status == status for trial in sweep.trials) for status in STATUS_COLOURS}
    handles: list[Any] = [
        Patch(color=STATUS_COLOURS[status], label=f"{status}: {number}") for status, number in counts.items() if number
    ]
    if any(trial.exploited for trial in sweep.trials):
        handles.append(_key("v", "continues from a copy", COLOURS[3]))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=6, frameon=False)
    set_title(figure, f"{sweep.name}: when trials ran; beside each, what it read and its best {sweep.unit}")
    axes.grid(axis="x", alpha=0.25)
    return save_figure(figure, path)


def set_title(figure: Figure, text: str) -> None:
    """A title above the whole figure, in as many lines as it needs."""
    figure.suptitle(fill(text, round(TITLE * figure.get_figwidth())), fontsize=11)


def _key(marker: str, label: str, colour: str = "0.3", **style: Any) -> Line2D:
    """A legend's entry for a marker."""
    return Line2D([], [], color=colour, marker=marker, linestyle="", label=label, **style)


def _shades(values: Sequence[float]) -> Normalize:
    """From a trial's value to the colour map: the worst half shares its lightest end, so that the best can be told apart."""
    low = min(values)
    top = float(np.quantile(values, 0.8))
    return Normalize(low, max(top + 0.15 * (top - low), low + 1e-9), clip=True)


def _colour_bar(figure: Figure, axes: Axes, shade: Normalize, label: str) -> None:
    if shade.vmax is None or shade.vmin is None or shade.vmax - shade.vmin < 1e-6:
        return
    bar = figure.colorbar(ScalarMappable(shade, SHADES), ax=axes, pad=0.02, aspect=30, extend="max")
    bar.set_label(f"{label} (dark: better)", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def _wrapped(name: str, at: str = ".") -> str:
    """A long name on two lines."""
    if len(name) < 16 or at not in name:
        return name
    head, _, tail = name.rpartition(at)
    return f"{head}{'.' if at == '.' else ''}\n{tail}"
