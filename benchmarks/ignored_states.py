"""Compares the warning that a State is ignored with the end of the runs that got it, or would have got it.

    python -m benchmarks.ignored_states runs/paper runs/study

It reads the curves of all finished runs of recurrent models below these folders: the cost of clearing their states at each
validation after warm-up. A warning is right if this cost is below a thousandth of a bit at the run's end too (the mean of its last
two validations), else wrong. A run that ends so low without a warning counts as missed. It prints the curves, and these counts for
training's rule and others: other numbers of validations in a row, other least worths, and a worth below zero as ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import tyro

from common.errors import UserError
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records
from recur_models.health import MIN_WORTH, PATIENCE, is_ignored

UNUSED = 0.001
"""Bits per token: a State that is worth less than this at the end of a run was not used."""
WORTH = "validation/worth_of_states_bits"
Rule = Callable[[Sequence[float]], bool]


@dataclass(frozen=True)
class Curve:
    """Bits per token that clearing a run's states costs, over its training."""

    name: str
    steps: int
    points: tuple[tuple[int, float], ...]

    @property
    def end(self) -> float:
        return mean(worth for _, worth in self.points[-2:])

    def first(self, rule: Rule) -> int | None:
        """The step at which a rule first warns; None if it never does."""
        worths = [worth for _, worth in self.points]
        return next((self.points[i][0] for i in range(len(worths)) if rule(worths[: i + 1])), None)


def curves(folders: Sequence[Path], at_least: int) -> Iterator[Curve]:
    """Curves of the finished runs below ``folders`` with ``at_least`` validations or more; of equal curves only the first."""
    seen = set[tuple[tuple[int, float], ...]]()
    for path in sorted(file for folder in folders for file in folder.rglob("metrics.jsonl")):
        try:
            config = json.loads((path.parent / "config.json").read_bytes())
            steps = int(config["steps"])
            warmup = int(config["schedule"]["warmup_steps"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found = [(record.step, record.metrics[WORTH]) for record in read_records(path) if WORTH in record.metrics]
        points = tuple((step, worth) for step, worth in found if step > warmup)
        if len(points) >= at_least and points[-1][0] == steps and points not in seen:
            seen.add(points)
            yield Curve(str(path.parent), steps, points)


def in_a_row(count: int, least: float, below_zero: bool) -> Rule:
    def rule(worths: Sequence[float]) -> bool:
        told = [max(worth, 0.0) for worth in worths] if below_zero else worths
        return is_ignored(told, least, count)

    return rule


@dataclass(frozen=True)
class IgnoredStatesConfig:
    """Runs to read."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders in which runs are, however deep."""
    at_least: int = 3
    """Validations that a run must have after its warm-up."""


def main(argv: list[str]) -> None:
    config = cli.parse(IgnoredStatesConfig, argv, __doc__)
    found = list(curves(config.folders, config.at_least))
    if not found:
        raise UserError(
            f"no finished run of a recurrent model with {config.at_least} validations in {', '.join(map(str, config.folders))}"
        )
    print("run, and what clearing its states costs at each validation, in thousandths of a bit per token\n")
    for curve in found:
        print(f"  {curve.name}: {' '.join(f'{1000 * worth:.1f}' for _, worth in curve.points)}")
    unused = sum(curve.end < UNUSED for curve in found)
    print(f"\n{len(found)} runs, of which {unused} end with less than {UNUSED} bits\n")
    print(
        "| validations in a row | least worth | below zero | right | wrong | missed | first given, share of the run |"
    )
    print("|---|---|---|---|---|---|---|")
    for count, least, below_zero in product((1, 2, 3, 4), (3e-4, 1e-3, 3e-3), (True, False)):
        given = [(curve, curve.first(in_a_row(count, least, below_zero))) for curve in found]
        spoken = [(curve, step) for curve, step in given if step is not None]
        right = sum(curve.end < UNUSED for curve, _ in spoken)
        shares = [step / curve.steps for curve, step in spoken]
        ours = " (training's)" if (count, least, below_zero) == (PATIENCE, MIN_WORTH, False) else ""
        print(
            f"| {count}{ours} | {least} | {'ignored' if below_zero else 'used'} | {right} | {len(spoken) - right} "
            f"| {unused - right} | {f'{mean(shares):.2f}' if shares else '–'} |"
        )


if __name__ == "__main__":
    cli.run(main)
