"""What tests of several folders share."""

from __future__ import annotations

import compileall
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from data_prep.corpora import CORPORA
from pipelines import PACKAGE_ROOT, PACKAGES
from pipelines.cluster import ray_session as session
from pipelines.prepare import PrepareConfig, commands
from tests.interpreter import sitecustomize
from tests.nothing_ran import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401, hooks of pytest
from tests.ordinary_user import reachable  # noqa: F401, a fixture
from tests.s3_server import ENVIRONMENT, s3_server
from tests.small_corpus import words
from tests.small_runs import bucket, prepared, server, short_documents, store, train, train_model  # noqa: F401, fixtures

# Importing sitecustomize sets up this process; the path sets up those that tests start.
INTERPRETER = str(Path(sitecustomize.__file__).parent)
if INTERPRETER not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (INTERPRETER, os.environ.get("PYTHONPATH", ""))))
session.set_environment()
for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
    os.environ.pop(name, None)  # the developer's own
torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
os.environ["OMP_NUM_THREADS"] = "1"  # the same in the processes that tests start
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the others are used already
os.environ.setdefault(
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0"
)  # Ray lists its logs twice a second, and not ten times

settings.register_profile("untimed", deadline=None)  # how long an example takes depends on the machine
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test draws the same weights each time, whatever ran before it in its process."""
    torch.manual_seed(0)


SHARED = ("ray_session", "server", "s3_endpoint")
"""Session fixtures that are expensive to create."""


def pytest_configure(config: pytest.Config) -> None:
    """Compile our modules once, and not again in each of the hundreds of processes that tests start."""
    if not hasattr(config, "workerinput"):  # not in xdist's own processes
        for package in PACKAGES:
            compileall.compile_dir(PACKAGE_ROOT.parent / package, quiet=2)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group and order the tests for parallel runs (-n 3).

    The tests that use a fixture of SHARED run in one process, so that it is created once. Ray's take longest and run in two.
    They come first and the other slow ones next: short tests fill the gaps at the end.
    """
    shared = {item: next((n for n in SHARED if n in getattr(item, "fixturenames", ())), None) for item in items}

    def place(item: pytest.Item) -> float:
        if group := shared[item]:  # Ray's workers know the buckets that were there when it started
            return SHARED.index(group) + 0.5 * ("s3_endpoint" not in getattr(item, "fixturenames", ()))
        slowest = ("ray", "long", "slow")
        return len(SHARED) + next((i for i, name in enumerate(slowest) if item.get_closest_marker(name)), len(slowest))

    items.sort(key=place)
    for item, group in shared.items():
        if group:
            sweeps = group == "ray_session" and any(word in item.path.stem for word in ("tune", "sweep", "notebook"))
            item.add_marker(pytest.mark.xdist_group(f"{group}, sweeps" if sweeps else group))


def pytest_collection_finish() -> None:
    """Exempt from garbage collection the millions of objects that the imports made: they live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def ray_session() -> None:
    """One local Ray session of 4 CPUs for all tests that need one; it never joins one that other processes run."""
    session.start(num_cpus=4)  # does nothing if this process has one


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Shut Ray down after the last test that needs it: even idle, it uses part of a core."""
    if "ray_session" in getattr(item, "fixturenames", ()) and "ray_session" not in getattr(
        nextitem, "fixturenames", ()
    ):
        import ray

        ray.shutdown()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real S3 API on loopback for all tests that need one: ADDRESS:PORT."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def endpoint(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The S3 API, whose credentials are in the environment, and a cache folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield s3_endpoint


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Text files in split folders: long and short documents, and an empty one in train."""
    root = tmp_path / "corpus"
    for split, sizes in {"train": (900, 30, 1, 400, 2000, 60), "validation": (50, 300), "test": (200,)}.items():
        (root / split).mkdir(parents=True)
        for i, size in enumerate(sizes):
            (root / split / f"doc{i}.txt").write_bytes(words(f"{split}{i}", size).encode())
    (root / "train" / "blank.txt").write_text(" \n\t\n")
    return root


@pytest.fixture
def make_config(text_folder: Path, tmp_path: Path) -> Callable[..., PrepareConfig]:
    """A preparation of `text_folder` in this process, with other fields as given."""

    def make(**fields: object) -> PrepareConfig:
        defaults = {
            "corpus": CORPORA["text"](source=str(text_folder)),
            "store": str(tmp_path / "store"),
            "segment_length": 64,
            "part_bytes": 4000,
            "num_workers": 0,
        }
        return replace(commands()["text"], **{**defaults, **fields})  # type: ignore[arg-type]

    return make
