"""Peak memory of a training step against the length of the segment, with and without activation checkpointing.

    python -m benchmarks.step_memory                      about five minutes on two cores
    python -m benchmarks.step_memory --size medium --lengths 1024 2048 4096 8192

Every number is the highest resident memory of a process of its own during two steps (contenders.py), less what it had before the
model was built. A line through the lengths gives MiB per 1,024 tokens; the furthest that a number lies from it, in percent,
says how linear memory is. Where block-recurrent-transformer-pytorch is installed, it is weighed too.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks import machine, results
from benchmarks.contenders import PEER, SIZES, Contender, Peer, Size, model_configs, peer_version
from pipelines.terminal import cli


@dataclass(frozen=True)
class BenchConfig:
    """Models to weigh."""

    size: Size = "small"
    """small: d 256, 6 layers, window 128; medium: d 512, 8 layers, window 256; batch 2."""
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    """Tokens of a segment."""
    models: tuple[str, ...] = ("rec:fixed:skip", "slide")
    """Models of benchmarks/contenders.py."""
    record: bool = False
    """Record the table in results/speed/."""


def weigh(size: Size, model: str, recompute: str, length: int) -> None:
    """Print the MiB that two steps take at most, in this process."""
    before = machine.resident()
    config = model_configs(size).get(model)
    contender = Contender(config, length, recompute) if config else Peer(SIZES[size], length)  # pyrefly: ignore
    contender.step()
    contender.step()
    print((machine.resident("VmHWM") - before) / 2**20)


def main(argv: list[str]) -> None:
    if argv[:1] == ["--weigh"]:
        size, model, recompute, length = argv[1:]
        weigh(size, model, recompute, int(length))  # pyrefly: ignore
        return
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("speed", "benchmarks.step_memory", argv, config.record)
    weighed = list(product(config.models, ("nothing", "layer", "block")))
    version = peer_version()
    if version:
        weighed.append((f"{PEER} {version}", "nothing"))
    print(
        f"{machine.describe()}\n{config.size}, batch 2; MiB at most during a step, segments of …\n{'model':44} recomputed",
        end="",
    )
    print(*(f"{length:>9,}" for length in config.lengths), " MiB per 1,024 tokens (furthest off)")
    rows: list[tuple[results.Cell, ...]] = []
    for model, recompute in weighed:
        peaks = []
        print(f"{model:44} {recompute:10}", end="", flush=True)
        for length in config.lengths:
            words = ["--weigh", config.size, model, recompute, str(length)]
            command = [sys.executable, "-m", "benchmarks.step_memory", *words]
            peaks.append(float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            print(f" {peaks[-1]:>9,.0f}", end="", flush=True)
        slope, start = np.polyfit(config.lengths, peaks, 1)
        off = max(abs(start + slope * length - peak) / peak for length, peak in zip(config.lengths, peaks, strict=True))
        print(f"  {slope * 1024:>8.1f} ({off:.1%})", flush=True)
        rows.append((model, recompute, *map(round, peaks), f"{slope * 1024:.1f} ({off:.1%})"))
    lengths = [f"{length:,}" for length in config.lengths]
    columns = (config.size, "recomputed", *lengths, "MiB per 1,024 tokens (furthest from a line)")
    recorder.table("Peak memory of a step", columns, rows)


if __name__ == "__main__":
    cli.run(main)
