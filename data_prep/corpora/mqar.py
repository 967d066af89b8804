"""Multi-query associative recall: pairs of a key and a value, then every key once more, where its value is to be predicted.

    text     k17 v9 k4 v12 k4  . . . k17 .
    targets  _   _  _  _   v12 _ _ _ v9  _

After the 2 · pairs tokens of the pairs come slots of two tokens. Each key stands once more at the beginning of a slot of its own:
the keys, in the order of the pairs, draw slots g = 1, 2, 3 … without repetition, with odds proportional to g^(power − 1). So most
come soon and some late, as repeated bigrams do in text; with a power of 1 all slots are equally likely. The value does not follow
in the text. Elsewhere stands a filler. The keys of a document are all different, and so are its values. The first symbol is the
blank, the others up to half are keys, the upper half values.

With `--rewrites 2`, two of the keys come again after the pairs, in the order in which they are drawn, each with another value. The
last value counts:

    text     k17 v9 k4 v12 k17 v3 k4  . . . k17 .
    targets  _   _  _  _   _   _  v12 _ _ _ v3  _

Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models"; the spacing is that of its authors'
generator `multiquery_ar`, stated anew. There 100,000 documents train and 3,000 test, 64 to 512 tokens long with 4 to 64 pairs.
Rewriting is that of Rodkin et al. 2024, "Associative Recurrent Memory Transformer", where one key is asked for.

    python -m pipelines.prepare mqar --length 256 --pairs 16
    python -m pipelines.prepare mqar --length 256 --pairs 64 --curriculum 4 8 16 32 64 --proportional
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from data_prep.corpora.tasks import MAX_SYMBOLS, Draws, Task, Written
from data_prep.documents import NOTHING, CorpusError, check_least, check_most

BLANK = "."


@dataclass(frozen=True)
class Mqar(Task):
    """Pairs of keys and values; the target where a key comes back is its value."""

    name: ClassVar[str] = "mqar"
    unrecorded: ClassVar[dict[str, Any]] = {"curriculum": (), "rewrites": 0, "proportional": False}
    graded: ClassVar[str] = "pairs"

    train: int = 100_000
    """Documents to train on."""
    validation: int = 3_000
    """Documents to validate on."""
    test: int = 3_000
    """Documents to test on."""
    vocabulary: int = 8_192
    """Symbols: the blank, keys, and about as many values."""
    pairs: int = 8
    """Pairs of a key and a value in a document, and queries."""
    rewrites: int = 0
    """Keys that get another value before the queries; where documents have fewer pairs, as many as there are keys."""
    length: int = 128
    """Tokens of a document: four for each pair and two for each rewrite, or more."""
    power: float = 0.01
    """Queries come in slot g with odds proportional to g^(power − 1)."""
    filler: Literal["blank", "random"] = "blank"
    """Filler between pairs and queries: the blank, or any symbol, even a key."""
    curriculum: tuple[int, ...] = ()
    """Pairs in the documents to train on instead: an equal share of the split has each number, in this order. The other splits
    keep --pairs. --data.order sequential trains on the first ones first, shuffled mixes them."""
    proportional: bool = False
    """With a curriculum, documents to train on with fewer pairs have fewer tokens in proportion, not more fillers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, pairs=1, rewrites=0)
        given = self.most + min(self.rewrites, self.most)
        check_least(self, length=self.least_length(self.most), vocabulary=2 * given + 2)
        check_most(self, vocabulary=MAX_SYMBOLS)
        if self.proportional and not self.curriculum:
            raise CorpusError(
                f"proportional of corpus {self.name} needs a curriculum: add --curriculum, or leave it out"
            )
        if not -32 <= self.power <= 32:  # beyond, odds are no longer numbers
            raise CorpusError(f"power of corpus {self.name} is {self.power}: give --power 0.01, or any from -32 to 32")

    @property
    def most(self) -> int:
        """Pairs of a document, at most."""
        return max((self.pairs, *self.curriculum))

    def least_length(self, pairs: int) -> int:
        """Tokens that a document of so many pairs needs: two for each pair and each rewrite, and two for each question."""
        return 4 * pairs + 2 * min(self.rewrites, pairs)

    def tokens_of(self, split: str, index: int) -> int:
        """Tokens of a document."""
        if split != "train" or not self.proportional:
            return self.length
        pairs = self.length_of(split, index)
        return max(self.least_length(pairs), self.length * pairs // self.most)

    def symbols(self) -> list[str]:
        return [self.symbol(i) for i in range(self.vocabulary)]

    def symbol(self, number: int) -> str:
        if number == 0:
            return BLANK
        kind = "k" if number < self.vocabulary // 2 else "v"
        return f"{kind}{number}"

    def size(self, split: str, index: int) -> int:
        length = self.tokens_of(split, index)
        return 2 * length + 12 * self.length_of(split, index) if self.filler == "blank" else 6 * length

    def written(self, draws: Draws, split: str, index: int) -> Written:
        """Draw one document: the pairs first, then each key once more, whose last value is the target."""
        pairs = self.length_of(split, index)
        rewrites = min(self.rewrites, pairs)
        length = self.tokens_of(split, index)
        half = self.vocabulary // 2
        context = 2 * (pairs + rewrites)
        keys = [self.symbol(1 + i) for i in draws.distinct(half - 1, pairs)]
        values = [self.symbol(half + i) for i in draws.distinct(self.vocabulary - half, pairs + rewrites)]
        written = [*keys, *(keys[i] for i in draws.distinct(pairs, rewrites))]
        text = [BLANK] * length
        targets = [NOTHING] * length
        if self.filler == "random":
            text = [self.symbol(i) for i in draws.below(self.vocabulary, length)]
        text[0:context:2] = written
        text[1:context:2] = values
        # Exponential clocks with these odds as rates ring in an order that equals drawing by these odds without repetition.
        odds = np.arange(1, (length - context) // 2 + 1) ** (self.power - 1)
        uniform = (draws.raw(len(odds)) >> np.uint64(11)).astype(np.float64) + 0.5
        slots = (-np.log(uniform * 2.0**-53) / odds).argsort(kind="stable")[:pairs].tolist()
        last = dict(zip(written, values, strict=True))
        for slot, key in zip(slots, keys, strict=True):
            text[context + 2 * slot] = key
            targets[context + 2 * slot] = last[key]
        return text, targets
