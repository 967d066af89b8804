"""The errors of checkpoints, and the loop that looks for one again where a run that trains has removed the one that was found.

@retry_if_removed
def weights_of(run: RunFolder) -> Mapping[str, Tensor]: ...      # finds a checkpoint, and reads it later
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from common.errors import UserError

TRIES = 10
"""How often a search for a checkpoint begins, at most, while a training process removes what it has found."""

Words = ParamSpec("Words")
Found = TypeVar("Found")


class CheckpointError(UserError):
    """A checkpoint that is missing, incomplete or damaged."""


class PickledError(CheckpointError):
    """A checkpoint with a file that may hold pickled objects. Someone has put it there, so nothing replaces the checkpoint."""


class RemovedError(CheckpointError):
    """A checkpoint that was there when it was found, and is gone now: a run that trains removes its older ones."""


def retry_if_removed(search: Callable[Words, Found]) -> Callable[Words, Found]:
    """Let a search begin again after a RemovedError, up to TRIES times in all. The last error is raised."""

    @wraps(search)
    def begin(*args: Words.args, **kwargs: Words.kwargs) -> Found:
        for _ in range(TRIES - 1):
            with suppress(RemovedError):
                return search(*args, **kwargs)
        return search(*args, **kwargs)

    return begin
