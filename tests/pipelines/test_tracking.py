"""Tracking against a real MLflow server on loopback, which is stopped and woken, and against sqlite. What MLflow has is asked
through its REST API, or read from its database.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.killing import unused_port
from common.errors import UserError
from common.places import Place
from pipelines.config.run import TrackingConfig, to_json
from pipelines.presets import PRESETS
from pipelines.tracking import DatasetInfo, Tracker, TrackingError, metrics_file, read_run
from pipelines.tracking.client import load_mlflow, make_database
from pipelines.tracking.commit import git_commit
from pipelines.tracking.identity import FAILURE, KEY, begin_run
from pipelines.tracking.metrics_file import MetricsFile, Record, drop_after, read_records
from pipelines.ui import command
from tests.mlflow_server import Server
from tests.waiting import wait_until

DATA = DatasetInfo("python-source/train", "0123456789abcdef" * 2, "/store", documents=3, tokens=999)


@pytest.fixture
def config(server: Server, request: pytest.FixtureRequest) -> TrackingConfig:
    """The server, with an experiment for each test."""
    return TrackingConfig(uri=server.uri, experiment=request.node.name, system_metrics="off", patience=20)


def test_a_name_that_is_too_long_is_cut(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    Tracker.start(config, tmp_path, tmp_path / "run", "long " * 100, {}, {}).finish()
    (run,) = server.runs(config.experiment)
    assert run["info"]["run_name"] == ("long " * 100)[:250]


def start(config: TrackingConfig, folder: Path, **options: Any) -> Tracker:
    options = {"params": {"optim.lr": 0.001}, "tags": {"model": "rec"}, **options}
    return Tracker.start(config, folder, folder / "run", "run", **options)


def test_a_run_is_described(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    params = {f"many.p{n}": n for n in range(230)}
    params |= {"tracking.uri": "http://me:secret@host:1/x", "empty": "", "long": "x" * 7000, "list": [1, 2]}
    config = replace(config, system_metrics="on")
    tracker = start(
        config, tmp_path, params=params, tags={"model": "rec", "where": "s3://key:secret@b/c"}, dataset=DATA
    )
    tracker.log({"train/bits_per_token": 5.25}, 10)
    table = tmp_path / "table.csv"
    table.write_text("a,b\n")
    tracker.log_artifacts(table, folder="report")
    tracker.set_tag("best", "10")
    tracker.finish()

    assert tracker.run_id
    run = server.run(tracker.run_id)
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == "run"
    logged = {p["key"]: p["value"] for p in run["data"]["params"]}
    assert len(logged) == len(params) and logged["many.p229"] == "229" and logged["list"] == "[1, 2]"
    assert logged["tracking.uri"] == "http://host:1/x" and logged["long"] == "x" * 6000 and logged["empty"] == ""
    tags = {t["key"]: t["value"] for t in run["data"]["tags"]}
    assert tags["model"] == "rec" and tags["best"] == "10" and tags["where"] == "s3://b/c"
    dataset = run["inputs"]["dataset_inputs"][0]["dataset"]
    assert (dataset["name"], dataset["digest"]) == (DATA.name, DATA.digest)
    assert json.loads(dataset["profile"]) == {"documents": 3, "tokens": 999}
    files = server.call("artifacts/list", run_id=tracker.run_id, path="report")["files"]
    assert [file["path"] for file in files] == ["report/table.csv"]
    assert [(p["step"], p["value"]) for p in server.points(tracker.run_id, "train/bits_per_token")] == [(10, 5.25)]


def test_what_is_changed_is_noted_once_with_its_step(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    """MLflow's params never change. A start that was killed is repeated from the same step; after damage, from an earlier one."""

    def changed(step: int | None, lr: float, steps: int = 10, **options: Any) -> dict[str, str]:
        params = {"optim.lr": lr, "steps": steps, "tracking.patience": lr, "list": [1, 2]}
        tracker = start(config, tmp_path, resume_step=step, params=params, **options)
        assert tracker.finish() and tracker.run_id
        run = server.run(tracker.run_id)["data"]
        logged = {param["key"]: param["value"] for param in run["params"]}
        assert (logged["optim.lr"], logged["steps"]) == ("0.002", "10")
        stored = read_run(config, tmp_path, tracker.run_id, []).params
        if step is not None:
            assert (stored["optim.lr"], stored["steps"], stored["list"]) == (str(lr), str(steps), "[1, 2]")
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        return {key.removeprefix("changed."): tag for key, tag in tags.items() if key.startswith("changed.")}

    assert changed(0, 0.002) == changed(5, 0.002) == {}
    first = {"optim.lr": "step 10: 0.002 → 0.1", "steps": "step 10: 10 → 20"}
    assert changed(10, 0.1, 20) == changed(10, 0.1, 20) == changed(15, 0.1, 20) == first
    second = {**first, "optim.lr": "step 10: 0.002 → 0.1; step 20: 0.1 → 0.05"}
    assert changed(20, 0.05, 20) == changed(20, 0.05, 20) == changed(None, 0.9, 20) == second
    assert changed(20, 0.1, 20) == first
    assert changed(8, 0.1, 20) == {"optim.lr": "step 8: 0.002 → 0.1", "steps": "step 8: 10 → 20"}
    assert changed(8, 0.1) == {"optim.lr": "step 8: 0.002 → 0.1"}
    assert changed(9, 0.1, dataset=DATA) == {"optim.lr": "step 8: 0.002 → 0.1"}
    assert changed(12, 0.1, dataset=replace(DATA, digest="f" * 32))["store"] == f"step 12: {DATA.digest} → {'f' * 32}"


