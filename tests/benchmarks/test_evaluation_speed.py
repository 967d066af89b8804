"""What scoring is held against: the FLOPs that it does, not those that it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import evaluation_speed
from pipelines.presets import PRESETS
from recur_models import SlideConfig


@pytest.mark.slow
def test_a_step_of_training_has_three_times_the_flops_of_scoring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = PRESETS["small-slide"]
    small = SlideConfig(layers=2, d_model=16, heads=2, head_dim=8, mlp_dim=32, window=8, dropout=0.0)
    tiny = replace(preset, model=small, data=replace(preset.data, lanes=2, segment_length=32))
    monkeypatch.setattr(evaluation_speed, "PRESETS", {"tiny": tiny})
    evaluation_speed.measure("tiny", 3)
    assert capsys.readouterr().out.split()[-2] == "3.00"
