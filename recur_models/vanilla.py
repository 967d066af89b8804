"""A transformer without memory: each block of W tokens is read alone. The floor that every memory must beat.

    VanillaConfig(layers=13, window=512).build(vocab_size=32_001)

The layer of the other models, so that only the memory differs: T5 position bias, normalised queries and keys, pre-norm, tied
embeddings. A token sees itself and the earlier tokens of its block. The State is empty. Letters: see layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from recur_models.costs import Costs
from recur_models.hidden import note
from recur_models.layers import PositionBias
from recur_models.protocol import (
    IncrementalDecoder,
    Places,
    Probe,
    State,
    join_layers,
    layer_state,
)
from recur_models.tied_model import TiedModel
from recur_models.token_layer import Part, TokenLayer, TokenLayersConfig, token_costs
from recur_models.window import windowed_attention


@dataclass(frozen=True)
class VanillaConfig(TokenLayersConfig):
    """Transformer without memory: nothing passes from one window to the next."""

    name: ClassVar[str] = "vanilla"

    def build(self, vocab_size: int) -> VanillaTransformer:
        return VanillaTransformer(self, vocab_size)

    def stack_costs(self) -> Costs:
        W = self.window
        return token_costs(self, pairs=W * (W + 1) // 2, computed_pairs=W * W) * self.layers


class VanillaLayer(TokenLayer):
    """Causal attention inside each block, then the MLP."""

    one_graph = True
    position_bias: PositionBias

    def __init__(self, config: TokenLayersConfig):
        super().__init__(config, cross=False)

    def forward(self, x_BKWD: Tensor, bucket_WW: Tensor, unseen_WW: Tensor) -> Tensor:
        """Attention within each block [B, K, W, D], or within a sequence [B, W, D], then the MLP.

        ``bucket_WW``: int64, from `buckets_within`. ``unseen_WW``: bool, the tokens that a token does not see. A later token that
        is seen has the bias of distance 0.
        """
        tokens = self.project(x_BKWD)
        window = self.window(bucket_WW, unseen_WW)
        return self.combine(x_BKWD, windowed_attention(tokens.q_self, tokens.k, tokens.v, window))


def buckets_within(place_n: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Buckets of the distances from tokens back to all ``length`` tokens of their sequence, int64 [..., n, length]; and a mask,
    True where the key comes later, bool [..., n, length]. All layers share them.

    ``place_n``: int64, the tokens' places in the sequence.
    """
    distance_nZ = place_n[..., None] - torch.arange(length, device=place_n.device)
    return PositionBias.bucket(distance_nZ), distance_nZ < 0


class VanillaTransformer(TiedModel):
    """The stack; its blocks never meet."""

    one_graph = True

    def __init__(self, config: VanillaConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.layers.extend(VanillaLayer(config) for _ in range(config.layers))

    def initial_state(self, lanes: int) -> State:
        return {}

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads all blocks at once, or block by block under recomputation: none sees another."""
        x_BTD, state = self.read_blocks(self.stack, self.embed(tokens_BT), state, fresh_BK, at_once=True)
        return self.head(x_BTD, targets_BT), state

    def stack(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        """Some blocks through all layers: the residual stream after them [B, T, D], and the State, which is empty."""
        x_BKWD = x_BTD.unflatten(1, (-1, self.block))
        bucket_WW, unseen_WW = buckets_within(torch.arange(self.block, device=x_BKWD.device), self.block)
        for i, layer in enumerate(self.layers):
            note(i, x_BKWD)
            x_BKWD = self.recomputed("layer", layer)(x_BKWD, bucket_WW, unseen_WW)
        return x_BKWD.flatten(1, 2), state

    def incremental_decoder(self) -> IncrementalDecoder:
        return VanillaIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        return []


class VanillaIncrementalDecoder(IncrementalDecoder):
    """A token sees itself and the earlier tokens of its block, whose keys and values each layer keeps."""

    model: VanillaTransformer

    def open(self, state: State, lanes: int) -> State:
        return join_layers(layer.initial_cache(lanes) for layer in self.model.layers)

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens of the block, which see the block's earlier tokens."""
        part = Part(places, *buckets_within(places.of_tokens_Bn, self.model.block))
        x_BnD = self.model.embed(tokens_Bn)
        after = []
        for i, layer in enumerate(self.model.layers):
            note(i, x_BnD)
            _, heads_BHnE, changed = layer.step(x_BnD, part, [], layer_state(i, block))
            x_BnD = layer.combine(x_BnD, heads_BHnE)
            after.append(changed)
        return self.model.head(x_BnD, None), join_layers(after)

    def close(self, state: State, block: State) -> State:
        return {}
