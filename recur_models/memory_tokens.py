"""Memory tokens: a transformer over blocks that passes the outputs of a few extra tokens to the next block.

    RMTConfig(memory_tokens=32).build(vocab_size=257)
    ARMTConfig(memory_tokens=16, memory_dim=12).build(vocab_size=257)

`rmt`, the Recurrent Memory Transformer (Bulatov et al. 2022, arXiv 2207.06881), reads [memory; block; memory] in each block:

    [·; H; S_k] = layers([S_{k−1}; X_k; S_{k−1}])

The first copy is read: all later tokens see it. The last copy writes: it sees the whole block, and its outputs after the final norm
are the next memory. S₀ is learned. The tokens of a copy see one another; the tokens of the block see only earlier ones.

`armt`, the Associative RMT (Rodkin et al. 2024, arXiv 2407.04841), reads [block; memory], with the same learned memory tokens in
every block. Each layer has an association (association.py): all tokens read it before the layer, and the outputs of the memory
tokens write into it after the layer.

The papers' segment is a block here (`window`). Gradients pass through all blocks of a segment. Layers are those of `vanilla`.

State: ``states`` [B, S, D], the memory (rmt); ``layers.i.states`` [B, P, D + 1], the associations (armt).

Letters: see layers.py; S memory tokens · R memory tokens before a block (0 in armt) · N tokens of a block with its memory tokens ·
n some tokens · m keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from recur_models.association import Association, association_costs
from recur_models.costs import Costs, scales
from recur_models.hidden import note
from recur_models.layers import Carried, PositionBias, relative_change, upcast
from recur_models.protocol import (
    IncrementalDecoder,
    Places,
    Probe,
    State,
    join_layers,
    layer_state,
    reset,
    reset_to_zeros,
    with_dtypes_of,
)
from recur_models.stepping import attend_parts
from recur_models.tied_model import TiedModel
from recur_models.token_layer import Part, TokenLayersConfig, token_costs
from recur_models.vanilla import VanillaLayer, buckets_within


@dataclass(frozen=True)
class MemoryTokensConfig(TokenLayersConfig):
    """The sizes that both models share."""

    memory_tokens: int = 32
    """Memory tokens."""

    @property
    def read_tokens(self) -> int:
        """Memory tokens before a block's tokens: R."""
        return self.memory_tokens

    def association(self) -> Association | None:
        """A layer's association; None without one."""
        return None

    def association_costs(self, tokens: int) -> Costs:
        """Costs of a layer's association over a block of ``tokens`` tokens, its memory tokens included."""
        return Costs()

    @property
    def least_blocks(self) -> int:
        return 2  # a block's memory is first read by the next one

    def build(self, vocab_size: int) -> MemoryTokensModel:
        return MemoryTokensModel(self, vocab_size)

    def stack_costs(self) -> Costs:
        """As `TokenLayersConfig.stack_costs`, with the memory tokens."""
        R = self.read_tokens
        S = self.memory_tokens
        W = self.window
        N = R + W + S
        pairs = R * R + W * R + W * (W + 1) // 2 + S * N
        layer = token_costs(replace(self, window=N), pairs, computed_pairs=N * N) + self.association_costs(N)
        return layer * self.layers + scales(S * self.d_model)


@dataclass(frozen=True)
class RMTConfig(MemoryTokensConfig):
    """Recurrent Memory Transformer: the outputs of a block's memory tokens are the next block's memory tokens."""

    name: ClassVar[str] = "rmt"


@dataclass(frozen=True)
class ARMTConfig(MemoryTokensConfig):
    """Associative Recurrent Memory Transformer: memory tokens write into an associative memory in each layer."""

    name: ClassVar[str] = "armt"

    memory_tokens: int = 16
    """Memory tokens: how many keys and values a block writes in each layer."""
    memory_dim: int = 64
    """Size of a key of the associative memory, before each of its numbers becomes 6 features."""
    unit_keys: bool = False
    """Divide the features of keys and queries by their length, as the authors' later code does. The paper does not, and its
    memory can grow by orders of magnitude."""

    @property
    def read_tokens(self) -> int:
        return 0

    def association(self) -> Association:
        return Association(self.d_model, self.memory_dim, self.unit_keys)

    def association_costs(self, tokens: int) -> Costs:
        return association_costs(self.d_model, self.memory_dim, tokens, self.memory_tokens)


