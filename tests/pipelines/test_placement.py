"""Placement of workers: the resources asked of Ray, and that they may change when a run resumes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from common.errors import UserError
from pipelines.cluster.elastic import room
from pipelines.config.run import PlacementConfig, check_resumable, config_hash_without_seed, may_change, to_json
from pipelines.presets import PRESETS
from pipelines.sweeps.capacity import TrialCapacity, trials_at_once
from pipelines.sweeps.command import read_command
from tests.waiting import wait_until


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


SMALL, LARGE = {"CPU": 3.0}, {"CPU": 8.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("machines", "worker", "workers", "trials"),
    [
        ([SMALL, LARGE], {"CPU": 1}, 2, 5),
        ([SMALL, LARGE], {"CPU": 2}, 1, 5),  # not 11 // 2: a worker stands on one machine
        ([SMALL, LARGE], {"CPU": 4}, 3, 0),
        ([{"CPU": 0.3}], {"CPU": 0.1}, 1, 3),
        ([SMALL, LARGE], {"CPU": 1, "GPU": 0.5}, 1, 2),
        ([SMALL, LARGE], {"CPU": 1, "fast": 0.001}, 1, 0),
    ],
)
def test_machines_hold_trials_whose_workers_have_room(
    machines: list[dict[str, float]], worker: dict[str, float], workers: int, trials: int
) -> None:
    assert trials_at_once(machines, worker, workers, apart=False) == trials


@pytest.mark.parametrize(
    ("machines", "trials"),
    [([SMALL, LARGE, LARGE], 9), ([SMALL, LARGE], 3), ([LARGE], 0)],  # 9: 3 + 8 + 8, in pairs apart
)
def test_machines_hold_trials_whose_two_workers_stand_apart(machines: list[dict[str, float]], trials: int) -> None:
    assert trials_at_once(machines, {"CPU": 1}, 2, apart=True) == trials


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_sweep_is_placed_as_training_is(capsys: pytest.CaptureFixture[str]) -> None:
    def trials(*words: str) -> tuple[int, bool]:
        room = TrialCapacity(read_command(["lr", "--num-workers", "1", *words]))
        return room.at_once(), room.use_gpu

    assert trials() == (4, False) and trials("--num-cpus", "3") == (3, False)
    assert trials("--placement.cpus", "2") == (2, False) and trials("--placement.cpus", "0.5") == (8, False)
    assert "at once 2 trials of 1 worker of 2 CPUs each: 4 CPUs hold 2" in capsys.readouterr().out
    assert trials("--placement.cpus", "1.5", "--num-cpus", "4", "--max-concurrent-trials", "1") == (1, False)
    for words, sentence in (
        (
            ("--placement.cpus", "5"),
            r"a trial takes 5 CPUs for its 1 worker, and there are 4 CPUs: it could never start",
        ),
        (("--placement.resource", "fast"), r"takes 1 CPU and 0.001 fast for .* there are 4 CPUs and 0 fast: it"),
        (("--placement.strategy", "strict-spread", "--num-workers", "2"), r"its 2 workers, no two on one machine, and"),
        (("--use-gpu", "yes", "--placement.gpus", "0.5"), r"takes 1 CPU and 0.5 GPU for .* are 4 CPUs and 0 GPU: it"),
    ):
        with pytest.raises(UserError, match=sentence):
            trials(*words)


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

    worker: Any = Worker.remote()  # pyrefly: ignore
    ray.get(worker.stand.remote())
    wait_until(lambda: room(config, use_gpu=False) == 3)
    assert room(config, use_gpu=False, growing=True) == 3
    assert room(apart, use_gpu=False) == 1
    assert room(apart, use_gpu=False, growing=True) == 0  # that machine has one already
    ray.kill(worker)


def test_seeds_are_of_one_config_wherever_they_were_trained() -> None:
    config = {"seed": 0, "steps": 5, "num_workers": 0, "root": "a", "model": {"name": "rec", "states": 4}}
    one = config_hash_without_seed(config)
    assert one == config_hash_without_seed({**config, "seed": 1, "num_workers": 2, "root": "b"})
    assert one != config_hash_without_seed({**config, "steps": 6})


def test_a_field_whose_name_begins_alike_may_not_change() -> None:
    allowed = ("model.memory", "model.mlp")
    assert may_change("model.memory", allowed) and may_change("placement.cpus") and may_change("optim.lr", ("optim",))
    assert not may_change("model.memory_layer", allowed) and not may_change("optim.lr", ("opt",))


def test_gpus_are_used_where_the_least_number_of_workers_has_some() -> None:
    config = replace(PRESETS["small-rec"], num_workers="2:4")
    assert [config.uses_gpu(gpus) for gpus in (1, 2, 4)] == [False, True, True]
    assert replace(config, placement=PlacementConfig(gpus=0.5)).uses_gpu(1)
