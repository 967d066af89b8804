"""The findings of a sweep for a terminal: its trials, the winner, whether that beats the preset, and the commands that come next.

status = print_findings(read_sweep(Path("runs/sweep")), Place.parse("runs/sweep"), "python -m pipelines.ui")
"""

from __future__ import annotations

import shlex
import sys

from rich.console import Console

from common.errors import last_part
from common.places import Place
from pipelines.reports.sweep_report import column_of, trial_rows
from pipelines.reports.sweep_result import SweepResult, TrialResult
from pipelines.terminal import cli
from pipelines.terminal.commands import typed
from pipelines.terminal.tables import Form, table


def print_findings(sweep: SweepResult, place: Place, ui: str) -> int:
    """Print all findings of the sweep at ``place``. ``ui``: the command that shows its trials in MLflow, if there is one.

    Returns the exit status: 1 if no trial has a result.
    """
    print_trials(sweep)
    if not sweep.scored or sweep.winner is None:
        print("no trial has a result: see trial.json and logs/ in each trial's folder", file=sys.stderr)
        return 1
    best = sweep.scored[0]
    assert best.best
    print(f"best: trial {best.id}, {best.best.value:.4f} at step {best.best.step} ({best.described()})")
    print(against_baseline(sweep, best))
    if best.exploited:
        print(
            "it continued from copies of other trials (exploited, in best.json): the command below has its last values alone"
        )
    best_alone = " --checkpoint best" if sweep.metric.startswith("validation/") else ""
    print(
        f"  again   {sweep.winner['command']}\n"
        f"  or      {typed('train')} {shlex.quote(cli.shown((place / 'best.json').recorded))}\n"
        f"  test    {typed('evaluate')} {shlex.quote(cli.shown((place / f'trials/{best.id}').recorded))}{best_alone}"
    )
    if ui:
        print(f"  look    {ui}")
    return 0


def against_baseline(sweep: SweepResult, best: TrialResult) -> str:
    """Whether the best trial beats the preset."""
    baseline = next((trial for trial in sweep.trials if trial.baseline), None)
    if baseline is None or best.best is None:
        return f"no trial has the values of {sweep.preset} itself"
    if baseline.best is None or baseline.status == "failed":
        return f"trial {baseline.id}, which is {sweep.preset} itself, has no result to compare with"
    if best is baseline:
        return f"no trial beats {sweep.preset} itself (trial {baseline.id})"
    early = f", stopped at step {baseline.steps:,}" if baseline.status == "stopped" else ""
    itself = f"{sweep.preset} itself (trial {baseline.id}, {baseline.best.value:.4f}{early})"
    gain = baseline.best.value - best.best.value
    if f"{gain:.4f}" == f"{0:.4f}":
        return f"it is level with {itself}"
    return f"it beats {itself} by {gain:.4f}, with one seed each: train more seeds to see how far they differ"


def print_trials(sweep: SweepResult) -> None:
    """Print a table of all trials, the best first."""
    rows = [row | {"trial": row["trial"] + (" (preset)" if row["baseline"] else "")} for row in trial_rows(sweep)]
    varied = [name for name in map(column_of, sweep.fields) if any(row[name] is not None for row in rows)]
    columns: dict[str, tuple[str, Form]] = {
        "trial": ("trial", None),
        **{name: (last_part(name), str) for name in varied},
        "status": ("status", None),
        **{name: (name, ",") for name in ("steps", "tokens")},
        "best": ("best", ".4f"),
        "best_step": ("at step", ""),
    }
    console = Console(markup=False)
    console = console if console.is_terminal else Console(width=160, markup=False)
    best = sweep.scored[0].best_value if sweep.scored else None  # never that of a failed trial
    console.print(table(rows, columns, {"best": lambda _: best}, title=f"{sweep.name}: {sweep.metric}"))
