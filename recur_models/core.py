"""The transformer core of the staircase paper (section 3.1 and its released code), the base of its models' layers.

Pre-norm with layer norms; projections without a bias, a ReLU feed-forward with biases; embeddings and output layer apart. The
distance of a key is a learned embedding: logits = (q·k + q·e[distance]) / √E, with one table e [E, P] for all layers.

Missing keys at a document's start (``absent``): the released code has zeros there, which enter every layer as tokens do, so
their logit is q·(k₀ + e[distance]) and their value v₀, with k₀ and v₀ made of the norm's bias; "masked" leaves them out.

Dropout acts on embeddings, attention's output, the feed-forward's hidden layer and the feed-forward's output.

Letters: B lanes · T tokens · K blocks · n queries · m keys · H heads · E head size · P distances · D width · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, attention, product, scales, tied_logits
from recur_models.layers import (
    MASKED,
    is_plain,
    joined,
    linear_part,
    merge_heads,
    scores,
    shift_rows,
    split_heads,
    weighted_values,
)
from recur_models.losses import untied_output
from recur_models.protocol import ModelConfig, RecurrentModel, check_sizes


@dataclass(frozen=True)
class CoreConfig(ModelConfig):
    """The sizes of the core."""

    layers: int = 4
    """Layers of the core."""
    d_model: int = 256
    """Width of the residual stream."""
    heads: int = 4
    """Attention heads."""
    head_dim: int = 64
    """Size of one head."""
    mlp_dim: int = 1024
    """Hidden size of the feed-forward."""
    absent: Literal["zeros", "masked"] = "zeros"
    """The keys before a document's first token: zeros (released code), or none (paper)."""
    dropout: float = 0.0
    """Share of activations dropped."""

    def __post_init__(self) -> None:
        check_sizes(self)

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    def layer_costs(self, rows: int, pairs: int, computed_pairs: int, distances: int, cached: int = 0) -> Costs:
        """Costs of a layer over ``rows`` tokens; each query is multiplied with ``distances`` distances. ``cached``: tokens of which
        only keys and values are made. The table of distances is not among the parameters: there is one for all layers.
        """
        d = self.d_model
        w = self.width
        f = self.mlp_dim
        projected = product(rows, d, 3 * w) + product(rows, w, d) + product(rows, d, f) + product(rows, f, d)
        attended = attention(w, pairs, computed_pairs) + replace(
            product(rows * self.heads, self.head_dim, distances), parameters=0
        )
        return projected + attended + replace(product(cached, d, 2 * w), parameters=0) + scales(f, d, 4 * d)

    def outer_costs(self, vocab_size: int, distances: int) -> Costs:
        """Embeddings, the table of distances, final norm and output layer, of a block's own tokens."""
        own = scales(vocab_size, 2 * self.d_model, self.head_dim * distances, vocab_size * self.d_model)
        return tied_logits(self.block, self.d_model, vocab_size) + own


Parts = Sequence[tuple[Tensor, Tensor]]
"""Pairs of keys and values [..., H, m, E], in the order of their tokens."""


Context = list[tuple[Tensor, Tensor]]
"""Each layer's keys and values of tokens that are only attended to: [B, H, m, E]."""


class Seen(NamedTuple):
    """Which keys some queries see, the same for all layers."""

    unseen_nm: Tensor | None
    """bool. Keys after a query, or too far before it; None if there are none, or the distance decides it."""
    crossing_Bnm: Tensor | None
    """bool, broadcast to [..., n, m]. Keys of other documents than the query's; None if there are none."""


