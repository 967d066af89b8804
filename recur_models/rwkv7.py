"""The generalised delta rule in chunks, and the mixer `rwkv7`, RWKV-7's time mixing (Peng et al. 2025, arXiv 2503.14456).

    output, state = generalised_delta_rule(q, k, v, log_decay, a, b, initial_state)

    S_t = diag(w_t) S_{t−1} + b_t (S_{t−1}ᵀ a_t)ᵀ + k_t v_tᵀ,   o_t = S_tᵀ q_t

Each number of a key has a decay w of its own, and the key that is taken out (a) differs from the one that is put in (k). Within a
chunk, decays are multiplied into queries and keys; one triangular system gives what is taken out, and a loop over chunks carries S.

RWKV-7's channel mixing is the gated MLP of the stack here. Its layers do not mix in the first layer's values, since a mixer
would then have to know another one. Letters: see mixer.py; R rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.gated_delta import unit_lower_inverse
from recur_models.layers import linear, upcast
from recur_models.mixer import Chunks, RecurrentMixer, Sizes, behind_earlier, chunk_costs, without_autocast
from recur_models.norms import unit_norm
from recur_models.protocol import State, reset_to_zeros

MIN_LOG_DECAY = -math.exp(-0.5)
"""The least log decay of a token."""
MAX_TOKENS = 64
"""The most tokens of a chunk: the inverse of their decays is at most e^39, whose products with large keys stay in float32."""
NORM_EPS = 64e-5
"""Epsilon of the head norm, as released."""


@without_autocast
def generalised_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state: Tensor,
    *,
    chunk: int = 64,
    fresh_BK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence of RWKV-7 (Peng et al. 2025, arXiv 2503.14456), whose state is the transpose.

    Args:
        q, k, a, b: [B, T, H, E]; v: [B, T, H, V].
        log_decay: log w [B, T, H, E], from `MIN_LOG_DECAY` to 0.
        initial_state: [B, H, E, V].
        chunk: tokens that are computed at once; it does not change the result.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.

    Returns:
        Outputs [B, T, H, V] and the state after the last token [B, H, E, V], both in float32 or float64.
    """
    chunks = Chunks.of(q.shape[1], chunk, fresh_BK)
    fresh_BN = chunks.fresh(fresh_BK, q)
    q, k, v, log_decay, a, b = (chunks.split(x) for x in (q, k, v, log_decay, a, b))
    sum_BHNCE = log_decay.cumsum(-2)
    chunk_decay = sum_BHNCE[..., -1:, :].exp().transpose(-1, -2)
    to_token = (-sum_BHNCE).exp()
    q = q * sum_BHNCE.exp()
    a = a * (sum_BHNCE - log_decay).exp()  # it reads the state before its own token's decay
    k = k * to_token
    b = b * to_token
    # A chunk takes out U: (I − L) U = A S + M V, with L = A Bᵀ and M = A Kᵀ below the diagonal.
    inverse = unit_lower_inverse(-(a @ b.transpose(-1, -2)))
    taken_within = inverse @ ((a @ k.transpose(-1, -2)).tril(-1) @ v)
    loop = (
        inverse @ a,
        taken_within,
        b.transpose(-1, -2) * chunk_decay,
        (k.transpose(-1, -2) * chunk_decay) @ v,
        chunk_decay,
    )
    state = initial_state.to(q.dtype)
    states = []
    taken = []
    parts = [fresh_BN.unbind(1), *(x.unbind(2) for x in loop)]
    for fresh_B, a_n, within_n, b_n, added_n, decay_n in zip(*parts, strict=True):
        state = reset_to_zeros(state, fresh_B)
        taken_n = within_n + a_n @ state  # U
        states.append(state)
        taken.append(taken_n)
        state = decay_n * state + b_n @ taken_n + added_n
    outputs = q @ torch.stack(states, 2)
    outputs = outputs + (q @ b.transpose(-1, -2)).tril() @ torch.stack(taken, 2)
    return chunks.join(outputs + (q @ k.transpose(-1, -2)).tril() @ v), state


class LowRank(nn.Module):
    """bias + f(x first) second; the first factor begins at 0, and the second is orthogonal."""

    def __init__(self, width: int, rank: int, outputs: int, bias: Tensor | None = None):
        super().__init__()
        self.first_DR = nn.Parameter(torch.zeros(width, rank))
        self.second_RZ = nn.Parameter(nn.init.orthogonal_(torch.empty(rank, outputs), gain=0.1))
        self.bias_Z = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor, between: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """``between``: f; without one nothing is done between the factors."""
        low = x @ self.first_DR
        y = (low if between is None else between(low)) @ self.second_RZ
        return y if self.bias_Z is None else y + self.bias_Z


