"""Kills a sweep at random moments, all of its processes at once, and compares the result with that of an undisturbed sweep.

    python -m benchmarks.tune_kills                         a grid, two trials at once; ten kills: about ten minutes on two cores
    python -m benchmarks.tune_kills --sweep asha            trials that are stopped early, one at a time
    python -m benchmarks.tune_kills --sweep asha-two        … two at a time, where the order of results decides who is stopped
    python -m benchmarks.tune_kills --sweep pbt             trials that continue from each other's checkpoints
    python -m benchmarks.tune_kills --sweep optuna          trials that are drawn by the results of earlier ones, one at a time

The sweep is tracked in MLflow's sqlite file. The driver is killed by SIGKILL at a random moment of its life, its start included;
the same command resumes the sweep. In the end each metric must have counted once, and MLflow must have a parent, one child for each
trial, and every step of every curve once. For a grid and for ASHA with one trial at a time, the trials, their ends and each
trial's metrics must be those of the undisturbed sweep, to the bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.killing import SIZE, TINY, Point, curve, make_store, points_in_mlflow
from pipelines.terminal import cli

SWEEPS = {
    "grid": "optim.lr=1e-3,4e-3+model.states=4,8 --search grid --scheduler none",
    "asha": "optim.lr=1e-7,1e-6,1e-3,4e-3 --search grid --scheduler asha --max-concurrent-trials 1",
    "asha-two": "optim.lr=1e-7,1e-6,1e-3,4e-3 --search grid --scheduler asha",
    "pbt": "optim.lr=1e-5..1e-2 --scheduler pbt --num-samples 4",
    "optuna": "lr --search optuna --scheduler none --num-samples 4 --max-concurrent-trials 1",
}
EXACT = ("grid", "asha")
"""Sweeps that must end exactly as the undisturbed one."""
STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
"""MLflow's status for each status of a trial."""
SIZES = f"--preset small-rec --num-workers 1 {SIZE} --model.recurrent-layers 2 --model.states 4"


