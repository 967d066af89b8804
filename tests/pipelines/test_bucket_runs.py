"""Runs in an object store, over a real S3 API, on machines that share no folder: each process has a cache folder of its own."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.killing import MODELS, TINY, Group, Trap, curve, final_tensors, make_store
from common.places import Place
from data_prep.cache import cache_folder
from pipelines.checkpoints import run_folder, saving
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.retention import remove
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import CheckpointConfig
from pipelines.doctor import main as doctor
from pipelines.embed import main as embed
from pipelines.evaluate import main as evaluate
from pipelines.export import main as export
from pipelines.generate import main as generate
from pipelines.inference.trained import find_checkpoint
from pipelines.presets import PRESETS
from pipelines.run import PipelineConfig, stages
from pipelines.tracking.metrics_file import read_records
from pipelines.train import main as train
from pipelines.training.stopping import STOPPED_STATUS
from pipelines.training.watchdog import Heartbeat
from pipelines.training.world import World
from studies.continuations import main as continuations
from tests.s3_server import ENVIRONMENT, publish
from tests.small_corpus import contents
from tests.waiting import wait_until

pytest.importorskip("moto", reason="the S3 server of the tests is in the extra dev")
Bucket = Callable[[str], str]
WORDS = [*MODELS["rec fixed:skip"], *TINY, "--steps", "12", "--tracking.backend", "none", "--run", "mine"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def calm(made: Path, tmp_path: Path) -> Path:
    """The same run in a folder, which nothing disturbs."""
    train([*WORDS, "--data.store", str(made), "--root", str(tmp_path / "calm")])
    return tmp_path / "calm" / "mine"


@pytest.fixture
def words(made: Path, bucket: Bucket) -> list[str]:
    return [*WORDS, "--data.store", publish(made, bucket("store")), "--root", bucket("runs")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Continue as on another machine."""
    return lambda name: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def local_copy(run: RunFolder, folder: Path, step: int) -> Path:
    """A run in a bucket as a folder, its checkpoint of a step under the name that it has in a folder."""
    for file in run.place.list(recursive=True):
        if not file.is_dir:
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.place.read_bytes())
    for path in (folder / "checkpoints").glob(f"step-{step:08d}.*"):
        path.rename(path.with_suffix(""))
    return folder


