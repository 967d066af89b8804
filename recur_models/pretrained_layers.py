"""The parts of a decoder with recurrence: a layer that takes h_prev, and the module that makes h_prev.

    layer = GPT2Layer(GPT2Config().sized())
    x_BTD = layer(x_BTD, position_BT, seen_BTm, prev_BND, None)
    recurrence = Recurrence(12, "mean", (768, 200, 200, 200, 768), 1)
    prev_BND = recurrence(prev_BND, sum_BTD, valid_BT)

Letters: B lanes · T tokens of a window: W of its block behind O of the overlap · n queries · m keys · N embeddings of h_prev ·
H heads, which share the keys and values of G · E head size · D width · L layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.layers import MASKED, fused_attention_is_slow, merge_heads

Pooling = Literal["mean", "max", "attention"]

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes the keys and values of some slots of a window, and returns those of all its slots."""


class Prev(NamedTuple):
    """What a window gets from the one before."""

    states_BND: Tensor
    """h_prev."""
    has_B: Tensor
    """bool. Whether there was a window before."""


def attention_weights(q: Tensor, k: Tensor, seen_Bnm: Tensor, rate: float) -> Tensor:
    """What each query gives each key after dropout at this rate [B, H, n, m]. ``seen_Bnm``: bool, whether it sees it."""
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    weights = torch.softmax(logits.masked_fill(~seen_Bnm[:, None], MASKED), -1).to(q.dtype)
    return F.dropout(weights, rate)


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
        self.sources = nn.Identity()  # a probe reads here what comes from h_prev and what from the window

    @abstractmethod
    def project(self, x_BnD: Tensor, position_Bn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, n, E], keys and values [B, G, n, E]. ``position_Bn``: int64, positions in the window from 0."""

    @abstractmethod
    def keys_values(self, prev_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of h_prev, which has no query: [B, G, N, E]."""

    @abstractmethod
    def output(self, heads_BnC: Tensor) -> Tensor:
        """What attention adds to the residual stream [..., D]. ``heads_BnC``: its heads side by side."""

    @abstractmethod
    def feed_forward(self, x_BnD: Tensor) -> Tensor:
        """What the feed-forward adds to the residual stream, with the norm before it: [B, n, D]."""

    def repeat_heads(self, x_BGmE: Tensor) -> Tensor:
        """The keys or values of each query's head: [B, H, m, E]."""
        groups = self.heads // self.kv_heads
        return x_BGmE if groups == 1 else x_BGmE.repeat_interleave(groups, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None) -> Tensor:
        """Attention's heads [B, H, n, E]. ``seen_Bnm``: bool, whether a query sees a key; with h_prev, its N keys stand first."""
        rate = self.rate if self.training else 0.0
        if prev_BND is None and fused_attention_is_slow(q):
            # The queries of heads that share keys stand one below the other.
            groups = self.heads // self.kv_heads
            q = q.unflatten(1, (self.kv_heads, groups)).flatten(2, 3)
            heads = attention_weights(q, k, seen_Bnm.repeat(1, groups, 1), rate) @ v
            return heads.unflatten(2, (groups, -1)).flatten(1, 2)
        k = self.repeat_heads(k)
        v = self.repeat_heads(v)
        if prev_BND is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_Bnm[:, None], dropout_p=rate)
        k_prev, v_prev = (self.repeat_heads(x_BGNE) for x_BGNE in self.keys_values(prev_BND))
        weights = attention_weights(q, torch.cat([k_prev, k], 2), seen_Bnm, rate)
        weights_prev, weights_window = weights.split([k_prev.shape[2], k.shape[2]], -1)
        return self.sources(torch.stack([weights_prev @ v_prev, weights_window @ v])).sum(0)

    def forward(
        self, x_BnD: Tensor, position_Bn: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """The residual stream after the layer [B, n, D]; the arguments are those of `project` and `attend`.

        ``cache``: None if the tokens fill all slots of the window.
        """
        q, k, v = self.project(x_BnD, position_Bn)
        if cache is not None:
            k, v = cache(k, v)
        heads_BnC = merge_heads(self.attend(q, k, v, seen_Bnm, prev_BND))
        x_BnD = x_BnD + self.dropout(self.output(heads_BnC))
        return x_BnD + self.dropout(self.feed_forward(x_BnD))

    def prev_share(self, sources: Tensor, _: Tensor) -> Tensor:
        """h_prev's share of the energy that attention adds to the residual stream. ``sources``: [2, B, H, n, E]."""
        heads = merge_heads(sources).to(next(self.parameters()).dtype)
        with torch.autocast(heads.device.type, enabled=False):
            bias_D = self.output(torch.zeros_like(heads[0, 0, 0]))
            prev, window = (self.output(heads) - bias_D).float().square().flatten(1).mean(1)
        return prev / (prev + window)


class Recurrence(nn.Module):
    """Makes h_prev from a window's hidden states (Yoshida et al. 2020, section 3.1).

    Equation 1 prints a sum over positions, but the text says mean-pooled. Here z is the mean: the two differ by the number of
    tokens, of which a document's last window has fewer.
    """

    def __init__(self, layers: int, pooling: Pooling, sizes: Sequence[int], embeddings: int):
        """``sizes``: those of the feed-forward's layers, from D through the hidden ones to N · D."""
        super().__init__()
        self.pooling: Pooling = pooling
        self.embeddings = embeddings
        self.layer_weights_L = nn.Parameter(torch.zeros(layers))  # α
        self.key_D = nn.Parameter(torch.zeros(sizes[0])) if pooling == "attention" else None
        self.steps = nn.ModuleList(nn.Linear(size, to) for size, to in pairwise(sizes))

    def forward(self, prev_BND: Tensor, sum_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """h_prev for the next window: [B, N, D].

        ``prev_BND``: this window's h_prev, which only a probe reads. ``sum_BTD``: Σ w_ℓ h^(ℓ). ``valid_BT``: bool, True where the
        window has a token.
        """
        x_BD = self.pool(sum_BTD, valid_BT)
        for step in self.steps[:-1]:
            x_BD = F.gelu(step(x_BD), approximate="tanh")
        return self.steps[-1](x_BD).unflatten(-1, (self.embeddings, -1))

    def pool(self, sum_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """z [B, D]."""
        valid_BT1 = valid_BT[..., None]
        if self.pooling == "max":
            return sum_BTD.masked_fill(~valid_BT1, MASKED).amax(1)
        if self.key_D is None:
            return sum_BTD.masked_fill(~valid_BT1, 0.0).sum(1) / valid_BT1.sum(1)
        logits_BT = (sum_BTD * self.key_D).sum(-1) / len(self.key_D) ** 0.5
        weights_BT = torch.softmax(logits_BT.masked_fill(~valid_BT, MASKED), 1)
        return (weights_BT[..., None] * sum_BTD.masked_fill(~valid_BT1, 0.0)).sum(1)

    @staticmethod
    def change(before_BND: Tensor, after_BND: Tensor) -> Tensor:
        """rms of h_prev's change over its rms before, on the lanes that had one; 1 if none had."""
        had_B11 = (before_BND != 0).flatten(1).any(1)[:, None, None]
        energy = before_BND.float().square().sum()
        change = ((after_BND.float() - before_BND.float()) * had_B11).square().sum()
        return torch.where(energy > 0, (change / energy.clamp(min=1e-30)).sqrt(), 1.0)
