"""Training on real Ray Train workers: the same whatever their number, and across kills."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from ray.train import WorkerGroupError

from benchmarks.killing import Group
from common.errors import UserError
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError
from pipelines.cluster import elastic, ray_session
from pipelines.cluster.ray_train import reservations
from pipelines.train import main
from pipelines.training.stopping import NOTICES
from tests.ray_processes import Meanwhile, of_ray
from tests.small_corpus import flip
from tests.small_runs import TINY, records_with, values_of
from tests.waiting import wait_until

Train = Callable[..., Path]
Plain = Callable[..., Path]
pytestmark = [pytest.mark.ray, pytest.mark.slow]


def losses(folder: Path) -> list[float]:
    return values_of(folder, "train/bits_per_token")


@pytest.fixture
def words(store: Path, tmp_path: Path) -> list[str]:
    """Words of a small run below the folder `runs`; its name and what else it has are to be added."""
    return [*TINY, "--data.store", str(store), "--root", str(tmp_path / "runs")]


@pytest.fixture
def plain(words: list[str], tmp_path: Path) -> Plain:
    """Like `train`, in so many processes that Ray knows nothing of: they start in a second."""

    def run(*more: str, name: str, workers: int) -> Path:
        with Group([*words, "--run", name, *more], workers, tmp_path / f"{name}.log") as group:
            assert group.wait() == [0] * workers, group.said()
        return tmp_path / "runs" / name

    return run


def test_a_run_has_an_ascii_name_of_its_own_in_ray_train() -> None:
    assert elastic.ascii_name("mine.2") == "mine.2"
    assert elastic.ascii_name("zwölf") != elastic.ascii_name("zwälf")
    assert re.fullmatch(r"zw-lf-[0-9a-f]{8}", elastic.ascii_name("zwölf"))


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_killed_worker_a_killed_controller_and_a_stop_cost_no_step(
    plain: Plain, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stop is heard although a worker dies before it can save."""
    undisturbed = plain("--steps", "80", "--checkpoint.keep", "16", name="calm", workers=2)
    folder = tmp_path / "runs" / "killed"

    def ask_and_kill(workers: list[psutil.Process]) -> None:
        (folder / "resize").write_text("there would be room for more, too")
        (folder / "stop").touch()
        workers[0].kill()

    Meanwhile(folder, lambda workers: workers[0].kill(), step=5)
    Meanwhile(folder, lambda _: of_ray("TrainController")[0].kill(), step=10, attempt=1)
    Meanwhile(folder, ask_and_kill, step=15, attempt=2)
    # The session has four CPUs: with the dead controller's reservation there would be no room to begin again.
    mine = ["--run", "killed", "--num-workers", "2", "--placement.cpus", "2", "--steps", "80"]
    assert main([*words, *mine]) == 75
    streams = capsys.readouterr()
    assert streams.err.count("starting again from the newest checkpoint") == 2 and not reservations()
    assert "a worker died" in streams.err and "it was asked to stop" in streams.err
    step = RunFolder.parse(folder).newest_step()
    assert step >= 15 and f"stopped after step {step}" in streams.out
    assert not (folder / "stop").exists() and not (folder / "resize").exists()
    last = f"checkpoints/step-{step:08d}"
    for name in (
        "model.safetensors",
        "optimizer.safetensors",
        "lanes-0-2-of-4.safetensors",
        "lanes-2-4-of-4.safetensors",
    ):
        assert (folder / last / name).read_bytes() == (undisturbed / last / name).read_bytes()
    logged = losses(folder)  # the workers may have come beyond their last checkpoint
    assert len(logged) >= step and logged == losses(undisturbed)[: len(logged)]


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_users_error_in_a_worker_is_one_sentence_and_no_retry(
    train: Train, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next((store / "text" / "train").glob("part-*.arrow"))
    flip(part)
    with pytest.raises(ValueError, match=r"part-\d+.arrow is damaged in record batch"):
        train("--num-workers", "1", "--steps", "60")
    assert "starting again" not in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_passing_error_in_a_worker_is_tried_again_and_one_that_stays_is_shown(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs/run/metrics.jsonl").mkdir(parents=True)  # nobody's mistake, as far as a worker can tell
    with pytest.raises(WorkerGroupError, match=r"(?s)Traceback .*Is a directory"):
        train("--num-workers", "1", "--max-failures", "1")
    told = capsys.readouterr().err
    assert told.count("starting again from the first step") == 1 and "Is a directory" in told


@pytest.fixture
def long_run(words: list[str]) -> list[str]:
    """Words of a run of one worker that lasts longer than any test; its folder is `runs/long`."""
    return [*words, "--run", "long", "--num-workers", "1", "--steps", "100000", "--validate-every", "0"]


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_signal_and_a_checkpoint_that_cannot_be_written_is_no_saved_stop(long_run: list[str], tmp_path: Path) -> None:
    checkpoints = tmp_path / "runs/long/checkpoints"

    def obstruct_and_ask(workers: list[psutil.Process]) -> None:
        checkpoints.rename(checkpoints.with_name("elsewhere"))
        checkpoints.write_text("a file in the way")
        os.kill(os.getpid(), signal.SIGTERM)

    Meanwhile(checkpoints.parent, obstruct_and_ask)
    with pytest.raises(SaveError, match=r"could not be written .*File exists"):
        main(long_run)


@pytest.mark.usefixtures("ray_session")
def test_a_stop_is_heard_while_there_is_no_room_for_a_worker(
    long_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "WAIT_SECONDS", 0.5)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)  # as on a cluster, which may grow
    folder, began = tmp_path / "runs/long", time.monotonic()

    def ask() -> None:
        nonlocal began
        wait_until(lambda: (folder / ".ray").exists() and reservations("PENDING"))
        time.sleep(1)
        began = time.monotonic()
        (folder / "stop").touch()

    before = set(threading.enumerate())
    threading.Thread(target=ask, daemon=True).start()
    assert main([*long_run, "--num-workers", "2", "--placement.cpus", "3"]) == 75 and time.monotonic() < began + 120
    assert not (folder / "stop").exists()
    assert "waiting for room for 2 workers of 3 CPU (pack)" in capsys.readouterr().out
    # The command's process would end here; this one's thread still waits in Ray, which crashes where it is shut down meanwhile.
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < began + 300, left
        for process in of_ray("TrainController"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("more", [["--placement.cpus", "3"], ["--placement.strategy", "strict-spread"]])
def test_a_machine_without_room_is_a_sentence_where_no_other_can_come(long_run: list[str], more: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"this machine has room for 1 of 2 workers of .* CPU \(.*\): lower --num-workers"
    ):
        main([*long_run, "--num-workers", "2", *more])


@pytest.mark.usefixtures("ray_session")
def test_a_gpu_that_is_asked_for_and_not_there(long_run: list[str]) -> None:
    with pytest.raises(UserError, match="use_gpu is yes, and Ray finds no GPU here: choose --use-gpu auto"):
        main([*long_run, "--num-workers", "2", "--use-gpu", "yes"])


@pytest.mark.usefixtures("ray_session")
def test_what_an_earlier_attempt_hung_at_is_not_said_of_a_later_one(
    long_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "runs/long/logs/hang.txt"

    def attempt(config: object, use_gpu: bool, number: int, *_: object) -> BaseException:
        assert not told.exists()  # nor one of an earlier start
        if number == 0:
            told.write_text("nothing has moved")
        return RuntimeError(f"attempt {number}")

    told.parent.mkdir(parents=True)
    told.write_text("nothing had moved in an earlier start")
    monkeypatch.setattr(elastic, "train_once", attempt)
    with pytest.raises(RuntimeError, match="attempt 2"):
        main([*long_run, "--num-workers", "2", "--max-failures", "2"])
    said = capsys.readouterr().err
    assert "the workers hung (nothing has moved): starting again" in said
    assert "a worker died (attempt 1): starting again" in said


@pytest.mark.usefixtures("ray_session")
def test_a_ray_that_does_not_answer_is_known() -> None:
    watch = ray_session.Watch()
    assert watch.check()
    watch._looked = 0.0  # as if that had been long ago
    assert watch.check()
    watch._looked = 0.0
    with socket.create_server(("127.0.0.1", 0)) as dead:
        address = f"127.0.0.1:{dead.getsockname()[1]}"
    head = next(name for name in watch._addresses if name.startswith("head"))
    watch._addresses[head] = address
    assert not watch.check()  # though not for so long that it is lost


LATE = """
import os, sys, psutil, ray
from pipelines.cluster import ray_session

init, calls = ray.init, []
def timed_out(*arguments, **options):
    init(*arguments, **options)
    calls.append(options)
    if len(calls) == 1:
        raise Exception("The current node timed out during startup. This could happen because")

ray.init = timed_out
ray_session.start(num_cpus=2)
children = psutil.Process().children(recursive=True)
raylets = [child for child in children if child.name() == "raylet"]
ours = {psutil.Process().pid, *(child.pid for child in children)}
listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in ours]
print(len(calls), ray.is_initialized(), len(raylets), *{c.laddr.ip.removeprefix("::ffff:") for c in listening}, flush=True)

from pipelines.train import main

sys.exit(main(sys.argv[1:]))
"""
"""A training command whose Ray session comes up too late at first; before it trains it prints what it has then."""


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_late_session_and_the_whole_run_killed_and_the_same_command_again(
    train: Train, plain: Plain, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First in a process of its own, whose Ray session is started twice. It listens on loopback alone, also where Ray was imported
    before us, as in a notebook or for a sweep, and its token is in no file. All of it is killed. Then in this process, whose
    session is there. In the end the two workers have read and learned the same as one process and as four.
    """
    same = ["--model.dropout", "0", "--steps", "60"]
    name = "zwölf"  # which Ray Train cannot have as a name
    tracked = ["--tracking.backend", "mlflow", "--tracking.system-metrics", "off", "--tracking.models", "metrics"]
    command = [*words, *same, *tracked, "--run", name, "--num-workers", "2"]
    folder = tmp_path / "runs" / name

    home = tmp_path / "home"
    home.mkdir()
    ours = {*ray_session.OWN, "RAY_AUTH_TOKEN"}
    environment = {key: value for key, value in os.environ.items() if key not in ours} | {"HOME": str(home)}
    log = tmp_path / "said.txt"
    with log.open("w") as file:
        first = subprocess.Popen(
            [sys.executable, "-c", LATE, *command], env=environment, stdout=file, stderr=file, start_new_session=True
        )
    run = RunFolder.parse(folder)
    wait_until(lambda: run.newest_step() >= 5 or first.poll() is not None)
    assert first.poll() is None, log.read_text()
    children = psutil.Process(first.pid).children(recursive=True)
    os.killpg(first.pid, signal.SIGKILL)
    for child in children:  # Ray's processes stand in sessions of their own
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=30)
    assert first.wait() == -signal.SIGKILL
    said = log.read_text().splitlines()
    assert "Ray did not start (The current node timed out during startup): trying again" in said
    assert "2 True 1 127.0.0.1" in said
    assert not list(tmp_path.rglob("auth_token"))
    noted = (
        folder / "mlflow_run.json"
    )  # names no run where MLflow took longer than the steps to begin: one run all the same
    before = json.loads(noted.read_text()).get("run_id") if noted.exists() else None
    killed = run.newest_step()
    assert 5 <= killed < 60

    capsys.readouterr()
    assert main(command) == 0
    assert f"resumes from step {killed}" in capsys.readouterr().out
    assert not (folder / ".ray").exists()
    assert before in (None, json.loads(noted.read_text())["run_id"])
    assert [record.step for record in records_with(folder, "train/bits_per_token")] == list(range(1, 61))

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert len(runs) == 1 and runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "train/bits_per_token")
    assert [point.step for point in history] == list(range(1, 61))
    assert [point.value for point in history] == losses(folder)

    check_the_same([train(*same, name="one"), folder, plain(*same, name="four", workers=4)])


def check_the_same(folders: list[Path]) -> None:
    """The runs have read and learned the same in 60 steps, whoever held their four lanes."""
    one, *others = (Checkpoint.open(folder / "checkpoints" / "step-00000060") for folder in folders)
    read, _ = one.lanes(0, 4)
    assert len(set(read["digest"].tolist())) == 4
    for folder, checkpoint in zip(folders[1:], others, strict=True):
        lanes, _ = checkpoint.lanes(0, 4)  # put together from the workers' files
        assert lanes["digest"].tolist() == read["digest"].tolist()  # every lane has read the same, token for token
        np.testing.assert_allclose(losses(folder), losses(folders[0]), rtol=1e-4)
        for name in read:
            if name.startswith("state/"):
                np.testing.assert_allclose(lanes[name].numpy(), read[name].numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("ray_session")
def test_signals_that_ask_to_stop_end_no_process_of_ray() -> None:
    """A terminal that closes sends SIGHUP to them too."""
    assert not set(NOTICES) & signal.pthread_sigmask(signal.SIG_BLOCK, [])
    rays = [child for child in psutil.Process().children() if child.name() in ("gcs_server", "raylet")]
    assert rays
    for process in rays:
        status = Path(f"/proc/{process.pid}/status").read_text()
        blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in NOTICES)


@pytest.mark.usefixtures("ray_session")
def test_our_own_session_listens_on_loopback_alone() -> None:
    """Every port of the session's processes, workers included."""
    import ray

    @ray.remote
    def work() -> int:
        return os.getpid()

    ray.get(work.remote())
    # Beside Ray's, this process may have those of other tests, which are still ending.
    this = psutil.Process()
    rays = [child for child in this.children() if any(f"{os.sep}ray{os.sep}" in word for word in child.cmdline())]
    ours = {this.pid, *(process.pid for child in rays for process in (child, *child.children(recursive=True)))}
    assert len(ours) > len(rays) + 1 > 4  # the workers, those that started them, and this one
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in ours]
    assert listening
    assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} <= {"127.0.0.1", "::1"}  # pyrefly: ignore
