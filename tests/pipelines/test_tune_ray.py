"""Sweeps on a real Ray, tracked in MLflow's sqlite file."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import OutOfMemoryError

from benchmarks.tune_scale import many, planned
from common.errors import UserError
from pipelines import tune
from pipelines.reports.sweep_result import Trial
from pipelines.sweeps import tuner
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.trial import TrialActor
from pipelines.tracking.identity import FAILURE
from pipelines.tracking.metrics_file import read_records
from pipelines.training.stopping import Stop
from tests.ray_processes import of_ray
from tests.small_runs import TINY
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TRACKED = ["--tracking.backend", "mlflow", "--tracking.system-metrics", "off"]
Command = Callable[..., list[str]]


@pytest.fixture
def command(store: Path, tmp_path: Path) -> Command:
    def make(space: str, *extra: str, name: str = "sweep") -> list[str]:
        place = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name]
        return [space, *TINY[1:], *place, "--num-workers", "1", *extra]

    return make


def trials(root: Path, name: str = "sweep") -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((root / "runs" / name / "trials").glob("*/trial.json"))]


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_two_at_a_time_stopped_and_again_with_one_parent_and_all_children_in_mlflow(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--search", "grid", "--num-cpus", "2", "--optim.max-grad-norm", "0", "--steps", "120"]
    words += ["--validate-every", "20", "--rung-tokens", "2560"]
    argv = command("optim.lr=4e-3,1e38,1e-8", *words, *TRACKED)
    sweep = tmp_path / "runs" / "sweep"

    def ask_to_stop() -> None:
        wait_until(lambda: list(sweep.glob("trials/000/checkpoints/step-*")), every=0.02)
        (sweep / "stop").touch()

    threading.Thread(target=ask_to_stop, daemon=True).start()
    assert tune.main(argv) == 75
    assert "at once 2 trials of 1 worker of 1 CPU each: 2 CPUs hold 2" in capsys.readouterr().out
    assert "pending" in {trial["status"] for trial in trials(tmp_path)}
    saved = [int(path.name[5:]) for path in sweep.glob("trials/000/checkpoints/step-*")]
    assert saved and max(saved) < 120 and not (sweep / "stop").exists()

    assert tune.main(argv) == 0
    assert "best: trial" in capsys.readouterr().out
    assert f"resumes from step {max(saved)}" in (sweep / "trials" / "000" / "logs" / "worker-0.log").read_text()
    ended = {trial["id"]: trial for trial in trials(tmp_path)}
    assert [trial["status"] for trial in ended.values()] == ["finished", "finished", "failed", "stopped"]
    assert "asha stopped it" in ended["003"]["reason"] and "the loss became" in ended["002"]["reason"]
    check_mlflow(sweep, ended)


def check_mlflow(sweep: Path, ended: dict[str, dict[str, Any]]) -> None:
    """The sweep is one parent, and each of its trials a child with its end and every point of its curves once."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{sweep.parent / 'mlflow.db'}")
    found = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    runs = {str(run.info.run_name): run for run in found}
    parent = runs.pop("sweep")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["winner.trial"] == json.loads((sweep / "best.json").read_text())["trial"]
    assert sorted(runs) == [f"sweep/trials/{name}" for name in ended]
    statuses = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
    for name, trial in ended.items():
        run = runs[f"sweep/trials/{name}"]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == statuses[trial["status"]]
        assert run.data.tags.get("trial.reason", "") == trial["reason"]
        expected = {
            (record.step, key, value)
            for record in read_records(sweep / "trials" / name / "metrics.jsonl")
            for key, value in record.metrics.items()
            if key.endswith("bits_per_token")
        }
        points = [
            (point.step, key, point.value)
            for key in run.data.metrics
            if key.endswith("bits_per_token")
            for point in client.get_metric_history(run.info.run_id, key)
        ]
        assert len(points) == len(set(points)) and set(points) == expected  # none lost, none twice


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "status", "told", "recorded"), [(False, 1, "error", "FAILED"), (True, 75, "stopped", "KILLED")]
)
def test_a_ray_that_has_died_is_reported(
    command: Command, tmp_path: Path, asked: bool, status: int, told: str, recorded: str
) -> None:
    """Ray alone would end the command after a minute, without a word on what to do, and leave the sweep running in MLflow."""
    from mlflow import MlflowClient

    words = command("optim.lr=1e-3,2e-3", "--num-cpus", "1", "--steps", "100000", "--validate-every", "10", *TRACKED)
    tuning = subprocess.Popen(
        [sys.executable, "-m", "pipelines.tune", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    run = tmp_path / "runs" / "sweep" / "trials" / "000"
    try:
        wait_until(lambda: list(run.glob("checkpoints/step-*")) or tuning.poll() is not None)
        children = psutil.Process(tuning.pid).children(recursive=True)
        (head,) = (child for child in children if child.name() == "gcs_server")
        head.kill()
        if asked:
            tuning.terminate()
        _, printed = tuning.communicate(timeout=300)
    finally:
        tuning.kill()
    assert tuning.returncode == status, printed
    assert f"{told}: Ray's head (gcs_server at 127.0.0.1:" in printed
    assert "/runs/sweep: start Ray again where it is a cluster's (`ray up`), and repeat the command, which" in printed
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    saved = json.loads((tmp_path / "runs" / "sweep" / "mlflow_run.json").read_text())
    parent = MlflowClient(saved["uri"]).get_run(saved["run_id"])
    assert parent.info.status == recorded
    assert "Ray's head" in parent.data.tags[FAILURE]
    assert trials(tmp_path)[0]["status"] == "pending"


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_two_workers_each_take_turns_and_a_killed_one_costs_nothing_or_they_are_refused(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--search", "grid", "--scheduler", "none", "--num-workers", "2", "--max-concurrent-trials", "4"]
    sentence = "a trial takes 2 CPUs for its 2 workers, and there is 1 CPU: it could never start"
    with pytest.raises(ValueError, match=sentence):
        tune.main(command("optim.lr=1e-3", *words, "--num-cpus", "1"))
    assert not (tmp_path / "runs" / "sweep").exists()

    free = []

    def kill_one_worker() -> None:
        wait_until(lambda: list((tmp_path / "runs").glob("*/trials/*/checkpoints/step-*")), every=0.02)
        free.append(ray.available_resources().get("CPU", 0))
        of_ray("ResourceTrainable")[0].kill()

    threading.Thread(target=kill_one_worker, daemon=True).start()
    words += ["--num-cpus", "4", "--placement.cpus", "2"]
    assert tune.main(command("optim.lr=1e-3", *words, "--steps", "60")) == 0
    out = capsys.readouterr().out
    assert "at once 1 trial of 2 workers of 2 CPUs each: 4 CPUs hold 1" in out and free == [0]
    assert "trial 000: a worker died" in out and "it starts again from its newest checkpoint" in out
    assert [(trial["status"], trial["steps"]) for trial in trials(tmp_path)] == [("finished", 60)] * 2
    assert (tmp_path / "runs" / "sweep" / "trials" / "001" / "logs" / "worker-1.log").exists()


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_the_notebook_runs_cell_by_cell(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((Path(__file__).parents[2] / "examples" / "sweep.ipynb").read_text("utf-8"))["cells"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "store").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert not cell["outputs"]
        exec("".join(cell["source"]), known)
    assert len(known["grid"]) == len(known["curves"]) == 4
    best = json.loads((tmp_path / "runs" / "notebook" / "best.json").read_text())
    assert known["best"].config == {"trial": best["trial"], **best["values"]}
    assert f"runs/notebook/trials/{best['trial']}" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_checkpoint_that_cannot_be_written_ends_no_trial(command: Command, tmp_path: Path) -> None:
    """The sweep says why it ends, in MLflow too, and resumes once the obstacle is gone."""
    from mlflow import MlflowClient

    words = ["--search", "grid", "--scheduler", "none", "--num-cpus", "2", "--baseline", "no"]
    words += ["--checkpoint.every", "50", "--steps", "100", "--validate-every", "50"]
    obstacle = tmp_path / "runs" / "sweep" / "trials" / "001" / "checkpoints"

    def obstruct() -> None:
        wait_until((obstacle.parent / "metrics.jsonl").exists, every=0.01)
        obstacle.rename(obstacle.with_name("elsewhere"))
        obstacle.write_text("a file in the way")

    def failure() -> str:
        run_id = json.loads((tmp_path / "runs" / "sweep" / "mlflow_run.json").read_text())["run_id"]
        return MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db").get_run(run_id).data.tags.get(FAILURE, "")

    threading.Thread(target=obstruct, daemon=True).start()
    argv = command("optim.lr=1e-3,1e-2", *words, *TRACKED)
    with pytest.raises(UserError, match=r"^trial 001: the checkpoint of step 50 could not be written"):
        tune.main(argv)
    assert trials(tmp_path)[1]["status"] == "pending"
    assert failure().startswith("trial 001: the checkpoint of step 50 could not be written")
    obstacle.unlink()
    assert tune.main(argv) == 0
    assert [(trial["status"], trial["steps"]) for trial in trials(tmp_path)] == [("finished", 100)] * 2
    assert failure() == ""


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_asked_to_stop_by_a_signal_all_that_run_save(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "runs" / "sweep"

    def signalled() -> None:
        # Both: one runs ahead of the other's start.
        both = [sweep / "trials" / name / "checkpoints" for name in ("000", "001")]
        wait_until(lambda: all(list(folder.glob("step-*")) for folder in both), every=0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signalled, daemon=True).start()
    words = ["--search", "grid", "--scheduler", "none", "--baseline", "no", "--num-cpus", "2", "--steps", "20000"]
    assert tune.main(command("optim.lr=1e-3,3e-3", *words, "--checkpoint.every", "100")) == 75
    assert "asked to stop: saving first" in capsys.readouterr().err
    for trial in trials(tmp_path):
        newest = max((sweep / "trials" / trial["id"] / "checkpoints").glob("step-*"))
        assert trial["status"] == "pending" and 0 < trial["steps"] == int(newest.name[5:]) < 20_000


class Ends(TrialActor):
    """A trial that trains nothing, and ends at its first metric."""

    def step(self) -> dict[str, Any]:
        metrics = {"value": 5.0, "validation/bits_per_token": 5.0}
        told = {"trial": self.trial_name, "step": 6, "tokens": 192, **metrics}
        return {**told, "done": True, "outcome": "finished", "reason": ""}


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_asked_to_stop_before_a_trial_has_begun_and_an_error_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "of-a-notebook")
    swept, domains = many(tmp_path, 3)
    sweep = planned(swept, domains)
    room: Any = SimpleNamespace(at_once=lambda: 2, use_gpu=False)
    tracking: Any = SimpleNamespace(as_child=lambda run: run)
    stop = Stop(sweep.folder)
    stop.ask()
    tuner.fit(SweepRecord(sweep), domains, tracking, room, stop, Ends)
    assert [trial.status for trial in sweep.trials.values()] == ["pending"] * 3

    class Full(SweepRecord):
        def add(self, trial: Trial, step: int, value: float, decision: str, by: str = "") -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    stop.clear()
    with pytest.raises(OSError, match="No space left"):
        tuner.fit(Full(sweep), domains, tracking, room, stop, Ends)
    assert os.environ["RAY_CHDIR_TO_TRIAL_DIR"] == "of-a-notebook" and "RAY_AIR_NEW_OUTPUT" not in os.environ

    class Killed(SweepRecord):
        """Ray kills a worker to free memory, and Tune's loop ends with this error."""

        def watch(self) -> None:
            killed = OutOfMemoryError("1 worker(s) were killed: 9 GB used / 9 GB limit (0.97)\nOOM kill reason: ...")
            raise RuntimeError(f"Caught unexpected exception: {killed}") from killed

    with pytest.raises(UserError, match=r"^1 worker\(s\) were killed: .* \(0.97\): free memory, or .* to resume$"):
        tuner.fit(Killed(sweep), domains, tracking, room, stop, Ends)
    tuner.fit(SweepRecord(sweep), domains, tracking, room, stop, Ends)
    assert [trial.status for trial in sweep.trials.values()] == ["finished"] * 3


class Refuses(Ends):
    """Its kept actor cannot take another trial: the bucket with the trials is silent, say."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        if hasattr(self, "_run"):  # not the actor's first trial
            raise OSError(errno.EIO, "the bucket is silent")
        return super().reset_config(new_config)


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_kept_worker_that_cannot_take_a_trial_loses_none(tmp_path: Path) -> None:
    swept, domains = many(tmp_path, 3)
    sweep = planned(swept, domains)
    room: Any = SimpleNamespace(at_once=lambda: 1, use_gpu=False)
    tracking: Any = SimpleNamespace(as_child=lambda run: run)
    stop = Stop(sweep.folder)
    with pytest.raises(UserError, match=r"trial 00\d: .*the bucket is silent"):
        tuner.fit(SweepRecord(sweep), domains, tracking, room, stop, Refuses)
    assert {trial.status for trial in sweep.trials.values()} == {"finished", "pending"}
    tuner.fit(SweepRecord(sweep), domains, tracking, room, stop, Ends)
    assert [trial.status for trial in sweep.trials.values()] == ["finished"] * 3


def test_what_ended_a_worker_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(
        "Failure # 1 (occurred at 2026-11-23_12-00-00)\n\x1b[36mray::Trial.train()\x1b[39m (pid=1, ip=10.0.0.1)\n"
        "  File ...\nRuntimeError: out of memory, tried to allocate 9 GiB\n"
    )
    trial: Any = SimpleNamespace(error_file=str(tmp_path / "error.txt"))
    assert tuner.why(trial) == "RuntimeError: out of memory, tried to allocate 9 GiB"
