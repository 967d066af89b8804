"""RMSNorm, and L2 normalisation of queries and keys.

torch does not fuse norms on a CPU. For eager training there, in float32 or float64, this module has norms of its own: their
backward passes leave out operations that only copy, double or spread numbers. Results and gradients equal torch's bit for bit.
Under bfloat16 autocast, `rms_norm` gives bfloat16. Letters: see layers.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from recur_models.layers import autocasts_to_bfloat16, refuse_second_derivatives, upcast, with_signature

UNIT_EPS = 1e-6
"""Added to a head's sum of squares (Henry et al. 2020, as in the authors' code)."""


def trains_on_cpu(x: Tensor) -> bool:
    """Whether the backward passes below apply: ``x`` is a float32 or float64 tensor on a CPU that requires grad, in eager mode."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / √(mean(x²) + eps) over the last dimension: [..., 1]."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def inverse_length(x: Tensor) -> Tensor:
    """rsqrt(Σx² + 1e-6) over the last dimension, in float32 at least: [..., 1]."""
    return torch.rsqrt(upcast(x).square().sum(-1, keepdim=True) + UNIT_EPS)


def gradient_through_rsqrt(grad: Tensor, result: Tensor) -> Tensor:
    """The gradient with respect to s, given ``grad``, that with respect to ``result`` = 1 / √s."""
    return -0.5 * grad * result.pow(3)


class _NormToBfloat16(torch.autograd.Function):
    """x / √(mean(x²) + eps) over the last dimension: float32 in, bfloat16 out. Elementwise work is done once in each direction."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.rsqrt(norm.square() / x.shape[-1] + eps)
        normed = (x * inverse).bfloat16()
        ctx.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:  # pyrefly: ignore
        refuse_second_derivatives("train in float32")
        normed, inverse = ctx.saved_tensors  # pyrefly: ignore
        along = (grad * normed).mean(-1, keepdim=True)
        return torch.addcmul(grad, normed, along, value=-1) * inverse, None


class _RMSNorm(torch.autograd.Function):
    """x / √(mean(x²) + eps) · scale; also x / √(mean(x²) + eps), and 1 / √(mean(x²) + eps).

    The caller passes x twice, as ``x`` and as ``squared``. Autograd then adds their gradients to that of the residual stream one
    after the other, as it does for torch's norm. Their sum, made here, would round differently.
    """

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(x: Tensor, squared: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # pyrefly: ignore
        inverse = inverse_rms(squared, eps)
        normed = x * inverse
        return normed * scale, normed, inverse

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: tuple) -> None:  # pyrefly: ignore
        x, _, scale, ctx.eps = inputs  # pyrefly: ignore
        _, normed, inverse = output
        ctx.mark_non_differentiable(normed, inverse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, scale, normed, inverse)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # pyrefly: ignore
        if grad is None:
            return None, None, None, None
        x, scale, normed, inverse = ctx.saved_tensors  # pyrefly: ignore
        if torch.is_grad_enabled():  # a second derivative, to which what was saved would be constants
            inverse = inverse_rms(x, ctx.eps)  # pyrefly: ignore
            normed = x * inverse
        scale_grad = (grad * normed).sum_to_size(scale.shape) if ctx.needs_input_grad[2] else None  # pyrefly: ignore
        grad = grad * scale
        mean_grad = gradient_through_rsqrt((grad * x).sum(-1, keepdim=True), inverse)
        return grad * inverse, x * (2 * (mean_grad / x.shape[-1])), scale_grad, None


class _UnitNorm(torch.autograd.Function):
    """x · rsqrt(Σx² + eps) · factor, for heads x [..., H, n, E] and a factor of each head [H, 1, 1]; also rsqrt(Σx² + eps)."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(x_HnE: Tensor, factor_H11: Tensor | None) -> tuple[Tensor, Tensor]:  # pyrefly: ignore
        inverse_Hn1 = inverse_length(x_HnE)
        return x_HnE * (inverse_Hn1 if factor_H11 is None else inverse_Hn1 * factor_H11), inverse_Hn1

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: tuple) -> None:  # pyrefly: ignore
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: FunctionCtx, grad_HnE: Tensor | None, _: None) -> tuple[Tensor | None, ...]:  # pyrefly: ignore
        if grad_HnE is None:
            return None, None
        x_HnE, factor_H11, inverse_Hn1 = ctx.saved_tensors  # pyrefly: ignore
        if torch.is_grad_enabled():  # as above
            inverse_Hn1 = inverse_length(x_HnE)
        inverse_grad_Hn1 = (grad_HnE * x_HnE).sum(-1, keepdim=True)
        total_Hn1 = inverse_Hn1
        factor_grad_H11 = None
        if factor_H11 is not None:
            if ctx.needs_input_grad[1]:  # pyrefly: ignore
                factor_grad_H11 = (inverse_grad_Hn1 * inverse_Hn1).sum_to_size(factor_H11.shape)
            inverse_grad_Hn1 = inverse_grad_Hn1 * factor_H11
            total_Hn1 = inverse_Hn1 * factor_H11
        sum_grad_Hn1 = gradient_through_rsqrt(inverse_grad_Hn1, inverse_Hn1)
        return (grad_HnE * total_Hn1).add_(x_HnE * (2 * sum_grad_Hn1)), factor_grad_H11


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · scale over the last dimension.

    In training under autocast on a CPU it gives bfloat16, which the products after it need.
    """
    if not trains_on_cpu(x):
        return F.rms_norm(x, scale.shape, scale, eps)
    if x.dtype == torch.float32 and autocasts_to_bfloat16():
        return _NormToBfloat16.apply(x, eps) * scale.bfloat16()  # pyrefly: ignore
    return _RMSNorm.apply(x, x, scale, eps)[0]  # pyrefly: ignore


class RMSNorm(nn.Module):
    """RMSNorm with a scale and no bias. Its mean square is in float32, or in float64 for float64 inputs. ``groups``: equal parts of
    the width, each with a mean of its own.

    Without groups, in training under autocast on a CPU it gives bfloat16 (`rms_norm`).
    """

    def __init__(self, width: int, eps: float = 1e-6, groups: int = 1):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.to(x.dtype)
        if self.groups == 1:
            return rms_norm(x, scale, self.eps)
        each = x.unflatten(-1, (self.groups, -1))
        return F.rms_norm(each, each.shape[-1:], eps=self.eps).flatten(-2) * scale


def unit_norm(x_HnE: Tensor, scale_H: Tensor | None = None) -> Tensor:
    """Query-key normalisation: x · rsqrt(Σx² + 1e-6) over the head (Henry et al. 2020, as in the authors' code).

    ``scale_H``: multiplies each head by |scale|, for queries: the learned temperature of normalised attention.
    """
    factor_H11 = None if scale_H is None else scale_H.abs()[:, None, None]
    if trains_on_cpu(x_HnE):
        return _UnitNorm.apply(x_HnE, factor_H11)[0]  # pyrefly: ignore
    total_Hn1 = inverse_length(x_HnE)
    if factor_H11 is not None:
        total_Hn1 = total_Hn1 * factor_H11
    return x_HnE * total_Hn1.to(x_HnE.dtype)
