"""Arithmetic: a sum of products modulo a number, and after each of its numbers the value so far is to be predicted.

    text     3 + 2 * 4 - 1
    targets  3 _ 0 _ 1 _ 0        modulo 5, products first: 3, 3 + 2, 3 + 2 · 4, and that less 1

Numbers and operators are all equally likely. A finite automaton with modulus² states computes it: the sum of the terms that are
complete, and the product that is being read.

"Modular arithmetic without brackets" of Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy", which asks for the value
of the whole expression alone, and has texts of 3 to 40 symbols modulo 5 in training.

    python -m pipelines.prepare arithmetic
    python -m pipelines.prepare arithmetic --length 64 --curriculum 2 4 8 16 20
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from data_prep.corpora.tasks import MAX_SYMBOLS, Draws, Task, Written
from data_prep.documents import NOTHING, check_least, check_most

OPERATORS = ("+", "-", "*")


@dataclass(frozen=True)
class Arithmetic(Task):
    """Sums of products modulo a number; the target after each number is the value so far."""

    name: ClassVar[str] = "arithmetic"

    modulus: int = 5
    """Numbers and values are 0 … modulus − 1."""
    length: int = 20
    """Numbers of an expression; between each two of them is an operator."""
    curriculum: tuple[int, ...] = ()
    """Lengths of the expressions to train on instead: an equal share of the split has each, in this order. The other splits keep
    --length. --data.order sequential trains on the first ones first, shuffled mixes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, modulus=2, length=1)
        check_most(self, modulus=MAX_SYMBOLS)

    def symbols(self) -> list[str]:
        return [*OPERATORS, *map(str, range(self.modulus))]

    def size(self, split: str, index: int) -> int:
        return 4 * self.length_of(split, index)

    def written(self, draws: Draws, split: str, index: int) -> Written:
        length = self.length_of(split, index)
        numbers = draws.below(self.modulus, length)
        operators = [OPERATORS[drawn] for drawn in draws.below(len(OPERATORS), length - 1)]
        terms = 0
        product = numbers[0]
        text = [str(product)]
        targets = [str(product)]
        for operator, number in zip(operators, islice(numbers, 1, None), strict=True):
            if operator == "*":
                product = product * number % self.modulus
            else:
                terms = (terms + product) % self.modulus
                product = number if operator == "+" else -number
            text += [operator, str(number)]
            targets += [NOTHING, str((terms + product) % self.modulus)]
        return text, targets
