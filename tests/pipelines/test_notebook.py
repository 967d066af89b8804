"""MLflow as the lab notebook, asked through its REST API: nothing here shares code with what writes it. Only the model that the
registry hands out is loaded, as a user would: with transformers.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import recur_models  # noqa: F401  (registers the models)
from pipelines.tracking import Tracker, TrackingConfig
from tests.mlflow_server import Server, wait_until

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
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "artifacts",
        "download",
        "--artifact-uri",
        model,
        "--dst-path",
        str(folder),
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return next(path.parent for path in folder.rglob("config.json"))


@torch.no_grad()
def bits_per_token(folder: Path, texts: list[str]) -> float:
    """Of the exported model on whole texts, each in one pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    nats, tokens = 0.0, 0
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        logits = model(ids[:, :-1], use_cache=False).logits.double()
        nats += torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
        tokens += ids.shape[1] - 1
    return nats / math.log(2) / tokens


def forget(folder: Path, *steps: int) -> None:
    """Remove checkpoints, as if the run had been killed before it made them."""
    for step in steps:
        for path in (folder / "checkpoints" / f"step-{step:08d}").iterdir():
            path.unlink()
        (folder / "checkpoints" / f"step-{step:08d}").rmdir()


def test_a_sweep_and_its_trials(server: Server, train: Callable[..., Path], tmp_path: Path, text_folder: Path) -> None:
    where = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.experiment", "notebook")
    words = (*where, "--tracking.system-metrics", "off", "--validate-tokens", "0", "--checkpoint.keep", "2")
    sweep = tmp_path / "runs/sweep"
    tracking = TrackingConfig(uri=server.uri, experiment="notebook", system_metrics="off")
    parent = Tracker.start(tracking, tmp_path / "runs", sweep, "sweep", {"space": "lr"}, {"stage": "sweep"})
    wait_until(lambda: parent.run_id, 20)
    parent_id = parent.run_id or ""
    trials = [
        train(*words, "--tracking.parent", parent_id, "--optim.lr", lr, name=f"sweep/trials/{number}")
        for number, lr in enumerate(("1e-3", "1e-2"))
    ]
    forget(trials[0], 20)  # and goes on from step 15
    train(*words, "--tracking.parent", parent_id, "--optim.lr", "1e-3", name="sweep/trials/0")
    alone = train(*words, name="alone")
    forget(alone, 20)
    (alone / "mlflow_run.json").unlink()  # as a folder that was copied: the checkpoint says which run it is
    assert train(*words, name="alone") == train(*words, name="alone")  # the last of these finds nothing to do
    parent.finish()

    experiment = server.call("experiments/get-by-name", experiment_name="notebook")["experiment"]["experiment_id"]
    runs = server.post("runs/search", experiment_ids=[experiment])["runs"]
    assert len(runs) == 4
    children = [run for run in runs if pairs(run["data"]["tags"]).get("mlflow.parentRunId") == parent.run_id]
    assert sorted(run["info"]["run_name"] for run in children) == ["sweep/trials/0", "sweep/trials/1"]
    for run in runs:
        if run["info"]["run_id"] == parent.run_id:
            assert run["info"]["run_name"] == "sweep"
            continue
        folder = tmp_path / "runs" / run["info"]["run_name"]
        assert run["info"]["status"] == "FINISHED"
        assert pairs(run["data"]["params"]) == flat(json.loads((folder / "config.json").read_text()))
        assert run["inputs"]["dataset_inputs"][0]["dataset"]["name"] == "text/train"
        logged = {(key, line["step"]): value for line in lines(folder)[::-1] for key, value in line["metrics"].items()}
        names = {key for key, _ in logged}
        assert {metric["key"] for metric in run["data"]["metrics"]} == names
        for name in names:
            points = server.points(run["info"]["run_id"], name)
            assert Counter(p["step"] for p in points) == Counter(step for key, step in logged if key == name), name
            if "per_second" not in name:
                assert all(point["value"] == logged[name, point["step"]] for point in points), name

        models = models_of(server, run)
        assert sorted(models) == [5, 10, 15, 20]
        assert {(o["model_id"], int(o["step"])) for o in run["outputs"]["model_outputs"]} == {
            (model["info"]["model_id"], step) for step, model in models.items()
        }
        for step, model in models.items():
            figures = {m["key"]: m["value"] for m in model["data"].get("metrics", [])}
            expected = {key: v for (key, at), v in logged.items() if at == step and key.startswith("validation/")}
            assert figures == expected and model["info"]["status"] == "LOGGED_MODEL_READY"
            assert pairs(model["info"]["tags"])["checkpoint"].endswith(f"step-{step:08d}")

    version = server.call("registered-models/alias", name="alone", alias="best")["model_version"]
    (run,) = [run for run in runs if run["info"]["run_name"] == "alone"]
    models = models_of(server, run)
    figures = {step: {m["key"]: m["value"] for m in model["data"].get("metrics", [])} for step, model in models.items()}
    best = min((10, 20), key=lambda step: figures[step]["validation/bits_per_token"])
    assert version["source"] == f"models:/{models[best]['info']['model_id']}"
    assert version["version"] == "1" and version["run_id"] == run["info"]["run_id"]
    exported = download(server.uri, "models:/alone@best", tmp_path / "downloaded")
    texts = [path.read_bytes().decode() for path in sorted((text_folder / "validation").iterdir())]
    assert bits_per_token(exported, texts) == pytest.approx(figures[best]["validation/bits_per_token"], abs=1e-6)
    assert not (alone / ".exported").exists()
