"""Block-Recurrent Transformer, sliding window and Transformer-XL: one stack of pre-norm layers (Hutchins et al. 2022).

A token layer is the vertical direction; a recurrent layer adds the horizontal one: S state vectors, updated once per block of
W tokens, that read the block's tokens and are read by the next block's. Only the horizontal direction is sequential: keys,
values and queries of all blocks are made at once, a loop over blocks updates the states, and the vertical direction then
runs over all blocks in parallel, each against the states that it saw.

    RecConfig(layers=12, recurrent_layers=(10,), gate="fixed", cell="skip").build(vocab_size=32_001)
    SlideConfig(layers=13).build(vocab_size=32_001)
    XLConfig(layers=12, window=2048).build(vocab_size=32_001)

State, for layer i counted from 0: ``layers.i.keys``, ``layers.i.values`` [B, H, W, E]; ``layers.i.states`` [B, S, D]; under
``equations="paper"`` also ``present`` [B], whether the lane has a previous block. Letters: see layers.py.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recur_models.gates import GATES, Equations, Gate
from recur_models.layers import (
    MLP,
    PositionBias,
    RMSNorm,
    StackConfig,
    attend,
    dropouts,
    kept,
    linear,
    merge_heads,
    split_heads,
    unit_norm,
)
from recur_models.losses import chunked_cross_entropy
from recur_models.protocol import RecurrentModel, State, check_inputs, reset
from recur_models.window import Window, window_bias, windowed_attention, with_previous

Cell = Literal["dual", "single", "skip"]


@dataclass(frozen=True)
class WindowedConfig(StackConfig):
    """A stack of layers with windowed attention. Configs differ in the layers that they put into it."""

    equations: Equations = "meliad"
    """Where code and paper differ: what the authors' code computes, or what the paper writes."""

    @property
    def least_blocks(self) -> int:
        return 1

    @abstractmethod
    def layer(self, index: int) -> nn.Module:
        """A new layer for this place in the stack, counted from 0: `Layer`, or a module with its two methods."""

    def build(self, vocab_size: int) -> BlockRecurrentTransformer:
        return BlockRecurrentTransformer(self, vocab_size)


@dataclass(frozen=True)
class SlideConfig(WindowedConfig):
    """Sliding-window transformer, differentiable across the blocks of a segment (the paper's Slide:12L and Slide:13L)."""

    name: ClassVar[str] = "slide"

    def layer(self, index: int) -> nn.Module:
        return Layer(self)


@dataclass(frozen=True)
class XLConfig(WindowedConfig):
    """Transformer-XL: the previous block's keys and values are read, and get no gradient (the paper's XL:512 to XL:2048).

    That holds between all blocks, also those of one segment: so a segment of several windows is XL too, step by step.
    """

    name: ClassVar[str] = "xl"

    def layer(self, index: int) -> nn.Module:
        return Layer(self, cache="detached")


