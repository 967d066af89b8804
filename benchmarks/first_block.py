"""Measures the worth of State where it matters most: the loss on the first block of each segment.

    python -m benchmarks.first_block runs/demo-rec

Each document has a lane of its own, so that segments begin at the same positions in all of them. A document's own first block is
left out: it has nothing before it, with or without State.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.terminal import cli
from pipelines.training.reading import StateMode
from pipelines.training.scoring import MAX_POSITIONS, bucket_of, score_split
from pipelines.training.world import World

WAYS: dict[StateMode, str] = {
    "nothing": "State carried",
    "states": "recurrent states cleared",
    "everything": "all State cleared",
}


@dataclass(frozen=True)
class BenchConfig:
    """The run and the split to score."""

    run: tyro.conf.Positional[Path]
    """Folder of a run."""
    split: str = "test"
    """Split to read."""


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    checkpoint = find_checkpoint(config.run)
    data = checkpoint.meta["config"]["data"]
    store = SegmentStore.open(data["store"], data["corpus"], config.split)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model_of(checkpoint).to(device)
    if bucket_of(store.lengths, model.block) != model.block:
        raise UserError(
            f"{store.folder} has a document of more than {MAX_POSITIONS:,} blocks, which are not kept apart: give a store of "
            "shorter ones"
        )
    blocks = data["segment_length"] // model.block
    print(
        f"{config.run.name}, step {checkpoint.step}, {store.folder}, segments of {data['segment_length']}, blocks of {model.block}"
    )
    for clearing, label in WAYS.items():
        score = score_split(
            model,
            store,
            lanes=len(store.lengths),
            segment_length=data["segment_length"],
            world=World.current(device),
            clearing=clearing,
        )
        first = slice(blocks, None, blocks)
        nats, tokens = sum(score.bucket_nats[first]), sum(score.bucket_tokens[first])
        print(
            f"  {label:26} {nats / tokens / math.log(2):.4f} bits/token on first blocks ({tokens:,} tokens), "
            f"{score.bits_per_token:.4f} on all",
            flush=True,
        )


if __name__ == "__main__":
    cli.run(main)
