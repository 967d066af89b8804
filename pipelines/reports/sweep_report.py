"""What a sweep found, from its folder alone: a table of trials, charts, and the winner's command line. No torch, no mlflow.

    paths = report_sweep(Path("runs/sweep"), tracker)      # into runs/sweep/report, and to the sweep's run in MLflow

    trials.csv       one row for each trial: status, reason, steps, tokens, FLOPs, seconds, best and last figure, the swept fields
    parallel.png     parallel coordinates: each trial a line through its values, coloured by its best figure
    fields.png       best figure against each swept field
    importance.png   how much of the trials' order each field explains, against what chance would
    curves.png       the figure over tokens, and where trials were stopped
    timeline.png     when each trial ran, and how it ended
    winner.txt       the command that trains the winner

docs/mlflow.md says how each is read. The folder is the one that `pipelines.tune` writes: sweep.json, trials/<id>/trial.json.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError
from data_prep.manifest import write_atomically
from pipelines.tracking.metrics import about
from pipelines.tracking.metrics_file import read_records

if TYPE_CHECKING:
    from pipelines.tracking import Tracker

LEAST_SECONDS = 60.0
"""Between two reports of a sweep that is under way."""


@dataclass(frozen=True)
class Point:
    """The sweep's figure at one validation of a trial."""

    step: int
    tokens: float
    time: float
    """Seconds since the epoch."""
    value: float


@dataclass(frozen=True)
class TrialResult:
    """One trial, as its trial.json and metrics.jsonl have it."""

    id: str
    values: Mapping[str, Any]
    status: str
    reason: str
    steps: int
    tokens: int
    flops: float
    seconds: float
    best: float | None
    best_step: int | None
    last: float | None
    exploited: tuple[Mapping[str, Any], ...]
    baseline: bool
    points: tuple[Point, ...]
    spans: tuple[tuple[float, float], ...]
    """When it ran, in seconds since the epoch; several where it was interrupted."""

    def at(self, tokens: float) -> float | None:
        """Its figure at the last validation up to so many tokens."""
        return next((point.value for point in reversed(self.points) if point.tokens <= tokens), None)


@dataclass(frozen=True)
class SweepResult:
    """A sweep as its folder has it."""

    name: str
    metric: str
    fields: tuple[str, ...]
    command: str
    trials: tuple[TrialResult, ...]
    winner: Mapping[str, Any] | None
    """best.json, where there is one."""

    @property
    def unit(self) -> str:
        return about(self.metric)

    @property
    def scored(self) -> list[TrialResult]:
        """Trials with a figure, the best first."""
        return sorted(
            (t for t in self.trials if t.best is not None and t.status != "failed"), key=lambda t: (t.best, t.id)
        )


def is_sweep(folder: Path) -> bool:
    return (folder / "sweep.json").is_file()


def read_sweep(folder: Path) -> SweepResult:
    """Raises ValueError naming the file that is missing or damaged."""
    sweep = _read(folder / "sweep.json", "is not the folder of a sweep: name one that pipelines.tune wrote")
    try:
        metric, fields = str(sweep["metric"]), tuple(map(str, sweep["fields"]))
        trials = tuple(_trial(path.parent, metric) for path in sorted((folder / "trials").glob("*/trial.json")))
        winner = _read(folder / "best.json", "") if (folder / "best.json").exists() else None
        return SweepResult(str(sweep["name"]), metric, fields, str(sweep["command"]), trials, winner)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder}: sweep.json or a trial.json lacks {error}: was it written by pipelines.tune?"
        ) from None


def _read(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} {otherwise}") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return values


