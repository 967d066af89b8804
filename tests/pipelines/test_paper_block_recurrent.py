"""The block-recurrent paper's tables: which splits and texts its numbers come from, and what is said beside them."""

from __future__ import annotations

import re

import pytest

from pipelines import paper
from pipelines.papers import PAPERS
from tests.shared_data import need

TABLES = PAPERS["block-recurrent"]


def test_a_corpus_is_scored_on_the_split_that_appendix_c_names() -> None:
    expected = {"PG19 bytes": "test", "PG19 tokens": "test", "arXiv": "test", "GitHub": "validation"}
    assert {column.of: column.split for column in TABLES["table-1"].columns if column.of} == expected


def test_appendix_c_reports_test_for_pg19_and_arxiv_and_validation_for_github() -> None:
    text = need("..", "papers", "block-recurrent-transformers.txt").read_text()
    details = text[text.index("## Appendix C Training Details") : text.index("### C.1 Dataset")]
    assert re.findall(r"Reported results are for the \W(\w+)\W split", details) == ["test", "test", "validation"]


def test_the_step_time_needs_no_other_split_than_the_numbers_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("step time", "GitHub")
    config = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",), columns=columns)
    monkeypatch.setattr(type(config.plan().place), "is_prepared", lambda self, data: True)
    assert {column.split for _, column, _, _ in config.plan().cells()} == {"validation"}
    both = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",))
    scored = {(run.data.corpus, column.split) for _, column, run, _ in both.plan().cells()}
    assert scored == {("pg19", "test"), ("arxiv", "test"), ("python-source", "validation")}
    asked = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",), split="test")
    assert {column.split for _, column, _, _ in asked.plan().cells()} == {"test"}
