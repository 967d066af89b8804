"""A trial's loop, which waits at each metric for its driver's word, and how a trial ends by its error. Without a Ray session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import UserError
from common.uris import PlaceError
from data_prep.manifest import MissingSplit, StoreError
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError
from pipelines.config.dotted import with_fields
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.sweeps.trial_loop import TrialLoop, known_metrics, outcome_of
from pipelines.terminal import cli
from pipelines.training.world import World
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


def test_it_stands_still_at_a_metric_and_saves_there(config: TrainConfig) -> None:
    loop = TrialLoop(config, METRIC, CPU)
    loop.go_on()  # nothing has been reported yet: this releases nothing
    first = wait(loop)
    assert [step for step, _ in first["metrics"]] == [10] and "done" not in first
    assert loop.result(0.3) is None and RunFolder.of(config).newest_step() == 0
    loop.leave()
    assert RunFolder.of(config).newest_step() == 10

    assert known_metrics(config, METRIC) == first["metrics"]  # which the actor reports again, without training
    loop = TrialLoop(config, METRIC, CPU, after=10)
    last = wait(loop)
    assert [step for step, _ in last.pop("metrics")] == [20]
    assert last == {"outcome": "finished", "reason": "", "done": True}
    assert RunFolder.of(config).newest_step() == 20


def test_a_users_error_is_a_result_and_any_other_is_raised(config: TrainConfig, tmp_path: Path) -> None:
    missing = replace(config, data=replace(config.data, store=str(tmp_path / "nowhere")))
    ended = wait(TrialLoop(missing, METRIC, CPU))
    assert ended["outcome"] == "retryable" and "nowhere" in ended["reason"] and ended["done"]
    (RunFolder.of(config).folder / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        wait(TrialLoop(config, METRIC, CPU))


def test_a_trial_fails_for_a_users_error_alone(config: TrainConfig, tmp_path: Path) -> None:
    """Whatever else ends it is raised: the sweep starts it again."""
    from pipelines.sweeps.trial import train_trial  # imports Ray

    diverging = with_fields(config, {"run": "diverging", "optim.lr": 1e38, "optim.max_grad_norm": 0.0})
    outcome, said = train_trial(diverging, World.alone(), lambda: False)
    assert outcome == "failed" and said.endswith("lower optim.lr or set optim.max_grad_norm")  # it does not begin anew
    missing = replace(config, data=replace(config.data, store=str(tmp_path / "nowhere")))
    outcome, said = train_trial(missing, World.alone(), lambda: False)
    assert outcome == "retryable" and "nowhere" in said
    (RunFolder.of(config).folder / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        train_trial(config, World.alone(), lambda: False)


@pytest.mark.parametrize(
    "error", [MissingSplit("gone"), StoreError("damaged"), PlaceError("no bucket"), SaveError("full")]
)
def test_a_trial_whose_surroundings_fail_is_trained_again(error: UserError) -> None:
    assert outcome_of(error) == "retryable" and outcome_of(UserError("its config")) == "failed"
