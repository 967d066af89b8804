"""A sweep's trials as Ray Tune runs them: an actor takes one trial after another, and each `step()` is one validation.

    tune.Tuner(tune.with_parameters(TrialActor, sweep=sweep), …)    # with configs of {"trial": "003", "optim.lr": 0.003}

The actor is rank 0 of its trial, which has no other rank if it has one worker. Further ranks are actors in the placement group that
Tune has reserved for all of them at once. All keep their processes from trial to trial. The loop runs in a thread. At each value it
waits for the next `step()`, or for the request to save and leave. Our checkpoints stay where a run has them; Tune's hold a pointer
to them.

Measured against Ray Train's workers kept alive inside the actor, two trials of one worker at once: 4 processes and 975 MB, in place
of 17 and 2.9 GB, and the first trial begins after half the time. If a rank dies, its actor ends too, since processes
that have joined cannot be replaced. The trial resumes on new ones from its newest checkpoint; other trials keep theirs.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import threading
from collections import deque
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.errors import UserError
from pipelines.checkpoints.cloning import clone_checkpoint
from pipelines.config.run import TrainConfig
from pipelines.reports.sweep_result import read_trial
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.trial_loop import TrialLoop, ended_as, known_metrics, outcome_of, reason_of, train_trial
from pipelines.terminal import plugins
from pipelines.training.stopping import Stop
from pipelines.training.world import World, join, listen
from tune_spaces.drawing import METRIC

POINTER = "pointer.json"
LOOK_SECONDS = 0.5
"""Seconds between checks that a trial's other ranks are alive."""
END_SECONDS = 30.0
"""How long a loop may take to notice that the other ranks have gone."""


