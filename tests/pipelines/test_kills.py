"""A preparation that is killed again and again ends in the bytes of an undisturbed one. The long form is a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.prepare_kills import BenchConfig, run


@pytest.mark.ray
@pytest.mark.long
def test_killed_at_a_random_moment(tmp_path: Path) -> None:
    outcome = run(BenchConfig(kills=1, parts=40), tmp_path)
    assert outcome.kills.total() == 1 and outcome.stores >= 1
