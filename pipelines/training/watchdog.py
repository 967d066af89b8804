"""Ends a run that hangs, and says which rank stood where.

    with Heartbeat(RunPlace.of(config), world, seconds=1800) as heart:
        heart.beat(step)                        # in the loop: an assignment

A thread in each process writes every second, into `<run>/logs/heartbeat-<rank>.json`, the step and the line of the loop at which
its process stands. Another one watches the loop, and touches no file while all is well: it must not hang with a file system. When
the loop has not moved for so many seconds, it reads the files of all ranks, says in one sentence who stands where, writes the
stacks of its own threads, ends those processes on this machine that give no sign of life, and then its own. Whoever started the
workers starts them again from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import linecache
import os
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from data_prep.places import Place
from pipelines import PACKAGE_ROOT
from pipelines.checkpoints.run_place import RunPlace
from pipelines.training.world import World

LOOP = str(PACKAGE_ROOT / "training" / "loop.py")
HUNG_STATUS = 70
"""Exit status of a process that was ended because nothing moved."""
TELL_SECONDS = 10.0
"""How long it may take to say so, where the file system hangs too."""


@dataclass(frozen=True)
class Pulse:
    """Where a process stands."""

    rank: int
    host: str
    pid: int
    born: float
    """When the process began: its number may be another's by now."""
    step: int
    """Steps done."""
    where: str
    still: float
    """Seconds since its loop has moved."""
    silent: float = 0.0
    """Seconds since the process has written this."""

    def told(self) -> str:
        sign = f", no sign of life for {self.silent:.0f} s" if self.silent > 5 else f" for {self.still:.0f} s"
        return f"rank {self.rank} (process {self.pid} on {self.host}) after step {self.step} {self.where}{sign}"


class Heartbeat:
    """The watch over one process's loop; the thread that makes it is the one that is watched."""

    def __init__(self, run: RunPlace, world: World, seconds: float) -> None:
        self._run, self._folder, self._world, self._seconds = run, run.folder / "logs", world, seconds
        self._step, self._moved = 0, time.monotonic()
        self._watched = threading.get_ident()
        self._over, self._period = threading.Event(), min(1.0, seconds / 5)
        self._host, self._born = socket.gethostname(), psutil.Process().create_time()

    def beat(self, step: int | None = None) -> None:
        """The loop moves; ``step``: so many steps are done."""
        self._step, self._moved = self._step if step is None else step, time.monotonic()

    def __enter__(self) -> Heartbeat:
        if self._seconds:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._world.rank == 0:
                hang_file(self._run).delete()
            self._write()
            for task in (self._note, self._watch):
                threading.Thread(target=task, name=f"heartbeat{task.__name__}", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _path(self, rank: int) -> Path:
        return self._folder / f"heartbeat-{rank}.json"

    # The threads

    def _note(self) -> None:
        while not self._over.wait(self._period):
            self._write()

    def _watch(self) -> None:
        woke = time.monotonic()
        while not self._over.wait(self._period):
            now = time.monotonic()
            if (
                now - woke > 5 * self._period + 1
            ):  # this process itself was stopped meanwhile, and is not to blame for it
                self._moved = now
            woke = now
            if now - self._moved > self._seconds:
                telling = threading.Thread(target=self._tell, daemon=True)
                telling.start()
                telling.join(TELL_SECONDS)
                os._exit(HUNG_STATUS)

    def _write(self) -> None:
        pulse = Pulse(
            self._world.rank,
            self._host,
            os.getpid(),
            self._born,
            self._step,
            where(sys._current_frames().get(self._watched)),
            time.monotonic() - self._moved,
        )
        path = self._path(pulse.rank)
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(pulse)))
            os.replace(temporary, path)

    def _tell(self) -> None:
        """Say who stands where, and end the processes here that cannot end themselves."""
        pulses = self._pulses()
        dead = [pulse for pulse in pulses if pulse.silent > max(5.0, 0.5 * self._seconds)]
        first = min(pulse.step for pulse in pulses)
        suspects = dead or [pulse for pulse in pulses if pulse.step == first]
        others = [pulse for pulse in pulses if pulse not in suspects]
        sentence = f"nothing has moved for {self._seconds:g} s: " + "; ".join(
            pulse.told() for pulse in suspects + others
        )
        with contextlib.suppress(OSError):
            hang_file(self._run).write_atomically(sentence.encode())
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # a stream without a file behind it
            faulthandler.dump_traceback(file=sys.stderr)
        for pulse in dead:
            if pulse.host == self._host and pulse.pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pulse.pid)
                    if process.create_time() == pulse.born:
                        process.kill()

    def _pulses(self) -> list[Pulse]:
        """What each rank has written last; ages by the clock of the file system, which is one for all machines."""
        with contextlib.suppress(OSError):
            now = self._path(self._world.rank).stat().st_mtime
            found = []
            for rank in range(self._world.size):
                path = self._path(rank)
                if not self._run.is_local and not path.exists():
                    continue  # on another machine, whose own watch speaks for it
                values: dict[str, Any] = json.loads(path.read_text())
                found.append(Pulse(**{**values, "silent": max(0.0, now - path.stat().st_mtime)}))
            return found
        here = (self._world.rank, self._host, os.getpid(), self._born, self._step)
        return [Pulse(*here, "", time.monotonic() - self._moved)]


def hang_file(run: RunPlace) -> Place:
    """Where a process that ends itself leaves its sentence, for whoever started it."""
    return run.place / "logs" / "hang.txt"


def where(frame: FrameType | None) -> str:
    """The line of the loop at which a thread stands, and the function that it is in: "at loop.py:102 `loss.backward()`, in …"."""
    innermost, line = frame, ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == LOOP:
            text = linecache.getline(name, frame.f_lineno).strip()
            line = f"at loop.py:{frame.f_lineno} `{text}`"  # the outermost is kept
        frame = frame.f_back
    inside = f"in {Path(innermost.f_code.co_filename).name}:{innermost.f_code.co_name}" if innermost else ""
    return f"{line}, {inside}" if line else inside
