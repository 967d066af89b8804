"""Step time of `rec` against `slide` with one more layer: the paper has 0.99 (Table 1). Pairs in one process, in turn.

    python -m benchmarks.step_time                      about four minutes on two cores
    python -m benchmarks.step_time --pairs 20 --sizes small

A step is forward, backward and AdamW on one segment, State carried. The floor: six FLOPs for each weight and token (two forward,
four backward) and the attention's products, at the rate of a 2,048² float32 product measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from benchmarks import machine
from pipelines import cli
from recur_models import ModelConfig, RecurrentModel, State, detach
from recur_models.block_recurrent import RecConfig, SlideConfig

SIZES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 256, "layers": 6, "heads": 4, "head_dim": 64, "mlp_dim": 1024, "window": 128, "segment": 1024},
    "medium": {
        "d_model": 512,
        "layers": 8,
        "heads": 8,
        "head_dim": 64,
        "mlp_dim": 2048,
        "window": 256,
        "segment": 2048,
    },
}
LANES, VOCAB = 2, 256


@dataclass(frozen=True)
class BenchConfig:
    """What is timed."""

    sizes: tuple[Literal["small", "medium"], ...] = ("small", "medium")
    """small: d 256, 6 layers, window 128, segment 1,024; medium: d 512, 8 layers, window 256, segment 2,048."""
    pairs: int = 12
    """Pairs of steps; the first two do not count."""


class Timed:
    """A model in training, and the seconds of its steps."""

    def __init__(self, config: ModelConfig, segment: int):
        torch.manual_seed(0)
        self.model: RecurrentModel = config.build(VOCAB)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(VOCAB, (LANES, segment))
        self.fresh = torch.zeros(LANES, segment // config.block, dtype=torch.bool)
        self.state: State = self.model.initial_state(LANES)
        self.seconds: list[float] = []

    def step(self) -> None:
        began = time.perf_counter()
        nats, state = self.model(self.tokens, self.state, self.fresh, self.tokens)
        nats.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = detach(state)
        self.seconds.append(time.perf_counter() - began)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    print(machine.describe())
    for name in config.sizes:
        size = dict(SIZES[name])
        segment, layers = size.pop("segment"), size.pop("layers")
        rec = Timed(
            RecConfig(**size, layers=layers, recurrent_layers=(layers - 2,), states=size["window"], dropout=0.0),
            segment,
        )
        slide = Timed(SlideConfig(**size, layers=layers + 1, dropout=0.0), segment)
        for _ in range(config.pairs):
            rec.step()
            slide.step()
        ratios = [a / b for a, b in zip(rec.seconds[2:], slide.seconds[2:], strict=True)]
        rate = machine.matrix_rate()
        # Projections and MLP per weight, and per layer 2 products of W × 2W × H·E for each block.
        width = size["heads"] * size["head_dim"]
        attention = (layers + 1) * 2 * 2 * LANES * segment * 2 * size["window"] * width
        floor = 3 * (2 * slide.parameters * LANES * segment + attention) / rate
        seconds = statistics.median(slide.seconds[2:])
        print(
            f"{name}: d {size['d_model']}, {layers} layers, window {size['window']}, segment {segment}, batch {LANES}\n"
            f"  rec    {statistics.median(rec.seconds[2:]):.3f} s a step, {rec.parameters:,} parameters\n"
            f"  slide  {seconds:.3f} s a step, {slide.parameters:,} parameters (one more layer)\n"
            f"  rec / slide: median {statistics.median(ratios):.3f} of {len(ratios)} pairs "
            f"({min(ratios):.3f} to {max(ratios):.3f})\n"
            f"  slide's floor {floor:.3f} s at {rate / 1e9:.0f} GFLOP/s: {floor / seconds:.0%} of the matrix rate",
            flush=True,
        )


if __name__ == "__main__":
    cli.run(main)
