"""What a run says of itself to the tracker: where its figures go, what it is called, what it reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError

Status = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingError(UserError, ConnectionError):
    """MLflow does not answer or refuses, and the run was told to stop then: it is not started again either."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run's figures go."""

    backend: Literal["mlflow", "none"] = "mlflow"
    """none keeps them in the run's metrics.jsonl alone."""
    uri: str = ""
    """MLflow's tracking URI: http://host:5000, or a database; by default what MLFLOW_TRACKING_URI says, else the file mlflow.db in
    the folder of all runs. Name and password for a server belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = ""
    """MLflow experiment that the run belongs to; by default what MLFLOW_EXPERIMENT_NAME says, else throughline."""
    parent: str = ""
    """MLflow's id of the run that this one stands below; a sweep sets it for its trials."""
    on_failure: Literal["continue", "stop"] = "continue"
    """When MLflow does not answer: go on and send later, or stop the run."""
    patience: float = 60.0
    """Seconds that MLflow may be silent: at the end, before what is left stays unsent; under way, before `stop` stops."""
    models: Literal["best", "figures", "none"] = "best"
    """best: each checkpoint is a model in MLflow with its validation figures, and the best one of a finished run is uploaded, as
    a folder for transformers, and registered under the run's name (of trials: the best one of the sweep's, under its name).
    figures: nothing is uploaded."""
    system_metrics: Literal["on", "off"] = "on"
    """CPU, memory, disk, network and GPU of rank 0's machine, every ten seconds."""

    def __post_init__(self) -> None:
        if re.match(r"sqlite:///(?!/)", self.uri):
            raise UserError(
                f"tracking.uri is {self.uri}: workers run elsewhere, so write the whole path, as in sqlite:////home/…"
            )
        if self.experiment and not self.experiment.strip():
            raise UserError("tracking.experiment is blank: name an MLflow experiment")

    def located(self) -> TrackingConfig:
        """With what MLflow's environment variables say where nothing else does. A command asks once, where it begins: its workers,
        which may have other variables, are told.
        """
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI", "").strip()
        if relative := re.fullmatch(r"sqlite:///(?!/)(.+)", uri):
            uri = f"sqlite:///{Path(relative[1]).absolute()}"
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "").strip()
        return replace(self, uri=uri, experiment=experiment) if self.backend == "mlflow" else self


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
