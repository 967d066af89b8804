"""Trains in real processes, kills them, and compares their results: shared by `kills`, `soak` and the tests.

    with Group(words, workers=2, log=Path("log")) as group:      # two processes with torchrun's environment, joined by gloo
        group.wait(60)                                           # [0, 0]
    with Group(words, 2, Path("log"), {1: Trap("save", 30, 0)}) as group:
        group.wait_until_killed([1])                             # rank 1 alone, by SIGKILL: all else raises

A `Trap` kills a process from inside, by SIGKILL, at the first moment of a kind from a given step on. A process that ends in another
way does not count: the exit status proves each kill that a benchmark counts. Processes are forked from one that has imported
everything, so that a start takes a second and not ten.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.corpora import CORPORA
from pipelines.checkpoints.checkpoint import Checkpoint, name_of
from pipelines.prepare import PrepareConfig, commands, prepare
from pipelines.tracking.metrics_file import read_records
from pipelines.training.stopping import STOPPED_STATUS

CORE = "--model.layers 2 --model.d-model 16 --model.heads 2 --model.head-dim 8 --model.mlp-dim 32 --model.dropout 0.1"
SIZE = f"{CORE} --model.window 8"
REC = f"small-rec {SIZE} --model.recurrent-layers 2 --model.states 4"
GPT2 = "--model.layers 2 --model.d-model 16 --model.heads 2 --model.mlp-dim 32"
WINDOWS = "--model.positions 16 --model.window 12 --model.overlap 4"
MIXERS = (
    "--model.d-model 16 --model.heads 2 --model.key-dim 4 --model.value-dim 8 --model.mlp-dim 16 --model.window 8 --model.chunk 4 "
    "--model.dropout 0.1"
)
MAMBA2 = (
    "--model.layers 2 --model.d-model 16 --model.heads 4 --model.key-dim 4 --model.value-dim 8 --model.window 8 --model.chunk 4 "
    "--model.groups 2 --model.dropout 0.1"
)
MODELS = {
    name: shlex.split(words)
    for name, words in {
        "rec fixed:skip": f"{REC} --model.gate fixed --model.cell skip",
        "rec lstm:dual": f"{REC} --model.gate lstm --model.cell dual",
        "slide": f"small-slide {SIZE}",
        "xl": f"small-xl {SIZE}",
        "memorizing": f"small-memorizing {SIZE} --model.memory-layer 2 --model.memory 32 --model.top-k 4",
        "staircase": f"algorithm-staircase {CORE} --model.chunk 8 --model.passes 3",
        "cached-staircase": f"algorithm-cached-staircase {CORE} --model.chunk 8 --model.passes 2 --model.chunks 4",
        "feedback-transformer": f"algorithm-feedback {SIZE} --model.span 12",
        "transformer-xl": f"algorithm-xl {SIZE} --model.span 12",
        "universal-transformer": f"algorithm-universal {SIZE} --model.span 12 --model.layers 1 --model.passes 3",
        "lstm": "algorithm-lstm --model.layers 2 --model.d-model 16 --model.window 8 --model.dropout 0.1",
        "mixers": f"small-delta {MIXERS} --model.layers delta mamba2 mlstm retention rwkv7 slstm window "
        "--model.householders 2 --model.rotary",
        "rmt": f"small-rmt {SIZE} --model.memory-tokens 4",
        "armt": f"small-armt {SIZE} --model.memory-tokens 4 --model.memory-dim 4",
        "gpt2": f"small-gpt2 {GPT2} {WINDOWS}",
        "gpt2-rec": f"small-gpt2-rec {GPT2} {WINDOWS} --model.hidden 8 8",
        "llama": f"small-llama {GPT2} {WINDOWS} --model.kv-heads 1",
        "llama-rec": f"small-llama-rec {GPT2} {WINDOWS} --model.kv-heads 1 --model.hidden 8 8",
        "llama-rec layers": f"small-llama-rec {GPT2} {WINDOWS} --model.kv-heads 1 --model.hidden 8 --model.source layer",
        "mamba2": f"pg19-mamba2 {MAMBA2}",
    }.items()
}
"""First words of a training command, with small sizes of the model. With TINY after them the run takes seconds."""
TINY = shlex.split("""
    --data.corpus text --data.lanes 4 --data.segment-length 32 --steps 60 --schedule.warmup-steps 4 --log-every 1 --validate-every 5
    --validate-tokens 200 --checkpoint.every 3 --num-workers 0 --use-gpu no --tracking.system-metrics off
