"""The run in MLflow: finding or making it, describing it, sending it what it lacks. Only the tracker's thread comes here."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.credentials import without_credentials
from data_prep.errors import UserError
from data_prep.manifest import write_atomically
from pipelines.config.run import TrackingConfig
from pipelines.tracking.client import make_database
from pipelines.tracking.config import Identity, Status, experiment_of, is_server, tracking_uri
from pipelines.tracking.metrics_file import Record
from pipelines.tracking.models import Models

RUN_KEY = "throughline.run_key"
"""Tag by which a run is found that MLflow made and that we were killed, or not answered, before we could note its id."""
BATCH_METRICS, BATCH_PARAMS, PARAM_LENGTH, TAG_LENGTH = 1000, 100, 6000, 5000
"""MLflow's limits."""


@dataclass
class MlflowRun:
    """The run in MLflow. Only the tracker's thread calls it."""

    config: TrackingConfig
    root: Path
    folder: Path
    identity: Identity | None
    """None: a run that exists and to which something is added."""
    run_id: str = ""
    client: Any = None
    _monitor: Any = None
    _found: bool = False
    """Whether the run was there before, and so may have points already."""
    _steps: dict[str, set[int]] = field(default_factory=dict)
    """Steps that MLflow has, for each metric that was sent."""
    _validation: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Validation metrics as MLflow has them, by step and name."""
    _models: Models | None = None

    def open(self) -> None:
        """Find or make the run, and describe it."""
        from mlflow import MlflowClient

        if not self.config.uri:
            make_database(self.root / "mlflow.db")
        self.client = MlflowClient(tracking_uri=tracking_uri(self.config, self.root))
        saved = saved_run(self.folder)
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
        for (key, step), point in points.items():
            self._steps[key].add(step)
            self._note(key, point)

    def log_checkpoint(self, step: int, tags: Mapping[str, Any]) -> None:
        """The model of a checkpoint, with the validation figures of its step."""
        self.models().log(step, tags, list(self._validation.get(step, {}).values()))

    def register(self, step: int, folder: Path, name: str) -> None:
        """The model of a step, with these files, as the best of those that are registered so. The folder is removed."""
        self.models().register(step, folder, name)
        self._save(**{**saved_run(self.folder), "registered": str(step)})
        shutil.rmtree(folder, ignore_errors=True)

    def models(self) -> Models:
        if self._models is None:
            params = self.identity.params if self.identity else {}
            own = {key: value for key, value in params.items() if key.startswith("model.")}
            name = self.identity.name if self.identity else self.folder.name
            self._models = Models(self.client, is_server(self.config), self.run_id, name, own)
        return self._models

    def end(self, status: Status) -> None:
        if self._models is not None:
            self._models.remove_doubles()
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

    def _create(self, key: str, identity: Identity) -> Any:
        return self.client.create_run(self._experiment(), run_name=identity.name, tags={RUN_KEY: key})

    def _experiment(self) -> str:
        """Id of the experiment, which is made if need be."""
        from mlflow.exceptions import MlflowException

        artifacts = None if is_server(self.config) else (self.root.absolute() / "mlartifacts").as_uri()
        if (found := self.client.get_experiment_by_name(experiment_of(self.config))) is None:
            try:
                return self.client.create_experiment(experiment_of(self.config), artifact_location=artifacts)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(experiment_of(self.config))  # another process was quicker
        if found is None or found.lifecycle_stage != "active":
            raise UserError(
                f"the experiment {experiment_of(self.config)!r} was deleted in MLflow: restore it or name another"
            )
        return found.experiment_id

    def _describe(self, run: Any, identity: Identity) -> None:
        """Tags, the params that the run lacks (MLflow's are immutable), and the data set."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        params = [
            Param(key, without_credentials(value)[:PARAM_LENGTH])
            for key, value in identity.params.items()
            if key not in run.data.params
        ]
        tags = [RunTag(key, without_credentials(value)[:TAG_LENGTH]) for key, value in identity.tags.items()]
        for start in range(0, max(len(params), 1), BATCH_PARAMS):
            self.client.log_batch(self.run_id, params=params[start : start + BATCH_PARAMS], tags=[] if start else tags)
        if (data := identity.dataset) is not None:
            profile = json.dumps({"documents": data.documents, "tokens": data.tokens})
            source = json.dumps({"uri": without_credentials(data.source)})
            entity = Dataset(data.name, data.digest[:36], "local", source, profile=profile)
            self.client.log_inputs(self.run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", data.context)])])

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._steps:
            history = self.client.get_metric_history(self.run_id, key) if self._found else []
            self._steps[key] = {point.step for point in history}
            for point in history:
                self._note(key, point)
        return self._steps[key]

    def _note(self, key: str, point: Any) -> None:
        if key.startswith("validation/"):
            self._validation.setdefault(point.step, {}).setdefault(key, point)

    def _save(self, **values: str) -> dict[str, str]:
        shown = {
            "uri": without_credentials(tracking_uri(self.config, self.root)),
            "experiment": experiment_of(self.config),
            **values,
        }
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


def saved_run(run_folder: Path) -> dict[str, str]:
    try:
        return json.loads((run_folder / "mlflow_run.json").read_bytes())
    except FileNotFoundError:
        return {}
