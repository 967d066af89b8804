"""Attention, the chunked loss and the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from recur_models import IGNORED, MODELS, bfloat16_loss, losses, model_from_json
from recur_models.layers import MASKED, PositionBias, attend, softmax_product
from recur_models.sliding_window import SlideConfig
from tests.recur_models.small_models import RESTATEMENTS


@pytest.mark.parametrize("biased", [False, True])
def test_cross_entropy_in_chunks_and_whole_equals_the_plain_one(monkeypatch: pytest.MonkeyPatch, biased: bool) -> None:
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 7 * 13)  # 7 tokens at a time, the last chunk smaller
    monkeypatch.setattr(losses, "GRADIENT_TOKENS", 11)
    torch.manual_seed(0)
    hidden = torch.randn(30, 5, dtype=torch.double, requires_grad=True)
    weight = torch.randn(13, 5, dtype=torch.double, requires_grad=True)
    bias = torch.randn(13, dtype=torch.float, requires_grad=True) if biased else None
    targets = torch.randint(13, (30,))
    targets[4:9] = IGNORED
    upstream = torch.rand(30, dtype=torch.float32)
    learned = [hidden, weight, *([] if bias is None else [bias])]
    logits = hidden @ weight.T + (0 if bias is None else bias)
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    theirs = torch.autograd.grad((expected * upstream).sum(), learned)
    compiled = torch.compile(losses.whole_cross_entropy, backend="aot_eager", fullgraph=True, dynamic=False)
    for ours in (losses.chunked_cross_entropy, losses.whole_cross_entropy, compiled):
        nats = ours(hidden, weight, targets, bias)
        assert nats.dtype == torch.float32
        torch.testing.assert_close(nats, expected.float(), rtol=1e-6, atol=1e-6)
        for a, b in zip(torch.autograd.grad((nats * upstream).sum(), learned), theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_cross_entropy_in_bfloat16_is_near_that_of_float32(
    monkeypatch: pytest.MonkeyPatch, kept: bool, biased: bool
) -> None:
    monkeypatch.setattr(losses, "KEPT_ELEMENTS", 30 * 13 if kept else 30 * 13 - 1)
    monkeypatch.setattr(bfloat16_loss, "SOFTMAX_ELEMENTS", 7 * 13)
    monkeypatch.setattr(bfloat16_loss, "PRODUCT_TOKENS", 11)
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 7 * 13)
    monkeypatch.setattr(losses, "GRADIENT_TOKENS", 11)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(30, 5, generator=generator).requires_grad_()
    weight = torch.randn(13, 5, generator=generator).requires_grad_()
    bias = torch.randn(13, generator=generator).requires_grad_() if biased else None
    targets = torch.randint(13, (30,), generator=generator)
    targets[4:9] = IGNORED
    upstream = torch.rand(30, generator=generator)
    learned = [hidden, weight, *([] if bias is None else [bias])]
    exact = losses.chunked_cross_entropy(hidden, weight, targets, bias)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses.chunked_cross_entropy(hidden, weight, targets, bias)
        with torch.no_grad():
            scored = losses.chunked_cross_entropy(hidden, weight, targets, bias)
    assert found.dtype == torch.float32
    assert (type(found.grad_fn).__name__ == "KeptCrossEntropyBackward") is kept
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(scored, found, rtol=1e-6, atol=1e-6)
    assert not found[4:9].any() and not scored[4:9].any()
    gradients = torch.autograd.grad((found * upstream).sum(), learned, retain_graph=True)
    again = torch.autograd.grad((found * upstream).sum(), learned)
    for ours, repeated, wanted in zip(
        gradients, again, torch.autograd.grad((exact * upstream).sum(), learned), strict=True
    ):
        assert ours.dtype == torch.float32 and torch.equal(ours, repeated)
        assert (ours - wanted).norm() <= 0.02 * wanted.norm()
    assert not torch.equal(gradients[1], gradients[1].bfloat16().float())  # the weight's is not rounded on its way


def test_a_kept_cross_entropy_makes_its_logits_once() -> None:
    hidden = torch.randn(6, 5, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(13, 5, dtype=torch.bfloat16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses.chunked_cross_entropy(hidden, weight, torch.arange(6)).sum().backward()
    # The logits, and the gradient of the hidden states.
    assert {event.key: event.count for event in profile.key_averages()}["aten::mm"] == 2
    assert hidden.grad is not None and hidden.grad.any()


def test_gradients_do_not_depend_on_what_memory_held() -> None:
    """In deterministic mode torch fills new memory with NaN, which AMX's products would read between the rows of logits."""
    hidden = torch.randn(64, 32, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(13, 32, dtype=torch.bfloat16, requires_grad=True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        losses.chunked_cross_entropy(hidden, weight, torch.arange(64) % 13).sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    assert hidden.grad is not None and weight.grad is not None
    assert hidden.grad.isfinite().all() and weight.grad.isfinite().all()


@pytest.mark.parametrize("target", [-100, -2, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_target_that_is_no_id_is_refused(target: int, dtype: torch.dtype) -> None:
    hidden = torch.randn(2, 5, dtype=dtype)
    weight = torch.randn(13, 5, dtype=dtype)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        losses.chunked_cross_entropy(hidden, weight, torch.tensor([3, target]))


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    hidden = torch.randn(6, 5, requires_grad=True)
    weight = torch.randn(13, 5)
    nats = losses.chunked_cross_entropy(hidden, weight, torch.arange(6))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        nats.sum().backward()
    # The logits once more, and the gradient of the hidden states.
    assert {event.key: event.count for event in profile.key_averages()}["aten::mm"] == 2
    assert hidden.grad is not None and hidden.grad.any()


def test_a_gpu_makes_the_papers_logits_in_eight_chunks_or_compiled_at_once() -> None:
    with FakeTensorMode():
        hidden = torch.empty(32 * 4096, 1024, device="cuda")
        assert len(losses._chunks(hidden, 32_000)) == 8 and losses.WHOLE_ELEMENTS >= 32 * 4096 * 32_000
        assert len(losses._chunks(hidden.cpu(), 32_000)) > 1000


def test_position_buckets_are_t5s() -> None:
    distances = torch.tensor([0, 1, 15, 16, 17, 20, 31, 32, 64, 127, 128, 5000])
    assert PositionBias.bucket(distances).tolist() == [0, 1, 15, 16, 16, 17, 21, 21, 26, 31, 31, 31]


@pytest.mark.parametrize(("rows", "columns", "before"), [(5, 10, 5), (7, 7, 0), (1, 4, 3), (40, 80, 40)])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_bias_by_diagonals_is_the_bias_of_each_pair(rows: int, columns: int, before: int, scaled: bool) -> None:
    bias = PositionBias(3).double()
    factor_H = torch.tensor([0.5, 2, 3], dtype=torch.float64, requires_grad=True)
    distance_WZ = torch.arange(rows)[:, None] + before - torch.arange(columns)
    weight_HWZ = torch.randn(3, rows, columns, dtype=torch.float64)
    learned = [bias.table_HN, *([factor_H] if scaled else [])]
    found = []
    for way in (bias.forward, bias.by_diagonals):
        bias_HWZ = way(bias.bucket(distance_WZ), factor_H if scaled else None)
        found.append((bias_HWZ, *torch.autograd.grad((bias_HWZ * weight_HWZ).sum(), learned)))
    (one, *gradients), (other, *others) = found
    assert torch.equal(one, other)
    for gradient, by_diagonals in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, by_diagonals)


@pytest.mark.parametrize("masked", [False, True])
def test_compiled_attention_weighs_as_softmax_does(masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_nm = 30 * torch.randn(2, 4, 6, generator=generator, dtype=torch.double)
    logits_nm[0, 1] = MASKED  # a query that sees nothing
    logits_nm.requires_grad_()
    v_mE = torch.randn(2, 6, 3, generator=generator, dtype=torch.double, requires_grad=True)
    factors_nm = 2.0 * (torch.rand(4, 6, generator=generator) < 0.5) if masked else None
    compiled = torch.compile(softmax_product, backend="eager", dynamic=False)
    found = []
    for way in (softmax_product, compiled):
        out = way(logits_nm, v_mE, factors_nm)
        found.append([out, *torch.autograd.grad(out.square().sum(), [logits_nm, v_mE])])
    for one, other in zip(*found, strict=True):
        assert not torch.equal(one, other)  # it goes another way
        torch.testing.assert_close(one, other)


def test_a_config_is_read_as_it_was_written() -> None:
    for config in (
        SlideConfig(dropout=0.1),
        SlideConfig(dropout=0.0),
        SlideConfig(dropout=0.1, dropout_places="usual"),
    ):
        assert model_from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="the model 'slide' has no field 'sight': use the version that wrote it"):
        model_from_json({**SlideConfig().to_json(), "sight": 2})


def test_the_registry_knows_every_model_by_its_name() -> None:
    assert set(MODELS) == set(RESTATEMENTS)
    assert all(config.name == name for name, config in MODELS.items())


@pytest.mark.parametrize("absent", [None, [True, False]])
def test_attention_in_bfloat16_on_a_cpu_is_that_of_float32_without_the_slow_kernel(absent: list[bool] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator).bfloat16().requires_grad_() for n in (4, 6, 6))
    absent_B = None if absent is None else torch.tensor(absent)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = attend(q, k, v, absent_B)
    exact = attend(q.float(), k.float(), v.float(), absent_B)
    torch.testing.assert_close(found.float(), exact, atol=0.03, rtol=0.03)
    for gradient, wanted in zip(
        torch.autograd.grad(found.float().sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, atol=0.1, rtol=0.03)
    assert not [event.key for event in profile.key_averages() if "scaled_dot_product" in event.key]


def test_the_architecture_lists_every_module() -> None:
    root = Path(__file__).parents[2]
    section = (root / "docs" / "architecture.md").read_text("utf-8").partition("## The modules of the models")[2]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    assert sorted(listed) == sorted(
        path.stem for path in (root / "recur_models").glob("*.py") if path.stem != "__init__"
    )
