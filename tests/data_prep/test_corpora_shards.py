"""JSON lines, Parquet and data sets of a hub: fields, splits, packed shards, and the sentence for what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.corpora import hub
from data_prep.corpora.files import split_named
from data_prep.corpora.hub import Hub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, split_of
from pipelines.prepare import prepare
from tests.small_archives import put, read_all, scan_all, zstd

ROWS = [{"text": f"text {i} é\n", "key": f"k{i}", "name": f"Title {i}", "n": i} for i in range(40)]


def texts(items: Iterable[Document | Skipped]) -> list[str | bytes]:
    return [item.text for item in items if isinstance(item, Document)]


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows)).encode()


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("c4-validation.00001-of-00008.json.gz", "validation"),
        ("data/val.jsonl", "validation"),
        ("dev.jsonl", "validation"),
        ("Eval/x.jsonl", "validation"),
        ("testing-0.jsonl", "test"),
        ("medieval.jsonl", None),
        ("test/x.jsonl", "test"),
        ("test/train.jsonl", "train"),
        ("latest_training2.jsonl", "train"),
        ("latest.jsonl", None),
        ("retrain/trainer.jsonl", None),
    ],
)
def test_splits_by_name(name: str, split: str | None) -> None:
    assert split_named(name) == split


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)])
def test_json_lines(tmp_path: Path, ending: str, pack) -> None:
    put(
        tmp_path,
        {
            f"a{ending}.jsonl{ending}": pack(jsonl(ROWS[:20])),
            f"b/c.json{ending}": pack(jsonl(ROWS[20:])[:-1]),
            "config.json": "{",
        },
    )
    corpus = JsonLines(source=str(tmp_path))
    found, skipped = read_all(corpus)
    names = [f"a{ending}.jsonl{ending}:{i}" for i in range(1, 21)] + [f"b/c.json{ending}:{i}" for i in range(1, 21)]
    assert {name: found[name] for name in names} == {name: row["text"] for name, row in zip(names, ROWS, strict=True)}
    assert len(found) == 40 and skipped == {}
    for split in SPLITS:
        assert all(split_of(source.id) == split for source in corpus.sources(split))
        sources = corpus.sources(split)[::3]  # some of them, in order
        assert [item.id for item in corpus.read(sources)] == [source.id for source in sources]


def test_json_fields_and_splits(tmp_path: Path) -> None:
    put(tmp_path, {"train.jsonl": jsonl(ROWS[:30]), "test.jsonl.gz": gzip.compress(jsonl(ROWS[30:]))})
    corpus = JsonLines(source=str(tmp_path), id_field="key", title_field="name")
    assert [(s.id, s.title) for s in corpus.sources("train")] == [(f"k{i}", f"Title {i}") for i in range(30)]
    assert len(corpus.sources("test")) == 10 and corpus.sources("validation") == []
    numbers = JsonLines(source=str(tmp_path), id_field="n", split_by="hash")
    assert {s: [x.id for x in numbers.sources(s)] for s in SPLITS} == {
        split: [str(n) for n in [*range(30, 40), *range(30)] if split_of(str(n)) == split] for split in SPLITS
    }
    assert (
        read_all(JsonLines(source=str(tmp_path / "test.jsonl.gz"), text_field="name"))[0]["test.jsonl.gz:1"]
        == "Title 30"
    )


def test_json_lines_that_are_left_out(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"test.jsonl": b'\n{"text": null}\n  \r\n{"text": ""}\n{"text": "' + b"x" * 500 + b'"}\n{"text": "good"}'},
    )
    for field in ("", "name"):
        corpus = JsonLines(source=str(tmp_path), max_document_bytes=300, title_field=field)
        found, skipped = read_all(corpus)
        assert found == {"test.jsonl:4": "", "test.jsonl:6": "good"}
        assert skipped == {"empty": 2, "too large": 1, "without text": 1}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_json_lines_of_threads(tmp_path: Path, pack) -> None:
    """A thread's lines are one document, in the order of the file, on whichever side of a split."""
    rows: list[dict[str, Any]] = [
        {"body": f"{thread} {i}", "link": thread, "about": f"{i}"}
        for thread in range(40)
        for i in range(thread % 4 + 1)
    ]
    rows[5]["body"] = None
    put(
        tmp_path,
        {"a.jsonl": pack(jsonl(rows[:50])[:-1]), "b.jsonl": pack(b"\n" + jsonl(rows[50:]).replace(b"\n", b"\n \r\n"))},
    )
    corpus = JsonLines(
        source=str(tmp_path), text_field="body", thread_field="link", thread_separator=" | ", title_field="about"
    )
    found, skipped = read_all(corpus)
    assert found == {
        str(thread): " | ".join(str(row["body"]) for row in rows if row["link"] == thread and row["body"] is not None)
        for thread in range(40)
    }
    assert skipped == {"empty": len(rows) - 50 + 1}
    for split in SPLITS:
        sources = [source for source in corpus.sources(split) if source.bytes]
        assert [source.id for source in sources] == [
            str(thread) for thread in range(40) if split_of(str(thread)) == split
        ]
        assert [item.id for item in corpus.read(sources[::3])] == [source.id for source in sources[::3]]
        assert {source.title for source in sources} == {"0"}
    assert corpus.options() == {"text_field": "body", "thread_field": "link", "thread_separator": " | "}
    assert JsonLines(source=str(tmp_path)).options() == {"text_field": "text"}


