"""The parts of a run's config: its data, optimizer, schedule, checkpoints, tracking, and where its workers stand."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.checks import check_fields
from common.errors import UserError
from pipelines.config.address import check_address


@dataclass(frozen=True)
class DataConfig:
    """Which segment store is read, and how it is laid out in lanes."""

    store: str = "runs/store"
    """Folder that `pipelines.prepare` wrote, or a URI such as s3://bucket/store."""
    cache: str = ""
    """Folder on each machine that caches segment files of a store in a bucket, at most 64 GiB; by default throughline/segments in
    the user's cache folder. none keeps nothing on the disk."""
    corpus: str = "python-source"
    """Corpus in that store."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of documents in an epoch: shuffled by the seed, or sequential as in the store (a curriculum)."""
    lanes: int = 8
    """Rows of the global batch, over all workers."""
    segment_length: int = 1024
    """Tokens of a lane in one training step: a multiple of the model's block, which is its window less the overlap of windows.
    Gradients reach this far back."""

    def __post_init__(self) -> None:
        check_fields("data", self, lanes=1, segment_length=1)
        if not self.corpus or "/" in self.corpus:  # evaluations compare the name with the store's own
            raise UserError(f"data.corpus is {self.corpus!r}: it must be the name of a corpus in data.store")


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer."""

    name: Literal["adamw", "adafactor"] = "adamw"
    """adamw, or adafactor with momentum and parameter-scaled updates as in the block-recurrent paper. It scales a layer's keys,
    values and queries together, as they are one parameter here; in the authors' code they are three or four."""
    lr: float = 1e-3
    """Peak learning rate; for adafactor, relative to the size of each parameter."""
    recurrent_lr_scale: float = 1.0
    """Factor on the learning rate of the recurrence's own parameters: a cell's states, their direction and gates; beside a
    pretrained decoder, all new ones."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates; adafactor uses the first as its momentum."""
    weight_decay: float = 0.1
    """Decoupled weight decay of all parameters with two dimensions or more: matrices, embeddings, tables of position biases, and a
    recurrence's first states."""
    max_grad_norm: float = 1.0
    """Clip the gradient to this global norm; 0 does not clip."""

    def __post_init__(self) -> None:
        check_fields("optim", self, lr=0, recurrent_lr_scale=0, weight_decay=0, max_grad_norm=0)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas is {self.betas}: each must be at least 0 and below 1")


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over steps: linear warm-up, then one of three shapes."""

    name: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    """cosine to `min_lr_ratio` at the end of the last step; inverse-sqrt: lr / √max(step, warmup_steps), whose peak is
    lr / √warmup_steps (the block-recurrent paper's Appendix C); constant."""
    warmup_steps: int = 100
    """Steps of linear warm-up to the schedule's first value; 0 begins there."""
    min_lr_ratio: float = 0.1
    """cosine: the final learning rate as a share of the peak."""

    def __post_init__(self) -> None:
        check_fields("schedule", self, warmup_steps=0, min_lr_ratio=0)


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved, and which checkpoints are kept."""

    every: int = 100
    """Steps between checkpoints; the last step always makes one, and so does a request to stop."""
    keep: int = 3
    """Newest checkpoints that are kept."""
    keep_every: int = 0
    """Keep checkpoints at multiples of this number of steps for good; 0 for none."""
    keep_best: int = 1
    """Best checkpoints to keep, among those validated at their own step; 0 for none."""
    best_by: str = "validation/bits_per_token"
    """Validation metric that ranks checkpoints, the lower the better. It cannot change within a run; trials use their sweep's
    metric."""
    on_failure: Literal["stop", "warn"] = "stop"
    """When a checkpoint cannot be written (a full disk): stop the run, or warn and continue."""

    def __post_init__(self) -> None:
        check_fields("checkpoint", self, every=1, keep=1, keep_every=0, keep_best=0)


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run's metrics go."""

    backend: Literal["mlflow", "none"] = "mlflow"
    """none keeps them in the run's metrics.jsonl alone."""
    uri: str = ""
    """MLflow's tracking URI: http://host:5000, or a database; by default MLFLOW_TRACKING_URI, else the file mlflow.db in the folder
    of all runs. Name and password for a server belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = ""
    """MLflow experiment of the run; by default MLFLOW_EXPERIMENT_NAME, else throughline."""
    parent: str = ""
    """MLflow id of the parent run; a sweep sets it for its trials."""
    on_failure: Literal["continue", "stop"] = "continue"
    """When MLflow does not answer: continue and send later, or stop the run."""
    patience: float = 60.0
    """Seconds to wait for an MLflow that does not answer: at the end of a run, then the remaining metrics stay unsent; during it,
    with `stop`, then the run stops. With `stop` MLflow must answer at once when a run begins or resumes."""
    models: Literal["best", "metrics", "none"] = "best"
    """best: each checkpoint is a model in MLflow with its validation metrics. The best one of a finished run is uploaded as a
    folder for transformers and registered under the run's name (in a sweep: the best of all trials, under the sweep's name).
    metrics: the same without uploads. none: no models."""
    system_metrics: Literal["on", "off"] = "on"
    """CPU, memory, disk, network and GPU of rank 0's machine, every ten seconds."""

    def __post_init__(self) -> None:
        check_fields("tracking", self, patience=0)
        check_address(self.uri, "tracking.uri")
        if self.experiment and not self.experiment.strip():
            raise UserError("tracking.experiment is blank: name an MLflow experiment")

    @property
    def in_own_file(self) -> bool:
        """Whether a run is in MLflow's file in the folder of all runs, which `pipelines.ui` shows."""
        return self.backend == "mlflow" and not self.uri

    def located(self) -> TrackingConfig:
        """The config with defaults from MLflow's environment variables.

        A command reads them once, where it begins, and passes them to its workers, which may have other variables.
        """
        if self.backend != "mlflow":
            return self
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI", "").strip()
        relative = re.fullmatch(r"sqlite:///(?!/|:memory:)(.+)", uri)
        if relative:
            uri = f"sqlite:///{Path(relative[1]).absolute()}"
        if not self.uri:
            check_address(uri, "MLFLOW_TRACKING_URI")
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "").strip()
        return dataclasses.replace(self, uri=uri, experiment=experiment)


