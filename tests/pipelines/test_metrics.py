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


NO_NUMBERS = ["[" * 100_000, "null", '{"a": 1}', '"many"']


@pytest.mark.parametrize("step", [*NO_NUMBERS, "Infinity"])
def test_a_line_without_a_step_is_no_record(step: str) -> None:
    assert parse_record(f'{{"step": {step}, "time": 1, "metrics": {{"a": 1}}}}') is None


@pytest.mark.parametrize("value", [*NO_NUMBERS, "1" * 500])
def test_a_line_without_a_number_for_a_metric_is_no_record(value: str) -> None:
    assert parse_record(f'{{"step": 1, "time": 1, "metrics": {{"a": {value}}}}}') is None


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
def test_a_name_is_refused_where_mlflow_refuses_it(name: str) -> None:
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
