"""The table of metrics: all that a run logs are in it, and docs/mlflow.md says what each of it means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_metric

from common.errors import UserError
from pipelines.tracking.metrics import METRICS, Metric
from pipelines.tracking.metrics_file import parse_record, read_records


def test_every_metric_of_a_run_is_in_the_table(train: Callable[..., Path]) -> None:
    logged = {name for record in read_records(train() / "metrics.jsonl") for name in record.metrics}
    on_gpus_alone = {"train/mfu", "train/share_of_matrix_rate"}
    of_labels_alone = {"train/error_rate", "validation/error_rate"}
    assert logged | on_gpus_alone | of_labels_alone == METRICS.keys()


@pytest.mark.parametrize("step", ["Infinity", "1" * 500, "[" * 100_000, "null", '{"a": 1}', '"many"'])
def test_a_line_that_is_no_record_is_none(step: str) -> None:
    assert parse_record(f'{{"step": {step}, "time": 1, "metrics": {{"a": 1}}}}') is None or step == "1" * 500
    assert parse_record(f'{{"step": 1, "time": 1, "metrics": {{"a": {step}}}}}') is None or step == "Infinity"


@pytest.mark.parametrize(
    "name",
    [
        "validation/perplexity",
        "a b:c-d.e/f",
        "ä",
        "top-5 (%)",
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "..",
        ".",
        ".a",
        "..a",
        "a" * 251,
    ],
)
def test_a_name_that_mlflow_does_not_take_is_refused(name: str) -> None:
    def refused(check: Callable[[], object]) -> bool:
        try:
            check()
        except (MlflowException, UserError):
            return True
        return False

    assert refused(lambda: Metric(name, "", "")) == refused(lambda: _validate_metric(name, 1.0, 1, 1))


def test_every_metric_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "mlflow.md").read_text("utf-8")
    assert all(f"`{name}`" in documented for name in METRICS)
