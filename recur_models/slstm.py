"""sLSTM, the scalar memory of xLSTM (Beck et al. 2024, arXiv 2405.04517, section 2.2 and appendix A.2), and the mixer `slstm`.

    c_t = f_t c_{t−1} + i_t z_t,   n_t = f_t n_{t−1} + i_t,   h_t = o_t c_t / n_t

with z = tanh(z̃), o = sigmoid(õ), f = sigmoid(f̃) and i = exp(ĩ), all for each number by itself. z̃, õ, ĩ and f̃ are projections of
the token plus a product of h_{t−1} with recurrent weights, which mix the numbers of one head. f is a sigmoid as in the released
code; the paper allows exp too. c and n are divided by exp(m_t), m_t = max(log f_t + m_{t−1}, ĩ_t), so that nothing overflows.

h_{t−1} enters the gates, so tokens are computed one after the other. Letters: see mixer.py; Z the 4V numbers z̃, õ, ĩ and f̃ of a
head, side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import RMSNorm, linear, upcast
from recur_models.mixer import RecurrentMixer, ShortConvolution, Sizes, without_autocast
from recur_models.protocol import State

EMPTY = -1e30
"""The stabiliser m of an empty memory. The first token's ĩ exceeds it, so n is at least 1 from then on."""


@without_autocast
def scalar_memory(
    gates: Tensor,
    recurrent: Tensor,
    initial_states: Tensor,
    initial_scale: Tensor,
    *,
    fresh_BK: Tensor,
    valid_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sLSTM cell over a sequence (Beck et al. 2024, arXiv 2405.04517, section 2.2).

    Args:
        gates: what the tokens add to z̃, õ, ĩ and f̃: [B, T, H, 4V].
        recurrent: weights of what h adds to them: [H, V, 4V].
        initial_states: h, c and n, the latter two divided by exp(m): [B, 3, H, V].
        initial_scale: m [B, H, V], `EMPTY` before a document.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.
        valid_BT: bool, False at padding, which leaves the state as it is; None where all tokens are valid.

    Returns:
        h [B, T, H, V], and the states [B, 3, H, V] and m [B, H, V] after the last token, in float32 or float64.
    """
    gates_KWHBZ = upcast(gates).permute(1, 2, 0, 3).contiguous().unflatten(0, (fresh_BK.shape[1], -1))
    recurrent_HVZ = recurrent.to(gates_KWHBZ.dtype)
    h, c, n = initial_states.to(gates_KWHBZ.dtype).permute(1, 2, 0, 3).unbind(0)
    m = initial_scale.to(gates_KWHBZ.dtype).transpose(0, 1)
    outputs = []
    for fresh_B1, block in zip(fresh_BK[..., None].unbind(1), gates_KWHBZ.unbind(0), strict=True):
        h, c, n = (x.masked_fill(fresh_B1, 0.0) for x in (h, c, n))
        m = m.masked_fill(fresh_B1, EMPTY)
        for gates_HBZ in block.unbind(0):
            before = h, c, n, m
            z, o, i, f = torch.baddbmm(gates_HBZ, h, recurrent_HVZ).chunk(4, -1)
            log_kept = nn.functional.logsigmoid(f) + m
            with torch.no_grad():  # h does not depend on m
                m = torch.maximum(log_kept, i)
            kept = (log_kept - m).exp()
            written = (i - m).exp()
            c = torch.addcmul(kept * c, written, torch.tanh(z))
            n = torch.addcmul(written, kept, n)
            h = torch.sigmoid(o) * c / n
            if valid_BT is not None:
                valid_B1 = valid_BT[:, len(outputs), None]
                h, c, n, m = (torch.where(valid_B1, new, old) for new, old in zip((h, c, n, m), before, strict=True))
            outputs.append(h)
    states_B3HV = torch.stack([x.transpose(0, 1) for x in (h, c, n)], 1)
    return torch.stack(outputs, 1).permute(2, 1, 0, 3), states_B3HV, m.transpose(0, 1)


class ScalarLSTM(RecurrentMixer):
    """sLSTM with a norm of each head. Its input and forget gates read a short convolution of the tokens.

    State: ``states`` [B, 3, H, V], h, c and n; ``log_scale`` [B, H, V], the stabiliser m; ``inputs`` [B, taps − 1, D] of the
    convolution.
    """

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        H = sizes.heads
        V = sizes.value_dim
        self.convolution = ShortConvolution(sizes.d_model, sizes.conv)
        self.inward = linear(sizes.d_model, 2 * H * V, bias_std=0.0)  # z̃ and õ
        self.gates = linear(sizes.d_model, 2 * H * V, bias_std=0.0)  # ĩ and f̃
        with torch.no_grad():
            # f̃ begins from 5 to −7 over a head, about as in the middle layer of the released code, whose layers differ.
            self.gates.bias.view(H, 2, V)[:, 1] = torch.linspace(5.0, -7.0, V)
        self.recurrent_HVZ = nn.Parameter(torch.zeros(H, V, 4 * V))  # as released
        self.head_norm = RMSNorm(V)
        self.out = linear(H * V, sizes.d_model)

    def initial_state(self, lanes: int) -> State:
        sizes = self.sizes
        return {
            "states": self.zeros(lanes, 3, sizes.heads, sizes.value_dim),
            "log_scale": self.zeros(lanes, sizes.heads, sizes.value_dim).fill_(EMPTY),
            "inputs": self.convolution.initial_inputs(lanes),
        }

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        heads = (self.sizes.heads, -1)
        convolved_BTD, inputs = self.convolution(x_BTD, state["inputs"], fresh_BK, valid_BT)
        z_and_o = self.inward(x_BTD).unflatten(-1, heads)
        i_and_f = self.gates(convolved_BTD).unflatten(-1, heads)
        h_BTHV, states, scale = scalar_memory(
            torch.cat([z_and_o, i_and_f], -1),
            self.recurrent_HVZ,
            state["states"],
            state["log_scale"],
            fresh_BK=fresh_BK,
            valid_BT=valid_BT,
        )
        y = self.head_norm(h_BTHV).to(x_BTD.dtype).flatten(-2)
        return self.out(y), {"states": states, "log_scale": scale, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        W = sizes.window
        D = sizes.d_model
        V = sizes.value_dim
        total = scales(D, V, 4 * sizes.heads * V) + product(W, D, sizes.conv)
        total += product(W, D, 4 * sizes.heads * V) + product(W, sizes.heads * V, D)
        return total + product(W, V, 4 * V) * sizes.heads
