"""The gated delta rule in chunks, and the mixer `delta`.

    output, state = gated_delta_rule(q, k, v, log_decay, beta, initial_state)

    S_t = a_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t / √E

Gated DeltaNet: Yang et al. 2024 (arXiv 2412.06464). Without the gate (a = 1) it is DeltaNet. β up to 2 gives transitions negative
eigenvalues, on which state tracking depends (Grazzi et al. 2024, arXiv 2411.12537). Several keys per token make a product of
Householder transitions (DeltaProduct: Siems et al. 2025, arXiv 2502.10297). Within a chunk, one triangular system gives the values
that keys replace; a loop over chunks carries S, so the work is linear in the length. All is computed in float32 or float64:
bfloat16 breaks the system. Letters: see mixer.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear, upcast, with_signature
from recur_models.mixer import (
    Chunks,
    RecurrentMixer,
    ShortConvolution,
    Sizes,
    chunk_costs,
    cumulative,
    decay_of_state,
    initial_log_rate,
    initial_step_bias,
    log_decay_between,
    log_decay_to_end,
    without_autocast,
)
from recur_models.norms import RMSNorm, unit_norm
from recur_models.protocol import State, reset_to_zeros


@without_autocast
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    *,
    chunk: int = 64,
    fresh_BK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over a sequence (Yang et al. 2024, arXiv 2412.06464).

    Args:
        q, k: [B, T, H, E], of unit length for a stable recurrence; v: [B, T, H, V].
        log_decay: [B, T, H], at most 0.
        beta: [B, T, H], from 0 to 1, or to 2 for negative eigenvalues.
        initial_state: [B, H, E, V].
        chunk: tokens that are computed at once; it does not change the result.
        fresh_BK: bool. T is divided into K equal parts; the state is reset before each part that is True.

    Returns:
        Outputs [B, T, H, V] and the state after the last token [B, H, E, V], both in float32 or float64.
    """
    chunks = Chunks.of(q.shape[1], chunk, fresh_BK)
    fresh_BN = chunks.fresh(fresh_BK, q)
    q, k, v, log_decay, beta = (chunks.split(x) for x in (q, k, v, log_decay, beta))
    sum_BHNC, rest_BHNC = cumulative(log_decay)  # b
    between = log_decay_between(sum_BHNC, rest_BHNC).exp_()  # the share of token j's writing that is left at token i
    from_start, chunk_decay = decay_of_state(sum_BHNC, fresh_BN)
    # The chunk writes W: (I + A) W = β (V − exp(b) K S), with A_ij = β_i k_i·k_j exp(b_i − b_j) below the diagonal.
    beta_k = k * beta[..., None]
    inverse = unit_lower_inverse((beta_k @ k.transpose(-1, -2)) * between)
    q = q * k.shape[-1] ** -0.5
    scores = (q @ k.transpose(-1, -2)) * between
    k_to_end = k * log_decay_to_end(sum_BHNC, rest_BHNC).exp()[..., None]
    loop = (v * beta[..., None], beta_k * from_start, inverse, k_to_end.transpose(-1, -2), chunk_decay)
    state = reset_to_zeros(initial_state, fresh_BN[:, 0]).to(q.dtype).flatten(0, 1)
    states = []
    written = []
    # unbind, since the gradient of an index is as large as the whole sequence
    for v_n, k_n, inverse_n, k_to_end_n, decay_n in zip(*(x.flatten(0, 1).unbind(1) for x in loop), strict=True):
        written_n = inverse_n @ torch.baddbmm(v_n, k_n, state, alpha=-1)  # W
        states.append(state)
        written.append(written_n)
        state = torch.baddbmm(decay_n * state, k_to_end_n, written_n)
    before_BHNEV, written_BHNCV = (torch.stack(x, 1).unflatten(0, q.shape[:2]) for x in (states, written))
    outputs = (q * from_start) @ before_BHNEV + scores @ written_BHNCV
    return chunks.join(outputs), state.unflatten(0, q.shape[:2])


def unit_lower_inverse(A: Tensor) -> Tensor:
    """Inverse of I + the part of A below the diagonal [..., C, C]. In stepping, `apply` would take longer than the rest."""
    inverse: Tensor = UnitLowerInverse.apply(A) if torch.is_grad_enabled() else inverse_by_halves(A)
    return inverse


def inverse_by_halves(A: Tensor) -> Tensor:
    """Inverse of I + the part of A below the diagonal [..., C, C]: the inverse of each half, and −bottom⁻¹ A₂₁ top⁻¹ below."""
    C = A.shape[-1]
    half = C // 2
    if C <= 16 or C % 2:
        identity = torch.eye(C, dtype=A.dtype, device=A.device)
        return torch.linalg.solve_triangular(A, identity, upper=False, unitriangular=True)
    top, bottom = inverse_by_halves(torch.stack([A[..., :half, :half], A[..., half:, half:]]))
    inverse = torch.zeros_like(A)
    inverse[..., :half, :half] = top
    inverse[..., half:, half:] = bottom
    inverse[..., half:, :half] = -(bottom @ A[..., half:, :half] @ top)
    return inverse