@dataclass(frozen=True)
class RecConfig(WindowedConfig):
    """Block-recurrent transformer: sliding window, with recurrent states in some layers (the paper's Rec and Feedback rows)."""

    name: ClassVar[str] = "rec"

    recurrent_layers: tuple[int, ...] = (10,)
    """Layers with recurrent states, counted from 1 at the bottom as the paper does."""
    states: int = 512
    """State vectors of a recurrent layer."""
    gate: Gate = "fixed"
    """How a state is updated: a learned moving average, or LSTM gates (section 3.3)."""
    cell: Cell = "skip"
    """Gate configuration (section 3.5): both residuals gated, only the MLP, or only the projection."""
    feedback: bool = False
    """Every layer attends to the states of the (last) recurrent layer; the stack then runs block by block (Appendix E)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states < 1:
            raise ValueError(f"model.states is {self.states}: it must be at least 1")
        if not self.recurrent_layers or len(set(self.recurrent_layers)) < len(self.recurrent_layers):
            raise ValueError(f"model.recurrent_layers is {self.recurrent_layers}: name one or more different layers")
        for layer in self.recurrent_layers:
            if not 1 <= layer <= self.layers:
                raise ValueError(
                    f"model.recurrent_layers names layer {layer}, but the model has layers 1 to {self.layers}"
                )

    @property
    def least_blocks(self) -> int:
        return 2  # the states after a block are first read by the next one

    def layer(self, index: int) -> nn.Module:
        return Layer(self, self if index + 1 in self.recurrent_layers else None, cross=self.feedback)


class Projections(NamedTuple):
    """Keys, values and both sets of queries of one direction, heads split: [..., H, n, E]."""

    k: Tensor
    v: Tensor
    q_self: Tensor
    q_cross: Tensor | None


class Projector(nn.Module):
    """Norm, then keys, values and one or two sets of queries in one product; queries and keys normalised, queries scaled."""

    def __init__(self, config: StackConfig, cross: bool, dropout: float = 0.0):
        super().__init__()
        self.heads = config.heads
        self.dropout = nn.Dropout(dropout)
        self.norm = RMSNorm(config.d_model)
        self.kvq = linear(config.d_model, (4 if cross else 3) * config.heads * config.head_dim)
        self.scale_H = nn.Parameter(torch.ones(config.heads))
        self.cross_scale_H = nn.Parameter(torch.ones(config.heads)) if cross else None

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Projections:
        """Project x […, n, D], after adding ``ids`` to the normed input (learned state IDs, section 3.2)."""
        x = self.norm(x)
        x = self.dropout(x if ids is None else x + ids)
        k, v, q, *q2 = (
            split_heads(part, self.heads) for part in self.kvq(x).chunk(3 if self.cross_scale_H is None else 4, -1)
        )
        q_cross = None if self.cross_scale_H is None else unit_norm(q2[0], self.cross_scale_H)
        return Projections(unit_norm(k), v, unit_norm(q, self.scale_H), q_cross)


def last_block(tokens: Projections) -> State:
    """Keys and values of a segment's last block, copied: a view would hold all of the segment's until the next one is read."""
    return {"keys": tokens.k[:, -1].clone(), "values": tokens.v[:, -1].clone()}


class TokenLayer(nn.Module):
    """The vertical direction: sliding self-attention, in parallel with cross-attention to states when ``cross``; then the MLP."""

    def __init__(self, config: StackConfig, cross: bool, position: bool = True):
        super().__init__()
        self.config, self.rates = config, dropouts(config)
        self.project = Projector(config, cross, self.rates.normed)
        self.position_bias = PositionBias(config.heads) if position else None
        self.out = linear((2 if cross else 1) * config.heads * config.head_dim, config.d_model)
        self.attention_dropout = nn.Dropout(self.rates.attention)
        self.mlp_norm = RMSNorm(config.d_model)
        self.mlp = MLP(config.d_model, config.mlp_dim, self.rates)

    def initial_cache(self, lanes: int) -> State:
        """The keys and values of no previous block: zeros."""
        config = self.config
        shape = (lanes, config.heads, config.window, config.head_dim)
        return {"keys": self.out.weight.new_zeros(shape), "values": self.out.weight.new_zeros(shape)}

    def window(self) -> Window:
        """Bias and dropout of the window's attention, the same for every block."""
        bias_HWZ = window_bias(self.position_bias, self.project.scale_H, self.config.window)
        heads_HWZ = bias_HWZ.expand(self.config.heads, -1, -1)  # without positions, the bias has no heads of its own
        return Window(bias_HWZ, kept(heads_HWZ, self.rates.weights) if self.training else None)

    def combine(self, x_BKWD: Tensor, self_BKHWE: Tensor, cross_BKHWE: Tensor | None) -> Tensor:
        heads = self_BKHWE if cross_BKHWE is None else torch.cat([self_BKHWE, cross_BKHWE], dim=2)
        x_BKWD = x_BKWD + self.attention_dropout(self.out(merge_heads(heads)))
        return x_BKWD + self.mlp(self.mlp_norm(x_BKWD))


