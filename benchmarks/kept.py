"""Memory that a forward pass keeps until its backward pass.

kept_bytes(lambda: model(tokens_BT, state, None, tokens_BT))
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def tensors() -> list[torch.Tensor]:
    """All tensors and parameters that Python's garbage collector knows."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]


def kept_bytes(forward: Callable[[], object]) -> int:
    """Bytes behind the tensors that autograd saves during ``forward``, or that are alive after it, its result included. Each
    storage counts once, and none that existed before.

    Autograd does not know all of them: activation checkpointing itself holds some arguments and the random numbers' state.
    """
    saved: list[torch.Tensor] = []
    standing = tensors()  # held, so that no address is taken anew

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = forward()
    before = {tensor.untyped_storage().data_ptr() for tensor in standing}
    memories = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*saved, *tensors()]}
    del made
    return sum(size for place, size in memories.items() if place not in before)
