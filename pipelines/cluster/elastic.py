"""Training on a changing number of Ray Train workers. When one dies or there is room for more, all restart from the newest
checkpoint, as many as there is room for.

    train_on_ray(config, stop, on_trained, first_step)          # raises Stopped where it was asked to stop

Ray Train's own `ScalingConfig(num_workers=(1, 4))` divides what machines *have* by what a worker takes; it ignores other programs
and the placement (Ray 2.60). After a death, a run with strict-spread stood still for good, and a healthy one was ended for a CPU
that another program had. And its FailureConfig retries a user's error, and counts all deaths of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import xxhash

from common.errors import UserError
from common.places import Place
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError
from pipelines.cluster import ray_session, readiness
from pipelines.cluster.ray_train import cause_of, first_line, reservations, run_workers
from pipelines.config.run import TrainConfig
from pipelines.terminal import cli
from pipelines.tracking import Tracker
from pipelines.training.progress import messages_into_log
from pipelines.training.stopping import Stop, Stopped
from pipelines.training.watchdog import hang_file
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World

RESIZE = "resize"
"""Name of the file that asks workers to save and leave, so that more of them can start. It is not `stop`, so that a person's
request to stop meanwhile is not lost."""
SETTLED_SECONDS = 3.0
MAX_SECONDS = 20.0
"""After a death, workers are counted once the room has not changed for SETTLED_SECONDS, or after MAX_SECONDS at the latest."""
GROW_SECONDS = 15.0
"""Seconds between checks for room for more workers. The run grows after two checks in a row that find room."""
WAIT_SECONDS = 20.0
"""Seconds between messages that the run waits for room."""


def train_on_ray(
    config: TrainConfig, stop: Stop, on_trained: Callable[[TrainConfig, Tracker], None], first_step: int
) -> None:
    """Train on Ray Train workers from the ``first_step`` up to the last. Raises Stopped, RayLost, or a worker's error: a user's at
    once, any other after more than `max_failures` in a row without a new checkpoint.
    """
    ray_session.start(num_cpus=math.ceil(config.workers[-1] * config.placement.cpus), log_to_driver=False)
    import ray

    use_gpu = config.uses_gpu(ray.cluster_resources().get("GPU", 0))
    check_machines(config, use_gpu)
    run = RunFolder.of(config)
    failures = 0  # in a row without a new checkpoint in between
    damaged = run.beyond(first_step)
    resize = Stop(run.place, RESIZE)
    scratch = scratch_of(config)
    scratch.delete()
    with stop.on_signals():  # after Ray has set its own handlers
        for attempt in itertools.count():
            resize.clear()
            hang_file(run).delete()  # an attempt that ends before its loop would leave the old one
            before = run.newest_step(damaged)
            error = train_once(config, use_gpu, attempt, stop, resize, on_trained)
            newest = run.newest_step(damaged)
            asked_to_stop = stop.asked()
            if error is None:
                if asked_to_stop or newest >= config.steps or not resize.asked():
                    break
                print("there is room for more workers: starting again", flush=True)
                continue
            failures = 1 if newest > before else failures + 1
            # A user's error would come again. A save that fails while the run stops is not tried again.
            final = cause_of(error, (UserError, SaveError) if asked_to_stop else UserError)
            if final:
                raise final
            if asked_to_stop:
                print(f"{why(run, error)}: it was asked to stop", file=sys.stderr, flush=True)
                break
            if failures > config.max_failures:
                raise error
            begin = "the newest checkpoint" if newest else "the first step"
            print(f"{why(run, error)}: starting again from {begin}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # a bucket that does not answer must not hide how the run ended
        resize.clear()
        scratch.delete()
    step = run.newest_step(damaged)
    if step < config.steps:
        raise Stopped(step)


def check_machines(config: TrainConfig, use_gpu: bool) -> None:
    """Raise UserError where the machines cannot train this run. Lack of room on a cluster is no error: an autoscaler may act."""
    machines = ray_session.machines()
    if not ray_session.cluster_address():
        if config.use_gpu == "yes" and not any(there.get("GPU") for there in machines):
            raise UserError(
                "use_gpu is yes, and Ray finds no GPU here: choose --use-gpu auto, or fix the CUDA installation"
            )
        fitting = sum(config.placement.fits(there, use_gpu) for there in machines)
        if fitting < config.workers[0]:  # and no autoscaler makes more
            raise UserError(
                f"this machine has room for {fitting} of {config.workers[0]} workers of "
                f"{readiness.worker_resources(config, use_gpu)}: lower --num-workers, or change --placement"
            )
    elif machines[1:]:
        complaints = readiness.check(config, ray_session.nodes(), check_room=False)
        if complaints:
            raise UserError("; and ".join(complaints))


def ascii_name(run: str) -> str:
    """An ASCII name of a run for Ray Train, which uses it as the tag of a metric."""
    if run.isascii():
        return run
    return f"{run.encode('ascii', 'replace').decode().replace('?', '-')}-{xxhash.xxh3_64_hexdigest(run.encode())[:8]}"


def train_once(
    config: TrainConfig,
    use_gpu: bool,
    attempt: int,
    stop: Stop,
    resize: Stop,
    on_trained: Callable[[TrainConfig, Tracker], None],
) -> BaseException | None:
    """Train on as many workers as there is room for. Meanwhile pass on a request to stop, and ask the workers to leave when there
    is room for more. Returns the error that ended training; None without one, also if asked to stop before a worker had room.
    """
    workers = workers_to_start(config, use_gpu, settle=attempt > 0)
    scratch = scratch_of(config)
    scratch.make_folder()
    begun = scratch / f"begun-{attempt}"
    arguments = {"config": config, "begun": begun, "on_trained": on_trained}
    name = f"{ascii_name(config.run)}-{attempt}"
    ended = []

    def run_attempt() -> None:
        ended.append(run_workers(worker(), arguments, workers, config.placement, use_gpu, scratch, name))

    thread = threading.Thread(target=run_attempt, daemon=True)  # not in the main thread, where Ray would handle Ctrl-C
    thread.start()
    ray_watch = ray_session.Watch()
    reminder = Timer(WAIT_SECONDS)
    growth = Timer(GROW_SECONDS)
    room_before = 0
    passed_on = False
    while thread.is_alive():
        thread.join(0.2)
        ray_answers = ray_watch.check()
        with contextlib.suppress(OSError):  # a bucket that does not answer is asked again
            if stop.asked() and not begun.exists():
                return None  # the thread that waits for room ends with this process
            if stop.signalled and not passed_on:
                stop.ask()
                passed_on = True
            if not ray_answers:  # a Ray that has died answers no question; it ends this process after a minute
                continue
            if reminder.due() and not begun.exists() and reservations("PENDING"):
                each = readiness.worker_resources(config, use_gpu)
                print(f"waiting for room for {workers} workers of {each}", flush=True)
            if workers < config.workers[-1] and growth.due() and not stop.asked():
                room_now = room(config, use_gpu, growing=True)
                if room_before > 0 and room_now > 0:
                    resize.ask()
                room_before = room_now
    return ended[0]


class Timer:
    """Says when it is time again to do something, every so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def due(self) -> bool:
        """Whether the seconds are over; if so they begin anew."""
        now = time.monotonic()
        if now - self._began <= self._seconds:
            return False
        self._began = now
        return True


