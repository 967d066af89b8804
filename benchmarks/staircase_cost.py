"""Measures the cost of passes: a step's time over N, the cached staircase against Transformer-XL, the feedback transformer; in
one process.

    python -m benchmarks.staircase_cost                     about ten minutes on two cores
    python -m benchmarks.staircase_cost --rounds 12 --segment 1024

All take turns: a round is one training step of each (contenders.py), and gives one ratio. Three questions, of the paper's Table 2
and section 3.2.1:

- A staircase of N passes does N times the work of its core, so a line through the times should rise by that of one pass: slope 1.
- A cached staircase of one pass does no more than Transformer-XL of the same span, but for the cached tokens' keys and values.
- A feedback transformer does no more either, and is slow because it goes token by token (paper: 3,260 ms against 580 of N = 4).

Beside each stands its share of the rate of a large matrix product, by the FLOPs that it computes. The memory that a step keeps for
the backward pass stands there too, for this segment and for half of it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import machine, results
from benchmarks.contenders import LANES, Contender
from benchmarks.kept import kept_bytes
from common.errors import UserError
from pipelines.terminal import cli
from pipelines.training.utilisation import matrix_rate
from recur_models import (
    CachedStaircaseConfig,
    FeedbackTransformerConfig,
    LSTMConfig,
    ModelConfig,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalTransformerConfig,
)

COLUMNS = (
    "model",
    "parameters",
    "s a step",
    "/ transformer-xl (range)",
    "of the matrix rate",
    "MiB kept",
    "at half the segment",
)


@dataclass(frozen=True)
class BenchConfig:
    """Sizes to time."""

    d_model: int = 256
    """Width; heads of 64, a feed-forward of four times the width."""
    layers: int = 4
    """Layers of the core."""
    chunk: int = 64
    """Tokens of a chunk."""
    span: int = 256
    """Tokens that all but the staircases of fewer passes see."""
    segment: int = 1024
    """Tokens of a segment."""
    passes: tuple[int, ...] = (1, 2, 4, 8)
    """Passes of the staircases."""
    rounds: int = 8
    """Rounds; the first two do not count."""
    record: bool = False
    """Record the table in results/staircase/."""

    def __post_init__(self) -> None:
        if 1 not in self.passes or len({*self.passes}) < 2:
            raise UserError(
                f"--passes {' '.join(map(str, self.passes))}: a slope needs 1 and another, as in --passes 1 2 4"
            )
        machine.check_rounds(self.rounds)
        if self.chunk < 1:
            raise UserError(f"--chunk is {self.chunk}: give 1 or more")
        # Half a segment is weighed too, and some contenders have blocks of 16.
        for name, unit in (("span", self.chunk), ("segment", 2 * math.lcm(self.chunk, 16))):
            size = getattr(self, name)
            if size < unit or size % unit:
                raise UserError(f"--{name} is {size}: give a multiple of {unit}, for chunks of {self.chunk}")


def staircase(passes: int) -> str:
    """The label of a staircase in the table."""
    return f"staircase, {passes} pass{'es' * (passes > 1)}"


def models(config: BenchConfig) -> dict[str, ModelConfig]:
    """The contenders' configs, by their labels in the table."""
    size: dict[str, Any] = {
        "d_model": config.d_model, "heads": max(config.d_model // 64, 1), "head_dim": 64, "mlp_dim": 4 * config.d_model
    }  # fmt: skip
    deep: dict[str, Any] = {**size, "layers": config.layers}
    found: dict[str, ModelConfig] = {
        staircase(n): StaircaseConfig(**deep, chunk=config.chunk, passes=n) for n in config.passes
    }
    chunks = config.span // config.chunk
    return found | {
        "transformer-xl": TransformerXLConfig(**deep, window=config.chunk, span=config.span),
        "cached-staircase, 1 pass": CachedStaircaseConfig(**deep, chunk=config.chunk, passes=1, chunks=chunks),
        "universal-transformer": UniversalTransformerConfig(
            **size, passes=config.layers, window=config.chunk, span=config.span
        ),
        "feedback-transformer": FeedbackTransformerConfig(**deep, span=config.span),
        "lstm": LSTMConfig(layers=config.layers, d_model=config.d_model),
    }


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("staircase", "benchmarks.staircase_cost", argv, config.record)
    chosen = models(config)
    made = {label: Contender(model, config.segment) for label, model in chosen.items()}
    times = machine.seconds_in_turns(config.rounds, {label: contender.step for label, contender in made.items()})
    rate = matrix_rate(torch.device("cpu"), torch.float32, size=2048, repeats=3)
    print(
        f"{machine.describe()}\nd {config.d_model}, {config.layers} layers, chunk {config.chunk}, span {config.span}, segment "
        f"{config.segment}, batch {LANES}; {config.rounds - 2} rounds; 2,048² products at {rate / 1e9:.0f} GFLOP/s\n"
        f"  {'':26} {'parameters':>11} {'s a step':>9} {'/ transformer-xl (range)':>26} {'of the rate':>12} "
        f"{'MiB kept':>9} {'at half':>8}"
    )
    rows: list[tuple[results.Cell, ...]] = []
    for label, model in chosen.items():
        seconds = statistics.median(times[label])
        shown = machine.ratios(times[label], times["transformer-xl"])
        parameters = made[label].parameters
        used = f"{made[label].flops / seconds / rate:.0%}"
        lengths = (config.segment, config.segment // 2)
        memory, half = (kept_bytes(Contender(model, length).loss) / 2**20 for length in lengths)
        print(
            f"  {label:26} {parameters:>11,} {seconds:>9.3f} {shown:>26} {used:>12} {memory:>9.0f} {half:>8.0f}",
            flush=True,
        )
        rows.append((label, parameters, round(seconds, 4), shown, used, round(memory), round(half)))
    recorder.table("Cost of passes", COLUMNS, rows)
    seconds_NR = np.array([times[staircase(n)] for n in config.passes])  # R: rounds
    slopes_R = np.polyfit(config.passes, seconds_NR, 1)[0] / times[staircase(1)]
    slope = machine.median_and_range(slopes_R.tolist())
    print(f"  slope of a step's time over passes, of the time of one pass: {slope}")
    if 4 in config.passes:
        pairs = zip(times["feedback-transformer"], times[staircase(4)], strict=True)
        ratio = statistics.median(feedback / passes for feedback, passes in pairs)
        print(f"  feedback-transformer / staircase of 4 passes: {ratio:.1f} (paper, Table 2: 5.6)")


if __name__ == "__main__":
    cli.run(main)
