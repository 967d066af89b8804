"""How tests wait: long, since a machine may be slow and busy."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable


def wait_until(true: Callable[[], object], seconds: float = 300, every: float = 0.05) -> None:
    """Ask again and again until the answer is true. Raises AssertionError if it is not in time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(every)


def answers(url: str) -> bool:
    """Whether a server answers at a URL, and with no error."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False
