"""A copy of a run's folder is a run of its own in MLflow; a folder that was moved, or is seen by another path, is the same run."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from common.places import Place
from pipelines.checkpoints.run_file import presets_with
from pipelines.config.run import TrackingConfig, to_json
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import MetricPoint
from pipelines.sweeps.checks import read_and_check
from pipelines.sweeps.planning import open_or_plan
from pipelines.sweeps.running import write_best
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.tracking import SweepTracking
from pipelines.tracking import Tracker
from pipelines.tracking.identity import FAILURE, RECORD, begin_run
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World
from tests.mlflow_server import Server
from tests.small_runs import TINY
from tune_spaces import fields


@pytest.fixture
def config(server: Server, request: pytest.FixtureRequest) -> TrackingConfig:
    return TrackingConfig(uri=server.uri, experiment=request.node.name, system_metrics="off", patience=20)


def track(config: TrackingConfig, folder: Path, start: int, stop: int, value: float, **params: object) -> str:
    """Resume the run of a folder from a step, and log one value up to another step. Returns MLflow's id of the run."""
    tracker = Tracker.start(config, folder.parent, folder, folder.name, params, {}, resume_step=start)
    for step in range(start + 1, stop + 1):
        tracker.log({"a": value}, step)
    assert tracker.finish() and tracker.run_id
    return tracker.run_id


def curve(server: Server, run_id: str) -> dict[int, float]:
    points = server.points(run_id, "a")
    found = {point["step"]: point["value"] for point in points}
    assert len(found) == len(points), "a step has two points"
    return found


def tags(server: Server, run_id: str) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in server.run(run_id)["data"]["tags"]}


def values(*parts: tuple[int, int, float]) -> dict[int, float]:
    """A curve: from a step to another, with a value."""
    return {step: value for start, stop, value in parts for step in range(start + 1, stop + 1)}


@pytest.mark.parametrize(("name", "first"), [("runs/copy", "original"), ("elsewhere/original", "copy")])
def test_a_copy_has_a_run_and_the_whole_curve_of_its_own(
    server: Server, config: TrackingConfig, tmp_path: Path, name: str, first: str, capfd: pytest.CaptureFixture[str]
) -> None:
    original, copy = tmp_path / "runs/original", tmp_path / name
    before = track(config, original, 0, 4, 1.0)
    shutil.copytree(original, copy)
    resumed = {}
    for folder in (original, copy) if first == "original" else (copy, original):
        start, value = (4, 1.0) if folder == original else (2, 2.0)
        resumed[folder] = track(config, folder, start, 6, value)
    assert resumed[original] == before != resumed[copy]
    assert curve(server, before) == values((0, 6, 1.0))
    assert curve(server, resumed[copy]) == values((0, 2, 1.0), (2, 6, 2.0))
    assert tags(server, resumed[copy])["origin"] == f"{original}, step 2"
    assert tags(server, resumed[copy])["origin.run_id"] == before and "origin" not in tags(server, before)
    told = capfd.readouterr().err
    assert told.count("note: ") == 1 and f"{copy} is a copy of {original}" in told
    assert track(config, copy, 6, 8, 2.0) == resumed[copy] and track(config, original, 6, 8, 1.0) == before
    assert len(server.runs(config.experiment)) == 2