LOGS_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from pipelines.config.run import TrackingConfig
from pipelines.tracking import Tracker
folder, uri, experiment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = TrackingConfig(uri=uri, experiment=experiment, system_metrics="off")
tracker = Tracker.start(config, folder, folder / "run", "run", {"optim.lr": 0.001}, {"model": "rec"})
for step in range(1, 100_000):
    tracker.log({"a": step / 2, "b": -step}, step)
    time.sleep(0.002)
"""


@pytest.mark.long
def test_every_step_once_after_a_kill(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOGS_UNTIL_KILLED, str(tmp_path), config.uri, config.experiment]
    child = subprocess.Popen(words, cwd=Path(__file__).parents[2])
    state, lines = tmp_path / "run/mlflow_run.json", tmp_path / "run/metrics.jsonl"
    try:
        wait_until(lambda: state.exists() and "run_id" in json.loads(state.read_bytes()))
        run_id = json.loads(state.read_bytes())["run_id"]
        wait_until(lambda: len(server.points(run_id, "a")) >= 100)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    before = {point["step"]: point["value"] for point in server.points(run_id, "a")}
    with open(lines, "ab") as file:
        file.write(b'{"step": 99, "ti')
    last = read_records(lines)[-1].step
    assert last >= max(before) > 60

    tracker = start(config, tmp_path, resume_step=60)
    assert [record.step for record in read_records(lines)] == list(range(1, 61))
    for step in range(61, last + 50):  # what was sent before the kill is made again
        tracker.log({"a": step / 2, "b": -step}, step)
        if step % 10 == 0:
            tracker.log({"validation": 1.0, "a": step / 2}, step)  # "a" twice for one step
    tracker.finish()

    assert tracker.run_id == run_id and [run["info"]["run_id"] for run in server.runs(config.experiment)] == [run_id]
    for key in ("a", "b"):
        assert server.steps(run_id, key) == list(range(1, last + 50))
    assert all(point["value"] == point["step"] / 2 for point in server.points(run_id, "a"))
    assert server.run(run_id)["info"]["status"] == "FINISHED"


@pytest.mark.long
def test_a_silent_server_loses_nothing(
    server: Server,
    config: TrackingConfig,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING", "2")
    tracker = start(replace(config, system_metrics="on"), tmp_path)
    tracker.log({"a": 0.0}, 0)
    wait_until(lambda: tracker.run_id and server.steps(tracker.run_id, "a") == [0])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.signal(signal.SIGSTOP)
    try:
        longest = 0.0
        for step in range(1, 81):
            began = time.perf_counter()
            tracker.log({"a": float(step), "b": 1.0}, step)
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.1)
    finally:
        heard = time.time() * 1000
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # a busy server is not silent
        server.signal(signal.SIGCONT)
    assert longest < 0.9  # a request that is waited for takes a second
    tracker.log({"a": 81.0}, 81)
    run_id = tracker.run_id
    assert run_id
    wait_until(lambda: 81 in server.steps(run_id, "a"))
    # MLflow's own monitor ends when the server is silent; ours continues. It sends its first point at once, and the others
    # when ten times as long has passed as sending took: on a busy server only the first can be waited for.
    memory = "system/system_memory_usage_percentage"
    wait_until(lambda: any(point["timestamp"] > heard for point in server.points(run_id, memory)))
    tracker.finish()
    steps = server.steps(run_id, memory)
    assert len(set(steps)) == len(steps)
    assert server.steps(run_id, "a") == list(range(82)) and server.steps(run_id, "b") == list(range(1, 81))
    told = capfd.readouterr().err
    assert told.count("does not answer") == 1 and "answers again" in told and config.uri in told


def test_stop_ends_a_run_whose_server_falls_silent(
    server: Server, config: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = start(replace(config, on_failure="stop", patience=1.5), tmp_path)
    assert tracker.run_id  # "stop" waits for the first answer
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(TrackingError, match="does not take the run's metrics"):
            for step in range(1000):
                tracker.log({"a": 1.0}, step)
                time.sleep(0.05)
        assert not tracker.finish("FAILED")
    finally:
        server.signal(signal.SIGCONT)


def test_no_server_stop(tmp_path: Path) -> None:
    config = TrackingConfig(uri=f"http://me:secret@127.0.0.1:{unused_port()}", on_failure="stop", patience=3600)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:\d+ .*Connection refused.*tracking\.uri"):
        start(config, tmp_path)
    assert time.monotonic() < began + 300


def test_no_server_continue_and_later_all_is_sent(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    absent = replace(config, uri=f"http://127.0.0.1:{unused_port()}", patience=1)
    tracker = start(absent, tmp_path)
    for step in range(1, 31):
        tracker.log({"a": float(step)}, step)
    tracker.finish()
    warnings = capfd.readouterr().err.splitlines()
    assert len(warnings) == 2 and "the run continues" in warnings[0]
    assert "30 records were not sent" in warnings[1] and "repeating the command" in warnings[1]

    tracker = start(config, tmp_path, resume_step=30)
    tracker.log({"a": 31.0}, 31)
    tracker.finish()
    assert tracker.run_id and server.steps(tracker.run_id, "a") == list(range(1, 32))
    assert len(server.runs(config.experiment)) == 1


def test_an_end_that_does_not_wait_says_that_there_was_no_time(
    config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = start(replace(config, patience=0.0), tmp_path)
    for step in range(1, 2001):
        tracker.log({"a": float(step)}, step)
    assert not tracker.finish()
    said = capfd.readouterr().err
    assert "was given no more time: " in said and "does not answer" not in said
    with pytest.raises(ValueError, match=r"tracking\.patience is -1: it must be at least 0"):
        replace(config, patience=-1)


def test_a_run_whose_id_was_never_noted_is_found_by_its_key(
    server: Server, config: TrackingConfig, tmp_path: Path
) -> None:
    tracker = start(config, tmp_path)
    tracker.log({"a": 1.0}, 1)
    tracker.finish()
    state = tmp_path / "run/mlflow_run.json"
    saved = json.loads(state.read_bytes())
    assert {t["key"]: t["value"] for t in server.run(saved["run_id"])["data"]["tags"]}[KEY] == saved["key"]
    noted = {name: saved[name] for name in ("key", "place", "starts")}
    state.write_text(json.dumps(noted))  # as after a kill between MLflow's making it and our noting it
    again = start(config, tmp_path, resume_step=1)
    again.finish()
    assert again.run_id == tracker.run_id and server.steps(saved["run_id"], "a") == [1]


def test_a_run_that_was_begun_elsewhere_or_made_twice_is_one(
    server: Server, config: TrackingConfig, tmp_path: Path
) -> None:
    here, there, bucket = (tmp_path / name / "run" for name in ("here", "there", "bucket"))
    here.mkdir(parents=True)
    bucket.mkdir(parents=True)

    def publish() -> None:
        shutil.copy(here / "mlflow_run.json", bucket)

    begin_run(here, Place.parse(bucket), 0, publish=publish)
    begun = (bucket / "mlflow_run.json").read_bytes()
    first = start(config, here.parent, place=Place.parse(bucket), publish=publish)
    first.finish("KILLED")
    shutil.copytree(bucket, there)  # what a bucket has of it
    second = start(config, there.parent, place=Place.parse(bucket))
    wait_until(lambda: second.run_id)
    assert second.run_id == first.run_id
    server.post(  # MLflow does what it was asked before, and nobody waits for
        "runs/create",
        experiment_id=server.run(str(first.run_id))["info"]["experiment_id"],
        tags=[{"key": KEY, "value": json.loads(begun)["key"]}],
    )
    second.finish()
    assert [run["info"]["run_id"] for run in server.runs(config.experiment)] == [first.run_id]
    for damaged in ("{", "[]", '{"starts": 7}', '{"params": null}', '{"changes": "x"}', "[" * 100_000):
        (there / "mlflow_run.json").write_text(damaged)
        with pytest.raises(UserError, match=r"mlflow_run\.json is damaged \(.*\): remove it"):
            Tracker.attach(config, there.parent, there)


def test_of_a_deleted_run_a_new_one_is_made(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    tracker = start(config, tmp_path)
    tracker.log({"a": 1.0}, 1)
    tracker.finish()
    server.post("runs/delete", run_id=tracker.run_id)
    again = start(config, tmp_path, resume_step=1)
    again.finish()
    assert again.run_id and again.run_id != tracker.run_id and server.steps(again.run_id, "a") == [1]


def test_a_run_whose_experiment_was_deleted_and_restored_is_continued(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = start(config, tmp_path)
    tracker.log({"a": 1.0}, 1)
    tracker.finish()
    experiment = server.run(str(tracker.run_id))["info"]["experiment_id"]
    server.post("experiments/delete", experiment_id=experiment)
    refused = start(config, tmp_path, resume_step=1)
    refused.log({"a": 2.0}, 2)
    refused.finish()
    assert "was deleted in MLflow: restore it" in capfd.readouterr().err
    server.post("experiments/restore", experiment_id=experiment)
    again = start(config, tmp_path, resume_step=2)
    again.finish()
    assert again.run_id == tracker.run_id and server.steps(str(again.run_id), "a") == [1, 2]
    assert len(server.runs(config.experiment)) == 1


def test_a_finished_run_keeps_its_end_until_more_is_logged(
    server: Server, config: TrackingConfig, tmp_path: Path
) -> None:
    def ended(step: int, *steps: int) -> int:
        tracker = start(config, tmp_path, resume_step=step)
        for each in steps:
            tracker.log({"a": 1.0}, each)
        tracker.finish()
        info = server.run(str(tracker.run_id))["info"]
        assert info["status"] == "FINISHED"
        return info["end_time"]

    first = ended(0, 1, 2)
    time.sleep(0.01)
    assert ended(2) == first < ended(2, 3)


def test_why_a_run_failed_is_a_tag_until_it_starts_again(
    server: Server, config: TrackingConfig, tmp_path: Path
) -> None:
    def tags(tracker: Tracker) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in server.run(str(tracker.run_id))["data"]["tags"]}

    tracker = start(config, tmp_path)
    tracker.set_tag(FAILURE, "the loss became nan")
    tracker.set_tag("mine", "stays")
    tracker.finish("FAILED")
    ended = server.run(str(tracker.run_id))["info"]["end_time"]
    start(config, tmp_path, resume_step=None).finish("FAILED")  # as a sweep notes the end of its trial
    assert tags(tracker)[FAILURE] == "the loss became nan"
    assert server.run(str(tracker.run_id))["info"]["end_time"] == ended
    start(config, tmp_path).finish()
    assert FAILURE not in tags(tracker) and tags(tracker)["mine"] == "stays"


def test_what_mlflow_refuses_does_not_stop_what_follows(
    server: Server, config: TrackingConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = start(config, tmp_path)
    tracker.log({"not a name: %": 1.0}, 1)
    gone = tmp_path / "gone.png"
    server.signal(signal.SIGSTOP)
    try:
        gone.write_bytes(b"png")
        tracker.log_artifacts(gone)
        gone.unlink()  # before it could be sent
    finally:
        server.signal(signal.SIGCONT)
    tracker.log({"a": 1.0}, 2)
    tracker.finish()
    assert tracker.run_id and server.steps(tracker.run_id, "a") == [2]
    assert capfd.readouterr().err.count("refused") == 2
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        tracker.log_artifacts(gone)


def test_attach_adds_to_a_run_as_it_is(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    tracker = start(config, tmp_path)
    tracker.log({"a": 1.0}, 5)
    tracker.finish("FAILED")
    for step in (5, 3, 3):
        other = Tracker.attach(config, tmp_path, tmp_path / "run")
        other.log({"test/bits_per_byte": 2.5}, step)
        other.finish()
    assert tracker.run_id and server.steps(tracker.run_id, "test/bits_per_byte") == [3, 5]
    assert server.run(tracker.run_id)["info"]["status"] == "FAILED"


def test_metrics_stay_though_the_run_resumes_while_mlflow_is_loaded(
    config: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes an evaluation seconds. The resume writes the file anew, without the steps after its checkpoint."""
    tracker = start(config, tmp_path)
    for step in (1, 2):
        tracker.log({"a": 1.0}, step)
    tracker.finish("FAILED")
    file = tmp_path / "run" / "metrics.jsonl"
    monkeypatch.setattr("pipelines.tracking.tracker.load_mlflow", lambda: drop_after(file, 1))
    other = Tracker.attach(config, tmp_path, tmp_path / "run")
    other.log({"test/bits_per_byte": 2.5}, 1)
    other.finish()
    assert [list(record.metrics) for record in read_records(file)] == [["a"], ["test/bits_per_byte"]]


