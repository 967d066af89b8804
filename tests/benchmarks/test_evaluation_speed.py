"""What scoring is held against: the FLOPs that it does, not those that it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import evaluation_speed, results
from pipelines.presets import PRESETS
from recur_models import SlideConfig


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS["small-slide"]
    small = SlideConfig(layers=2, d_model=16, heads=2, head_dim=8, mlp_dim=32, window=8, dropout=0.0)
    smaller = replace(preset, model=small, data=replace(preset.data, lanes=2, segment_length=32))
    monkeypatch.setitem(PRESETS, "tiny", smaller)


@pytest.mark.slow
def test_a_step_of_training_has_three_times_the_flops_of_scoring(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation_speed.measure("tiny", 3)
    assert capsys.readouterr().out.split()[-2] == "3.00"


@pytest.mark.parametrize("words", [[], ["--record"]])
def test_the_table_is_recorded_if_that_is_asked_for(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    evaluation_speed.main(["--presets", "tiny", "--rounds", "3", *words])
    printed = capsys.readouterr().out.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == (["evaluation"] if words else [])
    if words:
        [only] = json.loads((tmp_path / "evaluation" / results.JSON).read_text("utf-8"))["records"]
        assert only["command"] == "python -m benchmarks.evaluation_speed --presets tiny --rounds 3"
        assert only["columns"] == list(evaluation_speed.COLUMNS)
        [[name, training, scoring, *shown]] = only["rows"]
        assert f"{name} {training:,} {scoring:,} {' '.join(shown)}" == " ".join(printed.split())
