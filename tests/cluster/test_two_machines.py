"""Every stage on two machines, by `ray submit`, `ray job submit` and `ray exec`: `make test-cluster`."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from common.places import Place
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_folder import RunFolder
from tests.cluster.conftest import Laptop
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.cluster]

TINY = shlex.split("""
    --model.layers 2 --model.recurrent-layers 2 --model.states 8 --model.d-model 32 --model.heads 2 --model.head-dim 16
    --model.mlp-dim 64 --model.window 16 --model.dropout 0.0 --data.lanes 4 --data.segment-length 64 --schedule.warmup-steps 4
    --log-every 1 --validate-every 0 --use-gpu no --tracking.system-metrics off --placement.strategy strict-spread
""")
PREPARE = ("text", "--source", "books", "--store", "runs/store.v1", "--part-bytes", "20000", "--segment-length", "128")


def train(run: str, *more: str) -> tuple[str, ...]:
    return ("small-rec", *TINY, "--data.store", "runs/store.v1", "--run", run, *more)


@pytest.fixture(scope="module")
def prepared(laptop: Laptop) -> None:
    """The store that the tests below train from, made by `ray submit`."""
    laptop.submit("prepare", *PREPARE)


def step_of(laptop: Laptop, run: str) -> int:
    return RunFolder.parse(laptop.shared / "runs" / run).newest_step()


def logged(laptop: Laptop, run: str) -> int:
    """The step of the newest metric."""
    path = laptop.shared / "runs" / run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def job_id(said: str) -> str:
    found = re.search(r"Job '(\S+)' submitted", said)
    assert found, said
    return found[1]


def test_what_listens_is_on_loopback_or_asks_for_the_token(laptop: Laptop) -> None:
    for i in range(2):
        said = laptop.machines.ssh(i, "ss -ltnp").stdout
        with open(laptop.log, "a") as log:
            log.write(f"# machine {i + 1}: ss -ltnp\n{said}\n")
    head = laptop.machines.ssh(0, "ss -ltn").stdout
    assert "127.0.0.1:8265" in head and "0.0.0.0:8265" not in head and "10.77.0.1:8265" not in head  # the dashboard
    without = laptop.machines.ssh(0, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8265/api/jobs/").stdout
    assert without == "401"
    stranger = "cd /; HOME=/nonexistent RAY_AUTH_MODE=disabled timeout 60 ~/throughline-environment/bin/python -c "
    asked = laptop.machines.ssh(1, stranger + "'import ray; ray.init(address=\"10.77.0.1:6379\")'", check=False)
    assert asked.returncode not in (0, 124)


@pytest.mark.usefixtures("prepared")
def test_every_stage_by_ray_submit(laptop: Laptop) -> None:
    assert (laptop.shared / "runs/store.v1/text/train/manifest.json").is_file()
    laptop.submit("train", *train("by-submit", "--steps", "6", "--num-workers", "2"))
    assert Checkpoint.open(laptop.shared / "runs/by-submit/checkpoints/step-00000006").meta["world"] == 2
    assert "bits/byte" in laptop.submit("evaluate", "runs/by-submit", "--split", "validation")
    laptop.submit("generate", "runs/by-submit", "--prompt", "3fa2,b:c/d.e", "--max-new-tokens", "5", "--seed", "1")
    assert "nothing to do" in laptop.submit("train", *train("by-submit", "--steps", "6", "--num-workers", "2"))


@pytest.mark.usefixtures("prepared")
def test_what_ray_submit_cannot_pass_is_refused_with_the_remedy(laptop: Laptop) -> None:
    said = laptop.submit("train", *train("two words", "--steps", "6"), status=1)
    assert "unexpected argument 'words'" in said and "ray job submit" in said


@pytest.mark.usefixtures("prepared")
def test_every_stage_by_ray_job_submit(laptop: Laptop) -> None:
    assert "already prepared" in laptop.job("prepare", *PREPARE)
    said = laptop.job("train", *train("by job", "--steps", "6", "--num-workers", "2"))
    assert "trained by job (" in said and "step 6/6" in said  # progress is readable in the job's log
    assert (laptop.shared / "runs/by job/checkpoints/step-00000006").is_dir()
    assert "bits/byte" in laptop.job("evaluate", "runs/by-submit", "runs/by job", "--split", "validation")
    laptop.job("generate", "runs/by-submit", "--prompt", 'it\'s "two" words', "--max-new-tokens", "5", "--seed", "1")
    said = laptop.job("train", "small-recc", status=1)
    assert "did you mean 'small-rec'" in said


def test_the_whole_pipeline_as_one_job(laptop: Laptop) -> None:
    pairs = " ".join(TINY).replace("--", "").split()
    fields = [f"{name}={value}" for name, value in zip(pairs[::2], pairs[1::2], strict=True)]
    words = ["small-rec", "--source", "books", "--corpus", "text", "--store", "runs/store.p", "--name", "whole"]
    words += ["--set", *fields, "steps=4", "num_workers=2"]
    assert "all 3 stages are done" in laptop.job("run", *words)
    assert laptop.job("run", *words).count("done before") == 3


@pytest.mark.usefixtures("prepared")
def test_tune_and_compare_on_the_cluster(laptop: Laptop) -> None:
    fields = [word for word in TINY if word not in ("--placement.strategy", "strict-spread")]
    sweep = shlex.split("optim.lr=1e-3,3e-3 --search grid --scheduler none --preset small-rec --run shared-sweep")
    common = (*fields, "--data.store", "runs/store.v1", "--steps", "4", "--validate-every", "2", "--num-workers", "1")
    laptop.submit("tune", *sweep, *common)
    assert (laptop.shared / "runs/shared-sweep/best.json").is_file()
    laptop.job("compare", "runs/by-submit", "runs/by job")


@pytest.mark.usefixtures("prepared")
def test_uncommitted_changes_run_on_the_machines(laptop: Laptop) -> None:
    module = laptop.project / "pipelines" / "cluster" / "readiness.py"
    before = module.read_text()
    module.write_text(before.replace('"(not installed)"', '"(not installed, and changed on the laptop)"'))
    with open(laptop.project / "pipelines" / "cluster" / "readiness.py", "a") as file:
        file.write('\nLIBRARIES = (*LIBRARIES, "no-such-library")\nprint("changed on the laptop", flush=True)\n')
    try:
        words = train("by-submit", "--num-workers", "2")
        assert "changed on the laptop" in laptop.job("preflight", *words)
        assert "changed on the laptop" not in laptop.submit("preflight", *words)
        laptop.run("ray", "rsync-up", "cluster.yaml")
        said = laptop.submit("preflight", *words)
        assert (
            "changed on the laptop" in said and "can be trained here" in said
        )  # the second machine has had the code too
    finally:
        module.write_text(before)
        laptop.run("ray", "rsync-up", "cluster.yaml")


@pytest.mark.usefixtures("prepared")
def test_a_stopped_job_has_saved_its_step_and_the_same_command_goes_on(laptop: Laptop) -> None:
    words = train("stopped", "--steps", "100000", "--num-workers", "2", "--checkpoint.every", "1000000")
    said = laptop.job("train", *words, options=("--no-wait",))
    wait_until(lambda: logged(laptop, "stopped") >= 20, 120)
    laptop.run("ray", "job", "stop", job_id(said))
    last, saved = logged(laptop, "stopped"), step_of(laptop, "stopped")
    assert saved >= 20 and saved in (last, last - 1, last + 1)
    assert "which is saved" in laptop.run("ray", "job", "logs", job_id(said))
    again = laptop.job("train", *words, "--steps", str(saved + 5), "--allow-change", "steps")
    assert f"resumes from step {saved:,}" in again
    assert [record["step"] for record in records(laptop, "stopped")] == list(range(1, saved + 6))


@pytest.mark.usefixtures("prepared")
def test_a_machine_is_lost_and_comes_back(laptop: Laptop) -> None:
    words = list(train("elastic", "--steps", "1000000", "--num-workers", "1:2", "--checkpoint.every", "20"))
    said = laptop.job("train", *words, options=("--no-wait",))
    wait_until(lambda: world(laptop, "elastic") == 2, 180)
    began = time.monotonic()
    laptop.machines.stop(1)
    wait_until(lambda: world(laptop, "elastic") == 1, 240)
    note(laptop, f"machine 2 was switched off: a checkpoint of one worker after {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    laptop.machines.start(1)
    with contextlib.suppress(AssertionError):  # the autoscaler starts Ray there by itself, as soon as it misses it
        wait_until(lambda: raylet(laptop), 120)
    itself = raylet(laptop)
    if not itself:
        laptop.machines.ssh(1, ". ~/.throughline.sh; ulimit -n 65536; ray start --address=10.77.0.1:6379")
    wait_until(lambda: world(laptop, "elastic") == 2, 240)
    how = "the autoscaler started Ray on it" if itself else "Ray was started on it by hand"
    note(laptop, f"it was switched on again, {how}: a checkpoint of two workers after {time.monotonic() - began:.0f} s")
    laptop.run("ray", "job", "stop", job_id(said))
    steps = [record["step"] for record in records(laptop, "elastic")]
    assert steps == list(range(1, len(steps) + 1))  # none lost, none twice


@pytest.mark.usefixtures("prepared")
def test_preflight_names_what_is_wrong(laptop: Laptop) -> None:
    words = train("by-submit", "--num-workers", "2")
    assert "can be trained here" in laptop.job("preflight", *words)
    # Another torch on one machine: what Python's metadata say, in a folder that comes before the real one's.
    fake = laptop.machines.home(1) / "throughline" / "torch-9.9.9.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    said = laptop.job("preflight", *words, status=1)
    assert "machine2 (10.77.0.2) has torch 9.9.9, the others have 2." in said
    said = laptop.job("train", *train("refused", "--num-workers", "2"), status=1)
    assert "has torch 9.9.9" in said and not (laptop.shared / "runs/refused/checkpoints").exists()
    (fake / "METADATA").unlink()
    fake.rmdir()
    # A disk that is too small.
    said = laptop.job("preflight", *words, "--root", "small", "--model.d-model", "512", status=1)
    assert "small has 2.1 MB free, and 5 checkpoints of" in said
    # A port that another program has.
    listener = "python -m http.server 8123 --bind 127.0.0.1 > /dev/null 2>&1 &"
    laptop.machines.ssh(0, f"nohup {listener}")
    said = laptop.run("ray", "exec", "cluster.yaml", "python -m pipelines.preflight --here --ports 8123", status=1)
    assert "port 8123 of machine1 is taken by python" in said
    # A shared folder that is not mounted on one machine.
    laptop.machines.ssh(1, f"mount -t tmpfs tmpfs {laptop.shared}")
    said = laptop.job("preflight", *words, status=1)
    assert f"{laptop.shared}/runs on machine2 (10.77.0.2) is a folder of its own" in said
    assert "machine2 (10.77.0.2) cannot read" in said  # the store
    laptop.machines.ssh(1, f"umount {laptop.shared}")


@pytest.fixture(scope="module")
def in_bucket(laptop: Laptop) -> Iterator[None]:
    """Texts in a bucket, with the store that is made of them, and a second machine that does not see the shared folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in laptop.buckets.items():
            patch.setenv(name, value)
        for path in (laptop.shared / "books").glob("*/*.txt"):
            (Place.parse("s3://books/texts") / path.parent.name / path.name).write_atomically(path.read_bytes())
        unshare(laptop)
        laptop.job(
            "prepare", *(word.replace("books", "s3://books/texts").replace("runs/", "s3://books/") for word in PREPARE)
        )
        yield
    laptop.machines.ssh(1, f"umount {laptop.shared}")


