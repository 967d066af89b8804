"""torch.compile of a model, as a whole or layer by layer.

    compile_model(model, "layer")

The results are the same to rounding, forward and backward, State and loss. vanilla, slide, xl and rec are one graph without a
break, under feedback too; that one is unrolled over all blocks, as rmt and armt are, and so are the layers of every model
compiled as a whole, which takes a compiler minutes. Layer by layer, layers of one kind share their code. So do those of the
staircases (with code of its own for a step that crosses documents, and for each number of chunks that drain), transformer-xl
and universal-transformer; an lstm's layer is torch's own kernel behind a break. feedback-transformer reads single tokens: layer
by layer, nothing of it is compiled. memorizing breaks its graph at each block, where it asks how full its memory is. Module
hooks are not seen by compiled code (health.py).

``one_graph`` marks modules that make one graph: a break in it is an error, and shapes are taken as they are, never as variables. A
segment is compiled once, and once more for the State that the first one has left, whose memory is laid out otherwise.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from common.choices import Compile
from recur_models.protocol import RecurrentModel

VERSIONS = 64
"""Compiled versions of a layer's code, at most: one for each kind of layer, with and without gradients, and each segment length.
Beyond torch's own limit of 8 a layer would silently run uncompiled."""


def compile_model(model: RecurrentModel, unit: Compile, backend: Any = "inductor", **options: Any) -> None:
    """Have the model compiled when it is first called, in place: its names and its weights stay as they are. ``options``: others of
    torch.compile; by default a unit that is one graph has ``fullgraph=True`` and ``dynamic=False``.
    """
    if unit == "no":
        return
    from torch._dynamo import config  # takes a second

    config.recompile_limit = max(config.recompile_limit, VERSIONS)
    for each in [model] if unit == "model" else model.layers:
        # Recomputing is a matter of the model's, so its layers stay whole.
        whole = getattr(each, "one_graph", False) and (unit == "layer" or model.recompute == "nothing")
        each.compile(backend=backend, **{"fullgraph": whole, "dynamic": False if whole else None, **options})


def is_compiled(model: nn.Module) -> bool:
    """Whether `compile_model` has been here."""
    return any(module._compiled_call_impl is not None for module in model.modules())
