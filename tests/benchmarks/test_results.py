"""Measurements are recorded with their source, none is lost, and the pages in the tree are those of their JSON."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from common.errors import UserError
from pipelines.tracking import commit


def read(folder: Path, study: str) -> Any:
    return json.loads((folder / study / results.JSON).read_text("utf-8"))["records"]


def test_a_table_is_recorded_with_where_it_comes_from_and_its_page(tmp_path: Path) -> None:
    recorder = results.Recorder(
        "speed", "benchmarks.pipeline_cost", ["--pairs", "3", "--record"], True, folder=tmp_path
    )
    pairs = [("pair 1", 1.1), ("pair 2", 0.9), ("median", 1.0)]
    recorder.table("Cost of the pipeline", ("pair", "ratio"), pairs, fingerprint="f1e793b3047c")
    (only,) = read(tmp_path, "speed")
    assert only["columns"] == ["pair", "ratio"]
    assert only["rows"] == [["pair 1", 1.1], ["pair 2", 0.9], ["median", 1.0]]
    assert only["command"] == "python -m benchmarks.pipeline_cost --pairs 3"
    assert only["fingerprint"] == "f1e793b3047c"
    assert re.fullmatch(r"\d+ × \S.*", only["machine"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", only["date"])
    page = (tmp_path / "speed" / results.PAGE).read_text("utf-8")
    assert "## Cost of the pipeline" in page
    assert "| pair 2 | 0.9 |" in page
    assert "    python -m benchmarks.pipeline_cost --pairs 3\n" in page
    assert [path.name for path in sorted((tmp_path / "speed").iterdir())] == [results.PAGE, results.JSON]


def test_the_commit_of_an_edited_tree_is_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    for name in ("pipelines/__init__.py", "results/page.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(commit, "PACKAGE_ROOT", tmp_path / "pipelines")
    clean = commit.git_commit("results", digits=7)
    (tmp_path / "results/page.md").write_text("a record")
    assert commit.git_commit("results", digits=7) == clean and re.fullmatch("[0-9a-f]{7}", clean)
    (tmp_path / "pipelines/__init__.py").write_text("after")
    assert commit.git_commit("results", digits=7) == f"{clean}-dirty"


def test_repeating_its_command_replaces_it(tmp_path: Path) -> None:
    for words, seconds in (([], 0.25), ([], 0.5), (["--restore-vocab", "300"], 0.75)):
        recorder = results.Recorder("reliability", "benchmarks.checkpoint_cost", words, True, folder=tmp_path)
        recorder.table("Restore", ("s to restore",), [(seconds,)])
    assert [each["rows"] for each in read(tmp_path, "reliability")] == [[[0.5]], [[0.75]]]
    page = (tmp_path / "reliability" / results.PAGE).read_text("utf-8")
    assert page.count("## Restore") == 1
    assert "| s to restore |\n| --- |\n| 0.5 |" in page


@pytest.mark.parametrize("study", [{"title": "A", "records": [{"name": "B", "rowz": []}]}, {"records": []}, []])
def test_a_file_that_is_no_study_is_named_and_kept(tmp_path: Path, study: object) -> None:
    path = tmp_path / "speed" / results.JSON
    path.parent.mkdir()
    path.write_text(json.dumps(study))
    with pytest.raises(UserError, match=r"speed/results\.json is no study"):
        results.record("speed", "B", command="true", folder=tmp_path)
    assert json.loads(path.read_text()) == study


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/speed cannot be written"):
        results.record("speed", "B", command="true", folder=tmp_path / "file")


@pytest.mark.parametrize("wrong", [{"columns": ("a", "")}, {"columns": ("a", "b"), "rows": [("1",)]}])
def test_a_table_needs_a_heading_and_a_cell_for_every_column(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="B: every"):
        results.Record(name="B", **wrong)


def test_a_page_that_is_out_of_date_is_found_and_rendered(tmp_path: Path) -> None:
    results.record("speed", "B", command="true", folder=tmp_path)
    page = tmp_path / "speed" / results.PAGE
    current = page.read_text("utf-8")
    page.write_text("changed by hand")
    with pytest.raises(UserError, match=r"out of date: .*speed/index\.md"):
        results.main(["--folder", str(tmp_path), "--check"])
    results.main(["--folder", str(tmp_path)])
    assert page.read_text("utf-8") == current
    results.main(["--folder", str(tmp_path), "--check"])


def test_the_pages_in_the_tree_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    results.main(["--check"])
    assert "current" in capsys.readouterr().out


MODELS = {"lstm": ["lstm at 2e-3", "lstm"], "transformer-xl": ["xl"]}
SUMMARY = {
    "name": "All",
    "columns": [
        {"heading": "S3", "study": "a", "record": "S3", "column": "wrong, %", "best": "least"},
        {"heading": "names", "record": "Names", "column": "10", "best": "most"},
    ],
}


def add_summary(path: Path, old: str = "All", new: str = "All") -> None:
    """Add SUMMARY to a study's file, with one text in it replaced."""
    added = json.dumps({"models": MODELS, "summaries": [SUMMARY]}).replace(old, new)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **json.loads(added)}), "utf-8")


def test_the_cells_of_a_summary_are_those_of_the_records(tmp_path: Path) -> None:
    results.record(
        "a",
        "S3",
        columns=("model", "wrong, %"),
        rows=[("lstm", "**0.0**, 0.3"), ("xl", 68.8)],
        command="true",
        folder=tmp_path,
    )
    results.record(
        "b", "Names", columns=("model", "10"), rows=[("lstm at 2e-3", "7 (12)")], command="true", folder=tmp_path
    )
    path = tmp_path / "b" / results.JSON
    add_summary(path)
    study = results.read(path)
    page = results.render(study, tmp_path)
    assert (
        "| model | S3 | names |\n| --- | --- | --- |\n| lstm | **0.0**, 0.3 | **7** |\n| transformer-xl | 68.8 | – |"
        in page
    )
    path.write_text(results.dump(study), "utf-8")
    assert results.read(path) == study
    results.record("b", "More", command="true", folder=tmp_path)
    assert "## All\n" in (tmp_path / "b" / results.PAGE).read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("Names", "names", "no record is named 'names'"),
        ('"10"', '"24"', "the record 'Names' has no column '24'"),
        ("lstm at 2e-3", "gru", "the record 'Names' has none of the models"),
        ("most", "highest", "best is 'highest', where it must be one of least, most"),
    ],
)
def test_a_summary_that_names_nothing_is_an_error(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    results.record("a", "S3", columns=("model", "wrong, %"), rows=[("lstm", 0.0)], command="true", folder=tmp_path)
    results.record("b", "Names", columns=("model", "10"), rows=[("lstm at 2e-3", 7)], command="true", folder=tmp_path)
    path = tmp_path / "b" / results.JSON
    add_summary(path, old, new)
    with pytest.raises(UserError, match=re.escape(complaint)):
        results.main(["--folder", str(tmp_path)])
