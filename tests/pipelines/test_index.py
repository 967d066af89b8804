"""The page of all reports."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipelines.reports.files import write_csv
from pipelines.reports.index import refresh_index
from tests.ordinary_user import ordinary_user


class Page(HTMLParser):
    """Its links, its text, and what it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given["href"] or ""] if tag == "a" else []
        self.fetched += [tag] if tag in ("link", "img", "iframe") or "src" in given else []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_it_links_every_report_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "my <runs>"
    evaluation = root / "reports/a-vs-b"
    rows = [
        {"name": "a", "split": "text/test", "bits_per_byte": 2.0},
        {"name": "b & c", "split": "", "bits_per_byte": ""},
    ]
    write_csv(rows, evaluation / "table.csv")
    (evaluation / "cumulative.png").write_bytes(b"")
    write_csv([{"run": "a", "best_bits_per_token": 3.5}], root / "reports/compare-a/comparison.csv")
    (root / "reports/tokens-a").mkdir()  # without a word of any gain
    (root / "reports/tokens-a/tokens.html").write_text("<h1>b &lt; a</h1>\n<p>text/test: 9 tokens</p>")
    write_csv([{"trial": "000"}], root / "sweep/report/trials.csv")
    table = {
        "about": "Table 1",
        "scale": "tiny",
        "seeds": [0],
        "orderings": {"bits": {"holds": [["a", "b"]], "fails": []}},
    }
    (root / "tables/mine").mkdir(parents=True)
    (root / "tables/mine/table.json").write_text(json.dumps(table))
    (root / "tables/mine/continuations").mkdir()
    (root / "tables/mine/continuations/continuations.md").write_text("# Continuations")
    (root / "reports/half").mkdir()
    (root / "reports/half/table.json").write_text("{")  # damaged
    (root / "reports/nothing").mkdir()
    path = refresh_index(evaluation)
    assert path == root / "reports/index.html" == refresh_index(root / "tables/mine")
    assert path
    page, text = Page(path), " ".join(Page(path).text)
    assert not page.fetched and all((path.parent / unquote(link)).is_file() for link in page.links)
    for said in (
        "Reports in my <runs>",
        "7 reports, the newest first",
        "text/test: a 2.0000 bits per byte",
        "text/test: b < a",
        "a 3.5000 best bits per token",
        "1 trial",
    ):
        assert said in text, said
    assert "1 of 1 pairs in the paper's order" in text and "cannot be read" in text
    assert "../tables/mine/continuations/continuations.md" in page.links
    assert page.links.count("a-vs-b/cumulative.png") == 2 and "../sweep/report/trials.csv" in page.links


@pytest.mark.parametrize("place", ["elsewhere/a-vs-b", "a"])
def test_a_report_that_lies_elsewhere_has_none(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    assert refresh_index(tmp_path / place) is None and not list(tmp_path.rglob("*.html"))


def test_a_folder_that_another_user_has_closed_is_left_out(reachable: Path) -> None:
    for name in ("mine", "theirs"):
        folder = reachable / "reports" / name
        folder.mkdir(parents=True)
        (folder / "table.csv").write_text("name,split,bits_per_byte\nmine,text/test,1.5\n")
    (reachable / "reports").chmod(0o777)
    (reachable / "reports" / "theirs").chmod(0o700)
    with ordinary_user():
        path = refresh_index(reachable / "reports" / "mine")
    assert path is not None
    assert "mine/table.csv" in path.read_text() and "theirs" not in path.read_text()


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / os.fsdecode(b"b\xff")
    folder.mkdir(parents=True)
    (folder / "table.csv").write_text("name,split,bits_per_byte\nmine,text/test,1.5\n")
    path = refresh_index(folder)
    assert path is not None
    page = path.read_text()
    assert 'href="b%FF/table.csv"' in page and ">b?</a>" in page
