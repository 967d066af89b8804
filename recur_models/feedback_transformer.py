"""Feedback transformer: a token sees one memory of each earlier token, made of all its layers' outputs (Fan et al. 2020).

    FeedbackTransformerConfig(layers=4, span=100).build(vocab_size=257)

A token's memory is the sum of its embedding and of every layer's output, with softmax weights that are learned; every layer makes
its keys and values of it. So all layers see what the last one made, and tokens are read one by one. Other work is
parallel: keys and values of all layers in one product, lanes, the output layer. A token sees the ``span`` memories before it.

State: ``states`` [B, span, D], the memories of the current document, and ``states_count`` [B], how many there are.

Letters: see core.py; L layers · W tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.choices import Recompute
from recur_models.core import (
    Context,
    CoreConfig,
    CoreLayer,
    CoreModel,
    Distances,
    Parts,
    Seen,
    documents,
    documents_of_tokens,
    in_newest,
)
from recur_models.costs import Costs, product, scales
from recur_models.hidden import note
from recur_models.layers import MASKED, is_plain, joined, split_heads
from recur_models.protocol import IncrementalDecoder, Places, Probe, State, join_layers, layer_state, reset_to_zeros
from recur_models.stepping import kept_parts, open_block
from recur_models.window import distance_and_unseen


class Shared(NamedTuple):
    """Tensors that a block's tokens share, made once: the gradient of a part of a weight is as large as the weight."""

    projection: tuple[Tensor, Tensor] | None
    """As `FeedbackTransformer.projection`."""
    queries: Sequence[Tensor | None]
    """Each layer's `query_weight`."""
    zero_keys_values: Context
    """Key and value of a missing memory, of each layer that makes keys; empty where none is missing or missing ones are masked."""