def test_sqlite_is_the_default_and_waits_for_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "all runs"
    config = TrackingConfig(system_metrics="off", on_failure="stop")
    tracker = start(config, root, dataset=DATA)
    with sqlite3.connect(root / "mlflow.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")  # as another process in the middle of writing
        for step in range(10):
            tracker.log({"a": float(step)}, step)
        time.sleep(0.5)
        other.execute("COMMIT")
    (root / "figure.png").write_bytes(b"png")
    tracker.log_artifacts(root / "figure.png")
    tracker.finish()
    again = start(config, root, resume_step=5)
    again.log({"a": 6.0}, 6)
    again.finish("KILLED")

    rows = sqlite3.connect(root / "mlflow.db")
    assert [s for (s,) in rows.execute("SELECT step FROM metrics WHERE key = 'a' ORDER BY timestamp, step")] == list(
        range(10)
    )
    assert rows.execute("SELECT run_uuid, status FROM runs").fetchall() == [(tracker.run_id, "KILLED")]
    assert [path.name for path in (root / "mlartifacts").rglob("*.png")] == ["figure.png"]
    assert sorted(os.listdir(tmp_path)) == ["all runs"]  # nothing into the working directory
    told = capfd.readouterr()
    assert told.out == told.err == ""
    assert f"sqlite:///{root}/mlflow.db" in command(root, 5000)


