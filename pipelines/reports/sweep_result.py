"""A sweep as its folder has it: sweep.json, best.json, and below trials/ the trial.json and metrics.jsonl of each trial.

    read_sweep(Path("runs/sweep")).scored[0].values        # of the best trial
    read_trial(Path("runs/sweep/trials/003/trial.json"), "validation/bits_per_token")

`pipelines.tune` writes these files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from common.checks import check_fields
from common.errors import UserError
from common.files import parse_json
from common.places import Place
from pipelines.checkpoints.run_folder import RunFolder, is_sweep
from pipelines.tracking.metrics import about
from pipelines.tracking.metrics_file import Record, read_records

TOKENS = "train/tokens"
Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class MetricPoint:
    """The sweep's metric at one step of a trial."""

    step: int
    value: float


T = TypeVar("T", bound="Trial")


@dataclass
class Trial:
    """One run of a sweep."""

    id: str
    values: dict[str, Any]
    status: Status = "pending"
    reason: str = ""
    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    best: MetricPoint | None = None
    last: MetricPoint | None = None
    exploited: list[dict[str, Any]] = field(default_factory=list)
    baseline: bool = False
    recorded: str = ""
    """MLflow's id of the sweep's run once the whole trial is recorded below it, its end included; "none" without MLflow."""

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped", "failed")

    @property
    def best_value(self) -> float:
        """The best value of the sweep's metric, of a trial that has one (see `ranked`)."""
        assert self.best
        return self.best.value

    def described(self) -> str:
        """The trial's values in words, each named by the last part of its field."""
        return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.values.items()) or "the preset"

    def described_copies(self) -> str:
        """The checkpoints from which it continued as a copy, in words; empty if there are none."""
        return "; ".join(f"from {each.get('from')} at step {each.get('step')}" for each in self.exploited)

    def to_json(self, metric: str) -> dict[str, Any]:
        """The trial as JSON. Metrics have their own names: ``{"step": 60, "validation/bits_per_byte": 2.1}``."""
        return asdict(self) | {"best": named(self.best, metric), "last": named(self.last, metric)}


def ranked(trials: Iterable[T]) -> list[T]:
    """The trials that have a value and did not fail, the best first; of equals the earlier one."""
    found = [trial for trial in trials if trial.best and trial.status != "failed"]
    return sorted(found, key=lambda trial: trial.best_value)


def named(point: MetricPoint | None, metric: str) -> dict[str, Any] | None:
    """A metric for JSON, under its own name."""
    return None if point is None else {"step": point.step, metric: point.value}


def read_trial(path: Path | Place, metric: str) -> Trial:
    """Read a trial.json. Raises UserError where it is damaged, and FileNotFoundError where there is none."""
    saved = _read(path)
    try:
        trial = Trial(**saved)
        trial.best = _metric(trial.best, metric)
        trial.last = _metric(trial.last, metric)
        check_fields("", trial)
        if not all(isinstance(each, dict) for each in trial.exploited):
            raise TypeError("exploited is no list of objects")
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({error}): was it written by pipelines.tune?") from None
    return trial


def _metric(saved: Any, metric: str) -> MetricPoint | None:
    return MetricPoint(int(saved["step"]), float(saved[metric])) if saved else None


@dataclass(frozen=True)
class Point:
    """A metric's value at one step."""

    step: int
    tokens: float
    time: float
    """Seconds: for a trial since the epoch, for a compared run since its first metric."""
    value: float


def points_of(records: Sequence[Record], key: str) -> tuple[Point, ...]:
    """A metric's value by step; the first of a step counts, and a NaN does not."""
    found: dict[int, Point] = {}
    for record in sorted(records, key=lambda record: record.step):
        value = record.metrics.get(key, math.nan)
        if math.isfinite(value) and TOKENS in record.metrics:
            point = Point(record.step, record.metrics[TOKENS], record.time / 1e3, value)
            found.setdefault(record.step, point)
    return tuple(found.values())


