"""The preflight names each planted fault. Machines are processes here, forked from this one, with mounts of their own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.checkpoints.run_folder import RunFolder
from pipelines.cluster import ray_session, readiness
from pipelines.cluster.readiness import check, needs
from pipelines.config.dotted import with_fields
from pipelines.config.run import TrainConfig
from pipelines.preflight import taken_ports
from pipelines.presets import PRESETS

FORK = multiprocessing.get_context("fork")
CLONE_NEWNS = 0x00020000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


class Machine:
    """A process that calls functions, as ray_session.Node does on another machine."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None, address: str = "127.0.0.1") -> None:
        self.name, self.address, self.resources = name, address, {"CPU": 4.0}
        self._pipe, other = FORK.Pipe()
        self._process = FORK.Process(target=self._serve, args=(other, prepare), daemon=True)
        self._process.start()

    @staticmethod
    def _serve(pipe: Any, prepare: Callable[[], None] | None) -> None:
        if prepare:
            prepare()
        while True:
            function, arguments = pipe.recv()
            pipe.send(function(*arguments))

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        self._pipe.send((function, arguments))
        return self._pipe.recv

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def own_mounts(*words: str) -> Callable[[], None]:
    """Mount something that only this process sees."""

    def prepare() -> None:
        assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", *words], check=True)

    return prepare


@pytest.fixture
def machines() -> Iterator[Callable[..., list[Machine]]]:
    made: list[Machine] = []

    def make(*prepares: Callable[[], None] | None) -> list[Machine]:
        made.extend(Machine(f"machine{i + 1}", prepare) for i, prepare in enumerate(prepares))
        return made

    yield make
    for machine in made:
        machine.end()


@pytest.fixture
def config(store: Path, tmp_path: Path) -> TrainConfig:
    config = PRESETS["small-rec"]
    (tmp_path / "runs").mkdir()
    return replace(config, root=str(tmp_path / "runs"), data=replace(config.data, store=str(store)))


def wrong(config: TrainConfig, machines: Sequence[Any]) -> str:
    return "\n".join(check(config, machines))


def test_machines_that_agree(config: TrainConfig, machines, tmp_path: Path) -> None:
    assert wrong(config, machines(None, None, None)) == ""
    assert list((tmp_path / "runs").iterdir()) == []  # nothing is left


