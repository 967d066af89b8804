"""How tests wait: long, since a machine may be slow and busy."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], seconds: float = 300, every: float = 0.05) -> None:
    """Wait for what must come. Raises AssertionError where it does not."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(every)