def test_steps_that_are_trained_again_otherwise_are_those_of_a_new_run(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """MLflow's points never change, and a curve would be of two trainings."""
    folder = tmp_path / "run"
    high = {"optim.lr": 0.05, "validate_every": 10}
    first = track(config, folder, 0, 8, 1.0, **high)
    server.post("runs/update", run_id=first, status="RUNNING")  # as a kill leaves it
    assert track(config, folder, 5, 8, 1.0, **high) == track(config, folder, 5, 8, 1.0, **high, log_every=3) == first
    assert not capfd.readouterr().err
    low = {**high, "optim.lr": 0.001}
    server.post("runs/update", run_id=first, status="RUNNING")
    second = track(config, folder, 5, 9, 2.0, **low)
    assert "the steps after 5 were trained before with another optim.lr" in capfd.readouterr().err
    assert second != first == tags(server, second)["origin.run_id"]
    assert curve(server, first) == values((0, 8, 1.0)) and curve(server, second) == values((0, 5, 1.0), (5, 9, 2.0))
    assert tags(server, second)["changed.optim.lr"] == "step 5: 0.05 → 0.001"
    assert track(config, folder, 9, 12, 2.0, **high) == track(config, folder, 9, 12, 2.0, **high) == second
    assert [server.run(run_id)["info"]["status"] for run_id in (first, second)] == ["KILLED", "FINISHED"]


def test_a_run_that_failed_stays_failed_when_its_steps_are_trained_again_otherwise(
    server: Server, train: Callable[..., Path], tmp_path: Path
) -> None:
    words = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.system-metrics", "off")
    words += ("--tracking.experiment", "failed", "--tracking.models", "none", "--steps", "5", "--validate-every", "0")
    with pytest.raises(UserError, match="the loss became"):
        train(*words, "--optim.lr", "1e30", "--optim.max-grad-norm", "0")
    train(*words)
    second, first = server.runs("failed")
    assert (first["info"]["status"], second["info"]["status"]) == ("FAILED", "FINISHED")
    assert first["info"]["end_time"] <= second["info"]["start_time"]
    assert tags(server, first["info"]["run_id"])[FAILURE].startswith("the loss became")
    assert FAILURE not in tags(server, second["info"]["run_id"])


def test_a_copy_that_is_trained_otherwise_leaves_the_original_alone(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    original, copy = tmp_path / "a", tmp_path / "b"
    first = track(config, original, 0, 8, 1.0, **{"optim.lr": 0.05})
    server.post("runs/update", run_id=first, status="RUNNING")  # it still trains
    shutil.copytree(original, copy)
    second = track(config, copy, 5, 9, 2.0, **{"optim.lr": 0.001})
    assert f"{copy} is a copy of {original}" in capfd.readouterr().err
    assert tags(server, second)["origin"] == f"{original}, step 5"
    assert server.run(first)["info"]["status"] == "RUNNING"


def test_a_run_stays_in_its_experiment(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    first = track(config, folder, 0, 2, 1.0)
    assert track(replace(config, experiment="another"), folder, 2, 4, 1.0) == first
    assert f"note: the run stays in the experiment {config.experiment!r}" in capfd.readouterr().err
    assert json.loads((folder / RECORD).read_text())["experiment"] == config.experiment


def test_a_folder_that_was_moved_is_the_same_run(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    before = track(config, tmp_path / "first", 0, 2, 1.0)
    (tmp_path / "first").rename(tmp_path / "second")
    another = track(config, tmp_path / "first", 0, 2, 3.0)  # in the place of the one that was moved
    assert track(config, tmp_path / "second", 2, 4, 2.0) == before != another
    assert curve(server, before) == values((0, 2, 1.0), (2, 4, 2.0))
    run = server.run(before)
    assert run["info"]["run_name"] == "second" and "origin" not in tags(server, before)


def test_a_folder_that_is_seen_by_another_path_is_the_same_run(
    server: Server, config: TrackingConfig, tmp_path: Path
) -> None:
    before = track(config, tmp_path / "disk/run", 0, 2, 1.0)
    (tmp_path / "mount").symlink_to(tmp_path / "disk")
    assert track(config, tmp_path / "mount/run", 2, 4, 1.0) == before
    assert track(config, tmp_path / "disk/run", 4, 6, 1.0) == before
    assert curve(server, before) == values((0, 6, 1.0))


@pytest.mark.parametrize("continued", ["original", "copy"])
def test_a_copy_whose_original_is_out_of_sight_overwrites_nothing(
    server: Server, config: TrackingConfig, tmp_path: Path, continued: str
) -> None:
    """As on another machine: whichever is resumed first keeps the run, and the other one gets a run of its own."""
    original, copy, away = tmp_path / "original", tmp_path / "copy", tmp_path / "away"
    before = track(config, original, 0, 4, 1.0)
    shutil.copytree(original, copy)
    first, second = (original, copy) if continued == "original" else (copy, original)
    second.rename(away)
    assert track(config, first, 4, 6, 1.0) == before
    first.rename(tmp_path / "unseen")
    away.rename(second)
    other = track(config, second, 2, 6, 2.0)
    assert other != before and curve(server, before) == values((0, 6, 1.0))
    assert curve(server, other) == values((0, 2, 1.0), (2, 6, 2.0))
    assert tags(server, other)["origin.run_id"] == before
    assert track(config, second, 6, 8, 2.0) == other


def test_metrics_that_are_added_to_a_copy_stay_out_of_the_originals_run(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = track(config, tmp_path / "original", 0, 2, 1.0)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    for name in ("copy", "original"):
        tracker = Tracker.attach(config, tmp_path, tmp_path / name)
        tracker.log({f"whole_test/{name}": 1.0}, 2)
        assert tracker.finish()
    assert {metric["key"] for metric in server.run(before)["data"]["metrics"]} == {"a", "whole_test/original"}
    assert f"{tmp_path / 'copy'} is a copy of {tmp_path / 'original'}" in capfd.readouterr().err
    copied = track(config, tmp_path / "copy", 2, 3, 2.0)
    assert {metric["key"] for metric in server.run(copied)["data"]["metrics"]} == {"a", "whole_test/copy"}


@pytest.mark.long
def test_a_copied_run_is_trained_evaluated_and_registered_by_itself(
    server: Server, train: Callable[..., Path], tmp_path: Path, store: Path
) -> None:
    words = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.system-metrics", "off")
    words += ("--tracking.experiment", "copied", "--allow-change", "steps", "optim.lr")
    original = train(*words, "--steps", "10", name="original")
    copy = original.with_name("copy")
    shutil.copytree(original, copy)
    elsewhere = tmp_path / "elsewhere/original"
    shutil.copytree(original, elsewhere)
    train(*words, name="original")
    train(*words, "--optim.lr", "1e-2", name="copy")
    train(*words, "--optim.lr", "2e-2", "--root", str(elsewhere.parent), name="original")
    ids = [json.loads((folder / "mlflow_run.json").read_text())["run_id"] for folder in (original, copy, elsewhere)]
    assert len(set(ids)) == 3
    of = {run["info"]["run_id"]: run for run in server.runs("copied")}
    for folder, run_id in zip((original, copy, elsewhere), ids, strict=True):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        own = {
            line["step"]: line["metrics"]["train/bits_per_token"] for line in lines if "train/epoch" in line["metrics"]
        }
        sent = {point["step"]: point["value"] for point in server.points(run_id, "train/bits_per_token")}
        assert sent == own and sorted(own) == list(range(1, 21))
        params = {param["key"]: param["value"] for param in of[run_id]["data"]["params"]}
        lr = {original: "0.002", copy: "0.01", elsewhere: "0.02"}[folder]
        assert params["optim.lr"] == lr
        noted = {key: value for key, value in tags(server, run_id).items() if key.startswith("changed.")}
        changed = {} if folder == original else {"changed.optim.lr": f"step 10: 0.002 → {lr}"}
        assert noted == {"changed.steps": "step 10: 10 → 20", **changed}
    found = server.call("registered-models/search", max_results="100")["registered_models"]
    versions = {}
    for name in (model["name"] for model in found):
        version = server.call("registered-models/alias", name=name, alias="best")["model_version"]
        versions[version["run_id"]] = name
    assert versions[ids[0]] == "original" and versions[ids[1]] == "copy"
    assert versions[ids[2]].startswith("original-")


def test_a_checkpoint_without_its_folders_record_is_of_its_run_alone_in_its_place(
    server: Server, train: Callable[..., Path], tmp_path: Path
) -> None:
    """mlflow_run.json was not copied: the checkpoint says which run it is of, and where that is."""
    words = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.system-metrics", "off")
    words += ("--tracking.experiment", "checkpoints", "--tracking.models", "none", "--allow-change", "steps")
    original = train(*words, "--steps", "10")
    copy = tmp_path / "elsewhere/run"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("mlflow_run.json"))
    train(*words, "--steps", "20")
    train(*words, "--steps", "20", "--root", str(copy.parent))
    ids = [json.loads((folder / "mlflow_run.json").read_text())["run_id"] for folder in (original, copy)]
    assert ids[0] != ids[1] and tags(server, ids[1])["origin.run_id"] == ids[0]
    for run_id in ids:
        steps = [point["step"] for point in server.points(run_id, "train/bits_per_token")]
        assert sorted(steps) == list(range(1, 21))


def test_a_bucket_under_another_uri_is_the_same_place(bucket: Callable[[str], str], tmp_path: Path) -> None:
    def begin(folder: str, uri: str) -> str:
        place = Place.parse(uri)
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / RECORD).write_bytes((place / RECORD).read_bytes())

        def publish() -> None:
            (place / RECORD).write_atomically((tmp_path / folder / RECORD).read_bytes())

        return begin_run(tmp_path / folder, place, 3, publish=publish)

    assert begin("first", bucket("original")) == ""
    record = (tmp_path / "first" / RECORD).read_bytes()
    assert begin("second", bucket("original") + "&region=us-east-1") == ""
    (Place.parse(bucket("copy")) / RECORD).write_atomically(record)
    assert "original: it becomes a run of its own in MLflow" in begin("third", bucket("copy"))
    saved = json.loads((tmp_path / "third" / RECORD).read_bytes())
    assert saved["origin"]["step"] == 3 and saved["key"] != json.loads(record)["key"]
    assert begin("fourth", bucket("copy")) == ""


@pytest.fixture
def open_sweep(server: Server, store: Path, tmp_path: Path, config: TrackingConfig) -> Callable[[str], Sweep]:
    """Plan or open a sweep of one trial by its name, tracked on the server."""
    words = ["optim.lr=1e-3", "--preset", *TINY, "--search", "grid", "--baseline", "no", "--num-workers", "1"]
    words += ["--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.experiment", config.experiment]
    words += ["--tracking.system-metrics", "off", "--data.store", str(store), "--root", str(tmp_path)]

    def opened(name: str) -> Sweep:
        described, domains = read_and_check([*words, "--run", name])
        sweep = Sweep(described, fields(domains))
        if not open_or_plan(sweep, domains):
            sweep.write_plan("tune")
        return sweep

    return opened


@pytest.mark.long
def test_a_copied_sweep_and_its_trials_are_runs_of_their_own(
    server: Server, tmp_path: Path, config: TrackingConfig, open_sweep: Callable[[str], Sweep]
) -> None:
    first = open_sweep("first")
    tracking = SweepTracking(first, "tune")
    (trial,) = first.trials.values()
    train_as_worker(tracking.as_child(first.run_of(trial)), World.alone(), lambda: False)
    trained = json.loads((first.run_folder(trial).folder / "config.json").read_text())
    assert trained["tracking"]["models"] == "best"  # a run that is trained from this file registers its own
    trial.status, trial.best = "finished", MetricPoint(20, 7.0)
    tracking.end(trial)
    write_best(first, trial)
    tracking.close("FINISHED")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    second = open_sweep("second")
    tracking = SweepTracking(second, "tune")
    tracking.log_missing_ends()
    tracking.close("FINISHED")

    ids = [
        json.loads((tmp_path / folder / "mlflow_run.json").read_text())["run_id"]
        for folder in ("first", "first/trials/000", "second", "second/trials/000")
    ]
    assert len(set(ids)) == 4 == len(server.runs(config.experiment))
    assert tags(server, ids[1])["mlflow.parentRunId"] == ids[0] and tags(server, ids[2])["origin.run_id"] == ids[0]
    assert tags(server, ids[3])["mlflow.parentRunId"] == ids[2] and tags(server, ids[3])["origin.run_id"] == ids[1]
    assert [len(server.points(run_id, "train/bits_per_token")) for run_id in (ids[1], ids[3])] == [20, 20]
    again = open_sweep("first")
    again.trials["000"].status = "pending"  # a larger budget lets it train more, and its end was logged
    tracking = SweepTracking(again, "tune")
    tracking.end(trial)
    tracking.close("FINISHED")
    assert server.steps(ids[0], "sweep/best") == [1, 2]
    assert len(server.runs(config.experiment)) == 4
    for name, run_id in (("first", ids[1]), ("second", ids[3])):
        version = server.call("registered-models/alias", name=name, alias="best")["model_version"]
        assert version["run_id"] == run_id


def test_a_renamed_sweep_renames_the_trials_that_are_over(
    server: Server, tmp_path: Path, open_sweep: Callable[[str], Sweep]
) -> None:
    for name in ("before", "after"):
        sweep = open_sweep(name)
        (trial,) = sweep.trials.values()
        trial.status = "finished"
        tracking = SweepTracking(sweep, "tune")
        tracking.log_missing_ends()
        tracking.close("KILLED")
        if name == "before":
            (tmp_path / "before").rename(tmp_path / "after")
    saved = json.loads((tmp_path / "after/trials/000/mlflow_run.json").read_text())
    assert tags(server, saved["run_id"])["mlflow.runName"] == "after/trials/000"
    assert tags(server, saved["run_id"])["sweep"] == "after"


def test_the_params_of_a_sweep_are_its_options(server: Server, open_sweep: Callable[[str], Sweep]) -> None:
    sweep = open_sweep("sweep")
    tracking = SweepTracking(sweep, "tune")
    tracking.close("KILLED")
    options = vars(sweep.config).keys() - {"train", "typed", "dry_run"}
    assert {param["key"] for param in server.run(tracking.run_id)["data"]["params"]} == options


@pytest.mark.parametrize(
    ("run", "copy", "name", "root"),
    [
        ("mine", "runs/mine", "mine", "runs"),
        ("mine", "runs/copy", "copy", "runs"),
        ("mine", "elsewhere/mine", "mine", "elsewhere"),
        ("sweep/trials/003", "runs/other/trials/003", "other/trials/003", "runs"),
        ("sweep/trials/003", "runs/taken", "taken", "runs"),
    ],
)
def test_a_config_in_a_runs_folder_is_of_the_run_in_that_folder(
    tmp_path: Path, run: str, copy: str, name: str, root: str
) -> None:
    tracking = TrackingConfig(parent="0" * 32)
    config = replace(PRESETS["small-rec"], run=run, root=str(tmp_path / "runs"), tracking=tracking)
    (tmp_path / copy / "checkpoints").mkdir(parents=True)
    file = tmp_path / copy / "config.json"
    file.write_text(json.dumps(to_json(config)))
    found = presets_with(PRESETS, [str(file)])[str(file)]
    assert found == replace(config, run=name, root=str(tmp_path / root))
    assert presets_with(PRESETS, [str(file), "--run", "new"])[str(file)].tracking.parent == ""
    (tmp_path / copy / "checkpoints").rmdir()  # a file that was put somewhere, in place of a preset
    assert presets_with(PRESETS, [str(file)])[str(file)] == config


@pytest.mark.parametrize(("sweep", "copy"), [("lr", "lr"), ("lr", "renamed"), ("group/lr", "group/lr")])
def test_the_best_run_of_a_sweep_that_was_moved_begins_beside_it(tmp_path: Path, sweep: str, copy: str) -> None:
    config = replace(PRESETS["small-rec"], run=f"{sweep}-best", root=str(tmp_path / "runs"))
    file = tmp_path / "elsewhere" / copy / "best.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"trial": "003", "config": to_json(config)}))
    assert presets_with(PRESETS, [str(file)])[str(file)] == config  # a file that was put somewhere
    (file.parent / "sweep.json").write_text("{}")
    assert presets_with(PRESETS, [str(file)])[str(file)] == replace(config, root=str(tmp_path / "elsewhere"))
