"""Cross-entropy in nats per token, in chunks of tokens. Compiled code on a GPU takes a segment at once if its logits fit.

    nats_N = chunked_cross_entropy(hidden_ND, embedding_VD, targets_N)
    hidden_BTD, state = hidden_states(model, tokens_BT, state, fresh_BK)      # the output layer's input

The logits of one chunk of tokens exist at a time, forward and backward; the backward pass makes them again. Floor: the
logits cost 2·N·V·D FLOPs forward and 6·N·V·D backward (4 for the gradients, 2 to make them again); memory is chunk × V, and
the gradients of 1,024 tokens' logits in the dtype of the product.

In bfloat16 on a CPU the gradients of the logits are made forward and kept (recur_models/bfloat16_loss.py).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from recur_models.bfloat16_loss import KEPT_ELEMENTS, KeptCrossEntropy, bfloat16_nats, is_bfloat16_on_cpu
from recur_models.hidden import in_place_of_logits, states_asked_for
from recur_models.layers import float32_zeros, is_plain, refuse_second_derivatives, slices
from recur_models.protocol import IGNORED, RecurrentModel, State

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Logits held at a time, by the kind of device. CPU: 16 MiB in float32, about the size of its cache. GPU: 2 GiB, so that each
product fills the GPU; the block-recurrent paper's 32 × 4,096 tokens take eight chunks."""
GRADIENT_TOKENS = 1024
"""The fewest tokens in a chunk of the backward pass, if the weight is trained. Each chunk adds to the weight's gradient, which
reads and writes all of it, however few the tokens."""
WHOLE_ELEMENTS = 1 << 32
"""The most logits that compiled code on a GPU holds at once, without chunks: 8 GiB in bfloat16. It computes the softmax and its sum
in one pass, without a float32 copy."""


def chunked_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """Nats of each target under softmax(hidden · weightᵀ + bias): [N] float32, 0 where the target is ``IGNORED``.

    ``targets_N``: int64. The caller scales ``hidden`` (logits / √d). Under autocast the product runs in the autocast dtype, the
    softmax in float32.

    The logits of one chunk exist at a time, with two exceptions. Compiled code on a GPU makes all at once, up to WHOLE_ELEMENTS
    (`whole_cross_entropy`, the same losses). In bfloat16 on a CPU the gradients of up to KEPT_ELEMENTS logits are kept.
    """
    if torch.is_autocast_enabled(hidden_ND.device.type):
        dtype = torch.get_autocast_dtype(hidden_ND.device.type)
        hidden_ND = hidden_ND.to(dtype)
    fits = len(hidden_ND) * len(weight_VD) <= WHOLE_ELEMENTS
    if hidden_ND.device.type == "cuda" and torch.compiler.is_compiling() and fits:
        return whole_cross_entropy(hidden_ND, weight_VD.to(hidden_ND.dtype), targets_N, bias_V)
    if is_bfloat16_on_cpu(hidden_ND):
        if not torch.is_grad_enabled():
            return bfloat16_nats(hidden_ND, weight_VD.to(hidden_ND.dtype), targets_N, bias_V)
        if len(hidden_ND) * len(weight_VD) <= KEPT_ELEMENTS:
            return KeptCrossEntropy.apply(hidden_ND, weight_VD, targets_N, bias_V)  # pyrefly: ignore
    return _ChunkedCrossEntropy.apply(hidden_ND, weight_VD, targets_N, bias_V)  # pyrefly: ignore


def whole_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """`chunked_cross_entropy` of all tokens at once, in one graph for the compiler."""
    logits_NV = (hidden_ND @ weight_VD.T).float()
    logits_NV = logits_NV if bias_V is None else logits_NV + bias_V
    return F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED, reduction="none")


def tied_output(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor | None) -> Tensor:
    """A model's output: nats [B, T] if there are targets, else logits [B, T, V]. ``weight_VD``: its embedding."""
    if targets_BT is None:
        states = states_asked_for(hidden_BTD)
        return F.linear(hidden_BTD, weight_VD.to(hidden_BTD.dtype)) if states is None else states
    return chunked_cross_entropy(hidden_BTD.flatten(0, 1), weight_VD, targets_BT.flatten()).view_as(targets_BT)


