"""Corpora as people have them: linked folders, zips of other systems, encrypted files, odd columns and numbers."""

from __future__ import annotations

import base64
import gzip
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from common.places import Place
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.files import files_in
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import SPLITS, CorpusError
from tests.small_archives import documents_of, put, read_all, tar, zipped

TEX = b"\\documentclass{article}\\begin{document}%s\\end{document}"


def test_linked_folders_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"books/own.txt": "own", "elsewhere/a.txt": "a", "elsewhere/deep/b.txt": "b"})
    (tmp_path / "books" / "linked").symlink_to(tmp_path / "elsewhere")
    assert read_all(Text(source=str(tmp_path / "books")))[0] == {
        "own.txt": "own",
        "linked/a.txt": "a",
        "linked/deep/b.txt": "b",
    }
    put(tmp_path, {"shards/one.jsonl": '{"text": "one"}', "more/two.jsonl": '{"text": "two"}'})
    (tmp_path / "shards" / "more").symlink_to(tmp_path / "more")
    texts, _ = read_all(JsonLines(source=str(tmp_path / "shards")))
    assert texts == {"one.jsonl:1": "one", "more/two.jsonl:1": "two"}


def test_linked_folders_of_splits_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"data/tr/1.txt": "one", "data/va/2.txt": "two"})
    put(tmp_path, {"books/test/3.txt": "three"})
    (tmp_path / "books" / "train").symlink_to("../data/tr")
    (tmp_path / "books" / "validation").symlink_to("../data/va")
    corpus = Text(source=str(tmp_path / "books"))
    found = {split: [document.text for document in documents_of(corpus, split)] for split in SPLITS}
    assert found == {"train": ["one"], "validation": ["two"], "test": ["three"]}


def test_a_link_to_a_folder_above_it_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, {"books/a/1.txt": "one", "books/b/2.txt": "two"})
    (tmp_path / "books" / "self").symlink_to(".")
    (tmp_path / "books" / "root").symlink_to("/")
    (tmp_path / "books" / "above").symlink_to("..")
    (tmp_path / "books" / "a" / "up").symlink_to("..")
    (tmp_path / "books" / "b" / "back").symlink_to("../a")
    assert set(read_all(Text(source=str(tmp_path / "books")))[0]) == {"a/1.txt", "b/2.txt", "b/back/1.txt"}


def test_linked_papers_and_archives_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"disk/arXiv_src_2101_001.tar": tar({"2101/2101.00001.gz": gzip.compress(TEX % b"packed")})})
    put(
        tmp_path,
        {"disk/2101.00002/ms.tex": TEX % b"folder", "secret.tex": b"secret", "papers/2101.00003/ms.tex": TEX % b"own"},
    )
    (tmp_path / "disk" / "2101.00002" / "link.tex").symlink_to(tmp_path / "secret.tex")
    for name in ("arXiv_src_2101_001.tar", "2101.00002"):
        (tmp_path / "papers" / name).symlink_to(tmp_path / "disk" / name)
    texts, _ = read_all(Arxiv(source=str(tmp_path / "papers")))
    assert set(texts) == {"2101.00001", "2101.00002", "2101.00003"}
    assert "folder" in str(texts["2101.00002"]) and "secret" not in str(texts)


def test_a_linked_repository_is_read_and_what_it_links_to_is_not(tmp_path: Path) -> None:
    put(tmp_path, {"disk/repo/a.py": "a = 1\n", "other/b.py": "b"})
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "repo").symlink_to(tmp_path / "disk" / "repo")
    (tmp_path / "disk" / "repo" / "other").symlink_to(tmp_path / "other")
    assert read_all(GitHub(source=str(tmp_path / "all")))[0] == {"repo": "# file: repo/a.py\na = 1\n\n"}


def large_zip(data: bytes) -> bytes:
    """The zip with its counts in the records of ZIP64 alone, as some programs write every zip."""
    end = data.rindex(b"PK\5\6")
    count, size, offset = struct.unpack("<HLL", data[end + 10 : end + 20])
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    return data[:end] + record + locator + b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2)


def test_a_zip_of_zip64(tmp_path: Path) -> None:
    text = bytes(range(256)) * 40
    put(tmp_path, {"enwik8.zip": large_zip(zipped({"enwik8": text}))})
    texts, _ = read_all(Enwik8(source=str(tmp_path / "enwik8.zip")))
    assert b"".join(texts[split] for split in SPLITS) == text  # type: ignore[misc]
    many = large_zip(zipped({f"{i:0200}": b"" for i in range(5000)}))
    put(tmp_path, {"many.zip": many})
    with pytest.raises(CorpusError, match="has a directory of too many members"):
        Enwik8(source=str(tmp_path / "many.zip")).sources("train")


def test_zips_of_other_systems(tmp_path: Path) -> None:
    text = bytes(range(256)) * 40
    mac = {"enwik8": text, "__MACOSX/._enwik8": b"\0\5\x16\7", ".DS_Store": b"\0"}
    put(tmp_path, {"enwik8.zip": zipped(mac), "wiki.zip": zipped({"wikitext-2\\wiki.test.raw": b" = A = \n \n a\n"})})
    texts, _ = read_all(Enwik8(source=str(tmp_path / "enwik8.zip")))
    assert b"".join(texts[split] for split in SPLITS) == text  # type: ignore[misc]
    assert read_all(WikiText(source=str(tmp_path / "wiki.zip")))[0] == {"test/0": " = A = \n \n a\n"}


