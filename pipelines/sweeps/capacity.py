"""How many trials of a sweep fit at once, by what their workers take (--placement.*) and what the machines have.

room = Room(config)             # in the Ray session that was started; a UserError where not even one trial fits
room.at_once()                  # asked again later: machines come and go
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from common.errors import UserError
from pipelines.cluster import ray_session
from pipelines.config.parts import times
from pipelines.sweeps.command import SweepConfig
from pipelines.terminal.tables import counted

COUNT_SECONDS = 5.0
"""How often machines are counted."""


class Room:
    """What the Ray session has for a sweep's trials, counted again as machines come and go."""

    def __init__(self, config: SweepConfig) -> None:
        """Count it, and say what there is. Raises UserError where not even one trial fits."""
        self._config, run, machines = config, config.train, ray_session.free_resources()
        self.use_gpu = run.uses_gpu(sum(there.get("GPU", 0) for _, there in machines))
        self._worker = run.placement.worker(self.use_gpu)
        self._count()
        workers, has = run.workers[0], self._has
        each = counted(workers, "worker")
        if self._most < 1:
            apart = ", no two on one machine" if config.train.placement.strategy == "strict-spread" else ""
            where = f" on {self._machines} machines" if self._machines > 1 else ""
            raise UserError(
                f"a trial takes {told({name: workers * amount for name, amount in self._worker.items()})} for its {each}{apart}, "
                f"and there {'is' if has['CPU'] == 1 else 'are'} {told(has)}{where}: it could never start; lower --num-workers "
                "or --placement.cpus"
            )
        print(
            f"  at once {counted(self._at_once, 'trial')} of {each} of {told(self._worker)} each: {told(has)} hold {self._most}",
            flush=True,
        )

    def at_once(self) -> int:
        """How many trials fit at once. Where machines have gone and none does, one, which waits for them."""
        if time.monotonic() - self._counted > COUNT_SECONDS:
            before = self._at_once
            self._count()
            if self._at_once != before:
                what = "come" if self._at_once > before else "gone"
                print(f"machines have {what}: {told(self._has)}, at once {counted(self._at_once, 'trial')}", flush=True)
        return self._at_once

    def _count(self) -> None:
        """How many trials the machines hold, and what they have of what a worker takes."""
        config, workers = self._config, self._config.train.workers[0]
        machines = [there for _, there in ray_session.free_resources()]
        most = trials_at_once(machines, self._worker, workers, apart=config.train.placement.strategy == "strict-spread")
        self._has = {name: sum(machine.get(name, 0) for machine in machines) for name in self._worker}
        if config.num_cpus:
            self._has["CPU"] = min(self._has["CPU"], config.num_cpus)
            most = min(most, times(self._has, {"CPU": workers * self._worker["CPU"]}))
        self._most, self._machines, self._counted = most, len(machines), time.monotonic()
        self._at_once = max(min(most, config.concurrent or most), 1)


def trials_at_once(
    machines: Sequence[Mapping[str, float]], worker: Mapping[str, float], workers: int, apart: bool
) -> int:
    """How many trials of so many workers machines hold, by what a worker takes; ``apart``: no two of a trial on one machine."""
    fits = [times(machine, worker) for machine in machines]
    if not apart:
        return sum(fits) // workers
    most = 0
    while sum(min(number, most + 1) for number in fits) >= (most + 1) * workers:
        most += 1
    return most


def told(resources: Mapping[str, float]) -> str:
    """``{"CPU": 2, "GPU": 0.5}`` as "2 CPUs and 0.5 GPU"."""
    return " and ".join(
        f"{n:g} {name}{'s' if n > 1 and name in ('CPU', 'GPU') else ''}" for name, n in resources.items()
    )
