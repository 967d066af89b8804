"""What prepare says of splits that are empty, or share texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.errors import UserError
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.documents import SPLITS
from data_prep.manifest import StoreError
from pipelines.prepare import PrepareConfig, prepare
from tests.small_archives import put


def lines(texts: Sequence[str | None]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def config(folder: Path, store: str = "store", **fields: str) -> PrepareConfig:
    corpus = JsonLines(source=str(folder / "in"), **fields)  # type: ignore[arg-type]
    return PrepareConfig(corpus, store=str(folder / store), num_workers=0)


def test_a_corpus_of_train_alone_names_the_option_that_splits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {"in/train-00000-of-00001.jsonl": lines([f"text {i}" for i in range(12)])})
    assert list(prepare(config(tmp_path))) == ["train"]
    out = capsys.readouterr().out
    assert "validation: no document with text, left out; to have one, add documents, or call a folder or file" in out
    assert out.count("or give --split-by hash to take some documents of each") == 2
    assert list(prepare(config(tmp_path, "split", split_by="hash"))) == list(SPLITS)


def test_a_split_without_documents_has_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"in/train.jsonl": lines(["one"]), "in/test.jsonl": lines([None, " ", None])})
    prepare(config(tmp_path))
    assert "test: no document with text (skipped 1 empty, 2 without text), left out" in capsys.readouterr().out
    put(tmp_path, {"in/train.jsonl": lines([None])})
    with pytest.raises(
        StoreError, match=r"jsonl holds no document with text \(skipped 1 empty, 3 without text\): give"
    ):
        prepare(config(tmp_path, "other"))


def test_repositories_without_a_file_to_read_name_the_endings(tmp_path: Path) -> None:
    put(tmp_path, {"in/repo/main.nim": "echo 1", "in/other/main.nim": "echo 2"})
    repositories = str(tmp_path / "in")
    with pytest.raises(StoreError, match=r"github holds no document with text .*: give the --endings of its files, or"):
        prepare(PrepareConfig(GitHub(source=repositories), str(tmp_path / "store"), num_workers=0))
    nim = PrepareConfig(GitHub(source=repositories, endings=(".nim",)), str(tmp_path / "store"), num_workers=0)
    assert sum(manifest.totals.documents for manifest in prepare(nim).values()) == 2


def test_texts_in_two_splits_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = [f"text {i}" for i in range(5)]
    put(tmp_path, {"in/train.jsonl": lines(train), "in/validation.jsonl": lines(["text 1", "text 1", "other"])})
    put(tmp_path, {"in/test.jsonl": lines(["one more"])})
    prepare(config(tmp_path))
    out = capsys.readouterr().out
    assert "warning: 2 of 3 documents of validation stand in train too, byte for byte" in out
    assert "documents of test" not in out


def test_a_held_out_split_with_more_text_than_train_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"text {i}" for i in range(12)]
    put(tmp_path, {"in/a.jsonl": lines(texts)})
    prepare(config(tmp_path))
    assert "and train only" not in capsys.readouterr().out
    held = int(next(iter(config(tmp_path).corpus.sources("test"))).id.partition(":")[2]) - 1
    put(tmp_path, {"in/a.jsonl": lines([*texts[:held], "long " * 40, *texts[held + 1 :]])})
    prepare(config(tmp_path, "long"))
    out = capsys.readouterr().out
    assert re.search(r"warning: test has 20\d bytes of text and train only \d\d, since a hash of its id", out)
    assert out.count("and train only") == 1
    put(tmp_path / "named", {"in/train.jsonl": lines(["a"]), "in/test.jsonl": lines(["more text"])})
    prepare(config(tmp_path / "named"))
    assert "and train only" not in capsys.readouterr().out


def test_a_row_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    for length in (1 << 31, 1 << 40):
        with pytest.raises(UserError, match=f"segment_length is {length}: give less than 2,147,483,648"):
            PrepareConfig(JsonLines(source=str(tmp_path)), segment_length=length)
