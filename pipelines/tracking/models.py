"""Checkpoints as MLflow's LoggedModels, at their steps and with their validation metrics, and the best of them in the registry.

A LoggedModel records the checkpoint's place (tag `checkpoint`) and copies none of it: a run's checkpoints are gigabytes, and most
are removed while it trains. Only the best one has files, those of `pipelines.export`, which the registry hands out. Each is looked
up by the tag `step` before it is made, so that kills and resumes make none twice. A second one, made by a request that was given up
and sent again, is deleted at the next lookup.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.credentials import without_credentials
from pipelines.tracking.client import REQUEST_SECONDS
from pipelines.tracking.identity import KEY, PLACE, shown

BEST = "best"
"""The alias of the registered model's version that has the best validation."""
SLOWEST_UPLOAD = 2e6
"""Slowest upload in bytes per second: a request that uploads a file may take as long as this needs."""
VALUE_LENGTH = 500
"""MLflow's limit for a LoggedModel's params."""


@dataclass
class LoggedModels:
    """The LoggedModels of one run. Only the tracker's thread calls it."""

    client: Any
    server: bool
    run_id: str
    name: str
    params: Mapping[str, Any]
    _experiment: str = ""
    _by_step: dict[int, Any] | None = None
    """MLflow's models by step; None: MLflow has to be asked."""
    _outputs: set[str] = field(default_factory=set)
    """Ids of the models that the run lists as its own."""

    def log(self, step: int, tags: Mapping[str, Any], points: Sequence[Any]) -> None:
        """Make the model of a step, or complete it. ``points``: the run's validation metrics of that step, as MLflow has them."""
        from mlflow.entities import LoggedModelOutput, Metric

        known = self._known()
        model = known.get(step)
        told = {key: without_credentials(value) for key, value in tags.items()}
        # The checkpoint was made again after the run fell back, and may be elsewhere.
        if model is not None and told.items() - model.tags.items():
            self.client.set_logged_model_tags(model.model_id, told)
        if model is not None and str(model.status) == "READY" and model.model_id in self._outputs:
            return
        self._by_step = None  # a request may arrive without an answer: look the model up before sending it again
        if model is None:
            model = self.client.create_logged_model(
                self._experiment,
                name=f"{plain(self.name)}-step-{step}",
                source_run_id=self.run_id,
                tags={"step": str(step), **told},
                params={key: without_credentials(value)[:VALUE_LENGTH] for key, value in self.params.items()},
                model_type="throughline",
            )
        if model.model_id not in self._outputs:
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        own = [Metric(p.key, p.value, p.timestamp, p.step, model_id=model.model_id) for p in points]
        if own:
            self.client.log_batch(self.run_id, metrics=own)
        known[step] = self.client.finalize_logged_model(model.model_id, "READY")
        self._outputs.add(model.model_id)
        self._by_step = known

    def register(self, step: int, folder: Path, name: str, owner: Mapping[str, str]) -> None:
        """Upload the folder as the files of a step's model, and make that the best version of the registered model ``name``. Where
        another run or sweep has that name, a mark of this one is added to it. ``owner``: tags that say whose model it is.
        """
        model = self._known().get(step)
        if model is None:
            raise FileNotFoundError(f"there is no model of step {step} to register")
        name = self._registered_model(plain(name), owner)
        versions = self.client.search_model_versions(f"name = '{name}'")
        version = next((version for version in versions if version.tags.get("model_id") == model.model_id), None)
        if version is None:
            with long_requests(max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)):
                self.client.log_model_artifacts(model.model_id, str(folder))
            # A server takes a model by its id alone. Without one, MLflow would look an id up in its default database.
            source = f"models:/{model.model_id}" if self.server else model.artifact_location
            run = self.client.get_run(self.run_id).info.run_name or self.name
            tags = {"step": str(step), "run": run, "model_id": model.model_id}
            metrics = {metric.key: f"{metric.value:.4f}" for metric in model.metrics or []}
            told = f"Step {step} of {run}. " + ", ".join(f"{key} {value}" for key, value in sorted(metrics.items()))
            version = self.client.create_model_version(
                name, source, run_id=self.run_id, tags=tags, description=told, model_id=model.model_id
            )
        self.client.set_registered_model_alias(name, BEST, version.version)

    def _registered_model(self, name: str, owner: Mapping[str, str]) -> str:
        """The name of the owner's registered model, which is made if need be. A model is the owner's where one of its tags says so:
        a folder may have been moved, and the run in a folder may have been begun anew.
        """
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(name, tags=dict(owner))
            return name
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        tags = self.client.get_registered_model(name).tags
        if any(tags.get(key) == value for key, value in owner.items()):
            for key, value in owner.items() - tags.items():
                self.client.set_registered_model_tag(name, key, value)
            return name
        marked = f"{name}-{owner[KEY][:8]}"
        whose = f"that of {shown(tags[PLACE])}" if PLACE in tags else "somebody else's"
        print(f"note: {name} in MLflow's registry is {whose}: this model is {marked}", file=sys.stderr, flush=True)
        return self._registered_model(marked, owner)

    def look_again(self) -> None:
        """Look the models up again at the end: a request that was given up may have been carried out since."""
        if self._by_step is not None:
            self._by_step = None
            self._known()

    def _known(self) -> dict[int, Any]:
        """The models by their step. If two have the same step, the one that the run lists stays, else the older one."""
        if self._by_step is None:
            run = self.client.get_run(self.run_id)
            self._experiment = run.info.experiment_id
            self._outputs = {output.model_id for output in (run.outputs.model_outputs if run.outputs else [])}
            found: dict[int, Any] = {}
            for model in sorted(self._all(), key=lambda it: (it.model_id not in self._outputs, it.creation_timestamp)):
                if found.setdefault(int(model.tags["step"]), model) is not model:
                    self.client.delete_logged_model(model.model_id)
            self._by_step = found
        return self._by_step

    def _all(self) -> Iterator[Any]:
        token = None
        while True:
            page = self.client.search_logged_models(
                [self._experiment], f"source_run_id = '{self.run_id}'", page_token=token
            )
            yield from (model for model in page if model.tags.get("step", "").isdigit())
            token = page.token
            if not token:
                return


def plain(name: str) -> str:
    """The name without the characters that MLflow allows in no model's name."""
    return re.sub(r"[/:.%\"']", "-", name)


@contextmanager
def long_requests(size: int) -> Iterator[None]:
    """Let a request take as long as so many bytes may need."""
    key = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ.get(key, str(REQUEST_SECONDS))
    os.environ[key] = str(max(int(before), int(size / SLOWEST_UPLOAD)))
    try:
        yield
    finally:
        os.environ[key] = before