class TokenShift(nn.Module):
    """Moves each number of a token towards that of the token before it, in several ways.

    State: ``inputs`` [B, 1, D], the newest token.
    """

    def __init__(self, width: int, powers: tuple[float, ...]):
        super().__init__()
        place_D = torch.arange(width) / width
        self.share_D = nn.ParameterList(nn.Parameter(1.0 - place_D**power) for power in powers)

    def forward(
        self, x_BTD: Tensor, inputs_B1D: Tensor, fresh_BK: Tensor, valid_BT: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """Returns the stream moved in each way, and the newest token. The first token of a document has zeros before it."""
        padded_BKSD, after_B1D = behind_earlier(x_BTD, inputs_B1D, fresh_BK, valid_BT)
        change_BTD = padded_BKSD[:, :, :-1].flatten(1, 2) - x_BTD
        return [torch.addcmul(x_BTD, change_BTD, share_D.to(x_BTD.dtype)) for share_D in self.share_D], after_B1D


class RWKV7(RecurrentMixer):
    """RWKV-7's time mixing: a decay for each number of a key, and keys that replace what another key finds.

    In the released code q is r, ``rate`` is a, ``taken`` is kk, and ``put`` is kk · a; ``taken_Z``, ``rate_in_key_Z`` and ``own_Z``
    are k_k, k_a and r_k.

    State: ``states`` [B, H, E, V]; ``inputs`` [B, 1, D] of the token shift.
    """

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        D = sizes.d_model
        keys = sizes.heads * sizes.key_dim
        values = sizes.heads * sizes.value_dim
        rank, gate_rank = ranks(sizes)
        place_Z = torch.linspace(0.0, 1.0, keys)
        zigzag_Z = torch.linspace(-1.0, 1.0, sizes.key_dim).repeat(sizes.heads)
        self.beta_scale = 2.0 if sizes.negative_eigenvalues else 1.0
        self.shift = TokenShift(D, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2))  # of q, decay, k, v, the rate, the gate
        self.q = linear(D, keys)
        self.k = linear(D, keys)
        self.v = linear(D, values)
        self.decay = LowRank(D, rank, keys, -5.5 + 6.0 * place_Z + 2.5 * zigzag_Z * zigzag_Z.abs())
        self.rate = LowRank(D, rank, keys, -0.19 + 0.3 * zigzag_Z + 0.4 * (place_Z - 0.5))
        self.gate = LowRank(D, gate_rank, values)
        self.taken_Z = nn.Parameter(0.71 - 0.1 * (place_Z - 0.5))
        self.rate_in_key_Z = nn.Parameter(torch.full((keys,), 1.02))
        self.own_Z = nn.Parameter(torch.full((keys,), -0.04))
        self.norm_scale_Z = nn.Parameter(torch.ones(values))
        self.norm_bias_Z = nn.Parameter(torch.zeros(values))
        self.out = linear(values, D)

    def initial_state(self, lanes: int) -> State:
        return super().initial_state(lanes) | {"inputs": self.norm.scale.new_zeros(lanes, 1, self.sizes.d_model)}

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        heads = (self.sizes.heads, -1)
        moved, inputs = self.shift(x_BTD, state["inputs"], fresh_BK, valid_BT)
        for_q, for_decay, for_k, for_v, for_rate, for_gate = moved
        q = upcast(self.q(for_q)).unflatten(-1, heads)
        k = upcast(self.k(for_k))
        v = upcast(self.v(for_v)).unflatten(-1, heads)
        log_decay = MIN_LOG_DECAY * torch.sigmoid(upcast(self.decay(for_decay, torch.tanh)))
        rate = torch.sigmoid(upcast(self.rate(for_rate)))
        taken = unit_norm((k * self.taken_Z).unflatten(-1, heads))
        k = (k * (1.0 + (rate - 1.0) * self.rate_in_key_Z)).unflatten(-1, heads)
        own_BTH1 = (q * k * self.own_Z.unflatten(0, heads)).sum(-1, keepdim=True)
        put = self.beta_scale * rate.unflatten(-1, heads) * taken
        if valid_BT is not None:
            valid_BT1 = valid_BT[..., None]
            log_decay = log_decay * valid_BT1
            k = k * valid_BT1[..., None]
            put = put * valid_BT1[..., None]
        o_BTHV, states = generalised_delta_rule(
            q,
            k,
            v,
            log_decay.unflatten(-1, heads),
            -taken,
            put,
            state["states"],
            chunk=self.sizes.chunk,
            fresh_BK=fresh_BK,
        )
        normed = nn.functional.layer_norm(o_BTHV, o_BTHV.shape[-1:], eps=NORM_EPS)
        normed_BTZ = torch.addcmul(self.norm_bias_Z, normed.flatten(-2), self.norm_scale_Z)
        y_BTZ = (normed_BTZ + (own_BTH1 * v).flatten(-2)).to(x_BTD.dtype) * self.gate(for_gate, torch.sigmoid)
        return self.out(y_BTZ), {"states": states, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        W = sizes.window
        D = sizes.d_model
        keys = sizes.heads * sizes.key_dim
        values = sizes.heads * sizes.value_dim
        rank, gate_rank = ranks(sizes)
        total = scales(7 * D, 5 * keys, 2 * values)  # norm and shift; decay, rate and three more of keys; head norm
        low_rank = ((D, 2 * rank + gate_rank), (rank, 2 * keys), (gate_rank, values))
        for inputs, outputs in ((D, 2 * keys + values), (values, D), *low_rank):
            total += product(W, inputs, outputs)
        E = sizes.key_dim
        V = sizes.value_dim
        # A Bᵀ, A Kᵀ, Q Bᵀ and Q Kᵀ, the inverse times A; the products of pairs with values; four of the state.
        return total + chunk_costs(sizes, sizes.heads, pairs=5 * E + 4 * V, states=4 * E * V)


def ranks(sizes: Sizes) -> tuple[int, int]:
    """Ranks of the decay and of the rate, and of the gate: an eighth and a quarter of the width."""
    return max(sizes.d_model // 8, 1), max(sizes.d_model // 4, 1)
