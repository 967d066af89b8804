"""Small runs, and the fixtures of tests that train: a store, training commands, one MLflow server, a place in a bucket."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import killing
from pipelines.prepare import PrepareConfig, prepare
from pipelines.tracking.metrics_file import Record, read_records
from pipelines.train import main
from tests.mlflow_server import Server, serve
from tests.s3_server import uri_in_bucket
from tests.small_corpus import contents, words

TINY = shlex.split("""
    small-rec --model.layers 2 --model.recurrent-layers 2 --model.d-model 16 --model.heads 2 --model.head-dim 8
    --model.mlp-dim 32 --model.window 8 --model.states 4 --model.dropout 0.1 --data.lanes 4 --data.segment-length 32
    --steps 20 --schedule.warmup-steps 4 --log-every 1 --validate-every 10 --validate-tokens 200 --checkpoint.every 5
    --tracking.backend none --num-workers 0 --use-gpu no
""")
"""A run of seconds: the words of a command line."""
SMALLEST = [*TINY, *shlex.split("--model.layers 1 --model.recurrent-layers 1 --model.window 16")]
"""A shorter one, for tests of what surrounds the training."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One MLflow server for all tests that need one."""
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def short_documents(text_folder: Path) -> None:
    """A tenth of the words of `text_folder`, for tests that read all of its train or test split several times."""
    for i, size in enumerate((90, 30, 1, 40, 200, 6)):
        (text_folder / "train" / f"doc{i}.txt").write_bytes(words(f"train{i}", size).encode())
    (text_folder / "test" / "doc0.txt").write_bytes(words("test0", 20).encode())


@pytest.fixture(scope="session")
def prepared() -> dict[str, Path]:
    """The stores that tests have prepared, by the contents of their text folders."""
    return {}


@pytest.fixture
def store(
    make_config: Callable[..., PrepareConfig],
    text_folder: Path,
    prepared: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A prepared store of `text_folder`, in bytes. Each test has its own, a copy of the one that was prepared first."""
    config = make_config()
    key = str(contents(text_folder))
    if key not in prepared:
        prepare(config)
        prepared[key] = tmp_path_factory.mktemp("prepared") / "store"
        shutil.copytree(config.store, prepared[key])
    else:
        shutil.copytree(prepared[key], config.store)
    return Path(config.store)


@pytest.fixture
def train(store: Path, tmp_path: Path) -> Callable[..., Path]:
    """Run the training command on the small store: TINY, then these words. Returns the run's folder."""

    def run(*options: str, name: str = "run") -> Path:
        main([*TINY, "--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name, *options])
        return tmp_path / "runs" / name

    return run


@pytest.fixture
def train_model(store: Path, tmp_path: Path) -> Callable[..., Path]:
    """Run 12 steps of a model of the kill benchmark, by its name there, then these words. Returns the run's folder."""

    def run(model: str, *options: str, name: str = "run") -> Path:
        rest = shlex.split("--steps 12 --validate-every 6 --checkpoint.every 6 --tracking.backend none")
        where = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name]
        main([*killing.MODELS[model], *killing.TINY, *rest, *where, *options])
        return tmp_path / "runs" / name

    return run


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """URIs in this test's own folder of the bucket."""

    def uri(name: str) -> str:
        return uri_in_bucket(endpoint, f"{request.node.name}/{name}")

    return uri


def without_run_name(files: dict[str, bytes]) -> dict[str, bytes]:
    """A checkpoint's files without the JSON that names the run."""
    return {name: data for name, data in files.items() if not name.endswith(".json")}


def forget(folder: Path, *steps: int) -> None:
    """Remove checkpoints, as if the run had been killed before it wrote them."""
    for step in steps:
        shutil.rmtree(folder / "checkpoints" / f"step-{step:08d}")


def records_with(folder: Path, metric: str) -> list[Record]:
    """A run's records that have this metric."""
    return [record for record in read_records(folder / "metrics.jsonl") if metric in record.metrics]


def values_of(folder: Path, metric: str) -> list[float]:
    """The values of one metric of a run, in the order of its steps."""
    return [record.metrics[metric] for record in records_with(folder, metric)]


def curve(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Every metric but the speed, by step."""
    records = read_records(folder / "metrics.jsonl")
    return [(r.step, {key: value for key, value in r.metrics.items() if "per_second" not in key}) for r in records]
