"""Linear attention with a decay, in chunks; and the mixer `retention`, whose decays are fixed.

    output, state = decayed_attention(q, k, v, log_decay, initial_state)

    S_t = a_t S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t

Within a chunk, o = exp(b) Q S + (Q Kᵀ ⊙ exp(b_i − b_j)) V, where b is the cumulative log decay. A loop over chunks carries S, so
the work is linear in the length. In retention (Sun et al. 2023, arXiv 2307.08621), head h decays by 1 − 2^(−5−h), and queries and
keys may turn with their positions, so that their products know the distance.

Heads may share queries and keys in groups. The values of a group's heads then stand side by side, so that one product serves all.

Letters: see mixer.py; G groups · R heads of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import Rotation, linear, rotate, rotation, upcast
from recur_models.mixer import (
    Chunks,
    RecurrentMixer,
    Sizes,
    chunk_costs,
    cumulative,
    decay_of_state,
    log_decay_between,
    log_decay_to_end,
    split_qkv_gate,
    without_autocast,
)
from recur_models.norms import RMSNorm
from recur_models.protocol import State, reset_to_zeros


@without_autocast
def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial_state: Tensor,
    *,
    chunk: int = 64,
    fresh_BK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear attention to all earlier tokens, whose weights decay with time (Sun et al. 2023, arXiv 2307.08621).

    Args:
        q, k: [B, T, G, E], shared by the heads of each of G groups; v: [B, T, H, V].
        log_decay: [B, T, H], at most 0.
        initial_state: [B, H, E, V].
        chunk: tokens that are computed at once; it does not change the result.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.

    Returns:
        Outputs [B, T, H, V] and the state after the last token [B, H, E, V], both in float32 or float64.
    """
    G = q.shape[2]
    chunks = Chunks.of(q.shape[1], chunk, fresh_BK)
    q, k, v, log_decay = (chunks.split(x) for x in (q, k, v, log_decay))
    sum_BHNC, rest_BHNC = cumulative(log_decay)  # b
    fresh_BN = chunks.fresh(fresh_BK, q)
    from_start, chunk_decay = decay_of_state(sum_BHNC, fresh_BN)
    to_end = log_decay_to_end(sum_BHNC, rest_BHNC).exp()[..., None]
    between = log_decay_between(sum_BHNC, rest_BHNC).exp_()  # the share of token j's writing that is left at token i
    scores_BGRNCC = (q @ k.transpose(-1, -2))[:, :, None] * between.unflatten(1, (G, -1))
    within_BGNCRV = by_group(scores_BGRNCC.flatten(1, 2) @ v, G)
    added_BGNERV = product_by_group(k.transpose(-1, -2), by_group(v * to_end, G))
    initial_state = reset_to_zeros(initial_state, fresh_BN[:, 0])
    before_BGNERV, state_BGERV = states_before_chunks(
        added_BGNERV, by_group(chunk_decay, G), by_group(initial_state, G)
    )
    read_BGNCRV = product_by_group(q, before_BGNERV) * by_group(from_start, G)
    return chunks.join(by_head(read_BGNCRV + within_BGNCRV)), by_head(state_BGERV)


def by_group(x_BHV: Tensor, groups: int) -> Tensor:
    """[B, H, …, V] → [B, G, …, R, V]: the heads of a group side by side."""
    return x_BHV.unflatten(1, (groups, -1)).movedim(2, -2)


def by_head(x_BGRV: Tensor) -> Tensor:
    """`by_group` undone: [B, G, …, R, V] → [B, H, …, V]."""
    return x_BGRV.movedim(-2, 2).flatten(1, 2)


def product_by_group(matrix_BGNnm: Tensor, x_BGNmRV: Tensor) -> Tensor:
    """One product of a group's matrices with the vectors of all its heads: [B, G, N, n, R, V]."""
    return (matrix_BGNnm @ x_BGNmRV.flatten(-2)).unflatten(-1, (-1, x_BGNmRV.shape[-1]))


