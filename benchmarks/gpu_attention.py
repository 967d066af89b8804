"""Windowed attention in three ways, one layer of slide at the sizes of benchmarks/gpu.py: ours, whose W × 2W logits are in memory,
torch's scaled_dot_product_attention on folded blocks with the bias as a mask, and FlexAttention with a block mask.

The other two cannot multiply the weights by a mask that all lanes share (`Window.kept_HWZ`), as the papers' dropout in training
needs. So they can only replace ours where no weights are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.gpu_models import BenchConfig
from pipelines.training.utilisation import synchronize
from recur_models.window import Window, windowed_attention

Way = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps queries [B, K, H, W, E], keys and values [B, K, H, 2W, E] and a bias [H, W, 2W] to [B, K, H, W, E]."""


def ours(q: Tensor, k: Tensor, v: Tensor, bias_HWZ: Tensor) -> Tensor:
    return windowed_attention(q, k, v, Window(bias_HWZ, None))


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, bias_HWZ: Tensor) -> Tensor:
    folded = (each.flatten(0, 1) for each in (q, k, v))
    out = F.scaled_dot_product_attention(*folded, attn_mask=bias_HWZ.to(q.dtype)[None], scale=1.0)
    return out.unflatten(0, q.shape[:2])


@cache
def block_mask(window: int, device: torch.device) -> BlockMask:
    """The mask of a window, made once for each size, as a model would make it."""

    def seen(lane: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        distance = row + window - column
        return (distance >= 1) & (distance <= window)

    return create_block_mask(seen, None, None, window, 2 * window, device=device)


def flex(q: Tensor, k: Tensor, v: Tensor, bias_HWZ: Tensor) -> Tensor:
    def biased(score: Tensor, lane: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + bias_HWZ[head, row, column]

    mask = block_mask(q.shape[-2], q.device)
    folded = (each.flatten(0, 1) for each in (q, k, v))
    attend = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    return attend(*folded, score_mod=biased, block_mask=mask, scale=1.0).unflatten(0, q.shape[:2])  # pyrefly: ignore


WAYS: dict[str, Way] = {"ours": ours, "ours, compiled": ours, "scaled_dot_product": scaled_dot_product, "flex": flex}


def timed(name: str, config: BenchConfig) -> tuple[float, float, int]:
    """Milliseconds forward, and forward with backward (medians of five), and peak bytes. Raises whatever the way raises."""
    device = config.torch_device
    sizes = config.of("slide")
    W = sizes.window  # pyrefly: ignore
    H = sizes.heads  # pyrefly: ignore
    E = sizes.head_dim  # pyrefly: ignore
    shape = (config.most_lanes, config.length // W, H)
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(*shape, rows, E, device=device, dtype=config.dtype).div_(E**0.25) for rows in (W, 2 * W, 2 * W)
    )
    distance = torch.arange(W, device=device)[:, None] + W - torch.arange(2 * W, device=device)
    bias = torch.randn(H, W, 2 * W, device=device).masked_fill_((distance < 1) | (distance > W), -3e4)
    way = torch.compile(WAYS[name], dynamic=False, backend=config.backend) if "compiled" in name else WAYS[name]
    learns = device.type == "cuda" or name != "flex"  # which has no backward pass on a CPU
    q, k, v, bias = (each.detach().requires_grad_(learns) for each in (q, k, v, bias))
    seconds: list[tuple[float, float]] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(7):
        synchronize(device)
        began = time.perf_counter()
        out = way(q, k, v, bias)
        synchronize(device)
        forward = time.perf_counter() - began
        if learns:
            torch.autograd.grad(out.sum(), (q, k, v, bias))
            synchronize(device)
        seconds.append((forward, time.perf_counter() - began))
    forward, both = (sorted(each)[2] * 1e3 for each in zip(*seconds[2:], strict=True))
    return forward, both, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
