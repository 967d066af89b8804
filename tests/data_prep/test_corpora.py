"""Every corpus on small folders of its own, and the sentence for everything that can be wrong with one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.places import Place
from data_prep import documents
from data_prep.corpora import CORPORA
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.files import split_folders
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.text import Text
from data_prep.documents import (
    SPLITS,
    Corpus,
    CorpusError,
    Document,
    Scanned,
    Skipped,
    Source,
    checksum,
    scan,
    split_of,
    tally,
)
from data_prep.scanning import ScannedDocuments, scan_group
from data_prep.sources import reread
from data_prep.store import SegmentStore
from data_prep.tokenizers import TokenizerError
from pipelines.prepare import prepare
from tests.small_archives import documents_of, put, read_all


def ids(corpus: Corpus, split: str) -> list[str]:
    return [source.id for source in corpus.sources(split)]


def read(corpus: Corpus, split: str) -> dict[str, str | bytes]:
    """The texts of a split by their ids."""
    return {document.id: document.text for document in documents_of(corpus, split)}


def texts(corpus: Corpus, split: str) -> list[str | bytes]:
    return [document.text for document in documents_of(corpus, split)]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    for split, name in (("train", "1001"), ("train", "99"), ("validation", "7"), ("test", "8")):
        (tmp_path / split).mkdir(exist_ok=True)
        (tmp_path / split / f"{name}.txt").write_bytes(f"Book {name}\r\n\r\nText.\r\n".encode())
    (tmp_path / "metadata.csv").write_text(
        '99,"Title, with a comma\nand a line",1900,http://x\n7,Seven,1901,http://y\n'
    )
    return tmp_path


def test_registry_names() -> None:
    assert {"python-source", "pg19", "text", "arxiv"} < set(CORPORA)
    assert all(kind.name == name for name, kind in CORPORA.items())


def test_pg19(books: Path) -> None:
    corpus = Pg19(source=str(books))
    assert [ids(corpus, split) for split in SPLITS] == [["99", "1001"], ["7"], ["8"]]  # by number
    assert [source.title for source in corpus.sources("train")] == ["Title, with a comma\nand a line", "1001"]
    assert texts(corpus, "test") == ["Book 8\r\n\r\nText.\r\n"]
    assert texts(Pg19(source=str(books), newline="normalize"), "test") == ["Book 8\n\nText.\n"]
    (books / "metadata.csv").write_text("7,Seven\n", encoding="utf-8-sig")  # with a byte order mark
    assert corpus.sources("validation")[0].title == "Seven"
    (books / "metadata.csv").unlink()
    assert [source.title for source in corpus.sources("train")] == ["99", "1001"]


def test_books_that_are_not_where_the_release_has_them_are_counted(books: Path) -> None:
    put(books / "train", {"more/4.txt": b"Book", "5.TXT": b"Book", ".6.txt": b"hidden", "notes.md": b"no book"})
    for corpus in (Pg19(source=str(books)), Pg19(source=str(books), books=1)):
        assert read_all(corpus)[1] == {"not train/<id>.txt": 2}
    assert [*read(Pg19(source=str(books)), "train")] == ["99", "1001"]


def test_text_with_split_folders(tmp_path: Path) -> None:
    for name in ("train/b.txt", "train/a/z.txt", "test/a.txt", "train/skip.md", "beside.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = Text(source=str(tmp_path))
    assert [list(read(corpus, split)) for split in SPLITS] == [["train/a/z.txt", "train/b.txt"], [], ["test/a.txt"]]
    assert ids(Text(source=str(tmp_path), pattern="*.md"), "train") == ["train/skip.md"]


def test_names_of_folders_and_files_count_in_any_case(tmp_path: Path) -> None:
    put(tmp_path, {name: name for name in ("Train/a.TXT", "train/b.txt", "Val/c.Txt", "TEST/d.txt", "Test/e.md")})
    corpus = Text(source=str(tmp_path))
    assert [list(read(corpus, split)) for split in SPLITS] == [
        ["Train/a.TXT", "train/b.txt"],
        ["Val/c.Txt"],
        ["TEST/d.txt"],
    ]
    assert ids(Text(source=str(tmp_path), pattern="*.TXT"), "train") == ["Train/a.TXT"]
    assert not split_folders(Place.parse(str(tmp_path / "Train")))


def test_a_repository_in_place_of_its_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"mine/.git/HEAD": "ref", "mine/src/a.py": "x = 1\n", "mine/b.py": "y = 2\n"})
    assert ids(GitHub(source=str(tmp_path)), split_of("mine")) == ["mine"]
    with pytest.raises(
        CorpusError, match="mine is a repository itself: give --source the folder that holds the repositories"
    ):
        GitHub(source=str(tmp_path / "mine")).sources("train")


def test_text_beside_split_folders_is_counted(tmp_path: Path, make_config, capsys: pytest.CaptureFixture[str]) -> None:
    put(
        tmp_path / "in",
        {name: "some text" for name in ("test/a.txt", "validation/b.txt", "valid/c.txt", "trains/d.txt", "root.txt")},
    )
    put(tmp_path / "in", {"notes.md": "matches no pattern"})
    corpus = Text(source=str(tmp_path / "in"))
    texts, skipped = read_all(corpus)
    assert set(texts) == {"test/a.txt", "validation/b.txt", "valid/c.txt"}
    assert skipped == {"not in the folders train, validation, test": 2}
    prepare(make_config(corpus=corpus, splits=("validation", "test")))
    assert "validation: skipped 2 not in the folders train, validation, test\n" in capsys.readouterr().out


def test_hidden_files_are_no_documents(tmp_path: Path, books: Path) -> None:
    hidden = (".ipynb_checkpoints/a", "sub/.git/a", "__MACOSX/a", "._a", ".a")
    put(tmp_path / "text", {"a.txt": "a", **{f"{name}.txt": "no" for name in hidden}})
    assert read_all(Text(source=str(tmp_path / "text"))) == ({"a.txt": "a"}, {"hidden": 5})
    put(tmp_path / "own", {"train/a.txt": "a", "other/a.txt": "no", **{f"train/{name}.txt": "no" for name in hidden}})
    own, left_out = read_all(Text(source=str(tmp_path / "own")))
    assert list(own) == ["train/a.txt"]
    assert left_out == {"hidden": 5, "not in the folders train, validation, test": 1}
    put(tmp_path / "json", {"a.jsonl": '{"text": "a"}', **{f"{name}.jsonl": "no" for name in hidden}})
    assert read_all(JsonLines(source=str(tmp_path / "json"))) == ({"a.jsonl:1": "a"}, {})
    put(tmp_path / "papers", {"a/a.tex": "a", **{f"{name}/a.tex": "no" for name in hidden}, "._b.gz": "no"})
    texts, skipped = read_all(Arxiv(source=str(tmp_path / "papers")))
    assert (set(texts), skipped) == ({"a"}, {"no TeX": 1})  # the paper sub has hidden files alone
    put(tmp_path / "py", {"pack/a.py": "a", **{f"pack/{name}.py": "no" for name in hidden}, ".x/a.py": "no"})
    assert read_all(PythonSource(source=str(tmp_path / "py")))[0] == {"pack": "# file: pack/a.py\na\n"}
    put(
        tmp_path / "git",
        {"r/a.py": "a", "r/.ipynb_checkpoints/a.py": "no", "__MACOSX/a.py": "no", "r/__MACOSX/a.py": "no"},
    )
    assert read_all(GitHub(source=str(tmp_path / "git"))) == ({"r": "# file: r/a.py\na\n"}, {"hidden": 2})
    put(books, {"train/._99.txt": "no", "train/.ipynb_checkpoints/99.txt": "no"})
    assert set(read_all(Pg19(source=str(books)))[0]) == {"99", "1001", "7", "8"}


def test_other_names_of_two_splits(tmp_path: Path) -> None:
    put(tmp_path, {"training/a.txt": "a", "val/b.txt": "b"})
    corpus = Text(source=str(tmp_path))
    assert [ids(corpus, split) for split in ("train", "validation")] == [["training/a.txt"], ["val/b.txt"]]


@pytest.mark.parametrize("name", ["valid", "val", "dev"])
def test_other_names_of_validation(tmp_path: Path, books: Path, name: str) -> None:
    put(tmp_path / "text", {"train/a.txt": "a", f"{name}/b.txt": "b"})
    assert ids(Text(source=str(tmp_path / "text")), "validation") == [f"{name}/b.txt"]
    (books / "validation").rename(books / name)
    assert read(Pg19(source=str(books)), "validation") == {"7": "Book 7\r\n\r\nText.\r\n"}
    put(books, {"validation/9.txt": "nine"})
    with pytest.raises(
        CorpusError, match=rf"has the folders {name} and validation|validation and {name}, which are one split"
    ):
        Pg19(source=str(books)).sources("validation")
    shutil.rmtree(tmp_path / "text" / "train")
    texts, skipped = read_all(Text(source=str(tmp_path / "text")))  # a folder of any name: it says no split
    assert list(texts) == [f"{name}/b.txt"] and skipped == {}


def test_a_document_too_large_is_left_out(tmp_path: Path, books: Path) -> None:
    """Before it is in memory."""
    put(tmp_path / "text", {"train/a.txt": "a" * 100, "train/b.txt": "b" * 101})
    put(tmp_path / "git", {"one/a.py": "x\n" * 30, "two/a.py": "y\n" * 30, "two/b.py": "y\n" * 30})
    put(books, {"train/1001.txt": "x" * 101})
    for corpus, kept in (
        (Text(source=str(tmp_path / "text"), max_document_bytes=100), ["train/a.txt"]),
        (GitHub(source=str(tmp_path / "git"), max_document_bytes=100), ["one"]),
        (Pg19(source=str(books), max_document_bytes=100), ["99", "7", "8"]),
    ):
        texts, skipped = read_all(corpus)
        assert (list(texts), skipped) == (kept, {"too large": 1})
    os.truncate(tmp_path / "text" / "train" / "b.txt", 1 << 36)
    os.truncate(books / "train" / "1001.txt", 1 << 36)
    for corpus in (Text(source=str(tmp_path / "text")), Pg19(source=str(books))):
        assert read_all(corpus)[1] == {"too large": 1}


@pytest.mark.parametrize(
    "kind", [kind for kind in CORPORA.values() if "max_document_bytes" in kind.__dataclass_fields__]
)
def test_a_limit_below_one_byte_is_refused(kind: Any) -> None:
    for limit in (-1, 0):
        with pytest.raises(UserError, match=f"^--max-document-bytes is {limit}: it must be at least 1$"):
            kind(max_document_bytes=limit)


def test_a_limit_on_files_below_one_byte_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--max-file-bytes is -1: it must be at least 1$"):
        GitHub(max_file_bytes=-1)


def test_text_without_split_folders(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(100)]
    for name in names:
        (tmp_path / name).write_text(name)
    found = {split: ids(Text(source=str(tmp_path)), split) for split in SPLITS}
    assert sorted(name for listed in found.values() for name in listed) == sorted(names)
    assert all(split_of(name) == split for split, listed in found.items() for name in listed)


def test_split_of_is_fixed_and_of_the_right_shares() -> None:
    counts = {split: sum(split_of(f"name {i}") == split for i in range(10_000)) for split in SPLITS}
    assert (
        abs(counts["train"] - 8600) < 150 and abs(counts["validation"] - 700) < 100 and abs(counts["test"] - 700) < 100
    )
    # A document never changes its split: stores and results depend on it.
    assert [split_of(name) for name in ("json", "idlelib", "pydoc")] == ["train", "validation", "test"]


def test_python_source_of_this_interpreter() -> None:
    corpus = PythonSource()
    for split, least in (("train", 5_000_000), ("validation", 300_000), ("test", 300_000)):
        sources = corpus.sources(split)
        assert len(sources) >= 5 and sum(source.bytes for source in sources) > least
    [json] = corpus.read([source for source in corpus.sources("train") if source.id == "json"])
    text = str(json.text)
    headers = [line for line in text.split("\n") if line.startswith("# file: ")]
    assert headers[:2] == ["# file: json/__init__.py", "# file: json/decoder.py"]
    assert not {"test", "site-packages", "__pycache__"} & {s.id for split in SPLITS for s in corpus.sources(split)}


def test_python_source_leaves_tests_out_and_honours_encodings(tmp_path: Path) -> None:
    for name in ("pack/tests/test_a.py", "pack/b.py", "pack/a.py", "config-3/x.py", "site-packages/y.py", "mod.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "mod.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    corpus = PythonSource(source=str(tmp_path))
    assert {name: text for split in SPLITS for name, text in read(corpus, split).items()} == {
        "pack": "# file: pack/a.py\n# pack/a.py\n\n# file: pack/b.py\n# pack/b.py\n\n",
        "mod": "# file: mod.py\n# -*- coding: latin-1 -*-\nx = 'é'\n\n",
    }


def test_python_module_beside_a_package_of_its_name(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"pack.py": "module", "pack/__init__.py": "package", "x.py/y.py": "a folder", "x.py.py": "z", "x/a.py": "x"},
    )
    texts, _ = read_all(PythonSource(source=str(tmp_path)))
    assert texts == {
        "pack": "# file: pack/__init__.py\npackage\n# file: pack.py\nmodule\n",
        "x.py": "# file: x.py/y.py\na folder\n# file: x.py.py\nz\n",
        "x": "# file: x/a.py\nx\n",
    }


@pytest.mark.parametrize("encoding", ["rot13", "hex", "undefined", "unicode_escape", "punycode", "nonesuch"])
def test_python_source_of_an_encoding_that_is_none(tmp_path: Path, encoding: str) -> None:
    put(tmp_path, {"odd.py": f"# coding: {encoding}\nx = '\\ud800..a'\n"})
    with pytest.raises(CorpusError, match=r"odd\.py .*: fix the file"):
        read_all(PythonSource(source=str(tmp_path)))


@pytest.mark.parametrize("head", [b"x = 1\n", b"# a line\n# another\n"])
def test_python_source_undecodable(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "bad.py").write_bytes(head + b"'\xff'\n")
    corpus = PythonSource(source=str(tmp_path))
    source = next(s for split in SPLITS for s in corpus.sources(split))
    with pytest.raises(CorpusError, match=rf"bad\.py is not UTF-8: byte 0xff at offset {len(head) + 1} "):
        list(corpus.read([source]))


def test_not_utf8(books: Path) -> None:
    (books / "test" / "8.txt").write_bytes(b"good \xe9t\xe9")
    with pytest.raises(CorpusError, match=r"8\.txt is not UTF-8: byte 0xe9 at offset 5 \(invalid continuation byte\)"):
        texts(Pg19(source=str(books)), "test")


def test_the_home_folder_of_nobody() -> None:
    with pytest.raises(CorpusError, match="~nobody-here/lib is not a folder: give --source"):
        PythonSource(source="~nobody-here/lib").sources("train")


@pytest.mark.parametrize("kind", [Pg19, Text])
def test_missing_folder(kind: type, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="needs a folder: give --source"):
        kind().sources("train")
    with pytest.raises(CorpusError, match="nowhere is not there: give --source"):
        kind(source=str(tmp_path / "nowhere")).sources("train")


def test_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"holds no file that matches '\*\.md': give another --source or --pattern"):
        Text(source=str(tmp_path), pattern="*.md").sources("train")
    put(tmp_path / "beside", {"train/a.txt": "a", "b.md": "b"})
    with pytest.raises(
        CorpusError, match=r"holds files that match '\*\.md' beside the folders .* alone: move them there"
    ):
        Text(source=str(tmp_path / "beside"), pattern="*.md").sources("train")
    shutil.rmtree(tmp_path / "beside")
    with pytest.raises(CorpusError, match="has no folder train, validation, test"):
        Pg19(source=str(tmp_path)).sources("train")
    with pytest.raises(CorpusError, match=r"holds no \.py file"):
        PythonSource(source=str(tmp_path)).sources("train")
    (tmp_path / "test").mkdir()
    with pytest.raises(CorpusError, match=r"test holds no \*\.txt file"):
        Pg19(source=str(tmp_path)).sources("test")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Text, "b\udcffd.txt"), (Pg19, "train/b\udcffd.txt"), (PythonSource, "b\udcffd.py"), (PythonSource, "pack/b\udcffd.py"),
        (GitHub, "b\udcffd/a.py"), (Arxiv, "b\udcffd/a.tex"), (JsonLines, "b\udcffd.jsonl"), (Parquet, "b\udcffd.parquet"),
    ],
)  # fmt: skip
def test_file_name_that_is_not_utf8(tmp_path: Path, kind: type, name: str) -> None:
    put(tmp_path / "in", {"beside.txt": "text", "beside.py": "pass", "train/1.txt": "one", "test/2.txt": "two"})
    put(tmp_path / "in", {name: "text"})
    with pytest.raises(CorpusError, match=r"name is not UTF-8, '(pack/|train/)?b\\udcffd(\.\w+)?': rename it"):
        read_all(kind(source=str(tmp_path / "in")))


def test_file_name_that_is_not_utf8_without_folders_of_splits(tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.txt": "text", "b\udcffd.txt": "text"})
    with pytest.raises(CorpusError, match=r"name is not UTF-8, 'b\\udcffd\.txt': rename it"):
        Text(source=str(tmp_path / "in")).sources("train")
    for pattern in (".", "**/"):
        with pytest.raises(CorpusError, match=r"pattern is '.*', which no file matches"):
            Text(source=str(tmp_path / "in"), pattern=pattern)


def test_a_pattern_matches_in_any_folder_also_as_a_shell_writes_it(tmp_path: Path) -> None:
    put(tmp_path / "train", {"t.md": "one", "a/u.md": "two", "a/b/v.md": "three", "w.txt": "no"})
    listed = [ids(Text(source=str(tmp_path), pattern=pattern), "train") for pattern in ("*.md", "**/*.md", "**.md")]
    assert listed[0] == listed[1] == listed[2] == ["train/a/b/v.md", "train/a/u.md", "train/t.md"]
    with pytest.raises(
        CorpusError, match=r"pattern is 'a/\*\*/\*.md', where \*\* would stand for one folder: leave it out"
    ):
        Text(source=str(tmp_path), pattern="a/**/*.md")


def test_damaged_metadata(books: Path) -> None:
    (books / "metadata.csv").write_text("7,Seven\nlonely\n")
    with pytest.raises(CorpusError, match=r"metadata\.csv has no title in record 2"):
        Pg19(source=str(books)).sources("train")


@given(st.text(alphabet=st.one_of(st.characters(max_codepoint=127), st.sampled_from(" \t\n\x1c\x85\u2028é"))))
def test_words_are_those_of_str_split(text: str) -> None:
    assert tally(text)[1] == len(text.split())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "SHORT_TEXT", 0)
        patch.setattr(documents, "PIECE", 3)  # words and spaces that cross the pieces' ends
        data = text.encode()
        assert tally(text) == (len(data), len(text.split()), checksum(data)) and checksum(text) == checksum(data)


def test_scan() -> None:
    for text in (" \n\t\u2003", "", b"", b" \n"):
        assert scan(Document("a", "A", text)) == Skipped("a", "empty")
    text = "two wörds"
    scanned = scan(Document("a", "A", text))
    assert scanned == Scanned("a", "A", 10, 2, xxhash.xxh3_64_intdigest(text.encode()))
    assert scan(Document("a", "A", "two wörds".encode())) == scanned
    undecodable = scan(Document("a", "A", b"\xff \xfe\t\n"))
    assert isinstance(undecodable, Scanned) and (undecodable.bytes, undecodable.words) == (5, 2)


@dataclass(frozen=True)
class Mixed:
    """A corpus in memory whose sources give what their place says: a document, something to skip, or both."""

    name: ClassVar[str] = "mixed"
    texts: tuple[tuple[str, str | bytes, int], ...]
    """Id, text, and how many files were left out beside it; a text of "PDF" is no document."""

    def options(self) -> dict[str, Any]:
        return {}

    def sources(self, split: str) -> list[Source]:
        return [Source(name, name, split, len(text), f"place {name}") for name, text, _ in self.texts]

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        texts = {name: (text, left_out) for name, text, left_out in self.texts}
        for source in sources:
            assert source.place == f"place {source.id}"
            text, left_out = texts.get(source.id, ("PDF", 0))
            if left_out:
                yield Skipped(f"{source.id}/x.js", "vendored", left_out)
            yield Skipped(source.id, "PDF only") if text == "PDF" else Document(source.id, source.title, text)


def test_skipped_are_counted_and_documents_read_again() -> None:
    corpus = Mixed((("a", "words", 0), ("b", "PDF", 2), ("c", " ", 0), ("d", "more words", 3), ("e", "PDF", 0)))
    sources = corpus.sources("train")
    group = scan_group(corpus, sources)
    assert group.skipped == {"PDF only": 2, "empty": 1, "vendored": 5}
    scanned = list(ScannedDocuments(sources, group))
    assert [(item.id, item.place) for item in scanned] == [("a", "place a"), ("d", "place d")]
    kept, checksums = [sources[0], sources[3]], [item.xxh3 for item in scanned]
    assert [item.text for item in reread(corpus, kept, checksums)] == ["words", "more words"]
    with pytest.raises(CorpusError, match="document 'd' changed while it was being prepared"):
        list(reread(Mixed((("a", "words", 0), ("d", "other", 0))), kept, checksums))
    with pytest.raises(CorpusError, match="document 'd' went away while it was being prepared"):
        list(reread(Mixed((("a", "words", 0), ("d", "PDF", 0))), kept, checksums))


@pytest.mark.parametrize("kind", [Text, Pg19])
def test_a_file_that_is_gone_since_it_was_listed(books: Path, kind: Any) -> None:
    corpus = kind(source=str(books))
    sources = corpus.sources("validation")
    group = scan_group(corpus, sources)
    shutil.rmtree(books / "validation")
    (books / "validation").mkdir()
    gone = r"validation/\w+\.txt went away while it was being prepared: start again"
    with pytest.raises(CorpusError, match=gone):
        scan_group(corpus, sources)
    with pytest.raises(CorpusError, match=gone):
        list(reread(corpus, sources, group.xxh3.tolist()))


def test_a_corpus_may_say_itself_which_file_is_gone() -> None:
    """The file systems of fsspec raise a FileNotFoundError of the path alone, which has no file's name."""

    class Remote(Mixed):
        def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
            raise FileNotFoundError("bucket/a.txt")

    corpus = Remote((("a", "words", 0),))
    with pytest.raises(CorpusError, match=r"^bucket/a\.txt went away while it was being prepared: start again$"):
        scan_group(corpus, corpus.sources("train"))


