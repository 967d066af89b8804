"""A trial of a sweep, as its trial.json in the sweep's folder has it. All that read this file read it here.

trial = read_trial(Path("runs/sweep/trials/003/trial.json"), "validation/bits_per_token")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from common.errors import UserError
from common.places import Place

Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class MetricPoint:
    """The sweep's metric at one step of a trial."""

    step: int
    value: float


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
    """MLflow's id of the sweep's run, if all of it stands below that one, its end included; none without MLflow."""

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped", "failed")

    @property
    def best_value(self) -> float | None:
        """The best value of the sweep's metric; None before there is one."""
        return self.best.value if self.best else None

    def described(self) -> str:
        """Its values, as short as they are clear."""
        return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.values.items()) or "the preset"

    def to_json(self, metric: str) -> dict[str, Any]:
        """Its metrics stand under the metric's own name: ``{"step": 60, "validation/bits_per_byte": 2.1}``."""
        return asdict(self) | {"best": named(self.best, metric), "last": named(self.last, metric)}


def named(point: MetricPoint | None, metric: str) -> dict[str, Any] | None:
    """A metric for JSON, under its own name."""
    return None if point is None else {"step": point.step, metric: point.value}


def read_trial(path: Path | Place, metric: str) -> Trial:
    """Read a trial.json. Raises UserError where it is damaged, and FileNotFoundError where there is none."""
    try:
        saved = json.loads(path.read_bytes())
        if not isinstance(saved, dict):
            raise ValueError("it holds no JSON object")
        trial = Trial(**saved)
        trial.best = _point(trial.best, metric)
        trial.last = _point(trial.last, metric)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}): was it written by pipelines.tune?") from None
    return trial


def _point(saved: Any, metric: str) -> MetricPoint | None:
    values: Mapping[str, Any] = saved or {}
    return MetricPoint(values["step"], values[metric]) if values else None