def test_json_threads_that_are_not_whole(tmp_path: Path) -> None:
    def threads(*ids: object) -> bytes:
        return jsonl([{"text": f"text {i}", "thread": id} for i, id in enumerate(ids)])

    corpus = JsonLines(source=str(tmp_path), thread_field="thread", max_document_bytes=100)
    put(tmp_path, {"train.jsonl": threads("a", "a", "b", "b", "b", "b", "c")})
    assert read_all(corpus) == ({"a": "text 0\n\ntext 1", "c": "text 6"}, {"too large": 1})
    put(tmp_path, {"train.jsonl": threads("a", "b", "a")})
    with pytest.raises(CorpusError, match=r"line 3 has the id 'a' of an earlier line: sort the lines by their threads"):
        corpus.sources("train")
    put(tmp_path, {"train.jsonl": threads("a", "b"), "train2.jsonl": threads("b")})
    with pytest.raises(CorpusError, match=r"train2.jsonl line 1 has the id 'b' of an earlier line: sort"):
        corpus.sources("train")
    put(tmp_path, {"train.jsonl": threads("a", None)})
    with pytest.raises(
        CorpusError, match=r"line 2 has no string or integer in field 'thread': give another --thread-field"
    ):
        corpus.sources("train")
    with pytest.raises(CorpusError, match=r"give --id-field or --thread-field, not both"):
        JsonLines(id_field="id", thread_field="thread")


@pytest.mark.parametrize(("between", "spans"), [(b"", 1), (b"\n", 2)])
def test_lines_of_a_thread_that_follow_each_other_are_one_span(tmp_path: Path, between: bytes, spans: int) -> None:
    lines = [json.dumps({"thread": "a", "text": f"line {i}"}).encode() + b"\n" for i in range(4)]
    put(tmp_path, {"train.jsonl": b"".join([*lines[:2], between, *lines[2:]])})
    corpus = JsonLines(str(tmp_path), thread_field="thread")
    (source,) = (source for source in corpus.sources("train") if source.bytes)
    assert len(source.place) == 1 + 3 * spans
    assert read_all(corpus)[0] == {"a": "line 0\n\nline 1\n\nline 2\n\nline 3"}


