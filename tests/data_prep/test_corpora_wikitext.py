"""WikiText as people get it today: a tar of the release, and a hub's Parquet with a line in each row."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.wikitext import WikiText
from data_prep.corpora.wikitext_lines import refuse_lines
from data_prep.documents import SPLITS, Corpus, CorpusError
from pipelines.prepare import prepare
from tests.small_archives import documents_of, put, read_all, scan_all, tar

WIKI = (
    " \n = Some Title = \n \n The filter has \n = 1 rad / s and a nominal impedance k = \n 1 ohm . \n \n"
    " = = Section = = \n \n Text . \n \n \n = Second ( 1970 ) = \n \n Wins , L \n = Losses , D = \n \n"
)
ROWS: list[str] = [line if line.strip() else "" for line in WIKI.splitlines(keepends=True)]
"""As the hub has them: nothing for a blank line."""


def whole(corpus: Corpus, split: str) -> tuple[list[str], str]:
    """The ids of a split's documents, and all its text."""
    documents = documents_of(corpus, split)
    return [document.id for document in documents], "".join(str(document.text) for document in documents)


def table(path: Path, rows: list[str], column: str = "text", kind: pa.DataType | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: pa.array(rows, kind or pa.string())}), path, row_group_size=5)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_of_the_release(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    members: dict[str, bytes | tarfile.TarInfo] = {
        "wikitext-2/README": b"no",
        "wikitext-2/wiki.train.tokens": WIKI.encode(),
        "wikitext-2/wiki.valid.tokens": WIKI[2:].encode(),
        "wikitext-2/._wiki.train.tokens": b"\0\5\x16\7",
    }
    put(tmp_path, {"wikitext-2.tgz": pack(tar(members))})
    corpus = WikiText(source=str(tmp_path / "wikitext-2.tgz"))
    assert whole(corpus, "train") == (["train/0", "train/1"], WIKI)
    assert whole(corpus, "validation") == (["validation/0", "validation/1"], WIKI[2:])
    assert corpus.sources("test") == []
    assert [item.id for item in corpus.read(corpus.sources("train")[1:])] == ["train/1"]
    assert [path.name for path in tmp_path.rglob("*")] == ["wikitext-2.tgz"]


def test_a_tar_that_is_damaged_or_none(tmp_path: Path) -> None:
    data = gzip.compress(tar({"wiki.test.tokens": WIKI.encode() * 50}), 0)
    file = tmp_path / "w.tar.gz"
    for damaged in (data[:-600], data.replace(b"impedance", b"impudence", 1), data[:3000]):
        file.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"w\.tar\.gz.* cannot be read \(.*\): it is damaged"):
            whole(WikiText(source=str(file)), "test")
    file.write_bytes(gzip.compress(WIKI.encode() * 9))
    with pytest.raises(CorpusError, match=r"w\.tar\.gz holds no tar: unpack it, and give the folder"):
        WikiText(source=str(file)).sources("test")
    put(tmp_path, {"wiki.test.raw": WIKI})
    with pytest.raises(CorpusError, match=r"wiki\.test\.raw is not an archive: give --source the folder that holds it"):
        WikiText(source=str(tmp_path / "wiki.test.raw")).sources("test")
    file.write_bytes(gzip.compress(tar({"a.txt": b"a"})))
    with pytest.raises(CorpusError, match=r"w\.tar\.gz holds none of wiki\.train\.tokens"):
        WikiText(source=str(file)).sources("test")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_parquet_rows_are_joined_to_the_release(tmp_path: Path, make_config, kind: pa.DataType) -> None:
    """An article may begin in one shard and end in the next one."""
    folder = tmp_path / "wikitext-103-raw-v1"
    table(folder / "train-00000-of-00002.parquet", ROWS[:7], kind=kind)
    table(folder / "train-00001-of-00002.parquet", ROWS[7:], kind=kind)
    table(folder / "validation-00000-of-00001.parquet", [row.removesuffix("\n") for row in ROWS], kind=kind)
    put(tmp_path, {"plain/wiki.train.raw": WIKI, "plain/wiki.valid.raw": WIKI})
    corpus, plain = WikiText(source=str(folder)), WikiText(source=str(tmp_path / "plain"))
    for split in SPLITS:
        assert [(s.id, s.title) for s in corpus.sources(split)] == [(s.id, s.title) for s in plain.sources(split)]
    assert whole(corpus, "train") == whole(plain, "train") == (["train/0", "train/1"], WIKI)
    assert corpus.remarks("train", scan_all(corpus, "train")) == plain.remarks("train", scan_all(plain, "train"))
    manifests = [
        prepare(make_config(corpus=c, store=str(tmp_path / name), splits=("train", "validation")))
        for name, c in (("a", corpus), ("b", plain))
    ]
    assert [m.fingerprint for m in manifests[0].values()] == [m.fingerprint for m in manifests[1].values()]
    [one] = WikiText(source=str(folder / "validation-00000-of-00001.parquet")).sources("validation")[1:]
    assert one.title == "Second ( 1970 )"