def test_all_trials_of_a_large_sweep_are_read(tmp_path: Path) -> None:
    config = TrackingConfig(system_metrics="off")
    tracker = start(config, tmp_path)
    tracker.finish()
    with sqlite3.connect(tmp_path / "mlflow.db") as rows:
        names = [name for (name,) in rows.execute("SELECT name FROM pragma_table_info('runs')")]
        (own,) = rows.execute("SELECT * FROM runs").fetchall()
        columns, parent = names.index("run_uuid"), str(tracker.run_id)
        for number in range(1001):
            values = [*own[:columns], f"{number:032x}", *own[columns + 1 :]]
            rows.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(names))})", values)
            tag = ("mlflow.parentRunId", parent, f"{number:032x}")
            rows.execute("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", tag)
    assert len(read_run(config, tmp_path, parent, []).children) == 1001


def test_what_another_mlflow_has_registered_is_not_registered(tmp_path: Path) -> None:
    config = TrackingConfig(uri=f"http://127.0.0.1:{unused_port()}", system_metrics="off", patience=0)
    (tmp_path / "run").mkdir()
    for uri, step in ((config.uri, 10), ("http://before:5000", -1)):
        saved = {"uri": uri, "run_id": "0" * 32, "key": "1" * 32, "registered": "10"}
        (tmp_path / "run" / "mlflow_run.json").write_text(json.dumps(saved))
        tracker = start(config, tmp_path)
        assert tracker.registered == step
        tracker.finish()


