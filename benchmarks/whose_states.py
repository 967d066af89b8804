"""Measures whether a model's recurrent states hold something about the text that they come from.

    python -m benchmarks.whose_states runs/mine --split validation --blocks 10

Reads the first blocks of each document, all documents side by side, and scores all blocks but the first. Before each of them the
document's states are left as they are, exchanged for those of another document at the same place, replaced by the mean over all
documents, or cleared. `evaluate --clear states` measures only the last case, which also counts the worth of any states: a
pretrained decoder can use one more key that is always the same. Memory that is read by content is exchanged too; keys and values of
the window stay. There is no mean of memory, nor of states with a scale of their own (mLSTM, sLSTM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from torch import Tensor

from common.errors import UserError
from pipelines.inference.trained import find_model, model_of, open_split
from pipelines.terminal import cli
from pipelines.training.scoring import has_states
from recur_models import RecurrentModel, State
from recur_models.protocol import RECURRENT, clear, kind_of

Whose = Literal["own", "another's", "mean", "cleared"]
WITHOUT_MEAN = ("log_scale", "memory_keys")
"""Kinds of tensors by which a State is known to have no mean over documents."""


@dataclass(frozen=True)
class BenchConfig:
    """The run and the split to score."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, or one that pipelines.export made."""
    store: str = ""
    """Store to read; by default the run's."""
    split: str = "validation"
    """Split to read."""
    blocks: int = 10
    """Blocks of each document; shorter documents are left out."""

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise UserError(f"--blocks is {self.blocks}: give 2 or more, since the first has no states before it")


def exchanged(state: State, initial: State, whose: Whose) -> State:
    """The State with recurrent states of this kind; the first dimension is the document."""
    if whose == "own":
        return state
    if whose == "cleared":
        return clear(state, initial, RECURRENT)
    made = dict(state)
    for name, value in state.items():
        if kind_of(name) not in RECURRENT:
            continue
        if whose == "another's":
            made[name] = value.roll(1, 0)
        elif value.is_floating_point():
            made[name] = value.mean(0, keepdim=True).expand_as(value).contiguous()
    return made


def bits_per_token(model: RecurrentModel, ids_DT: Tensor, whose: Whose) -> float:
    """Bits per token after the first block. ``ids_DT``: the token before the first one, and those of the blocks."""
    initial = model.initial_state(len(ids_DT))
    state = initial
    W = model.block
    bits = []
    for start in range(0, ids_DT.shape[1] - 1, W):
        if start:
            state = exchanged(state, initial, whose)
        with torch.inference_mode():
            nats_DW, state = model(ids_DT[:, start : start + W], state, None, ids_DT[:, start + 1 : start + W + 1])
        bits.append(nats_DW.double().mean().item() / math.log(2))
    return math.fsum(bits[1:]) / len(bits[1:])


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    checkpoint = find_model(config.run)
    store = open_split(checkpoint, config.split, config.store)
    model = model_of(checkpoint)
    if not has_states(model):
        raise UserError(f"{config.run} has no recurrent states: choose a run of a recurrent model")
    length = config.blocks * model.block
    kept = [number for number, tokens in enumerate(store.lengths) if tokens >= length]
    if len(kept) < 2:
        longest = sorted(store.lengths)[-2:]
        most = int(longest[0]) // model.block if len(longest) == 2 else 0
        remedy = f"give --blocks {most} or less" if most >= 2 else "choose another --split"
        raise UserError(
            f"{store.folder} has no two documents of {length:,} tokens, for {config.blocks} blocks each: {remedy}"
        )
    texts = [torch.from_numpy(store.tokens(number, 0, length).astype("int64")) for number in kept]
    ids_DT = torch.nn.functional.pad(torch.stack(texts), (1, 0), value=store.bod_id)
    print(
        f"{config.run.name}, step {checkpoint.step:,}: {len(kept)} documents, {config.blocks} blocks of {model.block}"
    )
    own = bits_per_token(model, ids_DT, "own")
    has_mean = not any(kind_of(name) in WITHOUT_MEAN for name in model.initial_state(1))
    for whose in get_args(Whose):
        if whose == "mean" and not has_mean:
            continue
        found = own if whose == "own" else bits_per_token(model, ids_DT, whose)
        print(f"  {whose:10} {found:.4f} bits per token  {found - own:+.4f}", flush=True)


if __name__ == "__main__":
    cli.run(main)
