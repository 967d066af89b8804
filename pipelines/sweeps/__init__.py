"""A sweep: plan, scheduler, trials on Ray Tune, its run in MLflow.

    from pipelines.sweeps import run_sweep
    grid = run_sweep(["optim.lr=1e-3,3e-3", "--preset", "demo-rec", "--search", "grid", "--num-workers", "1"]).results

`pipelines.tune` is its command.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.sweeps.running import Done

TALKERS = ("ray.tune", "ray.tune.search", "optuna", "hpbandster")
"""Loggers that are silent while a sweep runs. Afterwards they are as they were."""


def run_sweep(words: Sequence[str]) -> Done:
    """Begin or resume a sweep by the words of `pipelines.tune`; its ResultGrid is in ``.results``. Raises UserError."""
    from pipelines.cluster import ray_session
    from pipelines.sweeps.checks import read_and_check

    ray_session.set_environment()  # before the checks, some of which import Ray
    levels = {logger: logger.level for logger in map(logging.getLogger, TALKERS)}
    try:
        config, domains = read_and_check(words)
        from pipelines.sweeps.running import begin_or_resume  # imports Ray: only after the checks that need none

        return begin_or_resume(config, domains, words)
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
