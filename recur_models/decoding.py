"""Reads text a few tokens at a time, from any place in a block, as generation needs it.

A model reads whole blocks, but generation stops at any token. A `DecodingState` therefore holds the State of each lane's last block
boundary, and its current block so far. Lanes may stand at different places of their blocks.

    decoder = model.incremental_decoder()
    logits_B1V, reading = read(decoder, begin(decoder, lanes=1), prompt_BT, keep=1)
    logits_B1V, reading = read(decoder, reading, next_B1)

A DecodingState never grows: a step costs the same after 100 tokens as after 100,000. A long prompt is read a few blocks at a time.
The logits equal those of the model's own pass over whole blocks.

Letters: B lanes · T tokens given · n tokens of one block · W block · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recur_models.protocol import IncrementalDecoder, Places, RecurrentModel, State

TOKENS_AT_ONCE = 2048
"""Tokens of a long prompt, over all lanes, that one pass reads: a limit on its memory."""


class RecomputeDecoder(IncrementalDecoder):
    """Keeps the block's tokens and runs the model over all of them at each step. It works for every model, at W times the cost."""

    def open(self, state: State, lanes: int) -> State:
        device = next(self.model.parameters()).device
        return {"tokens": torch.zeros(lanes, self.model.block, dtype=torch.int64, device=device)}

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        tokens_BW = places.write(block["tokens"], tokens_Bn)
        logits_BWV, _ = self.model(tokens_BW, state, unmarked(self.model, tokens_BW))
        place_Bn1 = places.of_tokens_Bn.clamp(max=self.model.block - 1)[..., None]
        return torch.take_along_dim(logits_BWV, place_Bn1, dim=1), {"tokens": tokens_BW}

    def close(self, state: State, block: State) -> State:
        return self.model(block["tokens"], state, unmarked(self.model, block["tokens"]))[1]


def unmarked(model: RecurrentModel, tokens_BT: Tensor) -> Tensor:
    """``fresh`` for a segment in which no document begins: bool [B, K], all False."""
    blocks = tokens_BT.shape[1] // model.block
    return torch.zeros(len(tokens_BT), blocks, dtype=torch.bool, device=tokens_BT.device)


@dataclass(frozen=True)
class DecodingState:
    """The reading position of each lane: its State at a block boundary, and the tokens that it has read since."""

    state: State
    """The State at each lane's last block boundary."""
    block: State
    """Each lane's current block so far, as the `IncrementalDecoder` keeps it."""
    filled_B: Tensor
    """int64, on the CPU: how many tokens of the current block are read, from 0 to W − 1."""

    def select(self, lanes: Tensor) -> DecodingState:
        """Copies of these lanes (int64), in this order; lanes may repeat."""
        return DecodingState(
            {name: tensor[lanes.to(tensor.device)] for name, tensor in self.state.items()},
            {name: tensor[lanes.to(tensor.device)] for name, tensor in self.block.items()},
            self.filled_B[lanes.cpu()],
        )

    def replace(self, lanes: Tensor, by: DecodingState) -> DecodingState:
        """A copy in which these lanes (int64, each once) are those of ``by``, in order."""
        if len(lanes) == len(self.filled_B):
            return by
        state = {name: _put(tensor, lanes, by.state[name]) for name, tensor in self.state.items()}
        block = {name: _put(tensor, lanes, by.block[name]) for name, tensor in self.block.items()}
        return DecodingState(state, block, self.filled_B.index_copy(0, lanes, by.filled_B))


def _put(tensor: Tensor, lanes: Tensor, by: Tensor) -> Tensor:
    return tensor.index_copy(0, lanes.to(tensor.device), by.to(tensor.dtype))


def begin(decoder: IncrementalDecoder, lanes: int, state: State | None = None) -> DecodingState:
    """A DecodingState at a document's first token, or at a block boundary with this ``state``."""
    state = decoder.model.initial_state(lanes) if state is None else state
    return DecodingState(state, decoder.open(state, lanes), torch.zeros(lanes, dtype=torch.int64))


