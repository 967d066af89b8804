"""Names: the first line of a document says a name, and later lines ask for it. All other lines are filler.

    my name is kato        line 0
    fig oak zip rye        filler: four words of a list
    your name: kato        a question and its answer
    ...

Lines are 16 bytes, so that a model with windows of 16 bytes reads one in each. A document to train on has 13 lines and asks at
random: each line after the first is a question with a probability of 1/4, so that short distances teach what long ones need. A test
document asks once, in its last line, and its name (consonant, vowel, consonant, vowel) occurs in no document to train on: it is
`test/10/003` if ten lines lie between the name and the question.

    python -m pipelines.prepare names --store runs/store
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar

from data_prep.documents import CorpusError, Document, Source, check_least

LINE = 16
"""Bytes of a line, with its newline."""
TRAIN_LINES = 13
"""Lines of a document to train on."""
WORDS = (
    *("ape", "bee", "cow", "dog", "elk", "fig", "gum", "hay", "ivy", "jam", "kit", "log"),
    *("map", "nut", "oak", "pea", "rye", "sap", "tea", "urn", "vat", "wax", "yak", "zip"),
)
STATEMENT = "my name is {}\n"
QUESTION = "your name: {}\n"
ANSWER = slice(11, 15)
"""The place of the name in its line."""
CONSONANTS = "bcdfghjklmnprstv"
VOWELS = "aeiou"
NAMES = [a + b + c + d for a in CONSONANTS for b in VOWELS for c in CONSONANTS for d in VOWELS]
HELD_OUT = 1000
"""Number of names that are kept for test documents."""


def filler(rng: random.Random) -> str:
    """A line of four random words."""
    return " ".join(rng.choices(WORDS, k=4)) + "\n"


def document(rng: random.Random, name: str, questions: Sequence[int], lines: int) -> str:
    """A document of `lines` lines: the name, then filler, with questions in the given lines."""
    body = [QUESTION.format(name) if i in questions else filler(rng) for i in range(1, lines)]
    return STATEMENT.format(name) + "".join(body)


@dataclass(frozen=True)
class Names:
    """A name in the first line, asked for many lines later; needs no download."""

    name: ClassVar[str] = "names"

    train: int = 4000
    """Documents to train on."""
    validation: int = 200
    """Documents to validate on, like those to train on."""
    test: int = 100
    """Documents to test on, at each distance."""
    distances: tuple[int, ...] = (*range(1, 13), 16, 24)
    """Lines from the name to the question in test documents. In documents to train on there are up to 12."""
    seed: int = 0
    """All documents follow from it."""

    def __post_init__(self) -> None:
        check_least(self, train=0, validation=0, test=0, seed=0)
        if not self.distances or min(self.distances) < 1:
            raise CorpusError(f"distances of corpus {self.name} are {self.distances}: give --distances of 1 or more")

    def options(self) -> dict[str, Any]:
        return asdict(self) | {"distances": list(self.distances)}

    def sources(self, split: str) -> list[Source]:
        texts = documents(self)
        return [Source(name, name, split, len(text)) for name, text in texts.items() if name.startswith(f"{split}/")]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        texts = documents(self)
        for source in sources:
            yield Document(source.id, source.title, texts[source.id])


@cache
def documents(corpus: Names) -> Mapping[str, str]:
    """All documents of a corpus by id: by default a megabyte, drawn one after the other."""
    rng = random.Random(corpus.seed)
    names = rng.sample(NAMES, len(NAMES))
    held_out = names[:HELD_OUT]
    known = names[HELD_OUT:]
    found = {}
    for split, count in (("train", corpus.train), ("validation", corpus.validation)):
        for number in range(count):
            questions = [i for i in range(1, TRAIN_LINES) if rng.random() < 0.25]
            found[f"{split}/{number:05d}"] = document(rng, rng.choice(known), questions, TRAIN_LINES)
    for distance in corpus.distances:
        for number in range(corpus.test):
            name = rng.choice(held_out)
            found[f"test/{distance}/{number:03d}"] = document(rng, name, [distance], distance + 1)
    return found
