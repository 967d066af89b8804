"""MFU's arithmetic."""

from __future__ import annotations

import time

import pytest
import torch

from pipelines.loop import fastest_tokens
from pipelines.presets import PRESETS
from pipelines.utilisation import fastest_tokens_per_second, matrix_rate
from pipelines.world import World
from recur_models import VanillaConfig


def test_the_fastest_speed_is_the_rate_over_the_flops_of_a_token() -> None:
    model = VanillaConfig(layers=1, d_model=8, heads=1, head_dim=8, mlp_dim=16, window=4, dropout=0.0)
    weights = 3 * 8 * 8 + 8 * 8 + 2 * 8 * 16 + 8 * 10  # keys, values, queries; output; MLP; logits of 10 ids
    seen = (1 + 2 + 3 + 4) / 4  # keys that a token sees, on average
    flops = 3 * (2 * weights + 4 * 8 * seen)
    assert fastest_tokens_per_second(model, 10, rate=1e9) == pytest.approx(1e9 / flops)
    assert fastest_tokens_per_second(model, 10, rate=1e9, devices=4) == pytest.approx(4e9 / flops)


def test_the_matrix_rate_is_that_of_a_product() -> None:
    a, b = torch.randn(2, 384, 384)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    rate = matrix_rate(torch.device("cpu"), torch.float32, size=384)
    assert rate <= 3 * 2 * 384**3 / min(seconds)
    assert rate >= 2 * 384**3 / max(seconds) / 20


def test_a_cpu_has_no_mfu() -> None:
    assert fastest_tokens(PRESETS["demo-rec"], World.current(), 257) is None
