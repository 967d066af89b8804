"""Parts that models of all kinds share: initialisers, position bias, rotary positions, heads, attention. Norms: norms.py.

Letters: B lanes · T tokens · K blocks · W window (= block) · Z keys that a block sees (2W) · S states · D width ·
H heads · E head size · F MLP hidden size.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

MASKED = -3e4
"""The logit of a key that may not be seen: its weight is 0 in every dtype, and float16 still holds it (not the authors' -1e6)."""


def truncated_normal_(tensor: Tensor, fan_in: int, scale: float = 1.0) -> Tensor:
    """Variance scaling: a normal truncated at ±2σ, whose standard deviation after truncation is √(scale / fan_in)."""
    std = math.sqrt(scale / fan_in) / 0.87962566103423978  # standard deviation of N(0, 1) truncated at ±2
    return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)


def linear(fan_in: int, fan_out: int, *, scale: float = 1.0, bias_std: float | None = None) -> nn.Linear:
    """A projection with truncated-normal weights. It has a bias, drawn from N(0, bias_std²), only if ``bias_std`` is given."""
    layer = nn.Linear(fan_in, fan_out, bias=bias_std is not None)
    truncated_normal_(layer.weight.data, fan_in, scale)
    if bias_std is not None:
        nn.init.normal_(layer.bias, std=bias_std)
    return layer


def upcast(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 if that is its dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocasts_to_bfloat16() -> bool:
    """Whether products on a CPU are in bfloat16 here."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def with_signature(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the signature of a Function's ``forward``. torch asks `inspect` for it at each call, which takes as long as a small
    operation where it is not kept.
    """
    forward.__signature__ = inspect.signature(forward)  # pyrefly: ignore
    return forward


def refuse_second_derivatives(remedy: str) -> None:
    """Raises NotImplementedError in a backward pass that autograd records: of numbers that forward saved, it would take the
    derivatives to be zero, without an error. ``remedy``: what the caller can do.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise NotImplementedError(f"this backward pass has no derivatives of its own: {remedy}")


def float32_zeros(like: Tensor | None, needed: bool) -> Tensor | None:
    """Zeros of a tensor's shape, to which a backward pass adds gradients; None where none are needed."""
    return torch.zeros_like(like, dtype=torch.float32) if needed and like is not None else None


def slices(total: int, size: int) -> list[slice]:
    """The parts of a range, each ``size`` long but for the last."""
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def is_plain(layer: nn.Module) -> bool:
    """Whether a projection is a bare nn.Linear. One that is quantised, or wrapped by a LoRA adapter, must be called: its weight
    alone does not give its output.
    """
    return type(layer) is nn.Linear


def linear_part(layer: nn.Module, x: Tensor, part: slice) -> Tensor:
    """``layer(x)[..., part]``, for a projection without bias. A plain layer computes only that part."""
    if is_plain(layer):
        return F.linear(x, layer.weight[part])  # pyrefly: ignore
    return layer(x[None])[0, ..., part]  # a quantised layer reads no single vector


def shift_rows(x_nP: Tensor, first: int, keys: int) -> Tensor:
    """Each row r of x from column ``first`` − r on: [..., n, keys], each row moved by one against the next.

    No index is made: rows of P numbers are read as rows of P − 1 (Dai et al. 2019, arXiv 1901.02860, Appendix B). ``first`` is at
    most n, and P more than ``keys``. Where a row would begin before its first column or end after its last one, it continues with
    numbers of the row above or below it.
    """
    rows, columns = x_nP.shape[-2:]
    moved = x_nP.flatten(-2)[..., first : first + rows * (columns - 1)]
    return moved.unflatten(-1, (rows, columns - 1))[..., :keys]


class PositionBias(nn.Module):
    """T5's relative position bias, unidirectional: 32 buckets up to distance 128, one table per layer."""

    BUCKETS = 32
    MAX_DISTANCE = 128

    def __init__(self, heads: int):
        super().__init__()
        self.table_HN = nn.Parameter(truncated_normal_(torch.empty(heads, self.BUCKETS), fan_in=self.BUCKETS))

    @classmethod
    def bucket(cls, distance: Tensor) -> Tensor:
        """Bucket of a distance (int64): exact below 16, logarithmic above; for one below 0, that of 0."""
        distance = distance.clamp(min=0)
        exact = cls.BUCKETS // 2
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(cls.MAX_DISTANCE / exact)
        far = far * (cls.BUCKETS - exact)
        return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=cls.BUCKETS - 1))

    def forward(self, bucket_WZ: Tensor, factor_H: Tensor | None = None) -> Tensor:
        """The bias of each query and key, times the factor of each head if there is one: [H, W, Z]. ``bucket_WZ``: int64, the
        buckets of their distances.

        Distances must grow by one from row to row and fall by one from column to column, so that a diagonal has one bucket. The
        caller masks those below zero.
        """
        # In float32 on a CPU the sums would round differently, and results would change.
        if bucket_WZ.is_cuda or autocasts_to_bfloat16():
            return self.by_diagonals(bucket_WZ, factor_H)
        bias_HWZ = self.table_HN[:, bucket_WZ]
        return bias_HWZ if factor_H is None else bias_HWZ * factor_H[:, None, None]

    def by_diagonals(self, bucket_WZ: Tensor, factor_H: Tensor | None = None) -> Tensor:
        """The same bias. Its backward pass first sums along each diagonal, instead of adding W · Z gradients to 32 numbers.

        A GPU adds those one by one, which took half of a training step (results/speed).
        """
        rows, keys = bucket_WZ.shape
        bucket_P = torch.cat([bucket_WZ[:, 0].flip(0), bucket_WZ[0, 1:]])  # of each diagonal, from the bottom left
        table_HN = self.table_HN if factor_H is None else self.table_HN * factor_H[:, None]
        return shift_rows(F.pad(table_HN[:, bucket_P], (0, 1))[:, None].expand(-1, rows, -1), rows - 1, keys)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[…, n, H·E] → […, H, n, E]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(*parts: Tensor) -> Tensor:
    """[…, H, n, E] → […, n, H·E]; several parts' heads stand side by side."""
    turned = [x.transpose(-3, -2) for x in parts]
    return (turned[0] if len(parts) == 1 else torch.cat(turned, -2)).flatten(-2)


