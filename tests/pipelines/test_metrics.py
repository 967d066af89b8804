"""The table of figures: all that a run logs are in it, and docs/mlflow.md says what each of it means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipelines.tracking.metrics import METRICS
from pipelines.tracking.metrics_file import read_records


def test_every_figure_of_a_run_is_in_the_table(train: Callable[..., Path]) -> None:
    logged = {name for record in read_records(train() / "metrics.jsonl") for name in record.metrics}
    on_gpus_alone = {"train/mfu", "train/share_of_matrix_rate"}
    of_labels_alone = {"train/error_rate", "validation/error_rate"}
    assert logged | on_gpus_alone | of_labels_alone == METRICS.keys()


def test_every_figure_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "mlflow.md").read_text("utf-8")
    assert all(f"`{name}`" in documented for name in METRICS)
