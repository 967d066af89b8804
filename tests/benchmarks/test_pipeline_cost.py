"""What keeps the cost of the pipeline from being measured is told before any process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import pipeline_cost
from common.errors import UserError


def test_a_store_or_a_preset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"python-source"):
        pipeline_cost.main(["--store", str(tmp_path)])
    with pytest.raises(UserError, match="demo-rec"):
        pipeline_cost.main(["--store", str(tmp_path), "--preset", "demo-re"])
