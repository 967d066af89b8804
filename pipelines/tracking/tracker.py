"""The queue of a run's figures and the thread that empties it into MLflow."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.credentials import without_credentials
from data_prep.errors import first_cause
from pipelines.tracking.client import load_mlflow
from pipelines.tracking.config import (
    DatasetInfo,
    Identity,
    Status,
    TrackingConfig,
    TrackingError,
    is_server,
    tracking_uri,
)
from pipelines.tracking.metrics_file import MetricsFile, Record, drop_after
from pipelines.tracking.mlflow_run import BATCH_METRICS, TAG_LENGTH, MlflowRun, saved_run
from pipelines.tracking.models import SLOWEST_UPLOAD
from pipelines.tracking.provenance import git_commit, user_name

START_SECONDS = {True: 10.0, False: 60.0}
"""With on_failure="stop": how long the start waits for a server (True), and for a database to be made (False)."""
LONGEST_PAUSE = 5.0
SEND_SECONDS, MANY = 5.0, 50
"""Between two sendings of records, where nothing else waits: a request costs MLflow about as much for one point as for fifty."""
FINAL = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "BAD_REQUEST",
    "PERMISSION_DENIED",
    "ENDPOINT_NOT_FOUND",
}
"""MLflow's refusals that would be the same the next time: of a run that someone deleted, for example."""


def is_final(error: Exception) -> bool:
    """Whether sending the same again would be refused again."""
    answer = getattr(error, "response", None)  # of an upload: a file that is too large for the server, say
    status = getattr(answer, "status_code", 0)
    refused = 400 <= status < 500 and status not in (401, 408, 429)
    return refused or getattr(error, "error_code", None) in FINAL or isinstance(error, FileNotFoundError)


