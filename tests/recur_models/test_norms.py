"""Norms, and keys behind those of the block before: written by hand for a training on a CPU, the same as by torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recur_models.layers import split_heads
from recur_models.mixers import MixersConfig
from recur_models.norms import RMSNorm, rms_norm, unit_norm
from recur_models.protocol import ModelConfig
from recur_models.sliding_window import SlideConfig
from recur_models.window import with_previous


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The function's value, and the gradients of all inputs under one random gradient of the value."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    upstream = torch.randn(value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(1))
    return [value, *torch.autograd.grad(value, leaves, upstream)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 3, 8, 64), (2, 130, 50)])
def test_the_rms_norm_before_a_residual_is_torchs_bit_by_bit(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, scale = torch.randn(shape, generator=generator), torch.randn(shape[-1], generator=generator)
    ours = gradients(lambda x, scale: x + rms_norm(x, scale, 1e-6), x, scale)
    assert_equal(ours, gradients(lambda x, scale: x + F.rms_norm(x, scale.shape, scale, 1e-6), x, scale))


def test_a_norm_with_a_frozen_scale_has_torchs_gradient() -> None:
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    scale = torch.full((16,), 1.5)
    ours = gradients(lambda x: rms_norm(x, scale, 1e-6), x)
    assert_equal(ours, gradients(lambda x: F.rms_norm(x, (16,), scale, 1e-6), x))


def test_the_unit_norm_of_heads_is_that_of_torchs_operations_bit_by_bit() -> None:
    def plain(x: Tensor, scale_H: Tensor | None = None) -> Tensor:
        factor = torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
        return x * (factor if scale_H is None else factor * scale_H.abs()[:, None, None])

    generator = torch.Generator().manual_seed(0)
    x, scale_H = torch.randn(2, 3, 8, 48, generator=generator), torch.randn(4, generator=generator)
    for arguments in ([x], [x, scale_H]):
        ours, theirs = (gradients(lambda x, *s, f=f: f(split_heads(x, 4), *s), *arguments) for f in (unit_norm, plain))
        assert_equal(ours, theirs)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_keys_behind_the_block_before_are_those_joined_by_torchs_operations(
    blocks: int, detached: bool, compiled: bool
) -> None:
    def plain(x: Tensor, cache: Tensor) -> Tensor:
        before = torch.cat([cache[:, None], x[:, :-1]], 1)
        before = (before.detach() if detached else before).masked_fill(fresh[:, :, None, None, None], 0.0)
        return torch.cat([before, x], 3) + 0 * cache.sum()  # so that the cache has a gradient, be it zero

    generator = torch.Generator().manual_seed(0)
    fresh = torch.tensor([[True, False, False], [False, False, True]])[:, :blocks]
    x, cache = torch.randn(2, blocks, 2, 4, 5, generator=generator), torch.randn(2, 2, 4, 5, generator=generator)
    join = torch.compile(with_previous, backend="eager", dynamic=False) if compiled else with_previous
    ours = gradients(lambda x, cache: join(x, cache, fresh, detached) + 0 * cache.sum(), x, cache)
    assert_equal(ours, gradients(plain, x, cache))


def test_second_derivatives_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)

    def doubles(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.double, generator=generator).requires_grad_()

    fresh = torch.tensor([[True, False, False], [False, False, True]])
    for function, inputs in [
        (lambda x, scale: x + rms_norm(x, scale, 1e-6), [doubles(3, 4), doubles(4)]),
        (unit_norm, [doubles(2, 3, 4), doubles(2)]),
        (unit_norm, [doubles(2, 3, 4)]),
        (lambda x, cache: with_previous(x, cache, fresh).square(), [doubles(2, 3, 1, 2, 2), doubles(2, 1, 2, 2)]),
    ]:
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


TORCH_FUNC: dict[str, ModelConfig] = {
    "slide": SlideConfig(layers=2, d_model=16, heads=2, head_dim=8, mlp_dim=16, window=8, dropout=0.0),
    "mixers": MixersConfig(
        ("delta", "mamba2", "rwkv7"), d_model=16, heads=2, key_dim=4, value_dim=4, mlp_dim=8, window=8, chunk=4
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", TORCH_FUNC)
def test_gradients_of_each_lane_by_torch_func_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    model = TORCH_FUNC[name].build(vocab_size=11)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    tokens_LT = torch.randint(11, (3, 16))

    def loss(weights: dict[str, Tensor], tokens_T: Tensor) -> Tensor:
        fresh_1K = torch.zeros(1, 2, dtype=torch.bool)
        logits, _ = torch.func.functional_call(model, weights, (tokens_T[None], model.initial_state(1), fresh_1K))
        return logits.square().mean()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, tokens_LT)
    for lane, tokens_T in enumerate(tokens_LT):
        wanted = torch.autograd.grad(loss(dict(model.named_parameters()), tokens_T), list(model.parameters()))
        for name, gradient in zip(weights, wanted, strict=True):
            torch.testing.assert_close(found[name][lane], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["loss", "bfloat16", "slstm"])
def test_second_derivatives_that_are_not_there_are_refused(kind: str) -> None:
    sizes: Any = {"layers": ("slstm",), "d_model": 16, "heads": 2, "mlp_dim": 16, "dropout": 0.0, "chunk": 8}
    config = MixersConfig(**sizes) if kind == "slstm" else SlideConfig(1, 16, heads=2, head_dim=8, mlp_dim=16, window=8)
    model = config.build(vocab_size=11)
    tokens_BT = torch.randint(11, (1, 2 * config.block))
    fresh_BK = torch.zeros(1, 2, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16"):
        out, _ = model(tokens_BT, model.initial_state(1), fresh_BK, tokens_BT if kind == "loss" else None)
    with pytest.raises(NotImplementedError, match="has no derivatives of its own: "):
        torch.autograd.grad(out.float().square().mean(), model.embedding.weight, create_graph=True)


def test_the_norm_of_a_training_in_bfloat16_on_a_cpu_is_that_of_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 96, generator=generator).requires_grad_()
    upstream = torch.randn(4, 96, generator=generator)
    norm = RMSNorm(96)
    torch.nn.init.uniform_(norm.scale, 0.5, 1.5, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(x)
        unrecorded = norm(x.detach())
    exact = norm(x)
    assert (found.dtype, unrecorded.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(found.float(), exact, atol=0.02, rtol=0.02)
    gradients = torch.autograd.grad(found, (x, norm.scale), upstream.bfloat16())
    for gradient, wanted in zip(gradients, torch.autograd.grad(exact, (x, norm.scale), upstream), strict=True):
        torch.testing.assert_close(gradient, wanted, atol=0.05, rtol=0.03)
