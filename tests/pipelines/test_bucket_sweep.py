"""Sweeps in an object store, over a real S3 API: machines share no folder, each has a cache folder of its own."""

from __future__ import annotations

import io
import json
import logging
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.killing import make_store
from common.places import Place
from pipelines import compare, train, tune
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.cluster import ray_session as session
from pipelines.reports.sweep_result import read_sweep
from pipelines.sweeps import run_sweep
from tests.ray_sweeps import ASHA, Here, Killed, ends, results
from tests.s3_server import publish
from tests.small_runs import SMALLEST

pytest.importorskip("moto", reason="the S3 server of the tests is in the extra dev")
Bucket = Callable[[str], str]


@pytest.fixture
def words(store: Path, bucket: Bucket) -> list[str]:
    return [*SMALLEST[1:], "--data.store", publish(store, bucket("store")), "--root", bucket("runs"), "--run", "sweep"]


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_killed_and_resumed_from_elsewhere_it_ends_as_in_a_folder(
    words: list[str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["--num-workers", "1", "--num-cpus", "1"]
    local = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", "sweep"]
    calm = Here([*ASHA, *SMALLEST[1:], *local, *own]).run()
    rng = random.Random(2)
    kills = 0
    while True:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine-{kills}"))
        killed = Here([*ASHA, *words, *own])
        try:
            killed.run(kill_after=rng.randrange(4, 12))
            break
        except Killed:
            kills += 1
    assert kills >= 1 and ends(killed.sweep) == ends(calm) and results(killed.sweep) == results(calm)


def test_mlflows_own_file_cannot_be_there(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"MLflow's own file cannot be in a bucket: name a server by --tracking\.uri"):
        tune.main(["optim.lr=1e-3", *words, "--tracking.backend", "mlflow"])


@dataclass(frozen=True)
class Swept:
    """A sweep on Ray whose command and environment hold secrets, and what it printed."""

    done: Any
    printed: str
    uri: Callable[[str], str]
    """URI of a file in its folder of the bucket."""
    errors: list[str]
    """What Ray has logged as an error in the driver."""


class Errors(logging.Handler):
    """Keeps the messages of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


TOKEN, KEY, PASSWORD = "a-token-that-no-log-has", "a-key-of-the-bucket", "a-password-of-mlflow"


@pytest.fixture(scope="module")
def swept(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    def uri(name: str) -> str:
        return f"s3://books/swept/{name}?endpoint_override={endpoint}&scheme=http"

    publish(make_store(tmp_path_factory.mktemp("store"), documents=6, words=600), uri("store"))
    where = ["--data.store", uri("store"), "--root", uri("runs"), "--run", "sweep"]
    words = [*SMALLEST[1:], *(word.replace("s3://", f"s3://me:{KEY}@") for word in where)]
    words += ["--tracking.uri", f"http://me:{PASSWORD}@127.0.0.1:1"]  # nobody asks there: the backend is none
    words += ["--search", "grid", "--num-workers", "1", "--num-cpus", "2"]
    session.start(num_cpus=4)  # that of `ray_session`, which both tests use
    printed = io.StringIO()
    errors = Errors()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        # Which nothing of ours reads, and Ray Tune passes on as it does the others.
        patch.setenv("AWS_SECURITY_TOKEN", TOKEN)
        logging.getLogger("ray").addHandler(errors)
        try:
            done = run_sweep(["optim.lr=1e-7,3e-3", *words])
        finally:
            logging.getLogger("ray").removeHandler(errors)
    return Swept(done, printed.getvalue(), uri, errors.messages)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_best_report_and_results_are_there(swept: Swept, tmp_path: Path) -> None:
    done, place = swept.done, Place.parse(swept.uri("runs/sweep"))
    best = json.loads((place / "best.json").read_bytes())
    grid = done.results
    found = grid.get_best_result(scope="all")
    assert done.status == 0 and len(grid) == 3 and not swept.errors
    assert found.config == {"trial": best["trial"], **best["values"]}
    assert found.metrics and found.metrics["validation/bits_per_token"] == best["validation/bits_per_token"]
    assert {"trials.csv", "curves.png", "winner.txt"} <= {file.name for file in (place / "report").list()}
    assert (place / "best.json").recorded in swept.printed
    assert all(trial.model for trial in read_sweep(done.sweep.folder).trials)  # which the frontier is drawn by
    compare.main([place.recorded, "--output", str(tmp_path / "compared"), "--tracking.backend", "none"])
    table = (tmp_path / "compared" / "comparison.csv").read_text()
    assert all(f"sweep/{trial}" in table for trial in ("000", "001", "002"))
    folder = tmp_path / "again"
    train.main([(place / "best.json").recorded, "--run", "again", "--root", str(folder), "--num-workers", "0"])
    assert RunFolder.parse(folder / "again").newest_step() == 20
    logs = list(Path(ray._private.worker._global_node.get_logs_dir_path()).glob("*.log"))  # pyrefly: ignore
    assert any(b"Creating runtime env" in log.read_bytes() for log in logs)
    assert not [log for log in logs if TOKEN.encode() in log.read_bytes()]


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_passwords_and_keys_are_in_no_file(swept: Swept) -> None:
    """Neither of the sweep's, nor of Ray's; Tune writes what it pickles as hexadecimal digits."""
    assert swept.done.status == 0 and swept.done.sweep.config.train.tracking.uri.find(PASSWORD) > 0
    folders = (
        swept.uri("runs"),
        swept.done.sweep.folder,
        ray._private.worker._global_node.get_session_dir_path(),  # pyrefly: ignore
    )
    files = [file.place for folder in folders for file in Place.parse(folder).list(recursive=True)]
    read = {file.shown: file.read_bytes() for file in files if file.is_file()}
    assert {"trial.json", "results.jsonl"} < {name.rpartition("/")[2] for name in read}
    spelt = [form for secret in (KEY.encode(), PASSWORD.encode()) for form in (secret, secret.hex().encode())]
    assert not [name for name, data in read.items() if any(form in data for form in spelt)]
