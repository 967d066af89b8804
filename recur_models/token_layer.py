"""The token layer of slide, xl, rec, memorizing, vanilla, rmt and armt: sizes, parts and costs.

    layer = TokenLayer(config, cross=False)
    window = layer.window(bucket_WZ, unseen_WZ)                     # of attention, the same for all blocks
    tokens, heads_BHnE, block = layer.step(x_BnD, part, before, block)      # some tokens of one block, in decoding
    x_BnD = layer.finish(x_BnD, tokens, heads_BHnE, block)

A model's own layer holds one, or is one, and says which keys its tokens see. Letters: see layers.py; n tokens of one block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, attention, product, scales, tied_logits
from recur_models.layers import PositionBias, attend, each_block, linear, merge_heads, split_heads
from recur_models.norms import RMSNorm, unit_norm
from recur_models.protocol import ModelConfig, Places, Probe, State, check_sizes
from recur_models.stepping import append, attend_parts, logit_bias
from recur_models.window import Window, window_bias


@dataclass(frozen=True)
class TokenLayersConfig(ModelConfig):
    """Sizes that slide, xl, rec, memorizing, vanilla, rmt and armt share."""

    layers: int = 12
    """Transformer layers."""
    d_model: int = 1024
    """Width of the residual stream."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 128
    """Size of one head."""
    mlp_dim: int = 4096
    """Hidden size of the MLP."""
    window: int = 512
    """Tokens that a token sees, and tokens in a block."""
    dropout: float = 0.05
    """Share of activations dropped in the token direction; none on the recurrent side."""
    dropout_places: Literal["meliad", "usual"] = "meliad"
    """meliad: as in the authors' code, since the paper gives only a rate: the normed input of attention, the weights of the
    window's attention, the MLP's output, the final norm's output. usual: embeddings, attention's output, the MLP's hidden layer and
    output."""

    def __post_init__(self) -> None:
        check_sizes(self)

    @property
    def block(self) -> int:
        return self.window

    @property
    def attention_window(self) -> int:
        return self.window

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    def costs(self, vocab_size: int) -> Costs:
        return tied_logits(self.window, self.d_model, vocab_size) + self.stack_costs() + scales(self.d_model)

    @abstractmethod
    def stack_costs(self) -> Costs:
        """Costs of all layers, for one block of one lane."""


class Dropouts(NamedTuple):
    """The dropout rate at each place."""

    embedding: float = 0.0
    normed: float = 0.0
    """Attention's normed input."""
    weights: float = 0.0
    """The window's attention weights; one mask for all lanes and blocks. Reads of states and memories have no dropout."""
    attention: float = 0.0
    """Attention's contribution to the residual stream."""
    hidden: float = 0.0
    mlp: float = 0.0
    """The MLP's contribution to the residual stream."""
    final: float = 0.0
    """The input of the output layer."""


def dropouts(config: TokenLayersConfig) -> Dropouts:
    """The rates of the token direction: `dropout` at the places that `dropout_places` names, else 0."""
    p = config.dropout
    if config.dropout_places == "usual":
        return Dropouts(embedding=p, attention=p, hidden=p, mlp=p)
    return Dropouts(normed=p, weights=p, mlp=p, final=p)


def dropout_mask(like: Tensor, rate: float) -> Tensor | None:
    """Factors of the shape of ``like``: 0 with probability ``rate``, else 1 / (1 − rate). None if ``rate`` is 0."""
    return F.dropout(torch.ones_like(like), rate) if rate > 0 else None


class MLP(nn.Module):
    """Feed-forward with a ReLU and without biases."""

    def __init__(self, width: int, hidden: int, rates: Dropouts):
        super().__init__()
        self.hidden = linear(width, hidden)
        self.out = linear(hidden, width)
        self.hidden_dropout = nn.Dropout(rates.hidden)
        self.dropout = nn.Dropout(rates.mlp)

    def forward(self, x: Tensor) -> Tensor:
        # As rows: compiled code then finds the ReLU's sign, for the backward pass, in the tensor that the product keeps.
        rows = x.flatten(0, -2)
        return self.dropout(self.out(self.hidden_dropout(F.relu(self.hidden(rows))))).view(x.shape)


