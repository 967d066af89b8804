"""Memorizing Transformer: one layer also reads the most similar of its lane's last M keys and values (Wu et al. 2022).

    MemorizingConfig(memory=65_536, memory_layer=9, top_k=128).build(vocab_size=32_001)

That layer has no position bias. A block queries the memory of all blocks before it and then enters its own keys and values,
cut from the graph: gradients pass through the queries alone. Both attentions use the same queries and have a softmax each;
a gate per head joins them. The search is exact; each head of each lane searches its own keys.

State of the memory layer, besides the others' ``keys`` and ``values``: ``memory_keys``, ``memory_values`` [B, H, M, E], a ring;
``memory_count`` [B] int64, tokens entered since the document began, so that the next one goes to slot count mod M and slots from
count on are empty (zeros). A ring of 65,536 takes 512 MiB per lane in float32 (8 heads of 128), and a checkpoint holds it.

Where it differs from the authors' code (meliad): theirs searches approximately (the best of each of k buckets), and where
fewer than k keys are there, it also attends to empty slots. The equations of the window are those that the config names.
Letters: see layers.py; M memory slots · N neighbours (top-k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from common.choices import Recompute
from recur_models.costs import Costs, attention
from recur_models.layers import MASKED
from recur_models.protocol import Probe, State, reset_to_zeros
from recur_models.sliding_window import Blocks, Layer, WindowedConfig, WindowedLayer
from recur_models.token_layer import Part, Projections, TokenLayer, last_block
from recur_models.window import Window, windowed_attention, with_previous

CHUNK_ELEMENTS = 1 << 24
"""Similarities held at a time: 64 MiB in float32."""


@dataclass(frozen=True)
class MemorizingConfig(WindowedConfig):
    """Memorizing transformer: a sliding window, and in one layer a kNN memory (the paper's Memorizing Trans. 64k)."""

    name: ClassVar[str] = "memorizing"
    recomputes: ClassVar[tuple[Recompute, ...]] = ("nothing", "layer")  # by blocks, a ring would be kept for each block

    memory: int = 65_536
    """Past tokens of the document that are remembered: a multiple of the window."""
    memory_layer: int | None = None
    """Layer with the memory, counted from 1 at the bottom; by default the fourth from the top."""
    top_k: int = 128
    """Remembered keys that a query attends to, for each head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory % self.window:
            raise ValueError(
                f"model.memory is {self.memory}, not a multiple of the window of {self.window} tokens: "
                f"choose {max(1, round(self.memory / self.window)) * self.window}"
            )
        if self.top_k > self.memory:
            raise ValueError(f"model.top_k is {self.top_k}: it must be 1 to {self.memory}, the size of the memory")
        if not 1 <= self.memory_place <= self.layers:
            raise ValueError(
                f"model.memory_layer is {self.memory_layer}, but the model has layers 1 to {self.layers}: give one of "
                "these, or leave it out for the fourth from the top"
            )

    @property
    def memory_place(self) -> int:
        """The layer with the memory, counted from 1."""
        return max(1, self.layers - 3) if self.memory_layer is None else self.memory_layer

    def layer(self, index: int) -> WindowedLayer:
        return MemorizingLayer(self) if index + 1 == self.memory_place else Layer(self)

    def stack_costs(self) -> Costs:
        search = 2 * self.width * self.window * self.memory
        read = attention(self.width, self.window * self.top_k)
        found = Costs(self.heads, search + read.flops, search + read.computed_flops, 2 * search + read.flops)
        return self.window_costs() * (self.layers - 1) + self.window_costs(position=False) + found


class MemorizingLayer(WindowedLayer):
    """A window, and a memory that its heads also attend to."""

    one_graph = False  # it breaks at `remember`

    def __init__(self, config: MemorizingConfig):
        super().__init__()
        self.config = config
        self.tokens = TokenLayer(config, cross=False, position=False)
        self.gate_H = nn.Parameter(torch.zeros(config.heads))

    def initial_state(self, lanes: int) -> State:
        """The empty window, and an empty memory [B, H, M, E] with its count."""
        like = self.gate_H
        shape = (lanes, self.config.heads, self.config.memory, self.config.head_dim)
        return {
            **self.tokens.initial_cache(lanes),
            "memory_keys": like.new_zeros(shape),
            "memory_values": like.new_zeros(shape),
            "memory_count": like.new_zeros(lanes, dtype=torch.int64),
        }

    def forward(self, x_BKWD: Tensor, state: State, blocks: Blocks, window: Window) -> tuple[Tensor, State]:
        """As `WindowedLayer.forward`: local and remembered attention, joined by a gate for each head."""
        tokens = self.tokens.project(x_BKWD)
        k_BKHZE = with_previous(tokens.k, state["keys"], blocks.fresh_BK)
        v_BKHZE = with_previous(tokens.v, state["values"], blocks.fresh_BK)
        local_BKHWE = windowed_attention(tokens.q_self, k_BKHZE, v_BKHZE, window, blocks.no_previous_block_BK)
        # Compiled, the reads would have other code for each number of tokens in the memory.
        remember = torch.compiler.disable(self.remember) if torch.compiler.is_compiling() else self.remember
        remembered_BKHWE, after = remember(tokens, state, blocks.fresh_BK)
        return self.tokens.combine(x_BKWD, self.join(local_BKHWE, remembered_BKHWE)), last_block(tokens) | after

    def open(self, state: State, shared_kv: Projections | None) -> State:
        return self.tokens.open(state)

    def extend(self, x_BnD: Tensor, part: Part, state: State, block: State) -> tuple[Tensor, State]:
        tokens, heads_BHnE, after = self.tokens.step(x_BnD, part, [(state["keys"], state["values"])], block)
        keys, values, count = (state[f"memory_{kind}"] for kind in ("keys", "values", "count"))
        heads_BHnE = self.join(heads_BHnE, recall(tokens.q_self, keys, values, count, self.config.top_k))
        return self.tokens.finish(x_BnD, tokens, heads_BHnE, block), after

    def close(self, state: State, block: State, no_previous_block_B: Tensor | None) -> State:
        # copies, which `enter` overwrites
        keys = state["memory_keys"].clone()
        values = state["memory_values"].clone()
        count = self.enter(keys, values, state["memory_count"], block["keys"], block["values"])
        return {"keys": block["keys"], "values": block["values"], **emptied(keys, values, count)}

    def probes(self) -> list[Probe]:
        """The gate: the memory's share in the heads."""
        return [Probe("state_share", self.tokens.out, lambda *_: torch.sigmoid(self.gate_H).mean())]

    def join(self, local_HnE: Tensor, remembered_HnE: Tensor) -> Tensor:
        """local · (1 − σ(b)) + memory · σ(b), over any leading dimensions."""
        gate_H11 = torch.sigmoid(self.gate_H).to(local_HnE.dtype)[:, None, None]
        return local_HnE * (1 - gate_H11) + remembered_HnE * gate_H11

    def remember(self, tokens: Projections, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        """The result of each block's reads from the memory before it [B, K, H, W, E], and the memory after the last block."""
        # copies, which `enter` overwrites below
        keys_BHME = reset_to_zeros(state["memory_keys"], fresh_BK[:, 0])
        values_BHME = reset_to_zeros(state["memory_values"], fresh_BK[:, 0])
        count_B = state["memory_count"]
        read = []
        blocks = (x.unbind(1) for x in (tokens.q_self, tokens.k, tokens.v, fresh_BK))
        for q_BHWE, k_BHWE, v_BHWE, fresh_B in zip(*blocks, strict=True):
            count_B = count_B.masked_fill(fresh_B, 0)
            read.append(recall(q_BHWE, keys_BHME, values_BHME, count_B, self.config.top_k))
            count_B = self.enter(keys_BHME, values_BHME, count_B, k_BHWE, v_BHWE)
        return torch.stack(read, 1), emptied(keys_BHME, values_BHME, count_B)

    def enter(self, keys_BHME: Tensor, values_BHME: Tensor, count_B: Tensor, k_BHWE: Tensor, v_BHWE: Tensor) -> Tensor:
        """Write a block's keys and values into the memory, in place; returns the count with them."""
        slots_W = torch.arange(self.config.window, device=count_B.device)
        # The memory is a multiple of the block, so a block ends where the ring ends, at the latest.
        place_BHWE = ((count_B % self.config.memory)[:, None] + slots_W)[:, None, :, None].expand_as(k_BHWE)
        keys_BHME.scatter_(2, place_BHWE, k_BHWE.detach().to(keys_BHME.dtype))
        values_BHME.scatter_(2, place_BHWE, v_BHWE.detach().to(values_BHME.dtype))
        return count_B + self.config.window


def emptied(keys_BHME: Tensor, values_BHME: Tensor, count_B: Tensor) -> State:
    """The memory as State, with zeros in place of what an earlier document left in slots that this one has not reached.

    These slots are never read, so clearing them at a segment's end is enough.
    """
    slots_M = torch.arange(keys_BHME.shape[2], device=count_B.device)
    empty_B1M1 = (slots_M >= count_B[:, None])[:, None, :, None]
    return {
        "memory_keys": keys_BHME.masked_fill_(empty_B1M1, 0.0),
        "memory_values": values_BHME.masked_fill_(empty_B1M1, 0.0),
        "memory_count": count_B,
    }


def recall(q_BHWE: Tensor, keys_BHME: Tensor, values_BHME: Tensor, count_B: Tensor, top_k: int) -> Tensor:
    """Attention of each query to the ``top_k`` most similar of its lane's and head's filled slots: [B, H, W, E].

    Zero where the lane has none. Keeps the N keys and values of each query for the backward pass, not the memory.
    """
    slots_BHWN = nearest_keys(q_BHWE.detach(), keys_BHME, count_B, top_k)
    absent_BHWN = slots_BHWN >= count_B[:, None, None, None]
    lane_head_BH11 = torch.arange(len(count_B) * keys_BHME.shape[1], device=count_B.device).view(len(count_B), -1, 1, 1)
    rows_BHWN = lane_head_BH11 * keys_BHME.shape[2] + slots_BHWN
    keys_BHWNE = keys_BHME.flatten(0, 2)[rows_BHWN].to(q_BHWE.dtype)
    values_BHWNE = values_BHME.flatten(0, 2)[rows_BHWN].to(q_BHWE.dtype)
    logits_BHW1N = (q_BHWE[..., None, :] @ keys_BHWNE.transpose(-1, -2)).masked_fill(absent_BHWN[..., None, :], MASKED)
    weights_BHW1N = torch.softmax(logits_BHW1N, dim=-1).masked_fill(absent_BHWN[..., None, :], 0.0)
    return (weights_BHW1N.to(values_BHWNE.dtype) @ values_BHWNE).squeeze(-2)


@torch.no_grad()
def nearest_keys(q_BHWE: Tensor, keys_BHME: Tensor, count_B: Tensor, top_k: int) -> Tensor:
    """Slots of the ``top_k`` largest q·k: [B, H, W, N] int64; N is smaller where no lane has so many.

    On a lane that holds fewer than N, the last ones name empty slots. The memory is searched in chunks, and only as far as
    some lane has filled it: at most CHUNK_ELEMENTS similarities (or N for each query, if that is more) exist at a time.
    """
    filled = min(int(count_B.max()), keys_BHME.shape[2])
    size = max(top_k, CHUNK_ELEMENTS // q_BHWE[..., 0].numel())
    best = q_BHWE.new_empty(*q_BHWE.shape[:-1], 0)
    slots = torch.empty_like(best, dtype=torch.int64)
    for start in range(0, filled, size):
        keys_BHCE = keys_BHME[:, :, start : min(start + size, filled)]
        logits_BHWC = q_BHWE @ keys_BHCE.transpose(-1, -2).to(q_BHWE.dtype)
        index_C = torch.arange(start, start + keys_BHCE.shape[2], device=count_B.device)
        logits_BHWC.masked_fill_(index_C >= count_B[:, None, None, None], -torch.inf)
        top, where = logits_BHWC.topk(min(top_k, len(index_C)))
        best = torch.cat([best, top], -1)
        slots = torch.cat([slots, where + start], -1)
        best, order = best.topk(min(top_k, best.shape[-1]))
        slots = slots.gather(-1, order)
    return slots


def fill_memory(state: State) -> None:
    """Fill the kNN memory in a State in every lane, as in a long book, with random keys and values. The cost of a step depends on
    their number, and equal ones are read faster.
    """
    for name, tensor in state.items():
        if name.endswith("memory_count"):
            tensor += state[name.replace("count", "keys")].shape[2]
        elif name.endswith(("memory_keys", "memory_values")):
            tensor.normal_()
