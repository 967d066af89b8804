"""mLSTM, the matrix memory of xLSTM (Beck et al. 2024, arXiv 2405.04517): exponential input gates, a normaliser and a stabiliser.

    C_t = f_t C_{t−1} + i_t k_t v_tᵀ,   n_t = f_t n_{t−1} + i_t k_t,   h_t = C_tᵀ q_t / max(|n_t·q_t|, 1)

with f = sigmoid(f̃) and i = exp(ĩ). C and n are divided by exp(m_t), m_t = max(log f_t + m_{t−1}, ĩ_t), so that nothing overflows.
The normaliser n is stored as the last column of C. Letters: see mixer.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import RMSNorm, linear
from recur_models.linear_attention import decayed_attention_costs, states_before_chunks
from recur_models.mixer import Chunks, RecurrentMixer, Sizes, split_qkv_gate, upcast, without_autocast
from recur_models.protocol import State, reset

GATE_CAP = 15.0
"""The largest gate logit; a tanh caps them softly."""
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
    initial_scale: Tensor,
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
        initial_scale: m [B, H].
        chunk: tokens that are computed at once; it does not change the result.
        fresh_BK: bool, True where the state is reset before that one of K equal parts of T.

    Returns:
        Outputs [B, T, H, V], and the state [B, H, E, V + 1] and m [B, H] after the last token, in float32 or float64.
    """
    chunks = Chunks.of(q.shape[1], chunk)
    fresh_BN = chunks.fresh(fresh_BK, q)
    if chunks.padding:
        input_gate = nn.functional.pad(input_gate, (0, 0, 0, chunks.padding), value=NO_INPUT)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    q, k, v, log_forget = (chunks.split(x) for x in (q, k, v, log_forget))
    input_BHNC = upcast(input_gate).unflatten(1, (chunks.count, chunks.size)).movedim(3, 1)
    sum_BHNC = log_forget.cumsum(-1)  # b
    # What token j wrote weighs exp(b_i + ĩ_j − b_j) at token i of its chunk.
    relative_BHNC = input_BHNC - sum_BHNC
    highest_BHNC = sum_BHNC + relative_BHNC.cummax(-1).values
    later_CC = torch.ones(chunks.size, chunks.size, dtype=torch.bool, device=q.device).triu(1)
    log_weights = (sum_BHNC[..., :, None] + relative_BHNC[..., None, :]).masked_fill(later_CC, float("-inf"))
    scale = initial_scale.to(q.dtype)
    carried = []
    all_scales = []
    for fresh_B, sum_BHC, highest_BHC in zip(
        fresh_BN.unbind(1), sum_BHNC.unbind(2), highest_BHNC.unbind(2), strict=True
    ):
        scale = reset(scale, scale.new_zeros(()), fresh_B)
        carried.append(sum_BHC + scale[..., None])
        all_scales.append(torch.maximum(carried[-1], highest_BHC))
        scale = all_scales[-1][..., -1]
    carried_BHNC = torch.stack(carried, 2)
    scale_BHNC = torch.stack(all_scales, 2)
    within = (q @ k.transpose(-1, -2)) * (log_weights - scale_BHNC[..., None]).exp()
    last_BHN1 = scale_BHNC[..., -1:]
    k = (sum_BHNC[..., -1:] + relative_BHNC - last_BHN1).exp()[..., None] * k  # decayed to the chunk's end
    chunk_decay = (carried_BHNC[..., -1:] - last_BHN1).exp()[..., None]
    before_BHNEV, state = states_before_chunks(k.transpose(-1, -2) @ v, chunk_decay, initial_state, fresh_BN)
    q = (carried_BHNC - scale_BHNC).exp()[..., None] * q
    h, normaliser = (within @ v + q @ before_BHNEV).split([v.shape[-1] - 1, 1], -1)
    floor = (-scale_BHNC).exp()[..., None]  # 1, divided by exp(m)
    return chunks.join(h / (torch.maximum(normaliser.abs(), floor) + 1e-6)), state, scale.clone()


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
        like = self.norm.scale
        return {
            "states": like.new_zeros(lanes, sizes.heads, sizes.key_dim, sizes.value_dim + 1),
            "log_scale": like.new_zeros(lanes, sizes.heads),
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
        h_BTHV, states, scale = matrix_memory(
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
        return self.out(y), {"states": states, "log_scale": scale}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        parts = scales(sizes.d_model, V, 2 * H) + product(sizes.window, sizes.d_model, 2 * H * (E + V))
        parts += product(sizes.window, sizes.d_model, 2 * H) + product(sizes.window, H * V, sizes.d_model)
        return parts + decayed_attention_costs(sizes, H, E, V + 1)