def test_another_version_on_one_machine(config: TrainConfig, machines, tmp_path: Path) -> None:
    (tmp_path / "torch-9.9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    said = wrong(config, machines(None, lambda: sys.path.insert(0, str(tmp_path)), None))
    assert said.startswith("machine2 (127.0.0.1) has torch 9.9.9, the others have 2.") and said.count("\n") == 0


def test_other_code_on_one_machine(config: TrainConfig, machines, tmp_path: Path) -> None:
    other = tmp_path / "pipelines"
    other.mkdir()
    (other / "__init__.py").write_text("changed = True\n")

    def change() -> None:
        import pipelines

        pipelines.__spec__.origin = str(other / "__init__.py")  # type: ignore[union-attr]

    assert "machine2 (127.0.0.1) has our code" in wrong(config, machines(None, change, None))


@needs_root
def test_storage_that_one_machine_does_not_share(config: TrainConfig, machines, tmp_path: Path) -> None:
    said = wrong(config, machines(None, own_mounts("-t", "tmpfs", "tmpfs", str(tmp_path / "runs"))))
    assert said == (
        f"{tmp_path}/runs on machine2 (127.0.0.1) is a folder of its own: the other machines do not see what it writes there; "
        "mount the shared storage, or give --root a folder (or bucket) that all machines share"
    )


@needs_root
def test_one_of_three_that_does_not_share(config: TrainConfig, machines, tmp_path: Path) -> None:
    said = wrong(config, machines(own_mounts("-t", "tmpfs", "tmpfs", str(tmp_path / "runs")), None, None))
    assert "runs on machine1" in said and "runs on machine2" not in said


@needs_root
def test_storage_that_cannot_be_written(config: TrainConfig, machines, tmp_path: Path) -> None:
    said = wrong(config, machines(None, own_mounts("-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path / "runs"))))
    assert f"machine2 (127.0.0.1) cannot write to {tmp_path}/runs: Read-only file system" in said


@needs_root
def test_a_store_that_one_machine_does_not_see(config: TrainConfig, store: Path, machines) -> None:
    said = wrong(config, machines(None, own_mounts("-t", "tmpfs", "tmpfs", str(store))))
    assert f"machine2 (127.0.0.1) cannot read {store}/text/train/manifest.json (No such file or directory)" in said


@needs_root
def test_a_disk_that_is_too_small(config: TrainConfig, machines, tmp_path: Path) -> None:
    small = own_mounts("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path / "runs"))
    said = wrong(config, machines(small))
    assert f"{tmp_path}/runs has 2.1 MB free, and 5 checkpoints of" in said and "--checkpoint.keep" in said
    for step in (100, 200, 300):  # a resumed run's own checkpoints need no more room
        (RunFolder.of(config).folder / f"checkpoints/step-{step:08}").mkdir(parents=True)
    assert f"{tmp_path}/runs has 2.1 MB free, and 2 checkpoints of" in wrong(config, machines())


def test_a_clock_that_is_ahead(config: TrainConfig, machines) -> None:
    def ahead() -> None:
        real = time.time
        time.time = lambda: real() + 60  # type: ignore[assignment]

    found = machines(None, ahead)
    # `time.time` is sent by its name, so that the machine's own is called.
    found[1].begin = lambda function, *words, begin=found[1].begin: begin(
        now if function is time.time else function, *words
    )
    assert "the clock of machine2 (127.0.0.1) is 60 s ahead" in wrong(config, found)


def now() -> float:
    return time.time()


def test_a_machine_that_is_not_reached(config: TrainConfig, machines, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machines(None, None)
    found[1].address = "127.0.0.2"
    assert wrong(config, found) == ""  # loopback has that address too
    monkeypatch.setattr(readiness, "listen", closed_port)
    assert "machine1 (127.0.0.1) does not reach port" in wrong(config, found)


def closed_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        return listener.getsockname()[1]


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (said,) = taken_ports("machine1", [port])
    assert said.startswith(f"port {port} of machine1 is taken by ") and f"(process {os.getpid()})" in said
    assert taken_ports("machine1", [port]) == []


def test_more_workers_than_there_is_room_for(config: TrainConfig, machines) -> None:
    found = machines(None, None)
    assert "room for 8 workers of 1 CPU (pack), and the run needs 16" in wrong(
        replace(config, num_workers=16, data=replace(config.data, lanes=16)), found
    )
    spread = replace(config, num_workers=4, placement=replace(config.placement, strategy="strict-spread"))
    assert "room for 2 workers" in wrong(spread, found)
    needy = replace(config, placement=replace(config.placement, resource="fast_disk"))
    assert "room for 0 workers of 1 CPU, 0.001 fast_disk" in wrong(needy, found)
    assert check(needy, found, check_room=False) == []


def test_memory_that_does_not_hold_the_model(config: TrainConfig, machines) -> None:
    huge = replace(
        config, model=with_fields(PRESETS["pg19-scale-1.3B-rec"], {"model.d_model": 65536}).model, num_workers=1
    )
    huge = replace(huge, data=replace(huge.data, segment_length=4096, lanes=2))
    said = wrong(huge, machines(None))
    assert "of memory free, and 1 worker of" in said and "activations not counted" in said


def test_gpus_are_counted_as_training_counts_them(config: TrainConfig, machines) -> None:
    found = machines(None)
    found[0].resources["GPU"] = 1.0
    assert wrong(replace(config, num_workers=2), found) == ""  # which has no GPU for each, and trains on CPUs
    one = replace(config, num_workers=1)
    assert "has GPUs of 0" in wrong(one, found) and wrong(replace(one, use_gpu="no"), found) == ""


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_machine_of_a_local_session(config: TrainConfig) -> None:
    (node,) = ray_session.nodes()
    assert check(config, [node]) == []
    assert node.begin(os.getpid)() != os.getpid()


def test_what_is_not_trained_needs_neither_gradient_nor_optimizer() -> None:
    every = with_fields(PRESETS["small-gpt2-rec"], {"num_workers": 1})
    few = with_fields(every, {"model.trained": "recurrence"})
    weights = 4 * every.model.costs(500).parameters
    (checkpoint, worker), (smaller, with_less) = needs(every, 500), needs(few, 500)
    assert checkpoint > 3 * weights and worker > 4 * weights
    assert weights < smaller < with_less < 1.2 * weights


def test_needs_are_those_of_a_checkpoint_on_the_disk(train: Callable[..., Path]) -> None:
    """AdamW keeps two numbers for each weight."""
    import json

    from pipelines.checkpoints.checkpoint import Checkpoint
    from recur_models import model_from_json

    folder = train("--steps", "1") / "checkpoints" / "step-00000001"
    meta = json.loads((folder / "checkpoint.json").read_text())
    on_disk = sum(file["bytes"] for file in Checkpoint.open(folder).meta["files"].values())
    config = PRESETS["small-rec"]
    model = model_from_json(meta["config"]["model"])
    data = replace(config.data, lanes=4, segment_length=32)
    wanted, _ = needs(replace(config, model=model, data=data, num_workers=1), meta["vocab_size"])  # type: ignore[arg-type]
    assert model.costs(meta["vocab_size"]).parameters * 12 < wanted
    assert wanted == pytest.approx(on_disk, rel=0.15)  # the rest: headers, generators, digests
