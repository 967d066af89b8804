"""WikiText, enwik8 and repositories as they are released: what a document is, and what is left out."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.corpora.enwik8 import Enwik8
from data_prep.corpora.github import GitHub
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import SPLITS, CorpusError
from pipelines.prepare import prepare
from tests.shared_data import need
from tests.small_archives import documents_of, put, read_all, scan_all, zipped

WIKI = (
    " \n = Some Title = \n \n The filter has \n = 1 rad / s and a nominal impedance k = \n 1 ohm . \n \n"
    " = = Section = = \n \n Text . \n \n \n = Second ( 1970 ) = \n \n Wins , L \n = Losses , D = \n \n"
    " = = = Deep = = = \n \n <unk> é \n \n"
)


def test_wikitext_articles(tmp_path: Path) -> None:
    put(tmp_path, {"wiki.train.tokens": WIKI, "wiki.valid.tokens": WIKI[2:] * 2, "README": "no"})
    corpus = WikiText(source=str(tmp_path))
    train = documents_of(corpus, "train")
    assert [(d.id, d.title) for d in train] == [("train/0", "Some Title"), ("train/1", "Second ( 1970 )")]
    assert "".join(str(d.text) for d in train) == WIKI
    assert str(train[1].text).startswith(" = Second ( 1970 ) = \n")
    assert len(documents_of(corpus, "validation")) == 4 and documents_of(corpus, "test") == []


def test_wikitext_counts_as_published(tmp_path: Path, make_config, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {"wiki.train.tokens": WIKI})
    corpus = WikiText(source=str(tmp_path))
    scanned = scan_all(corpus, "train")
    count = len(WIKI.split()) + WIKI.count("\n")
    assert corpus.remarks("train", scanned) == [f"{count:,} tokens, counted as words and line ends"]
    prepare(make_config(corpus=corpus))
    assert f"train: {count:,} tokens, counted as words and line ends\n" in capsys.readouterr().out


def test_wikitext_from_a_zip(tmp_path: Path) -> None:
    members = {"wikitext-2-raw/wiki.test.raw": WIKI.encode(), "wikitext-2-raw/": b"", "../x": b"no"}
    put(tmp_path, {"wikitext-2-raw-v1.zip": zipped(members)})
    assert (
        "".join(str(d.text) for d in documents_of(WikiText(source=str(tmp_path / "wikitext-2-raw-v1.zip")), "test"))
        == WIKI
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["wikitext-2-raw-v1.zip"]
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize("kind", [WikiText, Enwik8])
def test_a_zip_whose_bytes_changed_is_refused(tmp_path: Path, kind: type) -> None:
    file = tmp_path / "corpus.zip"
    with zipfile.ZipFile(file, "w") as archive:  # stored: nothing but the checksum can tell
        archive.writestr("wiki.test.tokens", WIKI * 50)
    file.write_bytes(file.read_bytes().replace(b"impedance", b"impudence", 1))
    with pytest.raises(CorpusError, match=r"corpus\.zip.* cannot be read \(Bad CRC-32"):
        kind(source=str(file)).sources("test")


def test_wikitext_in_both_forms(tmp_path: Path) -> None:
    put(tmp_path, {"wiki.test.raw": WIKI, "wiki.test.tokens": WIKI.replace("Text", "<unk>")})
    with pytest.raises(
        CorpusError, match=r"holds wiki\.test\.(raw|tokens) and wiki\.test\.(raw|tokens): choose with --form"
    ):
        WikiText(source=str(tmp_path)).sources("test")
    assert "<unk> ." not in str(documents_of(WikiText(source=str(tmp_path), form="raw"), "test")[0].text)


def test_what_is_no_wikitext(tmp_path: Path) -> None:
    for source, words in (
        ("", "needs a folder"),
        (str(tmp_path / "no"), "is not there"),
        (str(tmp_path), "holds none of wiki.train.tokens"),
    ):
        with pytest.raises(CorpusError, match=words):
            WikiText(source=source).sources("train")
    put(tmp_path, {"wiki.train.tokens": "no title\n = a = \nb"})
    with pytest.raises(CorpusError, match=r"wiki\.train\.tokens holds no line ' = Title = '"):
        WikiText(source=str(tmp_path)).sources("train")
    put(tmp_path, {"wiki.train.tokens": WIKI.encode() + b"\xff\n"})
    with pytest.raises(
        CorpusError, match=rf"wiki\.train\.tokens is not UTF-8: byte 0xff at offset {len(WIKI.encode())} "
    ):
        documents_of(WikiText(source=str(tmp_path)), "train")
    put(tmp_path, {"wiki.train.tokens": WIKI})
    corpus = WikiText(source=str(tmp_path), max_document_bytes=len(WIKI) // 2)
    texts, skipped = read_all(corpus)
    assert list(texts) == ["train/1"] and skipped == {"too large": 1}


TITLES = st.sampled_from(
    [" = A = ", " = = B = = ", " ", "", " = ", " =  = ", " = c", "d = ", " e ", " = f = \r", "\x85", " = é = "]
)


@given(st.lists(TITLES, min_size=1))
@settings(deadline=None)
def test_wikitext_loses_nothing(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    text = "\n".join(written)
    folder = put(tmp_path_factory.mktemp("wiki"), {"wiki.test.raw": text})
    rows = ["", *(row.removesuffix("\n") for row in io.StringIO(text, newline="\n"))]
    blank = [not row.encode().strip() for row in rows]
    titles = {" = A = ", " = é = ", " = f = \r"}
    expected = sum(row in titles and a and b for a, row, b in zip(blank, rows[1:], blank[2:], strict=False))
    if expected:
        found = documents_of(WikiText(source=str(folder)), "test")
        assert "".join(str(d.text) for d in found) == text and len(found) == expected
    else:
        with pytest.raises(CorpusError, match="holds no line"):
            documents_of(WikiText(source=str(folder)), "test")


@pytest.mark.parametrize("form", ["plain", "gz", "zip"])
@pytest.mark.parametrize("total", [100_000, 99_999, 7])
def test_enwik8(tmp_path: Path, form: str, total: int) -> None:
    data = os.urandom(total)
    packed = {"plain": data, "gz": gzip.compress(data), "zip": zipped({"enwik8": data})}[form]
    put(tmp_path, {"enwik8": packed})
    corpus = Enwik8(source=str(tmp_path / "enwik8"))
    texts = [documents_of(corpus, split)[0].text for split in SPLITS]
    assert b"".join(texts) == data  # type: ignore[arg-type]
    assert [len(text) for text in texts] == [
        total * 90 // 100,
        total * 95 // 100 - total * 90 // 100,
        total - total * 95 // 100,
    ]
    pieces = documents_of(replace(corpus, pieces=4), "train")
    assert b"".join(piece.text for piece in pieces) == texts[0]  # type: ignore[misc]
    sizes = [len(piece.text) for piece in pieces]
    assert len(pieces) == 4 and max(sizes) - min(sizes) <= 1 and pieces[-1].id == "train/3"
    assert corpus.options() == {} and replace(corpus, pieces=4).options() == {"pieces": 4}


def test_enwik8_is_cut_in_millions(tmp_path: Path) -> None:
    file = tmp_path / "enwik8"
    file.touch()
    os.truncate(file, 10**8)
    sizes = {split: [source.bytes for source in Enwik8(source=str(file)).sources(split)] for split in SPLITS}
    assert sizes == {"train": [90_000_000], "validation": [5_000_000], "test": [5_000_000]}


def test_enwik8_is_never_decoded(tmp_path: Path, make_config) -> None:
    put(tmp_path, {"enwik8": b"\xff\xfe text \x80" * 50})
    corpus = Enwik8(source=str(tmp_path / "enwik8"))
    manifests = prepare(make_config(corpus=corpus))
    assert sum(manifest.totals.tokens for manifest in manifests.values()) == 450
    with pytest.raises(ValueError, match=r"corpus enwik8 is of bytes, which need --tokenizer bytes"):
        prepare(make_config(corpus=corpus, tokenizer="sentencepiece:300", store=str(tmp_path / "other")))


def test_what_is_no_enwik8(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "empty": b"",
            "two.zip": zipped({"a": b"a", "b": b"b"}),
            "short.gz": gzip.compress(b"a" * 99)[:-5],
            "big": b"x" * 100,
        },
    )
    for name, words in (
        ("empty", "is empty"), ("two.zip", "holds 2 files and should hold enwik8 alone"),
        ("short.gz", "ends early"), ("no", "is not a file"),
    ):  # fmt: skip
        with pytest.raises(CorpusError, match=words):
            Enwik8(source=str(tmp_path / name)).sources("train")
    with pytest.raises(CorpusError, match="too many for one document a split: give a larger --max-document-bytes"):
        Enwik8(source=str(tmp_path / "big"), max_document_bytes=50).sources("train")


def test_repositories(tmp_path: Path) -> None:
    long_line = "x = [" + "1, " * 2000 + "]\n"
    put(
        tmp_path / "all",
        {
            "repo/b.py": "b\n", "repo/a/z.py": "az", "repo/a/b.py": "ab", "repo/a.py": "a", "repo/README.md": "no",
            "repo/empty.py": " \n",
            "repo/.git/hooks/x.py": "no", "repo/node_modules/x/y.js": "no", "repo/lib/vendor/v.py": "no", "repo/x.min.js": "no",
            "repo/api_pb2.py": "no", "repo/gen.go": "// Code generated by x. DO NOT EDIT.\nno",
            "repo/late.py": "#\n" * 900 + "# DO NOT EDIT",
            "repo/blob.py": b"a\0b", "repo/latin.py": b"caf\xe9", "repo/line.py": long_line, "repo/big.py": "x\n" * 600_000,
            "other/main.C": "int main;", "third/notes.txt": "nothing to take", "file.py": "no repository",
            "file.md": "no", ".a.py": "no",
        },
    )  # fmt: skip
    put(tmp_path, {"secret.py": "secret"})
    (tmp_path / "all" / "repo" / "link.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "all" / "repo" / "loop").symlink_to(tmp_path / "all")
    texts, skipped = read_all(GitHub(source=str(tmp_path / "all")))
    assert texts["repo"] == (
        "# file: repo/a/b.py\nab\n# file: repo/a/z.py\naz\n# file: repo/a.py\na\n# file: repo/b.py\nb\n\n"
        "# file: repo/late.py\n" + "#\n" * 900 + "# DO NOT EDIT\n"
    )
    assert texts["other"] == "# file: other/main.C\nint main;\n" and texts["third"] == ""
    expected = {
        "hidden": 1,
        "vendored": 2,
        "generated": 3,
        "binary": 1,
        "not UTF-8": 1,
        "minified": 1,
        "large": 1,
        "links": 1,
        "in no repository's folder": 1,
    }
    assert skipped == expected
    corpus = GitHub(source=str(tmp_path / "all"), endings=(".md",))
    assert read_all(corpus)[0]["repo"] == "# file: repo/README.md\nno\n"
    with pytest.raises(CorpusError, match="holds no folder: give --source the folder that holds the repositories"):
        GitHub(source=str(put(tmp_path / "flat", {"a.py": "a"}))).sources("train")


def test_sources_by_uri(tmp_path: Path) -> None:
    put(tmp_path / "a b", {"train/1.txt": "one\r\n", "train/2.txt": "two", "metadata.csv": "1,One,1900,x\n"})
    uri = f"file://{tmp_path}/a%20b"
    for corpus in (Pg19(source=uri), Text(source=uri)):
        assert [str(d.text) for d in documents_of(corpus, "train")] == ["one\r\n", "two"]
    with pytest.raises(CorpusError, match="is not there"):
        Text(source=f"{uri}/nowhere").sources("train")


def test_pipes_are_no_documents(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": "text"})
    os.mkfifo(tmp_path / "b.txt")
    assert list(read_all(Text(source=str(tmp_path)))[0]) == ["a.txt"]


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("folder", "split", "articles", "tokens", "published"),
    [
        ("wikitext-2", "train", 600, 2_088_628, "WikiText-2"),
        ("wikitext-2", "validation", 60, 217_646, "WikiText-2 and WikiText-103"),
        ("wikitext-2", "test", 60, 245_569, "WikiText-2 and WikiText-103"),
        ("wikitext-2-raw", "test", 60, 245_569, "WikiText-2 and WikiText-103"),
        ("wikitext-103", "validation", 60, 217_646, "WikiText-2 and WikiText-103"),
    ],
)
def test_real_wikitext(tmp_path: Path, folder: str, split: str, articles: int, tokens: int, published: str) -> None:
    corpus = WikiText(source=str(need("wikitext", folder)))
    scanned = scan_all(corpus, split)
    assert len(scanned) == articles
    assert corpus.remarks(split, scanned) == [
        f"{tokens:,} tokens, counted as words and line ends, the published count of {published}"
    ]
    name = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}[split]
    [path] = need("wikitext", folder).glob(f"{name}.*")
    data = path.read_bytes()
    assert "".join(str(d.text) for d in documents_of(corpus, split)).encode() == data
    put(tmp_path, {"wiki.zip": zipped({f"{folder}/{path.name}": data})})
    assert documents_of(WikiText(source=str(tmp_path / "wiki.zip")), split) == documents_of(corpus, split)


@pytest.mark.real_data
def test_real_enwik8() -> None:
    corpus = Enwik8(source=str(need("enwik8", "enwik8.prefix4154399")))
    texts = [documents_of(corpus, split)[0].text for split in SPLITS]
    assert [len(text) for text in texts] == [3_738_959, 207_720, 207_720]
    assert b"".join(texts) == need("enwik8", "enwik8.prefix4154399").read_bytes()  # type: ignore[arg-type]


@pytest.mark.real_data
def test_real_pg19() -> None:
    """Documents, bytes and words of each split as in SOURCES.md."""
    corpus = Pg19(source=str(need("pg19")))
    found = {}
    for split in SPLITS:
        scanned = scan_all(corpus, split)
        found[split] = (len(scanned), sum(d.bytes for d in scanned), sum(d.words for d in scanned))
        assert all(d.title != d.id for d in scanned)
    assert found == {
        "train": (85, 20_797_542, 3_558_566),
        "validation": (13, 3_661_668, 625_199),
        "test": (12, 7_977_665, 1_370_905),
    }
