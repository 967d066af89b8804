"""MFU's arithmetic."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest
import torch

from pipelines.presets import PRESETS
from pipelines.training import utilisation
from pipelines.training.utilisation import Speed, collected_by_hand, fastest_tokens, matrix_rate, peak_rate
from pipelines.training.world import World
from recur_models import VanillaConfig


def test_the_flops_of_a_token_are_those_of_its_products() -> None:
    model = VanillaConfig(layers=1, d_model=8, heads=1, head_dim=8, mlp_dim=16, window=4, dropout=0.0)
    weights = 3 * 8 * 8 + 8 * 8 + 2 * 8 * 16 + 8 * 10  # keys, values, queries; output; MLP; logits of 10 ids
    seen = (1 + 2 + 3 + 4) / 4  # keys that a token sees, on average
    flops = 3 * (2 * weights + 4 * 8 * seen)
    assert model.costs(10).training_flops_per_token == pytest.approx(flops)


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


def test_garbage_is_collected_by_hand_alone() -> None:
    seen: list[str] = []
    gc.callbacks.append(lambda phase, _: seen.append(phase))
    try:
        with collected_by_hand():
            gc_of_before = len(seen)
            kept = [[number] for number in range(100_000)]  # many times what Python collects after
            assert len(seen) == gc_of_before and len(kept) == 100_000
            gc.collect()
            assert len(seen) == gc_of_before + 2
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()


def test_measuring_the_rate_leaves_the_generator_as_it_was() -> None:
    """It stands where a resumed run has put it: dropout draws from there."""
    before = torch.get_rng_state()
    matrix_rate(torch.device("cpu"), torch.float32, size=16)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cpu_has_no_mfu() -> None:
    assert fastest_tokens(PRESETS["demo-rec"], World.alone(), 257, torch.float32) == {}


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", (312, 19.5)),
        ("NVIDIA A100 80GB PCIe", (312, 19.5)),
        ("NVIDIA H100 80GB HBM3", (989, 67)),
        ("NVIDIA H100 PCIe", (756, 51)),
        ("NVIDIA H200", (989, 67)),
        ("NVIDIA L4", (121, 30.3)),
        ("NVIDIA L40S", (362, 91.6)),
        ("NVIDIA A10", (125, 31.2)),
        ("NVIDIA A10G", (70, 31.5)),
        ("NVIDIA GeForce RTX 4090", (165.2, 82.6)),
        ("Tesla V100-SXM2-16GB", (None, 15.7)),  # no bfloat16
        ("Tesla T4", (None, 8.1)),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (None, None)),  # a part of one
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (None, None)),
        ("A card of next year", (None, None)),
    ],
)
def test_a_peak_is_the_data_sheets(name: str, teraflops: tuple[float | None, float | None]) -> None:
    for dtype, expected in zip((torch.bfloat16, torch.float32), teraflops, strict=True):
        assert peak_rate(name, dtype) == (expected and pytest.approx(expected * 1e12))
    assert not torch.backends.cuda.matmul.allow_tf32  # float32 is float32, unless someone says so


def test_shares_are_of_the_speed_and_pauses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    speed = Speed(torch.device("cpu"), {"mfu": 4000.0, "share_of_matrix_rate": 2000.0}, tokens=700)
    now[0] += 0.05
    with speed.paused():
        now[0] += 0.3
    metrics = speed.metrics(800)
    assert metrics == pytest.approx({"tokens_per_second": 2000, "mfu": 0.5, "share_of_matrix_rate": 1})
    now[0] += 0.1
    assert speed.metrics(900)["tokens_per_second"] == pytest.approx(1000)


def test_workers_that_share_a_gpu_have_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(utilisation, "peak_rate", lambda name, dtype: 1e15)
    monkeypatch.setattr(utilisation, "matrix_rate", lambda device, dtype: 5e14)
    whole = PRESETS["demo-rec"]
    half = replace(whole, placement=replace(whole.placement, gpus=0.5))
    alone, shared = (
        fastest_tokens(run, World(0, size, torch.device("cuda")), 257, torch.float32)
        for run, size in ((whole, 1), (half, 2))
    )
    assert alone == pytest.approx(shared) and alone["mfu"] == 2 * alone["share_of_matrix_rate"]
