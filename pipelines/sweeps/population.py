"""Population-based training (Jaderberg et al. 2017) on checkpoints: the worst trials go on from copies of the best ones.

    exploits = choose({"000": 5.1, "001": 6.2, …}, {"001": {"optim.lr": 1e-3}, …}, domains, seed=0, step=60)
    take_over(source, target, step=60)

All trials are compared at the same step, so that what follows depends on the figures alone and not on who came first: a killed
sweep makes the same choices again. A checkpoint holds weights, optimizer, generators and the State of every lane; as all trials
read the same lanes, the copy's State fits the documents at hand. What the copy changes must not change a shape or what a step
reads.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.places import Place
from pipelines.checkpoints.checkpoint import Checkpoint, name_of
from pipelines.checkpoints.retention import give_name
from tune_spaces import draw

PERTURBABLE = ("optim.lr", "optim.clip", "schedule.final")
"""Fields that a run reads anew at every step. Weight decay and betas are in the optimizer's own state."""
QUANTILE, RESAMPLE, FACTORS = 0.25, 0.25, (0.8, 1.2)


@dataclass(frozen=True)
class Exploit:
    """A trial goes on as another one stands, with other values."""

    trial: str
    source: str
    values: dict[str, Any]


def choose(
    figures: Mapping[str, float],
    values: Mapping[str, Mapping[str, Any]],
    domains: Mapping[str, Any],
    seed: int,
    step: int,
    keep: Sequence[str] = (),
) -> list[Exploit]:
    """Who takes over from whom at this step, by everyone's figure (lower is better) and values; ``keep`` stay as they are."""
    ranked = sorted(figures, key=lambda trial: (figures[trial], trial))
    some = max(1, int(len(ranked) * QUANTILE))
    if 2 * some > len(ranked):
        return []
    found = []
    worst = [trial for trial in ranked[some:] if trial not in keep][-some:]
    for trial in sorted(worst):
        rng = random.Random(f"{seed}/{step}/{trial}")
        source = rng.choice(ranked[:some])
        found.append(Exploit(trial, source, explore(values[source], domains, rng)))
    return found


def explore(values: Mapping[str, Any], domains: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The source's values, each drawn again or moved by a fifth."""
    drawn = draw(domains, rng.getrandbits(32), 0)
    return {
        key: drawn[key] if rng.random() < RESAMPLE else float(f"{value * rng.choice(FACTORS):.3g}")
        for key, value in values.items()
    }


def take_over(source: Path, target: Path, step: int) -> None:
    """Put the source's checkpoint of a step into the folder of the target's checkpoints, in place of its own of that step.

    Raises CheckpointError when the source's is not there or damaged.
    """
    checkpoint = Checkpoint.open(source / name_of(step))
    target.mkdir(parents=True, exist_ok=True)
    copy = target / f".{name_of(step, secrets.token_hex(4))}.tmp"
    shutil.copytree(checkpoint.folder, copy, copy_function=_link)
    give_name(Place.parse(copy), Place.parse(target / name_of(step)))


def _link(source: str, target: str) -> None:
    """Files of a checkpoint are never written again, so a second name will do where the file system has such."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
