"""Staircase and cached staircase: a core that is applied to a token several times while newer tokens join (sections 3.2, 3.2.1).

    StaircaseConfig(chunk=64, passes=4).build(vocab_size=257)
    CachedStaircaseConfig(chunk=64, passes=1, chunks=4).build(vocab_size=257)

Each step takes in one chunk of C tokens and processes N chunks at once: the newest for the first time, the one before it for the
second, and so on. After M passes a chunk is read out. Tokens attend to it for N − M more steps, unchanged (a staircase: M = N).
A token sees itself and what precedes it in the step's N chunks (equation 3):

    step        i            i+1          i+2              N = 3, M = 2: numbers are passes that a chunk has had before the step
    chunk i−2   2 (cached)
    chunk i−1   1            2 (cached)
    chunk i     0            1            2 (cached)
    chunk i+1                0            1

At a segment's end, chunks with fewer than M passes get the missing ones. The core is causal, so the next segment would make the
same ones. The State is the input of the next step: ``states`` [B, N − 1, C, D], the last chunks after the passes that they
have had, and ``states_count`` [B], how many of them belong to the current document.

Letters: see core.py; C tokens of a chunk · S chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from recur_models.core import Context, CoreConfig, CoreModel, Distances, Seen, documents, in_newest
from recur_models.costs import Costs
from recur_models.hidden import note
from recur_models.layers import joined
from recur_models.protocol import IncrementalDecoder, Places, Probe, State, join_layers, layer_state, reset_to_zeros
from recur_models.stepping import append, kept_parts, open_block


@dataclass(frozen=True)
class StaircaseConfig(CoreConfig):
    """Staircase: every chunk of a step is processed anew."""

    name: ClassVar[str] = "staircase"

    chunk: int = 64
    """Tokens that join at a step (the paper's forward size C)."""
    passes: int = 2
    """Times that the core is applied to a token, and chunks of a step (N); the step size is their product."""

    @property
    def block(self) -> int:
        return self.chunk

    @property
    def attention_window(self) -> int:
        return self.in_step * self.chunk

    @property
    def in_step(self) -> int:
        """Chunks that a step holds (N)."""
        return self.passes

    @property
    def in_step_cached(self) -> int:
        """Those of them that have had all passes, and are only attended to (N − M)."""
        return self.in_step - self.passes

    def build(self, vocab_size: int) -> Staircase:
        return Staircase(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        """Costs of a step, and those of a segment: passes that complete its last chunks, and keys made again at its beginning."""
        N = self.in_step
        M = self.passes
        C = self.chunk
        cached = C if self.in_step_cached else 0
        total = self.outer_costs(vocab_size, N * C) + self._pass(M, cached) * self.layers
        drained = sum(self._pass(active, cached).computed_flops for active in range(1, M))
        keys_made = self._pass(0, self.in_step_cached * C).computed_flops - self._pass(0, cached).computed_flops
        return replace(total, segment_flops=self.layers * (drained + keys_made))

    def _pass(self, active: int, cached: int) -> Costs:
        """Costs of one layer over ``active`` chunks, which see those before them. ``cached``: as in `layer_costs`."""
        C = self.chunk
        before = self.in_step_cached * C
        n = active * C
        m = active * C + before
        needed = n * before + n * (n + 1) // 2
        return self.layer_costs(n, needed, n * m, min(m + 1, self.in_step * C), cached)


@dataclass(frozen=True)
class CachedStaircaseConfig(StaircaseConfig):
    """Cached staircase: a chunk is processed ``passes`` times, and looked at ``chunks`` − ``passes`` steps longer."""

    name: ClassVar[str] = "cached-staircase"

    passes: int = 1
    """Times that the core is applied to a token (M)."""
    chunks: int = 4
    """Chunks of a step (N): a token sees so many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passes > self.chunks:
            raise ValueError(
                f"model.passes is {self.passes} and model.chunks {self.chunks}: a chunk is processed while it is among those "
                "of the step, so give no more passes than chunks"
            )

    @property
    def in_step(self) -> int:
        return self.chunks


class Step(NamedTuple):
    """One step of a staircase, which holds some consecutive chunks of the State and then of the segment."""

    first: int
    """Index of its first chunk."""
    crosses: bool
    """Whether, on some lane, chunks are missing or belong to more than one document."""
    last: bool
    """Whether no step follows."""


class Staircase(CoreModel):
    """Both models: a staircase has no cached chunks."""

    def __init__(self, config: StaircaseConfig, vocab_size: int):
        span = config.in_step * config.chunk
        super().__init__(config, vocab_size, span)
        self.config = config

    def initial_state(self, lanes: int) -> State:
        config = self.config
        like = self.embedding.weight
        return {
            "states": like.new_zeros(lanes, config.in_step - 1, config.chunk, config.d_model),
            "states_count": torch.zeros(lanes, dtype=torch.int64, device=like.device),
        }

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Adds one chunk at each step, then drains the chunks that have passes left."""
        new_BKCD = self.dropout(self.embedding(tokens_BT)).unflatten(1, (-1, self.block))
        old = self.config.in_step - 1
        document_BS = documents(state["states_count"], old, fresh_BK)
        steps = self.steps(document_BS, new_BKCD.shape[1])
        x_BSCD = reset_to_zeros(state["states"], fresh_BK[:, 0]).to(new_BKCD.dtype)
        after = x_BSCD
        context = self.cached_keys_values(x_BSCD)
        chunks = new_BKCD.unbind(1)
        outputs = []
        for i, step in enumerate(steps):
            if i < len(chunks):
                x_BSCD = torch.cat([x_BSCD, chunks[i][:, None]], dim=1)
            run = self.recomputed("block", self.step)
            x_BSCD, context = run(x_BSCD, context, step, document_BS)
            if i + 1 >= self.config.passes:
                outputs.append(x_BSCD[:, self.config.in_step_cached])
            x_BSCD = x_BSCD[:, 1:]
            if i == len(chunks) - 1:
                after = x_BSCD
        own_BS = in_newest(document_BS[:, document_BS.shape[1] - old :])
        states_BSCD = after.masked_fill(~own_BS[..., None, None], 0.0).to(state["states"].dtype)
        return self.head(torch.cat(outputs, 1), targets_BT), {"states": states_BSCD, "states_count": own_BS.sum(1)}

    def steps(self, document_BS: Tensor, blocks: int) -> list[Step]:
        """The steps of a segment: one for each chunk that joins, and those that drain."""
        N = self.config.in_step
        M = self.config.passes
        total = document_BS.shape[1]
        windows = [(i, min(i + N, total)) for i in range(blocks + M - 1)]
        # Missing keys differ too: every step has a chunk of the segment.
        crosses = torch.stack([(document_BS[:, a:b] != document_BS[:, a : a + 1]).any() for a, b in windows]).tolist()
        last = len(windows) - 1
        return [Step(a, crosses[i], i == last) for i, (a, _) in enumerate(windows)]

    def cached_keys_values(self, x_BSCD: Tensor) -> Context:
        """Keys and values of the chunks that the next step does not process; empty for a staircase."""
        cached = self.config.in_step_cached
        return [layer.keys_values(x_BSCD[:, :cached].flatten(1, 2)) for layer in self.layers] if cached else []

    def step(
        self, x_BSCD: Tensor, context: Context, step: Step, document_BS: Tensor, keep: Context | None = None
    ) -> tuple[Tensor, Context]:
        """Apply the core to the chunks of one step.

        Args:
            x_BSCD: the step's chunks, oldest first.
            context: each layer's keys and values of the cached chunks; empty for a staircase.
            document_BS: int64, the document of each chunk of the State and the segment.
            keep: a list to which each layer's keys and values of the step's chunks are appended.

        Returns the chunks after the step [B, S, C, D], and the next step's context.
        """
        cached = self.config.in_step_cached
        C = self.block
        x_BnD = x_BSCD[:, cached:].flatten(1, 2)
        queries = x_BnD.shape[1]
        chunks = x_BSCD.shape[1]
        distances = Distances(self.distances_EP, itself=True)
        unseen_nm = distances.unseen(queries, chunks * C, x_BnD.device)
        crossing_Bnm = None
        if step.crosses:
            document_Bm = document_BS[:, step.first : step.first + chunks].repeat_interleave(C, dim=1)
            crossing_Bnm = document_Bm[:, cached * C :, None] != document_Bm[:, None]
        for i, layer in enumerate(self.layers):
            for chunk, x_BCD in enumerate(x_BnD.split(C, 1)):  # oldest first: in its last pass
                note((self.config.passes - 1 - chunk) * len(self.layers) + i, x_BCD)
            before = context[i] if context else None
            if keep is not None:
                own = layer.keys_values(x_BnD)
                keep.append(own if before is None else joined(before, own))
            run = self.recomputed("layer", layer)
            x_BnD = run(x_BnD, before, distances, unseen_nm, crossing_Bnm)  # (3)
        active_BSCD = x_BnD.unflatten(1, (-1, C))
        if context and not step.last:
            new = [layer.keys_values(active_BSCD[:, 0]) for layer in self.layers]
            context = [joined((k[..., C:, :], v[..., C:, :]), pair) for (k, v), pair in zip(context, new, strict=True)]
        return torch.cat([x_BSCD[:, :cached], active_BSCD], dim=1) if cached else active_BSCD, context

    def incremental_decoder(self) -> IncrementalDecoder:
        return StaircaseIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        """One probe: the share of attention that goes to chunks of earlier steps. It falls with shorter segments, since the steps
        that drain see fewer chunks."""

        def share(weights_BHnm: Tensor, _: Tensor) -> Tensor:
            return weights_BHnm[..., -self.block :, : -self.block].float().sum(-1).mean()

        if self.config.in_step == 1:
            return []
        return [Probe("state_share", layer.weights, share) for layer in self.layers]


class StaircaseIncrementalDecoder(IncrementalDecoder):
    """A token gets its M passes at once: the older chunks in each pass do not depend on it.

    The block: of each layer, counted through all passes, ``earlier_keys`` and ``earlier_values`` [B, H, (N − 1)·C, E] of the older
    chunks, ``keys`` and ``values`` [B, H, C, E] of the chunk itself; ``first`` [B, C, D], its tokens after one pass; ``older``
    [B, N − 1, C, D], the others after this step.
    """

    model: Staircase

    def open(self, state: State, lanes: int) -> State:
        """Passes over the State's chunks, whose keys and values the new chunk sees."""
        model = self.model
        config = self.model.config
        x_BSCD = state["states"]
        N = config.in_step
        M = config.passes
        C = config.chunk
        unmarked_B0 = torch.zeros(lanes, 0, dtype=torch.bool, device=x_BSCD.device)
        document_BS = documents(state["states_count"], N - 1, unmarked_B0)
        older_BSCD = x_BSCD.clone()
        block = []
        context = model.cached_keys_values(x_BSCD)
        empty_BH0E = x_BSCD.new_zeros(lanes, config.heads, 0, config.head_dim)
        for i in range(M):
            earlier: Context = context
            if i < M - 1:
                earlier = []
                x_BSCD, context = model.step(x_BSCD, context, Step(i, crosses=True, last=False), document_BS, earlier)
                if i == 0:
                    older_BSCD = x_BSCD.clone()
                x_BSCD = x_BSCD[:, 1:]
            for j in range(config.layers):
                keys, values = earlier[j] if earlier else (empty_BH0E, empty_BH0E)
                gone = (0, 0, i * C, 0)  # at each pass one chunk more has left the window
                block.append(open_block(F.pad(keys, gone), F.pad(values, gone), C))
        first_BCD = x_BSCD.new_zeros(lanes, C, config.d_model)
        return join_layers(block) | {"first": first_BCD, "older": older_BSCD}

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Takes tokens of the new chunk through all passes, keeping keys and values of each."""
        model = self.model
        config = self.model.config
        first_BCD = block["first"]
        after = []
        N = config.in_step
        C = config.chunk
        distances = Distances(model.distances_EP, itself=True)
        x_BnD = model.dropout(model.embedding(tokens_Bn))
        slot_m = torch.arange(N * C, device=x_BnD.device)
        distance_Bnm = places.of_tokens_Bn[..., None] + (N - 1) * C - slot_m
        column_Bnm = distances.columns(distance_Bnm)
        missing_B1m = slot_m // C < (N - 1 - state["states_count"])[:, None, None]
        for i in range(config.passes):
            # At pass i, the i oldest chunks have left the step.
            seen = Seen(((distance_Bnm < 0) | (slot_m < i * C))[:, None], missing_B1m)
            for j, layer in enumerate(model.layers):
                index = i * config.layers + j
                note(index, x_BnD)
                q, k, v = layer.project(x_BnD)
                kept = append(places, k, v, layer_state(index, block))
                x_BnD = layer.finish(x_BnD, layer.attend(q, kept_parts(kept), distances.at(q, column_Bnm), seen))
                after.append(kept)
            if i == 0:
                first_BCD = places.write(first_BCD, x_BnD)
        return model.head(x_BnD, None), join_layers(after) | {"first": first_BCD, "older": block["older"]}

    def close(self, state: State, block: State) -> State:
        slots = self.model.config.in_step - 1
        count_B = (state["states_count"] + 1).clamp(max=slots)
        states = torch.cat([block["older"], block["first"][:, None]], dim=1)[:, 1:]
        empty_BS = torch.arange(slots, device=count_B.device) < slots - count_B[:, None]
        return {"states": states.masked_fill(empty_BS[..., None, None], 0.0), "states_count": count_B}
