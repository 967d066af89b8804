"""What GPT-2 with recurrence is made of: a layer that h_prev can be put into, and the module that makes h_prev.

    layer = GPT2Layer(768, heads=12, mlp_dim=3072, layers=12, dropout=0.1)
    x_BTD = layer(x_BTD, seen_BTm, prev_BND, None)
    recurrence = Recurrence(12, "mean", (768, 200, 200, 200, 768), 1)
    prev_BND = recurrence(prev_BND, sum_BTD, there_BT)

Letters: B lanes · T tokens of a window: W of its block behind O of the overlap · n queries · m keys · N embeddings of h_prev ·
H heads · E head size · D width · L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.layers import MASKED, merge_heads, split_heads

Pooling = Literal["mean", "max", "attention"]

Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes keys and values of some slots, and gives those of all."""


class Prev(NamedTuple):
    """What the window before has left."""

    states_BND: Tensor
    """h_prev."""
    has_B: Tensor
    """Whether there was one."""


class Affine(nn.Module):
    """transformers' Conv1D: x·weight + bias, so that its weights [in, out] fit."""

    def __init__(self, fan_in: int, fan_out: int, std: float = 0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) * std)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T, self.bias)


class GPT2Layer(nn.Module):
    """Attention, then the MLP; each normed before."""

    def __init__(self, d: int, heads: int, mlp_dim: int, layers: int, dropout: float):
        """``layers``: of the stack; GPT-2 begins what adds to the residual stream the smaller, the more there are."""
        super().__init__()
        self.heads, self.rate, std = heads, dropout, 0.02 / (2 * layers) ** 0.5
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn: Any = nn.ModuleDict({"c_attn": Affine(d, 3 * d), "c_proj": Affine(d, d, std)})
        self.mlp: Any = nn.ModuleDict({"c_fc": Affine(d, mlp_dim), "c_proj": Affine(mlp_dim, d, std)})
        self.dropout = nn.Dropout(dropout)
        self.sources = nn.Identity()  # what comes of h_prev and what of the window, for those who watch it

    def project(self, x_BnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, n, E]."""
        q, k, v = (split_heads(part, self.heads) for part in self.attn["c_attn"](self.ln_1(x_BnD)).chunk(3, -1))
        return q, k, v

    def keys_values(self, prev_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Of h_prev, which has no query."""
        made, d = self.attn["c_attn"], prev_BND.shape[-1]
        both = F.linear(self.ln_1(prev_BND), made.weight.T[d:], made.bias[d:])
        k, v = (split_heads(part, self.heads) for part in both.chunk(2, -1))
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None) -> Tensor:
        """Heads [B, H, n, E]. ``seen_Bnm``: bool, of h_prev's keys too where there is one, which stand first."""
        rate = self.rate if self.training else 0.0
        if prev_BND is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_Bnm[:, None], dropout_p=rate)
        k_prev, v_prev = self.keys_values(prev_BND)
        logits = q @ torch.cat([k_prev, k], 2).transpose(-1, -2) / q.shape[-1] ** 0.5
        weights = torch.softmax(logits.masked_fill(~seen_Bnm[:, None], MASKED), -1).to(v.dtype)
        n = prev_BND.shape[1]
        of_prev, of_window = F.dropout(weights, rate).split([n, k.shape[2]], -1)
        return self.sources(torch.stack([of_prev @ v_prev, of_window @ v])).sum(0)

    def finish(self, x_BnD: Tensor, heads_BHnE: Tensor) -> Tensor:
        x_BnD = x_BnD + self.dropout(self.attn["c_proj"](merge_heads(heads_BHnE)))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x_BnD)), approximate="tanh")
        return x_BnD + self.dropout(self.mlp["c_proj"](hidden))

    def forward(self, x_BnD: Tensor, seen_Bnm: Tensor, prev_BND: Tensor | None, cache: Cache | None) -> Tensor:
        """``cache``: takes the tokens' keys and values, and gives those of all slots; None where the tokens are all."""
        q, k, v = self.project(x_BnD)
        k, v = (k, v) if cache is None else cache(k, v)
        return self.finish(x_BnD, self.attend(q, k, v, seen_Bnm, prev_BND))

    def prev_share(self, sources: Tensor, _: Tensor) -> Tensor:
        """Of the energy that attention adds, the part that comes of h_prev. ``sources``: [2, B, H, n, E]."""
        weight = self.attn["c_proj"].weight.to(sources.dtype)
        prev, window = ((merge_heads(part) @ weight).float().square().mean() for part in sources)
        return prev / (prev + window)


class Recurrence(nn.Module):
    """h_prev of a window's hidden states."""

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
