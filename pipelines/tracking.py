"""Sends a run's figures to MLflow, from rank 0 alone, without ever holding up the loop. The only module that imports mlflow.

    tracker = Tracker.start(TrackingConfig(), root, run_folder, "demo-rec", params, tags, dataset, resume_step=0)
    tracker.log({"train/bits_per_token": 5.1}, step=10)      # one line in <run>/metrics.jsonl, and into the queue: microseconds
    tracker.finish("FINISHED")                               # waits, within bounds, until all of it is sent

One thread empties the queue, in order, and tries again while the server is silent. `<run>/mlflow_run.json` says which run in
MLflow this is: the same command continues it. A resumed run sends what MLflow lacks of metrics.jsonl and nothing that it has:
after any number of kills every metric has every step once. (A step that was sent before the kill keeps its first value.)
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from data_prep.manifest import write_atomically
from pipelines.metrics_file import MetricsFile, Record, drop_after
from pipelines.provenance import first_cause, git_commit, mask, user_name

Status = Literal["FINISHED", "FAILED", "KILLED"]

RUN_KEY = "throughline.run_key"
"""Tag by which a run is found that MLflow made and that we were killed, or not answered, before we could note its id."""
REQUEST_SECONDS = 8
"""A single request to a server gets no longer than this; the thread asks again."""
START_SECONDS = {True: 10.0, False: 60.0}
"""With on_failure="stop": how long the start waits for a server (True), and for a database to be made (False)."""
LONGEST_PAUSE = 5.0
BATCH_METRICS, BATCH_PARAMS, PARAM_LENGTH, TAG_LENGTH = 1000, 100, 6000, 5000
"""MLflow's limits."""
FINAL = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}
"""MLflow's refusals that would be the same the next time: of a run that someone deleted, for example."""


class TrackingError(ConnectionError):
    """MLflow does not answer or refuses, and the run was told to stop then."""


@dataclass(frozen=True)
class TrackingConfig:
    """Where a run's figures go."""

    backend: Literal["mlflow", "none"] = "mlflow"
    """none keeps them in the run's metrics.jsonl alone."""
    uri: str = ""
    """MLflow's tracking URI: http://host:5000, or a database; by default the file mlflow.db in the folder of all runs. Name and
    password for a server belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: str = "throughline"
    """MLflow experiment that the run belongs to."""
    on_failure: Literal["continue", "stop"] = "continue"
    """When MLflow does not answer: go on and send later, or stop the run."""
    patience: float = 60.0
    """Seconds that MLflow may be silent: at the end, before what is left stays unsent; under way, before `stop` stops."""
    system_metrics: Literal["on", "off"] = "on"
    """CPU, memory, disk, network and GPU of rank 0's machine, every ten seconds."""
    parent: str = ""
    """MLflow's id of the run that this one stands below; a sweep sets it for its trials."""

    def __post_init__(self) -> None:
        if re.match(r"sqlite:///(?!/)", self.uri):
            raise ValueError(
                f"tracking.uri is {self.uri}: workers run elsewhere, so write the whole path, as in sqlite:////home/…"
            )
        if not self.experiment.strip():
            raise ValueError("tracking.experiment is empty: name an MLflow experiment")


@dataclass(frozen=True)
class DatasetInfo:
    """What a run reads, as MLflow lists it beside the run."""

    name: str
    digest: str
    """Fingerprint of the data, up to 36 characters."""
    source: str
    documents: int
    tokens: int
    context: Literal["training", "evaluation"] = "training"


@dataclass(frozen=True)
class _Identity:
    """What a run is called and described by."""

    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    dataset: DatasetInfo | None
    run_id: str | None = None
    """What the run's checkpoint says of it, for a folder without mlflow_run.json (one that was copied)."""


