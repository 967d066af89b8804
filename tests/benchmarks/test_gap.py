"""The difference of two runs' validation curves, at equal tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gap import CLEARED, gaps, main


def run(folder: Path, bits: dict[int, float], cleared: float | None = None) -> Path:
    folder.mkdir()
    lines = []
    for tokens, value in bits.items():
        metrics = {"train/tokens": float(tokens), "validation/bits_per_token": value}
        if cleared is not None:
            metrics["validation/bits_per_token_states_cleared"] = value + cleared
        lines.append(json.dumps({"step": tokens // 10, "time": 0, "metrics": metrics}) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_runs_are_compared_where_both_have_read_as_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = run(tmp_path / "slide", {100: 3.0, 200: 2.5, 300: 2.0})
    ours = run(tmp_path / "rec", {100: 3.25, 200: 2.25, 400: 1.0}, cleared=0.5)
    assert gaps(ours, base) == {100: 0.25, 200: -0.25}
    assert gaps(ours, base, CLEARED) == {100: 0.75, 200: 0.25}
    assert gaps(base, ours, CLEARED) == {}
    main([str(base), str(ours), "--output", str(tmp_path / "gap.png")])
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")
    told = capsys.readouterr().out
    assert "rec: -0.2500 after 200 tokens" in told and "cleared: +0.2500 after 200" in told


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    base, other = run(tmp_path / "a", {100: 3.0}), run(tmp_path / "b", {150: 3.0})
    with pytest.raises(ValueError, match="have not validated after equally many tokens"):
        gaps(other, base)
    with pytest.raises(ValueError, match="no validation in it"):
        gaps(run(tmp_path / "empty", {}), base)
    with pytest.raises(ValueError, match="name two runs or more"):
        main([str(base)])