@dataclass
class TrialResult(Trial):
    """One trial, as its trial.json and metrics.jsonl have it."""

    points: tuple[Point, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()
    """Begin and end of each stretch in which it ran, in seconds since the epoch; several if it was interrupted."""
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The model's config as JSON; empty before the trial has begun."""

    def at(self, tokens: float) -> float:
        """The metric's value at the last point up to so many ``tokens``, which must not be before the first point."""
        return next(point.value for point in reversed(self.points) if point.tokens <= tokens)

    @property
    def training_flops_per_token(self) -> float | None:
        """FLOPs per token in training; None before its first result, or if the sweep did not write them."""
        return self.flops / self.tokens if self.flops and self.tokens else None

    @property
    def copied(self) -> list[Point]:
        """The points from which it continued as a copy of a better trial."""
        steps = {each.get("step") for each in self.exploited}
        return [point for point in self.points if point.step in steps]


@dataclass(frozen=True)
class SweepResult:
    """A sweep as its folder has it."""

    name: str
    preset: str
    metric: str
    fields: tuple[str, ...]
    trials: tuple[TrialResult, ...]
    winner: Mapping[str, Any] | None
    """Contents of best.json; None if there is none."""

    @property
    def unit(self) -> str:
        return about(self.metric)

    @property
    def scored(self) -> list[TrialResult]:
        """Trials with a value, the best first."""
        return ranked(self.trials)


def fetch_sweep(sweep: RunFolder, *further: str) -> Path:
    """The sweep's local folder. For a sweep in a bucket, its files and ``further`` ones are fetched to the working folder first."""
    if not sweep.is_local:
        for path in sweep.folder.glob("trials/*/trial.json"):
            path.unlink()
        trials = [f"trials/{file.name}" for file in (sweep.place / "trials").list()]
        files = (f"{trial}/{file}" for trial in trials for file in ("trial.json", "metrics.jsonl", "config.json"))
        sweep.fetch("sweep.json", "best.json", *further, *files)
    return sweep.folder


def read_sweep(folder: Path | Place) -> SweepResult:
    """Read a sweep's folder. Raises UserError naming the file that is missing or damaged."""
    place = Place.parse(folder)
    if not is_sweep(place):
        raise UserError(f"{folder} is not the folder of a sweep: name one that pipelines.tune wrote")
    folder = fetch_sweep(RunFolder(place))
    sweep = _read(folder / "sweep.json")
    try:
        metric = str(sweep["metric"])
        fields = tuple(map(str, sweep["fields"]))
        paths = sorted(path for path in (folder / "trials").glob("*/trial.json") if path.parent.name.isdigit())
        trials = tuple(_trial(path.parent, metric) for path in paths)
        winner = _read(folder / "best.json") if (folder / "best.json").exists() else None
        return SweepResult(str(sweep["name"]), str(sweep.get("preset", "the preset")), metric, fields, trials, winner)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder}: sweep.json or a trial.json lacks {error}: was it written by pipelines.tune?"
        ) from None


def _read(path: Path | Place) -> dict[str, Any]:
    try:
        values = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return values


def _trial(folder: Path, metric: str) -> TrialResult:
    trial = read_trial(folder / "trial.json", metric)
    trial.baseline = trial.baseline and not trial.exploited  # a copy of another trial is not the preset
    records = read_records(folder / "metrics.jsonl")
    config = _read(folder / "config.json") if (folder / "config.json").exists() else {}
    ran = spans([record for record in records if TOKENS in record.metrics])
    return TrialResult(**vars(trial), points=points_of(records, metric), spans=ran, model=config.get("model", {}))


def pauses(records: Sequence[Record]) -> list[bool]:
    """Whether the run was interrupted between each record and the next: a minute or more passed, and 20 times what is usual. No
    run is interrupted between two records of one step, where it validates.
    """
    gaps = [(after.time - before.time) / 1e3 for before, after in pairwise(records)]
    longest = max(60.0, 20 * sorted(gaps)[len(gaps) // 2]) if gaps else 60.0
    return [
        gap > longest and after.step != before.step
        for gap, (before, after) in zip(gaps, pairwise(records), strict=True)
    ]


def spans(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    """Stretches of time, in seconds, without a pause in them: an interrupted run has several."""
    records = sorted(records, key=lambda record: record.time)
    begins = [i + 1 for i, paused in enumerate(pauses(records)) if paused]
    stretches = np.split(np.array([record.time / 1e3 for record in records]), begins)
    return tuple((float(times[0]), float(times[-1])) for times in stretches if len(times))
