"""Keeps a run's newest checkpoints, those at multiples of `keep_every`, and the best. Renames and removes checkpoints.

prune(run, "step-00000200", CheckpointConfig(keep=2))         # now that this one is complete
best(run.complete_checkpoints())                              # a list, the best first
open_best(run)                                                # verified; None if the run has validated none
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from operator import attrgetter
from typing import TypeVar

from common.places import Place, remove_temporary, sync
from pipelines.checkpoints.checkpoint import Checkpoint, Snapshot, step_of
from pipelines.checkpoints.errors import CheckpointError, retry_if_removed
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import CheckpointConfig

Found = TypeVar("Found", bound=Snapshot)


def prune(run: RunFolder, newest: str, config: CheckpointConfig) -> None:
    """Remove the checkpoints that need not be kept, now that the one named ``newest`` is complete.

    Later checkpoints were found damaged when the run fell back: they are neither counted nor removed. Incomplete checkpoints do not
    count. A bucket may hold several checkpoints of one step, from several starts: the newest start's is kept.
    """
    whole: dict[int, Checkpoint] = {}
    for checkpoint in sorted(run.complete_checkpoints(), key=lambda found: found.folder.name != newest):
        if checkpoint.step <= step_of(newest):
            whole.setdefault(checkpoint.step, checkpoint)
    newest_ones = list(whole.values())[: config.keep]
    best_ones = best(whole.values())[: config.keep_best]
    round_ones = [found for step, found in whole.items() if config.keep_every and step % config.keep_every == 0]
    names = {found.folder.name for found in [*newest_ones, *best_ones, *round_ones]}
    for name in run.checkpoint_names():
        if step_of(name) in whole and name not in names:
            remove(run.checkpoints / name)


def tidy(run: RunFolder, newest: str, config: CheckpointConfig) -> None:
    """Remove what killed starts of a finished run have left. ``newest`` names its last checkpoint."""
    with contextlib.suppress(OSError):  # a run that is only read, say
        remove_temporary(Place.parse(run.folder))
        for place in run.unfinished():
            place.delete()
        prune(run, newest, config)


def best(checkpoints: Iterable[Found]) -> list[Found]:
    """The checkpoints that were validated at their own step, the best first. Equally good ones are ordered by step.

    Metrics of two texts cannot be compared. After a change of the store or of ``validate_tokens`` only checkpoints that were
    validated as the newest one was count.
    """
    scored = [found for found in checkpoints if (found.meta.get("validation") or {}).get("step") == found.step]
    if not scored:
        return []
    text = validated_on(max(scored, key=attrgetter("step")))
    comparable = [found for found in scored if validated_on(found) == text]
    return sorted(comparable, key=lambda found: (found.meta["validation"]["best_by"], found.step))


@retry_if_removed
def open_best(run: RunFolder) -> tuple[Checkpoint | None, list[str]]:
    """The best checkpoint, if any was validated, and a sentence for each checkpoint that is damaged.

    Raises CheckpointError where the best one cannot be read.
    """
    complete, complaints = run.examined()
    ranked = best(complete)
    if not ranked:
        return None, complaints
    name = ranked[0].folder.name
    try:
        return run.open_checkpoint(name), complaints
    except CheckpointError as error:
        run.check_is_there(name, error)
        raise


def validated_on(checkpoint: Snapshot) -> tuple[str, int]:
    """Identifies the text of a validation: the fingerprint of the validation split, and the most tokens of it that were read."""
    return checkpoint.meta["validation"]["store"], checkpoint.meta["config"]["validate_tokens"]


def give_name(written: Place, final: Place) -> None:
    """Rename a complete local checkpoint to its final name. It replaces one of the same step from before the run fell back."""
    if final.exists():
        remove(final)
    os.rename(written.path, final.path)
    sync(final.parent.path)


def remove(checkpoint: Place) -> None:
    """Remove a checkpoint so that its remains, after a kill, are never taken for a checkpoint."""
    if checkpoint.is_local:
        doomed = checkpoint.parent / f".{checkpoint.name}.{secrets.token_hex(4)}.old"
        os.rename(checkpoint.path, doomed.path)
        doomed.delete()
    else:
        (checkpoint / "checkpoint.json").delete()
        checkpoint.delete()
