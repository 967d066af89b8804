"""The run in MLflow: finding or making it, describing it, sending it what it lacks. Only the tracker's thread comes here."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from common.credentials import without_credentials
from common.errors import UserError
from pipelines.config.run import MLFLOW_ARTIFACTS, MLFLOW_DATABASE, TrackingConfig
from pipelines.tracking.client import is_server, make_database, tracking_uri
from pipelines.tracking.identity import (
    CHANGED,
    EVALUATED,
    FAILURE,
    KEY,
    PLACE,
    START,
    TAG_LENGTH,
    as_param,
    copy_note,
    forked,
    save_run,
    saved_run,
    tags_of,
)
from pipelines.tracking.metrics_file import Record
from pipelines.tracking.models import LoggedModels

Status = Literal["FINISHED", "FAILED", "KILLED"]
BATCH_METRICS = 1000
BATCH_PARAMS = 100
NAME_LENGTH = 250
"""MLflow's limits: metrics, and params or tags, of a batch; characters of a name."""


@dataclass(frozen=True)
class DatasetInfo:
    """A run's data set, as MLflow lists it beside the run."""

    name: str
    digest: str
    """Fingerprint of the data, up to 36 characters."""
    source: str
    documents: int
    tokens: int
    context: Literal["training", "evaluation"] = "training"


