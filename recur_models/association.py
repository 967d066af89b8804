"""The associative memory of ARMT: memory tokens write keys and values into it by the delta rule (arXiv 2407.04841).

    x ← x + Aᵀφ(W_q x) / (z·φ(W_q x) + ε)                                                     read
    k = φ(W_k m),   v̄ = Aᵀk / (z·k + ε),   γ = 1 − z·k / (|k|² + ε)
    A ← A + Σ σ(W_β m) k (W_v m − v̄)ᵀ,   z ← z + Σ γ k                                       write

γ is cut to 0 … 1 and has no gradient. φ is DPFP-3 (Schlag et al. 2021): products of relu([x, −x]) and itself moved by 1, 2 and 3.
State: ``states`` [B, P, D + 1], A with z as its last column; zeros before a document.

Letters: see layers.py; S memory tokens · n tokens · P features · Z = D + 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear
from recur_models.mixer import Carried, upcast

MOVES = 3
"""ν of DPFP: by how many places at most features are moved."""
LEAST = 1e-5
"""ε: what is added to a divisor."""


def association_costs(width: int, key_dim: int, rows: int, written: int) -> Costs:
    """An association over a block: all tokens (``rows``) read it, memory tokens (``written``) write."""
    total = product(rows, width, key_dim) + product(written, width, key_dim + 1) + scales(1)
    total = total + product(written, width, width)
    return total + replace(product(rows + 2 * written, 2 * MOVES * key_dim, width + 1), parameters=0)


def dpfp(x: Tensor) -> Tensor:
    """Deterministic parameter-free projection: [..., E] → [..., 2 · MOVES · E], at least 0."""
    r = F.relu(torch.cat([x, -x], -1))
    return torch.cat([r * r.roll(move, -1) for move in range(1, MOVES + 1)], -1)


class Association(nn.Module):
    """A layer's associative memory. It is computed in float32 or more, also under autocast."""

    def __init__(self, width: int, key_dim: int):
        super().__init__()
        self.shape = (2 * MOVES * key_dim, width + 1)
        self.query = linear(width, key_dim, scale=1 / 3)  # torch's own size of a new layer's weights
        self.key_strength = linear(
            width, key_dim + 1, scale=1 / 3
        )  # one product: a CPU's of one column depends on where it lies
        self.strength_bias = nn.Parameter(torch.zeros(1))
        self.value = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.value.weight)  # a new model's memory tokens write nothing
        self.carried = Carried()

    def read(self, x_BnD: Tensor, states_BPZ: Tensor) -> Tensor:
        """What tokens find: [B, n, D]."""
        query = self.query(x_BnD)
        with torch.autocast(x_BnD.device.type, enabled=False):
            found, _ = recall(dpfp(upcast(query)), upcast(states_BPZ))
        return found.to(x_BnD.dtype)

    def write(self, memory_BSD: Tensor, states_BPZ: Tensor) -> Tensor:
        """The association after memory tokens have written, all at once: each replaces what its key found."""
        made = self.key_strength(memory_BSD)
        value = self.value(memory_BSD)
        with torch.autocast(memory_BSD.device.type, enabled=False):
            before = upcast(states_BPZ)
            k = dpfp(upcast(made[..., :-1]))
            found, weight = recall(k, before)
            new = 1 - weight / (k.square().sum(-1, keepdim=True) + LEAST)
            strength = torch.sigmoid(upcast(made[..., -1:]) + self.strength_bias)
            change = strength * (upcast(value) - found)
            after = before + k.transpose(-1, -2) @ torch.cat([change, new.clamp(0, 1).detach()], -1)
        return self.carried(before, after)


def recall(k_BnP: Tensor, states_BPZ: Tensor) -> tuple[Tensor, Tensor]:
    """What an association holds under some keys, Aᵀk / (z·k + ε) [B, n, D], and z·k [B, n, 1]."""
    read_BnZ = k_BnP @ states_BPZ
    weight = read_BnZ[..., -1:]
    return read_BnZ[..., :-1] / (weight + LEAST), weight