class Projections(NamedTuple):
    """Keys, values and both sets of queries of one direction, heads split: [..., H, n, E]."""

    k: Tensor
    v: Tensor
    q_self: Tensor
    q_cross: Tensor | None


class Projector(nn.Module):
    """Norm, then keys, values and one or two sets of queries in one product; queries and keys normalised, queries scaled."""

    def __init__(self, config: TokenLayersConfig, cross: bool, dropout: float = 0.0):
        super().__init__()
        self.heads = config.heads
        self.dropout = nn.Dropout(dropout)
        self.norm = RMSNorm(config.d_model)
        self.kvq = linear(config.d_model, (4 if cross else 3) * config.width)
        self.scale_H = nn.Parameter(torch.ones(config.heads))
        self.cross_scale_H = nn.Parameter(torch.ones(config.heads)) if cross else None

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Projections:
        """Project x […, n, D], after adding ``ids`` to the normed input (learned state IDs, section 3.2)."""
        x = self.norm(x)
        x = self.dropout(x if ids is None else x + ids)
        parts = 3 if self.cross_scale_H is None else 4
        k, v, q_self, *q_cross = (split_heads(part, self.heads) for part in self.kvq(x).chunk(parts, -1))
        cross = None if self.cross_scale_H is None else unit_norm(q_cross[0], self.cross_scale_H)
        return Projections(unit_norm(k), v, unit_norm(q_self, self.scale_H), cross)


def projector_costs(config: TokenLayersConfig, rows: int, cross: bool) -> Costs:
    """Costs of a `Projector` over ``rows`` vectors."""
    parts = 4 if cross else 3
    return product(rows, config.d_model, parts * config.width) + scales(config.d_model, (parts - 2) * config.heads)


def token_costs(
    config: TokenLayersConfig, pairs: int, computed_pairs: int, states: int = 0, position: bool = True
) -> Costs:
    """Costs of a layer's vertical direction over one block; with ``states``, its tokens also read that many state vectors."""
    d = config.d_model
    W = config.window
    return (
        projector_costs(config, W, cross=states > 0)
        + scales(PositionBias.BUCKETS * config.heads if position else 0)
        + attention(config.width, pairs, computed_pairs)
        + attention(config.width, W * states)
        + product(W, (2 if states else 1) * config.width, d)
        + scales(d)
        + product(W, d, config.mlp_dim)
        + product(W, config.mlp_dim, d)
    )


class Part(NamedTuple):
    """Tensors that all layers share when some tokens of one block are read."""

    places: Places
    bucket_BnZ: Tensor
    """Bucket of the distance between token and key."""
    unseen_BnZ: Tensor
    """bool. True for keys that a token does not see."""
    blind_BHn1: Tensor | None = None
    """bool. True for tokens that see nothing, as a document's first one under ``equations="paper"``; None if there are none."""


def last_block(tokens: Projections) -> State:
    """Keys and values of a segment's last block, copied: a view would hold all of the segment's until the next one is read."""
    return {"keys": each_block(tokens.k)[-1].clone(), "values": each_block(tokens.v)[-1].clone()}


def empty_cache(config: TokenLayersConfig, lanes: int, like: Tensor) -> State:
    """`last_block` before there is one: zeros, of the dtype and device of ``like``."""
    shape = (lanes, config.heads, config.window, config.head_dim)
    return {"keys": like.new_zeros(shape), "values": like.new_zeros(shape)}