""")


def make_store(folder: Path, documents: int = 12, words: int = 1200) -> Path:
    """A prepared store of random words, in bytes."""
    rng = np.random.Generator(np.random.Philox(7))
    syllables = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"]
    for split, count in (("train", documents), ("validation", 2), ("test", 1)):
        (folder / "text" / split).mkdir(parents=True)
        for i in range(count):
            size = int(rng.integers(1, words))
            text = " ".join("".join(rng.choice(syllables, 2)) for _ in range(size))
            (folder / "text" / split / f"{i}.txt").write_text(text)
    fields: dict[str, Any] = {**vars(commands()["text"]), "corpus": CORPORA["text"](source=str(folder / "text"))}
    prepare(PrepareConfig(**fields | {"store": str(folder / "store"), "segment_length": 64, "num_workers": 0}))
    return folder / "store"


MOMENTS = {
    "forward": ("torch.nn", "Module.__call__"),
    "backward and all-reduce": ("torch", "Tensor.backward"),
    "all-reduce": ("torch.distributed", "all_reduce"),
    "optimizer": ("torch.nn.utils", "clip_grad_norm_"),
    "log": ("pipelines.tracking.metrics_file", "MetricsFile.append"),
    "upload to MLflow": ("pipelines.tracking.mlflow_run", "MlflowRun.send"),
    "validation": ("pipelines.training.loop", "validate"),
    "snapshot": ("pipelines.checkpoints.saving", "Saver.save"),
    "save": ("pipelines.checkpoints.saving", "_write_file"),
    "commit": ("pipelines.checkpoints.saving", "Saver._commit"),
    "pruning": ("pipelines.checkpoints.saving", "prune"),
}
"""Kinds of moments, with the module and function that run then. A run reaches each of them in its last step, too."""
BUCKET_MOMENTS = {
    "upload to the bucket": ("pipelines.checkpoints.saving", "upload"),
}
"""Further moments, of a run in a bucket alone."""


@dataclass(frozen=True)
class Trap:
    """A SIGKILL from inside: ``milliseconds`` after the first call of the moment's function from ``step`` on."""

    moment: str
    step: int
    milliseconds: float

    def lay(self) -> None:
        """Set the trap in this process."""
        from pipelines.training.watchdog import Heartbeat

        current_step = 0
        has_sprung = False

        def note(heart: object, step: int | None = None) -> None:
            nonlocal current_step
            if step is not None:
                current_step = step

        def kill(*_: object, **__: object) -> None:
            nonlocal has_sprung
            if current_step >= self.step and not has_sprung:
                has_sprung = True
                if self.milliseconds < 0.01:
                    os.kill(os.getpid(), signal.SIGKILL)
                threading.Timer(self.milliseconds / 1e3, os.kill, (os.getpid(), signal.SIGKILL)).start()

        before_call(Heartbeat, "beat", note)
        before_call(*function_of(self.moment), kill)


def function_of(moment: str) -> tuple[Any, str]:
    """The module or class that holds the function of a moment, and the function's name there."""
    module, name = {**MOMENTS, **BUCKET_MOMENTS}[moment]
    *path, last = name.split(".")
    return reduce(getattr, path, importlib.import_module(module)), last


def before_call(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Have ``act`` called before each call of a function, with its arguments."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def unused_port() -> int:
    """A port of this machine on which nothing listens.

    It is below the ports that Linux assigns by itself, by default from 32,768 on: another process can get one of those before
    the caller listens on it.
    """
    draw = random.SystemRandom()  # callers seed the common one
    while True:
        port = draw.randrange(16_384, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "benchmarks.killing",
        "pipelines.train",
        "pipelines.inference.to_transformers",  # registers the best checkpoint at the end of a tracked run
        "typeguard",  # for the command line
        "mlflow",
        "mlflow.store.tracking.sqlalchemy_store",
        "sqlalchemy.dialects.sqlite",
    ]
)


