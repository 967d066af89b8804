"""A decoder's layer, which takes h_prev.

    layer = GPT2Layer(GPT2Config().sized())
    x_BTD = layer(x_BTD, position_BT, seen_BTm, prev_BPD, None)

Letters: B lanes · T tokens of a window: W of its block behind O of the overlap · n queries · m keys · P vectors of h_prev that the
layer reads · H heads, which share the keys and values of G · E head size · D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.layers import MASKED, fused_attention_is_slow, joined, merge_heads

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes the keys and values of some slots of a window, and returns those of all its slots."""


class Prev(NamedTuple):
    """The recurrence's input to a window, from the window before."""

    states_BND: Tensor
    """h_prev."""
    has_B: Tensor
    """bool. Whether there was a window before."""


def attention_weights(q: Tensor, k: Tensor, seen_Bnm: Tensor, rate: float) -> Tensor:
    """The weight of each key for each query, after dropout at ``rate``: [B, H, n, m]. ``seen_Bnm``: bool, keys that it sees."""
    if fused_attention_is_slow(q):
        logits = masked_logits(q, k, seen_Bnm)
    else:
        logits = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen_Bnm[:, None], MASKED)
    weights = torch.softmax(logits, -1).to(q.dtype)
    return F.dropout(weights, rate)


def masked_logits(q: Tensor, k: Tensor, seen_Bnm: Tensor) -> Tensor:
    """Scaled logits [B, H, n, m], MASKED added where a query does not see a key. The product scales and adds, so that no pass over
    the logits does (results/speed).
    """
    bias_Bnm = q.new_zeros(seen_Bnm.shape).masked_fill(~seen_Bnm, MASKED)
    bias = bias_Bnm[:, None].expand(-1, q.shape[1], -1, -1).flatten(0, 1)
    logits = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).transpose(-1, -2), alpha=q.shape[-1] ** -0.5)
    return logits.unflatten(0, q.shape[:2])


def split_at(x: Tensor, size: int, dim: int) -> tuple[Tensor, Tensor]:
    """The first ``size`` along a dimension, and the rest."""
    first, rest = x.split([size, x.shape[dim] - size], dim)
    return first, rest


class DecoderLayer(nn.Module, ABC):
    """Attention, then the feed-forward, each added to the residual stream. A family's subclass has the projections."""

    one_graph = True

    def __init__(self, heads: int, kv_heads: int, head_dim: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.rate = dropout
        self.dropout = nn.Dropout(dropout)
        self.from_prev = nn.Identity()  # a probe reads here what the heads get from h_prev,
        self.attended = nn.Identity()  # and here what they get in all

    @abstractmethod
    def project(self, x_BnD: Tensor, position_Bn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, n, E], keys and values [B, G, n, E]. ``position_Bn``: int64, positions in the window from 0; those of
        h_prev end at −1."""

    @abstractmethod
    def output(self, heads_BnC: Tensor) -> Tensor:
        """Attention's addition to the residual stream [..., D]. ``heads_BnC``: its heads side by side."""

    @abstractmethod
    def feed_forward(self, x_BnD: Tensor) -> Tensor:
        """The feed-forward's addition to the residual stream, with the norm before it: [B, n, D]."""

    def repeat_heads(self, x_BGmE: Tensor) -> Tensor:
        """The keys or values of each query's head: [B, H, m, E]."""
        groups = self.heads // self.kv_heads
        return x_BGmE if groups == 1 else x_BGmE.repeat_interleave(groups, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen_Bnm: Tensor, embeddings: int) -> Tensor:
        """Attention's heads [B, H, n, E].

        ``seen_Bnm``: bool, whether a query sees a key. ``embeddings``: how many keys are h_prev's; they stand first.
        """
        rate = self.rate if self.training else 0.0
        if not embeddings and not fused_attention_is_slow(q):
            k = self.repeat_heads(k)
            v = self.repeat_heads(v)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_Bnm[:, None], dropout_p=rate)
        # The queries of heads that share keys stand one below the other.
        groups = self.heads // self.kv_heads
        q = q.unflatten(1, (self.kv_heads, groups)).flatten(2, 3)
        weights = attention_weights(q, k, seen_Bnm.repeat(1, groups, 1), rate)
        if not embeddings:
            return self.separate_heads(weights @ v)
        to_prev, to_window = split_at(weights, embeddings, -1)
        v_prev, v_window = split_at(v, embeddings, 2)
        from_prev = self.from_prev(self.separate_heads(to_prev @ v_prev))
        return self.attended(from_prev + self.separate_heads(to_window @ v_window))

    def separate_heads(self, x_BGnE: Tensor) -> Tensor:
        """[B, H, n, E] from heads that share keys and stand one below the other."""
        return x_BGnE.unflatten(2, (self.heads // self.kv_heads, -1)).flatten(1, 2)

    def forward(
        self, x_BnD: Tensor, position_Bn: Tensor, seen_Bnm: Tensor, prev_BPD: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """The residual stream after the layer [B, n, D]; ``position_Bn`` and ``seen_Bnm`` are those of `project` and `attend`.

        ``prev_BPD``: h_prev, which joins the layer's inputs and has no query. ``cache``: None if the tokens fill all slots of the
        window.
        """
        rows = x_BnD
        positions = position_Bn
        embeddings = 0
        if prev_BPD is not None:
            embeddings = prev_BPD.shape[1]
            lanes = len(x_BnD)
            before_P = torch.arange(-embeddings, 0, device=position_Bn.device)
            positions = torch.cat([before_P.expand(lanes, -1), position_Bn.expand(lanes, -1)], 1)
            rows = torch.cat([prev_BPD.to(x_BnD.dtype), x_BnD], 1)
        q, k, v = self.project(rows, positions)
        if cache is not None:
            k_prev, k = split_at(k, embeddings, 2)
            v_prev, v = split_at(v, embeddings, 2)
            k, v = joined((k_prev, v_prev), cache(k, v))  # the cache holds only tokens
        heads_BnC = merge_heads(self.attend(q[:, :, embeddings:], k, v, seen_Bnm, embeddings))
        x_BnD = x_BnD + self.dropout(self.output(heads_BnC))
        return x_BnD + self.dropout(self.feed_forward(x_BnD))

    def prev_share(self, from_prev: Tensor, attended: Tensor) -> Tensor:
        """h_prev's share of the energy that attention adds to the residual stream, of heads [B, H, n, E]."""
        dtype = next(each.dtype for each in self.parameters() if each.dim() > 1)
        heads = merge_heads(torch.stack([from_prev, attended - from_prev])).to(dtype)
        with torch.autocast(heads.device.type, enabled=False):
            bias_D = self.output(torch.zeros_like(heads[0, 0, 0]))
            prev, window = (self.output(heads) - bias_D).float().square().flatten(1).mean(1)
        return prev / (prev + window)
