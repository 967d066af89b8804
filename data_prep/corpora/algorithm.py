"""Algorithm: short programs that are to be executed; at each print the value of the variable is to be predicted.

    text     x = 4 ; x ++ ; print x 5 ; if x < 9 : x -- ; print x 4 ;
    targets  _ _ _ _ _ _  _ _     5 _ _ _  _ _ _ _ _ _  _ _     4 _ _

The value follows in the text, as what the program prints. A statement is drawn from five operations with equal odds: an assignment
of 1 … 10 to a variable without a value, `++`, `--`, `if` and `print`. What cannot be is drawn again: an assignment once all
variables have values, anything else while none has. `if` compares a variable with another one or with 1 … 10, by `<` or `>`, and a
`++` or `--` follows; each choice has equal odds. Nothing bounds a value: it may fall below 0 and grow past 10, and each that can be
reached is a symbol.

Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory"; Ju et al. 2021, "Staircase Attention for
Recurrent Processing of Sequences", 4.1: 100 statements, 3 variables (also 5), 10,000 programs. What they leave open is chosen so
that a program has what is known of theirs, about 431 tokens and 25.5 labels (here 432.2 and 25.4): where an `if` would compare a
variable with itself the operation is drawn again, so that there are fewer of it than of `print`.

    python -m pipelines.prepare algorithm
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from data_prep.corpora.tasks import Draws, Task, Written
from data_prep.documents import NOTHING, CorpusError

VARIABLES = "xyzuvwabcdefghijklmnopqrst"
LITERALS = 10
"""Numbers that a program holds: 1 … 10."""
WORDS = ("=", ";", "++", "--", "if", "<", ">", ":", "print")
ASSIGN, INCREMENT, DECREMENT, IF, PRINT = range(5)
"""The operations, equally likely."""


@dataclass(frozen=True)
class Algorithm(Task):
    """Programs of assignments, ++, --, if and print; what is printed is to be predicted."""

    name: ClassVar[str] = "algorithm"
    later: ClassVar[dict[str, Any]] = {"curriculum": ()}

    statements: int = 100
    """Statements of a program."""
    variables: int = 3
    """Variables of a program: 3 or 5 as published."""
    curriculum: tuple[int, ...] = ()
    """Statements of the programs to train on instead: an equal share of the split has each, in this order. The other splits keep
    --statements."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(statements=1, variables=1)
        self.check_curriculum(self.curriculum)
        if self.variables > len(VARIABLES):
            raise CorpusError(
                f"variables of corpus {self.name} is {self.variables}: give --variables {len(VARIABLES)} or fewer"
            )

    def symbols(self) -> list[str]:
        counted = max((self.statements, *self.curriculum)) - 1  # the first statement assigns, all others count
        numbers = range(1 - counted, LITERALS + 1 + counted)
        return [*WORDS, *VARIABLES[: self.variables], *map(str, numbers)]

    def size(self, split: str, index: int) -> int:
        return 10 * self.statements_of(split, index)

    def statements_of(self, split: str, index: int) -> int:
        return self.length_in(self.curriculum, self.statements, split, index)

    def written(self, draws: Draws, split: str, index: int) -> Written:
        program = Program(draws.one, list(VARIABLES[: self.variables]))
        for _ in range(self.statements_of(split, index)):
            while not program.statement():
                pass
        targets = [NOTHING] * len(program.text)
        for place in program.printed:
            targets[place - 1] = program.text[place]
        return program.text, targets


class Program:
    """A program while it is drawn, and executed."""

    def __init__(self, one: Callable[[int], int], free: list[str]) -> None:
        self._one, self._free = one, free
        self._values: dict[str, int] = {}
        self._known: list[str] = []
        """The variables that have values."""
        self.text: list[str] = []
        self.printed: list[int] = []
        """Where in the text the printed values stand."""

    def statement(self) -> bool:
        """Draw an operation, and do it. Returns False, with nothing done, where it cannot be."""
        operation = self._one(5)
        if operation == ASSIGN and self._free:
            name, value = self._free.pop(self._one(len(self._free))), self._one(LITERALS) + 1
            self._known.append(name)
            self._values[name] = value
            self.text += name, "=", str(value), ";"
            return True
        if operation == ASSIGN or not self._known:
            return False
        name = self._any()
        if operation == IF:
            return self._if(name)
        if operation == PRINT:
            self.text += "print", name, str(self._values[name]), ";"
            self.printed.append(len(self.text) - 2)
        else:
            self._count(name, operation, True)
        return True

    def _any(self) -> str:
        return self._known[self._one(len(self._known))]

    def _if(self, name: str) -> bool:
        other = self._any() if self._one(2) else self._one(LITERALS) + 1
        if other == name:
            return False
        left, right = self._values[name], other if isinstance(other, int) else self._values[other]
        less = self._one(2)
        self.text += "if", name, "<" if less else ">", str(other), ":"
        self._count(self._any(), (INCREMENT, DECREMENT)[self._one(2)], left < right if less else left > right)
        return True

    def _count(self, name: str, operation: int, executed: bool) -> None:
        self.text += name, "++" if operation == INCREMENT else "--", ";"
        if executed:
            self._values[name] += 1 if operation == INCREMENT else -1
