"""A pretrained decoder with recurrence: a window's pooled hidden states become one more key and value of the next window.

Source: Adding Recurrence to Pretrained Transformers for Improved Efficiency and Context Size (Yoshida et al. 2020).

    GPT2RecConfig(pretrained="gpt2-folder", window=300, overlap=50).build(vocab_size=50_258)      # recurrent
    GPT2Config(pretrained="gpt2-folder", window=300, overlap=50).build(vocab_size=50_258)         # the baseline

The paper's decoder is GPT-2 (gpt2.py). Another decoder needs a layer, and the names of its sizes and weights (llama.py).

Overlapped execution (section 4.2): a block is the stride, window − overlap. Its tokens are read behind the ``overlap`` tokens
before them, as one window with positions from 0. Only the block's tokens are predicted, so each token is predicted once. A
document's first window has no overlap, and is shorter than the paper's first, which predicts T tokens. All later windows therefore
begin ``overlap`` tokens earlier in the document than the paper's. If the overlap is longer than the stride, the next windows are
shorter than T too.

Recurrence (section 3): z is the mean of Σ w_ℓ h^(ℓ) over the window's positions, with those of the overlap. h^(ℓ) is the residual
stream after layer ℓ, before the final norm, and w = softmax(α) (equation 1). A feed-forward maps z to h_prev. In the document's
next window, h_prev joins the inputs of layer ℓ_ins: it is normed as tokens are, every token sees its key and value, and it has no
query. With ``source = "layer"``, which the paper does not have, each layer from ℓ_ins on has an h_prev of its own
(pretrained_recurrence.py).

State: ``tokens`` [B, O], the overlap's, and ``tokens_count`` [B], how many of the last ones are valid; with recurrence
``states`` [B, N, D], the h_prev of all layers that read one, and ``states_count`` [B], 0 before a document's second window.
Weights have transformers' names.

Letters: see pretrained_layers.py and pretrained_recurrence.py; K blocks · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recur_models.hidden import note
from recur_models.layers import joined
from recur_models.losses import tied_or_untied_output
from recur_models.pretrained_config import DecoderConfig
from recur_models.pretrained_layers import Cache, Prev
from recur_models.pretrained_recurrence import Recurrence
from recur_models.protocol import (
    IncrementalDecoder,
    Places,
    Probe,
    RecurrentModel,
    State,
    join_layers,
    layer_state,
    reset,
    with_dtypes_of,
)
from recur_models.stepping import append, kept_parts, open_block


class Decoder(RecurrentModel):
    """The stack over windows. It reads them one by one with a ``recurrence``, and all at once without."""

    one_graph = True

    def __init__(self, config: DecoderConfig, vocab_size: int, recurrence: Recurrence | None):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.block = config.block
        sizes = config.sized()
        self.embedding = nn.Embedding(vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.positions, sizes.d_model) if sizes.embeds_positions else None
        self.dropout = nn.Dropout(config.dropout)
        for table in (self.embedding, self.positions):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02)
        self.layers: Any = nn.ModuleList(sizes.layer() for _ in range(sizes.layers))
        self.final_norm = sizes.norm()
        self.output = None
        if sizes.own_output:
            self.output = nn.Linear(sizes.d_model, vocab_size, bias=False)
            nn.init.normal_(self.output.weight, std=0.02)
        self.recurrence = recurrence

    def recurrent_parameters(self) -> list[nn.Parameter]:
        return [] if self.recurrence is None else list(self.recurrence.parameters())

    def initial_state(self, lanes: int) -> State:
        """The overlap's tokens and h_prev, with counts of 0 where there are none yet."""
        like = self.embedding.weight
        config = self.config
        state = {}
        count_B = torch.zeros(lanes, dtype=torch.int64, device=like.device)
        if config.overlap:
            state["tokens"] = count_B.new_zeros(lanes, config.overlap)
            state["tokens_count"] = count_B
        if self.recurrence is not None:
            state["states"] = like.new_zeros(lanes, self.recurrence.vectors, like.shape[1])
            state["states_count"] = count_B.clone()
        return state

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, State]:
        """As `RecurrentModel.forward`. Under autocast, projections are cast once for all windows: autocast itself keeps no casts of
        frozen weights, and none in compiled layers.
        """
        cast = {f"model.{name}": each for name, each in self.cast_projections().items()}
        if cast:
            # It calls this method again, with nothing left to cast.
            return functional_call(WithoutHooks(self), cast, given, named)
        return super().forward(*given, **named)

    def cast_projections(self) -> dict[str, Tensor]:
        """The float32 weights and biases of the layers' projections by name, in the dtype of autocast; none without autocast, or if
        the whole model is compiled. Also none for a backward pass that recomputes: it would read the weights that are not cast."""
        device = self.embedding.weight.device.type
        recomputes = self.recompute != "nothing" and torch.is_grad_enabled()
        if recomputes or torch.compiler.is_compiling() or not torch.is_autocast_enabled(device):
            return {}
        dtype = torch.get_autocast_dtype(device)
        cast = {}
        for prefix, module in self.layers.named_modules(prefix="layers"):
            own = dict(module.named_parameters(prefix, recurse=False))
            if any(each.dim() > 1 for each in own.values()):  # no norm
                cast |= {name: each.to(dtype) for name, each in own.items() if each.dtype == torch.float32}
        return cast

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads all windows at once without recurrence, and one by one with it or under ``recompute = "block"``."""
        overlap = self.config.overlap
        text_BS = torch.cat([state["tokens"], tokens_BT], 1) if overlap else tokens_BT
        windows_BKT = text_BS.unfold(1, overlap + self.block, self.block)
        count_BK = self.count_before(state, fresh_BK)
        after = self.kept_tokens(text_BS, count_BK[:, -1]) if overlap else {}
        if self.recurrence is None and self.recompute != "block":
            return self.read_at_once(windows_BKT, count_BK, targets_BT), after
        prev = self.prev_of(state)
        output, prev = self.read_one_by_one(windows_BKT, count_BK, prev, fresh_BK, targets_BT)
        return output, after | self.state_of(prev, state)

    def read_at_once(self, windows_BKT: Tensor, count_BK: Tensor, targets_BT: Tensor | None) -> Tensor:
        """Nats or logits of all blocks, whose windows are lanes of one pass. For a model without recurrence."""
        K = windows_BKT.shape[1]
        targets = None if targets_BT is None else targets_BT.unflatten(1, (K, self.block)).flatten(0, 1)
        output, _ = self.read_window(windows_BKT.flatten(0, 1), count_BK.flatten(), None, targets)
        return output.unflatten(0, (-1, K)).flatten(1, 2)

    def read_one_by_one(
        self,
        windows_BKT: Tensor,
        count_BK: Tensor,
        prev: Prev | None,
        fresh_BK: Tensor,
        targets_BT: Tensor | None,
    ) -> tuple[Tensor, Prev | None]:
        """Nats or logits of all blocks, and h_prev after the last one.

        Embeddings and losses of all windows are computed together, so that a segment makes one gradient of the whole vocabulary.
        Under ``recompute = "block"`` they are computed window by window, so that only h_prev is kept between windows.
        """
        K = windows_BKT.shape[1]
        by_window = self.recompute == "block"
        targets_BKW = None if targets_BT is None else targets_BT.unflatten(1, (K, self.block))
        embedded = None if by_window else self.embedding(windows_BKT).unbind(1)
        parts = []
        for k in range(K):
            if prev is not None:
                prev = Prev(*(reset(x, x.new_zeros(()), fresh_BK[:, k]) for x in prev))
            if embedded is not None:
                part, prev = self.read_embeddings(embedded[k], count_BK[:, k], prev)
            else:
                targets_BW = None if targets_BKW is None else targets_BKW[:, k]
                run = self.recomputed("block", self.read_window)
                part, prev = run(windows_BKT[:, k], count_BK[:, k], prev, targets_BW)
            parts.append(part)
        output = torch.cat(parts, 1)
        return output if by_window else self.head(output, targets_BT), prev

    def prev_of(self, state: State) -> Prev | None:
        """The State's h_prev; None without recurrence."""
        return None if self.recurrence is None else Prev(state["states"], state["states_count"] > 0)

    def state_of(self, prev: Prev | None, before: State) -> State:
        """The State's entries for h_prev, in the dtypes that they have in the State ``before``; none without recurrence."""
        if prev is None:
            return {}
        return with_dtypes_of({"states": prev.states_BND, "states_count": prev.has_B}, before)

    def next_prev(self, prev: Prev | None, gathered_BTX: Tensor | None, count_B: Tensor) -> Prev | None:
        """h_prev for the next window, made of a window's gathered tensor; None without recurrence.

        ``prev``: this window's h_prev. ``count_B``: int64, valid tokens in its overlap.
        """
        if self.recurrence is None or prev is None or gathered_BTX is None:
            return None
        overlap = self.config.overlap
        valid_BT = torch.arange(overlap + self.block, device=count_B.device) >= overlap - count_B[:, None]
        states_BND = self.recurrence(prev.states_BND, gathered_BTX, valid_BT)
        return Prev(states_BND, torch.ones_like(prev.has_B))

    def count_before(self, state: State, fresh_BK: Tensor) -> Tensor:
        """How many tokens of the overlap belong to each block's document: int64 [B, K]."""
        block_K = torch.arange(fresh_BK.shape[1], device=fresh_BK.device)
        first_BK = torch.where(fresh_BK, block_K, -1).cummax(1).values
        before_B1 = state["tokens_count"][:, None] if self.config.overlap else 0
        tokens_BK = torch.where(first_BK < 0, before_B1 + block_K * self.block, (block_K - first_BK) * self.block)
        return tokens_BK.clamp(max=self.config.overlap)

    def kept_tokens(self, text_BS: Tensor, count_B: Tensor) -> State:
        """The State's ``tokens`` and ``tokens_count`` after a text whose last block had ``count_B`` valid tokens before it."""
        overlap = self.config.overlap
        count_B = (count_B + self.block).clamp(max=overlap)
        absent_BO = torch.arange(overlap, device=text_BS.device) < overlap - count_B[:, None]
        return {"tokens": text_BS[:, -overlap:].masked_fill(absent_BO, 0), "tokens_count": count_B}

    def read_window(
        self, tokens_BT: Tensor, count_B: Tensor, prev: Prev | None, targets_BW: Tensor | None
    ) -> tuple[Tensor, Prev | None]:
        """Read the tokens of one window. Returns nats or logits of its block, and h_prev for the next window."""
        x_BWD, prev = self.read_embeddings(self.embedding(tokens_BT), count_B, prev)
        return self.head(x_BWD, targets_BW), prev

    def read_embeddings(self, x_BTD: Tensor, count_B: Tensor, prev: Prev | None) -> tuple[Tensor, Prev | None]:
        """Read the embeddings of one window. Returns the last layer's output for its block [B, W, D], and h_prev for the next
        window."""
        overlap = self.config.overlap
        slot_BT = torch.arange(overlap + self.block, device=x_BTD.device).expand(len(x_BTD), -1)
        x_BTD, gathered_BTX = self.stack(x_BTD, slot_BT, overlap + self.block, count_B, prev)
        return x_BTD[:, overlap:], self.next_prev(prev, gathered_BTX, count_B)

    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        """Logits [B, n, V] of the last layer's output, or nats [B, n] when there are targets."""
        return tied_or_untied_output(self.final_norm(x_BnD), self.embedding, self.output, targets_Bn)

    def stack(
        self,
        x_BnD: Tensor,
        slot_Bn: Tensor,
        slots: int,
        count_B: Tensor,
        prev: Prev | None,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All layers. Returns the last one's output [B, n, D], and the recurrence's gathered tensor [B, n, X].

        Args:
            x_BnD: embeddings.
            slot_Bn: int64, their slots in the window. The first O slots are the overlap's.
            slots: how many slots of the window have keys.
            count_B: int64, valid tokens in the overlap, which fill its last slots.
            prev: h_prev of the window before.
            caches: one for each layer; None if the tokens fill all slots.
        """
        slot_m = torch.arange(slots, device=slot_Bn.device)
        missing_B1 = self.config.overlap - count_B[:, None]
        behind_Bnm = slot_Bn[..., None] - slot_m
        # An empty slot is computed too: it sees only itself, and no other slot sees it.
        seen_Bnm = (behind_Bnm == 0) | ((behind_Bnm > 0) & (slot_m >= missing_B1)[:, None])
        recurrence = self.recurrence
        prev_by_layer: dict[int, Tensor] = {}
        with_prev_Bnm = seen_Bnm
        if recurrence is not None and prev is not None:
            prev_by_layer = recurrence.by_layer(prev.states_BND)
            has_BnP = prev.has_B[:, None, None].expand(-1, slot_Bn.shape[1], recurrence.per_layer)
            with_prev_Bnm = torch.cat([has_BnP, seen_Bnm], 2)
        position_Bn = (slot_Bn - missing_B1).clamp(0, self.config.window - 1)  # from the first token that is there
        x_BnD = self.dropout(x_BnD if self.positions is None else x_BnD + self.positions(position_Bn))
        gathered: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            note(i, x_BnD[:, -self.block :])  # without the overlap, which another block has noted
            run = self.recomputed("layer", layer)
            cache = None if caches is None else caches[i]
            prev_BPD = prev_by_layer.get(i)
            before_BnD = x_BnD
            x_BnD = run(x_BnD, position_Bn, seen_Bnm if prev_BPD is None else with_prev_Bnm, prev_BPD, cache)
            if recurrence is not None:
                gathered = recurrence.gather(gathered, i, before_BnD, x_BnD)
        return x_BnD, torch.cat(gathered, -1) if gathered else None

    def incremental_decoder(self) -> IncrementalDecoder:
        return PretrainedIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        if self.recurrence is None:
            return []
        reading: list[Any] = [self.layers[i] for i in self.recurrence.reading_layers]
        shares = [Probe("state_share", each.from_prev, each.prev_share, until=each.attended) for each in reading]
        return [*shares, Probe("state_change", self.recurrence, self.recurrence.change)]


class WithoutHooks(nn.Module):
    """Calls a model's forward, but not the model's own hooks, which have run already."""

    def __init__(self, model: Decoder):
        super().__init__()
        self.model = model

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, State]:
        return self.model.forward(*given, **named)


class PretrainedIncrementalDecoder(IncrementalDecoder):
    """The block keeps, for each layer, ``keys`` and ``values`` [B, G, W, E], and those of the overlap's tokens, ``earlier_keys``
    and ``earlier_values`` [B, G, O, E]; its ``tokens`` [B, W]; with recurrence, what it gathers of them: ``gathered`` [B, W, X]
    and ``earlier_gathered`` [B, O, X]."""

    model: Decoder

    def count(self, state: State, lanes: int) -> Tensor:
        """How many tokens each lane's block has before it in its window: int64 [B]."""
        like = self.model.embedding.weight
        return state["tokens_count"] if "tokens_count" in state else like.new_zeros(lanes, dtype=torch.int64)

    def open(self, state: State, lanes: int) -> State:
        """Reads the overlap's tokens, whose keys and values the block's tokens see."""
        model = self.model
        overlap = model.config.overlap
        W = model.block
        like = model.embedding.weight
        count_B = self.count(state, lanes)
        empty = [like.new_zeros(lanes, layer.kv_heads, 0, layer.head_dim) for layer in model.layers]
        earlier = [(each, each) for each in empty]
        earlier_BOX = None
        if overlap:

            def keep(i: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                earlier[i] = k.contiguous(), v.contiguous()
                return k, v

            slot_BO = torch.arange(overlap, device=like.device).expand(lanes, -1)
            caches = [partial(keep, i) for i in range(len(model.layers))]
            x_BOD = model.embedding(state["tokens"])
            _, earlier_BOX = model.stack(x_BOD, slot_BO, overlap, count_B, model.prev_of(state), caches)
        block = join_layers(open_block(k, v, W) for k, v in earlier) | {"tokens": count_B.new_zeros(lanes, W)}
        if model.recurrence is not None:
            width = model.recurrence.width
            block["earlier_gathered"] = like.new_zeros(lanes, 0, width) if earlier_BOX is None else earlier_BOX
            block["gathered"] = like.new_zeros(lanes, W, width)
        return block

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens of the block. Keeps their keys and values, and what the recurrence gathers for `close`."""
        model = self.model
        overlap = model.config.overlap
        kept = [layer_state(i, block) for i in range(len(model.layers))]

        def extended(i: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            kept[i] = append(places, k, v, kept[i])
            keys, values = joined(*kept_parts(kept[i]))
            return keys.to(k.dtype), values.to(k.dtype)

        caches = [partial(extended, i) for i in range(len(model.layers))]
        count_B = self.count(state, len(tokens_Bn))
        slot_Bn = overlap + places.of_tokens_Bn
        x_BnD = model.embedding(tokens_Bn)
        x_BnD, gathered_BnX = model.stack(x_BnD, slot_Bn, overlap + model.block, count_B, model.prev_of(state), caches)
        after = {**block, **join_layers(kept), "tokens": places.write(block["tokens"], tokens_Bn)}
        if gathered_BnX is not None:
            after["gathered"] = places.write(block["gathered"], gathered_BnX)
        return model.head(x_BnD, None), after

    def close(self, state: State, block: State) -> State:
        """The next block's overlap, and h_prev of this block's window (equation 1)."""
        model = self.model
        lanes = len(block["tokens"])
        count_B = self.count(state, lanes)
        after = {}
        if model.config.overlap:
            after = model.kept_tokens(torch.cat([state["tokens"], block["tokens"]], 1), count_B)
        if model.recurrence is None:
            return after
        gathered_BTX = torch.cat([block["earlier_gathered"], block["gathered"]], 1)
        return after | model.state_of(model.next_prev(model.prev_of(state), gathered_BTX, count_B), state)
