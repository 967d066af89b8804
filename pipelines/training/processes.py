"""Pieces of work over several processes of this machine, whichever is free taking the next; each leaves its result in a file.

    over_processes(open_work, pieces=6, workers=2, progress=print)

These are plain processes, which start sooner than a Ray session: forks of one that has imported what they need. They end with the
process that started them, however that ends, and an error in one ends all. The next call does what is left: the work itself knows
by its files which pieces are done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection, get_context, parent_process
from typing import Any

import torch

from common.errors import UserError, is_users, sentence
from pipelines import PACKAGES
from pipelines.terminal import plugins

POLL_SECONDS = 0.2


Work = Callable[[torch.device], Callable[[int], Iterator[int]]]
"""The work of a process, to which it is sent. Called with the process's device, it returns a function. Called with the number of a
piece, that function does it, and yields the tokens read since its last yield. Its first yield counts those of an earlier run."""


def over_processes(work: Work, pieces: int, workers: int, progress: Callable[[int], None]) -> None:
    """Do all pieces, with ``workers`` processes or, for 1 or 0, in this one. ``progress(tokens)``: how many more were read.

    The processes share this one's threads, and the machine's GPUs where it has some.
    Raises UserError where a piece does, or where a process was killed; RuntimeError with the traceback of any other error.
    """
    workers = min(workers, pieces)
    if workers <= 1:
        do = work(_device(0))
        for piece in range(pieces):
            for tokens in do(piece):
                progress(tokens)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.partition(".")[0] in PACKAGES])
    taken = context.Value("q", 0)
    read = context.Value("q", 0)
    errors = context.SimpleQueue()
    threads = max(torch.get_num_threads() // workers, 1)
    seen = 0
    given = (work, pieces, threads, taken, read, errors)
    started = [context.Process(target=_work, args=(number, *given), daemon=True) for number in range(workers)]
    try:
        for process in started:
            process.start()
        while True:
            running = [process.sentinel for process in started if process.exitcode is None]
            now = read.get_obj().value  # without the lock, which a process killed while it counted still holds
            progress(now - seen)
            seen = now
            failed = next((process for process in started if process.exitcode), None)
            if failed:
                raise _error(errors.get() if not errors.empty() else None, failed.exitcode or 0)
            if not running:
                return
            connection.wait(running, POLL_SECONDS)
    finally:
        for process in started:
            if process.pid is not None:
                process.terminate()
                process.join()


def _error(raised: tuple[bool, str] | None, status: int) -> Exception:
    """The error that ended a process.

    Args:
        raised: whether it is a user's error, and its message or traceback; None if the process raised none.
        status: exit status of the process.
    """
    if raised is None:
        return UserError(
            f"one of the processes was ended from outside (status {status}), perhaps for lack of memory: rerun the command to "
            "resume; with a smaller --num-workers it begins again, in less memory"
        )
    users, message = raised
    return UserError(message) if users else RuntimeError(message)


def _device(number: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", number % count) if count else torch.device("cpu")


def _work(number: int, work: Work, pieces: int, threads: int, taken: Any, read: Any, errors: Any) -> None:
    """Do pieces in a process until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all: the first process ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        plugins.load()
        do = work(_device(number))
        while True:
            with taken.get_lock():
                piece = taken.value
                taken.value += 1
            if piece >= pieces:
                return
            for tokens in do(piece):
                with read.get_lock():
                    read.value += tokens
    except Exception as error:
        errors.put((is_users(error), sentence(error) if is_users(error) else traceback.format_exc()))
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process when its parent ends: a parent that was killed cannot do so."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
