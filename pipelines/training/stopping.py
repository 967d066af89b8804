"""Asking a run to save and leave: a signal, or a file `stop` in the run's folder.

The signals are SIGTERM (what a preempted machine sends), Ctrl-C, SIGHUP (a terminal or an ssh session that closes), and SIGUSR1 and
SIGUSR2 (what Slurm sends ahead of a time limit with `--signal=USR1@90`).

    stop = Stop(RunFolder.of(config).place)
    with stop.on_signals():
        train_as_worker(config, world, stop.asked)      # after the step at hand it saves, waits for the disk, and raises Stopped

    touch runs/mine/stop                        # the same from anywhere: another machine, a script

The command then ends with exit status 75, "try again later". Rerun it to resume at the next step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from common.places import Place

STOPPED_STATUS = 75
"""Exit status of a command that was asked to stop, has saved, and can be repeated (EX_TEMPFAIL of sysexits.h)."""
BUCKET_SECONDS = 3.0
"""How often a process looks for the file where the run is in a bucket."""
AGAIN_SECONDS = 2.0
"""A second SIGTERM or Ctrl-C after so many seconds ends the process at once. An earlier one is the same signal, from a launcher."""
NOTICES = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask, and never end the process however often they come."""


class Stopped(Exception):
    """The run was asked to stop; its step is saved, unless that is 0."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Stop:
    """Whether a run was asked to stop, by a signal to this process or a file in the run's folder."""

    def __init__(self, run: Path | Place, name: str = "stop") -> None:
        self.file = Place.parse(run) / name
        self.signalled = False
        self._found = False
        self._looked = 0.0

    def asked(self) -> bool:
        """Whether the run was asked to stop. A folder is checked each time, a bucket every few seconds."""
        now = time.monotonic()
        if self.file.is_local or now - self._looked > BUCKET_SECONDS:
            self._looked = now
            with contextlib.suppress(OSError):  # a bucket that does not answer is asked again
                self._found = self.file.exists()
        return self.signalled or self._found

    def ask(self) -> None:
        """Ask the processes of the run to stop, on whichever machine they are."""
        self.file.write_atomically(b"stop")

    def clear(self) -> None:
        self.file.delete()
        self._found = False

    def on_signals(self) -> AbstractContextManager[None]:
        """Take the signals as requests to stop while the block runs; only in the main thread, where Python delivers them."""
        if threading.current_thread() is not threading.main_thread():
            return nullcontext()
        first: float | None = None

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal first
            if not self.signalled:
                self.signalled = True
                with contextlib.suppress(OSError):  # the terminal may be gone
                    print("asked to stop: saving first (once more ends at once)", file=sys.stderr, flush=True)
            if number in NOTICES:
                return
            if first is None:
                first = time.monotonic()
            elif time.monotonic() - first >= AGAIN_SECONDS:
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        return asking_signals_to(handle)


@contextmanager
def asking_signals_to(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have ``handle`` called for SIGTERM, Ctrl-C and the notices while the block runs; `nohup` keeps SIGHUP ignored."""
    numbers = [signal.SIGTERM, signal.SIGINT, *NOTICES]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
