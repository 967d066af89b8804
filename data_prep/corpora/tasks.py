"""The base of all tasks: corpora whose documents are drawn, not read, and that label their tokens themselves.

A document is a text of symbols and as many targets, blanks between them: `targets[t]` is to be predicted once `text[t]` is read,
and is `NOTHING` where nothing is predicted. A document depends only on the corpus's fields, its split and its number in the split.
So any worker can read any part of a corpus, in any order and repeatedly.

A new task is one file beside this one, with the fields of `Task` and its own, and one line in the registry.

    python -m pipelines.prepare algorithm --store runs/store
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from data_prep.documents import SPLITS, CorpusError, Document, Source, check_least

MAX_SYMBOLS = 1_000_000
"""Symbols of a task, at most; a model has an embedding for each."""

Written = tuple[Sequence[str], Sequence[str]]
"""The symbols of a text, and as many targets."""


class Draws:
    """The random numbers of one document, as many as are asked for.

    Integers are made here from the bits of Philox. NumPy keeps these bits the same in all its versions, but not the numbers that
    its generators make from them.
    """

    def __init__(self, seed: int, *place: int) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=place))
        self._ahead: list[int] = []

    def raw(self, count: int) -> NDArray[np.uint64]:
        """uint64 [count]: 64 random bits each."""
        return self._bits.random_raw(count)

    def below(self, stop: int, count: int) -> list[int]:
        """`count` integers from 0 to stop − 1, for a stop far below 2³²."""
        return ((self.raw(count) >> np.uint64(32)) * np.uint64(stop) >> np.uint64(32)).tolist()

    def one(self, stop: int) -> int:
        """An integer from 0 to stop − 1; quicker than `below` where the next stop depends on it."""
        if not self._ahead:
            self._ahead = self.below(1 << 32, 256)
        return self._ahead.pop() * stop >> 32

    def distinct(self, stop: int, count: int) -> list[int]:
        """`count` different integers from 0 to stop − 1, in random order. There must be so many."""
        found: dict[int, None] = {}
        while len(found) < count:
            found |= dict.fromkeys(self.below(stop, count))
        return list(found)[:count]


@dataclass(frozen=True)
class Task(ABC):
    """A corpus that is drawn; see the module's docstring."""

    name: ClassVar[str]
    unrecorded: ClassVar[dict[str, Any]] = {}
    """Options that a store's fingerprint leaves out while they have these values."""
    graded: ClassVar[str] = "length"
    """The field that `curriculum`, if a task has one, replaces in the documents to train on."""

    train: int = 10_000
    """Documents to train on."""
    validation: int = 1_000
    """Documents to validate on."""
    test: int = 1_000
    """Documents to test on."""
    seed: int = 0
    """Every document follows from it, the split and its number there."""

    def __post_init__(self) -> None:
        check_least(self, train=0, validation=0, test=0, seed=0)
        wrong = [value for value in self._curriculum if value < 1]
        if wrong:
            what = "lengths" if self.graded == "length" else self.graded
            raise CorpusError(
                f"curriculum of corpus {self.name} holds {wrong[0]}: give --curriculum {what} of 1 or more"
            )
        for field, kind in get_type_hints(type(self)).items():
            value = getattr(self, field)
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise CorpusError(
                    f"{field} of corpus {self.name} is {value!r}: give --{field} {' or '.join(get_args(kind))}"
                )

    @property
    def _curriculum(self) -> Sequence[int]:
        return vars(self).get("curriculum", ())

    def length_of(self, split: str, index: int) -> int:
        """The value of the graded field for a document, such as its length. With a curriculum, an equal share of the documents to
        train on has each of its values, in order. All other documents have the field's own value.
        """
        if split != "train" or not self._curriculum:
            return vars(self)[self.graded]
        return self._curriculum[index * len(self._curriculum) // self.train]

    @abstractmethod
    def symbols(self) -> Sequence[str]:
        """Every word of texts and targets; its place is its token id. As in `Labelled`."""

    @abstractmethod
    def size(self, split: str, index: int) -> int:
        """Approximate number of bytes of a document's text."""

    @abstractmethod
    def written(self, draws: Draws, split: str, index: int) -> Written:
        """A document: the symbols of its text and as many targets.

        Args:
            draws: source of its random numbers.
            index: number of the document in the split, from 0.
        """

    def options(self) -> dict[str, Any]:
        said = {name: value for name, value in asdict(self).items() if (name, value) not in self.unrecorded.items()}
        # As JSON gives them back: they are compared with a manifest's.
        return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}

    def sources(self, split: str) -> list[Source]:
        names = (f"{split}/{index}" for index in range(getattr(self, split)))
        return [Source(name, name, split, self.size(split, index)) for index, name in enumerate(names)]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        for source in sources:
            split, _, number = source.id.partition("/")
            index = int(number)
            text, targets = self.written(Draws(self.seed, SPLITS.index(split), index), split, index)
            yield Document(source.id, source.title, " ".join(text), " ".join(targets))


def followed(steps: Sequence[Sequence[int]], start: int, inputs: Sequence[int]) -> list[int]:
    """The states of an automaton after each input: `steps[state][input]` is the next state."""
    return list(accumulate(inputs, lambda state, given: steps[state][given], initial=start))[1:]
