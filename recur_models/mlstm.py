"""mLSTM, the matrix memory of xLSTM (Beck et al. 2024, arXiv 2405.04517): exponential input gates, a normaliser and a stabiliser.

    C_t = f_t C_{t−1} + i_t k_t v_tᵀ,   n_t = f_t n_{t−1} + i_t k_t,   h_t = C_tᵀ q_t / max(|n_t·q_t|, 1)

with f = sigmoid(f̃) and i = exp(ĩ). C and n are divided by exp(m_t), m_t = max(log f_t + m_{t−1}, ĩ_t), so that nothing overflows.
The normaliser n is stored as the last column of C.

Within a chunk, b is the cumulative log forget gate. Token j's writing has the exponent b_i − b_j + ĩ_j at token i, and what the
state before the chunk held has b_i + m; m_i is the largest of these exponents, over all j ≤ i. One loop over chunks finds the m
before each, another one carries C, and all else is parallel. Letters: see mixer.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear, upcast
from recur_models.linear_attention import decayed_attention_costs, states_before_chunks
from recur_models.mixer import (
    Chunks,
    RecurrentMixer,
    Sizes,
    cumulative,
    decay_of_state,
    log_decay_between,
    log_decay_to_end,
    split_qkv_gate,
    without_autocast,
)
from recur_models.norms import RMSNorm
from recur_models.protocol import State, reset_to_zeros

GATE_CAP = 15.0
"""The largest gate logit; a tanh caps them softly."""
NORMALISER_EPS = 1e-6
"""Added to the divisor of h, as in xLSTM's own code."""
NO_INPUT = -1e30
"""The input gate ĩ of padding, which writes nothing."""


