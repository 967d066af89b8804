"""The mixer of Mamba-2, a state-space model whose heads decay by the input (Dao and Gu 2024, arXiv 2405.21060).

    S_t = exp(Δ_t A) S_{t−1} + Δ_t B_t x_tᵀ,   y_t = S_tᵀ C_t + D x_t

with Δ = softplus(· + bias) and one A < 0 per head; the heads of a group share B and C. x, B and C pass a short convolution first. y
is gated, then each group is normed. mamba2_model.py has the published language model, a stack of these mixers.

In terms of linear attention, B is the key, C the query and Δ x the value. Letters: see mixer.py; E is the size of B and C (the
paper's N), V that of a head of x (its P), G groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear, upcast
from recur_models.linear_attention import decayed_attention, decayed_attention_costs
from recur_models.mixer import RecurrentMixer, ShortConvolution, Sizes, initial_log_rate, initial_step_bias
from recur_models.norms import RMSNorm
from recur_models.protocol import State


class Variant(NamedTuple):
    """Options, beside sizes, in which published models differ."""

    groups: int = 1
    """Groups of heads that share B and C: a divisor of the heads."""
    norm_eps: float = 1e-6
    """Added to the mean square in both norms."""
    projection_bias: bool = False
    """Whether the projections into the mixer and out of it have biases."""
    conv_bias: bool = True
    """Whether the convolution has biases."""
    step_limit: tuple[float, ...] = (0.0,)
    """The least step Δ, and the largest if it is limited."""


class Mamba2(RecurrentMixer):
    """State: ``states`` [B, H, E, V]; ``inputs`` [B, taps − 1, Z] of the convolution."""

    def __init__(self, sizes: Sizes, variant: Variant = Variant()):  # noqa: B008
        super().__init__(sizes, variant.norm_eps)
        H = sizes.heads
        inner = H * sizes.value_dim
        shared = variant.groups * sizes.key_dim
        bias_std = 0.0 if variant.projection_bias else None
        self.variant = variant
        self.parts = [inner, shared, shared]
        self.inward = linear(sizes.d_model, 2 * inner + 2 * shared + H, bias_std=bias_std)
        self.convolution = ShortConvolution(sum(self.parts), sizes.conv, bias=variant.conv_bias)
        self.step_bias_H = initial_step_bias(H)
        self.log_rate_H = initial_log_rate(H)
        self.skip_H = nn.Parameter(torch.ones(H))
        self.inner_norm = RMSNorm(inner, variant.norm_eps, variant.groups)
        self.out = linear(inner, sizes.d_model, bias_std=bias_std)

    def initial_state(self, lanes: int) -> State:
        return super().initial_state(lanes) | {"inputs": self.convolution.initial_inputs(lanes)}

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        sizes = self.sizes
        H = sizes.heads
        G = self.variant.groups
        x_BTD = x_BTD.to(self.norm.scale.dtype)  # the residual stream is in float32, the weights perhaps in bfloat16
        z, convolved, step = self.inward(x_BTD).split([self.parts[0], sum(self.parts), H], -1)
        mixed, inputs = self.convolution(convolved, state["inputs"], fresh_BK, valid_BT)
        x, k, q = mixed.split(self.parts, -1)
        x = upcast(x).unflatten(-1, (H, -1))
        step_BTH = nn.functional.softplus(upcast(step) + self.step_bias_H)
        if self.variant.step_limit != (0.0,):
            step_BTH = step_BTH.clamp(*self.variant.step_limit)
        if valid_BT is not None:
            step_BTH = step_BTH * valid_BT[..., None]
        k, q = (shared.unflatten(-1, (G, -1)) for shared in (k, q))
        v = x * step_BTH[..., None]
        log_decay_BTH = -upcast(self.log_rate_H).exp() * step_BTH
        y, states = decayed_attention(q, k, v, log_decay_BTH, state["states"], chunk=sizes.chunk, fresh_BK=fresh_BK)
        y = torch.addcmul(y, self.skip_H[:, None], x).to(x_BTD.dtype).flatten(-2)
        return self.out(self.inner_norm(y * nn.functional.silu(z))), {"states": states, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes, variant: Variant = Variant()) -> Costs:  # noqa: B008
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        inner = H * V
        channels = inner + 2 * variant.groups * E
        inward = inner + channels + H
        total = scales(sizes.d_model, channels * variant.conv_bias, 3 * H, inner)
        total += product(sizes.window, channels, sizes.conv)
        total += product(sizes.window, sizes.d_model, inward) + product(sizes.window, inner, sizes.d_model)
        if variant.projection_bias:
            total += scales(inward, sizes.d_model)
        return total + decayed_attention_costs(sizes, variant.groups, H, E, V)
