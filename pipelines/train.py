"""Train a model on a prepared corpus: on Ray Train workers, or in this process. Repeating the command resumes the run.

    python -m pipelines.train demo-rec
    torchrun --nproc-per-node 2 -m pipelines.train demo-rec --num-workers 0
    python -m pipelines.train small-rec --data.corpus text --data.store runs/store --run mine --num-workers 2
    python -m pipelines.train runs/sweep/best.json        # what a sweep found, or any run's config.json, in place of a preset

Everything of a run is in `<root>/<run>`: config.json, metrics.jsonl, checkpoints/, logs/. The curves are in MLflow (`make ui`).
Exit status: 0 trained; 1 it has failed, as its traceback says; 2 a user's error; 75 asked to stop (by SIGTERM, Ctrl-C or a file
`stop` in the run's folder) and saved: the same command goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shlex
import sys
import threading
import time
from typing import Any

import torch

from data_prep.errors import UserError
from data_prep.manifest import write_atomically
from data_prep.store import SegmentStore
from pipelines.checkpoints.lock import hold
from pipelines.checkpoints.run_file import presets_with
from pipelines.checkpoints.run_place import RECORDS, RunPlace
from pipelines.checkpoints.saving import SaveError
from pipelines.cluster import ray_train, readiness
from pipelines.cluster.ray_train import first_line
from pipelines.config.run import TrainConfig, to_json
from pipelines.inference.registering import register_best
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.progress import messages_into, show_progress, worker_log
from pipelines.training.stopping import RESIZE, STOPPED_STATUS, RayLost, Stop, Stopped
from pipelines.training.watchdog import hang_file
from pipelines.training.worker import Run, open_run, start_tracker, train_as_worker
from pipelines.training.world import World, join_torchrun

SETTLED_SECONDS, MOST_SECONDS = 3.0, 20.0
"""After a death: what is free must have stayed the same for so long, or so long have passed, before workers are counted."""
GROW_SECONDS = 15.0
"""How often a run with fewer workers than it may have looks for room; twice in a row, and it grows."""


def describe(config: TrainConfig, run: Run) -> int:
    """Say what will be done. Returns the number of parameters."""
    totals, data = run.train_store.manifest.totals, config.data
    parameters = config.model.costs(run.train_store.vocab_size).parameters
    tokens = config.steps * config.tokens_per_step
    numbers = [str(number) for number in config.workers]
    where = "in this process" if numbers == ["0"] else f"on {' or '.join(numbers)} Ray Train workers"
    print(
        f"training {config.run}: {config.model.name}, {parameters / 1e6:.2f}M parameters, {where}\n"
        f"  data    {cli.shown(run.train_store.folder)}: {totals.documents:,} documents, {totals.tokens:,} tokens, "
        f"vocabulary {run.train_store.vocab_size:,}\n"
        f"  steps   {config.steps:,} of {data.lanes} lanes × {data.segment_length:,} tokens "
        f"= {tokens:,} tokens, {tokens / max(totals.tokens, 1):.2f} epochs\n"
        f"  into    {_shown(config)}",
        flush=True,
    )
    if not RunPlace.of(config).is_local and config.tracking.backend == "mlflow" and not config.tracking.uri:
        print(
            f"  MLflow    stays on the machine of rank 0, in {RunPlace.of(config).folder.parent}: --tracking.uri names a server",
            flush=True,
        )
    return parameters


def train_on_ray(config: TrainConfig, stop: Stop) -> None:
    """Train on Ray Train workers. When one dies, or there is room for more, start them again from the newest checkpoint, as
    many as there is room for. Raises Stopped.
    """
    from pipelines.cluster import ray_session

    ray_session.start(num_cpus=math.ceil(config.workers[-1] * config.placement.cpus), log_to_driver=False)
    import ray

    check_machines(config)
    gpus = ray.cluster_resources().get("GPU", 0)
    use_gpu = config.use_gpu == "yes" or (
        config.use_gpu == "auto" and gpus >= config.workers[0] * config.placement.gpus
    )
    scratch = (
        RunPlace.of(config).place / ".ray"
    )  # Ray Train's own notes; our checkpoints are beside it and do not need them
    scratch.delete()
    resize = Stop(RunPlace.of(config).place, RESIZE)
    attempt = failures = 0
    with stop.on_signals():  # after Ray's own
        while not stop.asked():
            resize.clear()
            workers = as_many_as_fit(config, use_gpu, settled=attempt > 0)
            before, error = RunPlace.of(config).newest_step(), fit(config, workers, use_gpu, attempt, stop, resize)
            attempt += 1
            newest = RunPlace.of(config).newest_step()
            if error is not None:
                failures = 1 if newest > before else failures + 1
                final = ray_train.cause_of(error, (UserError, SaveError) if stop.asked() else UserError)
                if final or (failures > config.max_failures and not stop.asked()):
                    raise final or error
                then = "it was asked to stop" if stop.asked() else "starting again from the newest checkpoint"
                print(f"{why(config, error)}: {then}", file=sys.stderr, flush=True)
            elif newest >= config.steps or not resize.asked():
                break
            elif not stop.asked():
                print("there is room for more workers: starting again", flush=True)
    with contextlib.suppress(OSError):  # a bucket that is silent for once hides nothing of what has happened
        resize.clear()
        scratch.delete()
    if (step := RunPlace.of(config).newest_step()) < config.steps:
        raise Stopped(step)


def check_machines(config: TrainConfig) -> None:
    """On a cluster of several machines: raise ValueError saying what keeps them from training the run together."""
    from pipelines.cluster import ray_session

    if not ray_session.cluster_address() or len(nodes := ray_session.nodes()) < 2:
        return
    vocab_size = SegmentStore.open(config.data.store, config.data.corpus, "train").vocab_size
    complaints = readiness.check(config, nodes, vocab_size, room=False)  # an autoscaler may make room yet
    if complaints:
        raise UserError("; and ".join(complaints))


def fit(
    config: TrainConfig, workers: int, use_gpu: bool, attempt: int, stop: Stop, resize: Stop
) -> BaseException | None:
    """Train on so many workers, and meanwhile pass on to them that the run was asked to stop or may grow. Returns what ended it;
    None too where it was asked to stop before there was room for a worker.
    """
    from pipelines.cluster import ray_session

    def worker(arguments: dict[str, Any]) -> None:
        from ray.train.torch import get_device

        logging.disable(logging.INFO)  # Ray says every report; what we say is printed
        config: TrainConfig = arguments["config"]
        world = World.current(get_device())
        RunPlace.of(config).fetch(f"logs/worker-{world.rank}.log")  # to go on with it
        asked = [Stop(RunPlace.of(config).place).asked, Stop(RunPlace.of(config).place, RESIZE).asked]
        if world.rank == 0:
            arguments["begun"].write_atomically(b"")
        with messages_into(worker_log(RunPlace.of(config).folder, world.rank)), contextlib.suppress(Stopped):
            train_as_worker(config, world, lambda: any([each() for each in asked]), register_best)

    scratch = RunPlace.of(config).place / ".ray"
    scratch.make_folder()
    filesystem, begun = (
        None if RunPlace.of(config).is_local else RunPlace.of(config).place.filesystem,
        scratch / f"begun-{attempt}",
    )
    arguments = {"config": config, "begun": begun}
    ended: list[BaseException | None] = []

    def run() -> None:
        name = f"{config.run}-{attempt}"
        ended.append(
            ray_train.fit(worker, arguments, workers, config.placement, use_gpu, name, scratch.path, filesystem)
        )

    thread = threading.Thread(target=run, daemon=True)  # not this one: Ray would take Ctrl-C for itself
    thread.start()
    looked, seen, watch, passed_on = time.monotonic(), workers, ray_session.Watch(), False
    while thread.is_alive():
        thread.join(0.2)
        watch.check()
        with contextlib.suppress(OSError):  # a bucket that is silent for once is asked again
            if stop.asked() and not begun.exists():
                return None  # what waits for room ends with this process
            if stop.signalled and not passed_on:
                stop.ask()
                passed_on = True
        if workers < config.workers[-1] and time.monotonic() - looked > GROW_SECONDS and not stop.asked():
            before, seen, looked = (
                seen,
                most_of(config, workers + room(config, use_gpu, growing=True)),
                time.monotonic(),
            )
            if min(before, seen) > workers:
                with contextlib.suppress(OSError):
                    resize.ask()
    return ended[0]


def as_many_as_fit(config: TrainConfig, use_gpu: bool, settled: bool) -> int:
    """The number of workers to start: of those that the run may have, the largest that the cluster has room for now. Where it has
    none for the least, that is asked for, so that an autoscaler hears of it.
    """
    if len(config.workers) == 1:
        return config.workers[0]
    free, since, began = room(config, use_gpu), time.monotonic(), time.monotonic()
    while settled and time.monotonic() - since < SETTLED_SECONDS and time.monotonic() - began < MOST_SECONDS:
        time.sleep(0.2)
        if (now := room(config, use_gpu)) != free:
            free, since = now, time.monotonic()
    number = most_of(config, free)
    print(f"on {number} workers: the cluster has room for {free}", flush=True)
    return number


def most_of(config: TrainConfig, free: int) -> int:
    return max((number for number in config.workers if number <= free), default=config.workers[0])


def room(config: TrainConfig, use_gpu: bool, growing: bool = False) -> int:
    """How many more workers the machines of the cluster could hold, by what is free on each.

    Where never two may stand on one, a run that grows counts only machines of which nothing is taken: the others may have its own.
    """
    from pipelines.cluster import ray_session

    worker, alone = config.placement.worker(use_gpu), config.placement.strategy == "strict-spread"
    total = 0
    for free, there in ray_session.free_resources():
        fits = int(min(free.get(name, 0) / amount for name, amount in worker.items()))
        if alone:
            fits = 0 if growing and free.get("CPU", 0) < there.get("CPU", 0) else min(fits, 1)
        total += fits
    return total


def why(config: TrainConfig, error: BaseException) -> str:
    """Why the workers ended, in one line."""
    with contextlib.suppress(OSError):
        return f"the workers hung ({hang_file(RunPlace.of(config)).read_bytes().decode()})"
    return f"a worker died ({first_line(error)})"


def main(argv: list[str]) -> int:
    config = cli.parse_preset(presets_with(PRESETS, argv), argv, description=(__doc__ or "").split("\n\n")[0]).located()
    if config.num_workers == 0 and int(os.environ.get("RANK", "0")) > 0:
        return train_beside(config)
    run = open_run(config)
    parameters = describe(config, run)
    if run.resume and run.resume.step >= config.steps:
        RunPlace.of(config).fetch(*RECORDS)
        tracker = start_tracker(config, run, run.resume.step)  # sends what an MLflow that was silent then has not got
        register_best(config, tracker)
        tracker.finish()
        RunPlace.of(config).publish(*RECORDS)
        print(f"nothing to do: {_shown(config)} has been trained to step {run.resume.step:,}\n{_next(config)}")
        return 0
    try:
        with hold(RunPlace.of(config).folder, "another training run"):
            start(config, run)
    except Stopped as stopped:
        print(
            f"stopped after step {stopped.step:,} of {config.steps:,}, which is saved: the same command goes on there"
        )
        return STOPPED_STATUS
    except RayLost as lost:
        return told_of(lost, config)
    print(f"trained {config.run} ({parameters / 1e6:.2f}M parameters) to step {config.steps:,}\n{_next(config)}")
    return 0


def told_of(lost: BaseException, config: TrainConfig) -> int:
    """Say what to do when Ray itself has died, and end this process: Ray would hold it for another minute."""
    from pipelines.cluster import ray_session

    step = RunPlace.of(config).newest_step()
    print(
        f"error: {lost}; {_shown(config)} is saved at least up to step {step:,}: start Ray again where it is a "
        "cluster's (`ray up`), and repeat the command, which goes on there",
        file=sys.stderr,
        flush=True,
    )
    ray_session.abandon()
    sys.stdout.flush()
    os._exit(1)


def train_beside(config: TrainConfig) -> int:
    """What torchrun's other processes do: the first one speaks for all."""
    run = open_run(config)
    if run.resume is None or run.resume.step < config.steps:
        try:
            train_here(config, Stop(RunPlace.of(config).place))
        except Stopped:
            return STOPPED_STATUS
    return 0