def each_block(x_BK: Tensor) -> tuple[Tensor, ...]:
    """The blocks [B, ...] of a tensor [B, K, ...]. Their gradients are as large as a block, where those of an index would be as
    large as the tensor. The gradient of a single block is not copied.
    """
    return (x_BK.squeeze(1),) if x_BK.shape[1] == 1 else x_BK.unbind(1)


def joined(*pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Pairs of keys and values [..., m, E] as one pair, in the order of their tokens."""
    return torch.cat([k for k, _ in pairs], -2), torch.cat([v for _, v in pairs], -2)


def weighted_values(weights_nm: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """weights · v for the values of ``pairs`` of keys and values, as of `joined` ones, without joining them: [..., n, E]."""
    columns = weights_nm.split([k.shape[-2] for k, _ in pairs], dim=-1)
    sums = [part @ v for part, (_, v) in zip(columns, pairs, strict=True)]
    return sum(sums[1:], start=sums[0])


class _Scores(torch.autograd.Function):
    """q · kᵀ by batched products of matrices that are not copied in a transposed order, forward or backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, q_nE: Tensor, k_mE: Tensor) -> Tensor:  # pyrefly: ignore
        q_NnE = q_nE.flatten(0, -3)
        k_NmE = k_mE.flatten(0, -3)
        ctx.save_for_backward(q_NnE, k_NmE)
        return torch.bmm(q_NnE, k_NmE.transpose(1, 2)).view(*q_nE.shape[:-1], -1)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_nm: Tensor) -> tuple[Tensor, Tensor]:  # pyrefly: ignore
        q_NnE, k_NmE = ctx.saved_tensors  # pyrefly: ignore
        leading = grad_nm.shape[:-2]
        grad_Nnm = grad_nm.flatten(0, -3)
        grad_q_NnE = torch.bmm(grad_Nnm, k_NmE)
        grad_k_NmE = torch.bmm(grad_Nnm.transpose(1, 2), q_NnE)
        return grad_q_NnE.unflatten(0, leading), grad_k_NmE.unflatten(0, leading)


def is_compiled_for_cpu(x: Tensor) -> bool:
    """Whether torch.compile traces this code, and ``x`` is on a CPU."""
    return torch.compiler.is_compiling() and x.device.type == "cpu"


