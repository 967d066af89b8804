"""Block-Recurrent Transformer: a sliding window, and in some layers recurrent states (Hutchins et al. 2022).

A token layer is the vertical direction; a recurrent layer adds the horizontal one: S state vectors, updated once per block of
W tokens, that read the block's tokens and are read by the next block's. Only the horizontal direction is sequential: keys,
values and queries of all blocks are made at once, a loop over blocks updates the states, and the vertical direction then
runs over all blocks in parallel, each against the states that it saw.

    RecConfig(layers=12, recurrent_layers=(10,), gate="fixed", cell="skip").build(vocab_size=32_001)

A recurrent layer adds ``states`` [B, S, D] to the State of every layer (sliding_window.py). While a block is read token by token,
the layer also keeps ``read_keys`` and ``read_values`` [B, H, S, E], which tokens read from the states. They belong to the block's
first states, so they are made once per block. Letters: see layers.py and gates.py; n tokens of one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recur_models.compiling import Unit
from recur_models.costs import Costs, attention, product, scales
from recur_models.gates import GATES, Gate
from recur_models.hidden import note
from recur_models.layers import attend, each_block, linear, merge_heads, relative_change, upcast
from recur_models.norms import RMSNorm
from recur_models.protocol import Probe, State, join_layers, layer_state, reset
from recur_models.sliding_window import Blocks, Layer, WindowedConfig, WindowedLayer, WindowedTransformer
from recur_models.token_layer import Part, Projections, Projector, TokenLayer, last_block, projector_costs
from recur_models.window import Window, windowed_attention, with_previous

Cell = Literal["dual", "single", "skip"]


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
    """Every layer attends to the states of the (last) recurrent layer (Appendix E). That layer and those below it then run block by
    block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.recurrent_layers or len(set(self.recurrent_layers)) < len(self.recurrent_layers):
            raise ValueError(f"model.recurrent_layers is {self.recurrent_layers}: name one or more different layers")
        for layer in self.recurrent_layers:
            if not 1 <= layer <= self.layers:
                raise ValueError(
                    f"model.recurrent_layers names layer {layer}, but the model has layers 1 to {self.layers}: add "
                    f"--model.recurrent-layers {self.layers}"
                )

    @property
    def least_blocks(self) -> int:
        return 2  # the states after a block are first read by the next one

    @property
    def sharing_layer(self) -> int | None:
        """Under feedback, the index of the layer whose states all layers read."""
        return max(self.recurrent_layers) - 1 if self.feedback else None

    def build(self, vocab_size: int) -> WindowedTransformer:
        return RecWithFeedback(self, vocab_size) if self.feedback else super().build(vocab_size)

    def layer(self, index: int) -> WindowedLayer:
        if index + 1 in self.recurrent_layers:
            return RecurrentLayer(self, shares_states=index == self.sharing_layer)
        return Layer(self, cross=self.feedback)

    def stack_costs(self) -> Costs:
        recurrent = len(self.recurrent_layers)
        layer = self.window_costs(self.states) + self.state_costs()
        other = self.window_costs(self.states if self.feedback else 0)
        return layer * recurrent + other * (self.layers - recurrent)

    def state_costs(self) -> Costs:
        """The horizontal direction: one update of the states, once per block."""
        S = self.states
        d = self.d_model
        F = self.mlp_dim
        width = 2 * self.width
        total = scales(2 * S * d) + projector_costs(self, S, cross=True)
        total += attention(self.width, S * S + S * 2 * self.window)
        gate = GATES[self.gate]
        first = gate.costs(self.equations, S, width, d)
        last = gate.costs(self.equations, S, F, d)
        if self.cell == "skip":
            return total + first
        if self.cell == "single":
            return total + product(S, width, F) + last
        return total + first + scales(d) + product(S, d, F) + last


