"""Sliding window and Transformer-XL, and the stack of pre-norm layers that other models put layers of their own into.

    SlideConfig(layers=13).build(vocab_size=32_001)
    XLConfig(layers=12, window=2048).build(vocab_size=32_001)

State, for layer i counted from 0: ``layers.i.keys``, ``layers.i.values`` [B, H, W, E]; under ``equations="paper"`` also
``present`` [B], whether the lane has a previous block. While a block is read token by token, a layer keeps its keys and
values; once there are W tokens, they become the next State. Letters: see layers.py; n tokens of one block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recur_models.costs import Costs
from recur_models.gates import Equations
from recur_models.hidden import note
from recur_models.layers import PositionBias, attend
from recur_models.protocol import (
    IncrementalDecoder,
    Places,
    Probe,
    State,
    detach,
    join_layers,
    layer_state,
)
from recur_models.tied_model import TiedModel
from recur_models.token_layer import (
    Part,
    Projections,
    TokenLayer,
    TokenLayersConfig,
    last_block,
    token_costs,
)
from recur_models.window import (
    Window,
    buckets_of_window,
    distance_and_unseen,
    windowed_attention,
    with_previous,
)


@dataclass(frozen=True)
class WindowedConfig(TokenLayersConfig):
    """A stack of layers with windowed attention. Configs differ in the layers that they put into it."""

    equations: Equations = "meliad"
    """Where code and paper differ: what the authors' code computes, or what the paper writes."""

    @abstractmethod
    def layer(self, index: int) -> WindowedLayer:
        """The layer at an index of the stack, counted from 0, newly made."""

    def build(self, vocab_size: int) -> WindowedTransformer:
        return WindowedTransformer(self, vocab_size)

    def window_costs(self, states: int = 0, position: bool = True) -> Costs:
        """Costs of a token layer: each token sees W keys, and 2W are multiplied."""
        W = self.window
        return token_costs(self, pairs=W * W, computed_pairs=W * 2 * W, states=states, position=position)


@dataclass(frozen=True)
class SlideConfig(WindowedConfig):
    """Sliding-window transformer, differentiable across the blocks of a segment (the paper's Slide:12L and Slide:13L)."""

    name: ClassVar[str] = "slide"

    def layer(self, index: int) -> WindowedLayer:
        return Layer(self)

    def stack_costs(self) -> Costs:
        return self.window_costs() * self.layers


@dataclass(frozen=True)
class XLConfig(WindowedConfig):
    """Transformer-XL: the previous block's keys and values are read, and get no gradient (the paper's XL:512 to XL:2048).

    That holds between all blocks, also those of one segment: so a segment of several windows is XL too, step by step.
    """

    name: ClassVar[str] = "xl"

    def layer(self, index: int) -> WindowedLayer:
        return Layer(self, cache="detached")

    def stack_costs(self) -> Costs:
        return self.window_costs() * self.layers


class Blocks(NamedTuple):
    """Tensors that all layers share when some blocks are read."""

    fresh_BK: Tensor
    """bool. True for blocks at which a document begins."""
    no_previous_block_BK: Tensor | None
    """bool. True for blocks whose previous block is masked, under ``equations="paper"``; None if there are none."""
    shared_kv: tuple[Tensor, Tensor] | None = None
    """Under feedback, keys and values of the states that another layer shares: [B, K, H, S, E] each."""


class WindowedLayer(nn.Module, ABC):
    """A layer of the stack. State and block are its own part of them, under its own names."""

    tokens: TokenLayer
    one_graph = True

    @abstractmethod
    def initial_state(self, lanes: int) -> State:
        """Its State before a document."""

    @abstractmethod
    def forward(self, x_BKWD: Tensor, state: State, blocks: Blocks, window: Window) -> tuple[Tensor, State]:
        """Tokens in blocks and State in, the same out. ``window``: from `TokenLayer.window`."""

    @abstractmethod
    def open(self, state: State, shared_kv: Projections | None) -> State:
        """An empty block that begins at ``state``. ``shared_kv``: under feedback, the projected states of the sharing layer, which
        may be this one ([B, H, S, E]).
        """

    @abstractmethod
    def extend(self, x_BnD: Tensor, part: Part, state: State, block: State) -> tuple[Tensor, State]:
        """Read some tokens of one block; returns the block with them."""

    @abstractmethod
    def close(self, state: State, block: State, no_previous_block_B: Tensor | None) -> State:
        """The State after a full block. ``no_previous_block_B``: the lanes that had no block before it."""

    @abstractmethod
    def probes(self) -> list[Probe]:
        """As `RecurrentModel.probes`."""


class Layer(WindowedLayer):
    """A layer of `slide` and `xl`, and the other layers of `rec`: a window without states of its own.

    ``cross``: its tokens also read the states that another layer shares (feedback). ``cache``: whether gradients reach the previous
    block of the same segment through its keys and values.
    """

    def __init__(
        self,
        config: WindowedConfig,
        cross: bool = False,
        cache: Literal["differentiable", "detached"] = "differentiable",
    ):
        super().__init__()
        self.tokens = TokenLayer(config, cross)
        self.detached = cache == "detached"

    def initial_state(self, lanes: int) -> State:
        return self.tokens.initial_cache(lanes)

    def forward(self, x_BKWD: Tensor, state: State, blocks: Blocks, window: Window) -> tuple[Tensor, State]:
        tokens = self.tokens.project(x_BKWD)
        k_BKHZE = with_previous(tokens.k, state["keys"], blocks.fresh_BK, self.detached)
        v_BKHZE = with_previous(tokens.v, state["values"], blocks.fresh_BK, self.detached)
        cross = None if blocks.shared_kv is None else attend(tokens.q_cross, *blocks.shared_kv)
        window_BKHWE = windowed_attention(tokens.q_self, k_BKHZE, v_BKHZE, window, blocks.no_previous_block_BK)
        return self.tokens.combine(x_BKWD, window_BKHWE, cross), last_block(tokens)

    def open(self, state: State, shared_kv: Projections | None) -> State:
        return self.tokens.open(state, shared_kv)

    def extend(self, x_BnD: Tensor, part: Part, state: State, block: State) -> tuple[Tensor, State]:
        tokens, heads_BHnE, after = self.tokens.step(x_BnD, part, [(state["keys"], state["values"])], block)
        return self.tokens.finish(x_BnD, tokens, heads_BHnE, block), after

    def close(self, state: State, block: State, no_previous_block_B: Tensor | None) -> State:
        after = {"keys": block["keys"], "values": block["values"]}
        return detach(after) if self.detached else after

    def probes(self) -> list[Probe]:
        return self.tokens.probes()


