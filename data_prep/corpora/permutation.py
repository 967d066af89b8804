"""Permutation: a sequence of elements of a group, and after each the product so far is to be predicted: a word problem.

An element is a permutation of 1 … n, written as the images of 1 … n: `21345` swaps 1 and 2. The latest element acts last: the
product of g₁ … g_t sends i to g_t(… g₂(g₁(i))).

    text     213 132 213
    targets  213 312 321         in S3: 213 sends 1 to 2, and 132 that to 3

A5 and S5 are not solvable, and their word problems complete for NC¹: a transformer needs depth that grows with the length, where a
recurrent network needs one layer (Merrill, Petty and Sabharwal 2024, "The Illusion of State in State-Space Models"). S3 is
solvable, and small. In S2 the product is the parity of the swaps.

    python -m pipelines.prepare permutation --group A5
    python -m pipelines.prepare permutation --group A5 --length 32 --curriculum 2 4 8 16 32
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, ClassVar, Literal

from data_prep.corpora.tasks import Draws, Task, Written, followed
from data_prep.documents import check_least

Group = Literal["S2", "S3", "A5", "S5"]


@dataclass(frozen=True)
class Permutation(Task):
    """Elements of a group; the target after each is the product so far."""

    name: ClassVar[str] = "permutation"
    unrecorded: ClassVar[dict[str, Any]] = {"curriculum": ()}

    group: Group = "S5"
    """S5, all 120 permutations of five; A5, the 60 even ones; S3, the 6 of three; or S2, the 2 of two."""
    length: int = 64
    """Elements of a document."""
    curriculum: tuple[int, ...] = ()
    """Lengths of the documents to train on instead: an equal share of the split has each, in this order. The other splits keep
    --length. --data.order sequential trains on the first ones first, shuffled mixes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, length=1)

    def symbols(self) -> list[str]:
        return names(self.group)

    def size(self, split: str, index: int) -> int:
        return (int(self.group[1:]) + 1) * self.length_of(split, index)

    def written(self, draws: Draws, split: str, index: int) -> Written:
        shown = names(self.group)
        drawn = draws.below(len(shown), self.length_of(split, index))
        # The identity is the first element.
        return [shown[g] for g in drawn], [shown[g] for g in followed(products(self.group), 0, drawn)]


def elements(group: Group) -> list[tuple[int, ...]]:
    """The images of 0 … n − 1 under each element, in lexicographic order, the identity first."""
    every = permutations(range(int(group[1:])))
    return [images for images in every if group[0] == "S" or sum(a > b for a, b in combinations(images, 2)) % 2 == 0]


@cache
def names(group: Group) -> list[str]:
    """The symbol of each element: its images, counted from 1, as in 213."""
    return ["".join(str(image + 1) for image in images) for images in elements(group)]


@cache
def products(group: Group) -> list[list[int]]:
    """The index of the product of two elements, [first][last]: the last one acts on the images of the first one."""
    every = elements(group)
    number = {images: i for i, images in enumerate(every)}
    return [[number[tuple(last[image] for image in first)] for last in every] for first in every]
