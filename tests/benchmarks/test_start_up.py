"""The start of every command is measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.start_up import WORDS

PIPELINES = Path(__file__).parents[2] / "pipelines"


def test_no_command_is_left_out() -> None:
    assert set(WORDS) == {path.stem for path in PIPELINES.glob("*.py") if "__main__" in path.read_text("utf-8")}
