"""A run goes on from another one's checkpoint (of a sweep's population).

    take_over(source.checkpoints, target.checkpoints, step=60)

A checkpoint holds weights, optimizer, generators and the State of every lane; runs that read the same lanes have the same documents
at hand at a step.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from data_prep.places import TEMPORARY, Place
from pipelines.checkpoints.checkpoint import Checkpoint, CheckpointError, name_of, step_of
from pipelines.checkpoints.retention import give_name, remove
from pipelines.checkpoints.run_place import RunPlace, copy


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