def unshare(laptop: Laptop) -> None:
    """Give the second machine a folder of its own where the shared one is."""
    laptop.machines.ssh(1, f"mount -t tmpfs tmpfs {laptop.shared}")


BUCKET = ("--data.store", "s3://books/store.v1", "--root", "s3://books/runs")


@pytest.mark.usefixtures("in_bucket")
def test_a_bucket_and_no_shared_folder(laptop: Laptop) -> None:
    words = ("small-rec", *TINY, *BUCKET, "--run", "far", "--num-workers", "2", "--checkpoint.every", "20")
    said = laptop.job("train", *words, "--steps", "100000", options=("--no-wait",))
    run = RunFolder.parse("s3://books/runs/far")
    wait_until(lambda: run.newest_step() >= 40, 240)
    kill(laptop, "pipelines.train|RayTrainWorker")
    note(laptop, f"all processes of {job_id(said)} were killed on both machines")
    saved = run.newest_step()
    again = laptop.job("train", *words, "--steps", str(saved + 20), "--allow-change", "steps")
    assert f"resumes from step {saved:,}" in again and run.newest_step() == saved + 20
    assert [record["step"] for record in metrics(run)] == list(range(1, saved + 21))
    assert "bits/byte" in laptop.job("evaluate", "s3://books/runs/far", "--split", "validation")
    assert not (laptop.shared / "runs" / "far").exists()