def start(config: TrainConfig, run: Run) -> None:
    """Train in this process or on Ray, showing progress."""
    write_atomically(RunPlace.of(config).folder / "config.json", json.dumps(to_json(config), indent=1).encode())
    RunPlace.of(config).publish("config.json")
    resume_step = run.resume.step if run.resume else 0
    stop = Stop(RunPlace.of(config).place)
    stop.clear()
    with show_progress(RunPlace.of(config).place, resume_step, config.steps):
        try:
            (train_here if config.num_workers == 0 else train_on_ray)(config, stop)
        finally:
            with contextlib.suppress(OSError):  # the next start clears it too, and what has happened here is to be told
                stop.clear()


def train_here(config: TrainConfig, stop: Stop) -> None:
    """Train in this process, or in those that torchrun has started."""
    use_gpu = config.use_gpu != "no" and torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if use_gpu else "cpu")
    join_torchrun(device)
    with stop.on_signals():
        train_as_worker(config, World.current(device), stop.asked, register_best)


def _shown(config: TrainConfig) -> str:
    return cli.shown(RunPlace.of(config).place.recorded)


def _next(config: TrainConfig) -> str:
    return (
        f"  result    {cli.shown(RunPlace.of(config).checkpoints.recorded)}\n"
        f"  evaluate  python -m pipelines.evaluate {shlex.quote(_shown(config))}\n"
        f"  look      make ui"
    )


if __name__ == "__main__":
    cli.run(main)
