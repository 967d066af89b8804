"""Tokens per second of scoring against those of training: same model, lanes, segments and process; both take turns.

    python -m benchmarks.evaluation_speed                            about five minutes on two cores
    python -m benchmarks.evaluation_speed --presets small-rec --rounds 20

Times are CPU seconds of the process, so other work on the machine does not count.

A round is one training step as the loop does it (batch, forward, backward, clipping, optimizer) and one step of scoring as
`pipelines.evaluate` does it (batch, forward, sums), State carried in both; each round gives one ratio. The floor is the ratio of
FLOPs (recur_models/costs.py): a forward pass has a third of a step's, without the optimizer. Text is random, in memory, in
documents of many lengths. Only predicted tokens count, so lanes that idle while the last documents end count against scoring.
`fill` is the share of scoring's token slots that hold a token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import machine, results
from data_prep.lanes import EvaluationLanes, TrainingLanes, read_batch
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.forward import predict, tensors
from pipelines.training.optim import build_optimizer
from pipelines.training.reading import Shard, read_segments
from pipelines.training.scoring import add_to, starts_of
from recur_models import RecurrentModel, detach

VOCAB = 257
COLUMNS = ("preset", "training, tokens/s", "scoring, tokens/s", "ratio, median (range)", "of FLOPs", "fill")


@dataclass(frozen=True)
class BenchConfig:
    """Runs to time."""

    presets: tuple[str, ...] = ("study-rec", "study-slide", "small-rec", "small-slide")
    """Presets, which also give lanes and segments."""
    rounds: int = 12
    """Rounds; the first two do not count."""
    record: bool = False
    """Record the table in results/evaluation/."""

    def __post_init__(self) -> None:
        machine.check_rounds(self.rounds)
        machine.check_presets(*self.presets)


class Memory:
    """Documents of random tokens."""

    bod_id = VOCAB - 1
    labelled = False

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self._tokens = np.random.default_rng(0).integers(0, VOCAB - 1, int(lengths.max()))

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]

    def targets(self, document: int, start: int, stop: int) -> np.ndarray:
        raise NotImplementedError


def training(config: TrainConfig, model: RecurrentModel, store: Memory) -> Iterator[int]:
    """Make training steps, and yield the tokens of each."""
    optimizer = build_optimizer(model, config.optim)
    state = model.initial_state(config.data.lanes)
    sizes: dict[str, Any] = {"segment_length": config.data.segment_length, "block": model.block, "seed": 0}
    lanes = TrainingLanes(store.lengths, lanes=config.data.lanes, **sizes)
    step = 0
    while True:
        batch = read_batch(store, lanes, step, 0, lanes.lanes)
        tokens_BT, targets_BT, fresh_BK = tensors(batch, torch.device("cpu"))
        nats_BT, _, state = predict(model, tokens_BT, state, fresh_BK, targets_BT, False)
        (nats_BT.sum() / lanes.valid_tokens(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.max_grad_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state = detach(state)
        yield lanes.valid_tokens(step)
        step += 1


def scoring(config: TrainConfig, model: RecurrentModel, store: Memory) -> Iterator[int]:
    """Score all documents again and again, and yield the tokens of each step."""
    while True:
        schedule = schedule_of(config, model, store)
        starts = starts_of(store.lengths, model.block)
        sums_3N = np.zeros((3, starts[-1]))
        segments = read_segments(model, store, schedule, (0, schedule.lanes), torch.device("cpu"))
        for step in range(schedule.steps):
            with torch.inference_mode():
                add_to(sums_3N, next(segments), model.block, starts)
            yield schedule.valid_tokens(step)


def schedule_of(config: TrainConfig, model: RecurrentModel, store: Memory) -> EvaluationLanes:
    """The schedule of scoring, with all documents in one share."""
    whole = Shard("", store, store.lengths, config.data.lanes, config.data.segment_length)
    [share] = whole.split(1, model.block)
    return EvaluationLanes(share.lengths, lanes=share.lanes, segment_length=share.segment_length, block=model.block)


def measure(name: str, rounds: int) -> tuple[results.Cell, ...]:
    """Print a line for one preset, and return its row under COLUMNS."""
    config = PRESETS[name]
    torch.manual_seed(0)
    model: RecurrentModel = config.model.build(VOCAB)
    slots = config.data.lanes * config.data.segment_length
    store = Memory((np.random.default_rng(1).lognormal(0, 1, 4 * config.data.lanes) * 2 * slots).astype(np.int64) + 1)
    schedule = schedule_of(config, model, store)
    made = {"train": training, "score": scoring}
    passes = {kind: make(config, model, store) for kind, make in made.items()}
    rates: list[dict[str, float]] = []
    for _ in range(rounds):
        rates.append({})
        for kind, steps in passes.items():
            model.train(kind == "train")
            began = time.process_time()
            tokens = next(steps)
            rates[-1][kind] = tokens / (time.process_time() - began)
    found = {kind: statistics.median(rate[kind] for rate in rates[2:]) for kind in made}
    ratios = [rate["score"] / rate["train"] for rate in rates[2:]]
    costs = config.model.costs(VOCAB)
    shown = machine.median_and_range(ratios)
    flops = f"{costs.computed_training_flops_per_token / costs.computed_flops_per_token:.2f}"
    fill = f"{schedule.fill():.0%}"
    print(f"  {name:16} {found['train']:>9,.0f} {found['score']:>9,.0f}   {shown}   {flops}   {fill}", flush=True)
    return name, round(found["train"]), round(found["score"]), shown, flops, fill


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("evaluation", "benchmarks.evaluation_speed", argv, config.record)
    torch.set_num_threads(1)  # with two threads the CPU seconds of both would count
    print(machine.describe())
    print(f"  {'tokens/s':16} {'training':>9} {'scoring':>9}   ratio, median (range)   of FLOPs   fill")
    rows = [measure(name, config.rounds) for name in config.presets]
    recorder.table("Scoring against training", COLUMNS, rows)


if __name__ == "__main__":
    cli.run(main)
