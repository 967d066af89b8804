"""The rows of the papers' tables: their numbers are the papers', and each row can be built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.presets import PRESETS
from studies import paper
from studies.papers import PAPERS
from tests.shared_data import need

ALL = [(name, table) for name, tables in PAPERS.items() for table in tables]


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize(("name", "table"), ALL)
def test_every_row_builds_and_has_a_cost(
    name: str, table: str, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path), "--dry-run", "--flop-rate", "1e11"]
    assert paper.main([name, table, "--scale", scale, *where]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    count = int(re.match(r"(\d+) of \1 trainings to do, ", last)[1])  # pyrefly: ignore
    shown = [row for row in rows if row.endswith((" s", "min"))]
    assert len(shown) == count > 0 and not list(tmp_path.iterdir())
    keys = {column.of for column in PAPERS[name][table].columns} - {""}
    labels = [row.label for row in PAPERS[name][table].rows if row.runs.get(scale)]
    assert all(row.startswith(tuple(labels)) for row in shown)
    for row in PAPERS[name][table].rows:
        assert {run.preset for runs in row.runs.values() for run in runs.values()} <= PRESETS.keys(), row.label
        assert not keys or set(row.runs.get(scale, {})) <= keys, row.label
        assert row.runs or row.paper, row.label


def test_seeds_whose_rate_is_not_chosen_yet_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "today",
        "table-1",
        "--columns",
        "parity",
        "--only",
        "mlstm",
        "--root",
        str(tmp_path),
        "--flop-rate",
        "1e11",
    ]
    assert paper.main([*words, "--rates", "2e-3", "4e-3", "--seeds", "0", "1", "--dry-run"]) == 0
    sentence = "the other seeds train at the rate that is best with seed 0; until it is known, the table has 0.002"
    assert sentence in capsys.readouterr().out
    assert paper.main([*words, "--rates", "2e-3", "--seeds", "0", "1", "--dry-run"]) == 0
    assert "until it is known" not in capsys.readouterr().out


def numbers(paper: str, marker: str, until: str, label: str, count: int) -> list[float]:
    """So many numbers that follow a label, between two places of a paper's text."""
    text = need("..", "papers", f"{paper}.txt").read_text()
    part = text[text.index(marker) :]
    part = re.sub(r"<[^>]*>|\\pm 0.01|\\times 10\^8|\[\d+\]", " ", part[: part.index(until)])
    after = part[part.index(label) + len(label) :]
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w.:])\d[\d,]*(?:\.\d+)?(?![\w:])", after)][
        :count
    ]


@pytest.mark.parametrize(
    "label", ["XL:1024", "Rec:lstm:single", "Rec:fixed:skip", "Feedback:lstm:single", "Memorizing Trans. 64k"]
)
def test_block_recurrents_table_1_is_the_papers(label: str) -> None:
    (row,) = [row for row in PAPERS["block-recurrent"]["table-1"].rows if row.label == label]
    found = numbers("block-recurrent-transformers", "Table 1: Average", "4.2 Benefit", label, 7)
    lengths = (
        2 if label.startswith(("XL", "Rec:lstm:dual", "Feedback:lstm", "Mem")) else 0
    )  # cells that span rows stand once
    assert found[lengths : lengths + len(row.paper)] == list(row.paper.values())


def test_a_number_of_reddit_is_of_the_model_that_has_it_in_table_2() -> None:
    tables = PAPERS["staircase"]
    of = {row.paper["test ppl"]: row.runs["paper"][""] for row in tables["table-2"].rows}
    for row in (*tables["table-1"].rows[1:], *tables["figure-2"].rows):
        assert row.runs["paper"]["Reddit"] == of[row.paper["Reddit"]], row.label
    assert [row.x for row in tables["figure-2"].rows] == [0, 1, 1, 2, 4, 8]


def test_the_other_numbers_are_the_papers() -> None:
    text = "block-recurrent-transformers"
    tables = PAPERS["block-recurrent"]
    for label in ("Rec:fixed:skip", "XL:512:13-layer"):
        ours = [row.paper["bits per token"] for row in tables["table-4"].rows if row.label.startswith(label)]
        assert numbers(text, "Table 4: Bits", "Performance on large", label, 6) == ours
    small = numbers(text, "Table 3: Changing", "Appendix E", "Number of states", 25)
    ours = {row.label: row.paper["bits per token"] for row in tables["table-3"].rows}
    assert small[:4] == [128, ours["Rec:fixed:skip, window 128"], ours["Slide:12L, window 128"], 128]
    assert small[-2:] == [2048, ours["Rec:fixed:skip, 2048 states"]]
    (vocabulary,) = [row for row in tables["table-5"].rows if row.label == "SPM 512"]
    assert numbers(text, "Table 5: Test", "Figure 7", "512", 4) == list(vocabulary.paper.values())
    gpt2 = [row.paper for row in PAPERS["gpt2"]["table-2"].rows]
    first = "adding-recurrence-to-pretrained-transformers"
    ours = [list(row.values()) for row in gpt2]
    found = numbers(first, "300 token window\t0\t172.25", "Table 2", "300 token window", 36)
    assert found[:4] == [0, *ours[0][:2], ours[0][2] / 1e8] and found[-4:] == [200, *ours[8][:2], ours[8][2] / 1e8]
    found = numbers(first, "300 token window\t0\t172.25", "Table 2", "(Ours)", 20)
    assert found[-4:] == [50, *ours[-1][:2], ours[-1][2] / 1e8]
    for label, row in (("Transformer-XL 9", 0), ("Staircase\t117M\t8\t256\t32", 8)):
        values = PAPERS["staircase"]["table-2"].rows[row].paper
        found = numbers("staircase-attention", "Table 2: **Detailed", "baseline performs poorly", label, 3)
        assert found == [values["validation ppl"], values["test ppl"], values["batch time, ms"]]