@dataclass
class MlflowRun:
    """The run in MLflow. A call that is repeated, because MLflow did not answer, finds what the first one had done."""

    config: TrackingConfig
    root: Path
    folder: Path
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    dataset: DatasetInfo | None = None
    step: int = 0
    """The step from which the run continues."""
    attached: bool = False
    """Whether something is added to a run that exists already."""
    over: bool = False
    """Whether the run is over, and only its end is noted."""
    run_id: str = ""
    client: Any = None
    models: LoggedModels = field(init=False)
    _sent_params: Mapping[str, str] = field(default_factory=dict)
    _sent_tags: Mapping[str, str] = field(default_factory=dict)
    _monitor: Any = None
    _experiment_name: str = ""
    """Name of the experiment that the run is in."""
    _experiment_id: str = ""
    _existed: bool = True
    """Whether the run was there before, and so may have points already."""
    _ended: int | None = None
    """When the run had ended before this start, in milliseconds since 1970, as long as nothing is added to it."""
    _points: dict[str, dict[int, Any]] = field(default_factory=dict)
    """Points that MLflow has, by metric and step. Validation metrics keep the point, as a checkpoint's model gets it too."""

    def open(self) -> None:
        """Find the run, or make it."""
        if self.run_id:
            return
        from mlflow import MlflowClient

        if not self.config.uri:
            make_database(self.root / MLFLOW_DATABASE)
        self.client = MlflowClient(tracking_uri=tracking_uri(self.config, self.root))
        self._experiment_name = self.config.experiment or "throughline"
        saved = saved_run(self.folder)
        run_id = saved["run_id"] if self.attached else self._find_or_make(saved)
        own = {key: value for key, value in self.params.items() if key.startswith("model.")}
        self.models = LoggedModels(self.client, is_server(self.config), run_id, self.name, own)
        self.run_id = run_id

    def describe(self) -> None:
        """Send tags, the params that the run lacks (MLflow's are immutable), and the data set; end the run that this one leaves."""
        saved = saved_run(self.folder)
        if self._existed:  # a folder that was moved has another name
            renamed = self.name[:NAME_LENGTH] if saved.get("name", self.name) != self.name else None
            self.client.update_run(self.run_id, status="RUNNING", name=renamed)
        self._send_params_and_tags({**self.tags, **tags_of(saved)})
        self._end_abandoned(saved.get("abandoned", {}))
        self._save(name=self.name, starts=saved["starts"][-1:], abandoned=None)
        if self.dataset is not None:
            self._send_dataset(self.dataset)
        if self.config.system_metrics == "on":
            self._start_monitor(resume=self._existed)

    def send(self, records: list[Record]) -> None:
        """Send the points of these records that MLflow lacks. The first point of a metric at a step stays."""
        from mlflow.entities import Metric

        points: dict[tuple[str, int], Metric] = {}
        for record in records:
            for key, value in record.metrics.items():
                if record.step not in self._known(key):
                    points.setdefault((key, record.step), Metric(key, value, record.time, record.step))
        lacking = list(points.values())
        for start in range(0, len(lacking), BATCH_METRICS):
            batch = lacking[start : start + BATCH_METRICS]
            self.client.log_batch(self.run_id, metrics=batch)
            self._ended = None
            for point in batch:
                self._note(point)

    def log_artifact(self, path: Path, folder: str) -> None:
        """Upload a file, below ``folder``."""
        self.client.log_artifact(self.run_id, str(path), folder or None)
        self._ended = None

    def log_checkpoint(self, step: int, tags: Mapping[str, Any]) -> None:
        """Make a checkpoint a model in MLflow, with the validation metrics of its step."""
        self.models.log(step, tags, [points[step] for points in self._points.values() if points.get(step)])

    def register(self, step: int, folder: Path, name: str, owner: Path) -> None:
        """Register the model of a step, with the folder's files, as the best of its owner, a run or a sweep. Removes the folder."""
        saved = saved_run(owner)
        self.models.register(step, folder, name, {KEY: saved["key"], PLACE: saved["place"]})
        self._save(registered=str(step))
        shutil.rmtree(folder, ignore_errors=True)

    def end(self, status: Status) -> None:
        """End the run in MLflow with this status, and delete what an abandoned request made twice."""
        self.models.look_again()
        if not self.attached:
            # MLflow may have carried out a request that was given up.
            for run in self._runs_with_key(saved_run(self.folder).get("key", "")):
                if run.info.run_id != self.run_id:
                    self.client.delete_run(run.info.run_id)
            if self._monitor is not None:
                self._monitor.finish()
            self._monitor = None
            ended = self._ended if self.over or status == "FINISHED" else None
            self.client.set_terminated(self.run_id, status=status, end_time=ended)

    def restart_monitor(self) -> None:
        """Start MLflow's system monitor again: it gives up at the first request that fails."""
        if self._monitor is not None:
            self._monitor.finish()
            self._start_monitor(resume=True)

    def _send_params_and_tags(self, named: Mapping[str, object]) -> None:
        """Send these tags, and the params that the run lacks. Delete tags of an earlier start that hold no longer."""
        from mlflow.entities import Param, RunTag
        from mlflow.exceptions import MlflowException

        lacking = [(key, value) for key, value in self.params.items() if key not in self._sent_params]
        params = [Param(key, as_param(value)) for key, value in lacking]
        tags = [RunTag(key, without_credentials(value)[:TAG_LENGTH]) for key, value in named.items()]
        for start in range(0, max(len(params), len(tags)), BATCH_PARAMS):
            batch = slice(start, start + BATCH_PARAMS)
            self.client.log_batch(self.run_id, params=params[batch], tags=tags[batch])
        of_a_start = (CHANGED, EVALUATED) if self.over else (CHANGED, EVALUATED, FAILURE)
        for key in self._sent_tags:
            if key.startswith(of_a_start) and key not in named:
                try:
                    self.client.delete_tag(self.run_id, key)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # deleted by a request whose answer was lost
                        raise

    def _end_abandoned(self, abandoned: Mapping[str, Any]) -> None:
        """End the run that got this folder's steps before it became a new run, unless it has ended or a copy continues it."""
        left = self._active_run(abandoned.get("run_id"))
        running = left is not None and left.info.status == "RUNNING"
        if running and left.data.tags.get(START) in abandoned["starts"]:
            self.client.set_terminated(left.info.run_id, status="KILLED")

    def _send_dataset(self, data: DatasetInfo) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        profile = json.dumps({"documents": data.documents, "tokens": data.tokens})
        source = json.dumps({"uri": without_credentials(data.source)})
        entity = Dataset(data.name, data.digest[:36], "local", source, profile=profile)
        self.client.log_inputs(self.run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", data.context)])])

    def _find_or_make(self, saved: Mapping[str, str]) -> str:
        """Id of the run that ``saved``, mlflow_run.json, names; of a new one if MLflow lacks it or another folder continued it."""
        key = saved.get("key", "")
        run_id = saved.get("run_id")
        begun = [] if run_id else self._runs_with_key(key)  # an earlier start may have made the run
        run = begun[0] if begun else self._active_run(run_id)
        if run is not None and run.data.tags.get(START, saved["starts"][0]) not in saved["starts"]:
            self._leave(run)
            run = None
            key = saved_run(self.folder)["key"]
            run_id = None
        self._existed = run is not None
        if run is None:
            # First of all: if the experiment was deleted, so were its runs, and they return when it is restored.
            experiment = self._experiment()
            if run_id:  # MLflow's store no longer has it, or never had
                key = uuid.uuid4().hex
                self._save(key=key, run_id=None, registered=None)
            tags = {KEY: key, START: saved["starts"][-1]}
            run = self.client.create_run(experiment, run_name=self.name[:NAME_LENGTH], tags=tags)
        else:
            self._stay_in_experiment(run)
            self._ended = run.info.end_time if self.over or run.info.status == "FINISHED" else None
        self._save(key=run.data.tags.get(KEY, key), run_id=run.info.run_id)
        self._sent_params = run.data.params
        self._sent_tags = run.data.tags
        self._experiment_id = run.info.experiment_id
        return run.info.run_id

    def _stay_in_experiment(self, run: Any) -> None:
        """Take the experiment of a run that was there before, and print a note if the config names another."""
        name = self.client.get_experiment(run.info.experiment_id).name
        if self.config.experiment and name != self.config.experiment:
            print(
                f"note: the run stays in the experiment {name!r}, in which it began: MLflow moves no run",
                file=sys.stderr,
                flush=True,
            )
        self._experiment_name = name

    def _leave(self, run: Any) -> None:
        """Make this folder a new run: another folder has continued MLflow's run since this one was copied."""
        saved = saved_run(self.folder)
        place = run.data.tags.get(PLACE, saved["place"])
        save_run(self.folder, forked(saved, place, self.step))
        print(f"note: {copy_note(saved['place'], place)}", file=sys.stderr, flush=True)

    def _runs_with_key(self, key: str) -> list[Any]:
        """The runs that were made under a key: one, or more if MLflow was too slow to answer."""
        if not key:
            return []
        return list(self.client.search_runs([self._experiment()], f"tags.`{KEY}` = '{key}'"))

    def _active_run(self, run_id: str | None) -> Any:
        """The run of this id; None where MLflow has none, or it was deleted there."""
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(run_id) if run_id else None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run and run.info.lifecycle_stage == "active" else None

    def _experiment(self) -> str:
        """Id of the experiment, which is found or made once."""
        self._experiment_id = self._experiment_id or self._find_or_make_experiment()
        return self._experiment_id

    def _find_or_make_experiment(self) -> str:
        """Id of the experiment of this name. Raises UserError if it was deleted."""
        from mlflow.exceptions import MlflowException

        name = self._experiment_name
        artifacts = None if is_server(self.config) else (self.root.absolute() / MLFLOW_ARTIFACTS).as_uri()
        try:
            return self.client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:
            found = self.client.get_experiment_by_name(name)
            if found is None:
                raise
        if found.lifecycle_stage != "active":
            raise UserError(f"the experiment {name!r} was deleted in MLflow: restore it or name another")
        return found.experiment_id

    def _known(self, key: str) -> dict[int, Any]:
        """MLflow's points of a metric, by step. MLflow is asked once, and only about a run that was there before."""
        if key not in self._points:
            history = self.client.get_metric_history(self.run_id, key) if self._existed else []
            self._points[key] = {}
            for point in history:
                self._note(point)
        return self._points[key]

    def _note(self, point: Any) -> None:
        """Note that MLflow has a point."""
        self._points[point.key].setdefault(point.step, point if point.key.startswith("validation/") else None)

    def _save(self, **values: Any) -> None:
        """Write values into mlflow_run.json, with the tracking URI and the experiment. A value None removes its key."""
        where = {"uri": without_credentials(tracking_uri(self.config, self.root)), "experiment": self._experiment_name}
        saved = saved_run(self.folder)
        noted = {key: value for key, value in {**saved, **values, **where}.items() if value is not None}
        if noted != saved:
            save_run(self.folder, noted)

    def _start_monitor(self, resume: bool) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        uri = tracking_uri(self.config, self.root)
        self._monitor = SystemMetricsMonitor(self.run_id, sampling_interval=10, resume_logging=resume, tracking_uri=uri)
        self._monitor.start()
