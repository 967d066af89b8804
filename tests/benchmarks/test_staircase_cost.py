"""What the benchmark of passes refuses before it times anything."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.staircase_cost import BenchConfig, models
from common.errors import UserError


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"passes": (2, 4)}, "--passes 1 2 4"),
        ({"passes": (1,)}, "--passes 1 2 4"),
        ({"rounds": 2}, "3 or more"),
        ({"chunk": 0}, "1 or more"),
        ({"span": 100}, "a multiple of 64"),
        ({"chunk": 4, "segment": 40}, "a multiple of 32"),
    ],
)
def test_what_would_fail_after_minutes_is_refused_at_once(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        BenchConfig(**options)


def test_every_contender_can_read_the_segment_and_half_of_it() -> None:
    config = BenchConfig(chunk=4, span=8, segment=32)
    assert all(config.segment // 2 % model.block == 0 for model in models(config).values())