def worker() -> Callable[[dict[str, Any]], None]:
    """The function that each worker runs. It is defined inside, so that Ray sends its code."""

    def train(arguments: dict[str, Any]) -> None:
        from ray.train.torch import get_device

        logging.disable(logging.INFO)  # Ray's messages; ours are printed
        config: TrainConfig = arguments["config"]
        run = RunFolder.of(config)
        world = World.current(get_device())
        asked = [Stop(run.place).asked, Stop(run.place, RESIZE).asked]
        if world.rank == 0:
            arguments["begun"].write_atomically(b"")
        with messages_into_log(run, world.rank), contextlib.suppress(Stopped):
            train_as_worker(config, world, lambda: any([each() for each in asked]), arguments["on_trained"])

    return train


def workers_to_start(config: TrainConfig, use_gpu: bool, settle: bool) -> int:
    """Number of workers to start: as many as the cluster has room for now, within the run's limits. If it has no room for the least
    number, that number is requested, so that an autoscaler reacts.
    """
    least = config.workers[0]
    most = config.workers[-1]
    if least == most:
        return least
    free = settled_room(config, use_gpu) if settle else room(config, use_gpu)
    number = max(least, min(free, most))
    print(f"on {number} workers: the cluster has room for {free}", flush=True)
    return number


def settled_room(config: TrainConfig, use_gpu: bool) -> int:
    """The room once it has not changed for `SETTLED_SECONDS`, or after `MAX_SECONDS`."""
    free = room(config, use_gpu)
    began = time.monotonic()
    changed = began
    while time.monotonic() - changed < SETTLED_SECONDS and time.monotonic() - began < MAX_SECONDS:
        time.sleep(0.2)
        found = room(config, use_gpu)
        if found != free:
            free = found
            changed = time.monotonic()
    return free


def room(config: TrainConfig, use_gpu: bool, growing: bool = False) -> int:
    """How many more workers the machines of the cluster could hold, by what is free on each.

    With strict-spread, a run that grows counts only machines without a CPU in use, since the others may hold its own workers.
    """
    untouched = growing and config.placement.strategy == "strict-spread"
    return sum(
        config.placement.fits(free, use_gpu)
        for free, there in ray_session.free_resources()
        if not (untouched and free.get("CPU", 0) < there.get("CPU", 0))
    )


def scratch_of(config: TrainConfig) -> Place:
    """Folder of Ray Train's own files. Our checkpoints are beside it and do not need them."""
    return RunFolder.of(config).place / ".ray"


def why(run: RunFolder, error: BaseException) -> str:
    """Why the workers ended, in one line."""
    with contextlib.suppress(OSError):
        return f"the workers hung ({hang_file(run).read_bytes().decode()})"
    return f"a worker died ({first_line(error)})"


def end_without_ray(config: TrainConfig, lost: ray_session.RayLost, asked_to_stop: bool) -> NoReturn:
    """Print what to do when Ray itself has died, and end this process."""
    run = RunFolder.of(config)
    step = run.newest_step()
    saved = f"is saved at least up to step {step:,}" if step else "has no checkpoint yet"
    then = "resumes there" if step else "begins anew"
    ray_session.end_process(lost, f"{cli.shown(run.place.recorded)} {saved}", then, asked_to_stop)