class StateDirection(nn.Module):
    """The horizontal direction (section 3.1): states attend to one another and to two blocks' tokens; gates replace residuals.

    With the dual cell: a = [attend to states; attend to tokens], c' = gate(c, a), next c = gate(c', ReLU(norm(c')·W)). The single
    cell has only the second gate, over a; the skip cell has only the first (section 3.5).
    """

    def __init__(self, config: RecConfig):
        super().__init__()
        heads_width = 2 * config.width
        gate = GATES[config.gate]
        has_projection = config.cell != "single"  # of attention's heads, into a gate
        has_mlp = config.cell != "skip"
        squash = not has_projection
        mlp_inputs = config.d_model if has_projection else heads_width
        self.initial_SD = nn.Parameter(torch.empty(config.states, config.d_model).normal_(std=0.1))
        self.ids_SD = nn.Parameter(torch.empty(config.states, config.d_model).normal_())
        self.project = Projector(config, cross=True)
        self.attention_gate = gate(heads_width, config.d_model, config.equations, squash) if has_projection else None
        self.mlp_norm = RMSNorm(config.d_model) if has_projection and has_mlp else None
        self.mlp_hidden = linear(mlp_inputs, config.mlp_dim) if has_mlp else None
        self.mlp_gate = gate(config.mlp_dim, config.d_model, config.equations, squash) if has_mlp else None

    def read(self, c_BSD: Tensor) -> Projections:
        """Keys and values for the tokens, and the states' own queries."""
        return self.project(c_BSD.to(self.ids_SD.dtype), self.ids_SD)

    def update(
        self, c_BSD: Tensor, read: Projections, k_BHZE: Tensor, v_BHZE: Tensor, no_previous_block_B: Tensor | None
    ) -> Tensor:
        """The states after a block: [B, S, D].

        Args:
            c_BSD: the states before it.
            read: their projections, from `read`.
            k_BHZE, v_BHZE: keys and values of the tokens in the block and the one before it.
            no_previous_block_B: bool, lanes on which the previous block's tokens are masked; None masks none.
        """
        assert read.q_cross is not None
        self_BHSE = attend(read.q_self, read.k, read.v)
        cross_BHSE = attend(read.q_cross, k_BHZE, v_BHZE, no_previous_block_B)
        h_BSN = merge_heads(self_BHSE, cross_BHSE)
        if self.attention_gate is not None:
            c_BSD = self.attention_gate(c_BSD, h_BSN)
            h_BSN = c_BSD if self.mlp_norm is None else self.mlp_norm(c_BSD.to(self.ids_SD.dtype))
        if self.mlp_gate is not None and self.mlp_hidden is not None:
            c_BSD = self.mlp_gate(c_BSD, torch.relu(self.mlp_hidden(h_BSN)))
        return c_BSD

    def probes(self) -> list[Probe]:
        """Gate openness, and how much a block changes the states."""
        gates = [gate for gate in (self.attention_gate, self.mlp_gate) if gate is not None]
        return [Probe("state_change", gates[0], relative_change, gates[-1]), *(gate.probe() for gate in gates)]


class AttentionInputs(NamedTuple):
    """Queries of the tokens of some blocks in a recurrent layer, and all keys and values that they attend to."""

    q_self_BKHWE: Tensor
    k_BKHZE: Tensor
    """Keys of the previous block's tokens and of the block's own; ``v_BKHZE``: their values."""
    v_BKHZE: Tensor
    q_cross_BKHWE: Tensor
    state_k_BKHSE: Tensor
    """Keys of the states that a block reads; ``state_v_BKHSE``: their values."""
    state_v_BKHSE: Tensor


