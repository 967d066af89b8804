"""Hidden states of a forward pass, which a model then returns in the place of logits.

    with in_place_of_logits(layers=True) as found:
        made_BTX, state = model(tokens_BT)
    states = made_BTX.split(found.widths, -1)       # inputs of each layer [B, T, D], and of the output layer

A model calls `note` with the input of each of its layers, and ends with `losses.tied_output` or `losses.untied_output`. The states
of all layers stand side by side in one tensor, so whatever moves logits about, as decoding.py does, moves them too.

Letters: B lanes · n tokens · D width · X all widths together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Found:
    """The hidden states noted since the last result, and their widths."""

    def __init__(self, layers: bool) -> None:
        self.layers = layers
        self.noted: dict[int, list[Tensor]] = {}
        self.widths: list[int] = []

    def states(self, hidden_BnD: Tensor) -> Tensor:
        """[B, n, X]: the input of each layer, and ``hidden_BnD``."""
        states = [last_columns(parts, hidden_BnD.shape[1]) for _, parts in sorted(self.noted.items())]
        states.append(hidden_BnD)
        self.noted = {}
        self.widths = [state.shape[-1] for state in states]
        return torch.cat(states, -1)


_found: dict[int, Found] = {}
"""`Found` by thread: another thread may generate with the same model meanwhile. While this is empty, compiled code makes logits."""


@contextmanager
def in_place_of_logits(layers: bool = False) -> Iterator[Found]:
    """In the `with`, models return hidden states: the last ones, and with ``layers`` also the inputs of each layer."""
    found = Found(layers)
    thread = threading.get_ident()
    outer = _found.get(thread)
    _found[thread] = found
    try:
        yield found
    finally:
        if outer is None:
            del _found[thread]
        else:
            _found[thread] = outer


def note(index: int, x_BnD: Tensor) -> None:
    """Record the input of the layer at this index, counted from 0: [B, n, D], or [B, K, W, D] of some blocks.

    A segment's parts are noted from its beginning to its end. Columns of text before the segment may precede them.
    """
    found = _asked()
    if found is not None and found.layers:
        found.noted.setdefault(index, []).append(x_BnD)


def states_asked_for(hidden_BnD: Tensor) -> Tensor | None:
    """The tensor that a model returns in place of its logits; None if the logits are wanted."""
    found = _asked()
    return None if found is None else found.states(hidden_BnD)


def _asked() -> Found | None:
    return _found.get(threading.get_ident()) if _found else None


def last_columns(parts: list[Tensor], count: int) -> Tensor:
    """The last columns of parts [B, n, D] or [B, K, W, D] that follow one another: [B, count, D]."""
    taken: list[Tensor] = []
    columns = 0
    for part in reversed(parts):
        taken.insert(0, part.flatten(1, -2))
        columns += taken[0].shape[1]
        if columns >= count:
            break
    return torch.cat(taken, 1)[:, -count:]
