"""Memory that a forward pass keeps until its backward pass.

kept_bytes(lambda: model(tokens_BT, state, None, tokens_BT))
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def tensors() -> list[torch.Tensor]:
    """All that Python knows and that have memory of their own."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]


def kept_bytes(forward: Callable[[], object]) -> int:
    """Bytes of the memory behind all tensors that autograd saves meanwhile or that are alive after it, what it returns among them;
    each memory counted once, and none that was there before.

    Autograd alone does not know all: activation checkpointing holds some arguments, and the random numbers' state, by itself.
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