class RecurrentLayer(WindowedLayer):
    """A window, and states of its own that its tokens read. ``shares_states``: under feedback, all layers' tokens read them."""

    def __init__(self, config: RecConfig, shares_states: bool):
        super().__init__()
        self.tokens = TokenLayer(config, cross=True)
        self.states = StateDirection(config)
        self.shares_states = shares_states

    def initial_state(self, lanes: int) -> State:
        initial_SD = upcast(self.states.initial_SD.detach())  # a gate adds to them block by block
        return {**self.tokens.initial_cache(lanes), "states": initial_SD.expand(lanes, -1, -1).clone()}

    def forward(self, x_BKWD: Tensor, state: State, blocks: Blocks, window: Window) -> tuple[Tensor, State]:
        """Blocks [B, K, W, D] and the layer's State in, the same out. Loops over blocks for the states alone."""
        inputs, after = self.advance(x_BKWD, state, blocks)
        return self.finish(x_BKWD, inputs, blocks.no_previous_block_BK, window), after

    def advance(
        self, x_BKWD: Tensor, state: State, blocks: Blocks, projected: Projections | None = None
    ) -> tuple[AttentionInputs, State]:
        """The horizontal direction over the blocks: all that `finish` needs, and the next State.

        ``projected``: projections of ``state["states"]``, which `begin_block` has reset already; for a single block only. Without
        them, they are made here.
        """
        assert projected is None or x_BKWD.shape[1] == 1
        tokens = self.tokens.project(x_BKWD)
        k_BKHZE = with_previous(tokens.k, state["keys"], blocks.fresh_BK)
        v_BKHZE = with_previous(tokens.v, state["values"], blocks.fresh_BK)
        reads, c_BSD = self.recur(state["states"], k_BKHZE, v_BKHZE, blocks, projected)
        state_k_BKHSE = torch.stack([read.k for read in reads], 1)
        state_v_BKHSE = torch.stack([read.v for read in reads], 1)
        assert tokens.q_cross is not None
        inputs = AttentionInputs(tokens.q_self, k_BKHZE, v_BKHZE, tokens.q_cross, state_k_BKHSE, state_v_BKHSE)
        return inputs, {**last_block(tokens), "states": c_BSD}

    def finish(
        self, x_BKWD: Tensor, inputs: AttentionInputs, no_previous_block_BK: Tensor | None, window: Window
    ) -> Tensor:
        """The vertical direction over any number of blocks that have gone through `advance`."""
        cross_BKHWE = attend(inputs.q_cross_BKHWE, inputs.state_k_BKHSE, inputs.state_v_BKHSE)
        window_BKHWE = windowed_attention(
            inputs.q_self_BKHWE, inputs.k_BKHZE, inputs.v_BKHZE, window, no_previous_block_BK
        )
        return self.tokens.combine(x_BKWD, window_BKHWE, cross_BKHWE)

    def recur(
        self, c_BSD: Tensor, k_BKHZE: Tensor, v_BKHZE: Tensor, blocks: Blocks, projected: Projections | None
    ) -> tuple[list[Projections], Tensor]:
        """Projections of the states that each block reads, and the last states. ``projected``: as in `advance`."""
        reads: list[Projections] = []
        masked_BK = blocks.no_previous_block_BK
        no_previous = [None] * k_BKHZE.shape[1] if masked_BK is None else masked_BK.unbind(1)
        parts = zip(each_block(k_BKHZE), each_block(v_BKHZE), blocks.fresh_BK.unbind(1), no_previous, strict=True)
        for k_BHZE, v_BHZE, fresh_B, no_previous_block_B in parts:
            read = projected
            if read is None:
                c_BSD = self.begin_block(c_BSD, fresh_B)
                read = self.states.read(c_BSD)
            reads.append(read)
            c_BSD = self.states.update(c_BSD, read, k_BHZE, v_BHZE, no_previous_block_B)
        return reads, c_BSD

    def begin_block(self, c_BSD: Tensor, fresh_B: Tensor) -> Tensor:
        """The states that a block reads: the initial ones where a document begins (``fresh_B``, bool)."""
        return reset(c_BSD, self.states.initial_SD.to(c_BSD.dtype), fresh_B)

    def open(self, state: State, shared_kv: Projections | None) -> State:
        return self.tokens.open(state, shared_kv if self.shares_states else self.states.read(state["states"]))

    def extend(self, x_BnD: Tensor, part: Part, state: State, block: State) -> tuple[Tensor, State]:
        tokens, heads_BHnE, after = self.tokens.step(x_BnD, part, [(state["keys"], state["values"])], block)
        return self.tokens.finish(x_BnD, tokens, heads_BHnE, block), after

    def close(self, state: State, block: State, no_previous_block_B: Tensor | None) -> State:
        c_BSD = state["states"]
        k_BHZE, v_BHZE = (torch.cat([state[kind], block[kind]], dim=2) for kind in ("keys", "values"))
        c_BSD = self.states.update(c_BSD, self.states.read(c_BSD), k_BHZE, v_BHZE, no_previous_block_B)
        return {"keys": block["keys"], "values": block["values"], "states": c_BSD}

    def probes(self) -> list[Probe]:
        return [*self.tokens.probes(), *self.states.probes()]