class StateDirection(nn.Module):
    """The horizontal direction: states attend to one another and to the tokens of two blocks; gates replace the residuals."""

    def __init__(self, config: RecConfig):
        super().__init__()
        heads_width = 2 * config.heads * config.head_dim
        gate, squash = GATES[config.gate], config.cell == "single"
        self.initial_SD = nn.Parameter(torch.empty(config.states, config.d_model).normal_(std=0.1))
        self.ids_SD = nn.Parameter(torch.empty(config.states, config.d_model).normal_())
        self.project = Projector(config, cross=True)
        self.attention_gate = (
            None if config.cell == "single" else gate(heads_width, config.d_model, config.equations, squash)
        )
        self.mlp_norm = RMSNorm(config.d_model) if config.cell == "dual" else None
        self.mlp_hidden = (
            None
            if config.cell == "skip"
            else linear(heads_width if config.cell == "single" else config.d_model, config.mlp_dim)
        )
        self.mlp_gate = (
            None if config.cell == "skip" else gate(config.mlp_dim, config.d_model, config.equations, squash)
        )

    def read(self, c_BSD: Tensor) -> Projections:
        """Keys and values for the tokens, and the states' own queries."""
        return self.project(c_BSD, self.ids_SD.to(c_BSD.dtype))

    def update(
        self, c_BSD: Tensor, read: Projections, kz_BHZE: Tensor, vz_BHZE: Tensor, absent_B: Tensor | None
    ) -> Tensor:
        """The states after a block: ``read`` of the states before it, keys and values of its 2W tokens."""
        assert read.q_cross is not None
        self_BHSE = attend(read.q_self, read.k, read.v)
        cross_BHSE = attend(read.q_cross, kz_BHZE, vz_BHZE, absent_B)
        h_BSN = merge_heads(torch.cat([self_BHSE, cross_BHSE], dim=1))
        if self.attention_gate is not None:
            c_BSD = self.attention_gate(c_BSD, h_BSN)
            h_BSN = c_BSD if self.mlp_norm is None else self.mlp_norm(c_BSD)
        if self.mlp_gate is not None and self.mlp_hidden is not None:
            c_BSD = self.mlp_gate(c_BSD, torch.relu(self.mlp_hidden(h_BSN)))
        return c_BSD


class Layer(nn.Module):
    """One layer of the stack: tokens in blocks and this layer's State in, the same out.

    ``recurrence``: whose states this layer keeps, if any. ``cross``: its tokens read states, its own or those of another layer.
    ``cache``: whether gradients reach the previous block of the same segment through its keys and values.
    """

    def __init__(
        self,
        config: WindowedConfig,
        recurrence: RecConfig | None = None,
        cross: bool = False,
        cache: Literal["differentiable", "detached"] = "differentiable",
    ):
        super().__init__()
        self.tokens = TokenLayer(config, cross=cross or recurrence is not None)
        self.states = StateDirection(recurrence) if recurrence is not None else None
        self.detached = cache == "detached"

    def initial_state(self, lanes: int) -> State:
        """This layer's part of the State before a document."""
        state = self.tokens.initial_cache(lanes)
        if self.states is not None:
            state["states"] = self.states.initial_SD.detach().expand(lanes, -1, -1).clone()
        return state

    def forward(
        self,
        x_BKWD: Tensor,
        state: State,
        fresh_BK: Tensor,
        absent_BK: Tensor | None,
        window: Window,
        served: Projections | None,
    ) -> tuple[Tensor, State]:
        """``window``: of `TokenLayer.window`. ``served``: under feedback, what the tokens read of the recurrent layer's states,
        which may be this layer's own ([B, H, S, E]; K is 1)."""
        tokens = self.tokens.project(x_BKWD)
        kz = with_previous(tokens.k, state["keys"], fresh_BK, self.detached)
        vz = with_previous(tokens.v, state["values"], fresh_BK, self.detached)
        after = last_block(tokens)
        cross = None
        if self.states is not None:
            reads, after["states"] = self.recur(state["states"], kz, vz, fresh_BK, absent_BK, served)
            cross = attend(tokens.q_cross, torch.stack([r.k for r in reads], 1), torch.stack([r.v for r in reads], 1))
        elif served is not None:
            cross = attend(tokens.q_cross, served.k[:, None], served.v[:, None])
        window_BKHWE = windowed_attention(tokens.q_self, kz, vz, window, absent_BK)
        return self.tokens.combine(x_BKWD, window_BKHWE, cross), after

    def recur(
        self,
        c_BSD: Tensor,
        kz: Tensor,
        vz: Tensor,
        fresh_BK: Tensor,
        absent_BK: Tensor | None,
        served: Projections | None,
    ) -> tuple[list[Projections], Tensor]:
        """The horizontal direction over the blocks: what each block's tokens read, and the states after the last."""
        assert self.states is not None
        reads: list[Projections] = []
        for k in range(fresh_BK.shape[1]):
            c_BSD = reset(c_BSD, self.states.initial_SD.to(c_BSD.dtype), fresh_BK[:, k])
            reads.append(self.states.read(c_BSD) if served is None else served)
            c_BSD = self.states.update(
                c_BSD, reads[-1], kz[:, k], vz[:, k], None if absent_BK is None else absent_BK[:, k]
            )
        return reads, c_BSD


