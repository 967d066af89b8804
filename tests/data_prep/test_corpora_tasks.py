"""The tasks: every label against an interpreter of its own, written from the description alone; what they draw, and how often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.corpora import CORPORA
from data_prep.corpora.algorithm import Algorithm
from data_prep.corpora.arithmetic import Arithmetic
from data_prep.corpora.mqar import Mqar
from data_prep.corpora.permutation import Permutation
from data_prep.corpora.random_walk import RandomWalk
from data_prep.corpora.tasks import Task
from data_prep.documents import NOTHING, SPLITS, CorpusError, Labelled, Skipped, scan
from data_prep.sources import reread
from pipelines.prepare import main

TASKS: tuple[type[Task], ...] = (RandomWalk, Algorithm, Mqar, Permutation, Arithmetic)
COUNTS: Any = st.fixed_dictionaries({"seed": st.integers(0, 2**70), **{split: st.integers(0, 3) for split in SPLITS}})

Pairs = list[tuple[str, str]]
"""Each symbol of a text with its target."""


def documents(task: Task, split: str) -> Iterator[Pairs]:
    """The documents of a split, each of them of symbols that the task has told."""
    known = {*task.symbols()}
    assert (
        len(known) == len(task.symbols())
        and NOTHING not in known
        and not any(set(word) & set(" \t\n") for word in known)
    )
    for source, document in zip(task.sources(split), task.read(task.sources(split)), strict=True):
        assert isinstance(document.text, str) and document.targets is not None
        assert document.id == source.id and source.split == split
        text, targets = document.text.split(" "), document.targets.split(" ")
        assert known >= {*text} and known >= {*targets} - {NOTHING}
        yield list(zip(text, targets, strict=True))


def every(task: Task) -> list[Pairs]:
    found = [pairs for split in SPLITS for pairs in documents(task, split)]
    assert len(found) == task.train + task.validation + task.test
    return found


@given(COUNTS, st.integers(2, 9), st.integers(1, 60), st.lists(st.integers(1, 30), max_size=3))
def test_a_walk(counts: dict[str, Any], grid: int, length: int, curriculum: list[int]) -> None:
    task = RandomWalk(**counts, grid=grid, length=length, curriculum=tuple(curriculum))
    for pairs in every(task):
        here, ahead = complex(grid // 2, grid // 2), 1j
        for action, cell in pairs:
            ahead *= {"L": 1j, "R": -1j, "F": 1}[action]
            there = here + ahead * (action == "F")
            here = there if 0 <= there.real < grid and 0 <= there.imag < grid else here
            assert cell == f"x{here.real:.0f}y{here.imag:.0f}"
    for split in ("validation", "test"):
        assert {len(pairs) for pairs in documents(task, split)} <= {length}


@given(COUNTS, st.integers(2, 9), st.integers(1, 60))
def test_a_walk_without_a_heading(counts: dict[str, Any], grid: int, length: int) -> None:
    task = RandomWalk(**counts, grid=grid, length=length, actions="moves")
    for pairs in every(task):
        here = complex(grid // 2, grid // 2)
        for action, cell in pairs:
            there = here + {"N": 1j, "E": 1, "S": -1j, "W": -1}[action]
            here = there if 0 <= there.real < grid and 0 <= there.imag < grid else here
            assert cell == f"x{here.real:.0f}y{here.imag:.0f}"
    assert task.symbols()[:5] == ["N", "E", "S", "W", "x0y0"] and task.options()["actions"] == "moves"


def test_walks_of_a_store_of_before_are_those_that_turn() -> None:
    assert RandomWalk(actions="turns").options() == RandomWalk().options()
    assert list(RandomWalk().options()) == ["train", "validation", "test", "seed", "grid", "length", "curriculum"]


def test_a_curriculum() -> None:
    task = RandomWalk(train=10, validation=1, test=1, length=50, curriculum=(2, 4, 8, 16))
    assert [len(pairs) for pairs in documents(task, "train")] == [2, 2, 2, 4, 4, 8, 8, 8, 16, 16]
    assert [source.bytes for source in task.sources("train")] == [4, 4, 4, 8, 8, 16, 16, 16, 32, 32]
    assert len(next(documents(task, "test"))) == 50
    assert task.options() == json.loads(json.dumps(task.options()))


def test_a_curriculum_of_programs() -> None:
    task = Algorithm(train=5, validation=1, test=1, statements=9, curriculum=(2, 20))

    def statements(split: str) -> list[int]:
        return [sum(word == ";" for word, _ in pairs) for pairs in documents(task, split)]

    assert [statements(split) for split in SPLITS] == [[2, 2, 2, 20, 20], [9], [9]]
    assert [source.bytes for source in task.sources("train")] == [20, 20, 20, 200, 200]
    assert task.symbols()[-10:] == [str(number) for number in range(1, 11)]


def test_programs_of_a_store_of_before_are_others() -> None:
    before = {"train": 10_000, "validation": 1_000, "test": 1_000, "seed": 0, "statements": 100, "variables": 3}
    assert Algorithm().options() == {**before, "most": 10}
    assert Algorithm(curriculum=(3, 5)).options()["curriculum"] == [3, 5]


def run_program(text: str, values: dict[str, int]) -> Iterator[int]:
    """Execute a program line by line. Yields the value of each variable that is printed; ``values`` become those at its end."""

    def number(word: str) -> int:
        if word in values:
            return values[word]
        assert int(word) in range(1, 11)
        return int(word)

    assert text.endswith(" ;")
    for line in text.removesuffix(" ;").split(" ; "):
        condition, colon, rest = line.rpartition(" : ")
        executed = True
        if colon:
            word, left, sign, right = condition.split(" ")
            assert word == "if" and left in values and left != right and sign in "<>"
            executed = number(left) < number(right) if sign == "<" else number(left) > number(right)
        match rest.split(" "):
            case [name, "=", value]:
                assert name not in values
                values.update({name: number(value)} if executed else {})
            case [name, "++" | "--" as operation]:
                changed = values[name] + {"++": 1, "--": -1}[operation]
                assert changed in range(1, 11)  # where it is not executed, too
                values.update({name: changed} if executed else {})
            case ["print", name]:
                assert not colon
                yield values[name]
            case other:
                raise AssertionError(other)


@given(COUNTS, st.integers(1, 60), st.integers(1, 26), st.lists(st.integers(1, 90), max_size=2))
def test_a_program(counts: dict[str, int], statements: int, variables: int, curriculum: list[int]) -> None:
    for pairs in every(Algorithm(**counts, statements=statements, variables=variables, curriculum=tuple(curriculum))):
        text = " ".join(word for word, _ in pairs)
        assert text.count(";") in {statements, *curriculum}
        labels = [(i, int(label)) for i, (_, label) in enumerate(pairs) if label != NOTHING]
        assert [label for _, label in labels] == list(run_program(text, {}))
        for i, _ in labels:
            assert [word for word, _ in pairs[i - 2 : i + 1 : 2]] == ["print", ";"]


def assignments(programs: list[list[tuple[str, str]]]) -> int:
    """How many are done: a variable gets its first value once, where that does not stand behind an `if` that does not hold."""
    done = 0
    for pairs in programs:
        values: dict[str, int] = {}
        assert all(run_program(" ".join(word for word, _ in pairs), values))
        done += len(values)
    return done


def test_programs_are_those_of_the_paper() -> None:
    found = list(documents(Algorithm(train=1_000), "train"))
    tokens = sum(map(len, found)) / len(found)
    labels = sum(label != NOTHING for pairs in found for _, label in pairs) / len(found)
    assert tokens == pytest.approx(431, rel=0.03) and labels == pytest.approx(25.5, rel=0.03)
    counts = Counter(word for pairs in found for word, _ in pairs)
    assert assignments(found) == 3_000 < counts["="] and counts["<"] / counts["if"] == pytest.approx(0.5, abs=0.03)
    assert counts["++"] / counts["--"] == pytest.approx(1, abs=0.03)
    assigned = Counter(pairs[i + 1][0] for pairs in found for i, (word, _) in enumerate(pairs) if word == "=")
    assert set(assigned) == {str(i) for i in range(1, 11)} and min(assigned.values()) > 240
    printed = Counter(label for pairs in found for _, label in pairs if label != NOTHING)
    assert set(printed) == {str(i) for i in range(1, 11)} and min(printed.values()) > 1_000
    behind = Counter(pairs[i + 2][0] for pairs in found for i, (word, _) in enumerate(pairs) if word == ":")
    assert set(behind) == {"=", "++", "--"} and behind["++"] / behind["--"] == pytest.approx(1, abs=0.03)
    five = list(documents(Algorithm(train=50, variables=5), "train"))
    assert assignments(five) == 250


@given(
    COUNTS, st.integers(1, 9), st.integers(0, 30), st.integers(0, 40), st.sampled_from(["blank", "random"]), st.floats(-2, 3)
)  # fmt: skip
def test_recall(counts: dict[str, Any], pairs: int, longer: int, more: int, filler: Any, power: float) -> None:
    task = Mqar(
        **counts, pairs=pairs, length=4 * pairs + longer, vocabulary=2 * pairs + 2 + more, filler=filler, power=power
    )
    assert len(task.symbols()) == task.vocabulary
    for read in every(task):
        head, tail = read[: 2 * pairs], read[2 * pairs :]
        values = {key: value for (key, _), (value, _) in zip(head[::2], head[1::2], strict=True)}
        assert len(read) == task.length and len(values) == len(set(values.values())) == pairs
        assert all(key[0] == "k" and value[0] == "v" for key, value in values.items())
        assert {label for _, label in head} == {NOTHING}
        asked = {word: label for word, label in tail if label != NOTHING}
        assert asked == values and sum(label != NOTHING for _, label in tail) == pairs
        assert all(label == NOTHING for _, label in tail[1::2])
        if filler == "blank":
            assert all((word == ".") == (label == NOTHING) for word, label in tail)


@given(COUNTS, st.integers(1, 9), st.integers(1, 12), st.integers(0, 20))
def test_recall_of_what_was_rewritten(counts: dict[str, Any], pairs: int, rewrites: int, longer: int) -> None:
    given = pairs + min(pairs, rewrites)
    task = Mqar(**counts, pairs=pairs, rewrites=rewrites, length=2 * (pairs + given) + longer, vocabulary=2 * given + 2)
    for read in every(task):
        head, tail = read[: 2 * given], read[2 * given :]
        values = {}
        for (key, _), (value, _) in zip(head[::2], head[1::2], strict=True):
            assert key[0] == "k" and value[0] == "v" and value not in values.values()
            values[key] = value
        assert len(read) == task.length and len(values) == pairs and len({value for value, _ in head[1::2]}) == given
        assert len({key for key, _ in head[: 2 * pairs : 2]}) == pairs
        assert {word: label for word, label in tail if label != NOTHING} == values
    assert "rewrites" not in Mqar().options() and task.options()["rewrites"] == rewrites


def test_a_curriculum_of_pairs() -> None:
    task = Mqar(train=4, validation=2, test=1, pairs=3, length=20, vocabulary=30, curriculum=(1, 5))
    labels = {
        split: [sum(label != NOTHING for _, label in read) for read in documents(task, split)] for split in SPLITS
    }
    assert labels == {"train": [1, 1, 5, 5], "validation": [3, 3], "test": [3]}
    assert all(len(read) == 20 for read in every(task))
    assert "curriculum" not in Mqar().options() and Mqar(curriculum=(4, 8)).options()["curriculum"] == [4, 8]


def test_documents_with_fewer_pairs_can_be_shorter_in_proportion() -> None:
    task = Mqar(
        train=3, validation=1, test=1, pairs=8, length=40, vocabulary=64, curriculum=(1, 4, 8), proportional=True
    )
    assert {split: [len(read) for read in documents(task, split)] for split in SPLITS} == {
        "train": [5, 20, 40], "validation": [40], "test": [40],
    }  # fmt: skip
    assert [sum(label != NOTHING for _, label in read) for read in documents(task, "train")] == [1, 4, 8]
    assert task.size("train", 0) < task.size("train", 1) < task.size("train", 2)
    assert "proportional" not in Mqar().options() and task.options()["proportional"]


def test_a_shorter_document_holds_its_rewrites() -> None:
    task = Mqar(
        train=2,
        validation=0,
        test=0,
        pairs=8,
        rewrites=1,
        length=34,
        vocabulary=64,
        curriculum=(1, 8),
        proportional=True,
    )
    assert [len(read) for read in documents(task, "train")] == [6, 34]


def test_a_curriculum_of_products() -> None:
    task = Permutation(train=5, validation=2, test=1, group="S3", length=7, curriculum=(2, 4, 9))
    assert {split: [len(read) for read in documents(task, split)] for split in SPLITS} == {
        "train": [2, 2, 4, 4, 9], "validation": [7, 7], "test": [7],
    }  # fmt: skip
    assert "curriculum" not in Permutation().options()
    assert Permutation(curriculum=(3, 5)).options()["curriculum"] == [3, 5]


def test_queries_come_as_the_power_law_says() -> None:
    """The first key's slot, against odds that are added up here."""
    for power, pairs in ((0.01, 1), (1.0, 4)):
        task = Mqar(train=4_000, pairs=pairs, length=16 + 2 * pairs, power=power)
        slots: Counter[int] = Counter()
        for read in documents(task, "train"):
            tail = [word for word, _ in read[2 * pairs :]]
            slots[tail.index(read[0][0]) // 2 + 1] += 1
        odds = {slot: slot ** (power - 1) for slot in range(1, 9)}
        for slot, odd in odds.items():
            assert slots[slot] / 4_000 == pytest.approx(odd / sum(odds.values()), abs=0.03)


def composed(word: str, before: str) -> str:
    """Where `word` sends what `before` gives."""
    return "".join(word[int(image) - 1] for image in before)


@given(COUNTS, st.sampled_from(["S2", "S3", "A5", "S5"]), st.integers(1, 80), st.lists(st.integers(1, 40), max_size=3))
def test_a_product(counts: dict[str, int], group: Any, length: int, curriculum: list[int]) -> None:
    task = Permutation(**counts, group=group, length=length, curriculum=tuple(curriculum))
    for pairs in every(task):
        state = "12345"[: int(group[1])]
        assert len(pairs) in {length, *curriculum}
        for element, label in pairs:
            state = composed(element, state)
            assert label == state


@pytest.mark.parametrize(("group", "order"), [("S2", 2), ("S3", 6), ("A5", 60), ("S5", 120)])
def test_a_group(group: Any, order: int) -> None:
    elements = Permutation(group=group).symbols()
    assert len(set(elements)) == order and elements[0] == "12345"[: len(elements[0])]
    assert {composed(a, b) for a in elements for b in elements} == set(elements)
    drawn = Counter(word for pairs in documents(Permutation(group=group, train=200), "train") for word, _ in pairs)
    assert set(drawn) == set(elements) and max(drawn.values()) < 2 * 200 * 64 / order


def test_the_product_in_s2_is_the_parity() -> None:
    for pairs in documents(Permutation(group="S2", train=20), "train"):
        swaps = [sum(word == "21" for word, _ in pairs[: i + 1]) for i in range(len(pairs))]
        assert [label for _, label in pairs] == ["21" if count % 2 else "12" for count in swaps]


@given(COUNTS, st.integers(2, 12), st.integers(1, 40), st.lists(st.integers(1, 30), max_size=3))
def test_an_expression(counts: dict[str, int], modulus: int, length: int, curriculum: list[int]) -> None:
    """Each label against Python's own value of all that has been read."""
    task = Arithmetic(**counts, modulus=modulus, length=length, curriculum=tuple(curriculum))
    for pairs in every(task):
        assert len(pairs) in {2 * count - 1 for count in (length, *curriculum)}
        assert {label for _, label in pairs[1::2]} <= {NOTHING} and {word for word, _ in pairs[1::2]} <= {*"+-*"}
        for i in range(0, len(pairs), 2):
            read = "".join(word for word, _ in pairs[: i + 1])
            assert int(pairs[i][1]) == eval(read) % modulus
    assert task.symbols() == ["+", "-", "*", *map(str, range(modulus))]


def test_numbers_and_operators_are_equally_likely() -> None:
    words = Counter(word for pairs in documents(Arithmetic(train=500), "train") for word, _ in pairs)
    assert max(words[sign] for sign in "+-*") / min(words[sign] for sign in "+-*") < 1.1
    assert max(words[str(i)] for i in range(5)) / min(words[str(i)] for i in range(5)) < 1.15


@pytest.mark.parametrize("kind", TASKS)
def test_a_document_follows_from_its_number_alone(kind: type[Task]) -> None:
    task = kind(train=20, validation=20, test=20, seed=7)
    assert isinstance(task, Labelled)
    assert {*task.options()} - {"most"} == {field.name for field in fields(task)} - {*kind.unrecorded}
    sources = {split: task.sources(split) for split in SPLITS}
    read = {split: list(task.read(sources[split])) for split in SPLITS}
    assert len({document.text for split in SPLITS for document in read[split]}) == 60
    assert [d.id for d in read["test"]] == [s.id for s in sources["test"]]
    assert len({source.id for split in SPLITS for source in sources[split]}) == 60
    assert list(task.read(sources["train"][13:15])) == read["train"][13:15]
    assert list(replace(task, train=15, test=0).read(sources["train"][:15])) == read["train"][:15]
    other = replace(task, seed=8)
    assert not {d.text for d in other.read(other.sources("train"))} & {d.text for d in read["train"]}
    scanned = [s for d in read["train"] if not isinstance(s := scan(d), Skipped)]
    assert list(reread(task, sources["train"], [s.xxh3 for s in scanned])) == read["train"]
    size = sum(len(str(document.text)) for document in read["train"])
    assert sum(source.bytes for source in sources["train"]) == pytest.approx(size, rel=0.1)


DIGEST = """
import hashlib, json, sys
from data_prep.corpora import CORPORA
for name in sys.argv[1:]:
    task = CORPORA[name](train=3, seed=5)
    told = [[d.id, d.text, d.targets] for d in task.read(task.sources("train"))]
    print(hashlib.sha256(json.dumps([told, task.symbols()]).encode()).hexdigest()[:12])
"""


def test_documents_are_the_same_in_every_process() -> None:
    """And from one version to the next: a store of a task that is made anew has the bytes that it had, unless its options say
    that it is another one."""
    names = [kind.name for kind in TASKS]
    for seed in ("1", "2"):
        command = [sys.executable, "-c", DIGEST, *names]
        told = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert told.stdout.split() == ["d145fafe685d", "56c26d8fb3c8", "67eed06ebafb", "9c07aa0a8046", "0e64b07943e5"]


def test_a_hundred_thousand_are_listed_at_once() -> None:
    assert [len(CORPORA[kind.name](train=100_000).sources("train")) for kind in TASKS] == [100_000] * len(TASKS)


@pytest.mark.parametrize("kind", TASKS)
def test_every_field_is_explained(kind: type[Task], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([kind.name, "--help"])
    _, _, told = capsys.readouterr().out.partition("corpus options")
    for field in fields(kind):
        option = f"--{field.name}, --no-" if field.type == "bool" else f"--{field.name} "
        metavar, *explained = told.split(option)[1].split("(default")[0].replace("│", "").split()
        assert len(explained) >= 2, (field.name, metavar)


BAD: list[tuple[Callable[[], Task], str]] = [
    (lambda: RandomWalk(train=-1), "train of corpus random-walk is -1: give --train 0 or more"),
    (lambda: Permutation(group="X5"), "group of corpus permutation is 'X5': give --group S2 or S3 or A5 or S5"),  # pyrefly: ignore
    (lambda: RandomWalk(actions="fly"), "actions of corpus random-walk is 'fly': give --actions turns or moves"),  # pyrefly: ignore
    (lambda: Algorithm(seed=-1), "seed of corpus algorithm is -1: give --seed 0 or more"),
    (lambda: RandomWalk(grid=1), "grid of corpus random-walk is 1: give --grid 2 or more"),
    (lambda: RandomWalk(length=0), "length of corpus random-walk is 0: give --length 1 or more"),
    (lambda: RandomWalk(curriculum=(8, 0)), "curriculum of corpus random-walk holds 0: give --curriculum lengths of 1 or more"),
    (lambda: Permutation(curriculum=(4, 0)), "curriculum of corpus permutation holds 0: give --curriculum lengths of 1 or more"),
    (lambda: Algorithm(curriculum=(-3,)), "curriculum of corpus algorithm holds -3: give --curriculum statements of 1 or more"),
    (lambda: Algorithm(statements=0), "statements of corpus algorithm is 0: give --statements 1 or more"),
    (lambda: Algorithm(variables=27), "variables of corpus algorithm is 27: give --variables 26 or less"),
    (lambda: Mqar(pairs=0), "pairs of corpus mqar is 0: give --pairs 1 or more"),
    (lambda: Mqar(rewrites=-1), "rewrites of corpus mqar is -1: give --rewrites 0 or more"),
    (lambda: Mqar(pairs=24, rewrites=32), "length of corpus mqar is 128: give --length 144 or more"),
    (lambda: Arithmetic(modulus=1), "modulus of corpus arithmetic is 1: give --modulus 2 or more"),
    (lambda: Arithmetic(curriculum=(0,)), "curriculum of corpus arithmetic holds 0: give --curriculum lengths of 1 or more"),
    (lambda: Mqar(pairs=64), "length of corpus mqar is 128: give --length 256 or more"),
    (lambda: Mqar(vocabulary=17), "vocabulary of corpus mqar is 17: give --vocabulary 18 or more"),
    (lambda: Mqar(vocabulary=10**12), f"vocabulary of corpus mqar is {10**12}: give --vocabulary 1000000 or less"),
    (lambda: Mqar(pairs=2, curriculum=(0,)), "curriculum of corpus mqar holds 0: give --curriculum pairs of 1 or more"),
    (lambda: Mqar(pairs=2, curriculum=(40,)), "length of corpus mqar is 128: give --length 160 or more"),
    (lambda: RandomWalk(grid=1001), "grid of corpus random-walk is 1001: give --grid 1000 or less"),
    (lambda: Mqar(proportional=True), "proportional of corpus mqar needs a curriculum: add --curriculum, or leave it out"),
    (lambda: Mqar(power=float("nan")), "power of corpus mqar is nan: give --power 0.01, or any from -32 to 32"),
    (lambda: Permutation(length=0), "length of corpus permutation is 0: give --length 1 or more"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "sentence"), BAD, ids=[sentence.split(":")[0] for _, sentence in BAD])
def test_what_is_refused(made: Callable[[], Task], sentence: str) -> None:
    with pytest.raises(CorpusError) as raised:
        made()
    assert str(raised.value) == sentence


def test_random_filler_is_any_symbol() -> None:
    corpus = Mqar(train=1, validation=0, test=0, vocabulary=64, pairs=1, length=4096, filler="random")
    (document,) = corpus.read(corpus.sources("train"))
    assert set(str(document.text).split()) == set(corpus.symbols())
