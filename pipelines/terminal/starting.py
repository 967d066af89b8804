"""A command of ours that another one starts, as a user starts it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from pipelines import python_path

Process = subprocess.Popen[bytes]


def start(
    module: str, words: Sequence[str], environment: Mapping[str, str] | None = None, log: IO[bytes] | None = None
) -> Process:
    """``python -m pipelines.MODULE WORDS`` with our own modules, whatever its working directory. It ends with this process, however
    that ends.

    Args:
        environment: variables for it where they are not set.
        log: takes its output; it then has a session of its own, so that Ctrl-C on a terminal reaches this process alone.
    """
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        """Linux: SIGKILL when the parent is gone, so that the command that is repeated finds nobody in a run's folder."""
        if sys.platform == "linux":
            libc.prctl(1, signal.SIGKILL)

    return subprocess.Popen(
        [sys.executable, "-m", f"pipelines.{module}", *words],
        env={**(environment or {}), **os.environ, "PYTHONPATH": python_path()},
        stdout=log,
        stderr=log and subprocess.STDOUT,
        start_new_session=log is not None,
        preexec_fn=end_with_parent,
    )
