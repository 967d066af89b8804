"""Has the best checkpoint of a run or a sweep registered in MLflow: exported for transformers, uploaded, with the alias `best`.

    register_best(config, tracker)    # a finished run's, as its own name
    register_winner(RunFolder.parse("runs/sweep"), TrackingConfig(), root, store)    # a sweep's, in its trial's run

    mlflow artifacts download --artifact-uri models:/demo-rec@best --dst-path there         # AutoModelForCausalLM.from_pretrained

Only the weights of one checkpoint are copied, when the run is over; `--tracking.models metrics` copies none. A checkpoint that
cannot be exported causes a warning and no error.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from common.errors import UserError
from common.files import parse_json, write_atomically
from pipelines.checkpoints.checkpoint import Checkpoint, name_of, step_of
from pipelines.checkpoints.retention import best
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import TrackingConfig, TrainConfig
from pipelines.terminal.cli import as_a_warning
from pipelines.tracking import Tracker
from pipelines.tracking.identity import saved_run

UNREGISTERED = "the best checkpoint is not registered in MLflow"
EXPORTED = ".exported"
"""The folder in a run's or a sweep's that is uploaded, and then removed."""


@as_a_warning(UNREGISTERED, SafetensorError)
def register_best(config: TrainConfig, tracker: Tracker) -> None:
    """Register the run's best checkpoint among those validated at their own step. A trial's is left to its sweep."""
    if config.tracking.models != "best" or config.tracking.parent or tracker.registered is None:
        return
    run = RunFolder.of(config)
    shutil.rmtree(run.folder / EXPORTED, ignore_errors=True)  # what a killed start has left
    whole = best(run.complete_checkpoints())
    if whole and whole[0].step != tracker.registered:
        checkpoint = run.open_checkpoint(whole[0].folder.name)
        same = checkpoint.meta["config"]["data"]["corpus"] == config.data.corpus
        store = config.data.store if same else ""  # which may have moved since
        _register(checkpoint, tracker, run.folder / EXPORTED, config.run, run.folder, store)


@as_a_warning(UNREGISTERED, SafetensorError)
def register_winner(sweep: RunFolder, config: TrackingConfig, root: Path, store: str) -> None:
    """Register the checkpoint that a sweep's best.json names. The file `registered.json` records that this is done.

    ``store``: where its trials' store is now, if all have one; else the path in the checkpoint's config counts.
    """
    folder = sweep.folder
    if config.models != "best" or config.backend == "none" or not (folder / "best.json").exists():
        return
    match read_or_none(folder / "best.json"):
        case {"trial": str(number), "step": int(step)} if number.isdigit():
            trial = RunFolder(sweep.place / f"trials/{number}", trains=True)
        case _:
            raise UserError(f"{folder / 'best.json'} is damaged: rerun the sweep's command, which writes it again")
    done = folder / "registered.json"
    exported = folder / EXPORTED
    trial.fetch("mlflow_run.json")
    wanted = {"trial": number, "step": step, "run_id": saved_run(trial.folder).get("run_id")}
    if done.exists() and read_or_none(done) == wanted:
        return
    tracker = Tracker.attach(config, root, trial.folder, trial.place)
    try:
        if tracker.run_id:
            name = next((name for name in trial.checkpoint_names() if step_of(name) == step), name_of(step))
            _register(trial.open_checkpoint(name), tracker, exported, folder.name, folder, store)
    finally:
        tracker.finish()
    if tracker.run_id and not exported.exists():  # uploaded, and then removed
        write_atomically(done, json.dumps(wanted).encode())
        sweep.publish(done.name)


def read_or_none(file: Path) -> Any:
    """The contents of a JSON file; None if it is damaged."""
    try:
        return parse_json(file.read_bytes())
    except ValueError:
        return None


def _register(checkpoint: Checkpoint, tracker: Tracker, folder: Path, name: str, owner: Path, store: str) -> None:
    from pipelines.inference.to_transformers import export  # transformers: seconds

    shutil.rmtree(folder, ignore_errors=True)  # what an earlier attempt left there
    export(checkpoint, folder, store)
    print(f"registering the best checkpoint, of step {checkpoint.step:,}, in MLflow as {name}", flush=True)
    tracker.register(checkpoint.step, folder, name, owner)
