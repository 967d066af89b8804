"""Where a training process stands among its peers, and the few collectives that the loop needs. One process is a world too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import UserError


@dataclass(frozen=True)
class World:
    """``size`` processes, of which this one is ``rank``; each owns a contiguous range of lanes."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None = None
    """The process group for single numbers on the CPU; None is the default one. On GPUs it is a separate group, so that a number
    does not wait for the GPU's queue."""

    @classmethod
    def alone(cls) -> World:
        """A world of one process on the CPU, without a process group."""
        return cls(0, 1, torch.device("cpu"))

    @classmethod
    def current(cls, device: torch.device) -> World:
        """The process group that is up (Ray Train, torchrun), else one process alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(0, 1, device)
        control = None if dist.get_backend() == "gloo" else cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
        return cls(dist.get_rank(), dist.get_world_size(), device, control)

    def lanes(self, total: int, rank: int | None = None) -> tuple[int, int]:
        """The half-open range of global lanes that this process owns, or that of another rank."""
        rank = self.rank if rank is None else rank
        return total * rank // self.size, total * (rank + 1) // self.size

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the processes (DDP); itself when there is one process."""
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def gradient_sync(self, wrapped: nn.Module, now: bool) -> AbstractContextManager[None]:
        """The context of a backward pass: with ``now``, gradients are averaged over the processes; else they add up here alone."""
        return nullcontext() if now or not isinstance(wrapped, DistributedDataParallel) else wrapped.no_sync()

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum elementwise over the processes, in place. Returns the same tensor."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_int(self, number: int) -> int:
        """The sum over the processes of a number that each has on its CPU."""
        total = torch.tensor(number)
        if self.size > 1:
            dist.all_reduce(total, group=self.control)
        return int(total)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return self.all_reduce_int(int(flag)) > 0

    def broadcast_str(self, text: str) -> str:
        """Rank 0's text on every process: a name, or nothing."""
        texts = [text]
        if self.size > 1:
            dist.broadcast_object_list(texts, 0, group=self.control)
        return texts[0]


def join(device: torch.device, **where: Any) -> None:
    """Join a process group, by default the one that the environment describes; NCCL moves nothing but a GPU's tensors."""
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **where)


def listen(host: str) -> tuple[dist.TCPStore, str]:
    """Open a store on a free port of this machine. Returns it, and the address at which processes `join` (``init_method``); rank 0
    must be this process. No other program can take the port while the store is kept.
    """
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    return store, f"tcp://{host}:{store.port}"


@dataclass(frozen=True)
class Launched:
    """Which of torchrun's processes this is, as its environment says; one alone where it says nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """Processes on this machine."""

    @classmethod
    def by_environment(cls, environment: Mapping[str, str] = os.environ) -> Launched:
        """Read torchrun's variables. Raises UserError, naming the variable, where one is missing or has no possible value."""
        size = _whole_number(environment, "WORLD_SIZE", 1, least=1)
        rank = _whole_number(environment, "RANK", 0, most=size - 1)
        local_size = _whole_number(environment, "LOCAL_WORLD_SIZE", 1, least=1)
        local_rank = _whole_number(environment, "LOCAL_RANK", 0)
        if size > 1:
            for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
                if not environment.get(name):
                    raise UserError(f"WORLD_SIZE is {size}, and {name} is not set: {BY_TORCHRUN}")
            _whole_number(environment, "MASTER_PORT", 0, most=65535)
        return cls(rank, size, local_rank, local_size)


BY_TORCHRUN = "start the command with torchrun, or unset WORLD_SIZE and RANK for one process"


def _whole_number(
    environment: Mapping[str, str], name: str, default: int, least: int = 0, most: int | None = None
) -> int:
    written = environment.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,9}", written) or int(written) < least or (most is not None and int(written) > most):
        upper = "" if most is None else f" and at most {most}"
        raise UserError(f"{name} is {written!r}, and must be a whole number of at least {least}{upper}: {BY_TORCHRUN}")
    return int(written)