class UnitLowerInverse(torch.autograd.Function):
    """`inverse_by_halves`, L⁻¹. Its gradient is −L⁻ᵀ G L⁻ᵀ below the diagonal: two products; autograd takes several a half."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(A: Tensor) -> Tensor:  # pyrefly: ignore
        return inverse_by_halves(A)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: Tensor) -> None:  # pyrefly: ignore
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:  # pyrefly: ignore
        (inverse,) = ctx.saved_tensors  # pyrefly: ignore
        transposed = inverse.transpose(-1, -2)
        return (transposed @ grad @ transposed).tril_(-1).neg_()


class GatedDelta(RecurrentMixer):
    """A short convolution of queries, keys and values, the gated delta rule, a norm of each head, and an output gate.

    The decay, the norm and the gate are optional (`MixersConfig`).

    State: ``states`` [B, H, E, V]; ``inputs`` [B, taps − 1, Z] of the convolution.
    """

    def __init__(self, sizes: Sizes):
        super().__init__(sizes)
        keys = sizes.heads * sizes.key_dim
        values = sizes.heads * sizes.value_dim
        self.beta_scale = 2.0 if sizes.negative_eigenvalues else 1.0
        self.split = [keys, sizes.householders * keys, sizes.householders * values]
        self.qkv = linear(sizes.d_model, sum(self.split))
        self.convolution = ShortConvolution(sum(self.split), sizes.conv)
        self.beta = linear(sizes.d_model, sizes.householders * sizes.heads)
        self.gate = linear(sizes.d_model, values) if sizes.output_gate else None
        self.head_norm = RMSNorm(sizes.value_dim) if sizes.head_norm else nn.Identity()
        self.out = linear(values, sizes.d_model)
        self.decay = linear(sizes.d_model, sizes.heads) if sizes.decays else None
        if sizes.decays:
            self.decay_bias_H = initial_step_bias(sizes.heads)
            self.log_rate_H = initial_log_rate(sizes.heads)

    def initial_state(self, lanes: int) -> State:
        return super().initial_state(lanes) | {"inputs": self.convolution.initial_inputs(lanes)}

    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        sizes = self.sizes
        H = sizes.heads
        R = sizes.householders
        mixed, inputs = self.convolution(self.qkv(x_BTD), state["inputs"], fresh_BK, valid_BT)
        q, k, v = mixed.split(self.split, -1)
        q = unit_norm(upcast(q.unflatten(-1, (H, -1))))
        k = unit_norm(upcast(k.unflatten(-1, (R, H, -1))))
        v = v.unflatten(-1, (R, H, -1))
        beta = torch.sigmoid(upcast(self.beta(x_BTD))).unflatten(-1, (R, H)) * self.beta_scale
        log_decay = beta.new_zeros(*x_BTD.shape[:2], R, H)
        if self.decay is not None:
            # log a = −exp(A_log) · softplus(… + dt_bias), as in Mamba-2. A token decays the state once, in its first transition.
            step_BTH = nn.functional.softplus(upcast(self.decay(x_BTD)) + self.decay_bias_H)
            is_first_R1 = (torch.arange(R, device=x_BTD.device) == 0)[:, None]
            log_decay = -upcast(self.log_rate_H).exp() * step_BTH[:, :, None] * is_first_R1
        if valid_BT is not None:
            beta = beta * valid_BT[..., None, None]
            log_decay = log_decay * valid_BT[..., None, None]
        # A token reads the state after its last transition, so its query stands there.
        q = torch.cat([torch.zeros_like(k[:, :, 1:]), q[:, :, None]], 2)
        o, states = gated_delta_rule(
            q.flatten(1, 2),
            k.flatten(1, 2),
            v.flatten(1, 2),
            log_decay.flatten(1, 2),
            beta.flatten(1, 2),
            state["states"],
            chunk=sizes.chunk,
            fresh_BK=fresh_BK,
        )
        o_BTHV = o.unflatten(1, (-1, R))[:, :, -1]
        y = self.head_norm(o_BTHV).to(x_BTD.dtype).flatten(-2)
        if self.gate is not None:
            y = y * nn.functional.silu(self.gate(x_BTD))
        return self.out(y), {"states": states, "inputs": inputs}

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        """As `Mixer.costs`, without inverting the triangular matrices."""
        H = sizes.heads
        E = sizes.key_dim
        V = sizes.value_dim
        R = sizes.householders
        W = sizes.window
        d = sizes.d_model
        channels = H * (E + R * (E + V))
        total = scales(d, V * sizes.head_norm) + product(W, channels, sizes.conv)
        total += product(W, d, channels) + product(W, d, R * H) + product(W, H * V, d)
        if sizes.decays:
            total += product(W, d, H) + scales(2 * H)
        if sizes.output_gate:
            total += product(W, d, H * V)
        # K Kᵀ and Q Kᵀ, the inverse and Q Kᵀ times values; the state is read twice and written once.
        return total + chunk_costs(sizes, H, pairs=2 * E + 2 * V, states=3 * E * V, per_token=R)
