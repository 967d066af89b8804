"""Runs Ray Train without Ray's own restarts, and returns a worker's own error.

error = run_workers(worker, {"config": config}, 2, config.placement, use_gpu=False, notes=run.place / ".ray", name="run-0")
cause_of(error, UserError)              # a worker's own error of this kind, without Ray's wrapper
first_line(error)                       # for a sentence
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from common.places import Place
from pipelines.config.run import PlacementConfig


def run_workers(
    worker: Callable[[dict[str, Any]], None],
    arguments: dict[str, Any],
    workers: int,
    placement: PlacementConfig,
    use_gpu: bool,
    notes: Place,
    name: str,
) -> BaseException | None:
    """Run ``worker`` on each worker until all have returned, or one has failed. ``notes``: place for Ray Train's own files.

    Returns the error that ended it, or None; `cause_of` finds a worker's own error in it.
    """
    before = set[str]()
    try:
        from ray import train  # a setting chooses which of two versions its names are
        from ray.train.torch import TorchTrainer

        classes: Any = train
        before = reservations()

        def train_loop() -> None:
            worker(arguments)  # no train_loop_config: Ray may show it as text on its dashboard, and it has passwords

        TorchTrainer(
            train_loop,
            scaling_config=classes.ScalingConfig(
                num_workers=workers,
                use_gpu=use_gpu,
                resources_per_worker=placement.worker(use_gpu),
                placement_strategy=placement.strategy.replace("-", "_").upper(),
            ),
            run_config=classes.RunConfig(
                name=name,
                storage_path=notes.path,
                storage_filesystem=None if notes.is_local else notes.filesystem,
                failure_config=classes.FailureConfig(max_failures=0, max_preemption_failures=0),
                logging_config=classes.LoggingConfig(log_level="ERROR"),
            ),
        ).fit()
    except BaseException as error:  # also errors by which Ray ends its thread: the caller decides
        import ray

        if ray.is_initialized():  # else these calls would begin another session
            with contextlib.suppress(Exception):  # Ray itself may be gone
                release(reservations() - before)
        return error
    return None


def reservations(*states: str) -> set[str]:
    """Ids of this program's placement groups in these ``states``, by default all but removed ones. They end in its own id."""
    import ray
    from ray.util import placement_group_table

    own = ray.get_runtime_context().get_job_id()
    found = {name: of["state"] for name, of in placement_group_table().items() if name.endswith(own)}
    return {name for name, state in found.items() if (state in states if states else state != "REMOVED")}


def release(reserved: set[str]) -> None:
    """Free the placement groups that a dead controller has left, for which the next controller would wait for ever."""
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    for name in reserved:
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(name)))


def cause_of(error: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]) -> BaseException | None:
    """The first error of this kind that a worker has raised; None where there is none."""
    return next((cause for cause in (error, *failures_of(error)) if isinstance(cause, kind)), None)


def failures_of(error: BaseException) -> list[BaseException]:
    """The error of each worker that failed, or Ray's report of its death."""
    failures: Mapping[int, Any] = getattr(error, "worker_failures", {})
    return [getattr(failure, "cause", failure) for failure in failures.values()]


def first_line(error: BaseException) -> str:
    """The first sentence of an error that Ray has wrapped, without the headings around it."""
    told = str(next(iter(failures_of(error)), error))
    lines = [line.strip() for line in told.splitlines() if line.strip() and not line.endswith(":")]
    if not lines:
        return type(error).__name__
    # A worker that has lost another says so in gloo's words: a line of its source first, and then where to report an error.
    return re.sub(r"^\[\S+:\d+\] ", "", lines[0]).partition(". This is typically caused by")[0]