@pytest.mark.parametrize("split_by", ["file", "hash"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_that_is_too_large_is_left_out_of_its_thread_wherever_it_stands(tmp_path: Path, pack, split_by) -> None:
    large, threads = "x" * 300, {"first": (0,), "middle": (1, 2, 5), "last": (6,), "whole": (), "all": tuple(range(7))}
    rows = [
        {"text": large if i in places else f"{thread} {i}", "thread": thread}
        for thread, places in threads.items()
        for i in range(7)
    ]
    put(tmp_path, {"train.jsonl": pack(jsonl(rows))})
    corpus = JsonLines(source=str(tmp_path), thread_field="thread", split_by=split_by, max_document_bytes=300)
    texts, skipped = read_all(corpus)
    assert texts == {
        thread: "\n\n".join(f"{thread} {i}" for i in range(7) if i not in places)
        for thread, places in threads.items()
        if thread != "all"
    }
    assert skipped == {"too large": sum(map(len, threads.values()))}
    for split in SPLITS:
        for source in [source for source in corpus.sources(split) if source.bytes]:
            kept = [row for row in rows if row["thread"] == source.id and row["text"] != large]
            assert source.bytes == len(jsonl(kept))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_json_with_a_byte_order_mark(tmp_path: Path, pack) -> None:
    put(tmp_path, {"test.jsonl": pack(b"\xef\xbb\xbf" + jsonl(ROWS[:3]))})
    for field in ("", "key"):
        texts, skipped = read_all(JsonLines(source=str(tmp_path), id_field=field))
        assert list(texts.values()) == [row["text"] for row in ROWS[:3]] and skipped == {}
    put(tmp_path, {"test.jsonl": pack(b"\xef\xbb\xbf\r\n" + jsonl(ROWS[:3]))})
    assert read_all(JsonLines(source=str(tmp_path)))[1] == {"empty": 1}


@pytest.mark.parametrize("kind", range(16))
def test_zstd_that_begins_with_a_frame_to_skip(tmp_path: Path, kind: int) -> None:
    """As pzstd and seekable zstd write them, also between frames."""
    frame = bytes([0x50 + kind]) + b"\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"skip\n"
    empty = bytes([0x50 + kind]) + b"\x2a\x4d\x18" + bytes(4)
    data = frame + empty + zstd(jsonl(ROWS[:3])) + frame + zstd(jsonl(ROWS[3:5])) + frame
    put(tmp_path, {"test.jsonl.zst": data})
    assert list(read_all(JsonLines(source=str(tmp_path)))[0].values()) == [row["text"] for row in ROWS[:5]]
    put(tmp_path, {"test.jsonl.zst": data[: len(frame) + len(empty) + 20]})
    with pytest.raises(CorpusError, match=r"test\.jsonl\.zst cannot be read \(.*\): it is damaged"):
        read_all(JsonLines(source=str(tmp_path)))


@pytest.mark.parametrize(
    ("data", "fields", "words"),
    [
        (b'{"text": "a"}\n{"text"', {}, r"x\.jsonl line 2 is not JSON"),
        (
            b'{"text": "a\nb"}\n',
            {},
            r"x\.jsonl line 1 is not JSON \(Invalid control character at character 11\): correct",
        ),
        (
            b'\n{\r\n  "text": "a"\r\n}\r\n',
            {},
            r"line 2 ends within a JSON value: every line is to be one object; jq -c \. FILE",
        ),
        (
            b'{"text": "a",\n "n": 1}\n',
            {},
            r"line 1 ends within a JSON value: every line is to be one object; jq -c \. FILE",
        ),
        (b"\n\n{bad\n", {}, r"x\.jsonl line 3 is not JSON"),
        (b'{"text": 1, }\n', {}, r"x\.jsonl line 1 is not JSON \(.* at character 1\d\): correct it or take it out"),
        (b"[1]\n", {}, r"x\.jsonl line 1 is a JSON list: every line is to be one object"),
        (
            b'{"body": "a", "n": 1}\n',
            {},
            r"line 1 has no field 'text': name one of its fields with --text-field \(body, n\)",
        ),
        (b'{"text": 3}\n', {}, r"line 1 has no text in field 'text' but a number: name another"),
        (b'{"text": ["a"]}\n', {}, r"line 1 has no text in field 'text' but a list: name another"),
        (b'{"text": "a"}\nnull\n', {}, r"line 2 is null: every line is to be one JSON object"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', {}, r"x\.jsonl is not UTF-8: byte 0xff at offset 24 "),
        ('{"text": "a"}\n'.encode("utf-16"), {}, r"x\.jsonl is UTF-16-LE: iconv -f UTF-16 -t UTF-8 FILE converts it"),
        (b'{"text": "\\ud800"}\n', {}, r"line 1 holds half a surrogate pair at character 0"),
        (b'{"text":' * 100_000 + b"\n", {}, r"line 1 is nested too deeply: take it out"),
        (b'{"text": ' + b"9" * 5000 + b"}\n", {}, r"line 1 has no text in field 'text' but a number"),
        (
            b'{"text": "a", "id": 1}\n{"text": "b", "id": "1"}\n',
            {"id_field": "id"},
            r"line 2 has the id '1' of an earlier line",
        ),
        (b'{"text": "a", "id": null}\n', {"id_field": "id"}, r"line 1 has no string or integer in field 'id'"),
        (b'{"text": "a", "id": 1.5}\n', {"id_field": "id"}, r"line 1 has no string or integer in field 'id'"),
        (b'{"text": "a", "id": ""}\n', {"id_field": "id"}, r"line 1 has an empty string in field 'id': give another"),
        (gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9], {}, r"x\.jsonl cannot be read \(.*\): it is damaged"),
        (zstd(b'{"text": "a"}\n' * 99)[:-1], {}, r"x\.jsonl cannot be read \(.*\): it is damaged"),
    ],
)
def test_wrong_json(tmp_path: Path, data: bytes, fields: dict, words: str) -> None:
    put(tmp_path, {"x.jsonl": data})
    with pytest.raises(CorpusError, match=words):
        read_all(JsonLines(source=str(tmp_path), **fields))


def test_a_packing_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path, {"train-0.jsonl": b'{"text": "a"}\n', "train-1.jsonl.LZ4": b"\x04\x22\x4d\x18" + bytes(99)})
    with pytest.raises(CorpusError, match=r"train-1\.jsonl\.LZ4 is packed \(lz4\): unpack it, and give the file"):
        JsonLines(source=str(tmp_path)).sources("train")


def test_a_shard_that_was_unpacked_is_not_read_twice(tmp_path: Path) -> None:
    data = b'{"text": "a"}\n'
    put(tmp_path, {"a/train.jsonl": data, "a/train.jsonl.zst": zstd(data), "b/train.jsonl": data})
    with pytest.raises(
        CorpusError, match=r"/a/train\.jsonl\.zst and a/train\.jsonl differ only in their packing: take"
    ):
        JsonLines(source=str(tmp_path)).sources("train")
    assert len(JsonLines(source=str(tmp_path / "a" / "train.jsonl.zst")).sources("train")) == 1
    (tmp_path / "a" / "train.jsonl").rename(tmp_path / "a" / "train.jsonl.GZ")
    with pytest.raises(CorpusError, match=r"/a/train\.jsonl\.zst and a/train\.jsonl\.GZ differ only"):
        JsonLines(source=str(tmp_path)).sources("train")


def test_no_shards(tmp_path: Path) -> None:
    for kind in (JsonLines, Parquet):
        with pytest.raises(CorpusError, match="holds no file that ends in"):
            kind(source=str(tmp_path)).sources("train")
        with pytest.raises(CorpusError, match="is not there"):
            kind(source=str(tmp_path / "no")).sources("train")
        with pytest.raises(CorpusError, match="needs a folder"):
            kind().sources("train")


def parquet(path: Path, rows: list[dict], schema: pa.Schema | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
    return path


TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]


@pytest.mark.parametrize(
    "kind", [*TEXT_TYPES, pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.binary())]
)
def test_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    other = kind if kind in TEXT_TYPES else pa.string()
    schema = pa.schema([("text", kind), ("key", other), ("name", other), ("n", pa.int64())])
    parquet(tmp_path / "data" / "train-0.parquet", ROWS[:25], schema, row_group_size=7, write_page_checksum=True)
    parquet(tmp_path / "data" / "test-0.parquet", ROWS[25:], schema)
    corpus = Parquet(source=str(tmp_path))
    assert [s.id for s in corpus.sources("train")] == [f"data/train-0.parquet:{i}" for i in range(1, 26)]
    assert texts(corpus.read(corpus.sources("train"))) == [row["text"] for row in ROWS[:25]]
    some = corpus.sources("train")[3::4]
    assert texts(corpus.read(some)) == [row["text"] for row in ROWS[3:25:4]]
    named = Parquet(source=str(tmp_path), id_column="n", title_column="name", split_by="hash")
    for split in SPLITS:
        assert [(s.id, s.title) for s in named.sources(split)] == [
            (str(r["n"]), r["name"]) for r in [*ROWS[25:], *ROWS[:25]] if split_of(str(r["n"])) == split
        ]
    keyed = Parquet(source=str(tmp_path), id_column="key")
    assert read_all(keyed)[0] == {row["key"]: row["text"] for row in ROWS}