@without_autocast
def matrix_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_gate: Tensor,
    log_forget: Tensor,
    initial_state: Tensor,
    initial_log_scale: Tensor,
    *,
    chunk: int = 64,
    fresh_BK: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The mLSTM cell over a sequence (Beck et al. 2024, arXiv 2405.04517, section 2.3).

    Args:
        q, k: [B, T, H, E], q scaled by 1/√E; v: [B, T, H, V].
        input_gate: ĩ [B, T, H].
        log_forget: log f [B, T, H], at most 0.
        initial_state: C and n side by side, divided by exp(m): [B, H, E, V + 1].
        initial_log_scale: m [B, H].
        chunk: tokens that are computed at once; it does not change the result.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.

    Returns:
        Outputs [B, T, H, V], and the state [B, H, E, V + 1] and m [B, H] after the last token, in float32 or float64.
    """
    chunks = Chunks.of(q.shape[1], chunk, fresh_BK)
    fresh_BN = chunks.fresh(fresh_BK, q)
    if chunks.padding:
        input_gate = nn.functional.pad(input_gate, (0, 0, 0, chunks.padding), value=NO_INPUT)
    q, k, v, log_forget = (chunks.split(x) for x in (q, k, v, log_forget))
    v = nn.functional.pad(v, (0, 1), value=1.0)
    input_BHNC = upcast(input_gate).unflatten(1, (chunks.count, chunks.size)).movedim(3, 1)
    sum_BHNC, rest_BHNC = cumulative(log_forget)  # b
    highest_BHNC = sum_BHNC + (input_BHNC - sum_BHNC).cummax(-1).values  # the largest b_i − b_j + ĩ_j
    before_BHN, log_scale = log_scales_before_chunks(
        sum_BHNC[..., -1], highest_BHNC[..., -1], initial_log_scale.to(q.dtype), fresh_BN
    )
    carried_BHNC = sum_BHNC + before_BHN[..., None]
    log_scale_BHNC = torch.maximum(carried_BHNC, highest_BHNC)  # m
    log_weights = log_decay_between(sum_BHNC, rest_BHNC)
    weights = log_weights.add_(input_BHNC[..., None, :] - log_scale_BHNC[..., :, None]).exp_()
    to_end = (log_decay_to_end(sum_BHNC, rest_BHNC) + (input_BHNC - log_scale_BHNC[..., -1:])).exp()[..., None]
    added = (k * to_end).transpose(-1, -2) @ v
    from_start, chunk_decay = decay_of_state(carried_BHNC - log_scale_BHNC, fresh_BN)
    initial_state = reset_to_zeros(initial_state, fresh_BN[:, 0])
    before_BHNEV, state = states_before_chunks(added, chunk_decay, initial_state)
    within = ((q @ k.transpose(-1, -2)) * weights) @ v
    h, normaliser = (within + (q * from_start) @ before_BHNEV).split([v.shape[-1] - 1, 1], -1)
    floor = (-log_scale_BHNC).exp()[..., None]  # 1, divided by exp(m)
    divisor = torch.maximum(normaliser.abs(), floor) + NORMALISER_EPS
    return chunks.join(h * divisor.reciprocal()), state, log_scale


def log_scales_before_chunks(
    sum_BHN: Tensor, highest_BHN: Tensor, log_scale_BH: Tensor, fresh_BN: Tensor
) -> tuple[Tensor, Tensor]:
    """The stabiliser m before each chunk [B, H, N], 0 where a document begins, and after the last one [B, H].

    Args:
        sum_BHN: log forget gates of each chunk, summed.
        highest_BHN: the largest exponent of the chunk's own writings at its last token.
        log_scale_BH: m before the first chunk.
        fresh_BN: bool, whether a document begins with the chunk.
    """
    before = []
    for fresh_B, sum_BH, highest_BH in zip(fresh_BN.unbind(1), sum_BHN.unbind(2), highest_BHN.unbind(2), strict=True):
        before.append(reset_to_zeros(log_scale_BH, fresh_B))
        log_scale_BH = torch.maximum(before[-1] + sum_BH, highest_BH)
    return torch.stack(before, 2), log_scale_BH


class MatrixLSTM(RecurrentMixer):
    """mLSTM with a norm of each head and an output gate.

    State: ``states`` [B, H, E, V + 1]; ``log_scale`` [B, H], the stabiliser m.
    """

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        H = sizes.heads
        self.qkvo = linear(sizes.d_model, 2 * H * (sizes.key_dim + sizes.value_dim))
        self.gates = nn.Linear(sizes.d_model, 2 * H)
        nn.init.normal_(self.gates.weight, std=0.1 * sizes.d_model**-0.5)
        with torch.no_grad():
            self.gates.bias[:H].normal_(std=0.1)
            self.gates.bias[H:] = torch.arange(H) * (3.0 / max(H - 1, 1)) + 3.0  # forget gates from 3 to 6
        self.head_norm = RMSNorm(sizes.value_dim)
        self.out = linear(H * sizes.value_dim, sizes.d_model)

    def initial_state(self, lanes: int) -> State:
        sizes = self.sizes
        return {
            "states": self.zeros(lanes, sizes.heads, sizes.key_dim, sizes.value_dim + 1),
            "log_scale": self.zeros(lanes, sizes.heads),
        }

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        sizes = self.sizes
        q, k, v, output_gate = split_qkv_gate(self.qkvo(x_BTD), sizes)
        gates = GATE_CAP * torch.tanh(upcast(self.gates(x_BTD)) / GATE_CAP)
        input_gate, forget_gate = gates.chunk(2, -1)
        log_forget = nn.functional.logsigmoid(forget_gate)
        if valid_BT is not None:
            input_gate = input_gate.masked_fill(~valid_BT[..., None], NO_INPUT)
            log_forget = log_forget * valid_BT[..., None]
        h_BTHV, states, log_scale = matrix_memory(
            q * sizes.key_dim**-0.5,
            k,
            v,
            input_gate,
            log_forget,
            state["states"],
            state["log_scale"],
            chunk=sizes.chunk,
            fresh_BK=fresh_BK,
        )
        y = self.head_norm(h_BTHV).to(x_BTD.dtype).flatten(-2) * torch.sigmoid(output_gate)
        return self.out(y), {"states": states, "log_scale": log_scale}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        parts = scales(sizes.d_model, V, 2 * H) + product(sizes.window, sizes.d_model, 2 * H * (E + V))
        parts += product(sizes.window, sizes.d_model, 2 * H) + product(sizes.window, H * V, sizes.d_model)
        return parts + decayed_attention_costs(sizes, H, H, E, V + 1)
