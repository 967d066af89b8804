"""How many trials of a sweep fit at once, by what their workers take (--placement.*) and what the machines have.

at_once, use_gpu = room_for_trials(config)          # of the Ray session that was started; a UserError where not even one trial does
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_prep.errors import UserError
from pipelines.cluster import ray_session
from pipelines.sweeps.command import SweepConfig


def room_for_trials(config: SweepConfig) -> tuple[int, bool]:
    """How many trials fit at once, and whether they use GPUs. Raises UserError when not even one does."""
    machines = [there for _, there in ray_session.free_resources()]
    workers, placement = config.train.workers[0], config.train.placement
    gpus = sum(machine.get("GPU", 0) for machine in machines)
    use_gpu = config.train.uses_gpu(gpus)
    worker = placement.worker(use_gpu)
    most = trials_at_once(machines, worker, workers, apart=placement.strategy == "strict-spread")
    has = {name: sum(machine.get(name, 0) for machine in machines) for name in worker}
    if config.num_cpus:
        has["CPU"] = min(has["CPU"], config.num_cpus)
        most = min(most, whole(has["CPU"] / (workers * worker["CPU"])))
    each = f"{workers} worker{'s' if workers > 1 else ''}"
    if most < 1:
        apart = ", no two on one machine" if placement.strategy == "strict-spread" else ""
        where = f" on {len(machines)} machines" if len(machines) > 1 else ""
        raise UserError(
            f"a trial takes {told({name: workers * amount for name, amount in worker.items()})} for its {each}{apart}, and there "
            f"{'is' if has['CPU'] == 1 else 'are'} {told(has)}{where}: it could never start; lower --num-workers or "
            "--placement.cpus"
        )
    at_once = min(most, config.concurrent or most)
    print(
        f"  at once {at_once} trial{'s' if at_once > 1 else ''} of {each} of {told(worker)} each: {told(has)} hold {most}",
        flush=True,
    )
    return at_once, use_gpu


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
