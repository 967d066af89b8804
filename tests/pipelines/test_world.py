"""Which of torchrun's processes this is: what its environment says, and what is wrong with one that is not torchrun's. Where the
processes of a sweep's trial meet: on a port that stays theirs."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist

from common.errors import UserError
from pipelines import train
from pipelines.training.world import Launched, World, join, listen
from tests.small_runs import TINY

TWO = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_the_environment_names_this_process() -> None:
    assert Launched.by_environment({}) == Launched(rank=0, size=1, local_rank=0, local_size=1)
    assert Launched.by_environment({**TWO, "LOCAL_WORLD_SIZE": "2"}) == Launched(1, 2, 1, 2)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"MASTER_ADDR": ""}, "WORLD_SIZE is 2, and MASTER_ADDR is not set: start the command with torchrun, or unset"),
        ({"MASTER_PORT": ""}, "WORLD_SIZE is 2, and MASTER_PORT is not set"),
        ({"RANK": ""}, "WORLD_SIZE is 2, and RANK is not set"),
        ({"WORLD_SIZE": ""}, "RANK is '1', and must be a whole number of at least 0 and at most 0"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', and must be a whole number of at least 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0', and must be a whole number of at least 1"),
        ({"RANK": "2"}, "RANK is '2', and must be a whole number of at least 0 and at most 1"),
        ({"RANK": "-1"}, "RANK is '-1', and must"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK is 'x', and must"),
        ({"LOCAL_WORLD_SIZE": "1.5"}, "LOCAL_WORLD_SIZE is '1.5', and must"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', and must"),
        (
            {"MASTER_PORT": "70000"},
            "MASTER_PORT is '70000', and must be a whole number of at least 0 and at most 65535",
        ),
    ],
)
def test_an_environment_that_is_incomplete_is_one_sentence(
    changed: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TWO, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        train.main([*TINY, "--data.store", "nowhere", "--run", "run"])
    assert str(caught.value).startswith(sentence)


def test_torchrun_and_ray_are_not_both_asked_to_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TWO, "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        UserError, match=r"num_workers is 2, and torchrun has started 2 processes.*: add --num-workers 0"
    ):
        train.main([*TINY, "--num-workers", "2"])


def test_no_other_program_can_take_the_port_before_the_processes_join() -> None:
    store, address = listen("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", store.port))
    device = torch.device("cpu")
    join(device, init_method=address, world_size=1, rank=0)
    try:
        assert World.current(device).broadcast_str("joined") == "joined"
    finally:
        dist.destroy_process_group()