@dataclass(frozen=True)
class FeedbackTransformerConfig(CoreConfig):
    """Feedback transformer: token by token."""

    name: ClassVar[str] = "feedback-transformer"
    recomputes: ClassVar[tuple[Recompute, ...]] = ("nothing", "block")  # a layer is run for each token

    span: int = 128
    """Memories before it that a token sees."""
    window: int = 16
    """Tokens of a block, at whose beginning a document may begin. It changes memory and time, and no result otherwise."""
    keys: Literal["own", "shared"] = "own"
    """Each layer's keys and values are made by its own projections, or those of all layers by the first one's."""

    @property
    def block(self) -> int:
        return self.window

    @property
    def attention_window(self) -> int:
        return self.span

    @property
    def least_blocks(self) -> int:
        return 1 if self.window > 1 else 2  # a token's memory, and so the weights in it, serve later tokens alone

    def build(self, vocab_size: int) -> FeedbackTransformer:
        return FeedbackTransformer(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        """Costs of a block, and those of a segment: the keys and values of the memories that it begins with."""
        W = self.window
        S = self.span
        layer = self.layer_costs(W, W * S, W * S + W * (W - 1) // 2, S)
        total = self.outer_costs(vocab_size, S) + scales(self.layers + 1) + layer * self.layers
        kinds = 1 if self.keys == "shared" else self.layers
        keys = product(W, self.d_model, 2 * self.width)  # among those of a layer
        total += keys * (kinds - self.layers)
        return replace(total, segment_flops=kinds * product(S, self.d_model, 2 * self.width).flops)


class FeedbackTransformer(CoreModel):
    """The core, read token by token."""

    def __init__(self, config: FeedbackTransformerConfig, vocab_size: int):
        super().__init__(config, vocab_size, config.span)
        self.config = config
        self.memory_weights_L = nn.Parameter(torch.zeros(config.layers + 1))
        self.memory = nn.Identity()  # passes on the weights, for probes
        if config.keys == "shared":
            for layer in self.layers[1:]:
                layer.qkv = nn.Linear(config.d_model, config.width, bias=False)

    def initial_state(self, lanes: int) -> State:
        config = self.config
        like = self.embedding.weight
        return {
            "states": like.new_zeros(lanes, config.span, config.d_model),
            "states_count": torch.zeros(lanes, dtype=torch.int64, device=like.device),
        }

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads token by token, since each token attends to memories made of all layers of earlier ones."""
        x_BTD = self.dropout(self.embedding(tokens_BT))
        span = self.config.span
        document_BK = documents(state["states_count"], span, fresh_BK)
        document_BS = documents_of_tokens(document_BK, span, self.block)
        memories = [reset_to_zeros(state["states"], fresh_BK[:, 0]).to(x_BTD.dtype)]
        outputs = []
        earlier = self.keys_values(memories[0])
        for k, x_BWD in enumerate(x_BTD.split(self.block, 1)):
            first = k * self.block
            crossing_BS = document_BS[:, first : first + span] != document_BK[:, span + k, None]
            run = self.recomputed("block", self.read)
            output_BWD, memory_BWD, own = run(x_BWD, earlier, crossing_BS if bool(crossing_BS.any()) else None)
            outputs.append(output_BWD)
            memories.append(memory_BWD)
            both = (joined(*pairs) for pairs in zip(earlier, own, strict=True))
            earlier = [(keys[:, :, -span:], values[:, :, -span:]) for keys, values in both]
        own_BS = in_newest(document_BS[:, -span:])
        kept_BSD = torch.cat(memories, 1)[:, -span:].masked_fill(~own_BS[..., None], 0.0)
        after = {"states": kept_BSD.to(state["states"].dtype), "states_count": own_BS.sum(1)}
        return self.head(torch.cat(outputs, 1), targets_BT), after

    def read(self, x_BWD: Tensor, earlier: Context, crossing_BS: Tensor | None) -> tuple[Tensor, Tensor, Context]:
        """A block behind the keys and values of the ``span`` memories before it. Returns outputs and memories [B, W, D], and the
        memories' own keys and values."""
        outputs = []
        memories = []
        # One pair for each layer that makes keys, of the block's tokens so far; none before the first token.
        own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.makers]
        shared = self.shared(missing=crossing_BS is not None)
        for t, x_B1D in enumerate(x_BWD.split(1, 1)):
            crossing_B1m = None if crossing_BS is None else F.pad(crossing_BS, (0, t), value=False)[:, None]
            parts = [[pair, *so_far] for pair, so_far in zip(earlier, own, strict=True)]
            distance_logits = partial(self.logits_of_nearest, beyond=t)
            seen = Seen(None, crossing_B1m)
            output_B1D, memory_B1D = self.token(x_B1D, parts, seen, distance_logits, shared)
            outputs.append(output_B1D)
            memories.append(memory_B1D)
            new = self.keys_values(memory_B1D, shared.projection)
            own = [[joined(*so_far, pair)] for so_far, pair in zip(own, new, strict=True)]
        return torch.cat(outputs, 1), torch.cat(memories, 1), [so_far[0] for so_far in own]

    def logits_of_nearest(self, q_BH1E: Tensor, beyond: int) -> Tensor:
        """q·e[distance] for the ``span`` keys before a token, behind ``beyond`` older ones, which it does not see: [B, H, 1, m]."""
        return F.pad(q_BH1E @ self.distances_EP, (beyond, 0), value=MASKED)

    def token(
        self,
        x_B1D: Tensor,
        parts: Sequence[Parts],
        seen: Seen,
        distance_logits: Callable[[Tensor], Tensor],
        shared: Shared,
    ) -> tuple[Tensor, Tensor]:
        """One token through all layers: output and memory [B, 1, D].

        Args:
            parts: keys and values, of each layer that makes them.
            distance_logits: takes queries [B, H, 1, E], and returns q·e[distance] for the keys [B, H, 1, m].
            shared: tensors that the block's tokens share.
        """
        outputs = [x_B1D]
        for i, (layer, weight) in enumerate(zip(self.layers, shared.queries, strict=True)):
            note(i, x_B1D)
            q = layer.queries(x_B1D, weight)
            maker = min(i, len(parts) - 1)  # the first layer where all share its keys
            zero_key_value = shared.zero_keys_values[maker] if shared.zero_keys_values else None
            heads_BH1E = layer.attend(q, parts[maker], distance_logits(q), seen, zero_key_value)
            x_B1D = layer.finish(x_B1D, heads_BH1E)
            outputs.append(x_B1D)
        weights_L = self.memory(torch.softmax(self.memory_weights_L, 0))
        return x_B1D, (weights_L.view(-1, 1, 1, 1) * torch.stack(outputs)).sum(0)

    @property
    def makers(self) -> Sequence[CoreLayer]:
        """The layers that make keys and values."""
        return self.layers[:1] if self.config.keys == "shared" else self.layers

    def shared(self, missing: bool) -> Shared:
        """The tensors that a block's tokens share. ``missing``: whether one of them lacks a memory."""
        zeros = missing and self.config.absent == "zeros"
        zero_keys_values = [layer.zero_key_value() for layer in self.makers] if zeros else []
        return Shared(self.projection(), [layer.query_weight() for layer in self.layers], zero_keys_values)

    def projection(self) -> tuple[Tensor, Tensor] | None:
        """One matrix and one bias that make keys and values for all layers from a memory normed without scale. None where
        a layer must be called, because its projection is not plain (`layers.is_plain`).
        """
        w = self.config.width
        layers = self.makers
        if not all(is_plain(layer.qkv) for layer in layers):
            return None
        weights = [layer.qkv.weight[w:] for layer in layers]
        folded = [weight * layer.norm.weight for weight, layer in zip(weights, layers, strict=True)]
        biases = [(weight * layer.norm.bias).sum(1) for weight, layer in zip(weights, layers, strict=True)]
        return torch.cat(folded), torch.cat(biases)

    def keys_values(self, memory_BnD: Tensor, projection: tuple[Tensor, Tensor] | None = None) -> Context:
        """Keys and values of some memories, for each layer that makes them: [B, H, n, E]."""
        projection = projection or self.projection()
        if projection is None:
            return [layer.keys_values(memory_BnD) for layer in self.makers]
        made = F.linear(F.layer_norm(memory_BnD, memory_BnD.shape[-1:]), *projection)
        each = [split_heads(part, self.config.heads) for part in made.split(self.config.width, -1)]
        return list(zip(each[::2], each[1::2], strict=True))

    def incremental_decoder(self) -> IncrementalDecoder:
        return FeedbackIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        """One probe: the share of a memory that comes from the layers, not the embedding."""
        return [Probe("gate_openness", self.memory, lambda weights_L, _: 1 - weights_L[0])]


class FeedbackIncrementalDecoder(IncrementalDecoder):
    """The block keeps, for each layer i that makes keys, ``earlier_keys`` and ``earlier_values`` [B, H, span, E] of the State's
    memories, and ``keys`` and ``values`` [B, H, W, E] of its own memories; and these ``memories`` [B, W, D]."""

    model: FeedbackTransformer

    def open(self, state: State, lanes: int) -> State:
        config = self.model.config
        pairs = self.model.keys_values(state["states"])
        block = join_layers(open_block(k.contiguous(), v.contiguous(), config.window) for k, v in pairs)
        return block | {"memories": state["states"].new_zeros(lanes, config.window, config.d_model)}

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens one by one, and writes their memories, keys and values into the block."""
        model = self.model
        config = self.model.config
        memories_BWD = block["memories"]
        layers = [layer_state(i, block) for i in range(len(model.makers))]
        x_BnD = model.dropout(model.embedding(tokens_Bn))
        outputs = []
        slot_m = torch.arange(config.span + config.window, device=x_BnD.device)
        missing_B1m = slot_m < (config.span - state["states_count"])[:, None, None]
        distance_Bnm, unseen_Bnm = distance_and_unseen(places.of_tokens_Bn, config.span, len(slot_m))
        distances = Distances(model.distances_EP, itself=False)
        column_Bnm = distances.columns(distance_Bnm)
        shared = model.shared(missing=True)
        for n, x_B1D in enumerate(x_BnD.split(1, 1)):
            place_B1 = places.of_tokens_Bn[:, n : n + 1]
            distance_logits = partial(distances.at, column_Bnm=column_Bnm[:, n : n + 1])
            seen = Seen(unseen_Bnm[:, None, n : n + 1], missing_B1m)
            parts = [kept_parts(kept) for kept in layers]
            output_B1D, memory_B1D = model.token(x_B1D, parts, seen, distance_logits, shared)
            outputs.append(output_B1D)
            # Padding is written too, behind the lane's own tokens. Later tokens overwrite it.
            here_BW = torch.arange(config.window, device=x_BnD.device) == place_B1
            memories_BWD = torch.where(here_BW[..., None], memory_B1D, memories_BWD)
            here_B1W1 = here_BW[:, None, :, None]
            for kept, (k, v) in zip(layers, model.keys_values(memory_B1D, shared.projection), strict=True):
                kept["keys"] = torch.where(here_B1W1, k, kept["keys"])
                kept["values"] = torch.where(here_B1W1, v, kept["values"])
        return model.head(torch.cat(outputs, 1), None), join_layers(layers) | {"memories": memories_BWD}

    def close(self, state: State, block: State) -> State:
        span = self.model.config.span
        states = torch.cat([state["states"], block["memories"]], 1)[:, -span:].contiguous()
        return {"states": states, "states_count": (state["states_count"] + self.model.config.window).clamp(max=span)}
