"""Measures the pipeline's cost: step time under Ray Train with tracking on, one worker, against a bare loop over the same batches.

    python -m benchmarks.pipeline_cost                  about eight minutes on two cores

Both run in turn, several times, each with one thread. The run under Ray is the ordinary `pipelines.train`: MLflow on sqlite, system
metrics on, a point of the curve every ten steps; its step time is taken from the times of its points, so that everything between
two points counts. The bare loop has the same model, optimizer, clipping, schedule of batches and State, and nothing else.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, results
from common.checks import check_options
from data_prep.store import SegmentStore
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records


@dataclass(frozen=True)
class BenchConfig:
    """The runs to compare, and how often."""

    store: str = "runs/store"
    """A store with python-source (make demo makes one)."""
    preset: str = "demo-rec"
    """Preset that is run."""
    steps: int = 120
    """Steps of each run; those before the second point of the curve do not count."""
    pairs: int = 4
    """Times that both are run."""
    record: bool = False
    """Record the ratios in results/speed/."""

    def __post_init__(self) -> None:
        check_options(self, steps=30, pairs=1)
        machine.check_presets(self.preset)


BARE = """
import sys, time, torch
from data_prep.lanes import TrainingLanes, read_batch
from data_prep.store import SegmentStore
from pipelines.terminal import cli
from pipelines.training.optim import build_optimizer, learning_rate
from pipelines.presets import PRESETS
config = cli.parse_preset(PRESETS, sys.argv[1:], "")
store = SegmentStore.open(config.data.store, config.data.corpus, "train")
lanes = TrainingLanes(store.lengths, lanes=config.data.lanes, segment_length=config.data.segment_length,
                      block=config.model.block, seed=config.seed, fingerprint=store.manifest.fingerprint)
torch.manual_seed(config.seed)
model = config.model.build(store.vocab_size)
optimizer = build_optimizer(model, config.optim)
state = model.initial_state(config.data.lanes)
for step in range(config.steps):
    if step == 20:
        began = time.perf_counter()
    batch = read_batch(store, lanes, step, 0, config.data.lanes)
    tokens, targets, fresh = map(torch.from_numpy, (batch.tokens_BT, batch.targets_BT, batch.fresh_BK))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, config.steps, config.optim, config.schedule)
    nats, state = model(tokens, state, fresh, targets)
    (nats.sum() / (targets >= 0).sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state = {name: tensor.detach() for name, tensor in state.items()}
print((time.perf_counter() - began) / (config.steps - 20))
"""


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("speed", "benchmarks.pipeline_cost", argv, config.record)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [config.preset, "--data.store", str(Path(config.store).absolute()), "--steps", str(config.steps)]
    data = cli.parse_preset(PRESETS, words, "").data
    store = SegmentStore.open(data.store, data.corpus, "train")  # refuses a missing store before any process starts
    fingerprint = store.manifest.fingerprint
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for pair in range(config.pairs):
            run = shlex.split(f"--num-workers 1 --run run-{pair} --checkpoint.every {config.steps} --validate-every 0")
            command = [sys.executable, "-m", "pipelines.train", *words, *run, "--root", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            piped = step_seconds(root / f"run-{pair}" / "metrics.jsonl", 20)
            bare_command = [sys.executable, "-c", BARE, *words]
            bare = float(
                subprocess.run(bare_command, check=True, capture_output=True, text=True, env=environment).stdout
            )
            ratios.append(piped / bare)
            print(
                f"pair {pair + 1}: Ray Train {piped * 1e3:.1f} ms, bare {bare * 1e3:.1f} ms, ratio {ratios[-1]:.3f}",
                flush=True,
            )
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f} of {len(ratios)} pairs ({min(ratios):.3f} to {max(ratios):.3f})")
    rows = [*((number, round(ratio, 4)) for number, ratio in enumerate(ratios, 1)), ("median", round(median, 4))]
    columns = ("pair", "step time under Ray Train with tracking / bare loop")
    recorder.table("Cost of the pipeline", columns, rows, fingerprint=fingerprint)


def step_seconds(metrics: Path, after: int) -> float:
    """Mean seconds of a step between the points of step ``after`` and the last."""
    points = [
        (record.step, record.time / 1e3)
        for record in read_records(metrics)
        if "train/bits_per_token" in record.metrics and record.step >= after
    ]
    first, began = points[0]
    last, ended = points[-1]
    return (ended - began) / (last - first)


if __name__ == "__main__":
    cli.run(main)
