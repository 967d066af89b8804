"""Algorithm: short programs that are to be executed; at each print the value of the variable is to be predicted.

    text     x = 4 ; x ++ ; print x ; if x < 9 : x -- ; print x ;
    targets  _ _ _ _ _ _  _ _     _ 5 _  _ _ _ _ _ _  _ _     _ 4

A statement is drawn from five operations with equal odds: an assignment of 1 … 10 to a variable without a value, `++`, `--`, `if`
and `print`. `if` compares a variable with another one or with 1 … 10, by `<` or `>`; an assignment, `++` or `--` follows, and is
done where that is true. Invalid statements are drawn again: an assignment once all variables have values, anything else while
none has, a comparison with another variable where there is none, and `++` at 10 and `--` at 1, so that all values are 1 … 10.
Each choice has equal odds. The text does not say what is printed.

Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory"; Ju et al. 2021, "Staircase Attention for
Recurrent Processing of Sequences", 4.1: 100 statements, 3 variables (also 5), 10,000 programs, of about 431 tokens and 25.5 labels.

    python -m pipelines.prepare algorithm
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from data_prep.corpora.tasks import Draws, Task, Written
from data_prep.documents import NOTHING, check_least, check_most

VARIABLES = "xyzuvwabcdefghijklmnopqrst"
MAX_NUMBER = 10
"""Values and the numbers that a program holds are 1 … 10."""
WORDS = ("=", ";", "++", "--", "if", "<", ">", ":", "print")
ASSIGN, INCREMENT, DECREMENT, IF, PRINT = range(5)
"""The operations, equally likely."""


@dataclass(frozen=True)
class Algorithm(Task):
    """Programs of assignments, ++, --, if and print; the targets are the printed values."""

    name: ClassVar[str] = "algorithm"
    unrecorded: ClassVar[dict[str, Any]] = {"curriculum": ()}
    graded: ClassVar[str] = "statements"

    statements: int = 100
    """Statements of a program."""
    variables: int = 3
    """Variables of a program: 3 or 5 as published."""
    curriculum: tuple[int, ...] = ()
    """Statements of the programs to train on instead: an equal share of the split has each, in this order. The other splits keep
    --statements. --data.order sequential trains on the first ones first, shuffled mixes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, statements=1, variables=1)
        check_most(self, variables=len(VARIABLES))

    def options(self) -> dict[str, Any]:
        """The options, with the bound of values, on which every program depends."""
        return {**super().options(), "most": MAX_NUMBER}

    def symbols(self) -> list[str]:
        return [*WORDS, *VARIABLES[: self.variables], *map(str, range(1, MAX_NUMBER + 1))]

    def size(self, split: str, index: int) -> int:
        return 10 * self.length_of(split, index)

    def written(self, draws: Draws, split: str, index: int) -> Written:
        program = Program(draws.one, VARIABLES[: self.variables])
        values = dict[str, int]()
        for _ in range(self.length_of(split, index)):
            program.statement(values)
        return program.text, program.targets


class Program:
    """A program while it is drawn, and executed."""

    def __init__(self, one: Callable[[int], int], variables: str) -> None:
        self._one = one
        self._variables = variables
        self.text: list[str] = []
        self.targets: list[str] = []

    def statement(self, values: dict[str, int], inside: bool = False) -> None:
        """Draw a statement, write it, and update the variables' ``values``. ``inside``: whether it follows an `if`."""
        while not self._done(self._one(5), values, inside):
            pass

    def _done(self, operation: int, values: dict[str, int], inside: bool) -> bool:
        """Write a statement with this operation. Returns False, with nothing written, if it is not possible."""
        if operation == ASSIGN:
            free = [name for name in self._variables if name not in values]
            if free:
                name = self._any(free)
                values[name] = self._number()
                self._write(name, "=", str(values[name]), ";")
            return bool(free)
        if not values or (inside and operation in (IF, PRINT)):
            return False
        name = self._any([*values])
        if operation == IF:
            return self._if(name, values)
        if operation == PRINT:
            self._write("print", name, ";", target=str(values[name]))
            return True
        value = values[name] + (1 if operation == INCREMENT else -1)
        possible = 1 <= value <= MAX_NUMBER
        if possible:
            values[name] = value
            self._write(name, "++" if operation == INCREMENT else "--", ";")
        return possible

    def _if(self, name: str, values: dict[str, int]) -> bool:
        others = [other for other in values if other != name]
        by_variable = bool(self._one(2))
        if by_variable:
            if not others:
                return False
            other = self._any(others)
        else:
            other = str(self._number())
        left = values[name]
        right = values[other] if by_variable else int(other)
        less = self._one(2)
        self._write("if", name, "<" if less else ">", other, ":")
        holds = left < right if less else left > right
        self.statement(values if holds else dict(values), inside=True)  # one that is not executed changes a copy
        return True

    def _any(self, names: Sequence[str]) -> str:
        return names[self._one(len(names))]

    def _number(self) -> int:
        return self._one(MAX_NUMBER) + 1

    def _write(self, *words: str, target: str = NOTHING) -> None:
        """Add words to the text; the last one has this target."""
        self.text += words
        self.targets += [NOTHING] * (len(words) - 1) + [target]
