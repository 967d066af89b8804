"""Every corpus reads the same from a bucket as from a folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("moto")

import boto3

from common.places import Place
from common.uris import PlaceError
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import SPLITS, Corpus, CorpusError
from tests.data_prep.test_corpora_any_bytes import INNER, JSON, TEX, WIKI, a_parquet
from tests.s3_server import uri_in_bucket
from tests.small_archives import put, read_all, tar, zipped

FILES = {
    "pg19/train/1.txt": b"One\r\n", "pg19/test/2.txt": b"Two", "pg19/metadata.csv": b'1,"A, title",1900,x\n',
    "wiki.zip": zipped({"x/wiki.train.raw": WIKI, "x/wiki.test.raw": WIKI[:200]}), "wiki/wiki.valid.tokens": WIKI,
    "arxiv/arXiv_src_1.tar": tar({"1/2101.00001.gz": INNER, "1/2.pdf": b"%PDF", "1/2101.00003.gz": gzip.compress(TEX)}),
    "arxiv/paper/main.tex": TEX, "arxiv/paper/sec/b.tex": b"b", "arxiv/2101.00009.gz": gzip.compress(TEX),
    "lists/ids": b"2101.00003\npaper\n",
    "lists/m.json": json.dumps({"id": "paper", "title": "T", "categories": "math.AG"}).encode(),
    "github/repo/a.py": b"x = 1\n", "github/repo/sub/b.py": b"y", "github/repo/vendor/c.py": b"no",
    "enwik8.gz": gzip.compress(WIKI), "enwik8": WIKI, "json/train.jsonl.gz": gzip.compress(JSON), "json/b/test.jsonl": JSON,
    "parquet/train.parquet": a_parquet(),
}  # fmt: skip

CORPORA: dict[str, Callable[[Callable[[str], str]], Corpus]] = {
    "pg19": lambda at: Pg19(source=at("pg19")),
    "text": lambda at: Text(source=at("pg19")),
    "wikitext": lambda at: WikiText(source=at("wiki")),
    "wikitext zip": lambda at: WikiText(source=at("wiki.zip")),
    "arxiv": lambda at: Arxiv(source=at("arxiv")),
    "arxiv tar": lambda at: Arxiv(source=at("arxiv/arXiv_src_1.tar")),
    "arxiv ids": lambda at: Arxiv(source=at("arxiv"), ids=at("lists/ids")),
    "arxiv math": lambda at: Arxiv(source=at("arxiv"), metadata=at("lists/m.json"), subject="math"),
    "github": lambda at: GitHub(source=at("github")),
    "enwik8": lambda at: Enwik8(source=at("enwik8")),
    "enwik8 gzip": lambda at: Enwik8(source=at("enwik8.gz")),
    "jsonl": lambda at: JsonLines(source=at("json")),
    "parquet": lambda at: Parquet(source=at("parquet")),
}
"""How each corpus is made. The argument turns a path in FILES into a source."""


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> Callable[[str], str]:
    """A bucket that holds FILES below corpora/: gives the URI of a path in it."""
    for name, data in FILES.items():
        Place.parse(uri_in_bucket(endpoint, f"corpora/{name}")).write_atomically(data)
    return partial(uri_in_bucket, endpoint)


@pytest.mark.long
def test_a_bucket_reads_as_a_folder(bucket: Callable[[str], str], tmp_path: Path) -> None:
    put(tmp_path, FILES)
    for name, corpus in CORPORA.items():
        local = corpus(lambda path: str(tmp_path / path))
        remote = corpus(lambda path: bucket(f"corpora/{path}"))
        assert read_all(remote) == read_all(local) != ({}, {}), name
        for split in SPLITS:
            assert list(remote.sources(split)) == list(local.sources(split)), (name, split)


@pytest.mark.slow
def test_what_is_not_in_a_bucket(bucket: Callable[[str], str]) -> None:
    for kind in (Pg19, Text, GitHub, JsonLines, Parquet, Arxiv, WikiText, Enwik8):
        with pytest.raises(CorpusError, match=r"s3://books/nowhere is not (there|a folder|a file)") as caught:
            kind(source=bucket("nowhere")).sources("train")
        assert "testing-secret" not in str(caught.value)


@pytest.mark.slow
def test_an_empty_object_with_a_folders_name(bucket: Callable[[str], str]) -> None:
    """Some programs write one for each folder, others one that ends in a slash."""
    files = Place.parse(bucket("x")).filesystem
    files.create_dir("books/marked")
    for name, data in {"": b"", "/train": b"", "/train/1.txt": b"one", "/test/2.txt": b"two"}.items():
        with files.open_output_stream(f"books/marked{name}") as stream:
            stream.write(data)
    for kind in (Text, Pg19):
        assert sorted(map(str, read_all(kind(source=bucket("marked")))[0].values())) == ["one", "two"]
    assert Place.parse(bucket("marked")).is_dir() and not Place.parse(bucket("marked")).is_file()
    with files.open_output_stream("books/alone") as stream:
        stream.write(b"")
    assert Place.parse(bucket("alone")).is_file() and not Place.parse(bucket("alone")).is_dir()


def test_objects_of_a_bucket_with_names_that_cannot_be_opened(endpoint: str) -> None:
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}")
    for key in ("slashes/a.txt", "slashes/sub//b.txt"):
        client.put_object(Bucket="books", Key=key, Body=b"text")
    corpus = Text(source=uri_in_bucket(endpoint, "slashes"))
    with pytest.raises(PlaceError, match=r"s3://books/slashes/sub//b\.txt cannot be opened \(.*\): rename it"):
        read_all(corpus)