def read(
    decoder: IncrementalDecoder, reading: DecodingState, tokens_BT: Tensor, mask_BT: Tensor | None = None, keep: int = 0
) -> tuple[Tensor, DecodingState]:
    """Read more tokens. ``reading`` may be overwritten: continue with the returned one.

    Args:
        tokens_BT: int64.
        mask_BT: 0 (or False) at padding, which may stand on either side and is skipped.
        keep: return the logits of this many last columns; 0, or more than there are, means all.

    Returns:
        Logits [B, keep, V], and the DecodingState after these tokens. A padded column has the logits of the last token before it,
        or zeros if there is none.

    Raises:
        ValueError: there are no tokens, or every token is masked.
    """
    if not tokens_BT.shape[1]:
        raise ValueError("there is nothing to read: give at least one token for each lane")
    tokens_BT, source_BT = compact(tokens_BT, mask_BT)
    length_B = (source_BT[:, -1] + 1).cpu()
    keep = min(keep or tokens_BT.shape[1], tokens_BT.shape[1])
    slots: Tensor | None = None
    done_B = torch.zeros_like(length_B)
    left_B = length_B
    while left_B.any():
        lanes, count_B = _next_part(reading.filled_B, left_B, decoder.model.block)
        index_Bn = done_B[lanes, None] + torch.arange(int(count_B.max()))
        part_Bn = tokens_BT[lanes[:, None], index_Bn.clamp(max=tokens_BT.shape[1] - 1)]
        part = reading if len(lanes) == len(length_B) else reading.select(lanes)
        logits_BnV, part = _read_part(decoder, part, part_Bn, count_B)
        reading = reading.replace(lanes, part)
        # Each of a lane's last `keep` tokens has a slot.
        slot_Bn = index_Bn - (length_B - keep)[lanes, None]
        is_read_Bn = index_Bn < (done_B[lanes] + count_B)[:, None]
        row, step = ((slot_Bn >= 0) & is_read_Bn).nonzero(as_tuple=True)
        if slots is None:
            slots = logits_BnV.new_zeros(len(length_B), keep, logits_BnV.shape[-1])
        slots[lanes[row], slot_Bn[row, step]] = logits_BnV[row, step]
        done_B = done_B.index_add(0, lanes, count_B)
        left_B = length_B - done_B
    if slots is None:
        raise ValueError("there is nothing to read: every token is masked")
    if mask_BT is None:
        return slots, reading
    first_B = (length_B - keep).to(source_BT.device)
    return spread(slots, source_BT[:, -keep:], first_B), reading


def compact(tokens_BT: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Move each lane's tokens to the front, with zeros behind them: int64 [B, T].

    Also returns, for each original column, the new index of the last token up to it: int64 [B, T], −1 before the first.
    """
    if mask_BT is None:
        return tokens_BT, torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    mask_BT = mask_BT.to(tokens_BT.device).bool()
    source_BT = mask_BT.long().cumsum(1) - 1
    row, column = mask_BT.nonzero(as_tuple=True)
    moved_BT = torch.zeros_like(tokens_BT)
    moved_BT[row, source_BT[row, column]] = tokens_BT[row, column]
    return moved_BT, source_BT


def spread(logits_BnV: Tensor, source_BT: Tensor, first_B: Tensor | int = 0) -> Tensor:
    """Undo `compact` for logits: those of the original columns [B, T, V]. ``first_B``: index of the first of ``logits_BnV``."""
    slot_BT = source_BT - (first_B if isinstance(first_B, int) else first_B[:, None])
    logits_BTV = torch.take_along_dim(logits_BnV, slot_BT.clamp(min=0)[..., None], dim=1)
    return logits_BTV.masked_fill((source_BT < 0)[..., None], 0.0)


def _next_part(filled_B: Tensor, left_B: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Which lanes read next, and how many tokens each: first whole blocks, then the rest up to a block's end."""
    lanes = ((filled_B == 0) & (left_B >= block)).nonzero()[:, 0]
    if len(lanes):
        blocks = min(int(left_B[lanes].min()) // block, max(1, TOKENS_AT_ONCE // (block * len(lanes))))
        return lanes, torch.full_like(lanes, blocks * block)
    lanes = left_B.nonzero()[:, 0]
    return lanes, torch.minimum(block - filled_B[lanes], left_B[lanes])


def _read_part(
    decoder: IncrementalDecoder, reading: DecodingState, tokens_Bn: Tensor, count_B: Tensor
) -> tuple[Tensor, DecodingState]:
    """One pass over whole blocks of lanes at a block boundary, or over tokens of each lane's current block."""
    model = decoder.model
    lanes = len(tokens_Bn)
    if int(count_B[0]) >= model.block:
        logits_BnV, state = model(tokens_Bn, reading.state, unmarked(model, tokens_Bn))
        return logits_BnV, DecodingState(state, decoder.open(state, lanes), reading.filled_B)
    places = Places(reading.filled_B, count_B, tokens_Bn.device)
    logits_BnV, block = decoder.extend(tokens_Bn, places, reading.state, reading.block)
    reading = DecodingState(reading.state, block, reading.filled_B + count_B)
    full = (reading.filled_B == model.block).nonzero()[:, 0]
    if not len(full):
        return logits_BnV, reading
    ended = reading if len(full) == lanes else reading.select(full)
    state = decoder.close(ended.state, ended.block)
    return logits_BnV, reading.replace(
        full, DecodingState(state, decoder.open(state, len(full)), torch.zeros_like(full))
    )
