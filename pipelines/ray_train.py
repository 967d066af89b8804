"""One run of Ray Train, as training and sweeps start it: Ray never starts it again, and an error comes back as what it is.

error = fit(worker, {"config": config}, scaling, name="run-0", storage="runs/mine/.ray")
isinstance(error, USER_ERRORS)          # of a worker, in place of Ray's own around it: training again would only repeat it
first_line(error)                       # for a sentence
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError

if TYPE_CHECKING:
    import pyarrow.fs
    from ray.train import ScalingConfig

USER_ERRORS = (UserError,)
"""Errors that training again would only repeat."""


def fit(
    worker: Callable[[dict[str, Any]], None],
    arguments: dict[str, Any],
    scaling: ScalingConfig,
    name: str,
    storage: str,
    filesystem: pyarrow.fs.FileSystem | None = None,
) -> BaseException | None:
    """Run ``worker`` on each worker until all have returned, or one has not.

    Args:
        storage: where Ray Train's own notes go, a folder, or a path of ``filesystem``.

    Returns what ended it: None, a worker's user error, or any other.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, WorkerGroupError
    from ray.train.torch import TorchTrainer

    try:
        TorchTrainer(
            worker,
            train_loop_config=arguments,
            scaling_config=scaling,
            run_config=RunConfig(
                name=name,
                storage_path=storage,
                storage_filesystem=filesystem,
                failure_config=FailureConfig(max_failures=0),
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        ).fit()
    except BaseException as error:  # also what Ray raises to end its thread: whoever called decides
        causes = error.worker_failures.values() if isinstance(error, WorkerGroupError) else ()
        told = (getattr(failure, "cause", failure) for failure in causes)
        return next((cause for cause in told if isinstance(cause, USER_ERRORS)), error)
    return None


def first_line(error: BaseException) -> str:
    """What an error that Ray has wrapped says first, without the headings around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith(":")]
    return lines[0] if lines else type(error).__name__
