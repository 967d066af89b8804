"""Does the State remember? A name is given in a document's first line and asked for many windows later.

    python -m benchmarks.recall --root runs/recall

A line is 16 bytes, which is a window of both models, so that a line's distance from the first is a number of windows:

    my name is kato        line 0
    fig oak zip rye        filler: four words of a list
    your name: kato        a question and its answer
    ...

Training documents have 13 lines and ask at random: each line after the first is a question with a probability of 1/4, so that
short distances teach what long ones need. A test document asks once, in its last line, after so many windows; its name (consonant,
vowel, consonant, vowel) occurs in no training document. Names are read off under teacher forcing: right when all four letters have
the highest logit. Each line is a segment of its own, so State is all that crosses from line to line.

Makes the corpus, prepares it, trains recall-rec and recall-slide (pipelines/presets/demo.py), whose parameters are nearly equal,
prints a table of accuracy over distance and writes recall.png. A rerun skips finished work. Today's models have presets of the same
size: `--presets recall-delta recall-mamba2 recall-mlstm recall-retention recall-xl recall-rmt recall-armt`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.named_lines import ANSWER, CONSONANTS, LINE, NAMES, QUESTION, STATEMENT, VOWELS, call, line, write_files
from benchmarks.results import Recorder
from common.errors import UserError, nearest
from data_prep.store import SegmentStore
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.scoring import has_states
from recur_models import RECURRENT, RecurrentModel, State, clear

TRAIN_LINES = 13
CHANCE_LETTER = (1 / len(CONSONANTS) + 1 / len(VOWELS)) / 2
"""Share of letters right for a model that knows how names are made and nothing else."""


@dataclass(frozen=True)
class RecallConfig:
    """The corpus, and where everything is written."""

    root: Path = Path("runs/recall")
    """Folder of corpus, store, runs and figure."""
    presets: tuple[str, ...] = ("recall-rec", "recall-slide")
    """What is trained."""
    seed: int = 0
    """Seed of the corpus and the models."""
    train_documents: int = 4000
    """Documents to train on."""
    test_documents: int = 100
    """Test documents at each distance."""
    distances: tuple[int, ...] = (*range(1, 13), 16, 24)
    """Windows from the name to the question in test documents. Training knows them up to 12."""
    threads: int = 1
    """Threads of torch."""
    record: bool = False
    """Record the table in results/recall/."""

    def __post_init__(self) -> None:
        if min(self.train_documents, self.test_documents, *self.distances) < 1 or not self.distances:
            raise UserError(
                "train_documents, test_documents and all distances must be at least 1: a question follows its name"
            )
        if unknown := set(self.presets) - PRESETS.keys():
            raise UserError(f"presets names {min(unknown)!r}: {nearest(min(unknown), PRESETS)}")


def document(rng: random.Random, name: str, questions: Sequence[int], lines: int) -> str:
    """``lines`` lines: the name, then filler, with questions in the given lines."""
    body = [QUESTION.format(name) if i in questions else line(rng) for i in range(1, lines)]
    return STATEMENT.format(name) + "".join(body)


def corpus(config: RecallConfig) -> dict[str, str]:
    """Path below the corpus folder → text: train/00000.txt, test/10/000.txt for a question in line 10. A function of the config."""
    rng = random.Random(config.seed)
    names = rng.sample(NAMES, len(NAMES))
    held_out, known = names[:1000], names[1000:]
    files = {}
    for split, count in (("train", config.train_documents), ("validation", max(1, config.train_documents // 20))):
        for number in range(count):
            questions = [i for i in range(1, TRAIN_LINES) if rng.random() < 0.25]
            files[f"{split}/{number:05d}.txt"] = document(rng, rng.choice(known), questions, TRAIN_LINES)
    for distance in config.distances:
        for number in range(config.test_documents):
            name = rng.choice(held_out)
            files[f"test/{distance}/{number:03d}.txt"] = document(rng, name, [distance], distance + 1)
    return files


@dataclass(frozen=True)
class Recall:
    """How one model did at one distance: shares of all documents, 0 … 1."""

    names: float
    """All four letters right."""
    letters: float
    names_cleared: float | None = None
    """The same with the recurrent states cleared just before the question; None where the model has none."""
    letters_cleared: float | None = None


@torch.no_grad()
def answer(model: RecurrentModel, inputs_BT: torch.Tensor, clear_states: bool) -> torch.Tensor:
    """The letters that the model would write in the last line, [B, 4]: read line by line, the State carried between them."""
    initial = model.initial_state(len(inputs_BT))
    *lines, last = inputs_BT.split(LINE, dim=1)
    state: State | None = None
    for part in lines:
        _, state = model(part, state)
    if clear_states:
        assert state is not None
        state = clear(state, initial, RECURRENT)
    logits_BTV, _ = model(last, state)
    return logits_BTV[:, ANSWER].argmax(-1)


def ask(model: RecurrentModel, store: SegmentStore, distance: int) -> Recall:
    """Ask the test documents of this distance."""
    chosen = [i for i, d in enumerate(store.manifest.documents) if d.id.startswith(f"test/{distance}/")]
    length = (distance + 1) * LINE
    tokens_BT = torch.from_numpy(np.stack([store.tokens(i, 0, length) for i in chosen]).astype(np.int64))
    inputs_BT = torch.cat([torch.full((len(chosen), 1), store.bod_id), tokens_BT[:, :-1]], 1)
    wanted = tokens_BT[:, -LINE:][:, ANSWER]

    def shares(clear_states: bool) -> tuple[float, float]:
        right = answer(model, inputs_BT, clear_states) == wanted
        return right.all(1).float().mean().item(), right.float().mean().item()

    return Recall(*shares(False), *(shares(True) if has_states(model) else ()))


def plot(results: dict[str, dict[int, Recall]], reach: int, path: Path) -> None:
    """Accuracy over distance, a curve for each model, and hollow points where its recurrent states were cleared."""
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, recalls) in enumerate(results.items()):
        colour, short = f"C{number}", name.removeprefix("recall-")
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
    FigureCanvasAgg(figure).print_figure(path, dpi=150)


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
    torch.set_num_threads(config.threads)
    store, folder = config.root / "store", write_files(config.root / "corpus", corpus(config))
    call("pipelines.prepare", "text", "--source", str(folder), "--store", str(store), "--num-workers", "0")
    test = SegmentStore.open(str(store), "text", "test")
    results = {}
    for name in config.presets:
        places = ("--root", str(config.root), "--data.store", str(store), "--seed", str(config.seed))
        call("pipelines.train", name, *places, "--use-gpu", "no", "--num-workers", "0")
        model = model_of(find_checkpoint(config.root / name))
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
        results[name] = {distance: ask(model, test, distance) for distance in config.distances}
    models: list[Any] = [PRESETS[name].model for name in config.presets]
    reach = max((model.layers for model in models if model.name == "slide"), default=0)
    plot(results, reach, config.root / "recall.png")
    columns, rows = table(results)
    shown = Table(box=None, pad_edge=False, title="names (letters) right, %")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*row)
    Console(width=max(Console().width, 120), markup=False).print(shown)
    fingerprint = SegmentStore.open(str(store), "text", "train").manifest.fingerprint
    recorder.table("A name asked for many windows later", columns, rows, fingerprint=fingerprint)
    print(
        f"test split {test.manifest.fingerprint}, {config.test_documents} documents at each distance; by chance 1 name in "
        f"{len(NAMES):,} and {CHANCE_LETTER:.0%} of letters\n  figure  {cli.shown(config.root / 'recall.png')}"
    )


if __name__ == "__main__":
    cli.run(main)