@pytest.mark.parametrize(
    ("cell", "place"), [(b"caf\xe9", "byte 0xe9 at offset 3"), (b"\xff\xfe\xfa", "byte 0xff at offset 0")]
)
def test_parquet_bytes_that_are_no_text(tmp_path: Path, cell: bytes, place: str) -> None:
    """A mark that would give a file's encoding gives no cell's."""
    rows = [{"text": b"\xef\xbb\xbfgood"}, {"text": cell}]
    path = parquet(tmp_path / "test.parquet", rows, pa.schema([("text", pa.binary())]))
    with pytest.raises(
        CorpusError,
        match=rf"test\.parquet row test\.parquet:2 is not UTF-8: {place} .*; correct it, or read another column$",
    ):
        read_all(Parquet(source=str(path)))


def test_parquet_rows_that_are_left_out(tmp_path: Path) -> None:
    parquet(tmp_path / "test.parquet", [{"text": None}, {"text": "x" * 500}, {"text": "good"}, {"text": " "}])
    corpus = Parquet(source=str(tmp_path), max_document_bytes=300)
    assert read_all(corpus) == ({"test.parquet:3": "good", "test.parquet:4": " "}, {"without text": 1, "too large": 1})


def test_wrong_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path / "test.parquet", [{"body": "a", "n": 1}, {"body": "b", "n": 1}])
    for options, words in (
        ({}, r"has no column 'text': name one with --text-column \(body, n\)"),
        ({"text_column": "n"}, r"has no text in column 'n' but int64"),
        ({"text_column": "body", "id_column": "n"}, r"row 2 has the id '1' of an earlier row"),
    ):
        with pytest.raises(CorpusError, match=words):
            Parquet(source=str(path), **options).sources("test")  # type: ignore[arg-type]
    for data in (b"", b"PAR1", path.read_bytes()[:-1], path.read_bytes()[4:], b"PAR1" * 9):
        path.write_bytes(data)
        with pytest.raises(CorpusError, match=r"test\.parquet cannot be read \(.*\): it is damaged"):
            read_all(Parquet(source=str(path), text_column="body"))


