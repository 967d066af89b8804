"""What a sweep may take, over all starts of its command: seconds and tokens. Trials beyond --trials are not begun (scheduler.py).

budget = Budget(sweep)
budget.spent()                      # "the sweep's budget of 4,000 tokens is spent", or nothing
budget.keep()                       # budget.json: the seconds so far
"""

from __future__ import annotations

import json
import time

from pipelines.sweeps.sweep import Sweep

BUDGET = "the sweep's budget"
"""How the reason of a trial begins that a larger budget would continue."""


class Budget:
    """Of one sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._began = sweep, time.monotonic()
        try:
            self._before = float(json.loads((sweep.folder / "budget.json").read_text("utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            self._before = 0.0

    def seconds(self) -> float:
        """Taken so far, by all starts."""
        return self._before + time.monotonic() - self._began

    def keep(self) -> None:
        """Write them down."""
        self._sweep.write("budget.json", {"seconds": self.seconds()})

    def spent(self) -> str:
        """Why no more is trained; empty while there is some left."""
        config = self._sweep.config
        if config.seconds and self.seconds() >= config.seconds:
            return f"{BUDGET} of {config.seconds:g} s is spent"
        if config.tokens and sum(trial.tokens for trial in self._sweep.trials.values()) >= config.tokens:
            return f"{BUDGET} of {config.tokens:,} tokens is spent"
        return ""
