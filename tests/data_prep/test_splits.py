"""How a corpus without splits of its own is split: by hash, and where it is small such that each split has a document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from data_prep import documents
from data_prep.corpora import CORPORA
from data_prep.corpora.text import Text
from data_prep.documents import SPLITS, CorpusError, Document, Source, sources_of, split_of
from pipelines.prepare import prepare


def text_of(folder: Path, names: Sequence[str]) -> Text:
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.txt").write_text(f"words of {name}")
    return Text(source=str(folder))


def ids(found: Mapping[str, Sequence[Source]]) -> dict[str, list[str]]:
    assert all(source.split == split for split, listed in found.items() for source in listed)
    return {split: [source.id for source in listed] for split, listed in found.items()}


@pytest.mark.parametrize("count", range(1, 13))
def test_a_small_corpus_has_a_document_in_each_split(count: int, tmp_path: Path) -> None:
    names = [f"text{i}" for i in range(count)]
    corpus = text_of(tmp_path / "corpus", names)
    found = ids(sources_of(corpus, SPLITS))
    assert all(found.values()) == (count >= 3)
    assert sorted(id for listed in found.values() for id in listed) == sorted(f"{name}.txt" for name in names)
    for split in SPLITS:  # the same, whichever are asked for
        assert ids(sources_of(corpus, (split,))) == {split: found[split]}
    for split in SPLITS:
        read = [item.id for item in corpus.read(sources_of(corpus, SPLITS)[split])]
        assert read == found[split]


def test_no_document_is_in_two_splits_where_most_files_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "SMALL", 20)
    corpus = text_of(tmp_path / "corpus", ["emma", "persuasion", "middlemarch"])
    for i in range(30):
        (tmp_path / "corpus" / f"empty{i}.txt").touch()
    one_by_one = {split: list(sources_of(corpus, (split,))[split]) for split in SPLITS}
    assert one_by_one == sources_of(corpus, SPLITS)


def test_the_documents_that_move_depend_on_their_names_alone(tmp_path: Path) -> None:
    class Shuffled(Text):
        def sources(self, split: str) -> list[Source]:
            return super().sources(split)[::-1]

    corpus = text_of(tmp_path / "corpus", [f"text{i}" for i in range(5)])
    found, turned = ids(sources_of(corpus, SPLITS)), ids(sources_of(Shuffled(corpus.source), SPLITS))
    assert {split: sorted(listed) for split, listed in turned.items()} == found


def test_corpora_with_documents_in_each_split_or_splits_of_their_own_stay_as_they_are(tmp_path: Path) -> None:
    large = text_of(tmp_path / "large", [f"text{i}" for i in range(60)])
    assert all(sources_of(large, SPLITS).values())
    own = text_of(tmp_path / "own" / "train", [f"text{i}" for i in range(5)])
    for corpus in (large, Text(source=str(tmp_path / "own"))):
        assert sources_of(corpus, SPLITS) == {split: corpus.sources(split) for split in SPLITS}
    assert own.splits_by_hash() and not Text(source=str(tmp_path / "own")).splits_by_hash()


@pytest.mark.parametrize("packed", ["jsonl", "parquet"])
def test_files_that_name_their_splits_are_not_split_by_hash(packed: str, tmp_path: Path) -> None:
    rows = [{"text": f"words {i}"} for i in range(4)]
    for folder, name in (("named", "train-0"), ("other", "data")):
        (tmp_path / folder).mkdir()
        if packed == "jsonl":
            (tmp_path / folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / folder / f"{name}.parquet")
    named, other = (CORPORA[packed](source=str(tmp_path / folder)) for folder in ("named", "other"))
    assert [len(listed) for listed in sources_of(named, SPLITS).values()] == [4, 0, 0]
    found = sources_of(other, SPLITS)
    assert all(found.values()) and sum(map(len, found.values())) == 4
    assert [type(item) for split in SPLITS for item in other.read(found[split])] == [Document] * 4


@pytest.mark.parametrize("packed", ["jsonl", "parquet"])
def test_a_file_that_says_no_split_beside_one_that_does_is_refused(packed: str, tmp_path: Path) -> None:
    """Its lines would be in all splits, those that somebody held out too."""
    for name in ("train", "heldout"):
        if packed == "jsonl":
            (tmp_path / f"{name}.jsonl").write_text('{"text": "words"}\n')
        else:
            pq.write_table(pa.table({"text": ["words"]}), tmp_path / f"{name}.parquet")
    by_name, by_hash = (CORPORA[packed](source=str(tmp_path), split_by=how) for how in ("file", "hash"))
    refusal = (
        rf"^heldout\.{packed} does not say its split in its name, and train\.{packed} does: rename or remove the former"
    )
    for ask in (by_name.splits_by_hash, lambda: by_name.sources("train")):
        with pytest.raises(CorpusError, match=refusal):
            ask()
    assert by_hash.splits_by_hash() and sum(len(by_hash.sources(split)) for split in SPLITS) == 2
    (tmp_path / f"heldout.{packed}").rename(tmp_path / f"Eval-0.{packed}")
    assert [len(by_name.sources(split)) for split in SPLITS] == [1, 1, 0]


def test_five_texts_give_three_splits_and_two_say_which_are_empty(
    make_config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["emma", "persuasion", "middlemarch", "villette", "shirley"]
    assert set(prepare(make_config(corpus=text_of(tmp_path / "five", names)))) == set(SPLITS)
    assert "left out" not in capsys.readouterr().out
    made = prepare(make_config(corpus=text_of(tmp_path / "two", names[:2]), store=str(tmp_path / "other")))
    out = capsys.readouterr().out
    assert len(made) < 3
    for split in set(SPLITS) - set(made):
        assert f"{split}: no document with text, left out; to have one, add documents, or call a folder or file" in out


def test_the_document_that_moves_has_the_smallest_hash(tmp_path: Path) -> None:
    names = [name for name in (f"{i}.txt" for i in range(100)) if split_of(name) == "train"][:5]
    for name in names:
        (tmp_path / name).write_text("some words")
    found = sources_of(Text(source=str(tmp_path)), SPLITS)
    by_hash = sorted(names, key=lambda name: xxhash.xxh3_64_intdigest(name.encode()))
    assert [[source.id for source in found[split]] for split in ("validation", "test")] == [[by_hash[0]], [by_hash[1]]]
