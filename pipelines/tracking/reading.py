"""Reads runs from MLflow whose folder is not at hand.

run = read_run(TrackingConfig(uri="http://host:5000"), Path("runs"), "0123…", ["validation/bits_per_token"])
run.params, run.records, run.children
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError, first_cause
from pipelines.config.run import MLFLOW_DATABASE, TrackingConfig
from pipelines.tracking.client import (
    MAX_CAUSE_LENGTH,
    TrackingError,
    check_tracking,
    is_final,
    load_mlflow,
    tracking_uri,
)
from pipelines.tracking.identity import changed_by_tags
from pipelines.tracking.metrics_file import Record

MAX_CHILDREN = 50_000
"""Most runs that MLflow lists at once."""


@dataclass(frozen=True)
class StoredRun:
    """A run as MLflow has it."""

    id: str
    name: str
    params: Mapping[str, str]
    """The present params: the newest values of those that were changed after the run had begun."""
    tags: Mapping[str, str]
    records: tuple[Record, ...]
    """The metrics asked for, in the order of their steps."""
    children: tuple[str, ...]
    """Ids of the runs below it."""


def read_run(config: TrackingConfig, root: Path, run_id: str, keys: Collection[str]) -> StoredRun:
    """The run with these of its metrics.

    Raises:
        UserError: MLflow has no such run or refuses to show it, or there is no MLflow.
        TrackingError: it does not answer.
    """
    where = without_credentials(tracking_uri(config, root))
    if not config.uri and not (root / MLFLOW_DATABASE).exists():
        raise UserError(f"{root} holds no mlflow.db to look the run {run_id} up in: name --root or --tracking.uri")
    check_tracking(config, root)
    load_mlflow()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client: Any = MlflowClient(tracking_uri=tracking_uri(config, root))
        run = client.get_run(run_id)
        by_step: dict[int, list[Any]] = {}  # training's metrics, and validation's a little later
        for key in sorted(set(run.data.metrics) & set(keys)):
            for point in client.get_metric_history(run_id, key):
                by_step.setdefault(point.step, []).append(point)
        below = client.search_runs(
            [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=MAX_CHILDREN
        )
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise UserError(f"MLflow at {where} has no run {run_id}: is --tracking.uri the right one?") from None
        cause = first_cause(error, most=MAX_CAUSE_LENGTH)
        if is_final(error):
            raise UserError(
                f"MLflow at {where} refuses to show the run {run_id} ({cause}): correct it, or --tracking.uri"
            ) from None
        raise TrackingError(
            f"MLflow at {where} does not answer ({cause}): start it, or correct --tracking.uri"
        ) from None
    return StoredRun(
        id=run_id,
        name=run.info.run_name or run_id,
        params={**run.data.params, **changed_by_tags(run.data.tags)},
        tags=run.data.tags,
        records=tuple(
            Record(step, max(point.timestamp for point in points), {point.key: point.value for point in points})
            for step, points in sorted(by_step.items())
        ),
        children=tuple(child.info.run_id for child in below),
    )