class BlockRecurrentTransformer(RecurrentModel):
    """The stack with tied embeddings; logits are divided by √d."""

    def __init__(self, config: WindowedConfig, vocab_size: int):
        super().__init__()
        recurrence = config if isinstance(config, RecConfig) else None
        self.config, self.vocab_size, self.block = config, vocab_size, config.window
        self.recurrent: tuple[int, ...] = (
            tuple(sorted(layer - 1 for layer in recurrence.recurrent_layers)) if recurrence else ()
        )
        self.feedback = recurrence is not None and recurrence.feedback
        self.embedding = nn.Embedding(vocab_size, config.d_model)  # N(0, 1)
        self.dropout = nn.Dropout(dropouts(config).embedding)
        self.layers: Any = nn.ModuleList(config.layer(i) for i in range(config.layers))
        self.final_norm = RMSNorm(config.d_model)
        self.final_dropout = nn.Dropout(dropouts(config).final)

    def initial_state(self, lanes: int) -> State:
        state: State = {}
        for i, layer in enumerate(self.layers):
            state |= {f"layers.{i}.{name}": tensor for name, tensor in layer.initial_state(lanes).items()}
        if self.config.equations == "paper":
            state["present"] = torch.zeros(lanes, dtype=torch.bool, device=self.embedding.weight.device)
        return state

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        fresh_BK: Tensor | None = None,
        targets_BT: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        lanes, blocks = len(tokens_BT), tokens_BT.shape[1] // self.block
        if fresh_BK is None:
            fresh_BK = torch.zeros(lanes, blocks, dtype=torch.bool, device=tokens_BT.device)
            fresh_BK[:, 0] = state is None
        after = self.initial_state(lanes) if state is None else state
        check_inputs(self, tokens_BT, after, self.initial_state(0), fresh_BK)
        x_BKWD = self.dropout(self.embedding(tokens_BT)).unflatten(1, (blocks, self.block))
        windows = [layer.tokens.window() for layer in self.layers]
        if self.feedback or self.recompute == "block":
            outputs = []
            for k in range(blocks):
                run = self.recomputed("block", self.stack)
                x_B1WD, after = run(x_BKWD[:, k : k + 1], after, fresh_BK[:, k : k + 1], windows)
                outputs.append(x_B1WD)
            x_BKWD = torch.cat(outputs, dim=1)
        else:
            x_BKWD, after = self.stack(x_BKWD, after, fresh_BK, windows)
        hidden_BTD = self.final_dropout(self.final_norm(x_BKWD)).flatten(1, 2) / self.config.d_model**0.5
        if targets_BT is None:
            return hidden_BTD @ self.embedding.weight.to(hidden_BTD.dtype).T, after
        return chunked_cross_entropy(hidden_BTD.flatten(0, 1), self.embedding.weight, targets_BT.flatten()).view_as(
            targets_BT
        ), after

    def stack(self, x_BKWD: Tensor, state: State, fresh_BK: Tensor, windows: list[Window]) -> tuple[Tensor, State]:
        """All layers over some blocks."""
        after: State = {}
        absent_BK = None
        if "present" in state:
            absent_BK = fresh_BK.clone()
            absent_BK[:, 0] |= ~state["present"]
            after["present"] = torch.ones_like(state["present"])
        served = self.serve(state, fresh_BK) if self.feedback else None
        for i, layer in enumerate(self.layers):
            prefix = f"layers.{i}."
            own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            run = self.recomputed("layer", layer)
            theirs = None if i in self.recurrent[:-1] else served  # a recurrent layer's tokens read its own states
            x_BKWD, changed = run(x_BKWD, own, fresh_BK, absent_BK, windows[i], theirs)
            after |= {prefix + name: tensor for name, tensor in changed.items()}
        return x_BKWD, after

    def serve(self, state: State, fresh_BK: Tensor) -> Projections:
        """What every layer reads of the last recurrent layer's states at the beginning of a block (Appendix E)."""
        last = self.recurrent[-1]
        states: StateDirection = self.layers[last].states
        return states.read(reset(state[f"layers.{last}.states"], states.initial_SD, fresh_BK[:, 0]))
