"""Norms over the last dimension: root mean square, and a head's length.

torch's norms are not fused on a CPU: their backward passes read and write whole activations ten times. In training on a CPU the
functions below take their place. In float32 each number is the same, bit by bit: a pass is left out where it only copies, doubles,
or spreads a number over a row. Letters: see layers.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from recur_models.layers import upcast

UNIT_EPS = 1e-6
"""Added to a head's sum of squares (Henry et al. 2020, as in the authors' code)."""


def trains_on_cpu(x: Tensor) -> bool:
    """Whether ``x`` is an activation of float32 (or float64) that gets a gradient on a CPU, not compiled."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def autocasts_to_bfloat16() -> bool:
    """Whether products on a CPU are in bfloat16 here."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def gradient_through_rsqrt(grad: Tensor, result: Tensor) -> Tensor:
    """The gradient of s, of that of ``result`` = 1 / √s."""
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
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:  # pyrefly: ignore
        normed, inverse = ctx.saved_tensors  # pyrefly: ignore
        along = (grad * normed).mean(-1, keepdim=True)
        return torch.addcmul(grad, normed, along, value=-1) * inverse, None


class _RMSNorm(torch.autograd.Function):
    """x / √(mean(x²) + eps) · scale. ``x`` is passed twice, as the factor and as what is squared: each has a gradient of its own.

    Autograd adds the two to that of the residual stream one after the other, as it does for torch's norm. One sum of both would
    be rounded otherwise.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, squared: Tensor, scale: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(squared.square().mean(-1, keepdim=True) + eps)
        normed = x * inverse
        ctx.save_for_backward(x, inverse, normed, scale)
        return normed * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:  # pyrefly: ignore
        x, inverse, normed, scale = ctx.saved_tensors  # pyrefly: ignore
        scale_grad = (grad * normed).sum_to_size(scale.shape) if ctx.needs_input_grad[2] else None  # pyrefly: ignore
        grad = grad * scale
        mean_grad = gradient_through_rsqrt((grad * x).sum(-1, keepdim=True), inverse)
        return grad * inverse, x * (2 * (mean_grad / x.shape[-1])), scale_grad, None


class _UnitNorm(torch.autograd.Function):
    """x · rsqrt(Σx² + eps) · factor, for heads x [..., H, n, E] and a factor of each head [H, 1, 1]."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_HnE: Tensor, factor_H11: Tensor | None) -> Tensor:
        inverse_Hn1 = torch.rsqrt(x_HnE.square().sum(-1, keepdim=True) + UNIT_EPS)
        total_Hn1 = inverse_Hn1 if factor_H11 is None else inverse_Hn1 * factor_H11
        ctx.save_for_backward(x_HnE, inverse_Hn1, total_Hn1, factor_H11)  # pyrefly: ignore
        return x_HnE * total_Hn1

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_HnE: Tensor) -> tuple[Tensor, Tensor | None]:  # pyrefly: ignore
        x_HnE, inverse_Hn1, total_Hn1, factor_H11 = ctx.saved_tensors  # pyrefly: ignore
        inverse_grad_Hn1 = (grad_HnE * x_HnE).sum(-1, keepdim=True)
        factor_grad_H11 = None
        if factor_H11 is not None:
            factor_grad_H11 = (inverse_grad_Hn1 * inverse_Hn1).sum_to_size(factor_H11.shape)
            inverse_grad_Hn1 = inverse_grad_Hn1 * factor_H11
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
    return _RMSNorm.apply(x, x, scale, eps)  # pyrefly: ignore


class RMSNorm(nn.Module):
    """Scale-only root-mean-square norm, computed in float32. ``groups``: equal parts of the width, each with a mean of its own.

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
        return _UnitNorm.apply(x_HnE, factor_H11)  # pyrefly: ignore
    total_Hn1 = torch.rsqrt(upcast(x_HnE).square().sum(-1, keepdim=True) + UNIT_EPS)
    if factor_H11 is not None:
        total_Hn1 = total_Hn1 * factor_H11
    return x_HnE * total_Hn1.to(x_HnE.dtype)
