"""Byte-order marks, encodings and line ends in every corpus that reads text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.corpora import latex
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.parquet import Parquet
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.python_source import PythonSource
from data_prep.corpora.tex_encoding import decoded
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import Corpus, CorpusError
from tests.small_archives import packed, put, read_all

MAIN = "\\documentclass{article}\n%s\\begin{document}\n%s\n\\end{document}\n"
MARKS = {
    "utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE,
}  # fmt: skip
FILES: dict[str, tuple[str, Callable[[str], Corpus], str]] = {
    "text": ("a.txt", lambda root: Text(source=root), "%s"),
    "pg19": ("train/1.txt", lambda root: Pg19(source=root), "%s"),
    "github": ("repo/a.py", lambda root: GitHub(source=root), "# file: repo/a.py\n%s\n"),
    "arxiv": ("paper/a.tex", lambda root: Arxiv(source=root), "%% file: a.tex\n%s\n"),
}
"""A corpus's file of text, the corpus, and the document around the file's text."""


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("corpus", FILES)
def test_a_mark_says_the_encoding_and_is_no_text(tmp_path: Path, corpus: str, encoding: str) -> None:
    name, make, around = FILES[corpus]
    text = "naïve \U0001d4d0\r\n# Ω\n"
    put(tmp_path, {name: MARKS[encoding] + text.encode(encoding)})
    texts, skipped = read_all(make(str(tmp_path)))
    assert list(texts.values()) == [around % text] and skipped == {}


def test_a_mark_in_wikitext_and_in_tables(tmp_path: Path) -> None:
    wiki = " = A = \n \n text \n \n = B = \n \n more \n"
    put(tmp_path / "wiki", {"wiki.test.raw": codecs.BOM_UTF8 + wiki.encode()})
    corpus = WikiText(source=str(tmp_path / "wiki"))
    assert "".join(map(str, read_all(corpus)[0].values())) == wiki and len(corpus.sources("test")) == 2
    put(tmp_path / "json", {"test.jsonl": json.dumps({"text": "\ufeffone"}) + "\n"})
    assert list(read_all(JsonLines(source=str(tmp_path / "json")))[0].values()) == ["one"]
    for kind in (pa.string(), pa.binary()):
        cells = ["\ufeffone".encode(), "tw\ufeffo".encode()]
        pq.write_table(pa.table({"text": pa.array(cells, pa.binary()).cast(kind)}), tmp_path / "test.parquet")
        assert list(read_all(Parquet(source=str(tmp_path / "test.parquet")))[0].values()) == ["one", "tw\ufeffo"]


def test_a_wrong_mark_is_named(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": codecs.BOM_UTF16_LE + b"a\0\0\xd8"})
    with pytest.raises(CorpusError, match=r"a\.txt is not UTF-16-LE: byte 0x00 at offset 4 \(unexpected end of data\)"):
        read_all(Text(source=str(tmp_path)))
    put(tmp_path, {"a.txt": codecs.BOM_UTF8 + b"good \xe9"})
    with pytest.raises(CorpusError, match=r"a\.txt is not UTF-8: byte 0xe9 at offset 8 \(unexpected end of data\)"):
        read_all(Text(source=str(tmp_path)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["A book.\n", "Война и мир\n"])
def test_a_wide_encoding_without_a_mark_is_refused(tmp_path: Path, text: str, encoding: str) -> None:
    """Its bytes are valid UTF-8, so nothing else would notice."""
    json_line = f'{{"text": "{text}"}}'
    put(tmp_path, {"text/a.txt": text.encode(encoding), "json/a.jsonl": json_line.encode(encoding)})
    put(tmp_path, {"python/a.py": f"x = 1\n# {text}".encode(encoding)})
    for name, corpus in (("text/a.txt", Text), ("json/a.jsonl", JsonLines), ("python/a.py", PythonSource)):
        with pytest.raises(CorpusError, match=rf"{name} is not UTF-8 but full of NUL bytes, as UTF-16 without a"):
            read_all(corpus(source=str(tmp_path / name.partition("/")[0])))


@pytest.mark.parametrize("text", ["one page\0 and the next page", "a short text\0"])
def test_a_stray_nul_is_text(tmp_path: Path, text: str) -> None:
    put(tmp_path, {"a.txt": text})
    assert list(read_all(Text(source=str(tmp_path)))[0].values()) == [text]


@pytest.mark.parametrize(
    "wrap", [lambda files: {"paper.gz": packed(files)}, lambda files: {f"paper/{n}": d for n, d in files.items()}]
)
def test_binary_members_of_a_paper_are_counted(tmp_path: Path, wrap: Callable) -> None:
    files = {
        "ms.tex": codecs.BOM_UTF16_BE + (MAIN % ("", "é \\input{b}")).encode("utf-16-be"),
        "b.tex": b"b",
        "._ms.tex": b"\0\5\x16\7\0\2\0\0Mac OS X", "__MACOSX/b.tex": b"\0\5\x16\7", "sub/.ipynb_checkpoints/b.tex": b"b",
        "unmarked.tex": "no mark".encode("utf-16-le"), "fig.tex": b"\x89PNG\r\n\x1a\n\1\2\3\4\5\6", "zip.tex": b"PK\3\4abc",
        "dos.tex": b"dos \x1a",
    }  # fmt: skip
    put(tmp_path, wrap(files))
    texts, skipped = read_all(Arxiv(source=str(tmp_path)))
    main = MAIN % ("", "é \\input{b}")
    assert list(texts.values()) == [f"% file: ms.tex\n{main}\n% file: b.tex\nb\n% file: dos.tex\ndos \x1a\n"]
    assert skipped == {"hidden": 3, "binary": 3}


@pytest.mark.parametrize(
    ("option", "codec"),
    [
        ("latin2", "iso8859-2"), ("utf8, latin2", "iso8859-2"), ("applemac", "mac_roman"), ("cp1252", "cp1252"),
        ("ansinew", "cp1252"), ("latin9", "iso8859-15"), ("koi8-r", "koi8-r"), ("cp1251", "cp1251"), ("cp850", "cp850"),
        ("nonesuch", "cp1252"), ("utf8", "cp1252"),
    ],
)  # fmt: skip
def test_a_papers_input_encoding(tmp_path: Path, option: str, codec: str) -> None:
    text = {
        "koi8-r": "Привет",
        "cp1251": "Привет",
        "cp1252": "œuvre – café",
        "iso8859-15": "œuvre €",
        "iso8859-2": "łódź",
    }.get(codec, "Öl")
    main = MAIN % (f"\\usepackage[T1]{{fontenc}}\\usepackage[{option}]{{inputenc}}\n", "\\input{b}")
    put(tmp_path, {"paper.gz": packed({"ms.tex": main.encode(), "b.tex": text.encode(codec), "c.tex": "łЖ".encode()})})
    [found] = read_all(Arxiv(source=str(tmp_path)))[0].values()
    assert found == f"% file: ms.tex\n{main}\n% file: b.tex\n{text}\n% file: c.tex\nłЖ\n"


def test_which_declaration_counts() -> None:
    said = b"% \\usepackage[latin2]{inputenc}\r\\usepackage[applemac]{inputenc}\r" + "é".encode("mac_roman")
    assert decoded({"a": said})["a"].endswith("é")  # not that in a comment
    own = b"\\inputencoding{latin2}\n\xb3"
    assert decoded({"a": said, "b": own, "c": b"\x8e"}) | {"a": ""} == {
        "a": "",
        "b": "\\inputencoding{latin2}\nł",
        "c": "é",
    }
    assert decoded({"a": b"\x93quoted\x94"}) == {"a": "“quoted”"}  # Windows-1252, not control characters
    assert decoded({"a": b"\x81 caf\xe9"}) == {"a": "\x81 café"}  # no code of Windows-1252
    assert decoded({"a": b"\\usepackage[" * 20_000 + b"\xff"})["a"].endswith("ÿ")


def test_a_comment_ends_at_a_lone_cr() -> None:
    main = "\\documentclass{article} % comment\r\\begin{document}\r% \\input{no}\r\\input{yes}\r\\end{document}\r"
    files = {"ms.tex": main, "a.tex": "\\documentclass{article}\\begin{document}", "no.tex": "", "yes.tex": ""}
    assert latex.order(files) == ["ms.tex", "yes.tex", "a.tex", "no.tex"]


def test_lone_cr_in_source_files(tmp_path: Path) -> None:
    lines = "x = 1\r" * 500
    put(tmp_path, {"repo/mac.py": lines, "repo/one.py": "x = 1;" * 500, "repo/crlf.py": ("y" * 1500 + "\r\n") * 2})
    texts, skipped = read_all(GitHub(source=str(tmp_path)))
    assert texts == {"repo": f"# file: repo/mac.py\n{lines}\n"} and skipped == {"minified": 2}
    odd = "# a comment\rx = 1\r# coding: latin-1 says nothing in line 3\r"
    put(tmp_path / "py", {"a.py": b"# coding: latin-1\r" + b"x = '\xe9'\r", "b.py": f"{odd}y = 'é'\r"})
    assert read_all(PythonSource(source=str(tmp_path / "py")))[0] == {
        "a": "# file: a.py\n# coding: latin-1\rx = 'é'\r\n", "b": f"# file: b.py\n{odd}y = 'é'\r\n",
    }  # fmt: skip


def test_pg19_lines_are_made_lf(tmp_path: Path) -> None:
    put(tmp_path, {"train/1.txt": b"one\r\ntwo\rthree\n"})
    assert read_all(Pg19(source=str(tmp_path), newline="normalize"))[0] == {"1": "one\ntwo\nthree\n"}
    assert read_all(Pg19(source=str(tmp_path)))[0] == {"1": "one\r\ntwo\rthree\n"}
