"""The comparison after the kills, with the curves of the runs that resumed from the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import kills
from benchmarks.killing import Point
from common.errors import UserError

WHOLE: list[Point] = [(step, "train/bits_per_token", 1 / step) for step in range(1, kills.STEPS + 1)]


@pytest.mark.parametrize("spoiled", ["", "twin-2"])
def test_a_twins_curve_is_the_rest_of_the_undisturbed_one(
    spoiled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def curve(run: Path) -> list[Point]:
        own = WHOLE[30:] if run.name.startswith("twin") else WHOLE
        return own[:-1] if run.name == spoiled else own

    (tmp_path / "middle" / "step-00000030").mkdir(parents=True)
    monkeypatch.setattr(kills, "finish", lambda *_: None)
    monkeypatch.setattr(kills, "kill_again_and_again", lambda *_: Counter(save=1))
    monkeypatch.setattr(kills, "final_tensors", lambda *_: {"meta": b""})
    monkeypatch.setattr(kills, "curve", curve)
    monkeypatch.setattr(kills, "mlflow_curve", lambda *_: WHOLE)
    differences, _ = kills.compare([], tmp_path, 1)
    assert differences == ([f"{spoiled}'s curve"] if spoiled else [])


def test_a_model_that_there_is_not_is_named() -> None:
    with pytest.raises(UserError, match="--models names 'rec-fixed': give some of 'rec fixed:skip'"):
        kills.BenchConfig(models=("slide", "rec-fixed"))
