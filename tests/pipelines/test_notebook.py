"""MLflow as the lab notebook, asked through its REST API: nothing here shares code with what writes it. Only the model that the
registry hands out is loaded, as a user would: with transformers.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

import recur_models.hf  # noqa: F401  (registers the models)
from benchmarks.killing import make_store
from pipelines.config.run import TrackingConfig
from pipelines.inference.registering import register_best
from pipelines.presets import PRESETS
from pipelines.reports.comparison import compare, rows
from pipelines.reports.finished_runs import collect
from pipelines.tracking import Tracker
from pipelines.train import main as train_run
from tests.mlflow_server import Server
from tests.small_runs import TINY, forget
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """A config as MLflow's params should have it."""
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: str(value)}
    return found


def pairs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["key"]: entry.get("value", "") for entry in entries}


def models_of(server: Server, run: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """LoggedModels of a run, by their step."""
    found = server.post("logged-models/search", experiment_ids=[run["info"]["experiment_id"]], max_results=50)
    own = [m for m in found.get("models", []) if m["info"]["source_run_id"] == run["info"]["run_id"]]
    by_step = {int(pairs(model["info"]["tags"])["step"]): model for model in own}
    assert len(by_step) == len(own), "two models of one step"
    return by_step


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def download(uri: str, model: str, folder: Path) -> Path:
    """By MLflow's own command."""
    where = ["--artifact-uri", model, "--dst-path", str(folder)]
    command = [sys.executable, "-m", "mlflow", "artifacts", "download", *where]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return next(path.parent for path in folder.rglob("config.json"))


@torch.no_grad()
def bits_per_token(folder: Path, texts: list[str]) -> float:
    """Bits per token of the exported model on whole texts, each in one pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    nats, tokens = 0.0, 0
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        logits = model(ids[:, :-1], use_cache=False).logits.double()
        nats += torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
        tokens += ids.shape[1] - 1
    return nats / math.log(2) / tokens


@dataclass(frozen=True)
class Notebook:
    """A sweep of two trials, the first of which was resumed, and a run alone, resumed in a folder without its record."""

    server: Server
    root: Path
    """Where the runs' folders are."""
    texts: Path
    """The corpus of the runs: a folder for each split."""
    tracking: TrackingConfig
    parent: str
    """The sweep's id in MLflow."""
    runs: dict[str, dict[str, Any]]
    """MLflow's runs by name."""

    def logged(self, name: str) -> dict[tuple[str, int], float]:
        """The values of a run's metrics.jsonl, by metric and step; of a step that was logged twice, the first."""
        read = lines(self.root / name)[::-1]
        return {(key, line["step"]): value for line in read for key, value in line["metrics"].items()}

    def validations(self, name: str) -> dict[int, dict[str, float]]:
        """The metrics of a run's models, by step."""
        models = models_of(self.server, self.runs[name])
        return {
            step: {m["key"]: m["value"] for m in model["data"].get("metrics", [])} for step, model in models.items()
        }


@pytest.fixture(scope="module")
def notebook(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Notebook:
    folder = tmp_path_factory.mktemp("notebook")
    store, root = make_store(folder), folder / "runs"
    tracking = TrackingConfig(uri=server.uri, experiment="notebook", system_metrics="off")
    parent = Tracker.start(tracking, root, root / "sweep", "sweep", {"space": "lr"}, {"stage": "sweep"})
    wait_until(lambda: parent.run_id)
    where = ["--data.store", str(store), "--root", str(root), "--tracking.backend", "mlflow"]
    where += ["--tracking.uri", server.uri, "--tracking.experiment", "notebook", "--tracking.system-metrics", "off"]

    def train(name: str, *words: str) -> Path:
        train_run([*TINY, *where, "--validate-tokens", "0", "--checkpoint.keep", "2", "--run", name, *words])
        return root / name

    for number, lr in enumerate(("1e-3", "1e-2")):
        train(f"sweep/trials/{number}", "--tracking.parent", parent.run_id or "", "--optim.lr", lr)
    forget(root / "sweep/trials/0", 20)  # and resumes from step 15
    train("sweep/trials/0", "--tracking.parent", parent.run_id or "", "--optim.lr", "1e-3")
    alone = train("alone")
    forget(alone, 20)
    (alone / "mlflow_run.json").unlink()  # as a folder that was copied: the checkpoint says which run it is
    train("alone")
    train("alone")  # finds nothing to do
    parent.finish()
    experiment = server.call("experiments/get-by-name", experiment_name="notebook")["experiment"]["experiment_id"]
    found = server.post("runs/search", experiment_ids=[experiment])["runs"]
    runs = {run["info"]["run_name"]: run for run in found}
    assert len(runs) == len(found), "two runs of one name"
    return Notebook(server, root, folder / "text", tracking, parent.run_id or "", runs)


TRIALS = ["sweep/trials/0", "sweep/trials/1"]


@pytest.mark.long
def test_a_sweeps_trials_are_its_children(notebook: Notebook) -> None:
    assert sorted(notebook.runs) == ["alone", "sweep", *TRIALS]
    parents = {name: pairs(run["data"]["tags"]).get("mlflow.parentRunId") for name, run in notebook.runs.items()}
    assert parents == dict.fromkeys(("alone", "sweep")) | dict.fromkeys(TRIALS, notebook.parent)


@pytest.mark.long
@pytest.mark.parametrize("name", ["alone", *TRIALS])
def test_a_run_has_its_config_its_data_and_every_metric_once(notebook: Notebook, name: str) -> None:
    run = notebook.runs[name]
    logged = notebook.logged(name)
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["params"]) == flat(json.loads((notebook.root / name / "config.json").read_text()))
    assert run["inputs"]["dataset_inputs"][0]["dataset"]["name"] == "text/train"
    assert {metric["key"] for metric in run["data"]["metrics"]} == {key for key, _ in logged}
    for metric in {key for key, _ in logged}:
        points = notebook.server.points(run["info"]["run_id"], metric)
        assert Counter(p["step"] for p in points) == Counter(step for key, step in logged if key == metric), metric
        if "per_second" not in metric:
            assert all(point["value"] == logged[metric, point["step"]] for point in points), metric


@pytest.mark.long
@pytest.mark.parametrize("name", ["alone", *TRIALS])
def test_each_checkpoint_is_a_model_with_its_validation(notebook: Notebook, name: str) -> None:
    run = notebook.runs[name]
    logged = notebook.logged(name)
    models = models_of(notebook.server, run)
    assert sorted(models) == [5, 10, 15, 20]
    assert {(o["model_id"], int(o["step"])) for o in run["outputs"]["model_outputs"]} == {
        (model["info"]["model_id"], step) for step, model in models.items()
    }
    for step, metrics in notebook.validations(name).items():
        assert metrics == {key: v for (key, at), v in logged.items() if at == step and key.startswith("validation/")}
    for step, model in models.items():
        assert model["info"]["status"] == "LOGGED_MODEL_READY"
        assert pairs(model["info"]["tags"])["checkpoint"].endswith(f"step-{step:08d}")


@pytest.mark.long
def test_runs_compare_alike_by_mlflow_and_by_folder(notebook: Notebook, tmp_path: Path) -> None:
    folders = [str(notebook.root / name) for name in ("alone", *TRIALS)]
    asked = [notebook.runs["alone"]["info"]["run_id"], notebook.parent, *folders]
    found = collect(asked, notebook.tracking, tmp_path, every_trial=True)
    table = sorted(
        (row["run"].partition(" ")[0], row["parameters"], row["tokens"], row["best_bits_per_token"], row["flops"])
        for row in rows(compare(found))
    )
    assert len(table) == 6 and table[::2] == table[1::2] and {run.tokenizer for run in found} == {found[0].tokenizer}


@pytest.mark.long
def test_a_run_that_mlflow_has_not_is_refused(notebook: Notebook, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no run 0000"):
        collect(["0" * 32], notebook.tracking, tmp_path, every_trial=False)


@pytest.mark.long
def test_the_best_checkpoint_is_registered_and_transformers_opens_it(notebook: Notebook, tmp_path: Path) -> None:
    version = notebook.server.call("registered-models/alias", name="alone", alias="best")["model_version"]
    run = notebook.runs["alone"]
    validations = notebook.validations("alone")
    best = min((10, 20), key=lambda step: validations[step]["validation/bits_per_token"])
    model = models_of(notebook.server, run)[best]
    assert version["source"] == f"models:/{model['info']['model_id']}"
    assert version["version"] == "1" and version["run_id"] == run["info"]["run_id"]
    exported = download(notebook.server.uri, "models:/alone@best", tmp_path / "downloaded")
    texts = [path.read_bytes().decode() for path in sorted((notebook.texts / "validation").iterdir())]
    expected = validations[best]["validation/bits_per_token"]
    assert bits_per_token(exported, texts) == pytest.approx(expected, abs=1e-6)
    assert not (notebook.root / "alone" / ".exported").exists()


def test_the_best_trial_is_that_of_the_sweeps_own_metric(server: Server, tmp_path: Path) -> None:
    experiment = server.post("experiments/create", name="metric")["experiment_id"]

    def run(name: str, params: dict[str, str], parent: str = "", **values: float) -> str:
        tags = [{"key": "mlflow.parentRunId", "value": parent}] if parent else []
        made = server.post("runs/create", experiment_id=experiment, run_name=name, start_time=0, tags=tags)["run"][
            "info"
        ]
        metrics = [
            {"key": f"validation/{key}", "value": value, "step": 1, "timestamp": 1} for key, value in values.items()
        ]
        told = [{"key": key, "value": value} for key, value in params.items()]
        server.post("runs/log-batch", run_id=made["run_id"], metrics=metrics, params=told)
        return made["run_id"]

    parent = run("sweep", {"metric": "validation/bits_per_byte"})
    run("bytes", {"model.name": "rec"}, parent, bits_per_token=2.0, bits_per_byte=2.0)
    run("pieces", {"model.name": "rec"}, parent, bits_per_token=5.0, bits_per_byte=1.5)
    (best,) = collect([parent], TrackingConfig(uri=server.uri), tmp_path, every_trial=False)
    assert best.name == "pieces"


MANY = """
import sys
from multiprocessing import get_context
from pathlib import Path
from pipelines.config.run import TrackingConfig
from pipelines.tracking import Tracker
from pipelines.tracking.client import load_mlflow
root, server, *names = sys.argv[1:]
places = [TrackingConfig(experiment="many", uri=uri, system_metrics="off") for uri in ("", server)]

def track(name):
    folders = [Path(root, f"{name}-{number}") for number in range(len(places))]
    trackers = [Tracker.start(place, Path(root), to, to.name, {}, {}) for place, to in zip(places, folders)]
    for step in range(1, 201):
        for tracker in trackers:
            tracker.log({"a": step / 2, name: -step}, step)
    assert all(tracker.finish() for tracker in trackers)

load_mlflow()  # once for all of them
crowd = [get_context("fork").Process(target=track, args=(name,)) for name in names]
for process in crowd:
    process.start()
for process in crowd:
    process.join()
print([process.exitcode for process in crowd])
"""


@pytest.mark.long
def test_many_runs_at_once_lose_no_metric(server: Server, tmp_path: Path) -> None:
    """Into one sqlite file, which none of them finds there, and into one server."""
    names = [f"run-{number}" for number in range(3)]
    words = [sys.executable, "-c", MANY, str(tmp_path), server.uri, *names]
    crowd = subprocess.run(words, capture_output=True, text=True)
    assert (crowd.stdout, crowd.stderr) == ("[0, 0, 0]\n", "")
    database = sqlite3.connect(tmp_path / "mlflow.db")
    for name in names:
        local, remote = (json.loads((tmp_path / f"{name}-{i}/mlflow_run.json").read_text())["run_id"] for i in range(2))
        for key in ("a", name):
            query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
            assert [step for (step,) in database.execute(query, (local, key))] == list(range(1, 201))
            assert server.steps(remote, key) == list(range(1, 201))


def test_a_model_that_was_made_twice_is_one(server: Server, tmp_path: Path) -> None:
    """As when a request was given up and sent again, and the server answered both."""
    config = TrackingConfig(uri=server.uri, experiment="twice", system_metrics="off")
    tracker = Tracker.start(config, tmp_path, tmp_path / "run", "a.run/1", {"model.layers": 2, "optim.lr": 1}, {})
    tracker.log({"validation/bits_per_token": 5.0}, 10)
    tracker.log_checkpoint(10, {"checkpoint": "s3://key:secret@bucket/step-10"})
    wait_until(lambda: tracker.run_id and models_of(server, server.run(tracker.run_id)))
    run = server.run(tracker.run_id or "")
    tag, experiment = {"key": "step", "value": "10"}, run["info"]["experiment_id"]
    server.post("logged-models", experiment_id=experiment, source_run_id=tracker.run_id, name="double", tags=[tag])
    tracker.finish()
    again = Tracker.start(config, tmp_path, tmp_path / "run", "a.run/1", {"model.layers": 2}, {}, resume_step=10)
    again.log_checkpoint(10, {})
    again.finish()
    (model,) = models_of(server, run).values()
    assert model["info"]["name"] == "a-run-1-step-10" and pairs(model["data"]["params"]) == {"model.layers": "2"}
    assert pairs(model["info"]["tags"])["checkpoint"] == "s3://bucket/step-10"
    outputs = server.run(tracker.run_id or "")["outputs"]["model_outputs"]
    assert [output["model_id"] for output in outputs] == [model["info"]["model_id"]]


def test_the_model_of_a_step_that_was_made_again_says_where_it_lies(server: Server, tmp_path: Path) -> None:
    config = TrackingConfig(uri=server.uri, experiment="again", system_metrics="off")
    for token in ("0badc0de", "deadbeef"):  # the run fell back, and came to the step once more
        tracker = Tracker.start(config, tmp_path, tmp_path / "run", "run", {}, {})
        tracker.log_checkpoint(10, {"checkpoint": f"s3://bucket/step-10.{token}", "tokens": 100})
        assert tracker.finish()
    (model,) = models_of(server, server.run(tracker.run_id or "")).values()
    tags = {"step": "10", "checkpoint": "s3://bucket/step-10.deadbeef", "tokens": "100"}
    assert tags.items() <= pairs(model["info"]["tags"]).items()


def test_a_checkpoint_that_cannot_be_exported_costs_a_warning(
    server: Server, train: Callable[..., Path], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.system-metrics", "off")
    folder = train(*where, "--tracking.models", "metrics", name="unexported")
    shutil.rmtree(store / "text/tokenizer")
    config = replace(PRESETS["small-rec"], root=str(folder.parent), run=folder.name)
    tracker = Tracker.attach(TrackingConfig(uri=server.uri), folder.parent, folder)
    register_best(config, tracker)
    tracker.finish()
    assert "not registered in MLflow: " in capsys.readouterr().err and not (folder / ".exported").exists()
    assert server.run(tracker.run_id or "")["info"]["status"] == "FINISHED"
