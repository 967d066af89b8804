"""Step time of every model against `slide`, and against a public package where it is installed; all take turns in one process.

    python -m benchmarks.step_time                      about twelve minutes on two cores
    python -m benchmarks.step_time --rounds 20 --sizes small --lanes 8

Each round every model makes one step (contenders.py), and each round gives one ratio to slide's step of the same round. Beside it
stands the ratio of FLOPs, forward and backward, as our code does them (recur_models/costs.py). The paper (Table 1) has 0.99 for
rec:fixed:skip, 1.06 for lstm:dual, 1.35 to 1.40 for feedback, 2.11 for XL:2048 and 1.94 for memorizing. The floor: FLOPs at the
rate of a 2,048² float32 product measured in the same run.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from benchmarks import machine, results
from benchmarks.contenders import LANES, SEGMENT, SIZES, Size, contenders, model_configs
from common.checks import check_fields
from common.choices import Compile
from common.errors import UserError
from pipelines.terminal import cli
from pipelines.training.utilisation import matrix_rate

COLUMNS = ("parameters", "s a step", "/ slide, median (range)", "FLOPs / slide", "of the matrix rate")


@dataclass(frozen=True)
class BenchConfig:
    """Models to time."""

    sizes: tuple[Size, ...] = ("small", "medium")
    """small: d 256, 6 layers, window 128, segment 1,024; medium: d 512, 8 layers, window 256, segment 2,048."""
    rounds: int = 12
    """Rounds; the first two do not count."""
    only: tuple[str, ...] = ()
    """Contenders whose name begins with one of these, besides slide; by default all."""
    lanes: int = LANES
    """Lanes that a step reads. The presets of the small size read 8."""
    compile: Compile = "no"
    """torch.compile of our models, in the rounds that do not count."""
    record: bool = False
    """Record a table for each size in results/speed/."""

    def __post_init__(self) -> None:
        machine.check_rounds(self.rounds)
        check_fields("", self, lanes=1)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("speed", "benchmarks.step_time", argv, config.record)
    print(machine.describe())
    for name in config.sizes:
        rows = measure(name, config)
        recorder.table(f"Training step, {name}", (name, *COLUMNS), rows)


def measure(name: Size, config: BenchConfig) -> list[tuple[results.Cell, ...]]:
    """Time all contenders of one size and print a line for each. Returns a row of each: its label, then a cell for each of
    COLUMNS.
    """
    made = contenders(name, config.compile, config.lanes)
    chosen = {
        label: build()
        for label, build in made.items()
        if not config.only or label == "slide" or label.startswith(config.only)
    }
    if config.only and len(chosen) == 1 and not "slide".startswith(config.only):
        raise UserError(f"--only names none of {', '.join(made)}")
    times = machine.seconds_in_turns(config.rounds, {label: contender.step for label, contender in chosen.items()})
    rate = matrix_rate(torch.device("cpu"), torch.float32, size=2048, repeats=3)
    size = SIZES[name]
    configs = model_configs(name)
    print(
        f"{name}: d {size['d_model']}, {size['layers']} layers (slide, xl and memorizing: one more), window {size['window']}, "
        f"segment {SEGMENT[name]}, batch {config.lanes}; {config.rounds - 2} rounds; 2,048² products at {rate / 1e9:.0f} GFLOP/s\n"
        f"  {'':44} {'parameters':>11} {'s a step':>9} {'/ slide, median (range)':>26} {'FLOPs / slide':>14} {'of the rate':>12}"
    )
    rows: list[tuple[results.Cell, ...]] = []
    for label, contender in chosen.items():
        seconds = statistics.median(times[label])
        shown = machine.ratios(times[label], times["slide"], ".3f")
        flops = rated = "–"
        if label in configs:
            flops = f"{contender.flops / chosen['slide'].flops:.3f}"
            rated = f"{contender.flops / seconds / rate:.0%}"
        print(
            f"  {label:44} {contender.parameters:>11,} {seconds:>9.3f} {shown:>26} {flops:>14} {rated:>12}", flush=True
        )
        rows.append((label, contender.parameters, round(seconds, 4), shown, flops, rated))
    for label in chosen:
        if label not in configs and "rec:fixed:skip" in chosen:
            print(f"  {label} / rec:fixed:skip: {machine.ratios(times[label], times['rec:fixed:skip'])}")
    return rows


if __name__ == "__main__":
    cli.run(main)