class BlockRead(NamedTuple):
    """What the layers that read block by block make of one block."""

    layer_inputs: tuple[Tensor, ...]
    """The inputs [B, 1, W, D] of all layers up to the sharing one."""
    attention_inputs: AttentionInputs
    """Those of the sharing layer."""


class RecWithFeedback(WindowedTransformer):
    """A block-recurrent transformer whose layers all read the states of one of them (Appendix E).

    A block's states are known only when the layers below the sharing one have read the block before. So these layers, and the
    horizontal direction of the sharing layer, run block by block. Its vertical direction and the layers above it change no states
    that others read: they run over all blocks at once.
    """

    config: RecConfig

    def __init__(self, config: RecConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.block_by_block = Unit(RecWithFeedback.read_block)
        self.at_once = Unit(RecurrentLayer.finish)

    @property
    def sharing(self) -> int:
        """The index of the layer whose states all layers read."""
        assert self.config.sharing_layer is not None
        return self.config.sharing_layer

    def units(self) -> list[nn.Module]:
        return [self.block_by_block, self.at_once, *self.layers[self.sharing + 1 :]]

    def read_block(
        self,
        x_B1WD: Tensor,
        state: State,
        fresh_B1: Tensor,
        no_previous_block_B1: Tensor | None,
        windows: list[Window],
    ) -> tuple[BlockRead, State]:
        """One block through the layers below the sharing one, and through that layer's horizontal direction. The State that comes
        out has the entries of these layers alone.
        """
        sharing = self.sharing
        layer = self.layers[sharing]
        own = layer_state(sharing, state)
        own["states"] = layer.begin_block(own["states"], fresh_B1[:, 0])
        states = layer.states.read(own["states"])
        blocks = Blocks(fresh_B1, no_previous_block_B1, (states.k[:, None], states.v[:, None]))
        layer_inputs = [x_B1WD]
        after = []
        for i in range(sharing):
            run = self.recomputed("layer", self.layers[i])
            x_B1WD, changed = run(x_B1WD, layer_state(i, state), blocks, windows[i])
            layer_inputs.append(x_B1WD)
            after.append(changed)
        attention_inputs, changed = self.recomputed("layer", layer.advance)(x_B1WD, own, blocks, states)
        return BlockRead(tuple(layer_inputs), attention_inputs), join_layers([*after, changed])

    def stack(self, x_BTD: Tensor, state: State, fresh_BK: Tensor, windows: list[Window]) -> tuple[Tensor, State]:
        sharing = self.sharing
        no_previous_block_BK, after = self.begin_blocks(state, fresh_BK)
        below = state
        outputs: list[Tensor] = []
        inputs: list[AttentionInputs] = []
        for k, x_BWD in enumerate(x_BTD.split(self.block, 1)):
            fresh_B1 = fresh_BK[:, k : k + 1]
            masked_B1 = None if no_previous_block_BK is None else no_previous_block_BK[:, k : k + 1]
            read, below = self.block_by_block(self, x_BWD[:, None], below, fresh_B1, masked_B1, windows)
            for i, x_B1WD in enumerate(read.layer_inputs):
                note(i, x_B1WD)
            outputs.append(read.layer_inputs[-1])
            inputs.append(read.attention_inputs)
        x_BKWD = torch.cat(outputs, 1)
        joined = AttentionInputs(*(torch.cat(parts, 1) for parts in zip(*inputs, strict=True)))
        finish = self.recomputed("layer", self.at_once)
        x_BKWD = finish(self.layers[sharing], x_BKWD, joined, no_previous_block_BK, windows[sharing])
        blocks = Blocks(fresh_BK, no_previous_block_BK, (joined.state_k_BKHSE, joined.state_v_BKHSE))
        x_BKWD, above = self.run_layers(range(sharing + 1, len(self.layers)), x_BKWD, state, blocks, windows)
        return x_BKWD.flatten(1, 2), after | below | above

    def shared_states(self, state: State) -> Projections:
        own = layer_state(self.sharing, state)
        return self.layers[self.sharing].states.read(own["states"])
