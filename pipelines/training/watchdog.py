"""Ends a run that hangs, and says which rank stood where.

    with Heartbeat(RunFolder.of(config), world, seconds=1800) as heart:
        heart.beat(step)                        # in the loop

A beat writes the step into `<run>/logs/heartbeat-<rank>.json`, once a second. A thread watches, and touches no file while the loop
moves. If the loop stands still for half of ``seconds``, the thread writes the loop's line every second. After all of them it reads
the files of all ranks, reports where each stands, and writes the stacks of its own threads. Then it ends the processes on this
machine that give no sign of life, and its own. Whoever started them restarts them from the newest checkpoint.

`faulthandler.dump_traceback_later(exit=True)`, armed at each beat, cannot do it alone: it ends a suspended process (Ctrl-Z)
the moment it resumes, cannot tell which rank is to blame, and takes 260 µs a beat. But it ends one whose watch hangs too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from common.places import Place
from pipelines import PACKAGE_ROOT
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.training.world import World

LOOP = str(PACKAGE_ROOT / "training" / "loop.py")
HUNG_STATUS = 70
"""Exit status of a process that was ended because nothing moved."""
REPORT_SECONDS = 10
"""Seconds that the report may take, since the file system may hang too."""
WIDTH = 1000
"""Bytes of a rank's file: each write covers the one before."""


@dataclass(frozen=True)
class Pulse:
    """The progress of a process, as its heartbeat file has it."""

    rank: int
    host: str
    pid: int
    born: float
    """Start time of the process: its pid may be another's by now."""
    step: int = 0
    """Steps done."""
    where: str = ""
    """The line at which the loop stands still, and for how long; empty while it moves."""


class Heartbeat:
    """The watch over one process's loop; the thread that makes it is the one that is watched."""

    def __init__(self, run: RunFolder, world: World, seconds: float) -> None:
        self._run = run
        self._world = world
        self._seconds = seconds
        self._pulse = Pulse(world.rank, socket.gethostname(), os.getpid(), psutil.Process().create_time())
        self._watched = threading.get_ident()
        self._moved = time.monotonic()
        self._written = -math.inf
        self._over = threading.Event()
        self._period = min(1.0, seconds / 5)
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def beat(self, step: int | None = None) -> None:
        """Note that the loop moves. ``step``: number of steps done."""
        self._pulse = replace(self._pulse, step=self._pulse.step if step is None else step)
        self._moved = time.monotonic()
        if self._moved - self._written >= self._period:
            self._written = self._moved
            self._write(self._pulse)

    def __enter__(self) -> Heartbeat:
        if self._seconds:
            path = self._path(self._world.rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._world.rank == 0:
                hang_file(self._run).delete()
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
            self.beat()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._seconds:
            self._over.set()
            self._thread.join()
            os.close(self._file)

    def _path(self, rank: int) -> Path:
        return self._run.folder / "logs" / f"heartbeat-{rank}.json"

    def _write(self, pulse: Pulse) -> None:
        if self._seconds:
            with contextlib.suppress(OSError):  # a full disk is no reason to stop
                os.pwrite(self._file, json.dumps(vars(pulse)).encode().ljust(WIDTH), 0)

    def _watch(self) -> None:
        woke = time.monotonic()
        while not self._over.wait(self._period):
            now = time.monotonic()
            if now - woke > 5 * self._period + 1:  # this process itself was stopped meanwhile: nobody hung
                self._moved = now
            woke = now
            still = now - self._moved
            if still > self._seconds / 2:
                faulthandler.dump_traceback_later(REPORT_SECONDS, exit=True, file=sys.__stderr__ or 2)
                self._write(replace(self._pulse, where=f"{self._where()} for {still:.0f} s"))
                with contextlib.suppress(OSError):
                    os.fsync(self._file)  # for the other machines
                if still > self._seconds:
                    self._report()
                    os._exit(HUNG_STATUS)
                faulthandler.cancel_dump_traceback_later()

    def _where(self) -> str:
        """The line of the loop at which it stands, and the function that it is in: "at loop.py:102 `loss.backward()`, in …"."""
        stack = traceback.extract_stack(sys._current_frames()[self._watched])
        line = next((f"at loop.py:{frame.lineno} `{frame.line}`, " for frame in stack if frame.filename == LOOP), "")
        return f"{line}in {Path(stack[-1].filename).name}:{stack[-1].name}"

    def _report(self) -> None:
        """Print where each process stands, and end those on this machine that cannot end themselves."""
        pulses, dead = self._pulses()
        sentence = f"nothing has moved for {self._seconds:g} s: {standing(pulses, dead)}"
        with contextlib.suppress(OSError):
            hang_file(self._run).write_atomically(sentence.encode())
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # a stream without a file behind it
            faulthandler.dump_traceback(file=sys.stderr)
        for pulse in dead:
            if pulse.host == self._pulse.host:
                kill(pulse)

    def _pulses(self) -> tuple[list[Pulse], list[Pulse]]:
        """The pulses of all processes, and those of processes that have written nothing for long.

        Ages are by the file system's clock, which all machines share. Without a shared folder each watch sees its own machine
        alone.
        """
        pulses = list[Pulse]()
        dead = list[Pulse]()
        now = self._path(self._world.rank).stat().st_mtime
        for rank, path in enumerate(map(self._path, range(self._world.size))):
            if path.exists():
                pulse = read_pulse(path, rank)
                pulses.append(pulse)
                if now - path.stat().st_mtime > max(5.0, 0.5 * self._seconds):
                    dead.append(pulse)
        return pulses, dead


def read_pulse(path: Path, rank: int) -> Pulse:
    """The pulse in a process's file, or one without a process if the file is empty: the disk was full, or the machine died before
    the bytes reached the shared folder.
    """
    try:
        return Pulse(**json.loads(path.read_bytes()))
    except ValueError:
        return Pulse(rank, "", 0, 0.0)


def standing(pulses: Sequence[Pulse], dead: Sequence[Pulse]) -> str:
    """Where each process stands, in words; first the processes that the others wait for: the ``dead``, or else those that have done
    the fewest steps.
    """
    fewest = min(pulse.step for pulse in pulses)
    suspects = dead or [pulse for pulse in pulses if pulse.step == fewest]
    ordered = sorted(pulses, key=lambda pulse: pulse not in suspects)
    return "; ".join(description(pulse, pulse in dead) for pulse in ordered)


def description(pulse: Pulse, dead: bool) -> str:
    """Where a process stands, in words. ``dead``: it has written nothing for long."""
    if not pulse.pid:
        return f"rank {pulse.rank} has written no heartbeat"
    doing = "gives no sign of life" if dead else pulse.where or "moves"
    return f"rank {pulse.rank} (process {pulse.pid} on {pulse.host}) after step {pulse.step} {doing}"


def kill(pulse: Pulse) -> None:
    """Kill a process of this machine, unless it is gone and its pid is another's."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pulse.pid)
        if process.create_time() == pulse.born:
            process.kill()


def hang_file(run: RunFolder) -> Place:
    """File in which a process that ends itself leaves its report, for whoever started it."""
    return run.place / "logs" / "hang.txt"
