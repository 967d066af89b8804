"""inspect, verify and vocabulary: the numbers that they print, and every fault that they name."""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from common.errors import UserError
from common.places import Place
from data_prep import verification
from data_prep.inspection import fill, length_quantiles
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from data_prep.verification import find_splits, verify_split
from pipelines import inspect, preflight, verify
from pipelines.prepare import PrepareConfig, prepare
from pipelines.terminal import cli
from pipelines.terminal.output import printable
from studies import vocabulary
from tests.shared_data import need
from tests.small_corpus import flip


@pytest.fixture
def store(make_config: Callable[..., PrepareConfig]) -> Path:
    config = make_config(part_bytes=1000)
    prepare(config)
    return Path(config.store)


def faults(folder: Path) -> list[str]:
    return verify_split(Place.parse(folder), lambda size: None)


# verify


def test_a_good_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for place, splits in ((store, 3), (store / "text", 3), (store / "text" / "train", 1)):
        assert len(find_splits(place)) == splits
        assert verify.main([str(place)]) == 0
        out = capsys.readouterr().out
        assert out.count(", good\n") == splits and f"every byte is as it was written: {splits} split" in out


def test_every_flipped_byte_is_a_fault(store: Path) -> None:
    folder = store / "text" / "validation"
    tokenizer = store / "text" / "tokenizer" / "tokenizer.json"
    rng = np.random.default_rng(0)
    for path in [*sorted(folder.iterdir()), tokenizer]:
        whole = path.read_bytes()
        for offset in {0, len(whole) - 1, *rng.integers(0, len(whole), 25).tolist()}:
            flip(path, offset)
            found = faults(folder)
            assert found and any(path.name in fault for fault in found), (path, offset)
            path.write_bytes(whole)
    assert faults(folder) == []


