"""A stack of layers that each hold a mixer: what `mixers` and `mamba2` share.

    class MyModel(StackModel): ...          # embed, head, and layers that are subclasses of StackLayer

State: that of the mixers, under ``layers.i``. Letters: see mixer.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from recur_models.hidden import note
from recur_models.mixer import Mixer
from recur_models.protocol import (
    IncrementalDecoder,
    Places,
    Probe,
    RecurrentModel,
    State,
    join_layers,
    layer_state,
)


class StackLayer(nn.Module, ABC):
    """A layer: a mixer, and the computation around it."""

    one_graph = True

    def __init__(self, mixer: Mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        y_BTD, after = self.mixer(x_BTD, state, fresh_BK)
        return self.finish(x_BTD, y_BTD), after

    @abstractmethod
    def finish(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """The residual stream after the layer. ``x_BTD``: the stream before it, ``y_BTD``: the mixer's output."""


class StackModel(RecurrentModel):
    """A model of `StackLayer` layers. A subclass embeds tokens, and makes logits from the last layer's output."""

    one_graph = True
    layers: Any
    """Each is a `StackLayer`."""

    @abstractmethod
    def embed(self, tokens_Bn: Tensor) -> Tensor:
        """The input of the first layer: [B, n, D]."""

    @abstractmethod
    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        """Logits [B, n, V] of the last layer's output, or nats [B, n] when there are targets."""

    def initial_state(self, lanes: int) -> State:
        return join_layers(layer.mixer.initial_state(lanes) for layer in self.layers)

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads all blocks at once, or block by block under recomputation."""
        x_BTD, state = self.read_blocks(self.stack, self.embed(tokens_BT), state, fresh_BK, at_once=True)
        return self.head(x_BTD, targets_BT), state

    def stack(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        """Some blocks through all layers: the residual stream after them, and the next State."""
        after = []
        for i, layer in enumerate(self.layers):
            note(i, x_BTD)
            x_BTD, changed = self.recomputed("layer", layer)(x_BTD, layer_state(i, state), fresh_BK)
            after.append(changed)
        return x_BTD, join_layers(after)

    def incremental_decoder(self) -> IncrementalDecoder:
        return StackIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        return [probe for layer in self.layers for probe in layer.mixer.probes()]


class StackIncrementalDecoder(IncrementalDecoder):
    """Each mixer keeps its own part of the block: recurrent ones the State after the last token, a window its keys and values."""

    model: StackModel

    def open(self, state: State, lanes: int) -> State:
        return join_layers(layer.mixer.open(layer_state(i, state)) for i, layer in enumerate(self.model.layers))

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens of the block through all layers."""
        model = self.model
        x_BnD = model.embed(tokens_Bn)
        after = []
        for i, layer in enumerate(model.layers):
            note(i, x_BnD)
            y_BnD, changed = layer.mixer.extend(x_BnD, places, layer_state(i, state), layer_state(i, block))
            x_BnD = layer.finish(x_BnD, y_BnD)
            after.append(changed)
        return model.head(x_BnD, None), join_layers(after)

    def close(self, state: State, block: State) -> State:
        return block
