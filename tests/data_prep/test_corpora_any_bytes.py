"""Any bytes in the place of a corpus: documents or a CorpusError, and no other exception."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import Corpus, CorpusError
from tests.small_archives import link, packed, put, read_all, tar, zipped

LIMIT = 1 << 16


def a_parquet(rows: Sequence[str] = tuple(f"text {i} " * 9 for i in range(30))) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"text": rows, "id": [str(i) for i in range(len(rows))]})
    pq.write_table(table, sink, row_group_size=8, write_page_checksum=True)
    return sink.getvalue().to_pybytes()


TEX = b"\\documentclass{article}\\begin{document}\\input{b}\\input{c.bbl}\xc3\xa9\\end{document}"
WIKI = (" \n = A = \n \n text \n \n = = B = = \n \n more é \n \n \n = C = \n \n text \n" * 3).encode()
LINES = [line if line.strip() else "" for line in WIKI.decode().splitlines(keepends=True)]
JSON = b"".join(json.dumps({"text": f"text {i} é", "id": i}).encode() + b"\n" for i in range(20))
THREADS = b"".join(json.dumps({"text": f"text {i} é", "id": i // 3}).encode() + b"\n" for i in range(20))
README = b"sources: [{filename: a.tex, usage: toplevel}]"
INNER = packed(
    {
        "a.tex": TEX,
        "b.tex": b"b" * 700,
        "l": link("l", "x"),
        "fig.eps": b"\0" * 600,
        "00README.yaml": README,
        "c.bbl": b"c",
    }
)
LONG = tar({"x" * 150 + "/2101.00003.gz": INNER, "2101/2101.00004.gz": gzip.compress(TEX)})

READERS: dict[str, tuple[str, bytes, Callable[[Path], Corpus]]] = {
    "pg19": ("train/1.txt", "text é".encode(), lambda root: Pg19(source=str(root))),
    "pg19 metadata": ("metadata.csv", b'1,"a, b",1900,x\r\n2,c,1901,y\n', lambda root: Pg19(source=str(root))),
    "text": ("a.txt", "text é".encode(), lambda root: Text(source=str(root))),
    "python": ("a.py", b"# coding: latin-1\nx = '\xe9'\n", lambda root: PythonSource(source=str(root))),
    "wikitext": ("wiki.train.tokens", WIKI, lambda root: WikiText(source=str(root), max_document_bytes=LIMIT)),
    "wikitext zip": ("w.zip", zipped({"x/wiki.test.raw": WIKI}), lambda root: WikiText(source=f"{root}/w.zip")),
    "wikitext tar": ("w.tgz", packed({"wiki.test.raw": WIKI}), lambda root: WikiText(source=f"{root}/w.tgz")),
    "wikitext parquet": ("train.parquet", a_parquet(LINES), lambda root: WikiText(source=str(root))),
    "arxiv": ("arXiv_src_1.tar", tar({"1/2101.00001.gz": INNER, "1/2101.00002.pdf": b"%PDF"}), lambda root: arxiv(root)),
    "arxiv long names": ("arXiv_src_1.tar", LONG, lambda root: arxiv(root)),
    "arxiv paper": ("2101.00001.gz", INNER, lambda root: arxiv(root)),
    "arxiv inner tar": ("2101.00001.gz", gzip.decompress(INNER), lambda root: arxiv(root)),
    "arxiv file": ("paper/a.tex", TEX, lambda root: arxiv(root)),
    "github": ("repo/a.py", b"x = 1\n", lambda root: GitHub(source=str(root))),
    "enwik8": ("enwik8", WIKI, lambda root: Enwik8(source=f"{root}/enwik8")),
    "enwik8 zip": ("enwik8", zipped({"enwik8": WIKI}), lambda root: Enwik8(source=f"{root}/enwik8")),
    "enwik8 gzip": ("enwik8", gzip.compress(WIKI), lambda root: Enwik8(source=f"{root}/enwik8")),
    "enwik8 xz": ("enwik8", lzma.compress(WIKI), lambda root: Enwik8(source=f"{root}/enwik8")),
    "jsonl": ("a.jsonl", JSON, lambda root: JsonLines(source=str(root))),
    "jsonl with ids": ("a.jsonl", JSON, lambda root: JsonLines(source=str(root), id_field="id", title_field="text")),
    "jsonl threads": ("a.jsonl", THREADS, lambda root: JsonLines(source=str(root), thread_field="id")),
    "jsonl gzip": ("a.jsonl.gz", gzip.compress(JSON), lambda root: JsonLines(source=str(root))),
    "jsonl zstd": ("a.jsonl.zst", pa.compress(JSON, codec="zstd", asbytes=True), lambda root: JsonLines(source=str(root))),
    "parquet": ("a.parquet", a_parquet(), lambda root: Parquet(source=str(root))),
    "parquet with ids": ("a.parquet", a_parquet(), lambda root: Parquet(source=str(root), id_column="id")),
}  # fmt: skip


def arxiv(root: Path) -> Arxiv:
    return Arxiv(source=str(root), max_document_bytes=LIMIT)


def documents_or_error(root: Path, name: str, data: bytes) -> bool:
    """Read the corpus with these bytes in it. Whether it gave documents; every one can be stored."""
    file, _, corpus = READERS[name]
    put(root, {"train/7.txt": "beside"} if name.startswith("pg19") else {})
    put(root, {file: data})
    try:
        texts, skipped = read_all(corpus(root))
    except CorpusError as error:
        assert str(error) and "\n" not in str(error)
        return False
    for id, text in texts.items():
        assert isinstance(text, bytes) or text.encode().decode() == text
        assert id.encode()
    assert all(count > 0 for count in skipped.values())
    return bool(texts)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.mark.parametrize("name", READERS)
def test_the_whole_file_gives_documents(root: Path, name: str) -> None:
    assert documents_or_error(root, name, READERS[name][1])


@pytest.mark.parametrize("folder", ["a\tb", "a\nb", "a b", "é%20", "a:b"])
def test_odd_names_of_files(tmp_path: Path, folder: str) -> None:
    odd = {
        f"{folder}/{READERS[name][0]}": READERS[name][1]
        for name in ("jsonl", "parquet", "arxiv", "arxiv file", "github", "text")
    }
    put(tmp_path / "all", odd)
    for kind in (JsonLines, Parquet, Arxiv, GitHub, Text):
        assert read_all(kind(source=str(tmp_path / "all")))[0]


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes(root: Path, name: str, data: st.DataObject) -> None:
    """Bytes changed, a piece cut out, doubled or put in, an early end."""
    whole = bytearray(READERS[name][1])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, min(len(whole), start + 600)))
        kind = data.draw(st.sampled_from(["flip", "cut", "double", "insert", "end"]))
        if kind == "flip" and start < len(whole):
            whole[start] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del whole[start:stop]
        elif kind == "double":
            whole[start:start] = whole[start:stop]
        elif kind == "insert":
            whole[start:start] = data.draw(st.binary(max_size=20))
        elif kind == "end":
            del whole[start:]
    documents_or_error(root, name, bytes(whole))


def test_a_footer_with_one_bit_changed(root: Path) -> None:
    """Some of these end the process where pyarrow is asked for a column's size."""
    whole = READERS["parquet"][1]
    length = int.from_bytes(whole[-8:-4], "little")
    for place in range(len(whole) - 8 - length, len(whole) - 8):
        put(root, {"a.parquet": whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]})
        with suppress(CorpusError):
            Parquet(source=str(root)).sources("train")


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=2000))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(root: Path, name: str, data: bytes) -> None:
    documents_or_error(root, name, data)


@given(content=st.binary(max_size=3000))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_inside_good_archives(root: Path, content: bytes) -> None:
    """What a checksum would hide: the bytes are packed well."""
    documents_or_error(
        root / "a", "arxiv", tar({"1/2101.00001.gz": content, "1/2101.00002.gz": gzip.compress(content)})
    )
    documents_or_error(root / "b", "arxiv paper", packed({"a.tex": content, "b": content}))
    documents_or_error(root / "c", "wikitext zip", zipped({"wiki.test.raw": content, "wiki.train.raw": WIKI + content}))
    documents_or_error(root / "d", "jsonl gzip", gzip.compress(content))
    documents_or_error(root / "e", "jsonl zstd", pa.compress(content, codec="zstd", asbytes=True))
    documents_or_error(root / "f", "enwik8 zip", zipped({"enwik8": content}))
