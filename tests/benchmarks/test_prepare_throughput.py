"""The corpora whose preparation is timed, and options that do not fit each other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import prepare_throughput
from benchmarks.prepare_throughput import Measurement, bare, books, few_words, report, short_documents, whole
from common.errors import UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lines", "9", "--peers", "python"], "leave out --peers and --peer-tokenizer"),
        (["--lines", "9", "--peer-tokenizer", "tokenizer.json"], "leave out --peers and --peer-tokenizer"),
        (["--lines", "9", "--copies", "2"], "leave out --copies"),
        (["--lines", "-1"], "--lines is -1: give 0 or more"),
        (["--copies", "0"], "--copies is 0: give 1 or more"),
        (["--rounds", "0"], "--rounds is 0: give 1 or more"),
        ([], "--source is not given: name a folder in the layout of PG-19"),
        (["--source", "nowhere"], "--source nowhere has no .txt file in train, validation or test: name a folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_throughput.main(words)


def test_short_documents_are_lines_of_the_texts_over_and_over(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_text("é" * 159 + "\n \n" + "b" * 160 + "cut off", "utf-8")
    task = short_documents(tmp_path, 5, tmp_path / "lines")
    texts = [[json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()] for path in task.files]
    first = "é" * 159 + " "
    assert texts == [[first, "b" * 160], [first, "b" * 160, first]]
    assert (task.documents, task.bytes) == (5, 3 * 319 + 2 * 160)


def test_texts_shorter_than_a_line_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_text("short")
    with pytest.raises(UserError, match=r"has no text of 160 characters: name a folder in the layout of PG-19"):
        short_documents(tmp_path, 5, tmp_path / "lines")


def test_a_preparation_is_measured_with_all_files_of_its_store(tmp_path: Path) -> None:
    task = short_documents(few_words(tmp_path / "words"), 100, tmp_path / "lines")
    measured = whole(task, "bytes", tmp_path / "store", num_workers=0)
    assert measured.tokens == task.bytes == 16_000
    # Ids of two bytes; the documents' table has at least six numbers and a checksum of 16 letters for each.
    assert measured.store_over_ids > (2 * 16_000 + 100 * (3 * 8 + 3 * 4 + 16)) / (2 * 16_000)
    assert not (tmp_path / "store").exists()


def test_bare_processes_encode_the_texts_and_not_the_json(tmp_path: Path) -> None:
    folder = few_words(tmp_path / "words")
    for task in (short_documents(folder, 100, tmp_path / "lines"), books(folder, 1, tmp_path / "copies")):
        assert bare(task.files, "bytes").tokens == task.bytes


def test_the_report_of_short_documents_has_their_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = short_documents(few_words(tmp_path / "words"), 100, tmp_path / "lines")
    runs = {
        "bare": [Measurement(seconds, 1, 0.002) for seconds in (0.001, 0.002, 0.003)],
        "whole preparation": [Measurement(0.004, 1, 0.008, 1.5)],
    }
    rows = report(task, runs, short=True)
    assert rows == [("bare", 8.0, 1.0, 1.0, 1.0, 20.0), ("whole preparation", 4.0, 0.5, 0.25, 0.25, 40.0)]
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "bare 8.00 MB/s, 1.000 of bare (the best runs: 1.000; by CPU seconds: 1.000)",
        "20.0 µs per document, 20.0 µs of CPU",
        "whole preparation 4.00 MB/s, 0.500 of bare (the best runs: 0.250; by CPU seconds: 0.250)",
        "40.0 µs per document, 80.0 µs of CPU",
        "the store has 1.50 × the bytes of its ids",
    ]
    report(task, {"bare": [Measurement(0.001, 1, math.nan)]}, short=False)
    assert len(capsys.readouterr().out.splitlines()) == 1