class WindowedTransformer(TiedModel):
    """Embeddings, a stack of `WindowedLayer`s, and a final norm before the tied output layer."""

    config: WindowedConfig

    def __init__(self, config: WindowedConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.layers.extend(config.layer(i) for i in range(config.layers))
        self.one_graph = all(layer.one_graph for layer in self.layers)

    def recurrent_parameters(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self.named_parameters() if ".states." in name]

    def initial_state(self, lanes: int) -> State:
        state = join_layers(layer.initial_state(lanes) for layer in self.layers)
        if self.config.equations == "paper":
            state["present"] = torch.zeros(lanes, dtype=torch.bool, device=self.embedding.weight.device)
        return state

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        x_BTD = self.embed(tokens_BT)
        bucket_WZ, unseen_WZ = buckets_of_window(torch.arange(self.block, device=x_BTD.device), self.block)
        stack = partial(self.stack, windows=[layer.tokens.window(bucket_WZ, unseen_WZ) for layer in self.layers])
        x_BTD, state = self.read_blocks(stack, x_BTD, state, fresh_BK, at_once=True)
        return self.head(x_BTD, targets_BT), state

    def stack(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, windows: list[Window]) -> tuple[Tensor, State]:
        """Some blocks through all layers: the residual stream after them [B, T, D], and the next State."""
        x_BKWD = x_BTD.unflatten(1, (-1, self.block))
        no_previous_block_BK, after = self.begin_blocks(state, fresh_BK)
        blocks = Blocks(fresh_BK, no_previous_block_BK)
        x_BKWD, layers = self.run_layers(range(len(self.layers)), x_BKWD, state, blocks, windows)
        return x_BKWD.flatten(1, 2), after | layers

    def begin_blocks(self, state: State, fresh_BK: Tensor) -> tuple[Tensor | None, State]:
        """`Blocks.no_previous_block_BK`, and the entries of the next State that belong to no layer."""
        if "present" not in state:
            return None, {}
        no_previous_block_BK = fresh_BK.clone()
        no_previous_block_BK[:, 0] |= ~state["present"]
        return no_previous_block_BK, {"present": torch.ones_like(state["present"])}

    def run_layers(
        self, indices: range, x_BKWD: Tensor, state: State, blocks: Blocks, windows: list[Window]
    ) -> tuple[Tensor, State]:
        """Some blocks through the layers at ``indices``: the residual stream after them, and their part of the next State."""
        after = []
        for i in indices:
            note(i, x_BKWD)
            run = self.recomputed("layer", self.layers[i])
            x_BKWD, changed = run(x_BKWD, layer_state(i, state), blocks, windows[i])
            after.append(changed)
        return x_BKWD, join_layers(after, indices.start)

    def shared_states(self, state: State) -> Projections | None:
        """``shared_kv`` of `WindowedLayer.open`; None without feedback."""
        return None

    def incremental_decoder(self) -> IncrementalDecoder:
        return WindowedIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        return [probe for layer in self.layers for probe in layer.probes()]


class WindowedIncrementalDecoder(IncrementalDecoder):
    """A token sees the W tokens before it, of its own block and the previous one, and the states of its block's start."""

    model: WindowedTransformer

    def open(self, state: State, lanes: int) -> State:
        shared_kv = self.model.shared_states(state)
        layers = enumerate(self.model.layers)
        return join_layers(layer.open(layer_state(i, state), shared_kv) for i, layer in layers)

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        window = self.model.block
        place_Bn1 = places.of_tokens_Bn[..., None]
        distance_BnZ, unseen_BnZ = distance_and_unseen(places.of_tokens_Bn, window, 2 * window)
        blind_BHn1 = None
        if "present" in state:
            no_previous_block_B11 = ~state["present"][:, None, None]
            unseen_BnZ = unseen_BnZ | (no_previous_block_B11 & (distance_BnZ > place_Bn1))
            blind_BHn1 = (no_previous_block_B11 & (place_Bn1 == 0))[:, None]
        part = Part(places, PositionBias.bucket(distance_BnZ), unseen_BnZ, blind_BHn1)
        x_BnD = self.model.embed(tokens_Bn)
        after = []
        for i, layer in enumerate(self.model.layers):
            note(i, x_BnD)
            x_BnD, changed = layer.extend(x_BnD, part, layer_state(i, state), layer_state(i, block))
            after.append(changed)
        return self.model.head(x_BnD, None), join_layers(after)

    def close(self, state: State, block: State) -> State:
        after: State = {}
        no_previous_block_B = None
        if "present" in state:
            no_previous_block_B = ~state["present"]
            after["present"] = torch.ones_like(state["present"])
        layers = enumerate(self.model.layers)
        closed = (layer.close(layer_state(i, state), layer_state(i, block), no_previous_block_B) for i, layer in layers)
        return after | join_layers(closed)
