"""Where a training process stands among its peers, and the few collectives that the loop needs. One process is a world too."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """``size`` processes, of which this one is ``rank``; each owns a contiguous range of lanes."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device | None = None) -> World:
        """The process group that is up (Ray Train, torchrun), else one process alone."""
        up = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank() if up else 0, dist.get_world_size() if up else 1, device or torch.device("cpu"))

    def lanes(self, total: int) -> tuple[int, int]:
        """The half-open range of global lanes that this process owns."""
        return total * self.rank // self.size, total * (self.rank + 1) // self.size

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the processes (DDP); itself when there is one process."""
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise sum over the processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor, in order of rank; all of one shape."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        return parts


def join_torchrun() -> None:
    """Join the process group that torchrun's environment describes, if it does."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
