"""Our own commands, run as a user runs them: some side by side, stopped and killed with this process.

failed = run([Job("train mine", "train", ("small-rec", "--run", "mine"), Path("runs/logs/mine.log"))], at_once=2)
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.credentials import without_credentials
from pipelines.terminal import cli, starting
from pipelines.terminal.starting import Process
from pipelines.training.stopping import STOPPED_STATUS, asking_signals_to


@dataclass(frozen=True)
class Job:
    """A command of ours, and the file that its output goes to."""

    name: str
    module: str
    words: tuple[str, ...]
    log: Path


def run(jobs: Sequence[Job], at_once: int) -> list[Job]:
    """Run commands as a user does, so many side by side; those that failed. One that fails keeps no other from being run.

    Asked to stop (SIGTERM, Ctrl-C), it asks what runs to save, waits for it, and ends this process with status 75.
    """
    waiting = list(jobs)
    running = dict[Process, tuple[Job, float]]()
    failed = list[Job]()
    asked = list[int]()
    told = dict[Process, int]()
    with asking_signals_to(lambda number, frame: asked.append(number)):
        while running or (waiting and not asked):
            while waiting and len(running) < at_once and not asked:
                job = waiting.pop(0)
                running[start(job, at_once)] = (job, time.monotonic())
            for process in running:
                if told.get(process, 0) < len(asked):  # as often as we are
                    process.send_signal(signal.SIGTERM)
                    told[process] = len(asked)
            for process in [process for process in running if process.poll() is not None]:
                job, began = running.pop(process)
                ended = "stopped" if asked else cli.duration(time.monotonic() - began)
                if process.returncode and not asked:
                    failed.append(job)
                    ended = f"failed with status {process.returncode}, see {cli.shown(job.log)}"
                print(f"[{len(jobs) - len(waiting) - len(running)}/{len(jobs)}] {job.name}: {ended}", flush=True)
            time.sleep(0.05)
    if asked:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(STOPPED_STATUS)
    return failed


def start(job: Job, at_once: int) -> Process:
    """One of as many threads as leave the others theirs."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(max((os.cpu_count() or 1) // at_once, 1))
    with job.log.open("ab") as log:
        words = shlex.join(map(without_credentials, job.words))
        log.write(f"$ python -m pipelines.{job.module} {words}\n".encode())
        log.flush()
        return starting.start(job.module, job.words, {"OMP_NUM_THREADS": threads}, log)
