"""The workers that train a sweep's trials: Ray Train runs, each of which takes one trial after another.

workers = TrialWorkers(folder, config, use_gpu=False, reuse=True)
workers.give(job)                                           # to workers that wait for one, or to new ones
for job, outcome, said, seconds in workers.ended(): ...
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.places import Place
from pipelines.checkpoints.run_place import RunPlace
from pipelines.cluster.ray_train import first_line, run_workers
from pipelines.config.run import TrainConfig
from pipelines.sweeps.scheduler import Job, Outcome
from pipelines.terminal import cli
from pipelines.training.progress import messages_into_log
from pipelines.training.stopping import Stop, Stopped
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World


class JobExchange:
    """An actor between the sweep and its workers: what they train next, and what came of it. Holds no CPU."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, int], Any] = {}
        self._ended: list[tuple[int, int, Outcome, str]] = []
        self._came = asyncio.Event()

    async def give(self, group: int, turn: int, job: tuple[TrainConfig, int] | None) -> None:
        self._jobs[group, turn] = job
        self._came.set()
        self._came = asyncio.Event()

    async def take(self, group: int, turn: int) -> tuple[TrainConfig, int] | None:
        """What a group trains in its turn, as soon as that is known; None: nothing more."""
        while (group, turn) not in self._jobs:
            await self._came.wait()
        return self._jobs[group, turn]

    async def end(self, group: int, turn: int, outcome: Outcome, said: str) -> None:
        self._ended.append((group, turn, outcome, said))

    async def ended(self) -> list[tuple[int, int, Outcome, str]]:
        """What has ended since the last call."""
        found, self._ended = self._ended, []
        return found


@dataclass
class WorkerGroup:
    """The workers of one Ray Train run, which train one trial after another."""

    number: int
    thread: threading.Thread | None = None
    turn: int = -1
    job: Job | None = None
    began: float = 0.0
    leaving: bool = False
    error: BaseException | None = None


class TrialWorkers:
    """The groups of a sweep."""

    def __init__(self, folder: Path, config: TrainConfig, use_gpu: bool, reuse: bool) -> None:
        import ray

        self._get, self._folder, self._config, self._use_gpu, self._reuse = ray.get, folder, config, use_gpu, reuse
        self._exchange: Any = ray.remote(num_cpus=0)(JobExchange).remote()
        self._groups: dict[int, WorkerGroup] = {}
        self._numbers = itertools.count()
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def busy(self) -> list[Job]:
        """What is being trained."""
        return [group.job for group in self._groups.values() if group.job]

    def give(self, job: Job) -> None:
        """Have a trial trained, by workers that wait for one, or by new ones."""
        group = next((group for group in self._groups.values() if group.job is None and self._takes(group)), None)
        if group is None:
            group = WorkerGroup(next(self._numbers))
            group.thread = threading.Thread(target=self._run_workers, args=(group,), daemon=True)
            self._groups[group.number] = group
            group.thread.start()
        group.turn, group.job, group.began = group.turn + 1, job, time.monotonic()
        self._get(self._exchange.give.remote(group.number, group.turn, (job.run, job.until)))

    def ended(self) -> list[tuple[Job, Outcome, str, float]]:
        """Trials that their workers have let go of: how, a sentence, and the seconds that it took."""
        dead = [group for group in self._groups.values() if not self._lives(group)]
        found = []
        for number, turn, outcome, said in self._get(self._exchange.ended.remote()):
            group = self._groups.get(number)
            if group and group.job and group.turn == turn:
                found.append((group.job, outcome, said, time.monotonic() - group.began))
                group.job = None
                if not self._reuse:
                    self._dismiss(group)
        for group in dead:
            del self._groups[group.number]
            if group.job:
                error = group.error or RuntimeError("its workers ended without a word")
                outcome: Outcome = "failed" if isinstance(error, UserError) else "died"
                said = cli.sentence(error) if outcome == "failed" else f"a worker died ({first_line(error)})"
                found.append((group.job, outcome, said, time.monotonic() - group.began))
        return found

    def close(self) -> None:
        """Let all workers go."""
        for group in list(self._groups.values()):
            if group.job is None and self._takes(group):
                self._dismiss(group)
        for group in self._groups.values():
            if group.thread:
                group.thread.join(60 if group.job is None else 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dismiss(self, group: WorkerGroup) -> None:
        group.turn, group.leaving = group.turn + 1, True
        self._get(self._exchange.give.remote(group.number, group.turn, None))

    def _takes(self, group: WorkerGroup) -> bool:
        return self._lives(group) and not group.leaving

    def _lives(self, group: WorkerGroup) -> bool:
        return group.thread is not None and group.thread.is_alive()

    def _run_workers(self, group: WorkerGroup) -> None:
        arguments, name = {"exchange": self._exchange, "group": group.number}, f"slot-{group.number}"
        workers, placement, notes = self._config.workers[0], self._config.placement, Place.parse(self._folder)
        group.error = run_workers(serve, arguments, workers, placement, self._use_gpu, notes, name)


def serve(arguments: dict[str, Any]) -> None:
    """What each worker of a group does: train one trial after another."""
    import ray
    import torch
    from ray.train.torch import get_device

    logging.disable(logging.INFO)
    exchange, group = arguments["exchange"], arguments["group"]
    for turn in itertools.count():
        job = ray.get(exchange.take.remote(group, turn))
        if job is None:
            return
        config, until = job
        world = World.current(get_device())
        outcome, said = train_trial(config, until, world)
        if world.rank == 0:
            ray.get(exchange.end.remote(group, turn, outcome, said))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train_trial(config: TrainConfig, until: int, world: World) -> tuple[Outcome, str]:
    """Train one trial up to a step. Where several workers train it, an error of one ends them all."""
    run = RunPlace.of(config)
    asked = Stop(run.folder).asked
    if until < config.steps:
        asked = StopAfter(asked, until - run.newest_step())
    with messages_into_log(run.folder, world.rank):
        try:
            train_as_worker(config, world, asked)
        except Stopped:
            return "stopped", ""
        except UserError as error:
            if world.size > 1:
                raise
            return "failed", cli.sentence(error)
    return "finished", ""


class StopAfter:
    """Asks to stop after so many steps: the loop asks it once in each."""

    def __init__(self, asked: Any, steps: int) -> None:
        self._asked, self._left = asked, steps

    def __call__(self) -> bool:
        self._left -= 1
        return self._left <= 0 or self._asked()
