"""Ray's processes, as tests find and disturb them while a command runs in the test's own process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from pipelines.checkpoints.run_folder import RunFolder
from tests.waiting import wait_until


def of_ray(kind: str) -> list[psutil.Process]:
    """This session's processes of one kind."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"ray::{kind}" in " ".join(process.cmdline()):
                found.append(process)
    return found


class Meanwhile:
    """Calls ``does`` with a run's suspended workers, from a thread of its own, while `main` trains the run in this one.

    It waits until the run has saved ``step`` or a later one, in an attempt that ``attempt`` others have preceded.
    """

    def __init__(
        self, folder: Path, does: Callable[[list[psutil.Process]], None], step: int = 5, attempt: int = 0
    ) -> None:
        self.folder, self.does, self.step, self.attempt = folder, does, step, attempt
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        run, begun = RunFolder.parse(self.folder), self.folder / f".ray/begun-{self.attempt}"
        wait_until(lambda: begun.exists() and run.newest_step() >= self.step, every=0.02)
        workers = of_ray("RayTrainWorker")
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.suspend()
        self.does(workers)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
