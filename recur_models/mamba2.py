"""The mixer of Mamba-2, a state-space model whose heads decay by the input (Dao and Gu 2024, arXiv 2405.21060).

    S_t = exp(Δ_t A) S_{t−1} + Δ_t B_t x_tᵀ,   y_t = S_tᵀ C_t + D x_t

with Δ = softplus(· + bias) and one A < 0 per head; B and C are shared by the heads. x, B and C pass a short convolution first; y is
gated, then normed. Letters: see mixer.py; E is the size of B and C (the paper's N), V that of a head of x (its P).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import RMSNorm, linear
from recur_models.linear_attention import decayed_attention, decayed_attention_costs
from recur_models.mixer import RecurrentMixer, ShortConvolution, Sizes, initial_log_rate, initial_step_bias, wide
from recur_models.protocol import State


class Mamba2(RecurrentMixer):
    """State: ``states`` [B, H, E, V]; ``inputs`` [B, taps − 1, Z] of the convolution."""

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        H = sizes.heads
        E = sizes.key_dim
        inner = H * sizes.value_dim
        self.parts = [inner, E, E]
        self.inward = linear(sizes.d_model, 2 * inner + 2 * E + H)
        self.convolution = ShortConvolution(sum(self.parts), sizes.conv, bias=True)
        self.step_bias_H = initial_step_bias(H)
        self.log_rate_H = initial_log_rate(H)
        self.skip_H = nn.Parameter(torch.ones(H))
        self.inner_norm = RMSNorm(inner)
        self.out = linear(inner, sizes.d_model)

    def initial_state(self, lanes: int) -> State:
        sizes = self.sizes
        like = self.norm.scale
        return {
            "states": like.new_zeros(lanes, sizes.heads, sizes.key_dim, sizes.value_dim),
            "inputs": like.new_zeros(lanes, self.convolution.kept, sum(self.parts)),
        }

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        sizes = self.sizes
        H = sizes.heads
        z, convolved, step = self.inward(x_BTD).split([self.parts[0], sum(self.parts), H], -1)
        mixed, inputs = self.convolution(convolved, state["inputs"], fresh_BK, valid_BT)
        x, k, q = mixed.split(self.parts, -1)
        x = wide(x).unflatten(-1, (H, -1))
        step_BTH = nn.functional.softplus(wide(step) + self.step_bias_H)
        if valid_BT is not None:
            step_BTH = step_BTH * valid_BT[..., None]
        k, q = (shared[:, :, None].expand(-1, -1, H, -1) for shared in (k, q))
        y, states = decayed_attention(
            q,
            k,
            x * step_BTH[..., None],
            -self.log_rate_H.exp() * step_BTH,
            state["states"],
            chunk=sizes.chunk,
            fresh_BK=fresh_BK,
        )
        y = (y + self.skip_H[:, None] * x).to(x_BTD.dtype).flatten(-2)
        return self.out(self.inner_norm(y * nn.functional.silu(z))), {"states": states, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        inner = H * V
        channels = inner + 2 * E
        parts = scales(sizes.d_model, channels * (sizes.conv + 1), 3 * H, inner)
        parts += product(sizes.window, sizes.d_model, 2 * inner + 2 * E + H) + product(
            sizes.window, inner, sizes.d_model
        )
        return parts + decayed_attention_costs(sizes, H, E, V)
