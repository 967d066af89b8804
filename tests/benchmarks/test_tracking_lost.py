"""What is lost shows in the exit status."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import tracking_lost


@pytest.mark.parametrize(("whole", "status"), [(True, 0), (False, 1)])
def test_a_lost_metric_is_status_1(whole: bool, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_lost, "serve", lambda _: nullcontext())
    monkeypatch.setattr(tracking_lost, "silence", lambda *_: whole)
    assert tracking_lost.main(["--runs", "0"]) == status


def test_a_run_that_is_not_whole_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    config = tracking_lost.BenchConfig(runs=2)
    assert tracking_lost.tell("sqlite", 2, config, 1, "") and not tracking_lost.tell("sqlite", 1, config, 1, "")
    assert "1 of 2 runs" in capsys.readouterr().out


def test_a_process_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracking_lost, "LOGS", "import sys; sys.exit('no room' if sys.argv[2] == 'run-1' else 0)")
    with pytest.raises(RuntimeError, match=r"1 of 2 processes failed, with statuses \[1\]: no room"):
        tracking_lost.crowd(tmp_path, "", 2, 1)
