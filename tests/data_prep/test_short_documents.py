"""Very many short documents: ids back to back, and nothing else changes for who reads them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.places import Place
from data_prep import committing, segments
from data_prep.corpora import CORPORA, spans
from data_prep.corpora.spans import Window, line_spans, lines
from data_prep.corpora.streams import Forward
from data_prep.document_table import SCHEMA, read_table, write_table
from data_prep.documents import Document, Source
from data_prep.lanes import EvaluationLanes, TrainingLanes, read_batch
from data_prep.plan import plan
from data_prep.scanning import ScannedDocuments, SplitScan, scan_group
from data_prep.sources import NumberedFile, NumberedSources, group_by_bytes, names_of, sizes_of, take
from data_prep.store import SegmentStore
from data_prep.tokenizers import BytesTokenizer
from data_prep.verification import verify_split
from pipelines import inspect
from pipelines.prepare import PrepareConfig, main, prepare
from tests.small_archives import put
from tests.small_corpus import contents

LINES = [f"line {i} says {i * i}, {'and' * (i % 7)} that is é" for i in range(2000)]


@pytest.fixture
def make_lines(tmp_path: Path, make_config: Callable[..., PrepareConfig]) -> Callable[..., PrepareConfig]:
    """A preparation of LINES, or of other texts, as JSON lines."""

    def make(texts: list[str] = LINES, **fields: object) -> PrepareConfig:
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        put(tmp_path / "lines", {"train.jsonl": data})
        corpus = CORPORA["jsonl"](source=str(tmp_path / "lines"))
        return make_config(
            **{"corpus": corpus, "segment_length": 0, "splits": ("train",), "part_bytes": 20_000, **fields}
        )

    return make


def test_a_store_of_short_documents_is_at_most_three_times_its_ids(
    make_lines, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_lines()
    manifest = prepare(made)["train"]
    out = capsys.readouterr().out
    size = sum(path.stat().st_size for path in (made.folder / "train").iterdir())
    ids = sum(2 * len(text.encode()) for text in LINES)
    assert manifest.token_bytes == ids and manifest.file_bytes <= size <= 3 * ids
    assert manifest.segment_length == 1 and "parts to write, ids back to back\n" in out
    assert out.splitlines()[-5].split()[0] == "train" and f" {manifest.file_bytes / ids:.2f}\n" in out
    inspect.describe(inspect.lines(), SegmentStore.open(made.folder / "train"))
    assert f"ids back to back: {manifest.file_bytes:,} bytes of files, {manifest.file_bytes / ids:.2f} × the ids" in (
        capsys.readouterr().out
    )


def test_rows_that_are_mostly_padding_are_named(make_lines, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_lines(segment_length=1024))
    assert "rows of 1,024 tokens, which hold more padding than tokens, since documents are short: leave out " in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [([5000] * 3, 1024), ([160] * 50, 1), ([160] * 10 + [60_000], 1024), ([160] * 100 + [60_000], 1)],
)
def test_rows_are_chosen_by_the_sizes_of_documents(make_lines, sizes: list[int], chosen: int) -> None:
    made = make_lines([f"{i}".ljust(size, "x") for i, size in enumerate(sizes)])
    manifest = prepare(made)["train"]
    assert manifest.segment_length == chosen == manifest.inputs["parameters"]["segment_length"]
    assert not verify_split(made.place / "train", lambda _: None)


def test_readers_see_the_same_documents_whatever_the_rows(make_lines, tmp_path: Path) -> None:
    """Any segment length of training is read from either store, the same batches."""
    stores = []
    for rows in (0, 1024, 7):
        made = make_lines(store=str(tmp_path / f"rows{rows}"), segment_length=rows, tokenizer="sentencepiece-bpe:400")
        prepare(made)
        stores.append(SegmentStore.open(made.folder / "train"))
        assert not verify_split(made.place / "train", lambda _: None)
    short, *others = stores
    tokenizer = short.tokenizer()
    for i in (0, 1, 999, 1999):
        entry = short.manifest.documents[i]
        ids = tokenizer.encode(LINES[i])
        assert entry.id == entry.title == f"train.jsonl:{i + 1}" and np.array_equal(short.tokens(i, 0, len(ids)), ids)
        assert (entry.tokens, entry.words, entry.bytes) == (len(ids), len(LINES[i].split()), len(LINES[i].encode()))
    for segment_length, block in ((32, 8), (96, 32)):
        sizes = {"lanes": 4, "segment_length": segment_length, "block": block}
        for lanes in (TrainingLanes(short.lengths, **sizes, seed=0), EvaluationLanes(short.lengths, **sizes)):
            for step in (0, 5):
                batch = read_batch(short, lanes, step, 0, 4)
                for other in others:
                    again = read_batch(other, lanes, step, 0, 4)
                    assert all(np.array_equal(value, vars(again)[name]) for name, value in vars(batch).items())


def test_short_labelled_documents(make_config, tmp_path: Path) -> None:
    stores = []
    for rows in (0, 64):
        corpus = CORPORA["random-walk"](train=30, length=20)
        made = make_config(
            corpus=corpus, tokenizer="", splits=("train",), segment_length=rows, store=str(tmp_path / f"rows{rows}")
        )
        manifest = prepare(made)["train"]
        assert manifest.segment_length == (rows or 1) and manifest.token_bytes == 30 * 20 * 6
        assert not verify_split(made.place / "train", lambda _: None)
        stores.append(SegmentStore.open(made.folder / "train"))
    for i in range(30):
        for read in ("tokens", "targets"):
            first, second = (getattr(store, read)(i, 0, 20) for store in stores)
            assert np.array_equal(first, second)


def test_a_killed_preparation_of_short_documents_resumes(make_lines, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(segments, "BATCH_BYTES", 10_000)  # several record batches to a part
    whole, killed = make_lines(store=str(tmp_path / "whole")), make_lines()
    prepare(whole)
    commit = committing.commit_part
    done = []

    def twice(*arguments: object) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        commit(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(committing, "commit_part", twice)
        prepare(killed)
    assert len(list((killed.folder / "train" / "ledger").iterdir())) == 2
    prepare(killed)
    assert contents(killed.folder) == contents(whole.folder)


def test_a_table_that_does_not_fit_ids_back_to_back(make_lines, monkeypatch: pytest.MonkeyPatch) -> None:
    write = committing.write_table

    def longer(folder, groups):
        return write(
            folder, ({**group, "tokens": group["tokens"] + (np.arange(len(group["tokens"])) == 5)} for group in groups)
        )

    monkeypatch.setattr(committing, "write_table", longer)
    made = make_lines(part_bytes=1 << 20)
    tokens = prepare(made)["train"].totals.tokens
    faults = verify_split(made.place / "train", lambda _: None)
    assert any(f"has {tokens} rows and its documents in the table have {tokens + 1}" in fault for fault in faults)


@given(
    st.lists(st.sampled_from([b"\n", b" ", b"a", b"\r\n", b"bc", b"\t", b"\x0b", b"\x85"])),
    st.booleans(),
    st.integers(3, 9),
)
def test_line_spans_are_those_of_lines(pieces: list[bytes], mark: bool, chunk: int) -> None:
    data = b"\xef\xbb\xbf" * mark + b"".join(pieces)
    expected = [(line.offset, line.size, line.blank) for line in lines(io.BytesIO(data), 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "LINES_AT_ONCE", chunk)
        found = [
            line for block in line_spans(io.BytesIO(data)) for line in zip(*(b.tolist() for b in block), strict=True)
        ]
    assert found == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12))))
def test_a_window_reads_what_is_there(steps: list[tuple[int, int]]) -> None:
    data, offset = bytes(range(100)), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "AHEAD", 8)
        window = Window(Forward(io.BytesIO(data)))
        for skip, size in steps:
            offset += skip
            assert window.read(offset, size) == data[offset : offset + size]
            offset += size


def test_numbered_sources_are_a_sequence_of_sources() -> None:
    files = []
    for name, listed in (("a.jsonl", [1, 2, 5]), ("none", []), ("b\tc", [3])):
        numbers = np.array(listed, np.int64)
        files.append(NumberedFile(name, numbers, numbers * 10, (numbers + 5, numbers)))
    other = Source("left out", "reason", "train", 0, "left out: 3")
    sources = NumberedSources.join("train", files, [other])
    every = [
        *(Source(f"a.jsonl:{i}", f"a.jsonl:{i}", "train", 10 * i, ("a.jsonl", i + 5, i)) for i in (1, 2, 5)),
        Source("b\tc:3", "b\tc:3", "train", 30, ("b\tc", 8, 3)),
        other,
    ]
    assert list(sources) == every and len(sources) == 5 and [sources[i] for i in range(-5, 5)] == every * 2
    assert all(list(sources[i:j]) == every[i:j] for i in range(6) for j in range(6))
    for some in (sources, every, sources[3:], every[:0], sources[:0]):
        assert names_of(some) == ([s.id for s in some], [s.title for s in some])
        assert sizes_of(some).tolist() == [source.bytes for source in some]
    assert list(take(sources, np.array([0, 3, 4]))) == take(every, np.array([0, 3, 4])) == [every[i] for i in (0, 3, 4)]
    with pytest.raises(IndexError):
        sources[5]


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 12))
def test_runs_are_closed_at_the_limit(sizes: list[int], limit: int) -> None:
    runs = group_by_bytes(np.array(sizes, np.int64), limit)
    assert [i for run in runs for i in run] == list(range(len(sizes)))
    totals = [sum(sizes[run.start : run.stop]) for run in runs]
    assert all(total >= limit for total in totals[:-1])
    assert all(total - sizes[run.stop - 1] < limit for total, run in zip(totals, runs, strict=True))


@pytest.mark.parametrize("texts", [["a", "", "bc"], ["a", "", "é漢", "b"], []])
def test_strings_in_the_table(tmp_path: Path, texts: list[str]) -> None:
    numbers = np.arange(len(texts))
    columns = {name: texts if name in ("id", "title", "xxh3") else numbers for name in SCHEMA.names}
    entry = write_table(Place.parse(tmp_path), [columns])
    assert read_table(Place.parse(tmp_path), entry).texts("id") == texts


def test_command_line(make_lines, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_lines()
    main(["jsonl", "--source", made.corpus.source, "--store", made.store, "--num-workers", "0", "--splits", "train"])
    assert "train: 0.1 MB in 1 part to write, ids back to back" in capsys.readouterr().out


def test_a_part_whose_documents_have_other_numbers_is_another() -> None:
    def part(*texts: str) -> tuple[str, int]:
        class Given:
            name = "given"

            def read(self, sources: Sequence[Source]) -> Iterator[Document]:
                return (Document(source.id, source.title, texts[int(source.id)]) for source in sources)

        sources = [Source(str(i), str(i), "train", len(text)) for i, text in enumerate(texts)]
        corpus: Any = Given()
        scan = SplitScan(corpus, "train", ScannedDocuments(sources, scan_group(corpus, sources)))
        found = plan(scan, BytesTokenizer(), segment_length=4, part_bytes=10).part(1)
        return found.fingerprint, found.first_document

    assert part("a" * 10, "b" * 10) == part("c" * 10, "b" * 10)
    (one, first), (other, second) = part("a" * 10, "b" * 10), part("aaaa", "a" * 6, "b" * 10)
    assert (first, second) == (1, 2) and one != other