class Group:
    """The processes of one start of a training command."""

    def __init__(
        self,
        words: Sequence[str],
        workers: int,
        log: Path,
        traps: dict[int, Trap] | None = None,
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """
        Args:
            environments: environment variables of each process, to imitate machines that differ.
        """
        port = unused_port()
        self.log = log
        self.processes = []
        self._ended: set[int] = set()
        for rank in range(workers):
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "MASTER_PORT": port}
            settings = {key: str(value) for key, value in world.items()} if workers > 1 else {}
            settings |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            settings |= environments[rank] if environments else {}
            arguments = (list(words), settings, (traps or {}).get(rank), str(self._log_of(rank)))
            self.processes.append(CONTEXT.Process(target=_train, args=arguments))
        for process in self.processes:
            process.start()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def signal(self, number: int, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all that live."""
        processes = self.processes if rank is None else [self.processes[rank]]
        for process in processes:
            if process.is_alive() and process.pid:
                with suppress(ProcessLookupError):  # it ended meanwhile, and the fork server has reaped it
                    os.kill(process.pid, number)

    def wait(self, seconds: float = 300, after_a_death: float = 5.0) -> list[int | None]:
        """Exit statuses. When one process has died, the others get a little time and are then killed, as a launcher would."""
        deadline = time.monotonic() + seconds
        while any(process.is_alive() for process in self.processes) and time.monotonic() < deadline:
            if any(process.exitcode not in (None, 0, STOPPED_STATUS) for process in self.processes):
                deadline = min(deadline, time.monotonic() + after_a_death)
            time.sleep(0.02)
        self.end()
        return [process.exitcode for process in self.processes]

    def wait_until_killed(self, victims: Sequence[int], seconds: float = 300) -> None:
        """Wait until these ranks have been killed by SIGKILL, and let the others end as `wait` does.

        When one of them has been killed, the other ones are killed with it, as when their machine dies. Raises AssertionError where
        another process ended first, or one ended otherwise: an error is no kill, and neither is a run that ends before its moment.
        """
        failed = self._first_to_fail(seconds)
        expected = f"ranks {list(victims)} were to be killed by SIGKILL"
        assert any(rank in victims and status == -signal.SIGKILL for rank, status in failed), (
            f"{expected}, and failed first, with their statuses: {failed}: {self.said()}"
        )
        for rank in victims:
            self.signal(signal.SIGKILL, rank)
        statuses = self.wait(seconds)
        killed = [r for r, status in enumerate(statuses) if status == -signal.SIGKILL and r not in self._ended]
        assert killed == sorted(victims), f"{expected}; the statuses are {statuses}: {self.said()}"

    def _first_to_fail(self, seconds: float) -> list[tuple[int, int | None]]:
        """The ranks that end first with another status than 0, and their statuses. Empty if all end well, or none within so many
        seconds of the one before.
        """
        running = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        while running:
            ended = multiprocessing.connection.wait(list(running), seconds)
            if not ended:
                return []
            ranks = [running.pop(sentinel) for sentinel in ended]  # type: ignore[call-overload]
            failed = [(rank, self.processes[rank].exitcode) for rank in ranks if self.processes[rank].exitcode != 0]
            if failed:
                return failed
        return []

    def end(self) -> None:
        """Kill the processes that still live; these do not count as victims of a trap."""
        for rank, process in enumerate(self.processes):
            if process.is_alive():
                self._ended.add(rank)
                process.kill()
            process.join()

    def said(self) -> str:
        """The last 3,000 characters of each rank's output, those of rank 0 last."""
        logs = [self._log_of(rank) for rank in reversed(range(len(self.processes)))]
        return "".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())

    def _log_of(self, rank: int) -> Path:
        return Path(f"{self.log}-{rank}") if rank else self.log


def _train(words: list[str], settings: dict[str, str], trap: Trap | None, log: str) -> None:
    os.environ |= settings
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    import torch

    from pipelines import train
    from pipelines.terminal import cli

    torch.set_num_threads(1)
    if trap:
        trap.lay()
    sys.argv = ["train", *words]
    cli.run(train.main)


def final_tensors(run: Path, step: int, unless: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Bytes of a checkpoint's tensor files, and of its JSON's fields on the training, except those in ``unless``."""
    folder = run / "checkpoints" / name_of(step)
    meta = Checkpoint.open(folder).meta
    keys = ("optimizer", "cursor", "tokens", "logged", "validation", "files", "world")
    compared = {key: meta[key] for key in keys if key not in unless}
    files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    return {**files, "meta": json.dumps(compared, sort_keys=True).encode()}


Point = tuple[int, str, float]
"""A point of a curve: step, metric, value."""


def curve(run: Path) -> list[Point]:
    """Every metric at its step in metrics.jsonl, without speeds, and without the `train/tokens` of records that only validate."""
    return sorted(
        (record.step, key, value)
        for record in read_records(run / "metrics.jsonl")
        for key, value in record.metrics.items()
        if "per_second" not in key and not (key == "train/tokens" and "train/bits_per_token" not in record.metrics)
    )


def mlflow_curve(root: Path, run: str) -> list[Point]:
    """The run's curve in MLflow, as `curve` returns it."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = [entry for entry in client.search_runs(experiments) if entry.info.run_name == run]
    assert len(found) == 1, f"{len(found)} runs in MLflow are called {run}"
    return points_in_mlflow(client, found[0])


def points_in_mlflow(client: Any, run: Any) -> list[Point]:
    """The points of one of MLflow's runs, without speeds."""
    return sorted(
        (point.step, key, point.value)
        for key in run.data.metrics
        if "per_second" not in key
        for point in client.get_metric_history(run.info.run_id, key)
    )
