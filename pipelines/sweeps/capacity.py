"""How many trials of a sweep fit at once, by what their workers take (--placement.*) and what the machines have.

room = Room.of(config)          # in the Ray session that was started; a UserError where not even one trial fits
room.at_once()                  # asked again later: machines come and go
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from data_prep.errors import UserError
from pipelines.cluster import ray_session
from pipelines.sweeps.command import SweepConfig

COUNT_SECONDS = 5.0
"""How often machines are counted."""


class Room:
    """What the Ray session has for a sweep's trials, counted again as machines come and go."""

    def __init__(self, config: SweepConfig, use_gpu: bool) -> None:
        self._config, self.use_gpu = config, use_gpu
        self._worker = config.train.placement.worker(use_gpu)
        self._counted, self._at_once = 0.0, 0

    @classmethod
    def of(cls, config: SweepConfig) -> Room:
        """Count it, and say what there is. Raises UserError where not even one trial fits."""
        machines = total_resources()
        room = cls(config, config.train.uses_gpu(sum(machine.get("GPU", 0) for machine in machines)))
        most, has = room._count(machines)
        workers, worker, placement = config.train.workers[0], room._worker, config.train.placement
        each = f"{workers} worker{'s' if workers > 1 else ''}"
        if most < 1:
            apart = ", no two on one machine" if placement.strategy == "strict-spread" else ""
            where = f" on {len(machines)} machines" if len(machines) > 1 else ""
            raise UserError(
                f"a trial takes {told({name: workers * amount for name, amount in worker.items()})} for its {each}{apart}, and "
                f"there {'is' if has['CPU'] == 1 else 'are'} {told(has)}{where}: it could never start; lower --num-workers or "
                "--placement.cpus"
            )
        print(
            f"  at once {trials(room._at_once)} of {each} of {told(worker)} each: {told(has)} hold {most}", flush=True
        )
        return room

    def at_once(self) -> int:
        """How many trials fit at once. Where machines have gone and none does, one, which waits for them."""
        if time.monotonic() - self._counted > COUNT_SECONDS:
            before, (_, has) = self._at_once, self._count(total_resources())
            if self._at_once != before:
                what = "come" if self._at_once > before else "gone"
                print(f"machines have {what}: {told(has)}, at once {trials(self._at_once)}", flush=True)
        return self._at_once

    def _count(self, machines: Sequence[Mapping[str, float]]) -> tuple[int, dict[str, float]]:
        """How many trials they hold, and what they have of what a worker takes."""
        config, workers = self._config, self._config.train.workers[0]
        most = trials_at_once(machines, self._worker, workers, apart=config.train.placement.strategy == "strict-spread")
        has = {name: sum(machine.get(name, 0) for machine in machines) for name in self._worker}
        if config.num_cpus:
            has["CPU"] = min(has["CPU"], config.num_cpus)
            most = min(most, whole(has["CPU"] / (workers * self._worker["CPU"])))
        self._counted, self._at_once = time.monotonic(), max(min(most, config.concurrent or most), 1)
        return most, has


def trials(count: int) -> str:
    return f"{count} trial{'s' if count > 1 else ''}"


def total_resources() -> list[dict[str, float]]:
    """Of each machine that is alive, in use or free."""
    return [there for _, there in ray_session.free_resources()]


def trials_at_once(
    machines: Sequence[Mapping[str, float]], worker: Mapping[str, float], workers: int, apart: bool
) -> int:
    """How many trials of so many workers machines hold, by what a worker takes; ``apart``: no two of a trial on one machine."""
    fits = [min(whole(machine.get(name, 0) / amount) for name, amount in worker.items()) for machine in machines]
    if not apart:
        return sum(fits) // workers
    most = 0
    while sum(min(number, most + 1) for number in fits) >= (most + 1) * workers:
        most += 1
    return most


def whole(number: float) -> int:
    """The integer below, where 0.3 / 0.1 is 3."""
    return int(number + 1e-9)


def told(resources: Mapping[str, float]) -> str:
    """``{"CPU": 2, "GPU": 0.5}`` as "2 CPUs and 0.5 GPU"."""
    return " and ".join(
        f"{n:g} {name}{'s' if n > 1 and name in ('CPU', 'GPU') else ''}" for name, n in resources.items()
    )
