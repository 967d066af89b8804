"""What the benchmark of GPT-2's memory weighs, against sizes known beforehand, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.contenders import LANES
from benchmarks.gpt2_memory import BenchConfig, growth, weigh
from benchmarks.kept import kept_bytes
from common.errors import UserError

SMALL: dict[str, Any] = {"window": 8, "d_model": 32, "layers": 2, "heads": 1, "rounds": 2}


def test_memory_is_counted_once_and_only_what_is_new() -> None:
    layer, x = torch.nn.Linear(10, 20), torch.randn(6, 10)
    assert kept_bytes(lambda: layer(x)) == 6 * 20 * 4
    assert kept_bytes(lambda: layer(x[:3]).exp()) == 3 * 20 * 4
    assert kept_bytes(lambda: (layer(x) * 2).sin()) == 2 * 6 * 20 * 4  # what the sine was of, and what is returned


def test_recomputed_a_window_more_keeps_what_it_leaves() -> None:
    rows = [weigh(BenchConfig(**SMALL), windows) for windows in (2, 6)]
    left, ids, random = 4 * 32, 8 * (8 + 4), torch.get_rng_state().nbytes / LANES
    assert left <= growth(rows, "block") - random <= left + ids + 64
    assert growth(rows, "nothing") > 20 * left
    assert all(row.ideal > 1 and len(row.ratios) == 1 for row in rows)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"windows": (5,)}, "two numbers"), ({"windows": (0, 5)}, "1 or more"), ({"rounds": 1}, "2 or more")],
)
def test_what_would_fail_after_minutes_is_refused_at_once(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        BenchConfig(**options)