class Tracker:
    """One run: its record on disk, and the thread that sends it to MLflow. Made by `start` or `attach`."""

    def __init__(
        self, config: TrackingConfig, root: Path, run_folder: Path, kept: list[Record], run: MlflowRun | None
    ) -> None:
        self._config, self._run = config, run
        self._file = MetricsFile(run_folder / "metrics.jsonl")
        self._where = without_credentials(tracking_uri(config, root))
        self._queue: deque[Record | Callable[[], None]] = deque(kept)
        self._changed = threading.Condition()
        self._first_try, self._abandoned = threading.Event(), threading.Event()
        self._closing = False
        self._upload_bytes = 0
        self._sent = -SEND_SECONDS  # when records were last sent
        self._silent_since: float | None = None
        self._error: TrackingError | None = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if run:
            load_mlflow()  # here, not in the thread: importing in two threads at once can deadlock
            self._thread.start()

    @classmethod
    def start(
        cls,
        config: TrackingConfig,
        root: Path,
        run_folder: Path,
        run_name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        dataset: DatasetInfo | None = None,
        resume_step: int = 0,
        run_id: str | None = None,
    ) -> Tracker:
        """Begin a run, or continue the one of ``run_folder`` from ``resume_step``: later lines of its metrics.jsonl are dropped.
        ``run_id``: MLflow's, by the checkpoint, where the folder does not say it.

        Raises TrackingError, a ConnectionError, when MLflow does not answer within about ten seconds and `on_failure` is "stop".
        """
        run_folder.mkdir(parents=True, exist_ok=True)
        kept = drop_after(run_folder / "metrics.jsonl", resume_step)
        run = None
        if config.backend == "mlflow":
            described = {"mlflow.source.git.commit": git_commit(), "mlflow.user": user_name(), **tags}
            identity = Identity(
                run_name, params, {key: value for key, value in described.items() if value}, dataset, run_id
            )
            run = MlflowRun(config, root, run_folder, identity)
        tracker = cls(config, root, run_folder, kept if run else [], run)
        if run and config.on_failure == "stop":
            seconds = START_SECONDS[is_server(config)]
            if not tracker._first_try.wait(seconds):
                tracker._error = tracker._stop(f"no answer within {seconds:.0f} seconds")
            if tracker._error:
                tracker._abandoned.set()
                raise tracker._error
        return tracker

    @classmethod
    def attach(cls, config: TrackingConfig, root: Path, run_folder: Path) -> Tracker:
        """Add figures and files to the run of ``run_folder``, as it is: neither begun nor, by `finish`, ended.

        Where that run was never in MLflow, its metrics.jsonl alone gets them.
        """
        tracked = config.backend == "mlflow" and saved_run(run_folder).get("run_id")
        return cls(config, root, run_folder, [], MlflowRun(config, root, run_folder, None) if tracked else None)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, once it is known."""
        return (self._run.run_id or saved_run(self._run.folder).get("run_id")) if self._run else None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record figures of a step. Of a figure that was logged twice for one step, MLflow gets the first.

        Raises TrackingError when MLflow has been silent for longer than the config's patience and `on_failure` is "stop".
        """
        record = Record(step, time.time_ns() // 1_000_000, {key: float(value) for key, value in metrics.items()})
        self._file.append(record)
        self._put(record)
        if self._error:
            raise self._error

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Keep a file (a figure, a table) with the run, below ``folder``. It must stay as it is until it is sent."""
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file to log")
        self._call(lambda run: run.client.log_artifact(run.run_id, str(path), folder or None))

    def log_checkpoint(self, step: int, tags: Mapping[str, Any]) -> None:
        """Make the checkpoint of a step a model in MLflow, with the validation figures that were logged for that step."""
        if self._config.models != "none":
            self._call(lambda run: run.log_checkpoint(step, tags))

    @property
    def registered(self) -> int | None:
        """The step whose model was registered last."""
        return int(saved_run(self._run.folder).get("registered", -1)) if self._run else None

    def register(self, step: int, folder: Path, name: str) -> None:
        """Upload a folder as the files of a step's model, which `log_checkpoint` has made, and register that as the best one called
        ``name``. The folder is removed when that is done.
        """
        self._upload_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._call(lambda run: run.register(step, folder, name))

    def set_tag(self, key: str, value: str) -> None:
        self._call(lambda run: run.client.set_tag(run.run_id, key, without_credentials(value)[:TAG_LENGTH]))

    def finish(self, status: Status = "FINISHED") -> bool:
        """Send what is left and end the run; whether all was sent. When MLflow stays silent, one line says how much was not."""
        self._file.close()
        if self._run is None or self._closing:
            return True
        self._call(lambda run: run.end(status))
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._wait_while_it_moves(0.0 if self._error else self._config.patience)
        self._abandoned.set()
        with self._changed:
            left = [isinstance(item, Record) for item in self._queue]
        if not left:
            return True
        others = left.count(False) - 1  # less the end itself
        _say(
            f"warning: MLflow at {self._where} does not answer: {left.count(True)} records"
            + (f" and {others} files or tags" if others > 0 else "")
            + f" were not sent; the records are in {self._file.path}, and repeating the command sends what is missing"
        )
        return False

    def _wait_while_it_moves(self, patience: float) -> None:
        left, moved, upload = len(self._queue), time.monotonic(), self._upload_bytes / SLOWEST_UPLOAD
        while self._thread.is_alive():
            answers = self._silent_since is None
            if time.monotonic() - moved > patience + (upload if answers else 0.0):
                return
            self._thread.join(0.1)
            if len(self._queue) < left:
                left, moved = len(self._queue), time.monotonic()

    def _call(self, call: Callable[[MlflowRun], None]) -> None:
        if (run := self._run) is not None:
            self._put(lambda: call(run))

    def _put(self, item: Record | Callable[[], None]) -> None:
        if self._run is not None:
            with self._changed:
                self._queue.append(item)
                self._changed.notify()

    # The thread

    def _work(self) -> None:
        run = self._run
        if run is None or not self._try(run.open):
            return
        while batch := self._next_batch():
            if not self._try(partial(run.send, batch) if isinstance(batch[0], Record) else batch[0]):
                return
            with self._changed:
                for _ in batch:
                    self._queue.popleft()
            self._sent = time.monotonic()

    def _next_batch(self) -> list[Any]:
        """The oldest item, with the records behind it if it is one. They stay in the queue until they are sent. Empty: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            due = self._sent + SEND_SECONDS - time.monotonic()
            if due > 0:
                self._changed.wait_for(self._hurries, due)
            batch: list[Any] = []
            metrics = 0
            for item in self._queue:
                metrics += BATCH_METRICS + 1 if callable(item) else len(item.metrics)
                if batch and metrics > BATCH_METRICS:
                    break
                batch.append(item)
            return batch

    def _hurries(self) -> bool:
        """Whether the queue holds more than the records of a few seconds."""
        return self._closing or len(self._queue) > MANY or any(map(callable, self._queue))

    def _try(self, call: Callable[[], None]) -> bool:
        """Call until it has worked or has been refused for good. False: given up, because the run is over."""
        pause = 0.25
        while not self._abandoned.is_set():
            try:
                call()
            except Exception as error:  # whatever it is, the run must go on; the line that it causes tells
                refused = self.run_id and is_final(error)
                (self._refused if refused else self._silent)(error)
                self._first_try.set()
                if refused:
                    return True
                self._abandoned.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._first_try.set()
                self._answered()
                return True
        return False

    def _silent(self, error: Exception) -> None:
        now, cause = time.monotonic(), first_cause(error)
        if getattr(error, "error_code", None) == "UNAUTHENTICATED":
            cause = "it does not know the name and password in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        first = self._silent_since is None
        self._silent_since = now if self._silent_since is None else self._silent_since
        if self._config.on_failure == "stop":
            if not self._first_try.is_set() or now - self._silent_since >= self._config.patience:
                self._error = self._stop(cause)
        elif first:
            _say(
                f"warning: MLflow at {self._where} does not answer ({cause}): the run goes on, its figures are kept "
                f"in {self._file.path} and sent when it answers"
            )

    def _answered(self) -> None:
        if self._silent_since is None:
            return
        self._silent_since = None
        if self._config.on_failure == "continue":
            _say(f"MLflow at {self._where} answers again")
        if self._run:
            self._run.restart_monitor()

    def _refused(self, error: Exception) -> None:
        if self._config.on_failure == "stop":
            self._error = self._stop(first_cause(error))
        else:
            _say(
                f"warning: MLflow at {self._where} refused what it was sent ({first_cause(error)}); the figures are in "
                f"{self._file.path}"
            )

    def _stop(self, cause: str) -> TrackingError:
        return TrackingError(
            f"MLflow at {self._where} does not take the run's figures ({cause}): start it or correct --tracking.uri, "
            "or go on without it by --tracking.on-failure continue"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
