"""Code that a stack's mixers share: their interface, chunks of a sequence, and a short causal convolution whose State is carried.

A mixer takes the residual stream x [B, T, D], its State and ``fresh``. It returns its addition to the stream, and its next State.
It reads a segment in chunks, or a block a few tokens at a time; both give the same.

Letters: B lanes · T tokens · K blocks · W block · n some tokens of a block · C chunk · N chunks · D width · H heads · E key size ·
V value size · Z channels · I taps of a convolution · J = I − 1 earlier tokens that it sees · S tokens behind J earlier ones ·
M sequences, of all lanes and blocks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from common.errors import UserError
from recur_models.costs import Costs
from recur_models.layers import Carried, relative_change, upcast, with_signature
from recur_models.norms import RMSNorm
from recur_models.protocol import Places, Probe, State, with_dtypes_of


class Sizes(NamedTuple):
    """The sizes that a mixer is built with and its costs are counted from, as in `MixersConfig`. A mixer reads those it needs."""

    d_model: int
    heads: int
    key_dim: int
    value_dim: int
    window: int
    chunk: int
    """Divides the window."""
    conv: int
    decays: bool = True
    negative_eigenvalues: bool = False
    householders: int = 1
    output_gate: bool = True
    head_norm: bool = True
    rotary: bool = False


def check_block(window: int, chunk: int, conv: int = 1) -> None:
    """Raises UserError where chunks do not divide a block, or where a convolution would see tokens before the previous block."""
    if window % min(chunk, window):
        raise UserError(
            f"model.chunk is {chunk}, and does not divide model.window, {window}: "
            f"give --model.chunk {math.gcd(chunk, window)}, or another window"
        )
    if window < conv - 1:
        raise UserError(
            f"model.window is {window}, and model.conv {conv} sees {conv - 1} earlier tokens: give --model.window {conv - 1} or "
            f"more, or --model.conv {window + 1}"
        )


Rule = TypeVar("Rule", bound=Callable[..., Any])


def without_autocast(rule: Rule) -> Rule:
    """Decorate ``rule`` so that autocast does not apply inside it: products in bfloat16 would lose small old parts of a State."""

    @wraps(rule)
    def run(q: Tensor, *given: Any, **options: Any) -> Any:
        with torch.autocast(q.device.type, enabled=False):
            return rule(q, *given, **options)

    return cast(Rule, run)


class Mixer(nn.Module, ABC):
    """A layer's way of mixing the tokens of a document. States and blocks here are those of one layer, without ``layers.i.``."""

    @abstractmethod
    def initial_state(self, lanes: int) -> State:
        """The State of ``lanes`` lanes before a document."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        """Read whole blocks. Returns the addition to the residual stream [B, T, D], and the next State."""

    @abstractmethod
    def open(self, state: State) -> State:
        """An empty block that begins at ``state``, in tensors of its own. When it is full, it is the next State."""

    @abstractmethod
    def extend(self, x_BnD: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Read tokens of one block. Returns the addition to the residual stream [B, n, D], and the block with them."""

    @abstractmethod
    def probes(self) -> list[Probe]:
        """As `RecurrentModel.probes`."""

    @staticmethod
    @abstractmethod
    def costs(sizes: Sizes) -> Costs:
        """Costs of one block of one lane."""