def test_all_faults_are_named_not_only_the_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store / "text" / "train"
    parts = sorted(folder.glob("part-*"))
    assert len(parts) >= 4
    flip(parts[0], parts[0].stat().st_size // 2)
    parts[1].unlink()
    parts[2].write_bytes(parts[2].read_bytes()[:-100])
    flip(parts[3], 9)
    shutil.copy(parts[3], folder / "part-99999.arrow")
    (folder / "ledger").mkdir()
    (folder / "part-00000.arrow.12.tmp").write_bytes(b"x")
    flip(folder / "documents.arrow", 700)
    capsys.readouterr()
    assert verify.main([str(store)]) == 2
    captured = capsys.readouterr()
    for words in (
        rf"{parts[0].name} is damaged in record batch 0 \(byte \d+ to \d+\)",
        rf"{parts[1].name} is missing",
        rf"{parts[2].name} has \d+ bytes and should have \d+",
        rf"{parts[3].name} is damaged in its Arrow schema or footer",
        r"part-99999\.arrow is no file of this split",
        r"ledger was left by a preparation that was stopped",
        r"part-00000\.arrow\.12\.tmp was left by",
        r"documents\.arrow is damaged",
    ):
        assert re.search(words, captured.out), words
    assert captured.err.startswith("error: ") and "faults in 3 splits" in captured.err
    assert "validation: " in captured.out and captured.out.count(", good\n") == 2


def test_parts_that_were_swapped_or_come_from_elsewhere(store: Path) -> None:
    folder = store / "text" / "train"
    first, second = sorted(folder.glob("part-*"))[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    found = faults(folder)
    assert any(first.name in fault for fault in found) and any(second.name in fault for fault in found)


def test_rows_that_do_not_fit_the_table(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are all as the manifest says, and yet do not belong together: as a fault of the writer would leave them."""
    folder = store / "text" / "train"
    split = SegmentStore.open(folder)
    table = split.manifest.documents
    for name in ("tokens", "row", "part"):
        changed = _Changed(table, name)
        monkeypatch.setattr(verification, "read_table", lambda *_, changed=changed: changed)
        found = faults(folder)
        assert found and any(re.search("should|rows|sums", fault) for fault in found), name
    monkeypatch.undo()
    assert faults(folder) == []


class _Changed:
    """The table with one number of its third document changed."""

    def __init__(self, table, name: str) -> None:
        self._columns = {key: table.column(key).copy() for key in ("tokens", "words", "bytes", "part", "batch", "row")}
        self._columns[name][2] += 1
        self._length = len(table)

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> np.ndarray:
        return self._columns[name]

    @property
    def tokens(self) -> np.ndarray:
        return self._columns["tokens"]


def test_unfinished_missing_and_foreign_splits(store: Path, tmp_path: Path, make_config) -> None:
    folder = store / "text" / "test"
    (folder / "manifest.json").unlink()
    assert [words in faults(folder)[0] for words in ("manifest.json is missing", "vouches")] == [True, True]
    (folder / "ledger").mkdir()
    assert "was not finished: run the same prepare command again" in faults(folder)[0]
    shutil.copytree(store / "text" / "train", store / "text" / "renamed")
    assert any("is that of the split 'train'" in fault for fault in faults(store / "text" / "renamed"))
    other = make_config(store=str(tmp_path / "other"), tokenizer="sentencepiece:400")
    prepare(other)
    shutil.rmtree(store / "text" / "tokenizer")
    assert any("tokenizer.json is missing" in fault for fault in faults(store / "text" / "train"))
    shutil.copytree(Path(other.store) / "text" / "tokenizer", store / "text" / "tokenizer")
    assert any("is not the tokenizer that" in fault for fault in faults(store / "text" / "train"))
    with pytest.raises(StoreError, match="nowhere: there is no such folder; give a store"):
        find_splits(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="it holds no prepared split"):
        find_splits(store / "text" / "tokenizer")


# inspect


INSPECTED = ("--segment-length", "256", "--block", "64", "16", "--lanes", "2")


def test_inspect_shows_what_is_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    inspect.main([str(store / "text" / "train"), *INSPECTED])
    out = capsys.readouterr().out
    split = SegmentStore.open(store, "text", "train")
    parts = len(split.manifest.parts)
    assert f"6 documents in {parts} part{'s' * (parts != 1)}; skipped 1 empty" in out
    assert re.search(r"length of a document: shortest [\d,]+ tokens, 10 % [\d,]+ tokens, median [\d,]+ tokens", out)
    assert f"{split.manifest.totals.tokens:,} tokens" in out
    assert "bytes: 257 ids with begin-of-document, lossless" in out
    inspect.main([str(store / "text" / "test"), *INSPECTED])
    assert "  1 document in 1 part" in capsys.readouterr().out


def test_inspect_shows_that_smaller_blocks_are_filled_better(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.main([str(store / "text" / "train"), *INSPECTED])
    table = re.findall(r"^(at .*?)\s+(\d+\.\d+)%\s+(\d+\.\d+)%$", capsys.readouterr().out, re.MULTILINE)
    shares = {row[0]: float(row[1]) for row in table}
    larger, smaller, none = "at every block of 64 tokens", "at every block of 16 tokens", "at a segment's start alone"
    assert list(shares) == [larger, smaller, none]
    assert shares[none] < shares[larger] < shares[smaller] <= 100


@pytest.mark.parametrize("documents", [0, 4])
def test_inspect_shows_as_many_documents_as_it_is_asked_for(
    store: Path, capsys: pytest.CaptureFixture[str], documents: int
) -> None:
    inspect.main([str(store / "text" / "train"), *INSPECTED, "--documents", str(documents)])
    out = capsys.readouterr().out
    assert out.count("▶ step") == out.count("begins (") == documents
    shown = ("of the segment: document", "in blocks of 64 tokens", "ends (")
    assert [text in out for text in shown] == [documents > 0] * 3


def test_inspect_shows_each_document_of_a_small_split_once(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.main([str(store / "text" / "train"), *INSPECTED, "--documents", "20"])
    out = capsys.readouterr().out
    begun = re.findall(r"document (\d+), '.*', begins ", out)
    assert sorted(begun) == [str(number) for number in range(6)]
    ended = re.findall(r"document (\d+), '.*', ends ", out)
    assert len(ended) == len(set(ended))
    assert re.search(r"^… [\d,]+ passages? of documents shown above$", out, re.MULTILINE)


def test_inspect_draws_the_lengths_beside_the_store_or_where_it_is_told(store: Path, tmp_path: Path) -> None:
    inspect.main([str(store / "text" / "train"), *INSPECTED])
    picture = matplotlib.image.imread(tmp_path / "store-text-train-lengths.png")
    assert picture.shape[0] > 300 and picture.std() > 0.05
    assert faults(store / "text" / "train") == []  # the picture is not in the store
    inspect.main([str(store / "text" / "test"), *INSPECTED, "--png", str(tmp_path / "a" / "b.png")])
    assert (tmp_path / "a" / "b.png").exists()


def test_inspect_prints_no_report_where_its_picture_cannot_be_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("a file")
    capsys.readouterr()
    with pytest.raises(UserError, match=r"a/b\.png cannot be written: name a file for the histogram with --png"):
        inspect.main([str(store / "text" / "test"), "--png", str(tmp_path / "a" / "b.png")])
    assert capsys.readouterr().out == ""


def test_inspect_refuses_a_store_of_several_splits(store: Path) -> None:
    with pytest.raises(StoreError, match=r"text is not a split but contains splits: name one, such as .*text/test"):
        inspect.main([str(store / "text")])


def test_the_picture_of_a_store_that_is_read_only_goes_to_the_working_directory(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = SegmentStore.open(store, "text", "train")
    assert inspect.default_png(split) == tmp_path / "store-text-train-lengths.png"
    monkeypatch.setattr(os, "access", lambda *_, **options: False)
    assert inspect.default_png(split) == Path("store-text-train-lengths.png")


def test_fill_is_what_blocks_leave() -> None:
    lengths = np.random.default_rng(0).integers(1, 9000, 4000)
    for block in (128, 512, 4096):
        expected = lengths.sum() / (-(-lengths // block) * block).sum()
        assert abs(fill(lengths, 8, 4096, block) - expected) < 0.01
    assert fill(np.array([4096] * 16), 8, 4096, 512) == 1.0
    assert length_quantiles(np.array([3, 1, 2])) == {"shortest": 1, "10 %": 1, "median": 2, "90 %": 3, "longest": 3}


def test_text_of_a_corpus_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\x07é漢") == "a\\x1b[2Jb\n c\\x07é漢"


# vocabulary


def study(text_folder: Path, root: Path, *tracking: str) -> None:
    corpus = ["text", "--source", str(text_folder), "--split", "validation", "--root", str(root)]
    vocabulary.main([*corpus, *tracking, "--tokenizers", "bytes", "sentencepiece:400", "sentencepiece-bpe:9000"])


def test_vocabulary_study(text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(text_folder, tmp_path / "runs", "--tracking.backend", "none")
    out = capsys.readouterr().out
    assert "sentencepiece-bpe:9000 has" in out and "pieces and not 9,000" in out
    (path,) = (tmp_path / "runs" / "vocabulary").glob("text-validation-*/vocabulary.csv")
    rows = {row["tokenizer"]: row for row in csv.DictReader(path.open())}
    text = "".join((text_folder / "validation" / f"doc{i}.txt").read_bytes().decode() for i in (0, 1))
    whole = rows["bytes"]
    assert int(whole["tokens"]) == int(whole["bytes"]) == len(text.encode()) and int(whole["words"]) == len(
        text.split()
    )
    assert all(row["lossless"] == "True" for row in rows.values())
    assert float(rows["sentencepiece:400"]["bytes_per_token"]) > 1.1
    shown = next(line.split() for line in out.splitlines() if line.startswith("sentencepiece:400"))
    assert shown[1] == "400" and float(shown[3]) == round(float(rows["sentencepiece:400"]["tokens_per_word"]), 4)


def test_vocabulary_counts_what_prepare_counts(text_folder: Path, tmp_path: Path, capsys, make_config) -> None:
    """No document without words, and nothing that stands for what was left out."""
    for name, text in {"validation/blank.txt": " \n" * 9000, "test/blank.txt": " \n", "other/x.txt": "beside"}.items():
        (text_folder / name).parent.mkdir(exist_ok=True)
        (text_folder / name).write_text(text)
    totals = prepare(make_config(splits=("validation",)))["validation"].totals
    capsys.readouterr()
    study(text_folder, tmp_path / "runs", "--tracking.backend", "none")
    assert f"text, validation: 2 documents, {totals.bytes:,} bytes, {totals.words:,} words\n" in capsys.readouterr().out
    (path,) = (tmp_path / "runs" / "vocabulary").glob("*/vocabulary.csv")
    first = next(csv.DictReader(path.open()))
    assert (int(first["tokens"]), int(first["words"])) == (totals.tokens, totals.words)
    (text_folder / "validation" / "doc0.txt").unlink()
    study(text_folder, tmp_path / "runs", "--tracking.backend", "none")
    assert "text, validation: 1 document, " in capsys.readouterr().out
    (text_folder / "validation" / "doc1.txt").unlink()
    with pytest.raises(UserError, match="split validation of text holds no word: choose another --split"):
        study(text_folder, tmp_path / "none", "--tracking.backend", "none")


@pytest.mark.slow
def test_vocabulary_study_in_mlflow(text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    study(text_folder, tmp_path / "runs", "--tracking.uri", uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    study(text_folder, tmp_path / "runs")
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("throughline").experiment_id])  # type: ignore[union-attr]
    assert run.data.metrics["tokens_per_word/bytes"] == run.data.metrics["tokens/bytes"] / 350
    assert run.data.metrics["size/sentencepiece-400"] == 400 and run.data.tags["stage"] == "vocabulary"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["vocabulary.csv"]


@pytest.mark.slow
def test_each_of_two_tokenizers_of_one_name_has_its_metrics(text_folder: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    corpus = ["text", "--source", str(text_folder), "--root", str(tmp_path / "runs"), "--tracking.uri", uri]
    vocabulary.main([*corpus, "--tokenizers", "bytes", "bytes"])
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("throughline").experiment_id])  # type: ignore[union-attr]
    expected = {f"{metric}/{name}" for metric in vocabulary.COLUMNS for name in ("bytes", "bytes.2")}
    assert run.data.metrics.keys() >= expected
    assert run.data.metrics["size/bytes"] == run.data.metrics["size/bytes.2"] == 256


@pytest.mark.parametrize(
    ("main", "words", "sentence"),
    [
        (inspect.main, ["nowhere/train"], "there is no prepared split in"),
        (inspect.main, ["nowhere", "--block", "100"], "a block of 100 tokens does not divide segments of 4096"),
        (inspect.main, ["nowhere", "--lanes", "0"], "--lanes is 0: it must be at least 1"),
        (inspect.main, ["nowhere", "--documents", "-1"], "--documents is -1: it must be at least 0"),
        (inspect.main, ["nowhere", "--png", "notes.txt"], "--png is notes.txt: it must end in .png"),
        (inspect.main, ["nowhere", "--png", "lengths"], "--png is lengths: it must end in .png"),
        (inspect.main, [""], "SPLIT is empty: give the folder of a prepared split"),
        (verify.main, [""], "STORE is empty: give a store"),
        (verify.main, ["nowhere"], "there is no such folder"),
        (verify.main, ["embedded"], "it holds no prepared split"),
        (vocabulary.main, ["text", "--source", ".", "--root", "a-file"], "the table cannot be written below a-file"),
        (preflight.main, ["--here", "--ports", "6379", "637900"], "--ports 637900: give ports from 1 to 65535"),
        (vocabulary.main, ["text", "--source", "."], "holds no file that matches '*.txt'"),
        (vocabulary.main, ["text", "--split", "tran"], "unknown split 'tran': did you mean 'train'?"),
        (vocabulary.main, ["text", "--tokenizers"], "tokenizers is empty"),
        (
            vocabulary.main,
            ["mqar", "--tokenizers", "bytes"],
            "corpus mqar labels its tokens, and its symbols are its tokens: name a corpus of text",
        ),
        (vocabulary.main, ["pg19", "--validation-tokens", "9"], "split validation is cut after so many tokens of one"),
        (
            vocabulary.main,
            ["text", "--tokenizers", "byts"],
            "unknown tokenizer 'byts', and no such folder: did you mean 'bytes'?",
        ),
    ],
)
def test_wrong_words(main, words, sentence, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    Path("embedded/folder").mkdir(parents=True)
    for name in ("part-00000.arrow", ".lock"):
        Path("embedded/folder", name).touch()
    monkeypatch.setattr(sys, "argv", ["tool", *words])
    with pytest.raises(SystemExit) as exit:
        cli.run(main)
    captured = capsys.readouterr()
    assert exit.value.code == 2 and sentence in captured.err and captured.err.count("\n") == 1


@pytest.mark.real_data
@pytest.mark.slow
def test_fill_on_real_books(make_config) -> None:
    from data_prep.corpora.pg19 import Pg19

    model = need("tokenizers", "sentencepiece_pg19", "pg19train_bpe_32000.model")
    made = make_config(
        corpus=Pg19(source=str(need("pg19"))), splits=("validation",), tokenizer=str(model), part_bytes=16 << 20
    )
    lengths = SegmentStore.open(made.store, "pg19", "validation").lengths if prepare(made) else np.zeros(0)
    assert fill(lengths, 8, 4096, 512) > 0.99
