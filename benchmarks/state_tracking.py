"""Which models follow a state? Every model of the papers, and today's mixers, on tasks, at equal parameters and equal tokens.

    python -m benchmarks.state_tracking --root runs/state-tracking                  a day on two cores
    python -m benchmarks.state_tracking --tasks walk --models lstm transformer-xl --seeds 0

Prepares each task, trains the presets tiny-TASK-MODEL (studies/state_tracking.py) once a seed, reads the test split with
the newest checkpoint, prints a table of errors in percent, the best seed's and the worst's, and writes state_tracking.json and
state_tracking.png: errors over the position in a document. A rerun skips finished work and resumes a killed training.

- walk: Random Walk (staircase paper, section 4.1) on 3 × 3 cells with walls, 128 actions: the cell after each. Training
  also has walks of 8, 16, 32 and 64, as many actions of each length. The paper has 400 actions, and does not describe the grid.
- algorithm: programs of 100 statements with one variable (paper: 3): what each `print` prints. Training also has programs of
  5, 10, 20 and 40 statements, as many statements of each length. The staircase has six passes over chunks of four here.
- mqar: 4 pairs of 64 symbols, then each key again: recall, without a state that changes. mqar-16 and mqar-64 have 16 and 64 pairs
  of 128 and 256 symbols, and training has fewer pairs, too; in mqar-rewrites each of four keys gets a second value, which counts.
- arithmetic: sums of products modulo 5, of 64 numbers; training has sums of 2 to 20.
- permutation: products of 32 permutations of three things, S3. Those of five, S5, and the even ones, A5, are the hardest state to
  follow (Merrill et al. 2024): permutation-s5 and permutation-a5. Their training has products of 2, 4, 8 and 16, too, as many
  elements of each length: from 32 alone no model learns more than the first few.
- permutation-longer: products in S3 of 128, after training on 3 to 24 elements. permutation-parity: the same of two things.

Mixers have one layer for products and two elsewhere, and for recall the gates and convolutions of their papers
(studies/state_tracking.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from benchmarks import machine
from common.errors import UserError, nearest
from common.files import write_atomically
from pipelines.terminal import cli
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import plain_table
from studies.papers.tables import Run
from studies.papers.today import TASK_DATA
from studies.papers.trainings import StudyFolder, Training, make
from studies.state_tracking import MODELS, TASKS


@dataclass(frozen=True)
class BenchConfig:
    """Trainings to run, and their folder."""

    root: Path = Path("runs/state-tracking")
    """Folder of store, runs, figures."""
    tasks: tuple[str, ...] = ("walk", "algorithm", "mqar", "permutation")
    """Tasks: walk, algorithm, arithmetic, mqar, mqar-16, mqar-64, mqar-rewrites, permutation, permutation-longer,
    permutation-parity, permutation-a5 and permutation-s5."""
    models: tuple[str, ...] = tuple(MODELS)
    """Models of studies/state_tracking.py."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, each with one training of every model on every task."""
    at_once: int = 2
    """Trainings side by side, of one thread each."""
    train: bool = True
    """Whether to train the missing runs; otherwise only the finished ones are compared."""

    def __post_init__(self) -> None:
        for chosen, known in ((self.tasks, TASKS), (self.models, MODELS)):
            unknown = [name for name in chosen if name not in known]
            if unknown:
                raise UserError(f"{unknown[0]!r} is not among these: {nearest(unknown[0], known)}")
        for name in ("tasks", "models", "seeds"):
            if not getattr(self, name):
                raise UserError(f"--{name} names nothing: give one or more, or leave it out")
        if self.at_once < 1:
            raise UserError(f"--at-once is {self.at_once}: give 1 or more")


@dataclass(frozen=True)
class Result:
    """One training on one task."""

    task: str
    model: str
    seed: int
    parameters: int
    tokens: int
    """Tokens read in training. A document begins a block, so models with longer blocks read a few less of short documents."""
    error: float
    """Share of the test split's labels that are wrong, 0 … 1."""
    positions: list[float]
    errors: list[float]
    """Share of wrong labels around each position, in one or more of the model's blocks."""
    labels: list[int]
    """Number of labels around each position."""


def training(config: BenchConfig, task: str, model: str, seed: int) -> Training:
    place = StudyFolder(config.root.absolute(), set={"use_gpu": "no"})
    return place.training(Run(f"tiny-{task}-{model}", TASK_DATA[task]), seed)


