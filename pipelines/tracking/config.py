"""What a run says of itself to the tracker: what it is called, what it reads, and where MLflow is for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError
from pipelines.config.run import TrackingConfig

Status = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(UserError, ConnectionError):
    """MLflow does not answer or refuses, and the run was told to stop then: it is not started again either."""


@dataclass(frozen=True)
class DatasetInfo:
    """What a run reads, as MLflow lists it beside the run."""

    name: str
    digest: str
    """Fingerprint of the data, up to 36 characters."""
    source: str
    documents: int
    tokens: int
    context: Literal["training", "evaluation"] = "training"


@dataclass(frozen=True)
class Identity:
    """What a run is called and described by."""

    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    dataset: DatasetInfo | None
    run_id: str | None = None
    """What the run's checkpoint says of it, for a folder without mlflow_run.json (one that was copied)."""


def tracking_uri(config: TrackingConfig, root: Path) -> str:
    """The config's URI, or the sqlite file in the folder of all runs."""
    return config.uri or f"sqlite:///{root.absolute() / 'mlflow.db'}"


def experiment_of(config: TrackingConfig) -> str:
    return config.experiment or "throughline"


def is_server(config: TrackingConfig) -> bool:
    """Whether MLflow is reached through a server, which then chooses where artifacts go."""
    return config.uri.startswith(("http:", "https:", "databricks"))