def untied_output(hidden_BTD: Tensor, output: nn.Module, targets_BT: Tensor | None) -> Tensor:
    """The same as `tied_output`, for a model with an output layer of its own. A layer that is not plain (`layers.is_plain`) is
    called, and then all logits exist at once.
    """
    if targets_BT is None:
        states = states_asked_for(hidden_BTD)
        return output(hidden_BTD) if states is None else states
    if isinstance(output, nn.Linear) and is_plain(output):
        nats_N = chunked_cross_entropy(hidden_BTD.flatten(0, 1), output.weight, targets_BT.flatten(), output.bias)
    else:
        logits_NV = output(hidden_BTD).flatten(0, 1).float()
        nats_N = F.cross_entropy(logits_NV, targets_BT.flatten(), ignore_index=IGNORED, reduction="none")
    return nats_N.view_as(targets_BT)


def tied_or_untied_output(
    hidden_BTD: Tensor, embedding: nn.Embedding, output: nn.Module | None, targets_BT: Tensor | None
) -> Tensor:
    """`untied_output` by the layer ``output``, or `tied_output` by the embedding where that is None."""
    if output is None:
        return tied_output(hidden_BTD, embedding.weight, targets_BT)
    return untied_output(hidden_BTD, output, targets_BT)


def hidden_states(
    model: RecurrentModel, tokens_BT: Tensor, state: State | None = None, fresh_BK: Tensor | None = None
) -> tuple[Tensor, State]:
    """``model(tokens_BT, state, fresh_BK)`` with the last hidden states [B, T, D] in the place of the logits, as its output layer
    reads them: logits are their product with its weights, and its bias where it has one.

    Raises TypeError for a model whose logits are made neither by `tied_output` nor by `untied_output`.
    """
    with in_place_of_logits() as found:
        made, after = model(tokens_BT, state, fresh_BK)
    if not found.widths:
        raise TypeError(f"{type(model).__name__} makes its logits itself: end its forward with losses.tied_output")
    return made, after


def labelled_cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Nats of each target [B, T] float32, and whether the likeliest token is another one [B, T] bool; 0 and False where the target
    is ``IGNORED``. The softmax, in float32, runs over the labelled positions alone.
    """
    targets_N = targets_BT.flatten()
    labelled_L = torch.nonzero(targets_N != IGNORED)[:, 0]
    logits_LV = logits_BTV.flatten(0, 1)[labelled_L].float()
    targets_L = targets_N[labelled_L]
    nats_L = F.cross_entropy(logits_LV, targets_L, reduction="none")
    wrong_L = logits_LV.argmax(-1) != targets_L
    nats_N = nats_L.new_zeros(len(targets_N)).index_copy(0, labelled_L, nats_L)
    wrong_N = torch.zeros_like(targets_N, dtype=torch.bool).index_copy(0, labelled_L, wrong_L)
    return nats_N.view_as(targets_BT), wrong_N.view_as(targets_BT)


def _chunks(hidden_ND: Tensor, vocab_size: int, least: int = 1) -> list[slice]:
    """The tokens of each chunk: as many as have CHUNK_ELEMENTS logits together, but at least ``least``."""
    held = CHUNK_ELEMENTS.get(hidden_ND.device.type, CHUNK_ELEMENTS["cpu"])
    size = max(least, held // vocab_size)
    return slices(len(hidden_ND), size)


def _logits(hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """A chunk's logits [C, V] in float32, in a tensor of their own that may be overwritten."""
    logits_CV = (hidden_CD @ weight_VD.T).float()
    return logits_CV if bias_V is None else logits_CV.add_(bias_V)


def _errors(
    hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_C: Tensor, normalizer_C: Tensor
) -> Tensor:
    """softmax − target [C, V] in float32. ``normalizer_C``: logarithm of the softmax's sum."""
    errors_CV = _logits(hidden_CD, weight_VD, bias_V).sub_(normalizer_C[:, None]).exp_()
    return errors_CV.scatter_add_(1, targets_C.clamp(min=0)[:, None], errors_CV.new_full((len(errors_CV), 1), -1.0))


