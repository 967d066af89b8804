"""Random walk: an agent on a small grid turns or goes forward at random, and after each action its cell is to be predicted.

The text is the actions, `L` (turn left), `R` (turn right) and `F` (forward; against the wall the agent stays), all three equally
likely; the targets are the cells, `x3y5` in column 3 and row 5. Every walk starts in the middle, `x4y4` on a grid of 8, and looks
up, to where y grows. The heading is not asked for.

    text     F    L    F    F    F    F    F
    targets  x4y5 x4y5 x3y5 x2y5 x1y5 x0y5 x0y5

With `--actions moves` there is no heading: `N`, `E`, `S` and `W` go to the cell above, to the right, below and to the left.

Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory", at the length of Ju et al. 2021, "Staircase
Attention for Recurrent Processing of Sequences", 4.1: "an agent in a small grid takes a random action that turns the agent, or
moves it forward". The size, the start, the wall and the odds are ours.

    python -m pipelines.prepare random-walk
    python -m pipelines.prepare random-walk --curriculum 8 16 32 64 128 256 400
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar, Literal

from data_prep.corpora.tasks import MAX_SYMBOLS, Draws, Task, Written, followed
from data_prep.documents import check_least, check_most

ACTIONS = {"turns": ("L", "R", "F"), "moves": ("N", "E", "S", "W")}
AHEAD = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Steps (x, y) of the headings up, right, down and left: turning right gives the next heading."""
Actions = Literal["turns", "moves"]


@dataclass(frozen=True)
class RandomWalk(Task):
    """Walks on a grid; the target after each action is the cell."""

    name: ClassVar[str] = "random-walk"
    unrecorded: ClassVar[dict[str, Any]] = {"actions": "turns"}

    grid: int = 8
    """Cells on each side of the grid."""
    length: int = 400
    """Actions of a walk."""
    actions: Actions = "turns"
    """Actions of an agent: turn left, turn right or go forward; or go to one of the four cells beside its own."""
    curriculum: tuple[int, ...] = ()
    """Lengths of the walks to train on instead: an equal share of the split has each, in this order. The other splits keep
    --length. --data.order sequential trains on the first ones first, shuffled mixes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, grid=2, length=1)
        check_most(self, grid=math.isqrt(MAX_SYMBOLS))

    def symbols(self) -> list[str]:
        return [*ACTIONS[self.actions], *dict.fromkeys(names(self.grid))]

    def size(self, split: str, index: int) -> int:
        return 2 * self.length_of(split, index)

    def written(self, draws: Draws, split: str, index: int) -> Written:
        known = ACTIONS[self.actions]
        actions = draws.below(len(known), self.length_of(split, index))
        start = state_of(self.grid, self.grid // 2, self.grid // 2, 0)
        shown = names(self.grid)
        states = followed(steps(self.grid, self.actions), start, actions)
        return [known[action] for action in actions], [shown[state] for state in states]


def state_of(grid: int, x: int, y: int, heading: int) -> int:
    """The number of the state of an agent in cell (x, y) with this index into AHEAD."""
    return (x * grid + y) * len(AHEAD) + heading


@cache
def names(grid: int) -> list[str]:
    """The cell of each state."""
    return [f"x{x}y{y}" for x, y, _ in product(range(grid), range(grid), AHEAD)]


@cache
def steps(grid: int, actions: Actions) -> list[tuple[int, ...]]:
    """The next state, [state][action]."""
    last = grid - 1
    found = []
    for x, y, heading in product(range(grid), range(grid), range(len(AHEAD))):
        beside = [state_of(grid, min(max(x + dx, 0), last), min(max(y + dy, 0), last), heading) for dx, dy in AHEAD]
        left, right = (state_of(grid, x, y, (heading + turn) % len(AHEAD)) for turn in (-1, 1))
        found.append(tuple(beside) if actions == "moves" else (left, right, beside[heading]))
    return found
