"""A sweep's trials as Ray Tune runs them: an actor that takes one trial after another, of which each `step()` is one validation.

    tune.Tuner(Trial, …)                # with configs of {"trial": "003", "run": TrainConfig, "metric": …, "use_gpu": False}

The actor is rank 0 of its trial, and so the whole of a trial of one worker; further ranks are actors beside it in the placement
group that Tune has reserved for all of them at once. All keep their processes from trial to trial. The loop runs in a thread, which
waits where a figure is due until the next `step()`, or until it is to save and leave. Our checkpoints stay where a run has them;
Tune's hold a pointer to them.

Measured against Ray Train's workers kept alive inside the actor, two trials of one worker at once: 4 processes and 975 MB, in place
of 17 and 2.9 GB, and the first trial begins after half the time. Where a rank dies, its actor goes with it, as among those that
have joined none can be replaced; the trial goes on from its newest checkpoint on new ones, and the others keep theirs.
"""

from __future__ import annotations

import gc
import json
import logging
import queue
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.errors import UserError
from common.lock import Locked
from common.places import Place
from pipelines.checkpoints.run_place import RunPlace
from pipelines.checkpoints.saving import SaveError
from pipelines.config.run import TrainConfig
from pipelines.sweeps.scheduler import Outcome
from pipelines.terminal import cli
from pipelines.tracking.client import TrackingError
from pipelines.training.progress import Tail, messages_into_log
from pipelines.training.stopping import Stop, Stopped
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World, join

LOOK_SECONDS = 0.5
"""How often a trial looks whether its other ranks still live."""
END_SECONDS = 30.0
"""How long a loop may take to notice that the other ranks have gone."""


class Trial(tune.Trainable):
    """A trial, and those after it."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """What all its ranks take."""
        run: TrainConfig = config["run"]
        bundles = [run.placement.worker(config["use_gpu"])] * run.workers[0]
        return PlacementGroupFactory(bundles, strategy=run.placement.strategy.replace("-", "_").upper())

    def setup(self, config: dict[str, Any]) -> None:
        logging.disable(logging.INFO)  # of Ray; what we say is printed
        self._peers: list[Any] = []
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin a trial, or go on with it."""
        free_memory()
        self._run: TrainConfig = new_config["run"]
        size, device = self._run.workers[0], torch.device("cuda:0" if new_config["use_gpu"] else "cpu")
        if size > 1 and not self._peers:
            self._gather(size, device)
        self._others = [peer.train.remote(self._run) for peer in self._peers]
        self._loop = TrialLoop(self._run, new_config["metric"], device)
        return True

    def _gather(self, size: int, device: torch.device) -> None:
        """Start the other ranks, and form a process group with them."""
        group: Any = ray.util.get_current_placement_group()
        resources = self._run.placement.worker(device.type == "cuda")
        options = {"num_cpus": resources.pop("CPU"), "num_gpus": resources.pop("GPU", 0), "resources": resources}
        for index in range(1, size):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            self._peers.append(ray.remote(TrialRank).options(**options, scheduling_strategy=place).remote())
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
        where = {"init_method": address, "world_size": size}
        joined = [peer.join.remote(device, rank=rank, **where) for rank, peer in enumerate(self._peers, start=1)]
        failed: list[BaseException] = []

        def join_them() -> None:
            try:
                join(device, rank=0, **where)
            except BaseException as error:
                failed.append(error)

        own = threading.Thread(target=join_them, daemon=True)
        own.start()
        while own.is_alive():  # torch waits half an hour for one that has died
            ray.get(ray.wait(joined, num_returns=len(joined), timeout=LOOK_SECONDS)[0])
        if failed:
            raise failed[0]
        ray.get(joined)

    def step(self) -> dict[str, Any]:
        """Train up to the next figure, or to the end. Raises what has ended a rank, unless it was a user's error."""
        self._loop.go_on()
        try:
            while (result := self._loop.result(LOOK_SECONDS)) is None:
                if self._others:
                    ray.get(ray.wait(self._others, num_returns=len(self._others), timeout=0)[0])
        except UserError as error:
            return self._ended_by(error)
        return result

    def _ended_by(self, error: UserError) -> dict[str, Any]:
        self._disband()
        cause = getattr(error, "cause", error)
        return ended_as(outcome_of(cause), cli.sentence(cause))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the step at hand and leave; what Tune keeps of it is where it stands. Raises NotSaved for a user's error."""
        try:
            ended = self._loop.leave()
            ray.get(self._others)
        except UserError as error:
            ended = self._ended_by(error)
        if ended and ended["outcome"] in ("failed", "hindered"):
            raise NotSaved(f"{ended['outcome']}: {ended['said']}")
        place = RunPlace.of(self._run)
        pointer = {"run": place.place.recorded, "step": place.newest_step()}
        Path(checkpoint_dir, "pointer.json").write_text(json.dumps(pointer))

    def cleanup(self) -> None:
        for peer in self._peers:
            ray.kill(peer)

    def _disband(self) -> None:
        """End the other ranks, which may wait for one that has left. The next trial gets new ones."""
        self.cleanup()
        self._peers, self._others = [], []
        self._loop.join(END_SECONDS)
        if dist.is_initialized():
            dist.destroy_process_group()


