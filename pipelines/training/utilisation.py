"""How fast a run is: its tokens per second, and how much of its device they use, by two measures.

    rate = matrix_rate(device, torch.bfloat16)                              # FLOP/s of a large product, measured
    peak = peak_rate("NVIDIA A100-SXM4-80GB", torch.bfloat16)               # FLOP/s by the data sheet: 312e12
    peak / model.costs(vocab_size).training_flops_per_token                 # tokens/s over this is MFU, as the field has it
    fastest_tokens(config, world, vocab_size, torch.bfloat16)               # both, as tokens/s of a run

FLOPs are those of recur_models/costs.py: only needed ones count, not those of recomputation.
"""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipelines.config.run import TrainConfig
from pipelines.training.world import World

GPU_SIZE = 8192
"""Rows and columns of the matrices: a product of a millisecond or more, on any GPU."""

PEAKS: dict[str, tuple[float, float, float]] = {
    "B200": (2250, 1125, 75),
    "H200 NVL|H100 NVL": (835, 417, 60),
    "H200|GH200 .*|H100 SXM.*|H100 80GB HBM3": (989, 494, 67),
    "H100 PCIe": (756, 378, 51),
    "A100-(SXM4|PCIE)-.*|A100 80GB PCIe": (312, 156, 19.5),
    "A30": (165, 82, 10.3),
    "A40": (149.7, 74.8, 37.4),
    "A10": (125, 62.5, 31.2),
    "A10G": (70, 35, 31.5),
    "L40S": (362, 183, 91.6),
    "L40": (181, 90.5, 90.5),
    "L4": (121, 60, 30.3),
    "RTX 6000 Ada Generation": (364, 182, 91.1),
    "RTX A6000": (154.8, 77.4, 38.7),
    "GeForce RTX 4090": (165.2, 82.6, 82.6),
    "GeForce RTX 3090": (71, 35.6, 35.6),
    "V100.*SXM.*": (0, 0, 15.7),
    "V100.*PCI.*": (0, 0, 14),
    "T4": (0, 0, 8.1),
}
"""TFLOP/s by the makers' data sheets, without sparsity: bfloat16, TF32, float32; 0 where the GPU has no units for it. The key
matches torch's name for the GPU, without the maker. A part of a GPU (MIG) has another name, and so no peak."""


def peak_rate(name: str, dtype: torch.dtype) -> float | None:
    """FLOP/s of products in ``dtype`` by the data sheet of the GPU that torch calls ``name``; None where it is not known."""
    model = re.sub(r"^(NVIDIA |Tesla )+", "", name)
    rows = [row for key, row in PEAKS.items() if re.fullmatch(key, model) and "MIG" not in name]
    if not rows:
        return None
    bfloat16, tf32, float32 = rows[0]
    peak = float32
    if dtype == torch.bfloat16:
        peak = bfloat16
    elif torch.backends.cuda.matmul.allow_tf32:
        peak = tf32
    return peak * 1e12 if peak else None


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = GPU_SIZE, repeats: int = 10) -> float:
    """FLOP/s of products of two [size, size] matrices, one by one: the median of three measurements of ``repeats`` products."""
    own = torch.Generator(device).manual_seed(0)  # a run's dropout draws from the device's own generator
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=own) for _ in range(2))
    out = torch.mm(a, b)
    seconds = []
    for _ in range(3):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 * repeats / statistics.median(seconds)


def fastest_tokens(config: TrainConfig, world: World, vocab_size: int, dtype: torch.dtype) -> dict[str, float]:
    """The most tokens/s that the GPUs could train on if they computed nothing but the model's matrix products, by the name of the
    metric that divides the measured speed by it.

    `mfu`: at the rate of the GPU's data sheet, if it is known. `share_of_matrix_rate`: at the rate that the GPU reaches in one
    large product, measured here in a second. Empty on a CPU.
    """
    if world.device.type != "cuda":
        return {}
    peak = peak_rate(torch.cuda.get_device_name(world.device), dtype)
    rates = {"mfu": peak, "share_of_matrix_rate": matrix_rate(world.device, dtype)}
    devices = world.size * min(config.placement.gpus, 1)  # workers may share one
    flops = config.model.costs(vocab_size).training_flops_per_token
    return {name: devices * rate / flops for name, rate in rates.items() if rate}


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Turn Python's automatic garbage collection off: in one process of many it pauses a step, and the others wait for that one.

    Only `gc.collect()` collects, and it skips objects that were there before.
    """
    was = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Speed:
    """The clock of a loop; what is done inside `paused` is left out."""

    def __init__(self, device: torch.device, fastest: dict[str, float], tokens: int) -> None:
        """``fastest``: tokens/s at which each share would be 1. ``tokens``: those that were read before the loop."""
        self._device = device
        self._fastest = fastest
        self._tokens = tokens
        self._since = time.perf_counter()

    def metrics(self, tokens: int) -> dict[str, float]:
        """Tokens per second since the last call, and its shares of ``fastest``, for a device that is done.

        ``tokens``: all that were read by now.
        """
        now = time.perf_counter()
        rate = (tokens - self._tokens) / (now - self._since)
        self._tokens = tokens
        self._since = now
        return {"tokens_per_second": rate, **{name: rate / fastest for name, fastest in self._fastest.items()}}

    @contextmanager
    def paused(self) -> Iterator[None]:
        synchronize(self._device)  # earlier work of the device counts
        began = time.perf_counter()
        yield
        self._since += time.perf_counter() - began
