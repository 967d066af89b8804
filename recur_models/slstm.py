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
from torch.autograd.function import FunctionCtx

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear, refuse_second_derivatives, upcast
from recur_models.mixer import RecurrentMixer, ShortConvolution, Sizes, without_autocast
from recur_models.norms import RMSNorm
from recur_models.protocol import State

EMPTY = -1e30
"""The stabiliser m of an empty memory. The first token's ĩ exceeds it, so n is at least 1 from then on."""


class ScalarMemory(torch.autograd.Function):
    """Autograd function of `scalar_memory`. A graph of each token's operations would take longer, and keep much more."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        gates_BTHZ: Tensor,
        recurrent_HVZ: Tensor,
        states_B3HV: Tensor,
        log_scale_BHV: Tensor,
        fresh_BK: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # z̃, õ, ĩ and f̃ become z, o, i / exp(m_t) and f exp(m_{t−1} − m_t) in place.
        gates_THBZ = gates_BTHZ.permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
        h, c, n = states_B3HV.permute(1, 2, 0, 3).unbind(0)
        m = log_scale_BHV.transpose(0, 1)
        block = len(gates_THBZ) // fresh_BK.shape[1]
        before: list[Tensor] = []
        log_f: list[Tensor] = []
        outputs: list[Tensor] = []
        for t, gates_HBZ in enumerate(gates_THBZ.unbind(0)):
            if t % block == 0:
                fresh_B1 = fresh_BK[:, t // block, None]
                h, c, n = (x.masked_fill(fresh_B1, 0.0) for x in (h, c, n))
                m = m.masked_fill(fresh_B1, EMPTY)
            before += [h, c, n]
            z, o, i, f = torch.baddbmm(gates_HBZ, h, recurrent_HVZ, out=gates_HBZ).chunk(4, -1)
            log_f.append(nn.functional.logsigmoid(f))
            log_kept = log_f[-1] + m
            m = torch.maximum(log_kept, i)
            written = i.sub_(m).exp_()
            kept = f.copy_(log_kept.sub_(m)).exp_()
            c = torch.addcmul(kept * c, written, z.tanh_())
            n = torch.addcmul(written, kept, n)
            h = o.sigmoid_() * c / n
            outputs.append(h)
        h_THBV = torch.stack(outputs)
        before_T3HBV = torch.stack(before).unflatten(0, (-1, 3))
        ctx.save_for_backward(gates_THBZ, torch.stack(log_f), before_T3HBV, h_THBV, recurrent_HVZ, fresh_BK)  # pyrefly: ignore
        log_scale_BHV = m.transpose(0, 1).contiguous()
        ctx.mark_non_differentiable(log_scale_BHV)  # pyrefly: ignore
        return h_THBV.permute(2, 0, 1, 3), torch.stack([h, c, n]).permute(2, 0, 1, 3), log_scale_BHV

    @staticmethod
    def backward(  # pyrefly: ignore
        ctx: FunctionCtx, grad_h_BTHV: Tensor, grad_states_B3HV: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("take a model without slstm")
        gates_THBZ, log_f, before_T3HBV, h, recurrent_HVZ, fresh_BK = ctx.saved_tensors  # pyrefly: ignore
        z, o, written, kept = gates_THBZ.chunk(4, -1)
        h_before, c_before, n_before = before_T3HBV.unbind(1)
        # For all tokens at once, x_of_y: the derivative of x by y. h does not depend on m, which counts as a constant.
        n = torch.addcmul(written, kept, n_before)
        f_of_gate = -torch.expm1(log_f) * kept
        c_and_n_of_before = kept.unbind(0)
        h_of_c_and_n = torch.stack([o / n, -h / n], 1).unbind(0)
        c_of_z = (written * (1 - z * z))[..., None, :].unbind(0)
        h_of_o = (h * (1 - o))[..., None, :].unbind(0)
        c_of_i_and_f = torch.stack([written * z, f_of_gate * c_before], -2).unbind(0)
        n_of_i_and_f = torch.stack([written, f_of_gate * n_before], -2).unbind(0)

        grad_gates: list[Tensor] = []
        grad_outputs = grad_h_BTHV.permute(1, 2, 0, 3).unbind(0)
        grad_states_3HBV = grad_states_B3HV.permute(1, 2, 0, 3).clone()
        grad_h = grad_states_3HBV[0]
        grad_c_and_n = grad_states_3HBV[1:]
        grad_c, grad_n = grad_c_and_n[..., None, :].unbind(0)
        recurrent_HZV = recurrent_HVZ.transpose(1, 2)
        block = len(gates_THBZ) // fresh_BK.shape[1]
        for t in reversed(range(len(gates_THBZ))):
            grad_h = grad_h + grad_outputs[t]
            grad_c_and_n.addcmul_(grad_h, h_of_c_and_n[t])
            grad_z = grad_c * c_of_z[t]
            grad_o = grad_h[..., None, :] * h_of_o[t]
            grad_i_and_f = (grad_c * c_of_i_and_f[t]).addcmul_(grad_n, n_of_i_and_f[t])
            grad_gates.append(torch.cat([grad_z, grad_o, grad_i_and_f], -2).flatten(-2))
            grad_h = torch.bmm(grad_gates[-1], recurrent_HZV)
            grad_c_and_n.mul_(c_and_n_of_before[t])
            if t % block == 0:
                fresh_B1 = fresh_BK[:, t // block, None]
                grad_h.masked_fill_(fresh_B1, 0.0)
                grad_c_and_n.masked_fill_(fresh_B1, 0.0)
        grad_gates_THBZ = torch.stack(grad_gates[::-1])
        grad_recurrent_HVZ = h_before.permute(1, 3, 0, 2).flatten(2) @ grad_gates_THBZ.transpose(0, 1).flatten(1, 2)
        grad_states_B3HV = torch.stack([grad_h, *grad_c_and_n]).permute(2, 0, 1, 3)
        return grad_gates_THBZ.permute(2, 0, 1, 3), grad_recurrent_HVZ, grad_states_B3HV, None, None


@without_autocast
def scalar_memory(
    gates: Tensor,
    recurrent: Tensor,
    initial_states: Tensor,
    initial_log_scale: Tensor,
    *,
    fresh_BK: Tensor,
    valid_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sLSTM cell over a sequence (Beck et al. 2024, arXiv 2405.04517, section 2.2).

    Args:
        gates: what the tokens add to z̃, õ, ĩ and f̃: [B, T, H, 4V].
        recurrent: weights of what h adds to them: [H, V, 4V].
        initial_states: h, c and n, the latter two divided by exp(m): [B, 3, H, V].
        initial_log_scale: m [B, H, V], `EMPTY` before a document. It has no gradient.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.
        valid_BT: bool, False at padding, which leaves the state as it is; None where all tokens are valid.

    Returns:
        h [B, T, H, V], and the states [B, 3, H, V] and m [B, H, V] after the last token, in float32 or float64.
    """
    gates_BTHZ = upcast(gates)
    recurrent_HVZ, states, log_scale = (
        each.to(gates_BTHZ.dtype) for each in (recurrent, initial_states, initial_log_scale)
    )
    if valid_BT is None:
        return ScalarMemory.apply(gates_BTHZ, recurrent_HVZ, states, log_scale, fresh_BK)  # pyrefly: ignore
    outputs = []
    no_reset_B1 = torch.zeros_like(fresh_BK[:, :1])
    block = gates_BTHZ.shape[1] // fresh_BK.shape[1]
    for t, gates_B1HZ in enumerate(gates_BTHZ.split(1, 1)):
        if t % block == 0:
            fresh_B11 = fresh_BK[:, t // block, None, None]
            states = states.masked_fill(fresh_B11[..., None], 0.0)
            log_scale = log_scale.masked_fill(fresh_B11, EMPTY)
        h_B1HV, *after = ScalarMemory.apply(gates_B1HZ, recurrent_HVZ, states, log_scale, no_reset_B1)  # pyrefly: ignore
        valid_B11 = valid_BT[:, t, None, None]
        states = torch.where(valid_B11[..., None], after[0], states)
        log_scale = torch.where(valid_B11, after[1], log_scale)
        outputs.append(h_B1HV)
    return torch.cat(outputs, 1), states, log_scale


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
        h_BTHV, states, log_scale = scalar_memory(
            torch.cat([z_and_o, i_and_f], -1),
            self.recurrent_HVZ,
            state["states"],
            state["log_scale"],
            fresh_BK=fresh_BK,
            valid_BT=valid_BT,
        )
        y = self.head_norm(h_BTHV).to(x_BTD.dtype).flatten(-2)
        return self.out(y), {"states": states, "log_scale": log_scale, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        W = sizes.window
        D = sizes.d_model
        V = sizes.value_dim
        total = scales(D, V, 4 * sizes.heads * V) + product(W, D, sizes.conv)
        total += product(W, D, 4 * sizes.heads * V) + product(W, sizes.heads * V, D)
        return total + product(W, V, 4 * V) * sizes.heads
