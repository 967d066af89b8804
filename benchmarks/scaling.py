"""Estimates the cost of 1, 8, 64 and 512 workers: preparation, lanes, checkpoints, all-reduce; a schedule of 4,096 lanes over
PG-19; GPU hours.

    python -m benchmarks.scaling                         everything, about a minute on one core
    python -m benchmarks.scaling --parts lanes           the simulated schedule alone

The first tables are estimates: each prints its formula, and its rates are options. The schedule is no estimate: training's own code
lays out a corpus of PG-19's size, with random lengths of documents, and is timed.
"""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from benchmarks import machine
from data_prep.lanes import TrainingLanes
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.terminal import cli

Part = Literal["prepare", "workers", "gpus", "lanes"]

# PG-19's train split as released: books and words (Rae et al. 2020, table 1). Tokens and bytes for each word, and the spread of the
# lengths, are those of the release's books in results/data, with the authors' 32k pieces (85 books of the split).
BOOKS = 28_602
WORDS = 1_973_136_207
TOKENS_PER_WORD = 5_115_530 / 3_558_566
BYTES_PER_WORD = 20_797_542 / 3_558_566
LOG_SIGMA = 1.12
"""Standard deviation of the logarithm of a book's words, in the 85 books of the train split that were measured."""

GPUS = {
    # dense bfloat16 TFLOP/s by the makers' data sheets; a dollar price for an hour as clouds ask for it, to be replaced by yours
    "L4": (121, 0.8),
    "A10G": (70, 1.2),
    "A100 40 GB": (312, 3.0),
    "H100": (989, 6.0),
}


@dataclass(frozen=True)
class BenchConfig:
    """Estimates to make, and their rates."""

    parts: tuple[Part, ...] = ("prepare", "workers", "gpus", "lanes")
    """prepare: time to prepare PG-19; workers: lanes, State, checkpoints, all-reduce; gpus: hours and dollars; lanes: the
    schedule."""
    presets: tuple[str, ...] = ("pg19-rec-fixed-skip", "pg19-scale-1.3B-rec")
    """The 150M and the 1.3B preset."""
    workers: tuple[int, ...] = (1, 8, 64, 512)
    """Numbers of workers."""
    vocab: int = 32_001
    """Ids of the vocabulary."""
    megabytes_per_second: float = 3.6
    """Text that one CPU prepares in a second: half of the rate of two in results/data, SentencePiece BPE of 32,000 pieces."""
    part_megabytes: float = 16.777
    """Text in a part."""
    network_gigabytes: float = 12.5
    """Bytes that a machine sends in a second, times 1e9: 100 Gbit/s."""
    mfu: float = 0.4
    """Share of the GPU's rate that training reaches: a guess, to be measured with benchmarks/gpu.py."""
    gpu: str = "A100 40 GB"
    """GPU that steps are estimated for."""
    lanes: int = 4096
    """Lanes of the simulated schedule."""
    segment_length: int = 4096
    """Tokens of its segments."""
    block: int = 512
    """Tokens of its blocks."""


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    print(machine.describe())
    for part in config.parts:
        PARTS[part](config)


def prepare(config: BenchConfig) -> None:
    corpus = WORDS * BYTES_PER_WORD / 1e6
    parts = math.ceil(corpus / config.part_megabytes)
    each = config.part_megabytes / config.megabytes_per_second
    print(
        f"\nPreparing PG-19's train split, {corpus:,.0f} MB in {parts} parts (estimate: ceil(parts / workers) × "
        f"{config.part_megabytes:.1f} MB / {config.megabytes_per_second} MB/s, reading and writing not waited for)"
    )
    rows = [["workers", "time", "MB/s", "rounds of parts"]]
    for workers in config.workers:
        rounds = math.ceil(parts / workers)
        rows.append([f"{workers}", duration(rounds * each), f"{corpus / (rounds * each):,.0f}", f"{rounds}"])
    table(rows)


def workers(config: BenchConfig) -> None:
    for name in config.presets:
        preset = PRESETS[name]
        cost = preset.model.costs(config.vocab)
        state = preset.model.state_bytes(config.vocab)
        weights = 4 * cost.parameters
        optimizer = optimizer_bytes(preset, config.vocab)
        print(
            f"\n{name}: {cost.parameters / 1e6:,.0f}M parameters, {(cost.parameters - cost.embedding_parameters) / 1e6:,.0f}M "
            f"of them no embeddings; State of a lane {state / 1e6:.2f} MB; a step reads {preset.tokens_per_step:,} tokens "
            "(more lanes where there are more workers than lanes). Estimates:\n"
            f"  checkpoint = 4 B × parameters + optimizer ({optimizer / 1e6:,.0f} MB, {preset.optim.name}) + lanes × State\n"
            f"  all-reduce = 2 (W − 1) / W × 4 B × parameters / {config.network_gigabytes} GB/s: a ring, each worker on a "
            "machine of its own, beside the backward pass\n"
            f"  step = 3 × forward FLOPs of a token × tokens / W / ({config.mfu:.0%} of {GPUS[config.gpu][0]} TFLOP/s, "
            f"{config.gpu})"
        )
        rows = [
            [
                "workers",
                "lanes",
                "of each",
                "State of each, MB",
                "checkpoint, MB",
                "its files",
                "all-reduce, s",
                "step, s",
            ]
        ]
        for count in config.workers:
            lanes = max(preset.data.lanes, count)
            tokens = lanes * preset.data.segment_length
            step = cost.training_flops_per_token * tokens / count / (config.mfu * GPUS[config.gpu][0] * 1e12)
            reduce = 2 * (count - 1) / count * weights / (config.network_gigabytes * 1e9)
            size = (weights + optimizer + lanes * state) / 1e6
            own = lanes // count
            rows.append(
                [
                    f"{count}",
                    f"{lanes}",
                    f"{own}",
                    f"{own * state / 1e6:,.1f}",
                    f"{size:,.0f}",
                    f"{count + 2}",
                    f"{reduce:.3f}",
                    f"{step:.3f}",
                ]
            )
        table(rows)


