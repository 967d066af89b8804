"""A thread that works while a block of code runs.

with in_background(watch, "watch"):         # watch(over) returns soon after over is set
    ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], object], name: str) -> Iterator[None]:
    """Run ``work`` in a daemon thread while the block runs. Its argument is set at the block's end, which waits for the thread.

    ``name``: of the thread.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