class TokenLayer(nn.Module):
    """The vertical direction (section 3.1): self-attention in a window, in parallel with cross-attention to states when ``cross``;
    then the MLP.
    """

    def __init__(self, config: TokenLayersConfig, cross: bool, position: bool = True):
        super().__init__()
        self.config = config
        self.rates = dropouts(config)
        self.project = Projector(config, cross, self.rates.normed)
        self.position_bias = PositionBias(config.heads) if position else None
        self.out = linear((2 if cross else 1) * config.width, config.d_model)
        self.attention_dropout = nn.Dropout(self.rates.attention)
        self.mlp_norm = RMSNorm(config.d_model)
        self.mlp = MLP(config.d_model, config.mlp_dim, self.rates)

    def initial_cache(self, lanes: int) -> State:
        """The keys and values of no previous block: zeros."""
        return empty_cache(self.config, lanes, self.project.scale_H)

    def window(self, bucket_WZ: Tensor, unseen_WZ: Tensor) -> Window:
        """Bias and dropout of the window's attention, the same for every block. Arguments: those of `window_bias`."""
        bias_HWZ = window_bias(self.position_bias, self.project.scale_H, bucket_WZ, unseen_WZ)
        heads_HWZ = bias_HWZ.expand(self.config.heads, -1, -1)  # without positions, the bias has no heads of its own
        return Window(bias_HWZ, dropout_mask(heads_HWZ, self.rates.weights) if self.training else None)

    def combine(self, x_nD: Tensor, self_HnE: Tensor, cross_HnE: Tensor | None = None) -> Tensor:
        """Attention's output into the residual stream, then the MLP's; over any leading dimensions."""
        heads_nC = merge_heads(self_HnE) if cross_HnE is None else merge_heads(self_HnE, cross_HnE)
        x_nD = x_nD + self.attention_dropout(self.out(heads_nC))
        return x_nD + self.mlp(self.mlp_norm(x_nD))

    def open(self, state: State, shared_kv: Projections | None = None) -> State:
        """As `WindowedLayer.open`, with the projected states ``shared_kv`` if this layer's tokens read states."""
        block = {kind: torch.zeros_like(state[kind]) for kind in ("keys", "values")}
        if shared_kv is not None:
            block |= {"read_keys": shared_kv.k, "read_values": shared_kv.v}
        return block

    def step(
        self, x_BnD: Tensor, part: Part, before: Sequence[tuple[Tensor, Tensor]], block: State
    ) -> tuple[Projections, Tensor, State]:
        """Tokens of the current block attend to the keys and values ``before`` it, and to its own.

        Returns their projections, their heads [B, H, n, E], and the block with them.
        """
        tokens = self.project(x_BnD)
        after = append(part.places, tokens.k, tokens.v, block)
        bias_BHnZ = logit_bias(self.position_bias, self.project.scale_H, part.bucket_BnZ, part.unseen_BnZ)
        parts = [*before, (after["keys"], after["values"])]
        return tokens, attend_parts(tokens.q_self, parts, bias_BHnZ, part.blind_BHn1), after

    def finish(self, x_BnD: Tensor, tokens: Projections, heads_BHnE: Tensor, block: State) -> Tensor:
        """The layer's output for tokens that have attended to the window, and to states if it reads them."""
        cross = None
        if tokens.q_cross is not None:
            cross = attend(tokens.q_cross, block["read_keys"], block["read_values"])
        return self.combine(x_BnD, heads_BHnE, cross)

    def probes(self) -> list[Probe]:
        """If states are read, their share in the energy that attention adds."""
        if self.project.cross_scale_H is None:
            return []
        return [Probe("state_share", self.out, self._state_share)]

    def _state_share(self, heads: Tensor, _: Tensor) -> Tensor:
        """Share of the output's energy that comes from the states, which the second half of ``heads`` reads."""
        window, states = heads.chunk(2, -1)
        zeros = torch.zeros_like(window)
        apart = torch.stack([torch.cat([window, zeros], -1), torch.cat([zeros, states], -1)])
        window, states = self.out.forward(apart).float().square().flatten(1).mean(1)  # a call would run this hook again
        return states / (states + window)