class CoreLayer(nn.Module):
    """Attention and feed-forward, each with the norm before it."""

    one_graph = True

    def __init__(self, config: CoreConfig):
        super().__init__()
        d = config.d_model
        self.config = config
        self.norm = nn.LayerNorm(d)
        self.mlp_norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, d, bias=False)
        self.hidden = nn.Linear(d, config.mlp_dim)
        self.mlp_out = nn.Linear(config.mlp_dim, d)
        self.dropout = nn.Dropout(config.dropout)
        self.weights = nn.Identity()  # passes on the attention weights, for probes

    def project(self, x_nD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., H, n, E]; the queries are divided by √E."""
        q, k, v = (split_heads(part, self.config.heads) for part in self.qkv(self.norm(x_nD)).chunk(3, -1))
        return q / self.config.head_dim**0.5, k, v

    def query_weight(self) -> Tensor | None:
        """The rows of `qkv` that make queries; None where `qkv` must be called (`layers.is_plain`)."""
        return self.qkv.weight[: self.config.width] if is_plain(self.qkv) else None

    def queries(self, x_nD: Tensor, weight: Tensor | None) -> Tensor:
        """Queries alone, for tokens that attend to keys made elsewhere: [..., H, n, E], divided by √E.

        ``weight``: `query_weight`.
        """
        x_nD = self.norm(x_nD)
        made = linear_part(self.qkv, x_nD, slice(self.config.width)) if weight is None else F.linear(x_nD, weight)
        return split_heads(made, self.config.heads) / self.config.head_dim**0.5

    def keys_values(self, x_nD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens that are only attended to: [B, H, n, E] each."""
        made = linear_part(self.qkv, self.norm(x_nD), slice(self.config.width, None))
        k, v = (split_heads(part, self.config.heads) for part in made.chunk(2, -1))
        return k, v

    def zero_key_value(self) -> tuple[Tensor, Tensor]:
        """Key and value of a zero vector, which are those of the norm's bias: [H, 1, E]."""
        made = linear_part(self.qkv, self.norm.bias, slice(self.config.width, None))
        k, v = (part.unflatten(-1, (self.config.heads, 1, -1)) for part in made.chunk(2, -1))
        return k, v

    def attend(
        self,
        q_HnE: Tensor,
        parts: Parts,
        distance_Hnm: Tensor,
        seen: Seen,
        zero_key_value: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """softmax(q·k + q·e)·v over any leading dimensions [..., H, n, E] (the released code; section 3.1 names Shaw et al. 2018).

        Under "masked", a key of another document is not seen, and a query that sees nothing gets 0. Under "zeros", a zero vector
        stands in place of each token of another document: its key is k₀, and its value v₀.

        Args:
            q_HnE: queries, divided by √E.
            parts: keys and values; kept ones may have another dtype than the queries.
            distance_Hnm: q·e[distance].
            seen: which keys the queries see.
            zero_key_value: k₀ and v₀ of the layer that makes the keys, if they are known already.
        """
        parts = [(k.to(q_HnE.dtype), v.to(q_HnE.dtype)) for k, v in parts]
        logits = torch.cat([scores(q_HnE, k) for k, _ in parts], dim=-1)
        unseen = seen.unseen_nm
        if seen.crossing_Bnm is None:
            return weighted_values(self.weights(masked_softmax(logits + distance_Hnm, unseen)), parts)
        crossing = seen.crossing_Bnm.unsqueeze(-3)
        if self.config.absent == "masked":
            unseen = crossing if unseen is None else unseen | crossing
            weights = masked_softmax(logits + distance_Hnm, unseen)
            weights = weights.masked_fill(unseen.all(-1, keepdim=True), 0.0)
            return weighted_values(self.weights(weights), parts)
        k0, v0 = zero_key_value or self.zero_key_value()
        logits = torch.where(crossing, q_HnE @ k0.transpose(-1, -2), logits)
        weights = self.weights(masked_softmax(logits + distance_Hnm, unseen))
        heads = weighted_values(weights.masked_fill(crossing, 0.0), parts)
        return heads + (weights * crossing).sum(-1, keepdim=True) * v0

    def finish(self, x_nD: Tensor, heads_HnE: Tensor) -> Tensor:
        """Attention's output into the residual stream, then the feed-forward's; over any leading dimensions."""
        x_nD = x_nD + self.dropout(self.out(merge_heads(heads_HnE)))
        return x_nD + self.dropout(self.mlp_out(self.dropout(F.relu(self.hidden(self.mlp_norm(x_nD))))))

    def forward(
        self,
        x_nD: Tensor,
        context: tuple[Tensor, Tensor] | None,
        distances: Distances,
        unseen_nm: Tensor,
        crossing_Bnm: Tensor | None,
        window: int = 0,
    ) -> Tensor:
        """Tokens see one another and a ``context`` of earlier keys and values [..., H, m − n, E].

        ``window``: if it is given, tokens [B, T, D] come in blocks of this many. Each block sees itself and as many keys before it
        as the context has; ``unseen_nm`` is then for one block, and ``crossing_Bnm`` is [B, K, n, m].
        """
        q, k, v = self.project(x_nD)
        if context is not None:
            k, v = joined(context, (k, v))
        if window:
            q = q.unflatten(2, (-1, window)).transpose(1, 2)
            seen_by_each = unseen_nm.shape[1]
            k, v = (each.unfold(2, seen_by_each, window).permute(0, 2, 1, 4, 3) for each in (k, v))
        seen = Seen(unseen_nm, crossing_Bnm)
        heads_HnE = self.attend(q, [(k, v)], distances.of(q, k.shape[-2]), seen)
        return self.finish(x_nD, heads_HnE.transpose(1, 2).flatten(2, 3) if window else heads_HnE)


def masked_softmax(logits_nm: Tensor, unseen_nm: Tensor | None) -> Tensor:
    """softmax over the keys, without those that a query does not see (bool); None if it sees all: [..., n, m]."""
    return torch.softmax(logits_nm if unseen_nm is None else logits_nm.masked_fill(unseen_nm, MASKED), dim=-1)


class Distances(NamedTuple):
    """The table of distances, and whether a token sees itself."""

    table_EP: Tensor
    """Its last column is that of the nearest token that is seen: the token itself, or the one before it."""
    itself: bool

    @property
    def span(self) -> int:
        """The most tokens that a token sees."""
        return self.table_EP.shape[1]

    @property
    def nearest(self) -> int:
        """Distance of the nearest token that is seen."""
        return 0 if self.itself else 1

    def between(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Distances from queries to keys, int64 [n, m]; negative for keys after the query. The last keys are the queries' own."""
        return torch.arange(queries, device=device)[:, None] + (keys - queries) - torch.arange(keys, device=device)

    def unseen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Keys after a query or too far before it: bool [n, m]."""
        far = self.between(queries, keys, device) - self.nearest
        return (far < 0) | (far >= self.span)

    def of(self, q_HnE: Tensor, keys: int) -> Tensor:
        """q·e[distance] for this many keys, of which the last are the queries' own: [..., H, n, m].

        q·e is computed for all distances, and rows are then shifted, so that no table of n × m embeddings is made. A key that is
        not seen gets the value of another distance. The first query must have no key further before it than the span.
        """
        n = q_HnE.shape[-2]
        first = self.span - 1 - (keys - n - self.nearest)  # column of the first query's distance to the first key
        table_EP = self.table_EP[:, max(first - n, 0) :]  # without distances that no query here has
        first = min(first, n)
        product_HnP = q_HnE @ table_EP
        wide_HnP = F.pad(product_HnP, (0, max(keys + 1 - product_HnP.shape[-1], 0)))
        return shift_rows(wide_HnP, first, keys)

    def columns(self, distance_Bnm: Tensor) -> Tensor:
        """The table's columns of given distances, int64 [B, n, m]; for one that is not seen, the column of another. All layers
        share them.
        """
        return (self.span - 1 - (distance_Bnm - self.nearest)).clamp(0, self.span - 1)

    def at(self, q_BHnE: Tensor, column_Bnm: Tensor) -> Tensor:
        """q·e at given `columns` of the table: [B, H, n, m]."""
        index_BHnm = column_Bnm[:, None].expand(-1, q_BHnE.shape[1], -1, -1)
        return torch.gather(q_BHnE @ self.table_EP, -1, index_BHnm)


class CoreModel(RecurrentModel):
    """Embeddings, the core's layers, final norm and output layer. Each model defines how tokens pass through them."""

    def __init__(self, config: CoreConfig, vocab_size: int, span: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.block = config.block
        self.embedding = nn.Embedding(vocab_size, config.d_model)  # N(0, 1)
        self.dropout = nn.Dropout(config.dropout)
        self.distances_EP = nn.Parameter(torch.randn(config.head_dim, span))
        self.layers: Any = nn.ModuleList(CoreLayer(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.d_model)
        self.output = nn.Linear(config.d_model, vocab_size)

    def head(self, x_BTD: Tensor, targets_BT: Tensor | None) -> Tensor:
        """Nats [B, T] where there are targets, else logits [B, T, V]."""
        return untied_output(self.final_norm(x_BTD), self.output, targets_BT)


def documents(count_B: Tensor, slots: int, fresh_BK: Tensor) -> Tensor:
    """Which document each slot of the State and each block belongs to: int64 [B, slots + K], −1 where a slot is empty.

    ``count_B``: how many slots are filled, the last ones. Their document continues unless the first block is fresh.
    """
    filled_BS = torch.arange(slots, device=fresh_BK.device) >= slots - count_B[:, None]
    return torch.cat([filled_BS.long() - 1, fresh_BK.long().cumsum(1)], dim=1)


def documents_of_tokens(document_BS: Tensor, slots: int, block: int) -> Tensor:
    """`documents` with an entry for each token of a block in place of one for the block: int64 [B, slots + K · block]."""
    return torch.cat([document_BS[:, :slots], document_BS[:, slots:].repeat_interleave(block, dim=1)], dim=1)


def in_newest(document_BS: Tensor) -> Tensor:
    """Whether each slot belongs to the newest document, the last slot's: bool [B, S]. The next State has zeros in all others."""
    return document_BS == document_BS[:, -1:]