def gpus(config: BenchConfig) -> None:
    for name in config.presets:
        preset = PRESETS[name]
        cost = preset.model.costs(config.vocab)
        tokens = preset.steps * preset.tokens_per_step
        flops = cost.training_flops_per_token * tokens
        print(
            f"\n{name}, {preset.steps:,} steps × {preset.tokens_per_step:,} tokens = {tokens / 1e9:.1f}G tokens: "
            f"{cost.training_flops_per_token / 1e6:,.0f}M FLOPs of a token's training × tokens = {flops:.2e} FLOPs\n"
            f"  (estimate: hours = FLOPs / ({config.mfu:.0%} × dense bfloat16 rate) / 3600; dollars at the price given, ask "
            "your cloud's)"
        )
        rows = [["GPU", "TFLOP/s", "GPU hours", "days on 8", "$ an hour", "$"]]
        for gpu, (rate, price) in GPUS.items():
            hours = flops / (config.mfu * rate * 1e12) / 3600
            rows.append(
                [gpu, f"{rate}", f"{hours:,.0f}", f"{hours / 8 / 24:.1f}", f"{price:.2f}", f"{hours * price:,.0f}"]
            )
        table(rows)


def lanes(config: BenchConfig) -> None:
    lengths = drawn_lengths()
    print(
        f"\nA schedule of {config.lanes:,} lanes × {config.segment_length:,} tokens (block {config.block}) over "
        f"{len(lengths):,} documents, {lengths.sum() / 1e9:.2f}G tokens: lengths log-normal (sigma {LOG_SIGMA}, seed 0), from "
        f"{lengths.min():,} to {lengths.max():,}"
    )

    def make() -> TrainingLanes:
        lanes = config.lanes
        block = config.block
        return TrainingLanes(
            lengths, lanes=lanes, segment_length=config.segment_length, block=block, seed=0, fingerprint="x"
        )

    steps = math.ceil(lengths.sum() / (config.lanes * config.segment_length))
    began = time.perf_counter()
    schedule = make()
    schedule.valid_tokens(0)
    first = time.perf_counter() - began
    schedule.valid_tokens(steps - 1)
    whole = time.perf_counter() - began
    asked = range(0, steps, max(1, steps // 20))
    schedule = make()
    seconds = 0.0
    for step in asked:
        schedule.valid_tokens(step)  # the schedule is extended up to here, as training has extended it
        began = time.perf_counter()
        for lane in range(config.lanes // 64):
            schedule.spans(step, lane)
        seconds += time.perf_counter() - began
    each = seconds / len(asked)
    tracemalloc.start()
    again = make()
    same = again.cursor(steps).tolist() == schedule.cursor(steps).tolist()
    now, peak = (size / 1e6 for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    rows = [
        ["first step is ready after", f"{first:.3f} s"],
        [f"all {steps} steps of an epoch; a resume at its end", f"{whole:.2f} s"],
        ["memory of the schedule, and its peak", f"{now:.1f} MB, {peak:.1f} MB"],
        ["what one of 64 workers asks in a step", f"{each * 1e3:.2f} ms"],
        ["fill of the epoch", f"{schedule.fill(steps):.3%}"],
        ["epochs begun by then", f"{schedule.epoch(steps):.3f}"],
        ["built anew, every lane is at the same place", f"{same}"],
        ["peak resident memory of this process", f"{machine.resident('VmHWM') / 1e6:,.0f} MB"],
    ]
    table(rows, header=False)


PARTS = {"prepare": prepare, "workers": workers, "gpus": gpus, "lanes": lanes}


def drawn_lengths() -> np.ndarray:
    """int64 [BOOKS]: tokens of each book, log-normal, with PG-19's sum."""
    rng = np.random.Generator(np.random.Philox(0))
    drawn = rng.lognormal(0.0, LOG_SIGMA, BOOKS)
    return np.maximum(1, drawn * (WORDS * TOKENS_PER_WORD / drawn.sum())).astype(np.int64)


def optimizer_bytes(preset: TrainConfig, vocab: int) -> int:
    """Optimizer bytes: AdamW has two numbers for each weight; adafactor a momentum, and a row and a column for each matrix."""
    with torch.device("meta"):
        shapes = [tuple(p.shape) for p in preset.model.build(vocab).parameters()]
    if preset.optim.name == "adamw":
        return sum(8 * math.prod(shape) for shape in shapes)
    second = sum(
        math.prod(shape[:-1]) + math.prod((*shape[:-2], shape[-1])) if shape[1:] else math.prod(shape)
        for shape in shapes
    )
    return 4 * sum(math.prod(shape) for shape in shapes) + 4 * second


def duration(seconds: float) -> str:
    return cli.duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def table(rows: Sequence[Sequence[str]], header: bool = True) -> None:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "---|" * len(rows[0])
    print("\n".join([lines[0], rule, *lines[1:]] if header else ["| | |", rule, *lines]), flush=True)


if __name__ == "__main__":
    cli.run(main)