def test_a_database_that_another_process_has_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlflow.db"

    def without_links(*_: object) -> None:
        path.write_bytes(b"the first")
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    load_mlflow()
    monkeypatch.setattr(os, "link", without_links)
    make_database(path)
    assert path.read_bytes() == b"the first" and list(tmp_path.iterdir()) == [path]


def test_without_mlflow_the_record_alone_is_kept(tmp_path: Path) -> None:
    tracker = start(TrackingConfig(backend="none"), tmp_path)
    tracker.log({"a": 1.0}, 1)
    tracker.finish()
    tracker.finish()
    attached = Tracker.attach(TrackingConfig(), tmp_path, tmp_path / "run")  # the run is in no MLflow
    attached.log({"b": 2.0}, 1)
    attached.finish()
    assert [record.metrics for record in read_records(tmp_path / "run/metrics.jsonl")] == [{"a": 1.0}, {"b": 2.0}]
    assert os.listdir(tmp_path / "run") == ["metrics.jsonl"]


def test_the_record_survives_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(Record(1, 7, {"a": 1.0}).line() + b'{"step": 2, "ti')
    file = MetricsFile(path)
    file.append(Record(3, 8, {"a": 3.0}))
    file.close()
    file.close()
    assert [record.step for record in read_records(path)] == [1, 3]
    assert (
        drop_after(path, 2) == ([Record(1, 7, {"a": 1.0})], True)
        and path.read_bytes() == Record(1, 7, {"a": 1.0}).line()
    )
    assert drop_after(path, 2) == ([Record(1, 7, {"a": 1.0})], False)
    assert read_records(tmp_path / "absent.jsonl") == drop_after(tmp_path / "absent.jsonl", 1)[0] == []


