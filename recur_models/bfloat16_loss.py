"""Cross-entropy in nats per token in bfloat16 on a CPU, for `losses.chunked_cross_entropy`.

    nats_N = KeptCrossEntropy.apply(hidden_ND, weight_VD, targets_N, bias_V)      # keeps N × V numbers for the backward pass
    nats_N = bfloat16_nats(hidden_ND, weight_VD, targets_N, bias_V)               # without gradients

Products are in bfloat16, over many tokens; the softmax is in float32, over the few that a core's cache holds. The logits'
gradients are made forward, where the softmax is at hand. Floor: 2·N·V·D FLOPs forward and 4·N·V·D backward. In float32, and
beyond KEPT_ELEMENTS logits, losses.py keeps none and makes them again: its backward pass costs 6·N·V·D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recur_models.layers import float32_zeros, refuse_second_derivatives, slices
from recur_models.protocol import IGNORED

KEPT_ELEMENTS = 1 << 29
"""The most logits whose gradients are kept for the backward pass: 1 GiB."""
SOFTMAX_ELEMENTS = 1 << 19
"""Logits of a softmax at a time: 2 MiB in float32, the size of a core's cache."""
PRODUCT_TOKENS = 1024
"""Tokens of a product over the vocabulary, where it is not over all: each reads or writes a matrix of the weight's size."""
ALIGNED_ELEMENTS = 32
"""Rows of logits begin at multiples of this many numbers, 64 bytes. Where they do not, as with SmolLM2's 49,153 ids, a product in
bfloat16 takes 1.5 times as long."""


def is_bfloat16_on_cpu(hidden_ND: Tensor) -> bool:
    """Whether this module makes the losses: not in compiled code, which would write out each chunk of the softmax."""
    on_cpu = hidden_ND.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and hidden_ND.dtype == torch.bfloat16


def _aligned(hidden_ND: Tensor, tokens: int, vocab_size: int) -> Tensor:
    """An empty tensor for logits [tokens, V], in which each row is aligned.

    Between its rows it holds zeros: products on AMX read these numbers too and multiply them by zero, so that a NaN there spreads.
    """
    width = math.ceil(vocab_size / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
    padded = hidden_ND.new_empty(tokens, width)
    padded[:, vocab_size:] = 0.0
    return padded[:, :vocab_size]


def _softmax_errors(logits_NV: Tensor, targets_N: Tensor, bias_V: Tensor | None, errors: bool) -> Tensor:
    """Nats of the targets [N] float32, 0 where the target is ``IGNORED``. ``errors``: softmax − target replaces the logits, which
    have no bias yet. The softmax runs in float32, a few tokens at a time.
    """
    nats_N = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
    tokens = max(1, SOFTMAX_ELEMENTS // logits_NV.shape[1])
    for chunk in slices(len(logits_NV), tokens):
        targets_C = targets_N[chunk]
        float_CV = logits_NV[chunk].float()
        if bias_V is not None:
            float_CV += bias_V
        log_softmax_CV = torch.log_softmax(float_CV, dim=-1)
        # Another id below 0, as transformers' −100, is out of bounds: an error.
        target_C1 = targets_C.masked_fill(targets_C == IGNORED, 0)[:, None]
        nats_C = -log_softmax_CV.gather(1, target_C1)[:, 0]
        nats_N[chunk] = nats_C.masked_fill_(targets_C == IGNORED, 0.0)
        if errors:
            errors_CV = log_softmax_CV.exp_()
            errors_CV.scatter_add_(1, target_C1, errors_CV.new_full((len(errors_CV), 1), -1.0))
            logits_NV[chunk] = errors_CV
    return nats_N


def bfloat16_nats(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None) -> Tensor:
    """Nats of each target [N] float32, without gradients. Logits of ``PRODUCT_TOKENS`` tokens exist at a time."""
    nats_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.float32)
    buffer_CV = _aligned(hidden_ND, min(PRODUCT_TOKENS, len(hidden_ND)), len(weight_VD))
    for chunk in slices(len(hidden_ND), PRODUCT_TOKENS):
        hidden_CD = hidden_ND[chunk]
        logits_CV = torch.mm(hidden_CD, weight_VD.T, out=buffer_CV[: len(hidden_CD)])
        nats_N[chunk] = _softmax_errors(logits_CV, targets_N[chunk], bias_V, errors=False)
    return nats_N


class KeptCrossEntropy(torch.autograd.Function):
    """Autograd function of `losses.chunked_cross_entropy`, which keeps the logits' gradients.

    Forward: softmax(z) − onehot(y) takes the place of the logits z, and is kept. Backward: g · (softmax(z) − onehot(y)) · W is the
    gradient of the hidden states h, and (softmax(z) − onehot(y))ᵀ · (g · h) that of the weight W.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None
    ) -> Tensor:
        ctx.weight_dtype = weight_VD.dtype  # pyrefly: ignore
        weight_VD = weight_VD.to(hidden_ND.dtype)
        errors_NV = _aligned(hidden_ND, len(hidden_ND), len(weight_VD))
        torch.mm(hidden_ND, weight_VD.T, out=errors_NV)
        nats_N = _softmax_errors(errors_NV, targets_N, bias_V, errors=True)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, errors_NV, bias_V)  # pyrefly: ignore
        return nats_N

    @staticmethod
    def backward(ctx: FunctionCtx, grad_N: Tensor) -> tuple[Tensor, Tensor | None, None, Tensor | None]:  # pyrefly: ignore
        refuse_second_derivatives("give no targets, and compute the loss from the logits")
        hidden_ND, weight_VD, targets_N, errors_NV, bias_V = ctx.saved_tensors  # pyrefly: ignore
        grad_N1 = grad_N.masked_fill(targets_N == IGNORED, 0.0)[:, None]
        grad_hidden_ND = torch.empty_like(hidden_ND)
        _, trains_weight, _, trains_bias = ctx.needs_input_grad  # pyrefly: ignore
        grad_weight_VD = float32_zeros(weight_VD, trains_weight)
        grad_bias_V = float32_zeros(bias_V, trains_bias)
        buffer_VD = torch.empty_like(weight_VD)
        for chunk in slices(len(hidden_ND), PRODUCT_TOKENS):
            errors_CV = errors_NV[chunk]
            grad_C1 = grad_N1[chunk]
            grad_hidden_ND[chunk] = (errors_CV @ weight_VD).float().mul_(grad_C1)
            if grad_weight_VD is not None:
                scaled_CD = hidden_ND[chunk].float().mul_(grad_C1).to(hidden_ND.dtype)
                grad_weight_VD += torch.mm(errors_CV.T, scaled_CD, out=buffer_VD)
            if grad_bias_V is not None:
                grad_bias_V += grad_C1[:, 0] @ errors_CV.float()
        grad_weight_VD = None if grad_weight_VD is None else grad_weight_VD.to(ctx.weight_dtype)  # pyrefly: ignore
        grad_bias_V = None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_ND, grad_weight_VD, None, grad_bias_V
