"""Does `pipelines.tokens` find what only a State can know? Every 5,000 bytes a rare name is given, and asked for later.

    python -m benchmarks.planted --root runs/planted

A line is as long as a window of both models (data_prep/corpora/names.py). A training document gives a name, and asks for it at
random in the twelve lines after; one in forty does so for sixteen names, with filler between some. A test document gives a name
every 312 lines, and asks for it once, 6 to 12 windows later: `recall-slide` sees three windows and cannot know it. Each test name
is given once, and in no training document.

Makes the corpus, prepares it, trains recall-rec and recall-slide, compares them token by token, and prints how many of the words
with the largest gain are planted ones, and how many have the right distance. A rerun skips finished work.
"""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.files import write_atomically
from data_prep.corpora.names import LINE, NAMES, QUESTION, STATEMENT, filler
from pipelines.terminal import cli

TAUGHT = 12
"""Lines after a name in which a training document may ask for it."""


@dataclass(frozen=True)
class PlantedConfig:
    """The corpus, and where everything is written."""

    root: Path = Path("runs/planted")
    """Folder of corpus, store, runs and comparison."""
    seed: int = 0
    """Seed of the corpus and the models."""
    train_documents: int = 4000
    """Documents to train on."""
    test_documents: int = 2
    """Documents in which names are planted."""
    names: int = 20
    """Names planted in each."""
    every: int = 312
    """Lines from one planted name to the next."""
    steps: int = 1000
    """Training steps."""

    def __post_init__(self) -> None:
        if min(self.train_documents, self.test_documents, self.names, self.steps) < 1 or self.every <= TAUGHT:
            raise UserError(
                f"all numbers must be at least 1, and every more than {TAUGHT}: a question follows its name"
            )


def corpus(config: PlantedConfig) -> tuple[dict[str, str], dict[str, int]]:
    """Texts by their path below the corpus folder, and for each planted name the bytes from its statement to its question."""
    rng = random.Random(config.seed)
    names = rng.sample(NAMES, len(NAMES))
    count = config.test_documents * config.names
    planted = names[:count]
    known = names[count:]
    files = dict[str, str]()
    distances = dict[str, int]()
    for split, number in (("train", config.train_documents), ("validation", max(1, config.train_documents // 20))):
        for document in range(number):
            lines = list[str]()
            several = document % 40 == 0
            for name in rng.choices(known, k=16 if several else 1):
                lines.append(STATEMENT.format(name))
                lines += [QUESTION.format(name) if rng.random() < 0.25 else filler(rng) for _ in range(TAUGHT)]
                if several:
                    lines += [filler(rng) for _ in range(rng.choice((0, 0, 0, 24)))]
            files[f"{split}/{document:05d}.txt"] = "".join(lines)
    for document in range(config.test_documents):
        text = ""
        for name in planted[document * config.names : (document + 1) * config.names]:
            asked = rng.randint(TAUGHT // 2, TAUGHT)
            rest = [QUESTION.format(name) if i == asked else filler(rng) for i in range(1, config.every)]
            text += STATEMENT.format(name) + "".join(rest)
            distances[name] = asked * LINE
        files[f"test/{document:05d}.txt"] = text
    return files, distances


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files that are not there yet. Raises UserError when others are there."""
    for file in folder.rglob("*.txt"):
        if files.get(file.relative_to(folder).as_posix()) != file.read_text("utf-8"):
            raise UserError(f"{folder} holds a corpus made with other options ({file.name}): give another --root")
    for path, text in files.items():
        file = folder / path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
    return folder


def call(module: str, *words: str) -> None:
    """Run one of our commands as a user does. Raises UserError if it fails; its own message has the reason."""
    done = subprocess.run([sys.executable, "-m", module, *words], check=False)
    if done.returncode:
        raise UserError(f"{module} {words[0]} failed with status {done.returncode}: see its message above")


def main(argv: list[str]) -> None:
    config = cli.parse(PlantedConfig, argv, __doc__)
    files, distances = corpus(config)
    folder = write_files(config.root / "corpus", files)
    store = config.root / "store"
    call("pipelines.prepare", "text", "--source", str(folder), "--store", str(store), "--num-workers", "0")
    data = ("--data.store", str(store), "--data.corpus", "text")
    places = ("--root", str(config.root), *data, "--seed", str(config.seed))
    models = ("recall-slide", "recall-rec")
    for name in models:
        call("pipelines.train", name, *places, "--steps", str(config.steps), "--use-gpu", "no", "--num-workers", "0")
    output = config.root / "tokens"
    runs = (str(config.root / name) for name in models)
    call("pipelines.tokens", *runs, "--words", str(len(distances)), "--output", str(output))
    with (output / "words.csv").open(newline="") as file:
        top = [(row["word"], int(row["last_seen"])) for row in csv.DictReader(file)]
    found = [distances[word] == back for word, back in top if word in distances]
    print(
        f"{len(distances)} names planted, {LINE * config.every:,} bytes apart; of the {len(top)} words with the largest gain of "
        f"recall-rec {len(found)} are planted names, {sum(found)} of them with the right distance"
    )


if __name__ == "__main__":
    cli.run(main)