@pytest.mark.parametrize("id", [None, ""])
def test_parquet_rows_without_an_id(tmp_path: Path, id: str | None) -> None:
    """An empty id would be replaced by the row's number."""
    path = parquet(tmp_path / "test.parquet", [{"text": "a", "id": "1"}, {"text": "b", "id": id}])
    with pytest.raises(CorpusError, match=r"test\.parquet row 2 has no id: give another --id-column"):
        Parquet(source=str(path), id_column="id").sources("test")


def test_shards_are_prepared_like_files(tmp_path: Path, make_config, text_folder: Path) -> None:
    """The same texts from files, from JSON lines and from Parquet give the same tokens."""
    stores = {}
    files = {split: sorted((text_folder / split).glob("doc*.txt")) for split in SPLITS}
    for split, paths in files.items():
        rows = [{"text": path.read_bytes().decode(), "id": f"{split}/{path.name}"} for path in paths]
        put(tmp_path / "json", {f"{split}.jsonl.gz": gzip.compress(jsonl(rows))})
        parquet(tmp_path / "parquet" / f"{split}.parquet", rows, row_group_size=2)
    for name, corpus in (
        ("files", make_config().corpus),
        ("json", JsonLines(source=str(tmp_path / "json"), id_field="id")),
        ("parquet", Parquet(source=str(tmp_path / "parquet"), id_column="id")),
    ):
        manifests = prepare(make_config(corpus=corpus, store=str(tmp_path / "stores" / name)))
        stores[name] = {
            s: (m.totals.documents, m.totals.words, m.totals.bytes, m.totals.tokens) for s, m in manifests.items()
        }
    assert stores["files"] == stores["json"] == stores["parquet"]