@pytest.mark.usefixtures("in_bucket")
def test_a_sweep_in_a_bucket_loses_a_machine_and_its_driver(laptop: Laptop) -> None:
    words = ["optim.lr=1e-4,1e-3,1e-2", "--search", "grid", "--scheduler", "none", "--preset", "small-rec", *TINY]
    words += [*BUCKET, "--steps", "300", "--validate-every", "50", "--log-every", "10", "--num-workers", "2"]
    words += [
        "--tracking.backend",
        "none",
        "--placement.strategy",
        "spread",
    ]  # so that one machine has room for a trial
    said = laptop.job("tune", *words, "--run", "sweep", options=("--no-wait",))
    wait_until(lambda: validations("sweep") >= 2, 300)
    laptop.machines.stop(1)
    began, before = time.monotonic(), validations("sweep")
    wait_until(lambda: validations("sweep") > before + 1, 300)
    note(
        laptop,
        f"machine 2 was switched off: a sweep's second validation after it, after {time.monotonic() - began:.0f} s",
    )
    laptop.machines.start(1)
    unshare(laptop)
    wait_until(lambda: raylet(laptop), 180)
    told = "machines have gone: 2 CPUs, at once 1 trial", "machines have come: 4 CPUs, at once 2 trials"
    wait_until(lambda: told[1] in laptop.run("ray", "job", "logs", job_id(said)), 120)
    assert told[0] in laptop.run("ray", "job", "logs", job_id(said))
    kill(laptop, "pipelines.tune")
    note(laptop, f"the driver of {job_id(said)} was killed, with {validations('sweep')} validations of 24")
    assert not (Place.parse("s3://books/runs/sweep") / "best.json").exists()
    laptop.job("tune", *words, "--run", "sweep")
    laptop.job("tune", *words, "--run", "calm")
    for trial in TRIALS:
        ended, calm = learned(trial_of("sweep", trial)), learned(trial_of("calm", trial))
        assert [step for name, step, _ in ended if name.startswith("train")] == list(range(10, 301, 10))
        assert [step for name, step, _ in ended if name.startswith("validation")] == list(range(50, 301, 50))
        assert ended == calm
    best = [
        json.loads((Place.parse(f"s3://books/runs/{name}") / "best.json").read_bytes()) for name in ("sweep", "calm")
    ]
    assert best[0]["trial"] == best[1]["trial"] and best[0]["values"] == best[1]["values"]
    assert not (laptop.shared / "runs" / "sweep").exists()