def test_parquet_of_another_form_or_of_no_wikitext(tmp_path: Path) -> None:
    table(tmp_path / "wikitext-2-v1" / "test.parquet", ROWS)
    folder = str(tmp_path / "wikitext-2-v1")
    assert len(WikiText(source=folder, form="tokens").sources("test")) == 2
    with pytest.raises(
        CorpusError, match=r"wikitext-2-v1 has the form tokens by its name: give --source another folder"
    ):
        WikiText(source=folder, form="raw").sources("test")
    (tmp_path / "words").mkdir()
    pq.write_table(pa.table({"text": [["many", "words"]]}), tmp_path / "words" / "test.parquet")
    with pytest.raises(CorpusError, match=r"test\.parquet has no text in column 'text' but list"):
        WikiText(source=str(tmp_path / "words")).sources("test")
    with zipfile.ZipFile(tmp_path / "words" / "packed.zip", "w") as archive:
        archive.write(tmp_path / "wikitext-2-v1" / "test.parquet", "test.parquet")
    with pytest.raises(CorpusError, match=r"packed\.zip holds none of wiki\.train\.tokens.*: give --source the folder"):
        WikiText(source=str(tmp_path / "words" / "packed.zip")).sources("test")
    table(tmp_path / "body" / "test.parquet", ROWS, column="body")
    with pytest.raises(CorpusError, match=r"test\.parquet has no column 'text': it is no Parquet file of WikiText"):
        WikiText(source=str(tmp_path / "body")).sources("test")
    with pytest.raises(CorpusError, match=r"holds none of wiki\.train\.tokens.*Parquet"):
        WikiText(source=str(tmp_path)).sources("test")


@pytest.mark.parametrize(("kind", "cells"), [(Parquet, pa.string()), (Parquet, pa.binary()), (JsonLines, pa.string())])
def test_lines_are_not_taken_for_documents(tmp_path: Path, kind: type, cells: pa.DataType) -> None:
    table(tmp_path / "test.parquet", ROWS, kind=cells)
    put(tmp_path, {"test.jsonl": "".join(json.dumps({"text": row}) + "\n" for row in ROWS)})
    with pytest.raises(
        CorpusError, match=r"has the lines of WikiText as rows.* give the folder of its Parquet files to the corpus"
    ):
        read_all(kind(source=str(tmp_path)))


@pytest.mark.parametrize(
    "rows",
    [["", " = A = ", "text"], ["", " == A == ", ""], ["", None, ""], ["", " = A = "], ["", "= =", ""], [3, 3, 3]],
)
def test_rows_that_are_documents(rows: list[object]) -> None:
    refuse_lines(rows, "file")


def test_a_store_may_lie_around_the_release(tmp_path: Path, make_config) -> None:
    """Its splits then stand beside the release's files."""
    files = {f"wiki.{split}.tokens": WIKI for split in ("train", "valid", "test")}
    put(tmp_path / "data" / "wikitext", files)
    config = make_config(corpus=WikiText(source=str(tmp_path / "data" / "wikitext")), store=str(tmp_path / "data"))
    assert prepare(config).keys() == prepare(config).keys() == set(SPLITS)
    assert all((tmp_path / "data" / "wikitext" / name).read_text() == WIKI for name in files)
