"""Measures the effect of a document's first window, which is as long as a block, and so shorter than the paper's by the overlap.

    python -m benchmarks.first_window runs/gpt2 --store STORE --split validation --overlaps 10 50

Both ways of laying windows over a document are scored, each window by itself: the paper's, whose first window is a whole one (GPT-2
paper, section 4.2), and ours, whose result is also that of `pipelines.evaluate`. The model is `gpt2`, whose windows leave no State.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.inference.trained import config_of, find_checkpoint, model_of, open_split
from pipelines.terminal import cli
from recur_models import IGNORED, GPT2Config, GPT2RecConfig, RecurrentModel

BATCH = 16
"""Windows that are read at once."""


@dataclass(frozen=True)
class BenchConfig:
    """The run, the split and the overlaps to score."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of gpt2."""
    store: str = ""
    """Store to read; by default the run's."""
    split: str = "validation"
    """Split to read."""
    overlaps: tuple[int, ...] = (10, 50)
    """Overlaps to score."""


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    checkpoint = find_checkpoint(config.run)
    decoder = config_of(checkpoint)
    if not isinstance(decoder, GPT2Config) or isinstance(decoder, GPT2RecConfig):
        raise UserError(f"{config.run} is a run of {decoder.name}: choose one of gpt2")
    wide = [overlap for overlap in config.overlaps if not 0 < overlap < decoder.window]
    if wide:
        raise UserError(
            f"--overlaps has {wide[0]}: with windows of {decoder.window} it is from 1 to {decoder.window - 1}"
        )
    store = open_split(checkpoint, config.split, config.store)
    model = model_of(checkpoint, replace(decoder, overlap=0))
    print(f"{config.run.name}, step {checkpoint.step}, {store.folder}, windows of {decoder.window}", flush=True)
    for overlap in config.overlaps:
        bits = []
        for first, label in ((decoder.window, "the paper's"), (decoder.window - overlap, "ours")):
            nats = sum(nats_of(model, store, document, overlap, first) for document in range(len(store.lengths)))
            bits.append(nats / int(sum(store.lengths)) / math.log(2))
            print(f"  overlap {overlap:3}, {label:12} {bits[-1]:.6f} bits/token", flush=True)
        print(f"  overlap {overlap:3}: perplexity is {2 ** (bits[1] - bits[0]) - 1:+.3%} of the paper's", flush=True)


def spans(tokens: int, window: int, overlap: int, first: int) -> list[tuple[int, int, int]]:
    """For each window: where it begins, where its own tokens begin, and where it ends."""
    begins = [0, *range(first, tokens, window - overlap)]
    return [(max(0, begin - overlap), begin, end) for begin, end in zip(begins, [*begins[1:], tokens], strict=True)]


def nats_of(model: RecurrentModel, store: SegmentStore, document: int, overlap: int, first: int) -> float:
    """Nats of a document's tokens, each predicted once."""
    tokens = int(store.lengths[document])
    read = torch.from_numpy(store.tokens(document, 0, tokens).astype("int64"))
    inputs = torch.cat([torch.tensor([store.bod_id]), read[:-1]])
    nats = 0.0
    windows = spans(tokens, model.block, overlap, first)
    for some in (windows[at : at + BATCH] for at in range(0, len(windows), BATCH)):
        tokens_BT = torch.zeros(len(some), model.block, dtype=torch.int64)
        targets_BT = torch.full_like(tokens_BT, IGNORED)
        for lane, (begin, own, end) in enumerate(some):
            tokens_BT[lane, : end - begin] = inputs[begin:end]
            targets_BT[lane, own - begin : end - begin] = read[own:end]
        with torch.inference_mode():
            nats += model(tokens_BT, targets_BT=targets_BT)[0].double().sum().item()
    return nats


if __name__ == "__main__":
    cli.run(main)
