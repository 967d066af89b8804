"""The staircase paper's Transformer-XL, and the universal transformer, which has one layer in place of all.

    TransformerXLConfig(layers=8, span=100, window=64).build(vocab_size=257)
    UniversalTransformerConfig(passes=8, span=100, window=64).build(vocab_size=257)

A token sees the ``span`` tokens before it, and not itself, as they entered the layer. The State holds the current document's
inputs of each layer i, counted from 0: ``layers.i.inputs`` [B, span, D], and ``count`` [B], how many there are. Gradients end
there.

Letters: see core.py; K blocks of W tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from recur_models.core import (
    CoreConfig,
    CoreLayer,
    CoreModel,
    Distances,
    Seen,
    documents,
    documents_of_tokens,
    in_newest,
)
from recur_models.costs import Costs
from recur_models.hidden import note
from recur_models.protocol import IncrementalDecoder, Places, Probe, State, join_layers, layer_state, reset_to_zeros
from recur_models.stepping import append, kept_parts, open_block
from recur_models.window import distance_and_unseen


@dataclass(frozen=True)
class TransformerXLConfig(CoreConfig):
    """Transformer-XL with learned key embeddings and a fixed span (the staircase paper's baseline)."""

    name: ClassVar[str] = "transformer-xl"

    span: int = 128
    """Tokens before it that a token sees."""
    window: int = 64
    """Tokens of a block, at whose beginning a document may begin; they are read at once, so it changes no result otherwise."""

    @property
    def block(self) -> int:
        return self.window

    @property
    def attention_window(self) -> int:
        return self.span

    @property
    def depth(self) -> int:
        """Layers that a token passes."""
        return self.layers

    def build(self, vocab_size: int) -> TransformerXL:
        return TransformerXL(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        """Costs of a block, and those of a segment: the keys and values that its first block sees."""
        W = self.window
        S = self.span
        layer = self.layer_costs(W, W * S, W * (W + S), S)
        total = self.outer_costs(vocab_size, S) + layer * self.depth
        shared = (self.depth - self.layers) * layer.parameters
        once = self.layer_costs(0, 0, 0, 0, cached=S).computed_flops
        return replace(total, parameters=total.parameters - shared, segment_flops=self.depth * once)


@dataclass(frozen=True)
class UniversalTransformerConfig(TransformerXLConfig):
    """Universal transformer: the same layers, one by default, again and again (staircase paper, Table 2)."""

    name: ClassVar[str] = "universal-transformer"

    layers: int = 1
    """Layers with weights of their own."""
    passes: int = 8
    """Times that a token passes them."""

    @property
    def depth(self) -> int:
        return self.layers * self.passes


class TransformerXL(CoreModel):
    """Both models: Transformer-XL, and the universal transformer."""

    def __init__(self, config: TransformerXLConfig, vocab_size: int):
        super().__init__(config, vocab_size, config.span)
        self.config = config

    @property
    def stack(self) -> list[CoreLayer]:
        """The layers in the order in which a token passes them."""
        return [self.layers[i % len(self.layers)] for i in range(self.config.depth)]

    def initial_state(self, lanes: int) -> State:
        config = self.config
        like = self.embedding.weight
        state: State = {"count": torch.zeros(lanes, dtype=torch.int64, device=like.device)}
        return state | {
            f"layers.{i}.inputs": like.new_zeros(lanes, config.span, config.d_model) for i in range(config.depth)
        }

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads the segment at once, or block by block under recomputation."""
        x_BTD = self.dropout(self.embedding(tokens_BT))
        x_BTD, state = self.read_blocks(self.read, x_BTD, state, fresh_BK, at_once=True)
        return self.head(x_BTD, targets_BT), state

    def read(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        """All layers over some blocks."""
        span = self.config.span
        W = self.block
        of_blocks = documents(state["count"], span, fresh_BK)
        document_BS = documents_of_tokens(of_blocks, span, W)
        seen_BKm = document_BS.unfold(1, span + W, W)
        crossing_BK1m = (seen_BKm != of_blocks[:, span:, None])[:, :, None]
        distances = Distances(self.distances_EP, itself=False)
        unseen_nm = distances.unseen(W, span + W, x_BTD.device)
        crosses = crossing_BK1m if bool(crossing_BK1m.any()) else None
        own_BS = in_newest(document_BS[:, -span:])
        after: State = {"count": own_BS.sum(1)}
        for i, layer in enumerate(self.stack):
            note(i, x_BTD)
            run = self.recomputed("layer", self.layer)
            inputs_BSD = state[f"layers.{i}.inputs"]
            before_BSD = reset_to_zeros(inputs_BSD, fresh_BK[:, 0]).to(x_BTD.dtype)
            earlier_BSD = torch.cat([before_BSD, x_BTD], 1)
            kept_BSD = earlier_BSD[:, -span:].masked_fill(~own_BS[..., None], 0.0)
            after[f"layers.{i}.inputs"] = kept_BSD.to(inputs_BSD.dtype)
            x_BTD = run(layer, earlier_BSD, distances, unseen_nm, crosses)
        return x_BTD, after

    def layer(
        self,
        layer: CoreLayer,
        earlier_BSD: Tensor,
        distances: Distances,
        unseen_nm: Tensor,
        crossing_BK1m: Tensor | None,
    ) -> Tensor:
        """One layer over blocks, which also see the State's tokens before them."""
        span = self.config.span
        before = layer.keys_values(earlier_BSD[:, :span])
        return layer(earlier_BSD[:, span:], before, distances, unseen_nm, crossing_BK1m, self.block)

    def incremental_decoder(self) -> IncrementalDecoder:
        return TransformerXLIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        return []


class TransformerXLIncrementalDecoder(IncrementalDecoder):
    """The block keeps, for each layer i, the ``inputs`` [B, W, D] so far, their ``keys`` and ``values`` [B, H, W, E], and the
    ``earlier_keys`` and ``earlier_values`` [B, H, span, E] of the State's inputs."""

    model: TransformerXL

    def open(self, state: State, lanes: int) -> State:
        """Keys and values of the tokens in sight, for each layer."""
        config = self.model.config
        block = []
        for i, layer in enumerate(self.model.stack):
            inputs_BSD = state[f"layers.{i}.inputs"]
            kept = open_block(*layer.keys_values(inputs_BSD), config.window)
            block.append(kept | {"inputs": inputs_BSD.new_zeros(lanes, config.window, config.d_model)})
        return join_layers(block)

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens of the block, which see `span` tokens before them."""
        model = self.model
        config = self.model.config
        x_BnD = model.dropout(model.embedding(tokens_Bn))
        slot_m = torch.arange(config.span + config.window, device=x_BnD.device)
        distance_Bnm, unseen_Bnm = distance_and_unseen(places.of_tokens_Bn, config.span, len(slot_m))
        missing_B1m = slot_m < (config.span - state["count"])[:, None, None]
        seen = Seen(unseen_Bnm[:, None], missing_B1m)
        distances = Distances(model.distances_EP, itself=False)
        column_Bnm = distances.columns(distance_Bnm)
        after = []
        for i, layer in enumerate(model.stack):
            note(i, x_BnD)
            q, k, v = layer.project(x_BnD)
            kept = append(places, k, v, layer_state(i, block))
            kept["inputs"] = places.write(kept["inputs"], x_BnD)
            heads_BHnE = layer.attend(q, kept_parts(kept), distances.at(q, column_Bnm), seen)
            x_BnD = layer.finish(x_BnD, heads_BHnE)
            after.append(kept)
        return model.head(x_BnD, None), join_layers(after)

    def close(self, state: State, block: State) -> State:
        config = self.model.config
        after: State = {"count": (state["count"] + config.window).clamp(max=config.span)}
        for i in range(config.depth):
            name = f"layers.{i}.inputs"
            after[name] = torch.cat([state[name], block[name]], 1)[:, -config.span :].contiguous()
        return after
