"""Which files of an arXiv paper are its text: main files by other names, named inputs, and what its 00README says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.corpora import arxiv_readme
from data_prep.corpora.arxiv import Arxiv
from data_prep.corpora.arxiv_readme import Directives
from data_prep.documents import SPLITS, sources_of
from tests.small_archives import packed, put, read_all

WHOLE = "\\documentclass{article}\\begin{document}%s\\end{document}"
WRAPS = {
    "packed": lambda files: {"paper.gz": packed({name: data.encode() for name, data in files.items()})},
    "folder": lambda files: {f"paper/{name}": data for name, data in files.items()},
}


@pytest.fixture(params=WRAPS)
def names(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[dict[str, str]], tuple[list[str], dict[str, int]]]:
    """The files in a paper's text, in order, and what was left out."""

    def read(files: dict[str, str]) -> tuple[list[str], dict[str, int]]:
        put(tmp_path, WRAPS[request.param](files))
        texts, skipped = read_all(Arxiv(source=str(tmp_path)))
        return re.findall("^% file: (.*)$", "".join(map(str, texts.values())), re.MULTILINE), skipped

    return read


def test_a_main_file_named_txt(names: Callable) -> None:
    main = {
        "main.txt": WHOLE % "\\input{sec}",
        "notes.txt": "no TeX, of \\begin{document} a mention",
        "data.txt": "1 2 3\n" * 9,
    }
    assert names({**main, "sec.tex": "section"}) == (["main.txt", "sec.tex"], {})


def test_a_txt_beside_a_main_file_is_none(names: Callable) -> None:
    assert names({"ms.tex": WHOLE % "", "old.txt": WHOLE % "old"}) == (["ms.tex"], {})


def test_a_paper_of_txt_alone(names: Callable) -> None:
    assert names({"paper.txt": WHOLE % "", "README.txt": "words"}) == (["paper.txt"], {})


def test_inputs_with_another_ending(names: Callable) -> None:
    files = {
        "ms.tex": WHOLE % "\\input{ms.bbl}\\input{tab/one.txt} % \\input{no.bbl}\n\\input{figure.pstex_t}\\input{gone.bbl}",
        "ms.bbl": "\\input{deep.def}", "deep.def": "def", "no.bbl": "no", "tab/one.txt": "table", "figure.pstex_t": "picture",
        "fig.eps": "%!PS", "other.sty": "style",
    }  # fmt: skip
    assert names(files) == (["ms.tex", "ms.bbl", "deep.def", "tab/one.txt", "figure.pstex_t"], {})


def test_inputs_that_are_binary(names: Callable) -> None:
    assert names({"ms.tex": WHOLE % "\\input{a.bin}", "a.bin": "\0\1\2"}) == (["ms.tex"], {"binary": 1})


README = {
    "00README.XXX": "z.tex toplevelfile\nold.tex ignore\nfig.ps landscape\nnostamp\n",
    "00readme.xxx": "z.tex\ttoplevelfile\r\nold.tex  ignore\r\n",
    "00README": "z.tex toplevelfile\rold.tex ignore\r",
    "00README.json": json.dumps(
        {
            "process": {"compiler": "pdflatex"},
            "sources": [{"filename": "z.tex", "usage": "toplevel"}, {"filename": "old.tex", "usage": "ignore"}],
        }
    ),
    "00README.yaml": "process:\n  compiler: pdflatex\nsources:\n  - filename: ./z.tex\n    usage: toplevel\n"
    "  - {filename: old.tex, usage: ignore}\n",
    "00README.yml": "sources: [{filename: z.tex, usage: toplevel}, {filename: old.tex, usage: ignore}]",
}


@pytest.mark.parametrize("readme", README)
def test_what_a_readme_says(names: Callable, readme: str) -> None:
    files = {
        "a.tex": WHOLE % ("long " * 99),
        "z.tex": WHOLE % "\\input{b}",
        "b.tex": "b",
        "old.tex": WHOLE % ("older " * 999),
    }
    assert names(files) == (["old.tex", "a.tex", "b.tex", "z.tex"], {})
    assert names({**files, readme: README[readme]}) == (["z.tex", "b.tex", "a.tex"], {"ignored by 00README": 1})


def test_several_main_files_and_one_of_another_ending(names: Callable) -> None:
    files = {"a.tex": WHOLE % "", "s.src": WHOLE % "\\input{b}", "b.tex": "b", "c.tex": WHOLE % ("long " * 99)}
    files["00README.json"] = json.dumps(
        {"sources": [{"filename": f, "usage": "toplevel"} for f in ("s.src", "a.tex", "gone.tex")]}
    )
    assert names(files) == (["s.src", "b.tex", "a.tex", "c.tex"], {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("00README.json", "{"), ("00README.json", "[1]"), ("00README.json", '{"sources": [3]}'),
        ("00README.json", '{"sources": [{"usage": "toplevel"}]}'), ("00README.yaml", "a: [b"), ("00README.yaml", "- x"),
        ("00README.yaml", "[" * 9000), ("00README.XXX", "x" * (1 << 17)), ("00README.yaml", "a: &a {}\nb: {<<: [*a, *a]}"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_damaged_readme_is_counted(names: Callable, name: str, text: str) -> None:
    assert names({"ms.tex": WHOLE % "", name: text}) == (["ms.tex"], {"damaged 00README": 1})


def test_a_readme_without_sources() -> None:
    for name, text in (
        ("00README.json", '{"spec_version": 1, "sources": null}'),
        ("00README.XXX", "nohypertex\n\n"),
        ("00README.json", "{}"),
    ):
        assert arxiv_readme.read(name, text.encode()) == Directives()


def test_papers_of_txt_alone_have_a_size(tmp_path: Path) -> None:
    """A source of no bytes would count as empty where a small corpus is split."""
    put(tmp_path, {f"p{i}/paper.txt": WHOLE % "" for i in range(3)})
    assert all(
        source.bytes == len(WHOLE % "") for split in SPLITS for source in Arxiv(source=str(tmp_path)).sources(split)
    )
    assert {
        split: len(found) for split, found in sources_of(Arxiv(source=str(tmp_path)), SPLITS).items()
    } == dict.fromkeys(SPLITS, 1)
