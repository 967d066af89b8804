"""The training of one trial in a thread that waits at each of its metrics.

loop = TrialLoop(config, "validation/bits_per_token", device)
loop.result(60)             # {"metrics": [(10, 7.3)]}: it stands still at step 10
loop.go_on()                # train up to the next metric, or
loop.leave()                # save where it stands, and end
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Literal

import torch

from common.errors import UserError, sentence
from common.lock import Locked
from common.places import Place
from common.uris import PlaceError
from data_prep.manifest import StoreError
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError
from pipelines.config.run import TrainConfig
from pipelines.sweeps.record import Outcome
from pipelines.tracking.client import TrackingError
from pipelines.training.loop import Diverged
from pipelines.training.progress import Tail, messages_into_log
from pipelines.training.stopping import Stop, Stopped
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World

Order = Literal["continue", "leave"]
"""What a loop that waits at a metric is to do."""


class TrialLoop:
    """The training of one trial in a thread, which waits at each metric until it is to continue."""

    def __init__(self, config: TrainConfig, metric: str, device: torch.device, after: int = 0) -> None:
        self._metrics = Metrics(config, metric, after)
        self._steps = config.steps
        self._last: list[tuple[int, float]] = []
        """The metric of the last step, which is returned together with the end."""
        self._asked = Stop(RunFolder.of(config).place).asked
        self._results: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._waits = False
        """Whether the loop waits, and `result` has returned its metric."""
        self._thread = threading.Thread(target=self._train, args=(config, device), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Let the loop continue, if it waits."""
        if self._waits:
            self._waits = False
            self._orders.put("continue")

    def leave(self) -> dict[str, Any] | None:
        """Have the loop save where it waits, and end. Returns its outcome; None if it had ended before. Raises as `result` does."""
        if not self._thread.is_alive():
            return None
        self._orders.put("leave")
        self._thread.join()
        found = self.result(0)
        while found and "done" not in found:  # a metric of the step at which it was saved
            found = self.result(0)
        return found

    def result(self, seconds: float) -> dict[str, Any] | None:
        """The next metrics, or the outcome; None after ``seconds``. Raises the training's error; with one worker, a user's is an
        outcome."""
        try:
            found = self._results.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        self._waits = "done" not in found
        return found

    def join(self, seconds: float) -> None:
        """Wait for the loop's end. Raises RuntimeError if it does not come within ``seconds``."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise RuntimeError("its loop hangs, without the other ranks")

    def _train(self, config: TrainConfig, device: torch.device) -> None:
        try:
            outcome, reason = train_trial(config, World.current(device), self._asked_to_stop)
            metrics = [*self._last, *self._metrics.new()]
            for each in metrics[:-1]:
                self._results.put({"metrics": [each]})
            self._results.put({**ended_as(outcome, reason), "metrics": metrics[-1:]})
        except BaseException as error:  # step() raises it
            self._results.put(error)

    def _asked_to_stop(self) -> bool:
        for one in self._metrics.new():
            if one[0] == self._steps:
                self._last = [one]
                continue
            self._results.put({"metrics": [one]})
            if self._orders.get() == "leave":
                return True
        return self._asked()


class Metrics:
    """The values of one metric that rank 0 of a run on this machine records, as they come."""

    def __init__(self, config: TrainConfig, metric: str, after: int = 0) -> None:
        self._metric = metric
        self._newest = after
        self._tail = Tail(Place.parse(RunFolder.of(config).folder) / "metrics.jsonl")

    def new(self) -> list[tuple[int, float]]:
        """Steps and values since the last call, of steps that are later than any before."""
        found = []
        for record in self._tail.records():
            if self._metric in record.metrics and record.step > self._newest:
                self._newest = record.step
                found.append((record.step, record.metrics[self._metric]))
        return found


def known_metrics(run: TrainConfig, metric: str, over: bool = False) -> list[tuple[int, float]]:
    """Steps and values of the metric up to the newest checkpoint, which training continues from; all where the trial is over."""
    place = RunFolder.of(run)
    place.fetch("metrics.jsonl")
    found = Metrics(run, metric).new()
    if over:
        return found
    newest = place.newest_step()
    return [(step, value) for step, value in found if step <= newest]


def ended_as(outcome: str, reason: str) -> dict[str, Any]:
    """The last result of a trial that has ended by itself."""
    return {"outcome": outcome, "reason": reason, "done": True}


def outcome_of(error: UserError) -> Outcome:
    """A trial's outcome after a user's error: retryable if its config is not to blame, else failed.

    The stores were there when the sweep began.
    """
    return "retryable" if isinstance(error, (SaveError, TrackingError, Locked, StoreError, PlaceError)) else "failed"


def reason_of(error: UserError) -> str:
    """Why a user's error ended a trial. A sweep does not train a trial again, so how a run would continue is left out."""
    return error.args[0] if isinstance(error, Diverged) else sentence(error)


def train_trial(config: TrainConfig, world: World, asked: Callable[[], bool]) -> tuple[Outcome, str]:
    """Train one trial to its end, or until it is asked to stop. With several workers, a user's error ends them all."""
    with messages_into_log(RunFolder.of(config), world.rank):
        try:
            train_as_worker(config, world, asked)
        except Stopped:
            return "stopped", ""
        except UserError as error:
            if world.size > 1:
                raise
            return outcome_of(error), reason_of(error)
    return "finished", ""
