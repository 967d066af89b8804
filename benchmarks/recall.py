"""Does the State remember? A name is given in a document's first line and asked for many windows later.

    python -m benchmarks.recall --root runs/recall

The corpus is `names` (data_prep/corpora/names.py): a line is 16 bytes, which is a window of the models, so that a line's distance
from the first is a number of windows. studies/recall.py says how names are asked for: State is all that crosses from line to line.

Prepares the corpus, trains recall-rec and recall-slide (studies/names.py), whose parameters are nearly equal, prints a table of
accuracy over distance and writes recall.png. A rerun skips finished work. Every model of the papers, and today's, has a preset of
the same size: `--presets recall-delta recall-mamba2 recall-armt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.results import Recorder
from common.errors import UserError, nearest
from data_prep.corpora.names import CONSONANTS, NAMES, TRAIN_LINES, VOWELS, Names
from data_prep.store import SegmentStore
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.terminal import cli
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import plain_table
from recur_models import SlideConfig
from studies.names import NAMES_PRESETS
from studies.papers.tables import Data, Run
from studies.papers.trainings import StudyFolder, make
from studies.recall import Recall, measure_recall

CHANCE_LETTER = (1 / len(CONSONANTS) + 1 / len(VOWELS)) / 2
"""Share of letters right for a model that knows how names are made and nothing else."""


@dataclass(frozen=True)
class RecallConfig:
    """The trainings, and where everything is written."""

    root: Path = Path("runs/recall")
    """Folder of store, runs and figure."""
    presets: tuple[str, ...] = ("recall-rec", "recall-slide")
    """Presets to train."""
    seed: int = 0
    """Seed of the models; the corpus has its own."""
    distances: tuple[int, ...] = Names.distances
    """Distances from the name to the question, in windows, out of those in test documents. Training has distances up to 12."""
    at_once: int = 2
    """Trainings side by side."""
    record: bool = False
    """Record the table in results/recall/."""

    def __post_init__(self) -> None:
        unknown = set(self.presets) - NAMES_PRESETS.keys()
        if unknown:
            raise UserError(f"presets names {min(unknown)!r}: {nearest(min(unknown), NAMES_PRESETS)}")
        absent = set(self.distances) - set(Names.distances)
        if absent or not self.distances:
            raise UserError(f"distances are {self.distances}: give some of {', '.join(map(str, Names.distances))}")
        if self.at_once < 1:
            raise UserError(f"--at-once is {self.at_once}: give 1 or more")


def plot(results: dict[str, dict[int, Recall]], reach: int, path: Path) -> None:
    """Accuracy over distance, a curve for each model, and hollow points where its recurrent states were cleared."""
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, recalls) in enumerate(results.items()):
        colour = f"C{number}"
        short = name.removeprefix("recall-")
        axes.plot(list(recalls), [100 * r.names for r in recalls.values()], "o-", color=colour, label=short)
        cleared = [100 * r.names_cleared for r in recalls.values() if r.names_cleared is not None]
        if cleared:
            label = f"{short}, its recurrent states cleared just before the question"
            hollow = {"markerfacecolor": "white", "markersize": 4, "zorder": 3}
            axes.plot(list(recalls), cleared, "o--", color=colour, label=label, **hollow)
    for windows, what in (
        (reach, "as far as slide's\nlayers reach"),
        (TRAIN_LINES - 1, "no document in\ntraining is longer"),
    ):
        axes.axvline(windows, color="0.6", linestyle=":")
        axes.text(windows + 0.2, 72, what, color="0.35", fontsize=9, va="top")
    axes.set_title("A name stands in the first line; how often is it known when a later line asks for it?", fontsize=11)
    axes.set_xlabel("windows (of 16 bytes) between name and question")
    axes.set_ylabel("names right, %")
    axes.set_ylim(-4, 104)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9, loc="center right", bbox_to_anchor=(1, 0.33))
    figure.savefig(path, dpi=150)


def table(results: dict[str, dict[int, Recall]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: names right, and in brackets letters right, in per cent."""

    def cell(names: float | None, letters: float | None) -> str:
        return "–" if names is None or letters is None else f"{100 * names:.0f} ({100 * letters:.0f})"

    columns = ["windows"]
    for name, recalls in results.items():
        columns.append(name)
        if next(iter(recalls.values())).names_cleared is not None:
            columns.append(f"{name}, states cleared")
    rows = []
    for distance in next(iter(results.values())):
        cells = [str(distance)]
        for recalls in results.values():
            r = recalls[distance]
            cells.append(cell(r.names, r.letters))
            if r.names_cleared is not None:
                cells.append(cell(r.names_cleared, r.letters_cleared))
        rows.append(cells)
    return columns, rows


def main(argv: list[str]) -> None:
    config = cli.parse(RecallConfig, argv, __doc__)
    recorder = Recorder("recall", "benchmarks.recall", argv, config.record)
    place = StudyFolder(config.root.absolute(), set={"use_gpu": "no"})
    trainings = {name: place.training(Run(name, Data(Names.name, "bytes")), config.seed) for name in config.presets}
    make(list(trainings.values()), config.at_once)
    data = next(iter(trainings.values())).config.data
    train, test = (SegmentStore.open(data.store, Names.name, split) for split in ("train", "test"))
    results = {}
    for name, training in trainings.items():
        model = model_of(find_checkpoint(training.folder))
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
        results[name] = {distance: measure_recall(model, test, distance) for distance in config.distances}
    models = [training.config.model for training in trainings.values()]
    reach = max((model.layers for model in models if isinstance(model, SlideConfig)), default=0)
    figure = config.root / "recall.png"
    plot(results, reach, figure)
    columns, rows = table(results)
    shown = plain_table(columns, rows)
    shown.title = "names (letters) right, %"
    print_wide(shown, 120)
    recorder.table("A name asked for many windows later", columns, rows, fingerprint=train.manifest.fingerprint)
    print(
        f"test split {test.manifest.fingerprint}, {Names.test} documents at each distance; by chance 1 name in {len(NAMES):,} "
        f"and {CHANCE_LETTER:.0%} of letters\n  figure  {cli.shown(figure)}"
    )


if __name__ == "__main__":
    cli.run(main)
