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

from data_prep.places import TEMPORARY, Place
from pipelines.checkpoints.checkpoint import Checkpoint, CheckpointError, name_of, step_of
from pipelines.checkpoints.retention import give_name, remove
from pipelines.checkpoints.run_place import RunPlace, copy
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


def take_over(source: Place, target: Place, step: int) -> None:
    """Put the source's checkpoint of a step among the target's checkpoints, in place of its own of that step.

    Raises CheckpointError when the source's is not there or damaged.
    """
    if not target.is_local:
        return _take_over_in_bucket(source, target, step)
    checkpoint, folder = Checkpoint.open(Path(source.path) / name_of(step)), Path(target.path)
    folder.mkdir(parents=True, exist_ok=True)
    copied = folder / f".{name_of(step, secrets.token_hex(4))}.tmp"
    shutil.copytree(checkpoint.folder, copied, copy_function=_link)
    give_name(Place.parse(copied), target / name_of(step))


def _take_over_in_bucket(source: Place, target: Place, step: int) -> None:
    """There a checkpoint has a name of its own, and stands once its checkpoint.json does."""
    ours, theirs = (
        [run.checkpoints / name for name in run.checkpoint_names() if step_of(name) == step]
        for run in (RunPlace(target.parent), RunPlace(source.parent))
    )
    if not theirs:
        raise CheckpointError(f"{source} has no checkpoint of step {step}: choose another --run")
    made = target / name_of(step, secrets.token_hex(4))
    files = [file.name for file in theirs[0].list() if not file.is_dir and not file.name.endswith(TEMPORARY)]
    for name in sorted(files, key=lambda name: name == "checkpoint.json"):
        copy(theirs[0] / name, made / name)
    for before in ours:
        remove(before)


def _link(source: str, target: str) -> None:
    """Files of a checkpoint are never written again, so a second name will do where the file system has such."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
