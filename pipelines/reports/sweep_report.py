"""The report of a sweep, from its folder alone: a table of trials, charts, and the winner's command line. No mlflow.

    paths = report_sweep(Path("runs/sweep"), tracker)      # into runs/sweep/report, and to the sweep's run in MLflow

docs/mlflow.md lists the files, and says how each is read. sweep_result.py reads the folder.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from pipelines.reports.files import save, write_csv
from pipelines.reports.sweep_result import SweepResult, read_sweep
from pipelines.tracking.score import architecture_of, windows_of

if TYPE_CHECKING:
    from pipelines.reports.frontier import Spot
    from pipelines.tracking import Tracker

MIN_SECONDS = 60.0
"""Shortest time between two reports of a sweep that is under way."""


def trial_rows(sweep: SweepResult) -> list[dict[str, Any]]:
    """The table of trials, the best first, those without a value last."""
    scored = sweep.scored
    others = [trial for trial in sweep.trials if trial not in scored]
    return [
        {
            "rank": rank,
            "trial": trial.id,
            "status": trial.status,
            "best": trial.best.value if trial.best else None,
            "best_step": trial.best.step if trial.best else None,
            "last": trial.last.value if trial.last else None,
            "steps": trial.steps,
            "tokens": trial.tokens,
            "flops": trial.flops,
            "training_flops_per_token": trial.training_flops_per_token,
            "seconds": round(trial.seconds, 1),
            **{column_of(name): trial.values.get(name) for name in sweep.fields},
            "baseline": "yes" if trial.baseline else "",
            "exploited": trial.described_copies(),
            "reason": trial.reason,
        }
        for rank, trial in [*enumerate(scored, 1), *((None, trial) for trial in others)]
    ]


def column_of(field: str) -> str:
    """The column of a swept field. `steps` gets another name, since that column has the steps that a trial has made."""
    return "steps_asked" if field == "steps" else field


def spots_of(sweep: SweepResult) -> tuple[str, list[Spot]]:
    """The metric's label, and FLOPs per token and best result of each finished trial. One that was stopped early has read less."""
    from pipelines.reports.frontier import Spot, as_plotted

    trials = [trial for trial in sweep.scored if trial.status == "finished"]
    what, values = as_plotted(sweep.metric, [trial.best_value for trial in trials])
    spots = [
        Spot(trial.id, architecture_of(trial.model), windows_of(trial.model), trial.training_flops_per_token, value)
        for trial, value in zip(trials, values, strict=True)
        if trial.training_flops_per_token
    ]
    return what, spots


def report_sweep(folder: Path, tracker: Tracker | None = None, *, final: bool = True) -> list[Path]:
    """Write the sweep's table and charts below ``folder/report`` and log them to its run. Returns the files.

    Args:
        final: the sweep is over; else nothing is done when the last report is younger than a minute, or there is no trial yet.

    Raises UserError when this is no sweep's folder, or a file of it is damaged.
    """
    from pipelines.reports import frontier  # matplotlib: a second
    from pipelines.reports import sweep_figures as figures

    place = folder / "report"
    table = place / "trials.csv"
    if not final and table.exists() and time.time() - table.stat().st_mtime < MIN_SECONDS:
        return []
    sweep = read_sweep(folder)
    if not sweep.trials:
        if final:
            raise UserError(f"{folder} has no trial yet: run the sweep first")
        return []
    paths = [write_csv(trial_rows(sweep), table)]
    if sweep.scored:
        paths += [
            figures.plot_parallel(sweep, place / "parallel.png"),
            figures.plot_fields(sweep, place / "fields.png"),
            figures.plot_importance(sweep, place / "importance.png"),
            figures.plot_curves(sweep, place / "curves.png"),
        ]
        what, spots = spots_of(sweep)
        flops = "FLOPs of training per token"
        paths += frontier.plot_frontier(spots, f"best {what}", flops, place / "frontier.png")
    paths.append(figures.plot_timeline(sweep, place / "timeline.png"))
    winner = sweep.winner or {}
    command = winner.get("command")
    if command:
        paths.append(save(place / "winner.txt", f"{command}\n".encode()))
    if tracker is not None:
        tracker.log_artifacts(*paths, folder="sweep")
        if command:
            tracker.set_tag("winner.command", command)
            tracker.set_tag("winner.trial", str(winner.get("trial", "")))
    return paths