def _trial(folder: Path, metric: str) -> TrialResult:
    values = _read(folder / "trial.json", "is no trial")
    records = read_records(folder / "metrics.jsonl")
    points: dict[int, Point] = {}
    for record in records:
        if metric in record.metrics and "train/tokens" in record.metrics:
            figure, tokens = record.metrics[metric], record.metrics["train/tokens"]
            points.setdefault(record.step, Point(record.step, tokens, record.time / 1e3, figure))
    best, last = values.get("best") or {}, values.get("last") or {}
    return TrialResult(
        id=str(values["id"]),
        values=values["values"],
        status=values["status"],
        reason=values.get("reason", ""),
        steps=int(values.get("steps", 0)),
        tokens=int(values.get("tokens", 0)),
        flops=float(values.get("flops", 0.0)),
        seconds=float(values.get("seconds", 0.0)),
        best=value_of(best, metric),
        best_step=best.get("step"),
        last=value_of(last, metric),
        exploited=tuple(values.get("exploited") or ()),
        baseline=bool(values.get("baseline", False)),
        points=tuple(points[step] for step in sorted(points)),
        spans=spans([record.time / 1e3 for record in records]),
    )


def value_of(figure: Mapping[str, Any], metric: str) -> float | None:
    """Of a best or last figure in trial.json. Sweeps of earlier versions call each metric bits_per_token."""
    return figure.get(metric, figure.get("bits_per_token"))


def longest_gap(times: list[float]) -> float:
    """Seconds between two figures of a run beyond which it did not run in between: it was interrupted, and went on later."""
    gaps = sorted(after - before for before, after in pairwise(times))
    return max(60.0, 20 * gaps[len(gaps) // 2]) if gaps else 60.0


def spans(times: list[float]) -> tuple[tuple[float, float], ...]:
    """Stretches of time without a long pause in them: an interrupted run has several."""
    times = sorted(times)
    found: list[list[float]] = []
    longest = longest_gap(times)
    for at in times:
        if not found or at - found[-1][1] > longest:
            found.append([at, at])
        found[-1][1] = at
    return tuple((began, ended) for began, ended in found)


def trial_rows(sweep: SweepResult) -> list[dict[str, Any]]:
    """The table of trials, the best first, those without a figure last."""
    order = {trial.id: rank for rank, trial in enumerate(sweep.scored, 1)}
    rows = [
        {
            "rank": order.get(trial.id),
            "trial": trial.id,
            "status": trial.status,
            "best": trial.best,
            "best_step": trial.best_step,
            "last": trial.last,
            "steps": trial.steps,
            "tokens": trial.tokens,
            "flops": trial.flops,
            "seconds": round(trial.seconds, 1),
            **{name: trial.values.get(name) for name in sweep.fields},
            "baseline": "yes" if trial.baseline else "",
            "exploited": "; ".join(f"from {each.get('from')} at step {each.get('step')}" for each in trial.exploited),
            "reason": trial.reason,
        }
        for trial in sweep.trials
    ]
    return sorted(rows, key=lambda row: (row["rank"] or len(rows) + 1, row["trial"]))


def write_csv(rows: list[dict[str, Any]], path: Path) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
    return path


def report_sweep(folder: Path, tracker: Tracker | None = None, *, final: bool = True) -> list[Path]:
    """Write the sweep's table and charts below ``folder/report`` and log them to its run. Returns the files.

    Args:
        final: the sweep is over; else nothing is done when the last report is younger than a minute, or there is no trial yet.

    Raises ValueError when this is no sweep's folder, or a file of it is damaged.
    """
    from pipelines.reports import sweep_figures as figures  # matplotlib: a second

    place = folder / "report"
    table = place / "trials.csv"
    if not final and table.exists() and time.time() - table.stat().st_mtime < LEAST_SECONDS:
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
    paths.append(figures.plot_timeline(sweep, place / "timeline.png"))
    if sweep.winner and (command := sweep.winner.get("command")):
        write_atomically(place / "winner.txt", f"{command}\n".encode())
        paths.append(place / "winner.txt")
    if tracker is not None:
        for path in paths:
            tracker.log_artifact(path, "sweep")
        if sweep.winner and sweep.winner.get("command"):
            tracker.set_tag("winner.command", sweep.winner["command"])
            tracker.set_tag("winner.trial", str(sweep.winner.get("trial", "")))
    return paths