def _logit_gradients(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    normalizer_N: Tensor,
    grad_N: Tensor,
) -> Tensor:
    """Gradients of tokens' logits [N, V] in the dtype of ``hidden_ND``, made in float32 for one chunk at a time.

    ``grad_N``: the gradient of their nats.
    """
    chunks = _chunks(hidden_ND, len(weight_VD))
    if len(chunks) == 1:
        errors_NV = _errors(hidden_ND, weight_VD, bias_V, targets_N, normalizer_N)
        return errors_NV.mul_(grad_N[:, None]).to(hidden_ND.dtype)
    made_NV = hidden_ND.new_empty(len(hidden_ND), len(weight_VD))
    for chunk in chunks:
        errors_CV = _errors(hidden_ND[chunk], weight_VD, bias_V, targets_N[chunk], normalizer_N[chunk])
        torch.mul(errors_CV, grad_N[chunk, None], out=made_NV[chunk])
    return made_NV


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Autograd function of `chunked_cross_entropy`, with logits z and a target y per token.

    Forward: nats = log Σ_v exp z_v − z_y. That logarithm (``normalizer_N``) is kept, and no logits. Backward: the gradient of z is
    g · (softmax(z) − onehot(y)), where the logits are made anew; those of hidden state, weight and bias follow from it.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None
    ) -> Tensor:
        ctx.weight_dtype = weight_VD.dtype  # pyrefly: ignore
        weight_VD = weight_VD.to(hidden_ND.dtype)
        nats_N = hidden_ND.new_empty(len(hidden_ND), dtype=torch.float32)
        normalizer_N = torch.empty_like(nats_N)
        for chunk in _chunks(hidden_ND, len(weight_VD)):
            logits_CV = _logits(hidden_ND[chunk], weight_VD, bias_V)
            targets_C = targets_N[chunk]
            normalizer_N[chunk] = torch.logsumexp(logits_CV, dim=-1)
            # Another id below 0, as transformers' −100, is out of bounds: an error on a CPU, a failed assertion of a GPU's kernel.
            picked_C = logits_CV.gather(1, targets_C.masked_fill(targets_C == IGNORED, 0)[:, None])[:, 0]
            nats_N[chunk] = (normalizer_N[chunk] - picked_C).masked_fill_(targets_C == IGNORED, 0.0)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, normalizer_N, bias_V)  # pyrefly: ignore
        return nats_N

    @staticmethod
    def backward(ctx: FunctionCtx, grad_N: Tensor) -> tuple[Tensor, Tensor | None, None, Tensor | None]:  # pyrefly: ignore
        refuse_second_derivatives("give no targets, and compute the loss from the logits")
        hidden_ND, weight_VD, targets_N, normalizer_N, bias_V = ctx.saved_tensors  # pyrefly: ignore
        grad_hidden_ND = torch.empty_like(hidden_ND)
        _, trains_weight, _, trains_bias = ctx.needs_input_grad  # pyrefly: ignore
        grad_weight_VD = float32_zeros(weight_VD, trains_weight)
        grad_bias_V = float32_zeros(bias_V, trains_bias)
        grad_N = grad_N.masked_fill(targets_N == IGNORED, 0.0)
        for chunk in _chunks(hidden_ND, len(weight_VD), GRADIENT_TOKENS if trains_weight else 1):
            grad_CV = _logit_gradients(
                hidden_ND[chunk], weight_VD, bias_V, targets_N[chunk], normalizer_N[chunk], grad_N[chunk]
            )
            if grad_bias_V is not None:
                grad_bias_V += grad_CV.sum(0, dtype=torch.float32)
            grad_hidden_ND[chunk] = grad_CV @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad_CV.T @ hidden_ND[chunk]
        grad_weight_VD = None if grad_weight_VD is None else grad_weight_VD.to(ctx.weight_dtype)  # pyrefly: ignore
        grad_bias_V = None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_ND, grad_weight_VD, None, grad_bias_V