class MemoryLayer(nn.Module):
    """A layer of `vanilla` over a block and its memory tokens, in `armt` with an association."""

    one_graph = True

    def __init__(self, config: MemoryTokensConfig):
        super().__init__()
        self.memory_tokens = config.memory_tokens
        self.tokens = VanillaLayer(config)
        self.association = config.association()

    def initial_state(self, lanes: int) -> State:
        if self.association is None:
            return {}
        return {"states": upcast(self.tokens.project.scale_H).new_zeros(lanes, *self.association.shape)}

    def forward(self, x_BND: Tensor, bucket_NN: Tensor, unseen_NN: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one block with its memory tokens. Returns the residual stream [B, N, D], and the layer's next State.

        ``bucket_NN``, ``unseen_NN``: as in `VanillaLayer.forward`.
        """
        x_BND = self.tokens(self.add_memory(x_BND, state), bucket_NN, unseen_NN)
        memory_BSD = x_BND[:, -self.memory_tokens :].contiguous()  # otherwise rounding depends on memory addresses
        return x_BND, self.write_memory(memory_BSD, state)

    def add_memory(self, x_BnD: Tensor, state: State) -> Tensor:
        """The residual stream plus the values that its tokens read from the association."""
        return x_BnD if self.association is None else x_BnD + self.association.read(x_BnD, state["states"])

    def write_memory(self, memory_BSD: Tensor, state: State) -> State:
        """The layer's next State, after the outputs of its memory tokens have written."""
        return {} if self.association is None else {"states": self.association.write(memory_BSD, state["states"])}

    def memory_step(self, x_BSD: Tensor, before: list[tuple[Tensor, Tensor]], state: State) -> tuple[Tensor, State]:
        """Read only memory tokens. ``before``: parts of the keys and values [B, H, m, E] of all tokens before them.

        Returns their outputs [B, S, D], and their ``keys`` and ``values`` [B, H, S, E].
        """
        x_BSD = self.add_memory(x_BSD, state)
        tokens = self.tokens.project(x_BSD)
        parts = [*before, (tokens.k, tokens.v)]
        index_m = torch.arange(sum(keys.shape[2] for keys, _ in parts), device=x_BSD.device)
        distance_Sm = index_m[-x_BSD.shape[1] :, None] - index_m
        bias_HSm = self.tokens.position_bias(PositionBias.bucket(distance_Sm))
        bias_HSm = bias_HSm * self.tokens.project.scale_H.abs()[:, None, None]
        heads_BHSE = attend_parts(tokens.q_self, parts, bias_HSm)
        return self.tokens.combine(x_BSD, heads_BHSE), {"keys": tokens.k, "values": tokens.v}


class MemoryTokensModel(TiedModel):
    """Both models: embeddings, layers, and learned memory tokens, with which a document (rmt) or each block (armt) begins."""

    config: MemoryTokensConfig
    one_graph = True

    def __init__(self, config: MemoryTokensConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.initial_SD = nn.Parameter(torch.randn(config.memory_tokens, config.d_model))  # as embeddings are
        self.layers.extend(MemoryLayer(config) for _ in range(config.layers))
        self.carried = Carried()

    @property
    def passes_tokens(self) -> bool:
        """Whether the memory tokens' outputs are the next block's memory tokens."""
        return self.config.read_tokens > 0

    def initial_state(self, lanes: int) -> State:
        state: State = {}
        if self.passes_tokens:
            state["states"] = self.initial_memory(lanes).detach().clone()
        return state | join_layers(layer.initial_state(lanes) for layer in self.layers)

    def initial_memory(self, lanes: int) -> Tensor:
        """The learned memory tokens of each lane: [B, S, D]."""
        return self.initial_SD.expand(lanes, -1, -1)

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads block by block, because a block's tokens read what the block before has written."""
        x_BTD = self.embed(tokens_BT)
        length = self.config.read_tokens + self.block + self.config.memory_tokens
        place_N = torch.arange(length, device=x_BTD.device)
        bucket_NN, later_NN = buckets_within(place_N, length)
        read = partial(self.read_block, bucket_NN=bucket_NN, unseen_NN=later_NN & ~self.same_copy(place_N))
        x_BTD, after = self.read_blocks(read, x_BTD, state, fresh_BK)
        return self.head(x_BTD, targets_BT), with_dtypes_of(after, state)

    def read_block(
        self, x_BWD: Tensor, state: State, fresh_B1: Tensor, bucket_NN: Tensor, unseen_NN: Tensor
    ) -> tuple[Tensor, State]:
        """One block through all layers. Returns its tokens' outputs [B, W, D], and the next State.

        ``bucket_NN``, ``unseen_NN``: as in `VanillaLayer.forward`.
        """
        R = self.config.read_tokens
        memory_BSD = self.initial_memory(len(x_BWD)).to(x_BWD.dtype)
        if self.passes_tokens:
            memory_BSD = reset(state["states"].to(x_BWD.dtype), memory_BSD, fresh_B1)
        x_BND = torch.cat([memory_BSD[:, :R], x_BWD, memory_BSD], 1)
        layers = []
        for i, layer in enumerate(self.layers):
            note(i, x_BND[:, R : R + self.block])
            before = layer_state(i, state)
            before = {name: reset_to_zeros(tensor, fresh_B1) for name, tensor in before.items()}
            x_BND, changed = self.recomputed("layer", layer)(x_BND, bucket_NN, unseen_NN, before)
            layers.append(changed)
        after = join_layers(layers)
        if self.passes_tokens:
            after["states"] = self.carried(memory_BSD, self.final_norm(x_BND[:, R + self.block :]))
        return x_BND[:, R : R + self.block], after

    def same_copy(self, place_N: Tensor) -> Tensor:
        """Whether two tokens are of the same copy of the memory, so that both see each other: bool [N, N]."""
        R = self.config.read_tokens
        first_N = place_N < R
        last_N = place_N >= R + self.block
        return (first_N[:, None] & first_N) | (last_N[:, None] & last_N)

    def recurrent_parameters(self) -> list[nn.Parameter]:
        """The memory tokens, and the parameters of the associations."""
        parameters = [self.initial_SD]
        for layer in self.layers:
            if layer.association is not None:
                parameters += layer.association.parameters()
        return parameters

    def incremental_decoder(self) -> IncrementalDecoder:
        return MemoryTokensIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        """How much a block changes the memory."""
        associations = [layer.association for layer in self.layers if layer.association is not None]
        carried = [self.carried] if self.passes_tokens else [association.carried for association in associations]
        return [Probe("state_change", module, relative_change) for module in carried]


class MemoryTokensIncrementalDecoder(IncrementalDecoder):
    """Each layer keeps ``keys`` and ``values`` [B, H, W, E] of the block's tokens, and in `rmt` ``memory_keys`` and
    ``memory_values`` [B, H, S, E] of the memory that they read. Memory tokens write at the block's end.
    """

    model: MemoryTokensModel

    def open(self, state: State, lanes: int) -> State:
        model = self.model
        block = []
        x_BSD = state.get("states")
        for layer in model.layers:
            kept = layer.tokens.initial_cache(lanes)
            if x_BSD is not None:
                x_BSD, own = layer.memory_step(x_BSD, [], {})
                kept |= {f"memory_{kind}": tensor.contiguous() for kind, tensor in own.items()}
            block.append(kept)
        return join_layers(block)

    def memory(self, kept: State) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the memory before the block, of what a layer has kept, as one part; in `armt` there is none."""
        return [(kept["memory_keys"], kept["memory_values"])] if self.model.passes_tokens else []

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens of the block, which see the memory and the block's earlier tokens."""
        model = self.model
        R = model.config.read_tokens
        part = Part(places, *buckets_within(places.of_tokens_Bn + R, R + model.block))
        x_BnD = model.embed(tokens_Bn)
        after = []
        for i, layer in enumerate(model.layers):
            note(i, x_BnD)
            x_BnD = layer.add_memory(x_BnD, layer_state(i, state))
            kept = layer_state(i, block)
            _, heads_BHnE, changed = layer.tokens.step(x_BnD, part, self.memory(kept), kept)
            x_BnD = layer.tokens.combine(x_BnD, heads_BHnE)
            after.append(changed)
        return model.head(x_BnD, None), join_layers(after)

    def close(self, state: State, block: State) -> State:
        """Takes the memory tokens behind the block through all layers, with the keys and values that each layer has kept."""
        model = self.model
        lanes = len(block["layers.0.keys"])
        x_BSD = state["states"] if model.passes_tokens else model.initial_memory(lanes)
        layers = []
        for i, layer in enumerate(model.layers):
            kept = layer_state(i, block)
            own = layer_state(i, state)
            x_BSD, _ = layer.memory_step(x_BSD, [*self.memory(kept), (kept["keys"], kept["values"])], own)
            layers.append(layer.write_memory(x_BSD, own))
        after = join_layers(layers)
        if model.passes_tokens:
            after["states"] = model.final_norm(x_BSD)
        return with_dtypes_of(after, state)
