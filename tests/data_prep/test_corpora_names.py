"""The corpus `names`: that it asks what it says it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from data_prep.corpora.names import ANSWER, LINE, NAMES, TRAIN_LINES, Names
from data_prep.documents import SPLITS, CorpusError
from tests.small_archives import documents_of

SMALL = Names(train=60, validation=3, test=7, distances=(1, 4, 10))


def texts(corpus: Names, split: str) -> dict[str, str]:
    return {document.id: str(document.text) for document in documents_of(corpus, split)}


def test_the_question_stands_at_the_stated_distance_and_nowhere_else() -> None:
    trained_on = "".join([*texts(SMALL, "train").values(), *texts(SMALL, "validation").values()])
    asked = texts(SMALL, "test")
    for distance in SMALL.distances:
        of_distance = [text for name, text in asked.items() if name.startswith(f"test/{distance}/")]
        assert len(of_distance) == SMALL.test
        for text in of_distance:
            lines = text.splitlines(keepends=True)
            assert len(lines) == distance + 1 and {len(line.encode()) for line in lines} == {LINE}
            name = lines[0][ANSWER]
            assert lines[0] == f"my name is {name}\n" and lines[-1] == f"your name: {name}\n" and name in NAMES
            assert text.count(name) == 2 and "your" not in "".join(lines[:-1])
            assert name not in trained_on


def test_training_documents_ask_at_every_distance() -> None:
    documents = [text.splitlines() for text in texts(SMALL, "train").values()]
    assert len(documents) == SMALL.train and {len(lines) for lines in documents} == {TRAIN_LINES}
    asked = {i for lines in documents for i, line in enumerate(lines) if line.startswith("your name: ")}
    assert asked == set(range(1, TRAIN_LINES))
    assert all(line[ANSWER] == lines[0][ANSWER] for lines in documents for line in lines if line.startswith("your"))


def test_the_corpus_follows_from_its_fields() -> None:
    sources = SMALL.sources("train")
    assert list(SMALL.read(sources[10:12])) == list(SMALL.read(sources))[10:12]
    assert texts(replace(SMALL), "train") == texts(SMALL, "train") != texts(replace(SMALL, seed=1), "train")
    assert [len(SMALL.sources(split)) for split in SPLITS] == [60, 3, 21]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: Names(train=-1), "train of corpus names is -1: give --train 0 or more"),
        (lambda: Names(distances=(0, 4)), r"distances of corpus names are \(0, 4\): give --distances of 1 or more"),
        (lambda: Names(distances=()), r"distances of corpus names are \(\): give"),
    ],
)
def test_what_is_refused(made: Callable[[], Names], sentence: str) -> None:
    with pytest.raises(CorpusError, match=sentence):
        made()


def test_no_name_of_a_test_document_is_trained_on_and_a_line_in_four_asks() -> None:
    corpus = Names(train=2000, validation=100, test=200, distances=(1,))
    known = {text[ANSWER] for split in ("train", "validation") for text in texts(corpus, split).values()}
    assert known.isdisjoint(text[ANSWER] for text in texts(corpus, "test").values())
    asked = sum(text.count("your name: ") for text in texts(corpus, "train").values())
    assert asked / (corpus.train * (TRAIN_LINES - 1)) == pytest.approx(0.25, abs=0.02)
