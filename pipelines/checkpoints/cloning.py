"""Clones a checkpoint for a trial of a population that continues from another trial's, and weights for an evaluation.

    clone_checkpoint(source.checkpoints, target.checkpoints, step=60)
    with kept_weights(checkpoints, folder) as kept: ...      # reads them there, whatever their runs remove

A checkpoint holds weights, optimizer, generators and the State of every lane. Trials that read the same lanes are in the same
documents at a step, so the State fits.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from common.errors import sentence
from common.places import TEMPORARY, Place
from pipelines.checkpoints.checkpoint import Checkpoint, Snapshot, name_of, step_of
from pipelines.checkpoints.errors import CheckpointError, RemovedError
from pipelines.checkpoints.retention import give_name, remove
from pipelines.checkpoints.run_folder import RunFolder, copy


def clone_checkpoint(source: Place, target: Place, step: int) -> None:
    """Copy the source's checkpoint of a step to the target's checkpoints, where it replaces the target's own of that step.

    Raises CheckpointError as `find` does.
    """
    checkpoint = find(source, step)
    if not target.is_local:
        return _clone_in_bucket(checkpoint, target, step)
    folder = Path(target.path)
    folder.mkdir(parents=True, exist_ok=True)
    copied = folder / f".{name_of(step, secrets.token_hex(4))}.tmp"
    shutil.copytree(Path(checkpoint.path), copied, copy_function=_link)
    give_name(Place.parse(copied), target / name_of(step))


def find(checkpoints: Place, step: int) -> Place:
    """The checkpoint of a step. Raises CheckpointError when it is not there, or, in a folder, damaged."""
    if checkpoints.is_local:
        checkpoint = checkpoints / name_of(step)
        Checkpoint.open(Path(checkpoint.path))
        return checkpoint
    found = _of_step(checkpoints, step)
    if found:
        return found[0]
    raise CheckpointError(f"{checkpoints} has no checkpoint of step {step}: choose another --run")


def _of_step(checkpoints: Place, step: int) -> list[Place]:
    names = RunFolder(checkpoints.parent).checkpoint_names()
    return [checkpoints / name for name in names if step_of(name) == step]


def _clone_in_bucket(checkpoint: Place, target: Place, step: int) -> None:
    """Copy the checkpoint under a new name, checkpoint.json last, then remove the target's own checkpoints of that step."""
    ours = _of_step(target, step)
    made = target / name_of(step, secrets.token_hex(4))
    files = [file.name for file in checkpoint.list() if not file.is_dir and not file.name.endswith(TEMPORARY)]
    for name in sorted(files, key=lambda name: name == "checkpoint.json"):
        copy(checkpoint / name, made / name)
    for before in ours:
        remove(before)


@contextmanager
def kept_weights(snapshots: Sequence[Snapshot], folder: Path) -> Iterator[list[Snapshot]]:
    """The snapshots with links to their weights in ``folder``, from which they read them even if a run removes its checkpoint.

    The folder is removed at the end, and at the beginning too: a killed command may have left it. A snapshot is yielded as it is
    where its weights cannot be linked, as on another file system: a copy could be large. So is an exported folder, which no run
    removes. Raises RemovedError if a checkpoint is gone already.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield [_with_kept_weights(snapshot, folder / snapshot.digest) for snapshot in snapshots]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_kept_weights(snapshot: Snapshot, kept: Path) -> Snapshot:
    if not isinstance(snapshot, Checkpoint):
        return snapshot
    kept.mkdir(parents=True, exist_ok=True)
    try:
        with suppress(FileExistsError):  # another snapshot has the same weights
            os.link(snapshot.folder / "model.safetensors", kept / "model.safetensors")
    except FileNotFoundError as error:
        raise RemovedError(sentence(error)) from None
    except OSError:
        return snapshot
    return replace(snapshot, weights_kept_in=kept)


def _link(source: str, target: str) -> None:
    """Hard-link a file, or copy it where that fails. Files of a checkpoint never change, so two names may share one file."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