class RecurrentMixer(Mixer):
    """A mixer whose State changes at every token. While it reads a block in parts, the block is the State after its last token."""

    def __init__(self, sizes: Sizes, norm_eps: float = 1e-6):
        super().__init__()
        self.sizes = sizes
        self.norm = RMSNorm(sizes.d_model, norm_eps)
        self.carried = Carried()

    def zeros(self, *sizes: int) -> Tensor:
        """Zeros for a State in float32 or float64, whatever the weights' dtype: bfloat16 would lose small additions."""
        return upcast(self.norm.scale).new_zeros(sizes)

    def initial_state(self, lanes: int) -> State:
        """A matrix for each head: ``states`` [B, H, E, V]. A mixer that carries more adds to it."""
        sizes = self.sizes
        return {"states": self.zeros(lanes, sizes.heads, sizes.key_dim, sizes.value_dim)}

    @abstractmethod
    def mix(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, State]:
        """As `forward`, but for the normed stream, and for T tokens of whole blocks or of a part of one.

        ``valid_BT``: bool, False at padding, which must not change the State; None where all tokens are valid.
        """

    def forward(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        y_BTD, after = self.mix(self.norm(x_BTD), state, fresh_BK, None)
        after = with_dtypes_of(after, state)
        return y_BTD, {**after, "states": self.carried(state["states"], after["states"])}

    def open(self, state: State) -> State:
        return {name: tensor.clone() for name, tensor in state.items()}

    def extend(self, x_BnD: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        fresh_B1 = torch.zeros(len(x_BnD), 1, dtype=torch.bool, device=x_BnD.device)
        valid_Bn = places.valid_Bn if places.has_padding else None
        y_BnD, after = self.mix(self.norm(x_BnD), block, fresh_B1, valid_Bn)
        return y_BnD, with_dtypes_of(after, block)

    def probes(self) -> list[Probe]:
        return [Probe("state_change", self.carried, relative_change)]


class DepthwiseConvolution(torch.autograd.Function):
    """Autograd function of `depthwise_convolution`: torch's own backward pass takes four times as long on a CPU."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(x_MSZ: Tensor, weight_ZI: Tensor, bias_Z: Tensor | None) -> Tensor:  # pyrefly: ignore
        images = x_MSZ.transpose(1, 2)[:, :, None]
        y = nn.functional.conv2d(images, weight_ZI[:, None, None], bias_Z, groups=len(weight_ZI))
        return y[:, :, 0].transpose(1, 2)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: Tensor) -> None:  # pyrefly: ignore
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_MWZ: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:  # pyrefly: ignore
        x_MSZ, weight_ZI, _ = ctx.saved_tensors  # pyrefly: ignore
        images = grad_MWZ.transpose(1, 2)[:, :, None]
        grad_x = nn.functional.conv_transpose2d(images, weight_ZI[:, None, None], groups=len(weight_ZI))
        grad_weight_ZI = None
        _, trains_weight, trains_bias = ctx.needs_input_grad  # pyrefly: ignore
        if trains_weight:
            W = grad_MWZ.shape[1]
            seen = [x_MSZ[:, i : i + W] for i in range(weight_ZI.shape[1])]
            grad_weight_ZI = torch.stack([(grad_MWZ * each).sum((0, 1)) for each in seen], 1)
        return grad_x[:, :, 0].transpose(1, 2), grad_weight_ZI, grad_MWZ.sum((0, 1)) if trains_bias else None


@without_autocast
def depthwise_convolution(x_MSZ: Tensor, weight_ZI: Tensor, bias_Z: Tensor | None) -> Tensor:
    """Each channel is y_t = Σ_i weight_i x_{t+i} + bias: [M, S, Z] → [M, S − I + 1, Z]."""
    if x_MSZ.shape[1] == weight_ZI.shape[1]:
        # A single output, as in stepping: conv2d would take longer to set up than to run.
        y_M1Z = (x_MSZ * weight_ZI.T).sum(1, keepdim=True)
        return y_M1Z if bias_Z is None else y_M1Z + bias_Z
    return DepthwiseConvolution.apply(x_MSZ, weight_ZI, bias_Z)


class ShortConvolution(nn.Module):
    """A depthwise causal convolution over the last ``taps`` tokens of the document, then SiLU.

    State: ``inputs`` [B, taps − 1, Z], its newest inputs.
    """

    def __init__(self, channels: int, taps: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def initial_inputs(self, lanes: int) -> Tensor:
        """The inputs before a document, which are zeros: [B, J, Z]."""
        channels, taps = self.weight.shape
        return self.weight.new_zeros(lanes, taps - 1, channels)

    def forward(
        self, x_BTZ: Tensor, inputs_BJZ: Tensor, fresh_BK: Tensor, valid_BT: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs [B, T, Z], and the inputs [B, J, Z] that the next tokens see; none of an earlier document."""
        padded_BKSZ, after_BJZ = behind_earlier(x_BTZ, inputs_BJZ, fresh_BK, valid_BT)
        weight_ZI = self.weight.to(x_BTZ.dtype)
        bias_Z = None if self.bias is None else self.bias.to(x_BTZ.dtype)
        y_BTZ = depthwise_convolution(padded_BKSZ.flatten(0, 1), weight_ZI, bias_Z).reshape(x_BTZ.shape)
        return nn.functional.silu(y_BTZ), after_BJZ


def behind_earlier(
    x_BTZ: Tensor, inputs_BJZ: Tensor, fresh_BK: Tensor, valid_BT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Put the J tokens before each block in front of it. They are zeros where a document begins.

    Args:
        x_BTZ: K blocks, each of J tokens or more if there are several (`check_block`).
        inputs_BJZ: the tokens before the first block.
        valid_BT: bool, False at padding behind the last token; None without padding.

    Returns the padded blocks [B, K, S, Z], and the J newest tokens [B, J, Z].
    """
    kept = inputs_BJZ.shape[1]
    x_BKWZ = x_BTZ.unflatten(1, (fresh_BK.shape[1], -1))
    length = x_BKWZ.shape[2]
    earlier_BKJZ = inputs_BJZ.to(x_BTZ.dtype)[:, None]
    if fresh_BK.shape[1] > 1:
        earlier_BKJZ = torch.cat([earlier_BKJZ, x_BKWZ[:, :-1, length - kept :]], 1)
    earlier_BKJZ = earlier_BKJZ.masked_fill(fresh_BK[:, :, None, None], 0.0)
    padded_BKSZ = torch.cat([earlier_BKJZ, x_BKWZ], 2)
    last_BSZ = padded_BKSZ[:, -1]
    if valid_BT is None:
        return padded_BKSZ, last_BSZ[:, length:].clone()
    index_BJ = valid_BT.sum(1, keepdim=True) + torch.arange(kept, device=x_BTZ.device)
    return padded_BKSZ, torch.take_along_dim(last_BSZ, index_BJ[..., None], 1)


class Chunks(NamedTuple):
    """How a sequence is split into chunks of equal size."""

    size: int
    """Tokens in a chunk."""
    count: int
    """Chunks in the sequence."""
    padding: int
    """Tokens that the last chunk has beyond the sequence's end."""

    @classmethod
    def of(cls, length: int, size: int, fresh_BK: Tensor | None) -> Chunks:
        """Chunks of ``size`` tokens for a sequence of ``length``; a shorter sequence is one chunk.

        With several blocks (``fresh_BK``) chunks are smaller where otherwise a block would begin within one. Raises UserError if
        the blocks cannot be equal.
        """
        size = min(size, length)
        blocks = 1 if fresh_BK is None else fresh_BK.shape[1]
        if length % blocks:
            raise UserError(
                f"{length} tokens cannot be divided into {blocks} equal blocks, one for each entry of fresh_BK"
            )
        if blocks > 1:
            size = math.gcd(size, length // blocks)
        count = -(-length // size)
        return cls(size, count, count * size - length)

    def split(self, x_BTH: Tensor) -> Tensor:
        """[B, T, H, …] → [B, H, N, C, …], padded with zeros, in float32 or float64."""
        x_BTH = upcast(x_BTH)
        if self.padding:
            pad: list[int] = [0, 0] * (x_BTH.dim() - 2) + [0, self.padding]
            x_BTH = nn.functional.pad(x_BTH, pad)
        return x_BTH.unflatten(1, (self.count, self.size)).movedim(3, 1).contiguous()

    def join(self, x_BHNCE: Tensor) -> Tensor:
        """[B, H, N, C, E] → [B, T, H, E] without the padding."""
        x_BTHE = x_BHNCE.movedim(1, 3).flatten(1, 2)
        return x_BTHE[:, : x_BTHE.shape[1] - self.padding]

    def fresh(self, fresh_BK: Tensor | None, like_BT: Tensor) -> Tensor:
        """Whether a document begins at each chunk: bool [B, N], False without ``fresh_BK``. ``like_BT`` gives B and the device."""
        fresh_BN = torch.zeros(len(like_BT), self.count, dtype=torch.bool, device=like_BT.device)
        if fresh_BK is not None:
            chunks_in_block = self.count // fresh_BK.shape[1]
            fresh_BN[:, ::chunks_in_block] = fresh_BK
        return fresh_BN


def masked_later(C: int, like: Tensor) -> Tensor:
    """A mask [C, C] to add to logarithms of weights, so that token i gives a later token j no weight: −∞ for j > i, else 0."""
    return torch.full((C, C), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def cumulative(log_decay_BHNC: Tensor) -> tuple[Tensor, Tensor]:
    """The cumulative log decays b [B, H, N, C], and what rounding leaves out of them, without a gradient.

    After a token that forgets much, b is large, and so is its rounding; but b_i − b_j is small between tokens that forget little.
    """
    sum_BHNC = log_decay_BHNC.cumsum(-1)
    with torch.no_grad():
        rest_BHNC = (log_decay_BHNC.double().cumsum(-1) - sum_BHNC.double()).to(sum_BHNC.dtype)
    return sum_BHNC, rest_BHNC


def log_decay_between(sum_BHNC: Tensor, rest_BHNC: Tensor) -> Tensor:
    """b_i − b_j for i ≥ j, else −∞ [B, H, N, C, C]; arguments from `cumulative`."""
    difference = sum_BHNC[..., :, None] + (-sum_BHNC)[..., None, :]
    with torch.no_grad():
        further = rest_BHNC[..., :, None] - rest_BHNC[..., None, :]
        further += masked_later(sum_BHNC.shape[-1], further)
    return difference.add_(further)


def log_decay_to_end(sum_BHNC: Tensor, rest_BHNC: Tensor) -> Tensor:
    """b at the chunk's last token less b_j [B, H, N, C]; arguments from `cumulative`."""
    return (sum_BHNC[..., -1:] - sum_BHNC) + (rest_BHNC[..., -1:] - rest_BHNC)


def decay_of_state(sum_BHNC: Tensor, fresh_BN: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the state before a chunk that is left at each of its tokens [B, H, N, C, 1], and after it [B, H, N, 1, 1].

    Nothing is left where a document begins with the chunk (``fresh_BN``). ``sum_BHNC``: the cumulative log decays.
    """
    from_start = sum_BHNC.exp().masked_fill(fresh_BN[:, None, :, None], 0.0)[..., None]
    return from_start, from_start[..., -1:, :]


def chunk_costs(sizes: Sizes, heads: int, pairs: int, states: int, per_token: int = 1) -> Costs:
    """Matrix products of a recurrence that is computed in chunks, over one block.

    Args:
        pairs: multiply-adds of a head for each pair of tokens in a chunk.
        states: multiply-adds of a head for each token and the state.
        per_token: keys of a token.
    """
    C = sizes.chunk
    chunks = sizes.window * per_token // C
    return Costs(
        0,
        flops=2 * heads * chunks * (C * (C + 1) // 2 * pairs + C * states),
        computed_flops=2 * heads * chunks * (C * C * pairs + C * states),
    )


def initial_step_bias(heads: int) -> nn.Parameter:
    """For each head a bias whose softplus, a step, is from 0.001 to 0.1, uniform in its logarithm, as in Mamba-2's code."""
    step_H = torch.exp(torch.empty(heads).uniform_(-6.907755, -2.302585))  # log 0.001, log 0.1
    return nn.Parameter(step_H + torch.log(-torch.expm1(-step_H)))  # softplus inverted


def initial_log_rate(heads: int) -> nn.Parameter:
    """For each head the logarithm of a decay rate, uniform from 1 to 16, as in Mamba-2's code (Dao & Gu 2024, arXiv 2405.21060)."""
    return nn.Parameter(torch.empty(heads).uniform_(1.0, 16.0).log())


def split_qkv_gate(projected_BTZ: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split one projection into queries and keys [B, T, H, E], values [B, T, H, V] and the output gate [B, T, H·V]."""
    key = sizes.heads * sizes.key_dim
    value = sizes.heads * sizes.value_dim
    q, k, v, gate = projected_BTZ.split([key, key, value, value], -1)
    q, k, v = (x.unflatten(-1, (sizes.heads, -1)) for x in (q, k, v))
    return q, k, v, gate