class NotSaved(Exception):
    """A trial that was to save could not: what has come of it and why, in a line that its driver reads."""

    FORM = re.compile(r"NotSaved: (failed|hindered): (.*)")


class TrialRank:
    """One of the other ranks: an actor that trains what the first one does."""

    def join(self, device: torch.device, **where: Any) -> None:
        logging.disable(logging.INFO)
        self._device = device
        join(device, **where)

    def train(self, config: TrainConfig) -> None:
        free_memory()
        train_trial(config, World.current(self._device), lambda: False)


def free_memory() -> None:
    """Let go of what the trial before has held."""
    gc.collect()
    gc.freeze()  # what is left, all modules, stays: looking through it takes a second
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class TrialLoop:
    """The training of one trial in a thread, which waits at each figure until it is to go on."""

    def __init__(self, config: TrainConfig, metric: str, device: torch.device) -> None:
        self._figures, self._asked = Figures(config, metric), Stop(RunPlace.of(config).place).asked
        self._results: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._waits = False
        """Whether what it waits with was taken."""
        self._thread = threading.Thread(target=self._train, args=(config, device), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Where it waits, go on."""
        if self._waits:
            self._waits = False
            self._orders.put(True)

    def leave(self) -> dict[str, Any] | None:
        """Save where it waits, and end: what has come of it, where it had not ended before. Raises as `result` does."""
        if not self._thread.is_alive():
            return None
        self._orders.put(False)
        self._thread.join()
        return self.result(0)

    def result(self, seconds: float) -> dict[str, Any] | None:
        """What has come of it; None where nothing has within so long. Raises what has ended the training, if not a user's error."""
        try:
            found = self._results.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        self._waits = "done" not in found
        return found

    def join(self, seconds: float) -> None:
        """Wait for its end. Raises RuntimeError where that does not come."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise RuntimeError("its loop hangs, without the other ranks")

    def _train(self, config: TrainConfig, device: torch.device) -> None:
        try:
            outcome, said = train_trial(config, World.current(device), self._asked_to_stop)
            self._results.put(ended_as(outcome, said, self._figures.new()))
        except BaseException as error:  # step() raises it
            self._results.put(error)

    def _asked_to_stop(self) -> bool:
        if new := self._figures.new():
            self._results.put({"figures": new, "step": new[-1][0], self._figures.metric: new[-1][1]})
            if not self._orders.get():
                return True
        return self._asked()


class Figures:
    """The figures of one metric that rank 0 of a run on this machine records, as they come."""

    def __init__(self, config: TrainConfig, metric: str) -> None:
        self.metric, self._newest = metric, 0
        self._tail = Tail(Place.parse(RunPlace.of(config).folder) / "metrics.jsonl")

    def new(self) -> list[tuple[int, float]]:
        """Steps and values since the last call."""
        found = []
        for record in self._tail.records():
            if self.metric in record.metrics and record.step > self._newest:
                self._newest = record.step
                found.append((record.step, record.metrics[self.metric]))
        return found


def ended_as(outcome: Outcome, said: str, figures: list[tuple[int, float]] | None = None) -> dict[str, Any]:
    """The last result of a trial that has ended by itself."""
    return {"figures": figures or [], "outcome": outcome, "said": said, "done": True}


def outcome_of(error: UserError) -> Outcome:
    """What a user's error makes of a trial: it is over, but for what has nothing to do with its config."""
    return "hindered" if isinstance(error, (SaveError, TrackingError, Locked)) else "failed"


def train_trial(config: TrainConfig, world: World, asked: Callable[[], bool]) -> tuple[Outcome, str]:
    """Train one trial to its end, or until it is asked to stop. Where several workers train it, an error of one ends them all."""
    run = RunPlace.of(config)
    run.fetch(f"logs/worker-{world.rank}.log")  # to go on with it
    with messages_into_log(run.folder, world.rank):
        try:
            train_as_worker(config, world, asked)
        except Stopped:
            return "stopped", ""
        except UserError as error:
            if world.size > 1:
                raise
            return outcome_of(error), cli.sentence(error)
    return "finished", ""
