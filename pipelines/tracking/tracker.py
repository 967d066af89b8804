"""The tracker of a run, and the thread that brings MLflow up to date: at the start, during the run and at its end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from common.credentials import without_credentials
from common.errors import first_cause
from common.places import Place
from pipelines.config.run import TrackingConfig
from pipelines.tracking.client import MAX_CAUSE_LENGTH, TrackingError, is_final, is_server, load_mlflow, tracking_uri
from pipelines.tracking.commit import source_tags
from pipelines.tracking.identity import TAG_LENGTH, begin_run, copied_from, saved_run, shown
from pipelines.tracking.metrics_file import MetricsFile, Record, drop_after
from pipelines.tracking.mlflow_run import DatasetInfo, MlflowRun, Status
from pipelines.tracking.models import SLOWEST_UPLOAD

SERVER_SECONDS = 10.0
DATABASE_SECONDS = 60.0
"""With on_failure="stop": how long the start waits for a server to answer, and for a database to be made."""
SHORTEST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
"""Seconds between two attempts to send: each pause is twice as long as the one before."""
MAX_RECORDS = 200
"""Most records that are sent together."""
SEND_SECONDS = 5.0
"""Seconds between two requests with metrics alone: a request costs MLflow about as much for one point as for fifty."""
DOES_NOT_ANSWER = "does not answer"
REFUSES = "refuses this run"


class Tracker:
    """One run: its record on disk, and the thread that sends it to MLflow. Made by `start` or `attach`."""

    def __init__(self, config: TrackingConfig, run_folder: Path, run: MlflowRun | None, kept: list[Record]) -> None:
        self._config = config
        self._run = run
        self._waiting: list[Record | Callable[[MlflowRun], object]] = [*kept]
        """Records and calls that MLflow may lack, the oldest first; a repeated command makes the calls anew."""
        self._woken = threading.Event()
        self._first_try = threading.Event()
        self._abandoned = threading.Event()
        self._closing = False
        self._upload_bytes = 0
        self._moved = self._due = 0.0
        """When something was last sent, and when metrics alone are to be sent next."""
        self._silent_since: float | None = None
        self._says = DOES_NOT_ANSWER
        """MLflow's state while nothing can be sent."""
        self._error: TrackingError | None = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if run:
            self._where = without_credentials(tracking_uri(config, run.root))
            self._waiting[:0] = [] if run.attached else [MlflowRun.describe]
            load_mlflow()  # here, not in the thread: importing in two threads at once can deadlock
        # Not before MLflow is loaded: a resume may replace the file meanwhile.
        self._file = MetricsFile(run_folder / "metrics.jsonl")
        if run:
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
        resume_step: int | None = 0,
        place: Place | None = None,
        publish: Callable[[], None] = lambda: None,
        recorded: Mapping[str, Any] | None = None,
    ) -> Tracker:
        """Begin a run, or continue the one of ``run_folder``.

        Args:
            resume_step: the step from which the run continues; later lines of its metrics.jsonl are dropped. None: it is over, and
                keeps all of them.
            place, publish, recorded: as for `begin_run`; by default the run is in ``run_folder``.

        Raises TrackingError, a ConnectionError, when `on_failure` is "stop" and MLflow does not answer: a server within
        `SERVER_SECONDS`, a database within `DATABASE_SECONDS`.
        """
        run_folder.mkdir(parents=True, exist_ok=True)
        kept, abandoned = drop_after(run_folder / "metrics.jsonl", resume_step)
        if config.backend == "none":
            return cls(config, run_folder, None, [])
        if resume_step is None:  # the run is over, and is not trained
            step = kept[-1].step if kept else 0
            trained = None
        else:
            step = resume_step
            trained = {**params, "store": dataset.digest} if dataset else params
        note = begin_run(run_folder, place or Place.parse(run_folder), step, recorded, publish, trained, abandoned)
        if note:
            print(f"note: {note}", file=sys.stderr, flush=True)
        own_tags = {key: value for key, value in {**source_tags(), **tags}.items() if value}
        run = MlflowRun(config, root, run_folder, run_name, params, own_tags, dataset, step, over=resume_step is None)
        tracker = cls(config, run_folder, run, kept)
        if config.on_failure == "stop":
            tracker._await_first_try(SERVER_SECONDS if is_server(config) else DATABASE_SECONDS)
        return tracker

    def _await_first_try(self, seconds: float) -> None:
        """Wait until MLflow has answered. Raises TrackingError if it refuses, or does not answer within so many seconds."""
        if not self._first_try.wait(seconds):
            self._error = self._stop(f"no answer within {seconds:.0f} seconds")
        if self._error:
            self._abandoned.set()
            raise self._error

    @classmethod
    def attach(cls, config: TrackingConfig, root: Path, run_folder: Path, place: Place | None = None) -> Tracker:
        """Add metrics and files to the run of ``run_folder``, as it is: neither begun nor, by `finish`, ended.

        A run that was never in MLflow gets them in its metrics.jsonl alone. So does a copy, which has no run of its own in MLflow
        before it is trained. ``place``: where the run is, by default in ``run_folder``.
        """
        place = place or Place.parse(run_folder)
        tracked = config.backend == "mlflow" and saved_run(run_folder).get("run_id")
        original = copied_from(run_folder, place) if tracked else None
        if original:
            print(
                f"note: {place.shown} is a copy of {shown(original)} and has no run in MLflow yet: its metrics go only to "
                "metrics.jsonl, until `train` makes it a run of its own",
                file=sys.stderr,
                flush=True,
            )
            tracked = None
        run = MlflowRun(config, root, run_folder, run_folder.name, attached=True) if tracked else None
        return cls(config, run_folder, run, [])

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, once it is known."""
        return (self._run.run_id or saved_run(self._run.folder).get("run_id")) if self._run else None

    @property
    def start_id(self) -> str | None:
        """The name of this start of the run (identity.py)."""
        return saved_run(self._run.folder)["starts"][-1] if self._run else None

    @property
    def registered(self) -> int | None:
        """The step whose model was registered last, -1 where none was; None where there is no MLflow."""
        if self._run is None:
            return None
        saved = saved_run(self._run.folder)  # perhaps of another MLflow, which had the run before
        return int(saved.get("registered", -1)) if saved.get("uri") == self._where else -1

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics of a step. If a metric is logged twice for one step, MLflow gets the first value.

        Raises TrackingError when MLflow has been silent for longer than the config's patience and `on_failure` is "stop".
        """
        record = Record(step, time.time_ns() // 1_000_000, {key: float(value) for key, value in metrics.items()})
        self._file.append(record)
        self._put(record, at_once=time.monotonic() > self._due)
        if self._error:
            raise self._error

    def log_artifacts(self, *paths: Path, folder: str = "") -> None:
        """Keep files (a plot, a table) with the run, below ``folder``. They must stay as they are until they are sent."""
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: there is no such file to log")
            self._put(lambda run, path=path: run.log_artifact(path, folder))

    def log_checkpoint(self, step: int, tags: Mapping[str, Any]) -> None:
        """Make the checkpoint of a step a model in MLflow, with the validation metrics that were logged for that step."""
        if self._config.models != "none":
            self._put(lambda run: run.log_checkpoint(step, tags))

    def register(self, step: int, folder: Path, name: str, owner: Path) -> None:
        """Upload a folder as the files of a step's model, which `log_checkpoint` has made, and register that as the best one called
        ``name``. The folder is removed when that is done. ``owner``: folder of the run or sweep that has this name.
        """
        self._upload_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._put(lambda run: run.register(step, folder, name, owner))

    def set_tag(self, key: str, value: str) -> None:
        self._put(lambda run: run.client.set_tag(run.run_id, key, without_credentials(value)[:TAG_LENGTH]))

    def finish(self, status: Status = "FINISHED") -> bool:
        """Send what is left and end the run. Returns whether all was sent. If MLflow stays silent, a line reports what was not."""
        self._file.close()
        if self._run is None or self._closing:
            return True
        self._waiting.append(lambda run: run.end(status))
        self._closing = True
        self._woken.set()
        began = time.monotonic()
        while self._thread.is_alive():
            patience = 0.0 if self._error or self._says == REFUSES else self._config.patience
            upload = 0.0 if self._silent_since else self._upload_bytes / SLOWEST_UPLOAD
            if time.monotonic() > max(began, self._moved) + patience + upload:
                break
            self._thread.join(0.1)
        self._abandoned.set()
        left = list(self._waiting)
        if not left:
            return True
        records = sum(isinstance(item, Record) for item in left)
        others = len(left) - records - 1 - left.count(MlflowRun.describe)  # without the call that ends the run
        reason = self._says if self._silent_since or self._error else "was given no more time"
        self._say(
            f"{reason}: {records} records"
            + (f" and {others} files or tags" if others > 0 else "")
            + f" were not sent; the records are in {self._file.path}, and repeating the command sends them"
        )
        return False

    def upload_missing(self) -> None:
        """Send MLflow what it lacks, in order. Idempotent: called again, it sends nothing that MLflow has.

        A record that MLflow refuses for good is reported in a line. Raises the error by which MLflow does not answer.
        """
        assert self._run
        self._run.open()
        left = len(self._waiting)  # items that come meanwhile wait for the next call
        while left > 0 and not self._abandoned.is_set():
            batch = self._oldest()
            try:
                if isinstance(batch[0], Record):
                    self._run.send(batch)
                else:
                    batch[0](self._run)
            except Exception as error:
                if not is_final(error):
                    raise
                self._refused(error, of_metrics=isinstance(batch[0], Record))
            else:
                self._answered()
            self._first_try.set()
            del self._waiting[: len(batch)]
            left -= len(batch)
            self._moved = time.monotonic()

    # The thread

    def _put(self, item: Record | Callable[[MlflowRun], object], at_once: bool = True) -> None:
        if self._run:
            self._waiting.append(item)
            if at_once:
                self._woken.set()

    def _work(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._abandoned.is_set():
            self._woken.clear()
            ending = self._closing
            self._due = time.monotonic() + SEND_SECONDS
            try:
                self.upload_missing()
            except Exception as error:  # whatever it is, the run continues, and a line reports it
                self._silent(error)
                self._first_try.set()
                self._abandoned.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if ending:
                return
            pause = SHORTEST_PAUSE
            self._woken.wait(SEND_SECONDS)

    def _oldest(self) -> list[Any]:
        """The oldest records, or the call that is older than any. They stay in the queue until they are sent."""
        oldest = self._waiting[:MAX_RECORDS]
        return list(takewhile(lambda item: isinstance(item, Record), oldest)) or oldest[:1]

    def _silent(self, error: Exception) -> None:
        now = time.monotonic()
        cause = first_cause(error, most=MAX_CAUSE_LENGTH)
        before = self._says
        self._says = REFUSES if is_final(error) else DOES_NOT_ANSWER
        if getattr(error, "error_code", None) == "UNAUTHENTICATED":
            cause = "it does not know the name and password in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        first = self._silent_since is None or before != self._says
        self._silent_since = self._silent_since or now
        if self._config.on_failure == "stop":
            late = now - self._silent_since >= self._config.patience
            if not self._first_try.is_set() or late or self._says == REFUSES:
                self._error = self._stop(cause)
        elif first:
            later = (
                "sent when this is corrected and the command is repeated"
                if self._says == REFUSES
                else "sent when it answers"
            )
            self._say(
                f"{self._says} ({cause}): the run continues, its metrics are kept in {self._file.path} and {later}"
            )

    def _answered(self) -> None:
        if self._silent_since is None or self._run is None:
            return
        self._silent_since = None
        self._says = DOES_NOT_ANSWER
        if self._config.on_failure == "continue":
            self._say("answers again", "")
        self._run.restart_monitor()

    def _refused(self, error: Exception, of_metrics: bool) -> None:
        cause = first_cause(error, most=MAX_CAUSE_LENGTH)
        if self._config.on_failure == "stop":
            self._error = self._stop(cause)
        elif of_metrics:
            self._say(f"refused the run's metrics ({cause}); they are in {self._file.path}")
        else:
            self._say(f"refused files, tags or a model of this run ({cause}), which are not in MLflow")

    def _say(self, news: str, kind: str = "warning: ") -> None:
        print(f"{kind}MLflow at {self._where} {news}", file=sys.stderr, flush=True)

    def _stop(self, cause: str) -> TrackingError:
        return TrackingError(
            f"MLflow at {self._where} does not take the run's metrics ({cause}): start it or correct --tracking.uri, "
            "or continue without it by --tracking.on-failure continue"
        )