def scores(q_nE: Tensor, k_mE: Tensor, bias_nm: Tensor | None = None) -> Tensor:
    """q · kᵀ + bias: [..., n, m]. Queries and keys have the same leading dimensions.

    On a CPU, inductor can compile transposed copies of bfloat16 wrongly (torch 2.13 with GCC 12): those of k, and of its gradient,
    which autograd makes as that of kᵀ. Compiled code therefore does without them.
    """
    if is_compiled_for_cpu(q_nE):
        logits_nm = _Scores.apply(q_nE, k_mE)  # pyrefly: ignore
        return logits_nm if bias_nm is None else logits_nm + bias_nm
    logits_nm = q_nE @ k_mE.transpose(-1, -2)
    return logits_nm if bias_nm is None else logits_nm.add_(bias_nm)


def softmax_product(logits_nm: Tensor, v_mE: Tensor, factors_nm: Tensor | None = None) -> Tensor:
    """softmax(logits) · v over any leading dimensions, in the dtype of the values: [..., n, E]. ``factors_nm``: multiplied with
    the weights, such as a dropout mask.

    Code that is compiled for a CPU divides the result by the sum of the exponentials, not each weight. inductor's softmax would
    write all exponentials in float32 and read them twice.
    """
    dtype = v_mE.dtype
    total_n1: Tensor | None = None
    if is_compiled_for_cpu(logits_nm):
        weights_nm = (logits_nm - logits_nm.detach().amax(-1, keepdim=True)).exp().to(dtype)
        total_n1 = upcast(weights_nm).sum(-1, keepdim=True)
    else:
        weights_nm = torch.softmax(logits_nm, dim=-1).to(dtype)
    if factors_nm is not None:
        weights_nm = weights_nm * factors_nm.to(dtype)
    product_nE = weights_nm @ v_mE
    return product_nE if total_n1 is None else (product_nE / total_n1).to(dtype)


class Rotation(NamedTuple):
    """Cosine and sine of the angle by which each pair of a head's dimensions turns at each token: [B, 1, n, E / 2]."""

    cos: Tensor
    sin: Tensor


def rotation(position_Bn: Tensor, head_dim: int, base: float, like: Tensor) -> Rotation:
    """Rotary positions: pair e turns by the position times base^(−2e/E) (Su et al. 2021, arXiv 2104.09864, section 3.2.2).

    ``position_Bn``: positions of the tokens, of any number type. ``like`` gives the dtype, but at least float32, and the device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    speed_e = 1 / base ** (torch.arange(0, head_dim, 2, dtype=dtype, device=like.device) / head_dim)
    angle_B1ne = (position_Bn[..., None] * speed_e)[:, None]
    return Rotation(angle_B1ne.cos(), angle_B1ne.sin())


def rotate(x_BHnE: Tensor, by: Rotation) -> Tensor:
    """Rotate each pair of a head's dimensions, one from each half: queries or keys [B, H, n, E]."""
    cos = by.cos.to(x_BHnE.dtype)
    sin = by.sin.to(x_BHnE.dtype)
    one, other = x_BHnE.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def fused_attention_is_slow(q: Tensor) -> bool:
    """Whether torch's fused kernel takes longer than plain products: 3 to 5 times as long in bfloat16 on a CPU (results/speed)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16


def attend(q_HnE: Tensor, k_HmE: Tensor, v_HmE: Tensor, no_previous_block_B: Tensor | None = None) -> Tensor:
    """Attention without bias, over any leading dimensions: […, H, n, E], in the dtype of the queries, which must be scaled.

    ``no_previous_block_B``: bool, lanes on which the first half of the keys, those of the previous block, is masked.
    """
    mask = None
    if no_previous_block_B is not None:
        first_half = torch.arange(k_HmE.shape[-2], device=k_HmE.device) < k_HmE.shape[-2] // 2
        mask = ~(first_half & no_previous_block_B[:, None, None, None])
    # No fused kernel takes more than one leading dimension. Keys and values may have been kept under autocast, which is now off.
    q, k, v = (x.to(q_HnE.dtype).flatten(0, -4) for x in (q_HnE, k_HmE, v_HmE))
    if fused_attention_is_slow(q):
        logits = scores(q, k)
        logits = logits if mask is None else logits.masked_fill(~mask, MASKED)
        return softmax_product(logits, v).unflatten(0, q_HnE.shape[:-3])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).unflatten(0, q_HnE.shape[:-3])


class Carried(nn.Module):
    """Returns the new recurrent state. A probe hooks it to compare the states before and after some tokens."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return after


def relative_change(before: Tensor, after: Tensor) -> Tensor:
    """rms of the change of a state over its rms before; 1 if it was zero."""
    energy = before.float().square().mean()
    change = (after - before).float().square().mean()
    return torch.where(energy > 0, (change / energy.clamp(min=1e-30)).sqrt(), 1.0)
