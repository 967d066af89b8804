"""The parts of a decoder with recurrence: a layer that takes h_prev, and the module that makes h_prev.

    layer = GPT2Layer(GPT2Config().sized())
    x_BTD = layer(x_BTD, position_BT, seen_BTm, prev_BND, None)
    recurrence = Recurrence(12, "mean", (768, 200, 200, 200, 768), 1)
    prev_BND = recurrence(prev_BND, sum_BTD, there_BT)

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

from recur_models.layers import MASKED, merge_heads

Pooling = Literal["mean", "max", "attention"]

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes keys and values of some slots, and gives those of all."""


class Prev(NamedTuple):
    """The tensors that the window before has left."""

    states_BND: Tensor
    """h_prev."""
    has_B: Tensor
    """Whether there was one."""


class DecoderLayer(nn.Module, ABC):
    """Attention, then the feed-forward, each added to the residual stream. A family's own layer says of what they are made."""

    one_graph = True

    def __init__(self, heads: int, kv_heads: int, head_dim: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.rate = dropout
        self.dropout = nn.Dropout(dropout)
        self.sources = nn.Identity()  # what comes of h_prev and what of the window, for those who watch it

    @abstractmethod
    def project(self, x_BnD: Tensor, position_Bn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, n, E], keys and values [B, G, n, E]. ``position_Bn``: in the window, from 0."""

    @abstractmethod
    def keys_values(self, prev_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of h_prev, which has no query: [B, G, N, E]."""

    @abstractmethod
    def output(self, heads_BnC: Tensor) -> Tensor:
        """Attention's contribution, from all heads side by side: [..., D]."""

    @abstractmethod
    def feed_forward(self, x_BnD: Tensor) -> Tensor:
        """The feed-forward block's contribution, the norm before it included."""

    def for_all(self, x_BGmE: Tensor) -> Tensor:
        """Keys or values for each head: [B, H, m, E]."""
        groups = self.heads // self.kv_heads
        return x_BGmE if groups == 1 else x_BGmE.repeat_interleave(groups, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None) -> Tensor:
        """Heads [B, H, n, E]. ``seen_Bnm``: bool, of h_prev's keys too where there is one, which stand first."""
        rate = self.rate if self.training else 0.0
        k = self.for_all(k)
        v = self.for_all(v)
        if prev_BND is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_Bnm[:, None], dropout_p=rate)
        k_prev, v_prev = (self.for_all(of_prev) for of_prev in self.keys_values(prev_BND))
        logits = q @ torch.cat([k_prev, k], 2).transpose(-1, -2) / q.shape[-1] ** 0.5
        weights = torch.softmax(logits.masked_fill(~seen_Bnm[:, None], MASKED), -1).to(v.dtype)
        n = prev_BND.shape[1]
        of_prev, of_window = F.dropout(weights, rate).split([n, k.shape[2]], -1)
        return self.sources(torch.stack([of_prev @ v_prev, of_window @ v])).sum(0)

    def forward(
        self, x_BnD: Tensor, position_Bn: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """``cache``: takes the tokens' keys and values, and gives those of all slots; None where the tokens are all."""
        q, k, v = self.project(x_BnD, position_Bn)
        k, v = (k, v) if cache is None else cache(k, v)
        heads_BnC = merge_heads(self.attend(q, k, v, seen_Bnm, prev_BND))
        x_BnD = x_BnD + self.dropout(self.output(heads_BnC))
        return x_BnD + self.dropout(self.feed_forward(x_BnD))

    def prev_share(self, sources: Tensor, _: Tensor) -> Tensor:
        """Share of the energy that attention adds which comes from h_prev. ``sources``: [2, B, H, n, E]."""
        heads = merge_heads(sources).to(next(self.parameters()).dtype)
        with torch.autocast(heads.device.type, enabled=False):
            bias_D = self.output(torch.zeros_like(heads[0, 0, 0]))
            prev, window = (self.output(heads) - bias_D).float().square().flatten(1).mean(1)
        return prev / (prev + window)


class Recurrence(nn.Module):
    """h_prev of a window's hidden states (GPT-2 paper, section 3.1).

    Equation 1 is printed as a sum over positions, and the text says that they are mean-pooled: z is the mean. The two differ by
    the number of tokens, which a document's last window has fewer of.
    """

    def __init__(self, layers: int, pooling: Pooling, sizes: Sequence[int], embeddings: int):
        """``sizes``: D, the hidden sizes of the feed-forward, N · D."""
        super().__init__()
        self.pooling: Pooling = pooling
        self.embeddings = embeddings
        self.layer_weights_L = nn.Parameter(torch.zeros(layers))  # α
        self.key_D = nn.Parameter(torch.zeros(sizes[0])) if pooling == "attention" else None
        self.steps = nn.ModuleList(nn.Linear(size, to) for size, to in pairwise(sizes))

    def forward(self, prev_BND: Tensor, sum_BTD: Tensor, there_BT: Tensor) -> Tensor:
        """h_prev for the next window, of the layers' weighted sum where there is a token. ``prev_BND``: what it was before, for
        those who watch how it changes."""
        x_BD = self.pool(sum_BTD, there_BT)
        for step in self.steps[:-1]:
            x_BD = F.gelu(step(x_BD), approximate="tanh")
        return self.steps[-1](x_BD).unflatten(-1, (self.embeddings, -1))

    def pool(self, sum_BTD: Tensor, there_BT: Tensor) -> Tensor:
        """z [B, D]."""
        there_BT1 = there_BT[..., None]
        if self.pooling == "max":
            return sum_BTD.masked_fill(~there_BT1, MASKED).amax(1)
        if self.key_D is None:
            return sum_BTD.masked_fill(~there_BT1, 0.0).sum(1) / there_BT1.sum(1)
        logits_BT = (sum_BTD * self.key_D).sum(-1) / len(self.key_D) ** 0.5
        weights_BT = torch.softmax(logits_BT.masked_fill(~there_BT, MASKED), 1)
        return (weights_BT[..., None] * sum_BTD.masked_fill(~there_BT1, 0.0)).sum(1)

    @staticmethod
    def change(before_BND: Tensor, after_BND: Tensor) -> Tensor:
        """rms of the change of h_prev over its rms before, of the lanes that had one; 1 where none had."""
        had_B11 = (before_BND != 0).flatten(1).any(1)[:, None, None]
        was = before_BND.float().square().sum()
        changed = ((after_BND.float() - before_BND.float()) * had_B11).square().sum()
        return torch.where(was > 0, (changed / was.clamp(min=1e-30)).sqrt(), 1.0)
