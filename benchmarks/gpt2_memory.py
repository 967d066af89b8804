"""Memory and time of training GPT-2 with recurrence through many windows, recomputed from window to window and not (section 3.2).

    python -m benchmarks.gpt2_memory                                                                     a size for a CPU; minutes
    python -m benchmarks.gpt2_memory --layers 12 --d-model 768 --heads 12 --window 300 --windows 1 5     GPT-2 small

The bottleneck between windows is h_prev. With `--recompute block` a pass keeps the outputs of a window, and the backward pass makes
each window's inside (M) again. The paper counts M + 2·k values a window, z and h_prev of k each. Here only h_prev is kept, beside
the window's ids, its results, and the state of the random numbers.

Times are those of the processor, one thread: other work on the machine counts less. A round gives one ratio: a step with
recomputing over a step without. The ideal ratio has one more forward pass.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks import machine
from benchmarks.contenders import LANES, Contender
from benchmarks.kept import kept_bytes
from common.errors import UserError
from pipelines.terminal import cli
from recur_models import GPT2RecConfig, Recompute

KINDS: tuple[Recompute, ...] = ("nothing", "block")


@dataclass(frozen=True)
class BenchConfig:
    """Models to weigh and time."""

    windows: tuple[int, ...] = (1, 5, 20, 60)
    """Windows of a step."""
    window: int = 64
    """Tokens of a window; none overlap."""
    d_model: int = 256
    """Width; the MLP is four times as wide."""
    layers: int = 4
    heads: int = 4
    rounds: int = 4
    """Rounds of steps; the first does not count."""
    plot: Path | None = None
    """File for the curves (PNG)."""

    def __post_init__(self) -> None:
        if len({*self.windows}) < 2 or min(self.windows) < 1:
            raise UserError(f"--windows {' '.join(map(str, self.windows))}: growth needs two numbers, each 1 or more")
        if self.rounds < 2:
            raise UserError(f"--rounds is {self.rounds}, and the first does not count: give 2 or more")


@dataclass(frozen=True)
class Weighed:
    """Memory and time for a number of windows."""

    windows: int
    kept: dict[Recompute, int]
    """Bytes that a forward pass keeps for the backward pass, by kind of recomputing."""
    ratios: tuple[float, ...]
    """Time of a recomputed step over that of a kept one, for each pair."""
    ideal: float
    """This ratio if recomputing cost one more forward pass and nothing else: 1 + forward / step."""


def contender(config: BenchConfig, windows: int, kind: Recompute) -> Contender:
    sizes: dict[str, Any] = {name: getattr(config, name) for name in ("window", "layers", "d_model", "heads")}
    model = GPT2RecConfig(**sizes, mlp_dim=4 * config.d_model, positions=config.window, dropout=0.0)
    return Contender(model, windows * config.window, kind)


def weigh(config: BenchConfig, windows: int) -> Weighed:
    every, less = (contender(config, windows, kind) for kind in KINDS)
    ratios = []
    forwards = []
    for _ in range(config.rounds):
        step = machine.cpu_seconds(every.step)
        ratios.append(machine.cpu_seconds(less.step) / step)
        forwards.append(machine.cpu_seconds(every.loss) / step)
    of_kind: dict[Recompute, int] = {"nothing": kept_bytes(every.loss), "block": kept_bytes(less.loss)}
    return Weighed(windows, of_kind, tuple(ratios[1:]), 1 + statistics.median(forwards[1:]))


def growth(rows: list[Weighed], kind: Recompute) -> float:
    """Bytes that one more window keeps in a lane, from the row of fewest windows to that of most."""
    few = rows[0]
    many = rows[-1]
    return (many.kept[kind] - few.kept[kind]) / (many.windows - few.windows) / LANES


def plot(rows: list[Weighed], inside: int, config: BenchConfig, path: Path) -> None:
    """Draw the bytes for the backward pass over windows, on logarithmic axes, with the paper's formula."""
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    windows = [row.windows for row in rows]
    axes.plot(windows, [r.kept["nothing"] / 2**20 for r in rows], "o-", color="C1", label="nothing recomputed")
    recomputed = [(inside + r.kept["block"]) / 2**20 for r in rows]
    axes.plot(windows, recomputed, "o-", color="C0", label="recomputed from window to window: M and what is kept")
    papers = [(inside + 2 * 4 * config.d_model * LANES * n) / 2**20 for n in windows]
    axes.plot(windows, papers, ":", color="0.2", label="M + 2·k float32 values a window (section 3.2)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(windows, [str(n) for n in windows])
    axes.minorticks_off()
    axes.set_xlabel(f"windows of {config.window} tokens in a step")
    axes.set_ylabel("MiB for the backward pass")
    axes.set_title(f"GPT-2 with recurrence: d {config.d_model}, {config.layers} layers, {LANES} lanes", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    torch.set_num_threads(1)
    inside = kept_bytes(contender(config, 1, "nothing").loss)
    print(
        f"{machine.describe()}\nd {config.d_model}, {config.layers} layers, windows of {config.window}, {LANES} lanes, "
        f"{config.rounds - 1} rounds; M, a window's inside, is {inside / 2**20:.1f} MiB\n"
        f"  {'windows':>7} {'MiB kept':>9} {'recomputed: M +':>16} {'less by':>8} {'step / kept step (range)':>25} {'ideal':>6}"
    )
    rows = []
    for windows in sorted({*config.windows}):
        row = weigh(config, windows)
        rows.append(row)
        every, less = (row.kept[kind] for kind in KINDS)
        step = machine.median_and_range(row.ratios)
        fewer = every / (inside + less)
        print(
            f"  {windows:>7} {every / 2**20:>9.1f} {less / 2**20:>16.3f} {fewer:>8.1f} {step:>25} {row.ideal:>6.2f}",
            flush=True,
        )
    papers = 2 * 4 * config.d_model
    random = torch.get_rng_state().nbytes  # one state for all lanes
    every = growth(rows, "nothing")
    less = growth(rows, "block") - random / LANES
    print(
        f"  a window more keeps {every:,.0f} bytes a lane; recomputed {less:,.0f}, {less / papers:.2f} of the paper's 2·k values "
        f"({papers:,} bytes), {papers // 2:,} of them h_prev; beside it {random:,} bytes of random numbers' state"
    )
    if config.plot:
        plot(rows, inside, config, config.plot)


if __name__ == "__main__":
    cli.run(main)
