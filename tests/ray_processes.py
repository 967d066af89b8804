"""What tests do to Ray's processes while a command runs in their own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def of_ray(kind: str) -> list[psutil.Process]:
    """This session's processes of one kind."""
    found = list[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"ray::{kind}" in " ".join(process.cmdline()):
                found.append(process)
    return found


class Meanwhile:
    """Does something to the workers of a run, once it has saved a step, while `main` trains it in this thread."""

    def __init__(self, folder: Path, does: Callable[[list[psutil.Process]], None], step: int = 5) -> None:
        self.folder, self.does, self.step = folder, does, step
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not (self.folder / f"checkpoints/step-{self.step:08d}").exists():
            time.sleep(0.02)
        workers = of_ray("RayTrainWorker")
        for worker in workers:
            worker.suspend()
        self.does(workers)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