@dataclass(frozen=True)
class PlacementConfig:
    """Resources of each Ray Train worker, and the machines on which workers run."""

    strategy: Literal["pack", "spread", "strict-spread"] = "pack"
    """pack: on as few machines as possible; spread: on as many as possible; strict-spread: never two on one, or wait."""
    cpus: float = 1
    """CPUs of a worker."""
    gpus: float = 1
    """GPUs of a worker that uses any; 0.5 lets two workers share one, more than 1 reserves the others for it."""
    resource: str = ""
    """Use only machines with this resource: `ray start --resources='{"NAME":1}'`."""

    def __post_init__(self) -> None:
        check_fields("placement", self)
        for name in ("cpus", "gpus"):
            if not getattr(self, name) > 0:
                raise UserError(f"placement.{name} is {getattr(self, name)}: it must be above 0")

    def worker(self, use_gpu: bool) -> dict[str, float]:
        """Ray's resources of one worker."""
        return {
            "CPU": self.cpus,
            **({"GPU": self.gpus} if use_gpu else {}),
            **({self.resource: 0.001} if self.resource else {}),
        }

    def fits(self, resources: Mapping[str, float], use_gpu: bool) -> int:
        """How many workers a machine with these resources holds."""
        fits = times(resources, self.worker(use_gpu))
        return min(fits, 1) if self.strategy == "strict-spread" else fits


def times(resources: Mapping[str, float], taken: Mapping[str, float]) -> int:
    """How often resources hold what is taken; 0.3 CPUs hold 0.1 three times."""
    return int(min(resources.get(name, 0) / amount for name, amount in taken.items()) + 1e-9)
