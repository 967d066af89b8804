"""Writes text after a context that the model knows through its recurrence alone.

    seen, unseen = continue_passage(model, text_N, start=4096, blocks=0, count=80)

Letters: N tokens of a text · T tokens read · V vocabulary; 1 stands for the only lane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pipelines.inference.writing import write
from recur_models import RECURRENT, RecurrentModel, State, clear
from recur_models.decoding import begin, read
from recur_models.protocol import kind_of


@dataclass(frozen=True)
class Continuation:
    """The text that is written from one State."""

    ids: list[int]
    """Ids of the written tokens, the likeliest one each time."""
    bits_per_token: float
    """Bits per token of the text's own continuation, without its first token, which the context's window predicts."""


def without_window(model: RecurrentModel, state: State) -> State:
    """The State without the tokens in sight: recurrent vectors and memory stay, the window's keys and values are cleared."""
    others = {kind_of(name) for name in state} - set(RECURRENT)
    return clear(state, model.initial_state(1), tuple(others))


@torch.no_grad()
def continue_passage(
    model: RecurrentModel, text_N: Tensor, start: int, blocks: int, count: int
) -> tuple[Continuation, Continuation]:
    """Continue a text at a block's start, where the window is empty: with the recurrent State of the blocks before, and with none.

    As in the paper (Yoshida et al. 2020, section 5.3) the window before, which sees the context, writes the first token of both.

    Args:
        text_N: int64, on the model's device: begin-of-document, and a document with at least ``count`` tokens from ``start`` on.
        start: a multiple of the block.
        blocks: number of blocks to read before ``start``; 0 means all.
        count: number of tokens to write.
    """
    decoder = model.incremental_decoder()
    initial = model.initial_state(1)
    context_1T = text_N[None, start - blocks * model.block if blocks else 0 : start]
    logits_1TV, end = read(decoder, begin(decoder, 1), context_1T, keep=1)
    first = next(write(decoder, end, logits_1TV, int(text_N[0]), 1, torch.argmax))
    true_1T = text_N[None, start : start + count]
    found = []
    for state in (without_window(model, end.state), initial):
        logits_1TV, behind = read(decoder, begin(decoder, 1, state), true_1T.new_full((1, 1), first))
        ids = [first, *write(decoder, behind, logits_1TV, int(text_N[0]), count - 1, torch.argmax)]
        logits_1TV, _ = read(decoder, begin(decoder, 1, state), true_1T[:, :-1])
        nats = F.cross_entropy(logits_1TV[0].float(), true_1T[0, 1:])
        found.append(Continuation(ids, nats.item() / math.log(2)))
    return found[0], found[1]
