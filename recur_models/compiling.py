"""torch.compile of a model, as a whole or layer by layer.

    compile_model(model, "layer")

The results are the same to rounding, forward and backward, State and loss. By model:

- vanilla, slide, xl, rec, mixers, mamba2, gpt2 and llama are one graph without a break.
- Feedback, rmt and armt are one graph too, but unrolled over all blocks, feedback only up to the layer that shares its states;
  compiling that takes minutes. Feedback is therefore better compiled layer by layer. gpt2-rec and llama-rec are unrolled over their
  windows.
- The staircases, transformer-xl and universal-transformer share code between layers. A staircase has other code for a step that
  crosses documents, and for each number of chunks that drain.
- Among mixers, slstm is unrolled over all tokens.
- An lstm's layer is torch's own kernel behind a break of the graph.
- feedback-transformer reads single tokens: layer by layer, nothing of it is compiled.
- memorizing breaks its graph where it reads and fills its memory, which is not compiled.

Layer by layer, layers of one kind share their code. Under feedback, all that runs block by block is one unit: the layers below the
one that shares its states, and that layer's horizontal direction. Its vertical direction is another. A model that is compiled as a
whole is unrolled over its layers. Compiled code does not call module hooks (health.py).

``one_graph`` marks modules that make one graph: a break in it is an error, and shapes are constants. A segment is compiled once,
and once more for the State that the first segment leaves, whose strides differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from common.choices import Compile
from recur_models.protocol import RecurrentModel

VERSIONS = 64
"""Compiled versions of a layer's code, at most: one for each kind of layer, with and without gradients, and each segment length.
Beyond torch's own limit of 8 a layer would silently run uncompiled."""


class Unit(nn.Module):
    """A method of a model, or of one of its layers, as a module that can be compiled. It has no parameters of its own.

    It is called with the model or the layer first. It holds neither: a layer may be put in the place of another, as by an adapter.
    """

    one_graph = True

    def __init__(self, method: Callable[..., Any]):
        super().__init__()
        self.method = method

    def forward(self, owner: nn.Module, *args: Any) -> Any:
        return self.method(owner, *args)


def compile_model(model: RecurrentModel, unit: Compile, backend: Any = "inductor", **options: Any) -> None:
    """Have the model compiled when it is first called, in place: its names and its weights stay as they are. ``options``: further
    arguments of torch.compile; by default a unit that is one graph has ``fullgraph=True`` and ``dynamic=False``.
    """
    if unit == "no":
        return
    from torch._dynamo import config  # takes a second
    from torch._functorch import config as functorch_config

    config.recompile_limit = max(config.recompile_limit, VERSIONS)
    # torch 2.13 writes over a tensor that the forward pass has kept, though the backward pass still reads a view of it.
    functorch_config.donated_buffer = False
    for each in [model] if unit == "model" else model.units():
        # The model recomputes, not its layers: those stay one graph.
        whole = getattr(each, "one_graph", False) and (unit == "layer" or model.recompute == "nothing")
        each.compile(backend=backend, **{"fullgraph": whole, "dynamic": False if whole else None, **options})


def is_compiled(model: nn.Module) -> bool:
    """Whether `compile_model` has set the model or a part of it to be compiled."""
    return any(module._compiled_call_impl is not None for module in model.modules())