def test_mlflows_variables_say_what_nothing_else_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert TrackingConfig().located() == TrackingConfig()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "books")
    located = TrackingConfig().located()
    assert (located.uri, located.experiment) == ("http://me:secret@host:5000", "books")
    chosen = TrackingConfig(uri="http://other", experiment="mine")
    assert chosen.located() == chosen and TrackingConfig(backend="none").located() == TrackingConfig(backend="none")
    run = replace(PRESETS["demo-rec"]).located()
    assert run.tracking == located and "secret" not in json.dumps(to_json(run))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    assert TrackingConfig().located().uri == f"sqlite:///{tmp_path}/mine.db"


def test_a_run_goes_where_the_variables_say_and_is_not_refused_when_they_change(
    train: Callable[..., Path], server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--tracking.backend", "mlflow", "--tracking.system-metrics", "off", "--tracking.models", "none")
    words += ("--allow-change", "steps")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    train(*words, "--steps", "3")
    (run,) = server.runs("from the environment")
    assert server.steps(run["info"]["run_id"], "train/bits_per_token") == [1, 2, 3]
    assert not (tmp_path / "runs/mlflow.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri.replace("127.0.0.1", "localhost"))
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    train(*words, "--steps", "5")
    assert server.steps(run["info"]["run_id"], "train/bits_per_token") == [1, 2, 3, 4, 5]


def test_the_commit_is_that_of_this_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).parents[2]
    git = ["git", "-C", str(here)]
    if subprocess.run([*git, "ls-files", "--error-unmatch", "pipelines/__init__.py"], capture_output=True).returncode:
        pytest.skip("not in a git checkout")
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.chdir(tmp_path)
    assert git_commit() in (commit, f"{commit}-dirty")
    monkeypatch.setenv("PATH", "")
    assert git_commit() == ""


def test_a_run_deleted_under_way_ends_at_once(server: Server, config: TrackingConfig, tmp_path: Path) -> None:
    tracker = start(replace(config, patience=3600), tmp_path)
    tracker.log({"a": 1.0}, 1)
    wait_until(lambda: tracker.run_id and server.steps(tracker.run_id, "a"))
    server.post("runs/delete", run_id=tracker.run_id)
    tracker.log({"a": 2.0}, 2)
    began = time.monotonic()
    tracker.finish()
    assert time.monotonic() < began + 300


def test_config_errors_are_sentences() -> None:
    with pytest.raises(ValueError, match="whole path"):
        TrackingConfig(uri="sqlite:///mlflow.db")
    with pytest.raises(ValueError, match="experiment is blank"):
        TrackingConfig(experiment=" ")


def test_importing_tracking_and_report_imports_neither_mlflow_nor_torch() -> None:
    rooms = "pipelines.tracking, pipelines.reports.evaluation"
    code = f"import sys, {rooms}; print([m for m in ('mlflow', 'torch', 'ray') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_metrics_that_a_full_disk_refuses_come_with_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = MetricsFile(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(metrics_file.os, "write", full)
        for step in (1, 2):
            file.append(Record(step, step, {"a": 1.0}))
    file.append(Record(3, 3, {"a": 1.0}))
    file.close()
    assert [record.step for record in read_records(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert capsys.readouterr().err.count("metrics wait for room") == 1