@dataclass(frozen=True)
class BenchConfig:
    """The sweep, and how often it is killed."""

    sweep: Literal["grid", "asha", "asha-two", "pbt", "optuna"] = "grid"
    """The sweep to kill."""
    kills: int = 10
    """SIGKILLs of the driver."""
    steps: int = 900
    """Steps of a trial."""
    longest: float = 40.0
    """Most seconds to a kill. Every other kill counts them from the start of the command, Ray's own start included. The others come
    within half as many after the command's first new validation."""
    seed: int = 0
    """Seed of the moments of the kills."""


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    rng = random.Random(config.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        every = config.steps // 6 if config.sweep == "pbt" else 20
        sweep = shlex.split(f"{SWEEPS[config.sweep]} {SIZES}")
        rest = shlex.split(
            f"--num-workers 1 --steps {config.steps} --checkpoint.every 20 --log-every 5 --validate-every {every}"
        )
        places = ["--data.store", str(make_store(Path(folder))), "--root", str(root)]
        command = [sys.executable, "-m", "pipelines.tune", *sweep, *TINY, *rest, *places, "--run"]
        began = time.monotonic()
        finish([*command, "calm"], Path(folder) / "calm.log")
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        killed = 0
        for count in range(config.kills):
            training = count % 2 == 0
            wait = rng.uniform(0.0, config.longest / 2 if training else config.longest)
            where = kill([*command, "killed"], Path(folder) / f"killed-{count}.log", wait, training)
            killed += where is not None
            told = "the first new validation" if training else "the start"
            print(f"kill {count + 1}, {wait:.1f} s after {told}: {where or 'it was over before'}", flush=True)
        finish([*command, "killed"], Path(folder) / "killed.log")
        wrong = [*(compare(root) if config.sweep in EXACT else []), *counted_twice(root / "killed"), *in_mlflow(root)]
    good = "identical" if config.sweep in EXACT else "each metric once, in MLflow too"
    print(f"{good if not wrong else 'WRONG: ' + '; '.join(wrong)} after {killed} kills")
    if killed < config.kills:
        print(f"{config.kills - killed} kills came too late: raise --steps", file=sys.stderr)
    return 1 if wrong or killed < config.kills else 0


def kill(command: Sequence[str], log: Path, seconds: float, training: bool) -> str | None:
    """Start the command, and kill all of its processes ``seconds`` after its start or, if ``training``, its first new validation.
    Returns the trials' states then; None if the sweep was over before. Raises AssertionError if it failed by itself."""
    folder = Path(command[command.index("--root") + 1]) / command[-1]
    before = validations(folder)
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    while training and validations(folder) == before and process.poll() is None:
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert process.wait(seconds) == 0, f"status {process.returncode}: {log.read_text()[-3000:]}"
        return None
    end(process)
    return " ".join(f"{trial['status']}:{trial['steps']}" for trial in trials_of(folder)) or "before its first trial"


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """The trials of a sweep, as their trial.json has them, in the order of their ids."""
    return [json.loads(path.read_text()) for path in sorted((folder / "trials").glob("*/trial.json"))]


def validations(folder: Path) -> int:
    """How many validations have counted so far."""
    path = folder / "results.jsonl"
    return path.read_bytes().count(b'"event": "result"') if path.exists() else 0


def end(process: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to the driver and to the processes it has started; those of Ray are in sessions of their own."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"it was not killed, but ended with status {process.returncode}"
    for child in children:
        if child.is_running():
            child.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive, f"they live on: {alive}"


def finish(command: Sequence[str], log: Path) -> None:
    with open(log, "w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=600).returncode
    assert status == 0, log.read_text()[-3000:]


def compare(root: Path) -> list[str]:
    """The differences between the two sweeps."""
    wrong = []
    told = ("id", "values", "status", "steps", "tokens", "best", "last", "baseline", "exploited")
    for calm, killed in zip(trials_of(root / "calm"), trials_of(root / "killed"), strict=True):
        wrong += [f"{calm['id']}'s {key}" for key in told if calm[key] != killed[key]]
        ours, theirs = (curve(root / sweep / "trials" / calm["id"]) for sweep in ("killed", "calm"))
        if ours != theirs or not ours:
            wrong.append(f"{calm['id']}'s curve")
    return wrong


def counted_twice(folder: Path) -> list[str]:
    """Metrics that results.jsonl has more than once, and trials that are not over."""
    events = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    seen = Counter((event["trial"], event["step"]) for event in events if event["event"] == "result")
    wrong = [f"{trial} at step {step} counts {count} times" for (trial, step), count in seen.items() if count > 1]
    wrong += [f"{trial['id']} is {trial['status']}" for trial in trials_of(folder) if trial["status"] not in STATUSES]
    return wrong if seen else [*wrong, "no metric counted"]


def without_tokens(points: list[Point]) -> list[Point]:
    """The points without the count of tokens, which MLflow has besides."""
    return [point for point in points if point[1] != "train/tokens"]


def in_mlflow(root: Path) -> list[str]:
    """Records of either sweep that MLflow lacks: parent, children, statuses, or a point of a curve."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    wrong = []
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    for sweep in ("calm", "killed"):
        parents = [run for run in runs if run.info.run_name == sweep]
        children = [run for run in runs if str(run.info.run_name).startswith(f"{sweep}/")]
        trials = {f"{sweep}/trials/{trial['id']}": trial for trial in trials_of(root / sweep)}
        if len(parents) != 1 or sorted(str(run.info.run_name) for run in children) != list(trials):
            wrong.append(
                f"{sweep}: {len(parents)} parents and {len(children)} children in MLflow for {len(trials)} trials"
            )
            continue
        if parents[0].info.status != "FINISHED":
            wrong.append(f"{sweep} is {parents[0].info.status} in MLflow")
        for run in children:
            name = str(run.info.run_name)
            status = trials[name]["status"]
            if run.info.status != STATUSES.get(status):
                wrong.append(f"{name} is {status}, and {run.info.status} in MLflow")
            if run.data.tags.get("mlflow.parentRunId") != parents[0].info.run_id:
                wrong.append(f"{name} is not below its sweep")
            ours = without_tokens(curve(root / name))
            theirs = without_tokens(points_in_mlflow(client, run))
            if theirs != ours:
                wrong.append(f"{name}'s curve in MLflow")
    return wrong


if __name__ == "__main__":
    cli.run(main)
