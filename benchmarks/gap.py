"""Draws how runs differ in validation while they train: each run's bits per token less the first run's, at equal tokens.

    python -m benchmarks.gap runs/study/study-slide runs/study/study-rec runs/study/study-xl --output gap.png

Curves of runs that differ by a per cent lie on one another; their difference does not. Dashed: with the recurrent states cleared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import tyro
from matplotlib.figure import Figure

from common.errors import UserError
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records

CARRIED = "validation/bits_per_token"
CLEARED = "validation/bits_per_token_states_cleared"


@dataclass(frozen=True)
class GapConfig:
    """Runs to compare, and the picture."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs: first the one that the others are compared with."""
    output: Path = Path("gap.png")
    """Picture to write."""


def validations(run: Path, key: str) -> dict[int, float]:
    """The metric by tokens read in training. Raises ValueError when the run has no validation."""
    points = {
        int(r.metrics["train/tokens"]): r.metrics[key]
        for r in read_records(run / "metrics.jsonl")
        if {key, "train/tokens"} <= r.metrics.keys()
    }
    if not points and key == CARRIED:
        raise UserError(f"{run}/metrics.jsonl has no validation in it: name the folder of a run that has validated")
    return points


def gaps(run: Path, base: Path, key: str = CARRIED) -> dict[int, float]:
    """Bits per token of ``run`` less those of ``base``, by tokens, where both have validated after equally many tokens.

    Raises ValueError when there is no such point, though ``run`` has validated.
    """
    ours = validations(run, key)
    theirs = validations(base, CARRIED)
    both = {tokens: bits - theirs[tokens] for tokens, bits in ours.items() if tokens in theirs}
    if ours and not both:
        raise UserError(f"{run} and {base} have not validated after equally many tokens: compare runs on one corpus")
    return both


def main(argv: list[str]) -> None:
    config = cli.parse(GapConfig, argv, __doc__)
    if len(config.runs) < 2:
        raise UserError("name two runs or more: the first is what the others are compared with")
    base, *others = config.runs
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.4", linewidth=1, label=base.name)
    for number, run in enumerate(others):
        colour = f"C{number}"
        for key, style, what in ((CARRIED, "o-", ""), (CLEARED, "o--", ", recurrent states cleared")):
            points = gaps(run, base, key)
            if points:
                face = colour if key == CARRIED else "none"
                axes.plot(
                    [tokens / 1e6 for tokens in points],
                    list(points.values()),
                    style,
                    color=colour,
                    markerfacecolor=face,
                    label=run.name + what,
                )
                last = max(points)
                half = [gap for tokens, gap in points.items() if tokens > last / 2]
                mean = math.fsum(half) / len(half)
                print(f"{run.name}{what}: {points[last]:+.4f} after {last:,} tokens, {mean:+.4f} over the second half")
    axes.set_xlabel("tokens read in training, millions")
    axes.set_ylabel(f"validation bits per token less those of {base.name}")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(config.output, dpi=150)
    print(f"  figure  {cli.shown(config.output)}")


if __name__ == "__main__":
    cli.run(main)