def read(task: str, model: str, seed: int, training: Training) -> Result | None:
    """The result of a trained model on the test split; None if it is not trained to the end and scored."""
    found = training.evaluation("test") if training.is_done() else None
    if found is None:
        return None
    score = found.carried
    tokens = np.array(score.bucket_tokens)
    errors = np.array(score.bucket_errors)
    kept = np.flatnonzero(tokens)
    return Result(
        task, model, seed, found.parameters, found.train_tokens, score.error_rate,
        (kept * score.bucket + score.bucket / 2).tolist(), (errors[kept] / tokens[kept]).tolist(),
        tokens[kept].tolist(),
    )  # fmt: skip


def table(results: list[Result], config: BenchConfig) -> Table:
    """Errors in percent: the best seed's, and the worst's where there are several."""
    rows: list[list[str]] = []
    for model in config.models:
        cells = []
        for task in config.tasks:
            errors = sorted(100 * r.error for r in results if (r.task, r.model) == (task, model))
            spread = f" ({errors[-1]:.1f})" if len(errors) > 1 else ""
            cells.append(f"{errors[0]:.1f}{spread}" if errors else "–")
        sizes = [r.parameters for r in results if (r.task, r.model) == (config.tasks[0], model)]
        rows.append([model, *cells, f"{sizes[0]:,}" if sizes else "–"])
    return plain_table(["model", *config.tasks, f"parameters ({config.tasks[0]})"], rows)


def plot(results: list[Result], config: BenchConfig, path: Path) -> None:
    """Draw errors over position, a panel for each task, with the best seed of each model. The first models have wider lines, so
    that all are seen where several have no errors."""
    tasks = [task for task in config.tasks if any(r.task == task for r in results)]
    figure = Figure(figsize=(4.2 * len(tasks) + 2.4, 4.2), layout="constrained")
    panels: list[Any] = list(figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0])
    for axes, task in zip(panels, tasks, strict=True):
        for number, model in enumerate(MODELS):
            found = [r for r in results if (r.task, r.model) == (task, model)]
            if found:
                best = min(found, key=lambda r: r.error)
                places, shares = coarse(best)
                dashes = "-" if number < 4 else "--"
                if number >= 8:
                    dashes = ":"
                width = max(1.5, 7.5 - 2 * number)
                style = {"color": f"C{number % 10}", "linestyle": dashes, "linewidth": width}
                axes.plot(places, [100 * share for share in shares], label=model, **style)
        axes.set_title(task)
        axes.set_xlabel("position in the document, tokens")
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("labels that are wrong, %")
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    named = [name for name in MODELS if name in shown]
    figure.legend([shown[name] for name in named], named, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=130)


def coarse(result: Result) -> tuple[list[float], list[float]]:
    """The curve in at most 16 points, each of about as many labels: positions and errors."""
    labels = np.array(result.labels)
    point = (np.cumsum(labels) - labels / 2) * min(16, len(labels)) // labels.sum()
    groups = [np.flatnonzero(point == number) for number in np.unique(point)]

    def means(values: list[float]) -> list[float]:
        return [float(np.average(np.array(values)[group], weights=labels[group])) for group in groups]

    return means(result.positions), means(result.errors)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    runs = [(task, model, seed) for seed in config.seeds for task in config.tasks for model in config.models]
    print(
        f"{machine.describe()}\n{len(runs)} trainings, {config.at_once} at once, below {config.root}",
        flush=True,
    )
    trainings = {run: training(config, *run) for run in runs}
    if config.train:
        make(list(trainings.values()), config.at_once, scored="test")
    results = list(filter(None, (read(*run, each) for run, each in trainings.items())))
    if not results:
        raise UserError(f"there is no training below {config.root}: leave out --no-train")
    rows = [vars(result) for result in results]
    write_atomically(config.root / "state_tracking.json", json.dumps(rows, indent=1).encode())
    plot(results, config, config.root / "state_tracking.png")
    print("labels of the test split that are wrong, %: the best seed's (the worst's)")
    print_wide(table(results, config), 120)
    print(f"  figure  {cli.shown(config.root / 'state_tracking.png')}")


if __name__ == "__main__":
    cli.run(main)