class TrialActor(tune.Trainable):
    """An actor that trains one trial after another, as their rank 0."""

    @staticmethod
    def resources(run: TrainConfig, use_gpu: bool) -> PlacementGroupFactory:
        """Resources of all ranks of a trial."""
        bundles = [run.placement.worker(use_gpu)] * run.workers[0]
        return PlacementGroupFactory(bundles, strategy=run.placement.strategy.replace("-", "_").upper())

    def setup(self, config: dict[str, Any], sweep: Sweep | None = None, use_gpu: bool = False) -> None:
        """``sweep`` holds places with credentials: Ray keeps it in its object store, and Tune writes it into no file."""
        assert sweep is not None
        logging.disable(logging.INFO)  # Ray's messages; ours are printed
        plugins.load()
        self._sweep = sweep
        self._metric = sweep.config.metric
        self._device = torch.device("cuda:0" if use_gpu else "cpu")
        self._peers: list[Any] = []
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take a trial, for the first time or again. Training continues after the metrics that the trial already has."""
        self._others: list[Any] = []
        self._loop: TrialLoop | None = None
        self._place = self._sweep.run.place / f"trials/{self.trial_name}"
        trial = read_trial(self._place / "trial.json", self._metric)
        if self._sweep.config.populates:
            trial.values = {field: new_config[field] for field in self._sweep.fields}
        self._end = trial if trial.over else None
        self._run = self._sweep.run_of(trial)
        self._known = deque(known_metrics(self._run, self._metric, over=trial.over))
        self._step = 0
        """Step of the metric that Tune got last."""
        return True

    def step(self) -> dict[str, Any]:
        """Return a known metric, or train up to the next one or the end. Raises the error that ended a rank, if no user's."""
        return {"trial": self.trial_name, **self._next()}

    def _next(self) -> dict[str, Any]:
        if self._known:
            step, value = self._known.popleft()
            self._step = step
            finished = self._end is not None and self._end.status == "finished"
            return self._result(step, value, **(ended_as("finished", "") if finished and not self._known else {}))
        if self._end:
            return ended_as(self._end.status, self._end.reason)
        if self._loop is None:
            if Stop(self._place).asked():
                return ended_as("stopped", "")
            self._loop = self._begin()
        self._loop.go_on()
        try:
            while (found := self._loop.result(LOOK_SECONDS)) is None:
                if self._others:
                    ray.get(ray.wait(self._others, num_returns=len(self._others), timeout=0)[0])
        except UserError as error:
            return self._ended_by(error)
        metrics = found.pop("metrics")
        if not metrics:
            return found
        self._step = metrics[0][0]
        return self._result(*metrics[0], **found)

    def _result(self, step: int, value: float, **further: Any) -> dict[str, Any]:
        tokens = step * self._run.tokens_per_step
        rungs = tokens / self._sweep.config.first_rung_tokens
        named = {self._metric: value, METRIC: value}
        return {"step": step, "tokens": tokens, "rungs": rungs, **named, **further}

    def _begin(self) -> TrialLoop:
        """Start the training on all ranks."""
        free_memory()
        size = self._run.workers[0]
        if size > 1 and not self._peers:
            self._gather(size)
        self._others = [peer.train.remote(self._run) for peer in self._peers]
        return TrialLoop(self._run, self._metric, self._device, self._step)

    def _gather(self, size: int) -> None:
        """Start the other ranks, and form a process group with them."""
        group: Any = ray.util.get_current_placement_group()
        resources = self._run.placement.worker(self._device.type == "cuda")
        options = {"num_cpus": resources.pop("CPU"), "num_gpus": resources.pop("GPU", 0), "resources": resources}
        for index in range(1, size):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            self._peers.append(ray.remote(TrialRank).options(**options, scheduling_strategy=place).remote())
        # The store is held until all have joined, so that the port stays taken.
        _store, address = listen(ray.util.get_node_ip_address())
        where = {"init_method": address, "world_size": size}
        joined = [peer.join.remote(self._device, rank=rank, **where) for rank, peer in enumerate(self._peers, start=1)]
        failed: list[BaseException] = []

        def join_them() -> None:
            try:
                join(self._device, rank=0, **where)
            except BaseException as error:
                failed.append(error)

        own = threading.Thread(target=join_them, daemon=True)
        own.start()
        while own.is_alive():  # torch would wait half an hour for a dead rank
            ray.get(ray.wait(joined, num_returns=len(joined), timeout=LOOK_SECONDS)[0])
        if failed:
            raise failed[0]
        ray.get(joined)

    def _ended_by(self, error: UserError) -> dict[str, Any]:
        self._disband()
        cause = getattr(error, "cause", error)
        return ended_as(outcome_of(cause), reason_of(cause))

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the current step and leave. Tune's checkpoint only points to ours. Raises NotSaved for a user's error."""
        ended = None
        try:
            if self._loop is not None:
                ended = self._loop.leave()
                ray.get(self._others)
        except UserError as error:
            ended = self._ended_by(error)
        self._loop = None
        if ended and ended["outcome"] in ("failed", "retryable"):
            raise NotSaved(f"{ended['outcome']}: {ended['reason']}")
        pointer = {"trial": self.trial_name, "step": self._step}
        Path(checkpoint_dir, POINTER).write_text(json.dumps(pointer))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Continue from our checkpoint to which Tune's points. It is another trial's if a population has copied that one."""
        source, self._step = read_pointer(checkpoint)
        if source != self.trial_name:
            clone_checkpoint(self._place.parent / source / "checkpoints", self._place / "checkpoints", self._step)
        while self._known and self._known[0][0] <= self._step:  # Tune already has these
            self._known.popleft()

    def cleanup(self) -> None:
        for peer in self._peers:
            ray.kill(peer)

    def _disband(self) -> None:
        """End the other ranks, which may wait for one that has left. The next trial gets new ones."""
        self.cleanup()
        self._peers = []
        self._others = []
        if self._loop is not None:
            self._loop.join(END_SECONDS)
        if dist.is_initialized():
            dist.destroy_process_group()


class NotSaved(Exception):
    """A trial could not save. The message has its outcome and the reason, in a line that its driver reads."""

    FORM = re.compile(r"NotSaved: (failed|retryable): (.*)")


class TrialRank:
    """An actor that is a further rank of a trial. It trains the same run as rank 0."""

    def join(self, device: torch.device, **where: Any) -> None:
        logging.disable(logging.INFO)
        self._device = device
        join(device, **where)

    def train(self, config: TrainConfig) -> None:
        free_memory()
        train_trial(config, World.current(self._device), lambda: False)


def free_memory() -> None:
    """Free the memory of the previous trial."""
    gc.collect()
    gc.freeze()  # the rest, all modules, stays: a scan of it takes a second
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def pointer_of(checkpoint: Any) -> tuple[str, int]:
    """The trial and the step that a checkpoint of Tune's stands for."""
    with checkpoint.as_directory() as folder:
        return read_pointer(folder)


def read_pointer(folder: str) -> tuple[str, int]:
    """The trial and the step that `save_checkpoint` has written into a folder of Tune's."""
    pointer = json.loads(Path(folder, POINTER).read_text())
    return pointer["trial"], pointer["step"]