OFFLINE = """
import sys
from data_prep.corpora.hub import Hub
from pipelines.terminal import cli
cli.run(lambda words: print(Hub(source=words[0]).sources("train")))
"""


def test_a_hub(tmp_path: Path, make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands for a data set of a hub: to `datasets` both are the same."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    parquet(tmp_path / "data" / "train-00000-of-00001.parquet", ROWS[:30], row_group_size=7)
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", [*ROWS[30:], {**ROWS[0], "text": None}])
    corpus = Hub(source=str(tmp_path / "data"))
    assert [s.id for s in corpus.sources("train")] == [f"train:{i}" for i in range(30)]
    assert texts(corpus.read(corpus.sources("train")[3::5])) == [row["text"] for row in ROWS[3:30:5]]
    assert len(scan_all(corpus, "test")) == 10
    assert read_all(corpus)[1] == {"without text": 1} and corpus.sources("validation") == []
    wiki = ["", " = A = \n", "", " text \n"]
    parquet(tmp_path / "wiki" / "test.parquet", [{"text": row} for row in wiki])
    with pytest.raises(CorpusError, match=r"data set .*wiki has the lines of WikiText as rows"):
        Hub(source=str(tmp_path / "wiki")).sources("test")
    import datasets

    fetched: list[str] = []
    load, iterate = datasets.load_dataset, datasets.IterableDataset.__iter__
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *words, **more: (fetched.append("load"), load(*words, **more))[1]
    )
    monkeypatch.setattr(datasets.IterableDataset, "__iter__", lambda rows: (fetched.append("stream"), iterate(rows))[1])
    hub._LOADED.clear()
    prepare(make_config(corpus=corpus, part_bytes=16))
    assert fetched == ["load"]  # however many groups and parts are read
    with pytest.raises(CorpusError, match="has no column 'body': name one of text, key, name, n"):
        Hub(source=str(tmp_path / "data"), text_column="body").sources("train")


def test_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="needs a data set: give --source OWNER/NAME"):
        Hub().sources("train")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        with pytest.raises(
            CorpusError, match="needs the package datasets: pip install datasets, or download the shards"
        ):
            Hub(source="owner/name").sources("train")


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached() -> None:
    pytest.importorskip("datasets")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, "owner/name"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: data set owner/name cannot be had (" in done.stderr
    assert "see that a hub can be reached, or download the shards" in done.stderr
