"""A trial's loop, which waits at each figure for its driver's word. In this process, without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.checkpoints.run_place import RunPlace
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.sweeps.trial import TrialLoop
from pipelines.terminal import cli
from tests.small_runs import TINY

METRIC, CPU = "validation/bits_per_token", torch.device("cpu")


@pytest.fixture
def config(store: Path, tmp_path: Path) -> TrainConfig:
    words = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", "trial", "--checkpoint.every", "20"]
    return cli.parse_preset(PRESETS, [*TINY, *words], "").located()


def wait(loop: TrialLoop) -> dict[str, Any]:
    result = loop.result(60)
    assert result is not None
    return result


def test_it_stands_still_at_a_figure_and_saves_there(config: TrainConfig) -> None:
    loop = TrialLoop(config, METRIC, CPU)
    loop.go_on()  # nothing has been told yet: this releases nothing
    first = wait(loop)
    assert first["step"] == 10 and first["figures"] == [(10, first[METRIC])] and "done" not in first
    assert loop.result(0.3) is None and RunPlace.of(config).newest_step() == 0
    loop.leave()
    assert RunPlace.of(config).newest_step() == 10

    loop = TrialLoop(config, METRIC, CPU)  # goes on, and tells again what its driver may have missed
    assert wait(loop)["figures"] == first["figures"]
    loop.go_on()
    assert wait(loop)["step"] == 20
    loop.go_on()
    assert wait(loop) == {"figures": [], "outcome": "finished", "said": "", "done": True}
    assert RunPlace.of(config).newest_step() == 20


def test_a_users_error_is_a_result_and_any_other_is_raised(config: TrainConfig, tmp_path: Path) -> None:
    missing = replace(config, data=replace(config.data, store=str(tmp_path / "nowhere")))
    said = wait(TrialLoop(missing, METRIC, CPU))
    assert said["outcome"] == "failed" and "nowhere" in said["said"] and said["done"]
    (RunPlace.of(config).folder / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        wait(TrialLoop(config, METRIC, CPU))