def states_before_chunks(added_BHNE: Tensor, decay_BHN1: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    """States that decay over each chunk and gain what it adds: those before all chunks, and the one after the last."""
    state = initial_state.to(added_BHNE.dtype)
    states = []
    # unbind, since the gradient of an index is as large as the whole sequence
    for added, decay in zip(added_BHNE.unbind(2), decay_BHN1.unbind(2), strict=True):
        states.append(state)
        state = torch.addcmul(added, decay, state)
    return torch.stack(states, 2), state


def decayed_attention_costs(sizes: Sizes, groups: int, heads: int, key_dim: int, value_dim: int) -> Costs:
    """Costs of `decayed_attention` over one block of one lane."""
    scores = chunk_costs(sizes, groups, pairs=key_dim, states=0)
    return scores + chunk_costs(sizes, heads, pairs=value_dim, states=2 * key_dim * value_dim)


ROTARY_BASE = 10_000.0
"""Base of the wave lengths with which retention's queries and keys turn."""


def tokens_read(x_BTD: Tensor, valid_BT: Tensor | None) -> Tensor:
    """How many tokens of the segment each lane has read after each one: int64 [B, T]."""
    if valid_BT is not None:
        return valid_BT.cumsum(1)
    return torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device).expand(len(x_BTD), -1)


def turned(x_BTHE: Tensor, by: Rotation) -> Tensor:
    """Queries or keys [B, T, H, E], turned by their positions."""
    return rotate(x_BTHE.transpose(1, 2), by).transpose(1, 2)


class Retention(RecurrentMixer):
    """Linear attention whose heads decay at fixed rates.

    State: ``states`` [B, H, E, V]; with rotary positions, turned as the next token sees them.
    """

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        self.qkvg = linear(sizes.d_model, 2 * sizes.heads * (sizes.key_dim + sizes.value_dim))
        self.head_norm = RMSNorm(sizes.value_dim)
        self.out = linear(sizes.heads * sizes.value_dim, sizes.d_model)

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        sizes = self.sizes
        q, k, v, gate = split_qkv_gate(self.qkvg(x_BTD), sizes)
        head_H = torch.arange(sizes.heads, dtype=upcast(self.norm.scale).dtype, device=x_BTD.device)
        log_decay_H = torch.log1p(-(2.0 ** (-5.0 - head_H)))
        log_decay_BTH = log_decay_H.expand(*x_BTD.shape[:2], -1)
        if valid_BT is not None:
            k = k * valid_BT[..., None, None]
            log_decay_BTH = log_decay_BTH * valid_BT[..., None]
        q = q * sizes.key_dim**-0.5
        count_BT = tokens_read(x_BTD, valid_BT) if sizes.rotary else None
        if count_BT is not None:
            # Positions count from the segment's first token: distances alone matter.
            q = upcast(q)
            turns = rotation(count_BT - 1, sizes.key_dim, ROTARY_BASE, q)
            q = turned(q, turns)
            k = turned(upcast(k), turns)
        o_BTHV, states = decayed_attention(
            q, k, v, log_decay_BTH, state["states"], chunk=sizes.chunk, fresh_BK=fresh_BK
        )
        if count_BT is not None:
            turns_back = rotation(-count_BT[:, -1:], sizes.key_dim, ROTARY_BASE, states)
            states = rotate(states.transpose(-1, -2), turns_back).transpose(-1, -2)
        y = self.head_norm(o_BTHV).to(x_BTD.dtype).flatten(-2) * nn.functional.silu(gate)
        return self.out(y), {"states": states}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        return (
            scales(sizes.d_model, V)
            + product(sizes.window, sizes.d_model, 2 * H * (E + V))
            + product(sizes.window, H * V, sizes.d_model)
            + decayed_attention_costs(sizes, H, H, E, V)
        )
