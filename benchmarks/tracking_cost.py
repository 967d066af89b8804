"""Measures the cost of tracking in a training step: MLflow on sqlite and through a server, against metrics.jsonl alone, in turn
in one process.

    python -m benchmarks.tracking_cost                  about four minutes on two cores

Each phase trains the demo's model for some steps, in this process and with one thread, with a point of the curve every ten steps
and a tracker as a run has it: system metrics on, its thread beside training, the server on this machine too. The three are phases
of one round, whose order changes from round to round; a round's ratio is of its own phases. A busy machine changes the elapsed time
more than tracking does. So the processor time of all threads but the training one is compared too, as a share of a step: with one
core alone a step would lose this share.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, results
from benchmarks.cpu_precision import Training
from benchmarks.machine import describe
from common.checks import check_options
from pipelines.config.parts import DataConfig
from pipelines.config.run import TrackingConfig
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.tracking import Tracker
from tests.mlflow_server import serve

VOCABULARY = 2048
METRICS = 10
"""Metrics of a point, as many as the demo's rec logs."""
KINDS = ("metrics.jsonl alone", "sqlite", "server")


@dataclass(frozen=True)
class BenchConfig:
    """The training, and the length of its phases."""

    preset: str = "demo-rec"
    """Preset whose model is trained, on tokens drawn at random."""
    steps: int = 40
    """Steps of a phase."""
    rounds: int = 6
    """Times that all three are run."""
    log_every: int = 10
    """Steps between two points."""
    record: bool = False
    """Record the table in results/tracking/."""

    def __post_init__(self) -> None:
        check_options(self, steps=1, rounds=1, log_every=1)
        machine.check_presets(self.preset)


def step(training: Training, data: DataConfig) -> float:
    """Make one step on random tokens. Returns its loss."""
    tokens_BT = torch.randint(VOCABULARY, (data.lanes, data.segment_length))
    return training.step(tokens_BT, tokens_BT.roll(-1, 1))


def phase(training: Training, data: DataConfig, tracker: Tracker, steps: int, log_every: int) -> tuple[float, float]:
    """Seconds of a step, and processor seconds of all other threads in a step."""
    began = time.perf_counter()
    others = time.process_time() - time.thread_time()
    for number in range(1, steps + 1):
        loss = step(training, data)
        if number % log_every == 0:
            tracker.log({f"train/metric_{i}": loss + i for i in range(METRICS)}, number)
    return (time.perf_counter() - began) / steps, (time.process_time() - time.thread_time() - others) / steps


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("tracking", "benchmarks.tracking_cost", argv, config.record)
    torch.set_num_threads(1)
    print(describe())
    preset: Any = PRESETS[config.preset]
    data = preset.data
    training = Training(preset.model, VOCABULARY, data.lanes, torch.float32)
    for _ in range(5):
        step(training, data)
    wall: dict[str, list[float]] = {kind: [] for kind in KINDS}
    others: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serve(root))
        base = TrackingConfig(system_metrics="on")
        trackings = dict(zip(KINDS, (replace(base, backend="none"), base, replace(base, uri=server.uri)), strict=True))
        for number in range(config.rounds):
            for kind in random.Random(number).sample(KINDS, len(KINDS)):
                tracker = Tracker.start(trackings[kind], root, root / f"{number}-{kind}", kind, {"model.layers": 4}, {})
                while trackings[kind].backend == "mlflow" and not tracker.run_id:
                    time.sleep(0.01)
                time.sleep(0.5)
                seconds, beside = phase(training, data, tracker, config.steps, config.log_every)
                tracker.finish()
                wall[kind].append(seconds)
                others[kind].append(beside / seconds)
            print(
                f"round {number + 1}: " + ", ".join(f"{kind} {wall[kind][-1] * 1e3:.1f} ms" for kind in KINDS),
                flush=True,
            )
    alone = KINDS[0]
    print(f"a step takes {statistics.median(wall[alone]) * 1e3:.0f} ms with {alone}, median")
    rows = []
    for kind in KINDS[1:]:
        ratios = [a / b - 1 for a, b in zip(wall[kind], wall[alone], strict=True)]
        beside = [a - b for a, b in zip(others[kind], others[alone], strict=True)]
        time_added = machine.median_and_range(ratios, "+.2%")
        time_beside = machine.median_and_range(beside, ".2%")
        print(
            f"{kind}: step time {time_added}, median (range) of {len(ratios)} rounds; processor time beside training, of a "
            f"step, {time_beside}"
        )
        rows.append((kind, time_added, time_beside))
    columns = ("tracking", f"step time against {alone}, median (range)", "processor time beside training, of a step")
    recorder.table("Cost of tracking", columns, rows)


if __name__ == "__main__":
    cli.run(main)
