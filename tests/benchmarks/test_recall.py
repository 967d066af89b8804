"""The recall benchmark: what it refuses, and its table and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.recall import RecallConfig, plot, table
from common.errors import UserError
from studies.recall import Recall


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"presets": ("recal-rec",)}, "did you mean 'recall-rec'"),
        ({"distances": (0, 4)}, r"distances are \(0, 4\): give some of 1, 2, .*, 24"),
        ({"distances": ()}, r"distances are \(\)"),
        ({"at_once": 0}, "--at-once is 0"),
    ],
)
def test_senseless_options_are_told_of(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        RecallConfig(**wrong)


def test_a_model_without_states_has_no_column_of_cleared_ones(tmp_path: Path) -> None:
    results = {
        "recall-rec": {1: Recall(1.0, 1.0, 0.25, 0.5), 10: Recall(0.9, 0.95, 0.0, 0.13)},
        "recall-slide": {1: Recall(1.0, 1.0), 10: Recall(0.0, 0.14)},
    }
    columns, rows = table(results)
    assert columns == ["windows", "recall-rec", "recall-rec, states cleared", "recall-slide"]
    assert rows == [["1", "100 (100)", "25 (50)", "100 (100)"], ["10", "90 (95)", "0 (13)", "0 (14)"]]
    plot(results, 3, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").stat().st_size > 10_000