TRIALS = ("000", "001", "002", "003")
"""The preset's own values, and the grid's."""


def trial_of(sweep: str, trial: str) -> RunFolder:
    return RunFolder.parse(f"s3://books/runs/{sweep}/trials/{trial}")


def validations(sweep: str) -> int:
    """How many a sweep's trials have told."""
    place = Place.parse(f"s3://books/runs/{sweep}") / "results.jsonl"
    return place.read_bytes().count(b'"event": "result"') if place.exists() else 0


def learned(run: RunFolder) -> list[tuple[str, object, float]]:
    """The curves that depend on the text and the weights alone."""
    names = ("train/bits_per_token", "validation/bits_per_token")
    return [
        (name, record["step"], record["metrics"][name])
        for record in metrics(run)
        for name in names
        if name in record["metrics"]
    ]


def kill(laptop: Laptop, pattern: str) -> None:
    """All processes of it on both machines; the second's may have died of the first's."""
    for i in range(2):
        laptop.machines.ssh(i, f"pkill -KILL -f '{pattern}'", check=i == 0)


def test_no_secret_is_in_logs_or_records(laptop: Laptop) -> None:
    token = (laptop.home / ".ray" / "auth_token").read_text().strip()
    places = [laptop.shared, laptop.log, *(laptop.machines.folder / f"ray{i}" for i in (1, 2))]
    for secret in (token, laptop.buckets["AWS_SECRET_ACCESS_KEY"]):
        assert not laptop.run("grep", "-rlF", "-e", secret, *map(str, places), status=1)


def records(laptop: Laptop, run: str) -> list[dict[str, Any]]:
    return metrics(RunFolder.parse(laptop.shared / "runs" / run))


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.place / "metrics.jsonl").read_bytes().splitlines()]


def world(laptop: Laptop, run: str) -> int:
    """Workers of the newest checkpoint."""
    found = RunFolder.parse(laptop.shared / "runs" / run).complete_checkpoints()
    return found[0].meta["world"] if found else 0


def raylet(laptop: Laptop) -> bool:
    """Whether Ray runs on the second machine."""
    return laptop.machines.ssh(1, "pgrep -x raylet", check=False).returncode == 0


def note(laptop: Laptop, text: str) -> None:
    with open(laptop.log, "a") as log:
        log.write(f"# {text}\n")