@pytest.mark.long
def test_a_run_in_a_bucket_is_the_run_in_a_folder(
    words: list[str], calm: Path, bucket: Bucket, tmp_path: Path, machine: Callable[[str], None],
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = RunFolder.parse(bucket("runs/mine"))
    beat = Heartbeat.beat

    def failing(self: Heartbeat, step: int | None = None) -> None:
        if step == 8:
            raise RuntimeError("the machine is gone")
        beat(self, step)

    monkeypatch.setattr(Heartbeat, "beat", failing)
    with pytest.raises(RuntimeError):
        train(words)
    monkeypatch.setattr(Heartbeat, "beat", beat)
    assert run.newest_step() == 6
    machine("another")
    train(words)
    assert "resumes from step 6" in capfd.readouterr().out
    found = local_copy(run, tmp_path / "copy", 12)
    assert final_tensors(found, 12) == final_tensors(calm, 12) and curve(found) == curve(calm)
    assert json.loads((found / "config.json").read_text())["run"] == "mine"
    assert not [file.name for file in run.place.list(recursive=True) if file.name.endswith((".note", ".tmp"))]

    machine("a third")
    assert doctor([bucket("runs/mine")]) == 0
    told = capfd.readouterr().out
    assert "would resume from step 12" in told and "newest" in told
    evaluate([bucket("runs/mine"), "--tracking.backend", "none"])
    names = {file.name for file in Place.parse(bucket("runs/reports/mine")).list()}
    assert {"report.json", "table.csv", "cumulative.png"} <= names
    name = run.checkpoint_names()[0]
    generate([bucket(f"runs/mine/checkpoints/{name}"), "--prompt", "ba", "--max-new-tokens", "3", "--seed", "0"])
    export([bucket("runs/mine"), "--output", str(tmp_path / "exported")])
    assert (tmp_path / "exported" / "model.safetensors").exists()
    assert not list(tmp_path.glob("s3*")) and not Path("s3:").exists()


def test_a_run_that_keeps_no_segment_files_is_read_without_them(
    words: list[str], bucket: Bucket, tmp_path: Path, machine: Callable[[str], None]
) -> None:
    machine("cache")
    train([*words, "--steps", "2", "--data.cache", "none"])
    quiet = ["--tracking.backend", "none"]
    evaluate([bucket("runs/mine"), *quiet])
    continuations([bucket("runs/mine"), "--new-tokens", "4", "--blocks", "1", *quiet])
    embed([bucket("runs/mine"), "--output", str(tmp_path / "embedded")])
    assert not (cache_folder() / "segments").exists()


@pytest.mark.long
def test_the_stages_of_a_pipeline_in_a_bucket(made: Path, bucket: Bucket, tmp_path: Path) -> None:
    """All but `prepare`, whose test is test_object_store.py."""
    words = [*WORDS[1:-2], "--steps", "6"]
    pairs = [f"{key.removeprefix('--')}={value}" for key, value in zip(words[::2], words[1::2], strict=True)]
    config = PipelineConfig(
        "small-rec", also=("demo-rec",), corpus="text", store=publish(made, bucket("store")), root=bucket("runs"),
        set=tuple(pair for pair in pairs if not pair.startswith("data.corpus")),
    )  # fmt: skip
    for stage in stages(config)[1:]:
        importlib.import_module(f"pipelines.{stage.module}").main(list(stage.words))
        assert stage.fingerprint(), f"{stage.name} has not written to {stage.writes}"
    reports = Place.parse(bucket("runs")) / "reports"
    names = {file.name for file in reports.list(recursive=True)}
    assert {"small-rec-vs-demo-rec/table.csv", "compare-small-rec-vs-demo-rec/comparison.csv"} <= names
    table = (reports / "compare-small-rec-vs-demo-rec/comparison.csv").read_bytes().decode().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [["small-rec", "rec"], ["demo-rec", "rec"]]


def test_old_checkpoints_go_and_others_starts_are_left(words: list[str], bucket: Bucket) -> None:
    train([*words, "--checkpoint.keep", "2", "--checkpoint.keep-best", "0", "--checkpoint.keep-every", "6"])
    run = RunFolder.parse(bucket("runs/mine"))
    assert [int(name[5:13]) for name in run.checkpoint_names()] == [12, 9, 6]
    assert {file.name.split("/")[0] for file in run.checkpoints.list(recursive=True)} == set(run.checkpoint_names())


def test_a_checkpoint_that_goes_while_it_is_fetched_is_no_fault(
    words: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(words)
    run, fetch = RunFolder.parse(bucket("runs/mine")), run_folder.copy
    doomed = run.checkpoints / run.checkpoint_names()[0]

    def pruned(source: Place, target: Place) -> None:
        if source.name == "model.safetensors" and source.parent == doomed:
            remove(doomed)
        fetch(source, target)

    monkeypatch.setattr(run_folder, "copy", pruned)
    capsys.readouterr()
    assert doctor([bucket("runs/mine")]) == 0
    assert doomed.name not in capsys.readouterr().out and run.newest_step() < 12


def test_every_machine_tidies_its_working_folder(
    bucket: Bucket, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("of rank 1")
    monkeypatch.setattr(World, "broadcast_str", lambda self, text: "0badc0de")
    run = RunFolder(Place.parse(bucket("runs/mine")), trains=True)
    names = [".step-00000003.0badc0de.tmp", ".step-00000003.deadbeef.tmp"]
    for name in names:
        (run.folder / "checkpoints" / name).mkdir(parents=True)
    saving.Saver(run, CheckpointConfig(), World(1, 2, torch.device("cpu")), lanes=2)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == names[:1]


def test_processes_of_one_machine_save_at_their_own_pace(
    bucket: Bucket, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has uploaded its file and tidied up before rank 0 writes its first byte."""
    machine("of both")
    monkeypatch.setattr(World, "broadcast_str", lambda self, text: "0badc0de")
    run = RunFolder(Place.parse(bucket("runs/mine")), trains=True)
    write = saving.save_file

    def write_late(tensors: dict[str, torch.Tensor], path: Path) -> None:
        note = run.checkpoints / "step-00000003.0badc0de" / ".lanes-1-2-of-2.safetensors.note"
        if path.name != "lanes-1-2-of-2.safetensors":
            wait_until(note.exists, 60)
        write(tensors, path)

    monkeypatch.setattr(saving, "save_file", write_late)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    savers = [saving.Saver(run, CheckpointConfig(), World(rank, 2, torch.device("cpu")), lanes=2) for rank in range(2)]
    for saver in savers:
        lanes = {"digest": torch.tensor([3])}
        saver.save(3, model=model, optimizer=optimizer, per_lane=lanes, per_process={}, meta={"validation": None})
    for saver in reversed(savers):  # rank 1 waits for nobody
        saver.abandon()
        saver.check()
    assert run.newest_step() == 3 and not list((run.folder / "checkpoints").iterdir())


def test_a_damaged_checkpoint_is_passed_over_and_a_damaged_copy_fetched_again(
    words: list[str], bucket: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    train(words)
    run = RunFolder.parse(bucket("runs/mine"))
    newest, before = run.checkpoint_names()[:2]
    checkpoint = find_checkpoint(bucket("runs/mine"))
    copy = checkpoint.folder / "model.safetensors"
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(bytes(data))
    assert find_checkpoint(bucket("runs/mine")).folder.name == newest and copy.read_bytes() != bytes(data)

    (run.checkpoints / newest / "model.safetensors").write_atomically(bytes(data))
    shutil.rmtree(checkpoint.folder)
    assert find_checkpoint(bucket("runs/mine")).folder.name == before
    assert "passed over a checkpoint" in capfd.readouterr().err
    assert doctor([bucket("runs/mine")]) == 2
    train(words)  # resumes at the one before, and takes the damaged one's place
    assert run.newest()[1] == [] and run.newest_step() == 12
    with pytest.raises(CheckpointError, match=r"s3://books/.*/nothing does not exist"):
        find_checkpoint(bucket("runs/nothing"))
    for other in ("runs", "runs/mine/checkpoints"):
        with pytest.raises(
            CheckpointError, match=r"s3://books/.* holds no checkpoint: did you mean s3://.*/runs/mine\?"
        ):
            find_checkpoint(bucket(other))
    for name in ("config.json", "modeling_throughline.py"):
        Place.parse(bucket(f"exported/{name}")).write_atomically(b"{}")
    with pytest.raises(CheckpointError, match=r"/exported is an exported folder: copy it to this machine"):
        find_checkpoint(bucket("exported"))


def test_what_was_not_uploaded_whole_is_no_checkpoint(
    words: list[str], calm: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    machine: Callable[[str], None],
) -> None:  # fmt: skip
    """The bucket fails in the middle of the second checkpoint; another machine resumes at the first."""
    uploads = 0

    def failing(path: Path, place: Place) -> None:
        nonlocal uploads
        uploads += 1
        if uploads > 5:
            raise OSError(5, "the bucket is gone")
        run_folder.upload(path, place)

    def failed(saver: saving.Saver, *_: object) -> None:
        """Such a bucket removes nothing either."""
        saver._error = saving.SaveError("failed")
        saver._together = None

    monkeypatch.setattr(saving, "upload", failing)
    monkeypatch.setattr(saving.Saver, "_failed", failed)
    with pytest.raises(saving.SaveError):
        train(words)
    monkeypatch.undo()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run = RunFolder.parse(bucket("runs/mine"))
    folders = {file.name.split("/")[0] for file in run.checkpoints.list(recursive=True)}
    assert len(folders) == 2 and run.newest_step() == 3
    machine("another")
    train(words)
    assert final_tensors(local_copy(run, tmp_path / "copy", 12), 12) == final_tensors(calm, 12)
    assert {file.name.split("/")[0] for file in run.checkpoints.list(recursive=True)} == set(run.checkpoint_names())


def test_the_last_lines_of_a_killed_worker_stay_in_its_log(bucket: Bucket, machine: Callable[[str], None]) -> None:
    """They were not published yet. A longer log of another machine takes the place of this one's."""
    name = "logs/worker-0.log"
    run = RunFolder(Place.parse(bucket("runs/mine")), trains=True)
    logs = {}
    for each in ("one", "two"):
        machine(each)
        run.fetch(name)
        logs[each] = run.folder / name
        with logs[each].open("ab") as log:
            log.write(b"started\n")
            log.flush()
            run.publish(name)
            log.write(f"{each} hung\n".encode())
    machine("one")
    run.fetch(name)
    assert logs["one"].read_text() == "started\nstarted\n"
    machine("two")
    run.fetch(name)
    assert logs["two"].read_text() == "started\nstarted\ntwo hung\n"
    (run.place / name).delete()
    run.fetch(name)
    assert not logs["two"].exists()  # it was another run's


def test_asked_to_stop_through_the_bucket(words: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Place.parse(bucket("runs/mine")) / "stop"

    def beat(self: object, step: int | None = None) -> None:
        if step == 4:
            stop.write_atomically(b"stop")

    monkeypatch.setattr("pipelines.training.watchdog.Heartbeat.beat", beat)
    monkeypatch.setattr("pipelines.training.stopping.BUCKET_SECONDS", 0)
    assert train(words) == STOPPED_STATUS
    assert 4 <= RunFolder.parse(bucket("runs/mine")).newest_step() < 12 and not stop.exists()


def test_credentials_of_a_root_are_in_no_record(
    made: Path, endpoint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    machine: Callable[[str], None],
) -> None:  # fmt: skip
    machine("cache")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    uri = f"s3://testing:testing-secret@books/root?endpoint_override={endpoint}&scheme=http"
    train([*WORDS, "--steps", "3", "--data.store", str(made), "--root", uri])
    output = capfd.readouterr()
    assert "s3://books/root" in output.out and "testing-secret" not in output.out + output.err
    run = RunFolder.parse(Place.parse(uri) / "mine")
    local_copy(run, tmp_path / "copy", 3)
    written = {**contents(tmp_path / "copy"), **contents(tmp_path / "cache")}
    assert written and not [name for name, data in written.items() if b"testing-secret" in data]


@pytest.mark.long
def test_two_machines_without_a_shared_folder_are_killed_and_go_on(
    words: list[str], made: Path, bucket: Bucket, tmp_path: Path
) -> None:
    two = [*words, "--steps", "18"]
    with Group(
        [*WORDS, "--steps", "18", "--data.store", str(made), "--root", str(tmp_path)], 2, tmp_path / "log"
    ) as group:
        assert group.wait() == [0, 0], group.said()
    run, log = RunFolder.parse(bucket("runs/mine")), tmp_path / "bucket.log"
    machines = [{**ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / name)} for name in ("one", "two", "three")]
    traps: list[tuple[str, int, int]] = [
        ("upload to the bucket", 0, 4), ("upload to the bucket", 1, 7), ("commit", 0, 10),
        ("pruning", 0, 13), ("backward and all-reduce", 1, 16),
    ]  # fmt: skip
    for turn, (moment, rank, step) in enumerate(traps):
        where = [machines[turn % 3], machines[(turn + 1) % 3]]  # ranks move from machine to machine
        with Group(two, 2, log, {rank: Trap(moment, step, 2.0)}, where) as group:
            group.wait_until_killed([rank])
    with Group(two, 2, log, environments=machines[:2]) as group:
        assert group.wait() == [0, 0], group.said()
    found = local_copy(run, tmp_path / "copy", 18)
    assert final_tensors(found, 18) == final_tensors(tmp_path / "mine", 18) and curve(found) == curve(tmp_path / "mine")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_ray_workers_train_into_a_bucket(
    words: list[str],
    bucket: Bucket,
    machine: Callable[[str], None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The command, asked to stop by a signal on the way."""
    machine("driver")
    run = RunFolder.parse(bucket("runs/mine"))

    def ask() -> None:
        wait_until(lambda: run.newest_step() >= 3, every=0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    status = train([*words, "--num-workers", "2", "--steps", "4000"])
    streams = capfd.readouterr()
    said = streams.out + streams.err
    assert status == STOPPED_STATUS and "MLflow" not in said, said
    found, complaints = run.newest()
    assert found and found.step >= 3 and found.meta["world"] == 2 and not complaints
    assert f"step {found.step}/4000" in said, said  # what rank 0 has published was shown
    assert f"stopped after step {found.step} of 4,000, which is saved" in said, said
    files = [file.name for file in run.place.list(recursive=True)]
    assert "stop" not in files and not [name for name in files if ".ray/" in name]
    saved = local_copy(run, tmp_path / "copy", found.step)
    assert read_records(saved / "metrics.jsonl")[-1].step == found.step


def test_a_bucket_that_is_silent_at_a_start_keeps_its_newer_records(
    words: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    train([*words, "--steps", "3"])
    records = Place.parse(bucket("runs/mine/metrics.jsonl"))
    newer = records.read_bytes() + b'{"step": 4, "time_ms": 1, "metrics": {}}\n'  # by another machine
    records.write_atomically(newer)

    def silent(*_: object) -> None:
        raise OSError(errno.EIO, "the bucket is silent")

    monkeypatch.setattr(RunFolder, "fetch", silent)
    with pytest.raises(OSError, match="the bucket is silent"):
        train([*words, "--steps", "6", "--allow-change", "steps"])
    assert records.read_bytes() == newer


def test_the_folder_of_a_run_in_a_bucket_is_a_working_folder(bucket: Bucket, tmp_path: Path) -> None:
    preset: Any = PRESETS["small-rec"]
    config = replace(preset, root=bucket("runs"), run="mine").located()
    assert config.root == bucket("runs") and RunFolder.of(config).place == Place.parse(bucket("runs/mine"))
    assert (
        RunFolder.of(config).folder.is_absolute()
        and RunFolder.of(config).folder.name == "mine"
        and "s3:" not in str(RunFolder.of(config).folder)
    )
    local = replace(preset, root=str(tmp_path), run="mine").located()
    assert RunFolder.of(local).folder == tmp_path / "mine"


@pytest.mark.long
def test_credentials_in_uris_are_printed_and_recorded_nowhere(
    made: Path, bucket: Bucket, tmp_path: Path, machine: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    machine("mine")
    store, root = (bucket(name).replace("s3://", "s3://KEYLEAK:SECRETLEAK@") for name in ("store", "runs"))
    publish(made, bucket("store"))
    tracked = ("--tracking.backend", "mlflow", "--tracking.system-metrics", "off", "--steps", "3")
    train([*WORDS, *tracked, "--data.store", store, "--root", root])
    evaluate([f"{root.replace('/runs?', '/runs/mine?')}", "--output", str(tmp_path / "report")])
    with pytest.raises(ValueError, match="was trained with"):
        train([*WORDS, *tracked, "--data.store", store, "--root", root, "--seed", "9"])
    streams = capfd.readouterr()
    kept = {
        str(file.place): file.place.read_bytes() for file in Place.parse(bucket("runs")).list(True) if not file.is_dir
    }
    kept |= contents(tmp_path) | {"printed": (streams.out + streams.err).encode()}
    assert len([name for name in kept if name.endswith("mlflow.db")]) == 1  # the evaluation's too
    assert any(name.endswith("config.json") for name in kept)
    assert not [name for name, data in kept.items() if b"LEAK" in data]
