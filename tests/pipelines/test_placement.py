"""Where workers stand: what Ray is asked for, and that it may change when a run goes on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from pipelines.config import PlacementConfig, check_resumable, to_json
from pipelines.presets import PRESETS
from pipelines.train import room


def test_what_a_worker_takes() -> None:
    assert PlacementConfig().worker(use_gpu=False) == {"CPU": 1}
    asked = PlacementConfig(strategy="spread", cpus=8, gpus=0.5, resource="fast").worker(use_gpu=True)
    assert asked == {"CPU": 8, "GPU": 0.5, "fast": 0.001}


@pytest.mark.parametrize("fields", [{"cpus": 0}, {"gpus": -1}, {"cpus": float("nan")}])
def test_nothing_and_less_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="it must be above 0"):
        PlacementConfig(**fields)  # type: ignore[arg-type]


def test_a_run_may_go_on_elsewhere() -> None:
    config = PRESETS["small-rec"]
    moved = replace(config, placement=PlacementConfig(strategy="strict-spread", cpus=4), num_workers="1:4")
    check_resumable(to_json(config), moved, Path("runs/mine"))
    before = {name: value for name, value in to_json(config).items() if name != "placement"}  # of an earlier version
    check_resumable(before, moved, Path("runs/mine"))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_workers_of_our_own_session_are_as_urgent_as_their_driver() -> None:
    """Ray's default of 15 leaves them a twentieth of a core beside two busy processes."""
    niceness: Any = ray.remote(num_cpus=0)(lambda: os.nice(0))
    assert ray.get(niceness.remote()) == os.nice(0)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_room_counts_what_a_worker_takes() -> None:
    config = PRESETS["small-rec"]
    assert room(config, use_gpu=False) == 4
    assert room(replace(config, placement=PlacementConfig(cpus=2)), use_gpu=False) == 2
    assert room(replace(config, placement=PlacementConfig(resource="fast")), use_gpu=False) == 0
    assert room(config, use_gpu=True) == 0
    assert room(replace(config, placement=PlacementConfig(strategy="spread")), use_gpu=False) == 4
    apart = replace(config, placement=PlacementConfig(strategy="strict-spread"))
    assert room(apart, use_gpu=False) == room(apart, use_gpu=False, growing=True) == 1  # one machine

    @ray.remote(num_cpus=1)
    class Worker:
        def stand(self) -> None: ...

    worker: Any = Worker.remote()
    ray.get(worker.stand.remote())
    deadline = time.monotonic() + 30
    while room(config, use_gpu=False) != 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert room(config, use_gpu=False, growing=True) == 3
    assert room(apart, use_gpu=False) == 1
    assert room(apart, use_gpu=False, growing=True) == 0  # that machine has one already
    ray.kill(worker)