def test_what_is_whole_but_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    plain = zipped({"enwik8": b"text " * 200})
    central = plain.index(b"PK\1\2")
    packed, encrypted = bytearray(plain), bytearray(plain)
    packed[8] = packed[central + 10] = 9  # deflate64, as Windows packs large files
    encrypted[6] |= 1
    encrypted[central + 8] |= 1
    put(tmp_path, {"packed.zip": bytes(packed), "encrypted.zip": bytes(encrypted)})
    with pytest.raises(
        CorpusError, match=r"packed\.zip cannot be read \(.*compression.*\): .*pack it with another method"
    ):
        Enwik8(source=str(tmp_path / "packed.zip")).sources("train")
    with pytest.raises(CorpusError, match=r"encrypted\.zip cannot be read \(.*encrypted.*\): decrypt it first"):
        Enwik8(source=str(tmp_path / "encrypted.zip")).sources("train")


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_parquet_is_not_called_damaged(tmp_path: Path, plaintext_footer: bool) -> None:
    class Keys(encryption.KmsClient):
        def __init__(self, _: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _: str) -> str:
            return base64.b64encode(key).decode()

        def unwrap_key(self, wrapped: str, _: str) -> bytes:
            return base64.b64decode(wrapped)

    table = pa.table({"text": ["one", "two"]})
    config = encryption.EncryptionConfiguration(
        "footer", column_keys={"key": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    secret = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=secret) as writer:
        writer.write_table(table)
    with pytest.raises(CorpusError, match=r"a\.parquet cannot be read \(.*crypt.*\): decrypt it first"):
        Parquet(source=str(tmp_path)).sources("train")


def test_a_shard_of_parquet_without_any_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"text": [None, None, None]}), tmp_path / "train-1.parquet")  # pyarrow: of type null
    texts, skipped = read_all(Parquet(source=str(tmp_path)))
    assert list(texts.values()) == ["one", "two"] and skipped == {"without text": 3}


def test_parquet_with_two_columns_of_a_name(tmp_path: Path) -> None:
    column = pa.array(["one", "two"])
    pq.write_table(pa.table([column, column], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet has 2 columns 'text': rename them"):
        Parquet(source=str(tmp_path)).sources("train")


def test_json_numbers_of_any_size(tmp_path: Path) -> None:
    digits = "9" * 5000  # more than Python reads as a number
    put(tmp_path, {"a.jsonl": f'{{"text": "one", "n": {digits}, "key": 1}}\n{{"text": "two", "key": 2}}\n'})
    assert list(read_all(JsonLines(source=str(tmp_path)))[0].values()) == ["one", "two"]
    assert read_all(JsonLines(source=str(tmp_path), id_field="key"))[0] == {"1": "one", "2": "two"}
    with pytest.raises(CorpusError, match=r"line 1 has no string or integer in field 'n': give another --id-field"):
        read_all(JsonLines(source=str(tmp_path), id_field="n"))


@pytest.mark.parametrize(
    ("text", "line"), [('[{"text": "a"}, {"text": "b"}]', 1), ('\ufeff \n[\n  {"text": "a"}\n]\n', 2)]
)
def test_a_json_array_is_named(tmp_path: Path, text: str, line: int) -> None:
    put(tmp_path, {"a.json": text})
    for corpus in (JsonLines(source=str(tmp_path)), JsonLines(source=str(tmp_path), id_field="key")):
        with pytest.raises(CorpusError, match=rf"a\.json line {line} is a JSON list: .*; jq -c '\.\[\]' FILE writes"):
            corpus.sources("train")


@pytest.mark.parametrize("name", ["b.txt", "books", "itself.txt"])
def test_a_broken_link_is_no_missing_text(tmp_path: Path, name: str) -> None:
    """The link of a text, or of a folder of texts, whose target was moved: nobody would miss its documents."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / ".hidden.txt").symlink_to("gone")
    (tmp_path / "notes.md").symlink_to("gone")
    assert files_in(Place.parse(tmp_path), takes=Text(source=str(tmp_path)).takes)
    (tmp_path / name).symlink_to("itself.txt" if name == "itself.txt" else "gone")
    with pytest.raises(
        CorpusError, match=rf"{name} is a link to .*, which is not there: restore that, or remove the link"
    ):
        Text(source=str(tmp_path)).sources("train")


def test_broken_links_of_shards_and_books_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "config.json").symlink_to("gone")
    assert len(JsonLines(source=str(tmp_path)).sources("train")) == 1
    (tmp_path / "b.jsonl").symlink_to("gone")
    with pytest.raises(CorpusError, match=r"b\.jsonl is a link to gone, which is not there"):
        JsonLines(source=str(tmp_path)).sources("train")
    book = tmp_path / "books" / "train" / "1.txt"
    book.parent.mkdir(parents=True)
    book.symlink_to("gone")
    with pytest.raises(CorpusError, match=r"1\.txt is a link to gone, which is not there"):
        Pg19(source=str(tmp_path / "books")).sources("train")