class Tracker:
    """One run: its record on disk, and the thread that sends it to MLflow. Made by `start` or `attach`."""

    def __init__(
        self, config: TrackingConfig, root: Path, run_folder: Path, kept: list[Record], run: _MlflowRun | None
    ) -> None:
        self._config, self._run = config, run
        self._file = MetricsFile(run_folder / "metrics.jsonl")
        self._where = mask(tracking_uri(config, root))
        self._queue: deque[Record | Callable[[], None]] = deque(kept)
        self._changed = threading.Condition()
        self._first_try, self._abandoned = threading.Event(), threading.Event()
        self._closing = False
        self._silent_since: float | None = None
        self._error: TrackingError | None = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        if run:
            _load_mlflow()  # here, not in the thread: importing in two threads at once can deadlock
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
            identity = _Identity(
                run_name, params, {key: value for key, value in described.items() if value}, dataset, run_id
            )
            run = _MlflowRun(config, root, run_folder, identity)
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
        tracked = config.backend == "mlflow" and _saved(run_folder).get("run_id")
        return cls(config, root, run_folder, [], _MlflowRun(config, root, run_folder, None) if tracked else None)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, once it is known."""
        return (self._run.run_id or _saved(self._run.folder).get("run_id")) if self._run else None

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

    def set_tag(self, key: str, value: str) -> None:
        self._call(lambda run: run.client.set_tag(run.run_id, key, mask(value)[:TAG_LENGTH]))

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
        left, deadline = len(self._queue), time.monotonic() + patience
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.1)
            if len(self._queue) < left:
                left, deadline = len(self._queue), time.monotonic() + patience

    def _call(self, call: Callable[[_MlflowRun], None]) -> None:
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

    def _next_batch(self) -> list[Any]:
        """The oldest item, with the records behind it if it is one. They stay in the queue until they are sent. Empty: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            batch: list[Any] = []
            metrics = 0
            for item in self._queue:
                metrics += BATCH_METRICS + 1 if callable(item) else len(item.metrics)
                if batch and metrics > BATCH_METRICS:
                    break
                batch.append(item)
            return batch

    def _try(self, call: Callable[[], None]) -> bool:
        """Call until it has worked or has been refused for good. False: given up, because the run is over."""
        pause = 0.25
        while not self._abandoned.is_set():
            try:
                call()
            except Exception as error:  # whatever it is, the run must go on; the line that it causes tells
                refused = self.run_id and (
                    getattr(error, "error_code", None) in FINAL or isinstance(error, FileNotFoundError)
                )
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
        now = time.monotonic()
        first = self._silent_since is None
        self._silent_since = now if self._silent_since is None else self._silent_since
        if self._config.on_failure == "stop":
            if not self._first_try.is_set() or now - self._silent_since >= self._config.patience:
                self._error = self._stop(first_cause(error))
        elif first:
            _say(
                f"warning: MLflow at {self._where} does not answer ({first_cause(error)}): the run goes on, its figures are kept "
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


@dataclass
class _MlflowRun:
    """The run in MLflow. Only the tracker's thread calls it."""

    config: TrackingConfig
    root: Path
    folder: Path
    identity: _Identity | None
    """None: a run that exists and to which something is added."""
    run_id: str = ""
    client: Any = None
    _monitor: Any = None
    _found: bool = False
    """Whether the run was there before, and so may have points already."""
    _steps: dict[str, set[int]] = field(default_factory=dict)
    """Steps that MLflow has, for each metric that was sent."""

    def open(self) -> None:
        """Find or make the run, and describe it."""
        from mlflow import MlflowClient

        if not self.config.uri:
            make_database(self.root / "mlflow.db")
        self.client = MlflowClient(tracking_uri=tracking_uri(self.config, self.root))
        saved = _saved(self.folder)
        if self.identity is None:
            self.run_id, self._found = saved["run_id"], True
            return
        if not saved and (run := self._existing(self.identity.run_id)) is not None:
            saved = self._save(key=run.data.tags.get(RUN_KEY, uuid.uuid4().hex), run_id=run.info.run_id)
        run = self._existing(saved.get("run_id"))
        if run is None:
            if "key" not in saved or saved.get("run_id"):  # none yet, or of a store that no longer has it
                saved = self._save(key=uuid.uuid4().hex)
                run = self._create(saved["key"], self.identity)
            else:  # begun, and perhaps made
                experiment = self._experiment()
                found = self.client.search_runs([experiment], f"tags.`{RUN_KEY}` = '{saved['key']}'", max_results=1)
                self._found = bool(found)
                run = found[0] if found else self._create(saved["key"], self.identity)
            self._save(key=saved["key"], run_id=run.info.run_id)
        else:
            self._found = True
        self.run_id = run.info.run_id
        if self._found:
            self.client.update_run(self.run_id, status="RUNNING")
        self._describe(run, self.identity)
        self._start_monitor()

    def send(self, records: list[Record]) -> None:
        """Send the points of these records that MLflow lacks."""
        from mlflow.entities import Metric

        points = {
            (key, record.step): Metric(key, value, record.time, record.step)
            for record in reversed(records)  # so that the first of a step wins
            for key, value in record.metrics.items()
            if record.step not in self._steps_of(key)
        }
        if points:
            self.client.log_batch(self.run_id, metrics=list(reversed(points.values())))
        for key, step in points:
            self._steps[key].add(step)

    def end(self, status: Status) -> None:
        if self.identity is not None:
            self._stop_monitor()
            self.client.set_terminated(self.run_id, status=status)

    def restart_monitor(self) -> None:
        """MLflow's monitor of the system gives up at the first request that fails."""
        if self._monitor is not None:
            self._stop_monitor()
            self._start_monitor()

    def _existing(self, run_id: str | None) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(run_id) if run_id else None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run and run.info.lifecycle_stage == "active" else None

    def _create(self, key: str, identity: _Identity) -> Any:
        return self.client.create_run(self._experiment(), run_name=identity.name, tags={RUN_KEY: key})

    def _experiment(self) -> str:
        """Id of the experiment, which is made if need be."""
        from mlflow.exceptions import MlflowException

        artifacts = None if is_server(self.config) else (self.root.absolute() / "mlartifacts").as_uri()
        if (found := self.client.get_experiment_by_name(self.config.experiment)) is None:
            try:
                return self.client.create_experiment(self.config.experiment, artifact_location=artifacts)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(self.config.experiment)  # another process was quicker
        if found is None or found.lifecycle_stage != "active":
            raise ValueError(
                f"the experiment {self.config.experiment!r} was deleted in MLflow: restore it or name another"
            )
        return found.experiment_id

    def _describe(self, run: Any, identity: _Identity) -> None:
        """Tags, the params that the run lacks (MLflow's are immutable), and the data set."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        params = [
            Param(key, mask(value)[:PARAM_LENGTH])
            for key, value in identity.params.items()
            if key not in run.data.params
        ]
        tags = [RunTag(key, mask(value)[:TAG_LENGTH]) for key, value in identity.tags.items()]
        for start in range(0, max(len(params), 1), BATCH_PARAMS):
            self.client.log_batch(self.run_id, params=params[start : start + BATCH_PARAMS], tags=[] if start else tags)
        if (data := identity.dataset) is not None:
            profile = json.dumps({"documents": data.documents, "tokens": data.tokens})
            source = json.dumps({"uri": mask(data.source)})
            entity = Dataset(data.name, data.digest[:36], "local", source, profile=profile)
            self.client.log_inputs(self.run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", data.context)])])

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._steps:
            history = self.client.get_metric_history(self.run_id, key) if self._found else []
            self._steps[key] = {point.step for point in history}
        return self._steps[key]

    def _save(self, **values: str) -> dict[str, str]:
        shown = {"uri": mask(tracking_uri(self.config, self.root)), "experiment": self.config.experiment, **values}
        write_atomically(self.folder / "mlflow_run.json", json.dumps(shown, indent=1).encode())
        return shown

    def _start_monitor(self) -> None:
        if self.config.system_metrics == "on":
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            uri = tracking_uri(self.config, self.root)
            self._monitor = SystemMetricsMonitor(
                self.run_id, sampling_interval=10, resume_logging=self._found, tracking_uri=uri
            )
            self._monitor.start()

    def _stop_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor, self._found = None, True


def tracking_uri(config: TrackingConfig, root: Path) -> str:
    """The config's URI, or the sqlite file in the folder of all runs."""
    return config.uri or f"sqlite:///{root.absolute() / 'mlflow.db'}"


def make_database(path: Path) -> None:
    """Make MLflow's tables in a file of another name, and give it its name when all are there: making them takes seconds, and
    MLflow never recovers from a kill in the middle of it. Of two processes that do this at once, the first wins.
    """
    if path.exists():
        return
    from mlflow import MlflowClient

    temporary = path.absolute().with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{temporary}").search_experiments(max_results=1)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_server(config: TrackingConfig) -> bool:
    """Whether MLflow is reached through a server, which then chooses where artifacts go."""
    return config.uri.startswith(("http:", "https:", "databricks"))


UI_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""For the process of `ui_command`: without these it calls home, and starts seven workers that nothing of ours uses."""


def ui_command(root: Path, port: int = 5000) -> list[str]:
    """The command that serves MLflow's pages on the runs below ``root``, to this machine alone."""
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(TrackingConfig(), root)]
    command += ["--default-artifact-root", (root.absolute() / "mlartifacts").as_uri()]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def _load_mlflow() -> None:
    """Import MLflow such that no request of it can take minutes and nothing of it talks."""
    settings = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # each failure reaches us as an exception too


def _saved(run_folder: Path) -> dict[str, str]:
    try:
        return json.loads((run_folder / "mlflow_run.json").read_bytes())
    except FileNotFoundError:
        return {}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
