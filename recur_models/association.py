"""ARMT's associative memory, into which memory tokens write keys and values by the delta rule (Rodkin et al. 2024, arXiv
2407.04841).

    x ← x + Aᵀφ(W_q x) / (z·φ(W_q x) + ε)                                                     read
    k = φ(W_k m),   v̄ = Aᵀk / (z·k + ε),   γ = 1 − z·k / (|k|² + ε)
    A ← A + Σ σ(W_β m) k (W_v m − v̄)ᵀ,   z ← z + Σ γ k                                       write

γ is clamped to 0 … 1 and has no gradient. φ is DPFP-3 (Schlag et al. 2021): products of relu([x, −x]) with itself rolled by 1, 2
and 3.
State: ``states`` [B, P, D + 1], A with z as its last column; zeros before a document.

With unit keys, φ(·) is divided by its length, as in the authors' later code. Without them, a key that has little in common with z
reads a value divided by almost nothing; the next write takes it over, and A can grow by orders of magnitude.

Letters: see layers.py; S memory tokens · n tokens · P features · Z = D + 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, product, scales
from recur_models.layers import Carried, linear, upcast

ROLLS = 3
"""DPFP's ν: features are rolled by 1 to ν places."""
EPSILON = 1e-5
"""ε, which is added to divisors."""


def association_costs(width: int, key_dim: int, rows: int, written: int) -> Costs:
    """An `Association` over one block: ``rows`` tokens read it, ``written`` memory tokens write."""
    total = product(rows, width, key_dim) + product(written, width, key_dim + 1) + scales(1)
    total += product(written, width, width)
    return total + replace(product(rows + 2 * written, 2 * ROLLS * key_dim, width + 1), parameters=0)


def dpfp(x: Tensor) -> Tensor:
    """Deterministic parameter-free projection (Schlag et al. 2021, arXiv 2102.11174): [..., E] → [..., 2 · ROLLS · E], ≥ 0."""
    r = F.relu(torch.cat([x, -x], -1))
    return torch.cat([r * r.roll(places, -1) for places in range(1, ROLLS + 1)], -1)


class Association(nn.Module):
    """A layer's associative memory. It is computed in float32 or float64, also under autocast."""

    def __init__(self, width: int, key_dim: int, unit_keys: bool = False):
        super().__init__()
        self.unit_keys = unit_keys
        self.shape = (2 * ROLLS * key_dim, width + 1)
        self.query = linear(width, key_dim, scale=1 / 3)  # the variance of a new torch.nn.Linear
        # Keys and strength are one product: on a CPU, the rounding of a single column depends on its memory address.
        self.key_strength = linear(width, key_dim + 1, scale=1 / 3)
        self.strength_bias = nn.Parameter(torch.zeros(1))
        self.value = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.value.weight)  # a new model's memory tokens write nothing
        self.carried = Carried()

    def features(self, x_BnE: Tensor) -> Tensor:
        """φ of keys or queries: [B, n, P]."""
        features_BnP = dpfp(upcast(x_BnE))
        return F.normalize(features_BnP, dim=-1) if self.unit_keys else features_BnP

    def read(self, x_BnD: Tensor, states_BPZ: Tensor) -> Tensor:
        """The values that tokens read from the memory: [B, n, D]."""
        query = self.query(x_BnD)
        with torch.autocast(x_BnD.device.type, enabled=False):
            found, _ = recall(self.features(query), upcast(states_BPZ))
        return found.to(x_BnD.dtype)

    def write(self, memory_BSD: Tensor, states_BPZ: Tensor) -> Tensor:
        """The memory after memory tokens have written, all at once: [B, P, Z]. Each replaces the value under its key."""
        key_strength = self.key_strength(memory_BSD)
        value = self.value(memory_BSD)
        with torch.autocast(memory_BSD.device.type, enabled=False):
            before = upcast(states_BPZ)
            k = self.features(key_strength[..., :-1])
            found, weight = recall(k, before)
            novelty = 1 - weight / (k.square().sum(-1, keepdim=True) + EPSILON)  # γ
            strength = torch.sigmoid(upcast(key_strength[..., -1:]) + self.strength_bias)
            change = strength * (upcast(value) - found)
            after = before + k.transpose(-1, -2) @ torch.cat([change, novelty.clamp(0, 1).detach()], -1)
        return self.carried(before, after)


def recall(k_BnP: Tensor, states_BPZ: Tensor) -> tuple[Tensor, Tensor]:
    """The values under some keys, Aᵀk / (z·k + ε) [B, n, D], and the weights z·k [B, n, 1]."""
    read_BnZ = k_BnP @ states_BPZ
    weight = read_BnZ[..., -1:]
    return read_BnZ[..., :-1] / (weight + EPSILON), weight
