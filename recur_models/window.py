"""Sliding-window attention over blocks: W queries see exactly the W tokens before them, in one batched call.

A block of W tokens attends to its own keys and the previous block's: W × 2W logits (block-recurrent paper, section 3 and
Figure 2). Where a document begins there is no previous block: its keys and values are zeros, which stay attendable under
the ``meliad`` equations (logit = bias · scale, value 0) and are masked under ``paper``.

Letters: see layers.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recur_models.layers import MASKED, PositionBias, is_compiled_for_cpu, scores, softmax_product, with_signature


class Window(NamedTuple):
    """Tensors of one layer in one pass that all blocks share. Z: the keys that a block sees."""

    bias_HWZ: Tensor
    """Added to the logits."""
    dropout_mask_HWZ: Tensor | None
    """Dropout mask of the attention weights, divided by 1 − rate already; None without dropout."""


class _WithPrevious(torch.autograd.Function):
    """`with_previous`. The forward pass writes keys (or values) straight into the result; torch's cat, masked_fill and cat would
    copy those of the previous block three times.
    """

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(x_BKHWE: Tensor, cache_BHWE: Tensor, fresh_BK: Tensor, detached: bool) -> Tensor:  # pyrefly: ignore
        B, K, H, W, E = x_BKHWE.shape
        joined_BKHZE = x_BKHWE.new_empty(B, K, H, 2 * W, E)
        previous_BKHWE, own_BKHWE = joined_BKHZE.chunk(2, 3)
        own_BKHWE.copy_(x_BKHWE)
        previous_BKHWE[:, 0] = cache_BHWE
        if K > 1:
            previous_BKHWE[:, 1:] = x_BKHWE[:, :-1]
        previous_BKHWE.masked_fill_(fresh_BK[:, :, None, None, None], 0.0)
        return joined_BKHZE

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: Tensor) -> None:  # pyrefly: ignore
        _, _, fresh_BK, ctx.detached = inputs  # pyrefly: ignore
        ctx.save_for_backward(fresh_BK)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_BKHZE: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # pyrefly: ignore
        (fresh_BK,) = ctx.saved_tensors  # pyrefly: ignore
        grad_previous_BKHWE, grad_own_BKHWE = grad_BKHZE.chunk(2, 3)
        grad_x_BKHWE = grad_own_BKHWE.clone()
        if ctx.detached:  # pyrefly: ignore
            return grad_x_BKHWE, None, None, None
        fresh_BK111 = fresh_BK[:, :, None, None, None]
        if fresh_BK.shape[1] > 1:
            grad_x_BKHWE[:, :-1] += grad_previous_BKHWE[:, 1:].masked_fill(fresh_BK111[:, 1:], 0.0)
        grad_cache_BHWE = None
        if ctx.needs_input_grad[1]:  # pyrefly: ignore
            grad_cache_BHWE = grad_previous_BKHWE[:, 0].masked_fill(fresh_BK111[:, 0], 0.0)
        return grad_x_BKHWE, grad_cache_BHWE, None, None


def with_previous(x_BKHWE: Tensor, cache_BHWE: Tensor, fresh_BK: Tensor, detached: bool = False) -> Tensor:
    """Each block's keys (or values) behind the previous block's: [B, K, H, 2W, E]; zeros before a document's first block.

    ``detached``: the previous block's get no gradient, wherever they come from.
    """
    cache_BHWE = cache_BHWE.to(x_BKHWE.dtype)
    if is_compiled_for_cpu(x_BKHWE):  # inductor fuses these operations, and not the writes of _WithPrevious
        previous_BKHWE = torch.cat([cache_BHWE[:, None], x_BKHWE[:, :-1]], 1)
        previous_BKHWE = previous_BKHWE.detach() if detached else previous_BKHWE
        return torch.cat([previous_BKHWE.masked_fill(fresh_BK[:, :, None, None, None], 0.0), x_BKHWE], 3)
    return _WithPrevious.apply(x_BKHWE, cache_BHWE, fresh_BK, detached)  # pyrefly: ignore


def distance_and_unseen(place_n: Tensor, span: int, keys: int) -> tuple[Tensor, Tensor]:
    """The distance from each token back to each key, int64 [..., n, Z], and whether the token does not see it, bool [..., n, Z].

    A token sees the ``span`` tokens before it. ``place_n``: int64, the tokens' places in their block. ``keys``: Z; the first one
    stands ``span`` tokens before the block.
    """
    distance_nZ = place_n[..., None] + span - torch.arange(keys, device=place_n.device)
    return distance_nZ, (distance_nZ < 1) | (distance_nZ > span)


def buckets_of_window(place_n: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Buckets of the distances from a block's tokens to the keys of the previous block and their own, int64 [..., n, 2W]; and a
    mask, True where a token does not see a key, bool [..., n, 2W]. All layers share them.

    ``place_n``: int64, the tokens' places in their block.
    """
    distance_nZ, unseen_nZ = distance_and_unseen(place_n, window, 2 * window)
    return PositionBias.bucket(distance_nZ), unseen_nZ


def window_bias(position_bias: PositionBias | None, scale_H: Tensor, bucket_WZ: Tensor, unseen_WZ: Tensor) -> Tensor:
    """bias · |scale| for each query of a block and each key (0 without a bias), MASKED at unseen keys: [H or 1, W, Z].

    ``bucket_WZ``: int64, buckets of the distances. ``unseen_WZ``: bool, True where a query does not see a key.
    """
    if position_bias is None:
        return scale_H.new_zeros(1, *bucket_WZ.shape).masked_fill(unseen_WZ, MASKED)
    return position_bias(bucket_WZ, scale_H.abs()).masked_fill(unseen_WZ, MASKED)


def windowed_attention(
    q_BKHWE: Tensor, k_BKHZE: Tensor, v_BKHZE: Tensor, window: Window, no_previous_block_BK: Tensor | None = None
) -> Tensor:
    """softmax(q·k + bias)·v for all blocks at once: [B, K, H, W, E]. Queries are scaled already.

    ``no_previous_block_BK``: blocks whose previous block is masked altogether. There the first token sees nothing; the authors'
    phantom logit of −1000 then takes all the weight, so its output is zero.
    """
    logits_BKHWZ = scores(q_BKHWE, k_BKHZE, window.bias_HWZ.to(q_BKHWE.dtype))
    if no_previous_block_BK is not None:
        before, now = logits_BKHWZ.chunk(2, dim=-1)
        logits_BKHWZ = torch.cat(
            [before.masked_fill(no_previous_block_BK[:, :, None, None, None], MASKED), now], dim=-1
        )
    out_BKHWE = softmax_product(logits_BKHWZ, v_BKHZE, window.dropout_mask_HWZ)
    if no_previous_block_BK is not None:
        first_W1 = torch.arange(q_BKHWE.shape[-2], device=q_BKHWE.device)[:, None] == 0
        out_BKHWE = out_BKHWE.masked_fill(first_W1 & no_previous_block_BK[:, :, None, None, None], 0.0)
    return out_BKHWE