def test_bytes_need_the_bytes_tokenizer(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(make_config(tokenizer="sentencepiece-bpe:400"))
    model = make_config().folder / "tokenizer" / "tokenizer.model"
    corpus = Mixed((("a", b"one \xff two", 0),))
    for tokenizer in ("sentencepiece-bpe:400", str(model)):
        with pytest.raises(TokenizerError, match=r"corpus mixed is of bytes, which .*--tokenizer bytes"):
            prepare(make_config(corpus=corpus, tokenizer=tokenizer))
    assert not list(make_config(corpus=corpus).folder.glob("*/*"))
    manifest = prepare(make_config(corpus=corpus, splits=("test",)))["test"]
    assert (manifest.totals.bytes, manifest.totals.tokens, manifest.tokenizer.lossless) == (9, 9, True)
    store = SegmentStore.open(make_config(corpus=corpus).folder / "test")
    assert bytes(store.tokens(0, 0, 9).tolist()) == b"one \xff two"


def test_summary_says_what_was_skipped(make_config, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config(corpus=Mixed((("a", "words", 1200), ("b", "PDF", 0))), splits=("test",)))
    assert "test: skipped 1 PDF only, 1,200 vendored" in capsys.readouterr().out


def test_names_at_the_bounds_keep_their_split() -> None:
    """Their hashes leave 85, 86, 92 and 93."""
    assert [split_of(f"name {i}") for i in (58, 117, 79, 12)] == ["train", "validation", "validation", "test"]


def test_every_blank_that_python_knows_separates_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SHORT_TEXT", 0)
    blanks = "".join(c for c in map(chr, range(0x110000)) if c.isspace())
    assert tally("a" + "a".join(blanks) + "a")[1] == len(blanks) + 1
