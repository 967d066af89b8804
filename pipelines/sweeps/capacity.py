"""How many trials of a sweep fit at once, by what their workers take (--placement.*) and what the machines have.

capacity = TrialCapacity(config)             # in the Ray session that was started; a UserError where not even one trial fits
capacity.at_once()                  # asked again later: machines come and go
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
"""Shortest time between two counts of the machines."""


class TrialCapacity:
    """The Ray session's resources for a sweep's trials, counted again as machines come and go."""

    def __init__(self, config: SweepConfig) -> None:
        """Count the resources, and print them. Raises UserError where not even one trial fits."""
        self._config = config
        run = config.train
        self.use_gpu = run.uses_gpu(sum(machine.get("GPU", 0) for machine in ray_session.machines()))
        self._worker = run.placement.worker(self.use_gpu)
        self._apart = run.placement.strategy == "strict-spread"
        most, has = self._count()
        workers = run.workers[0]
        each = counted(workers, "worker")
        if most < 1:
            takes = label({name: workers * amount for name, amount in self._worker.items()})
            apart = ", no two on one machine" if self._apart else ""
            machines = len(ray_session.machines())
            where = f" on {machines} machines" if machines > 1 else ""
            raise UserError(
                f"a trial takes {takes} for its {each}{apart}, and there {'is' if has['CPU'] == 1 else 'are'} {label(has)}{where}: "
                "it could never start; lower --num-workers or --placement.cpus"
            )
        hold = "holds" if label(has).startswith("1 ") else "hold"
        print(
            f"  at once {counted(self._at_once, 'trial')} of {each} of {label(self._worker)} each: {label(has)} {hold} {most}",
            flush=True,
        )

    def at_once(self) -> int:
        """How many trials fit at once; at least one, which waits for machines if they have gone."""
        if time.monotonic() - self._counted > COUNT_SECONDS:
            before = self._at_once
            _, has = self._count()
            if self._at_once != before:
                what = "come" if self._at_once > before else "gone"
                print(f"machines have {what}: {label(has)}, at once {counted(self._at_once, 'trial')}", flush=True)
        return self._at_once

    def _count(self) -> tuple[int, dict[str, float]]:
        """How many trials the machines hold, and their totals of the resources that a worker takes."""
        workers = self._config.train.workers[0]
        machines = ray_session.machines()
        most = trials_at_once(machines, self._worker, workers, self._apart)
        has = {name: sum(machine.get(name, 0) for machine in machines) for name in self._worker}
        if self._config.num_cpus:
            has["CPU"] = min(has["CPU"], self._config.num_cpus)
            most = min(most, times(has, {"CPU": workers * self._worker["CPU"]}))
        self._counted = time.monotonic()
        self._at_once = max(min(most, self._config.most_at_once or most), 1)
        return most, has


def trials_at_once(
    machines: Sequence[Mapping[str, float]], worker: Mapping[str, float], workers: int, apart: bool
) -> int:
    """How many trials of ``workers`` workers the machines hold. ``worker``: resources of one; ``apart``: each on another
    machine."""
    fits = [times(machine, worker) for machine in machines]
    if not apart:
        return sum(fits) // workers
    most = 0
    while sum(min(number, most + 1) for number in fits) >= (most + 1) * workers:
        most += 1
    return most


def label(resources: Mapping[str, float]) -> str:
    """``{"CPU": 2, "GPU": 0.5}`` as "2 CPUs and 0.5 GPU"."""
    return " and ".join(
        f"{n:g} {name}{'s' if n > 1 and name in ('CPU', 'GPU') else ''}" for name, n in resources.items()
    )
