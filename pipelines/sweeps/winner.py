"""What a sweep has found: the table of its trials, the winner's command and preset file, and whether it beats the preset.

write_best(sweep, trial)                # <sweep>/best.json
conclude(sweep)                         # prints it all
"""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from pipelines.checkpoints.run_file import as_preset
from pipelines.config.dotted import options
from pipelines.presets import PRESETS
from pipelines.sweeps.budget import BUDGET
from pipelines.sweeps.sweep import Sweep, Trial
from pipelines.terminal import cli


def winner_command(sweep: Sweep, best: Trial) -> str:
    """The command that trains the winner again."""
    run = sweep.run_of(best)
    preset = best.values.get("preset", sweep.config.preset)
    name = f"{sweep.config.train.run}-best"
    run = replace(run, run=name, allow_change=(), root=cli.shown(run.root) or ".")
    base = replace(PRESETS[preset], run="")
    return shlex.join(["python", "-m", "pipelines.train", preset, *options(run, base)])


def write_best(sweep: Sweep, best: Trial) -> None:
    """best.json: the best trial so far."""
    values = {"trial": best.id, "values": best.values, **(sweep.named(best.best) or {})}
    config = as_preset(replace(sweep.run_of(best), run=f"{sweep.config.train.run}-best", allow_change=()))
    rest = {"metric": sweep.config.metric, "command": winner_command(sweep, best), "exploited": best.exploited}
    sweep.write("best.json", values | rest | {"config": config})


def conclude(sweep: Sweep, spent: str = "") -> int:
    """Say what was found and what to do next; ``spent``: that the budget is. Returns the exit status."""
    best = sweep.best()
    print_table(sweep, best)
    left = [trial for trial in sweep.trials.values() if not trial.over or trial.reason.startswith(BUDGET)]
    if spent:
        print(f"{spent}: {len(left)} trials are not done; the same command with a larger budget goes on with them")
    if best is None or best.best is None:
        print("no trial has a figure: trial.json and logs/ in each trial's folder say why", file=sys.stderr)
        return 1
    command = winner_command(sweep, best)
    print(f"best: trial {best.id}, {best.best.value:.4f} at step {best.best.step} ({best.told()})")
    print(against_baseline(sweep, best))
    if best.exploited:
        print(
            "it went on from other trials on its way (exploited, in best.json): the command below has its last values alone"
        )
    print(
        f"  again   {command}\n"
        f"  or      python -m pipelines.train {cli.shown((sweep.run.place / 'best.json').recorded)}\n"
        f"  test    python -m pipelines.evaluate {cli.shown(sweep.run_place(best).place.recorded)}\n"
        f"  look    make ui"
    )
    return 0


def against_baseline(sweep: Sweep, best: Trial) -> str:
    """Whether the best trial beats the preset."""
    baseline = next((trial for trial in sweep.trials.values() if trial.baseline), None)
    if baseline is None:
        return "the preset itself was not among the trials"
    if baseline.best is None or best.best is None:
        return f"trial {baseline.id}, which is {sweep.config.preset} itself, has no figure to compare with"
    if best is baseline:
        return f"no trial beats {sweep.config.preset} itself (trial {baseline.id})"
    gain = baseline.best.value - best.best.value
    return f"it beats {sweep.config.preset} itself (trial {baseline.id}, {baseline.best.value:.4f}) by {gain:.4f}"


def print_table(sweep: Sweep, best: Trial | None) -> None:
    """All trials, the best first."""
    names = [name for name in sweep.fields if any(name in trial.values for trial in sweep.trials.values())]
    table = Table(title=f"{sweep.config.train.run}: {sweep.config.metric}")
    short = [name.rpartition(".")[2] for name in names]
    for title in ("trial", *short, "status", "steps", "tokens", "best", "at step"):
        table.add_column(title, justify="left" if title in ("trial", "status") else "right", no_wrap=True)

    for trial in sorted(
        sweep.trials.values(), key=lambda trial: (trial.best.value if trial.best else math.inf, trial.id)
    ):
        figures = (f"{trial.best.value:.4f}", str(trial.best.step)) if trial.best else ("–", "–")
        mark = " (preset)" if trial.baseline else ""
        values = (str(trial.values.get(name, "–")) for name in names)
        style = "bold" if trial is best else None
        table.add_row(
            trial.id + mark, *values, trial.status, f"{trial.steps:,}", f"{trial.tokens:,}", *figures, style=style
        )
    console = Console(markup=False)
    console = console if console.is_terminal else Console(width=160, markup=False)
    console.print(table)
