"""Measures how much a checkpoint slows the training beside it, and how long a restore takes.

    python -m benchmarks.checkpoint_cost                 about fifteen minutes on two cores
    python -m benchmarks.checkpoint_cost --restore-preset pg19-rec-fixed-skip --every 0      the restore alone

One process trains and saves at every 50th step. The cost is the time of the steps during a save, less that of as many median steps
without one. It has two parts: the copy, for which the loop waits, and the thread, which shares the machine. A restore opens the
newest checkpoint (every byte is compared with its checksum) and loads weights, optimizer and State of 150M parameters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, results
from benchmarks.contenders import model_configs
from common.checks import check_options
from common.errors import UserError
from pipelines.checkpoints.checkpoint import Checkpoint, name_of
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import Saver
from pipelines.config.run import CheckpointConfig, TrainConfig
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.optim import build_optimizer
from pipelines.training.world import World
from recur_models import RecurrentModel, State, detach


@dataclass(frozen=True)
class BenchConfig:
    """The run to train and restore."""

    lanes: int = 2
    segment_length: int = 512
    """Tokens of a lane in a step. The shorter the step, the larger a checkpoint's share of the time: step_time.py has 2,048."""
    vocab: int = 256
    every: int = 50
    """Steps between two checkpoints; 0 leaves this part out."""
    rounds: int = 3
    """Rounds, each of --every steps and one checkpoint."""
    restore_preset: str = "pg19-rec-fixed-skip"
    """Preset of which a checkpoint is made and restored; empty leaves this part out."""
    restore_vocab: int = 32_000
    record: bool = False
    """Record the cost and the restore in results/reliability/."""

    def __post_init__(self) -> None:
        check_options(self, every=0, rounds=1)
        machine.check_presets(*filter(None, [self.restore_preset]))


class Training:
    """A model in training on random tokens, and a saver."""

    def __init__(self, model: RecurrentModel, config: TrainConfig, lanes: int, segment: int, root: Path) -> None:
        self.model = model
        self.lanes = lanes
        self.optimizer = build_optimizer(model, config.optim)
        root.mkdir()
        self.saver = Saver(RunFolder.parse(root), CheckpointConfig(keep=1, keep_best=0), World.alone(), lanes)
        self.tokens = torch.randint(model.vocab_size, (lanes, segment))
        self.fresh = torch.zeros(lanes, segment // model.block, dtype=torch.bool)
        self.state: State = model.initial_state(lanes)

    def step(self) -> None:
        nats, state = self.model(self.tokens, self.state, self.fresh, self.tokens)
        nats.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = detach(state)

    def save(self, step: int) -> None:
        state = {f"state/{name}": tensor for name, tensor in self.state.items()}
        own: dict[str, Any] = {"rng/cpu": torch.get_rng_state()}
        self.saver.save(step, model=self.model, optimizer=self.optimizer, per_lane=state, per_process=own, meta={})


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("reliability", "benchmarks.checkpoint_cost", argv, config.record)
    print(machine.describe())
    with tempfile.TemporaryDirectory() as folder:
        if config.every:
            measured = cost(config, Path(folder) / "cost")
            recorder.table("Cost of a checkpoint", tuple(measured), [rounded(measured)])
        if config.restore_preset:
            measured = restore(config, Path(folder) / "restore")
            recorder.table("Restore of a checkpoint", tuple(measured), [rounded(measured)])


def rounded(measured: Mapping[str, float]) -> list[float]:
    """The row of a table."""
    return [round(value, 5) for value in measured.values()]


def cost(config: BenchConfig, root: Path) -> dict[str, float]:
    """Train and save, and return the cost of a checkpoint, by metric."""
    model = model_configs("medium")["rec:fixed:skip"]
    preset = replace(PRESETS["small-rec"], model=model)
    training = Training(model.build(config.vocab), preset, config.lanes, config.segment_length, root)
    for warm_up in range(2):
        training.step()
        training.save(warm_up)
    training.saver.close()
    plain = []
    with_save = []
    copies = []
    for round in range(config.rounds):
        beside = True  # the steps beside which this round's checkpoint is written
        for step in range(config.every):
            began = time.perf_counter()
            training.step()
            if step == 0:
                copied = time.perf_counter()
                training.save(10 + round)
                copies.append(time.perf_counter() - copied)
            seconds = time.perf_counter() - began
            (with_save if beside else plain).append(seconds)
            beside = beside and training.saver._thread is not None and training.saver._thread.is_alive()
        training.saver.close()
    if len(plain) < 2:
        raise UserError(
            f"something was saved beside all but {len(plain)} steps: give a larger --every, or more --rounds"
        )
    usual = statistics.median(plain)
    extra = sum(seconds - usual for seconds in with_save) / config.rounds
    size = sum(path.stat().st_size for path in next(root.glob("checkpoints/step-*")).iterdir()) / 1e6
    parameters = sum(p.numel() for p in training.model.parameters()) / 1e6
    quartiles = " to ".join(f"{quartile:.3f}" for quartile in statistics.quantiles(plain, n=4)[::2])
    print(
        f"d 512, {parameters:.1f}M parameters, {config.lanes} lanes × {config.segment_length} tokens, {usual:.3f} s a step "
        f"(quartiles {quartiles}): a checkpoint of {size:.0f} MB every {config.every} steps costs {extra * 1e3:.0f} ms, "
        f"{extra / (config.every * usual):.2%} of the time; the copy alone takes {statistics.median(copies) * 1e3:.0f} ms",
        flush=True,
    )
    return {
        "share of the time": extra / (config.every * usual),
        "s a checkpoint": extra,
        "s a step": usual,
        "s for the copy alone": statistics.median(copies),
        "MB": size,
        "million parameters": parameters,
    }


def restore(config: BenchConfig, root: Path) -> dict[str, float]:
    """Save and restore a checkpoint, and return the seconds, by metric."""
    preset = PRESETS[config.restore_preset]
    model = preset.model.build(config.restore_vocab)
    training = Training(model, preset, 2, 2 * model.block, root)
    training.step()
    began = time.perf_counter()
    training.save(1)
    copied = time.perf_counter() - began
    training.saver.close()
    written = time.perf_counter() - began
    began = time.perf_counter()
    checkpoint = Checkpoint.open(root / "checkpoints" / name_of(1))
    opened = time.perf_counter() - began
    model.load_state_dict(checkpoint.weights())
    training.optimizer.load_state_dict(checkpoint.optimizer())
    checkpoint.lanes(0, 2)
    restored = time.perf_counter() - began
    size = sum(file["bytes"] for file in checkpoint.meta["files"].values()) / 1e6
    print(
        f"{config.restore_preset}, {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters, a checkpoint of "
        f"{size:,.0f} MB: "
        f"copied in {copied:.2f} s, on the disk after {written:.2f} s; restored in {restored:.2f} s, of which {opened:.2f} s "
        "for comparing every byte with its checksum",
        flush=True,
    )
    return {
        "s to restore": restored,
        "s for comparing every byte": opened,
        "s for the copy": copied,
        "s until it is on the disk": written,
        "MB": size,
    }


if __name__ == "__main__":
    cli.run(main)
