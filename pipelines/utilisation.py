"""How much of a device a model uses: the FLOPs that its tokens need over what the device does in a large matrix product.

    rate = matrix_rate(device, torch.bfloat16)                              # FLOP/s, measured
    fastest_tokens_per_second(RecConfig(), vocab_size=32_001, rate=rate)    # tokens/s over this is MFU

FLOPs are those of recur_models/costs.py: needed ones alone, and what is computed a second time does not count.
"""

from __future__ import annotations

import statistics
import time

import torch

from recur_models import ModelConfig
from recur_models.costs import costs

GPU_SIZE = 8192
"""Rows and columns of the matrices: a product of a millisecond or more, on any GPU."""


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = GPU_SIZE, repeats: int = 10) -> float:
    """FLOP/s of products of two size² matrices, done one after another: the median of three times ``repeats``."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out, seconds = torch.mm(a, b), []
    for _ in range(3):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 * repeats / statistics.median(seconds)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest_tokens_per_second(model: ModelConfig, vocab_size: int, rate: float, devices: int = 1) -> float:
    """Tokens/s of training at which the needed FLOPs take all of the matrix rate of so many devices."""
    return devices * rate / costs(model, vocab_size).training_flops_per_token
