"""Kills a preparation at random moments, reruns it each time, and checks the finished store.

    python -m benchmarks.prepare_kills --kills 30                about six minutes on two cores

The real command prepares a small corpus in many parts with two Ray workers. At a random moment (while it starts, after some
parts, or while a part is being renamed and entered in the ledger) a process of it gets SIGKILL: the command itself, one of
its Ray workers, or Ray's raylet. Where the command does not survive that, it is run again, until the store is finished; then
another store is begun, until there were enough kills. Each finished store must be identical, byte for byte, to one that was
prepared without disturbance, with no file beside it; no part may have been written again that the ledger had; and no
process of a killed command may live on.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from data_prep.corpora.text import Text
from pipelines.prepare import PrepareConfig, prepare
from pipelines.terminal import cli

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class BenchConfig:
    """Number of kills, and size of the corpus."""

    kills: int = 30
    parts: int = 200
    """Parts of the corpus."""
    seed: int = 0


STATUSES = {"command": (-signal.SIGKILL,), "worker": (0,), "raylet": (0, 1)}
"""Exit statuses of the command after the kill of one of its processes. After a worker's death its tasks run again; without a raylet
they cannot, unless all had ended. Any other status is a failure of its own, and no kill."""


AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes that are named like workers and are none: the raylet ends with them."""


@dataclass(frozen=True)
class Kill:
    """A process that got SIGKILL."""

    victim: str
    moment: str
    parts: int

    def __str__(self) -> str:
        return f"{self.victim}, {self.moment}, {self.parts} parts in the ledger"


@dataclass
class Outcome:
    """Counts of kills, stores and kept parts."""

    kills: Counter[str]
    """Processes killed, by what they were and when."""
    stores: int = 0
    """Stores finished, each identical to the undisturbed one."""
    kept: int = 0
    """Committed parts that a later run found and did not write again."""


def make_corpus(folder: Path, parts: int) -> None:
    generator = random.Random(0)
    for split, count in (("train", parts), ("validation", 3), ("test", 3)):
        (folder / split).mkdir(parents=True)
        for i in range(count):
            text = " ".join(str(generator.random()) for _ in range(1000))
            (folder / split / f"doc{i:04d}.txt").write_text(text)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run(config: BenchConfig, scratch: Path) -> Outcome:
    """Kill and rerun until there are enough kills and the last store is finished. Raises AssertionError if a check fails."""
    make_corpus(scratch / "corpus", config.parts)
    with contextlib.redirect_stdout(io.StringIO()):
        corpus = Text(source=str(scratch / "corpus"))
        prepare(PrepareConfig(corpus, store=str(scratch / "whole"), num_workers=0, segment_length=256, part_bytes=8000))
    whole = contents(scratch / "whole")
    store = scratch / "store"
    words = ["text", "--source", str(scratch / "corpus"), "--store", str(store), "--num-workers", "2"]
    words += ["--segment-length", "256", "--part-bytes", "8000"]
    generator = random.Random(config.seed)
    outcome = Outcome(Counter())
    committed: dict[Path, tuple[int, int]] = {}
    sessions: list[int] = []
    while True:
        with open(scratch / "errors", "wb") as errors:  # not a pipe, which Ray's agents would hold open
            process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.prepare", *words],
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            )  # fmt: skip
        kill = disturb(process, store / "text" / "train", generator) if outcome.kills.total() < config.kills else None
        status = process.wait(timeout=180)
        sessions.append(process.pid)
        said = f"status {status} after {kill or 'no kill'}: {(scratch / 'errors').read_text(errors='replace')[-3000:]}"
        assert kill or status == 0, said
        if kill and (kill.victim != "command" or status != 0):  # else it had ended before the signal came
            assert status in STATUSES[kill.victim], said
            outcome.kills[f"{kill.victim}, {kill.moment}"] += 1
            print(f"  kill {outcome.kills.total()}: {kill}", flush=True)
        for path, stamp in committed.items():
            assert stamp_of(path) == stamp, f"{path.name} was written again"
        if process.returncode == 0:
            assert contents(store) == whole, "the finished store differs from an undisturbed one"
            outcome.stores += 1
            outcome.kept += len(committed)
            committed = {}
            if outcome.kills.total() >= config.kills:
                none_left(sessions)
                return outcome
            shutil.rmtree(store)
            continue
        ledgers = store.glob("text/*/ledger/*.json")
        found = [ledger.parents[1] / f"{ledger.stem}.arrow" for ledger in ledgers]
        committed = {path: stamp_of(path) for path in found}


def disturb(process: subprocess.Popen[bytes], folder: Path, generator: random.Random) -> Kill | None:
    """Kill one process of a preparation at a random moment. Returns None if the preparation ends before."""
    moment = generator.choice(["starting", "after some parts", "after some parts", "renaming", "renaming"])
    victim = generator.choice(["command", "worker", "raylet"] if moment == "after some parts" else ["command"])
    ledger = folder / "ledger"
    seen = count(ledger)
    parts = generator.randrange(1, 40)
    delay = generator.uniform(0, 5)
    start = time.monotonic()
    while process.poll() is None:
        if moment == "starting" and time.monotonic() - start > delay:
            break
        if moment == "after some parts" and count(ledger) >= seen + parts:
            break
        if moment == "renaming" and count(ledger) >= seen + parts % 8 and list(ledger.glob("*.tmp")):
            break
        if moment != "renaming" or not ledger.exists():
            time.sleep(0.001)
    else:
        return None
    time.sleep(generator.uniform(0, 0.02) if moment == "after some parts" else 0)
    for found in members(process.pid):
        with contextlib.suppress(psutil.Error):
            if kind_of(found, process.pid) == victim:
                found.kill()
                return Kill(victim, moment, count(ledger))
    return None


def kind_of(process: psutil.Process, command: int) -> str:
    """What a process of a preparation is: "command", "worker", or the name of any other. ``command``: the id of the first."""
    if process.pid == command:
        return "command"
    name = process.name()
    return "worker" if name.startswith("ray::") and not name.startswith(AGENTS) else name


def count(ledger: Path) -> int:
    try:
        return sum(name.endswith(".json") for name in os.listdir(ledger))
    except FileNotFoundError:
        return 0


def stamp_of(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def members(*sessions: int) -> list[psutil.Process]:
    """The processes of some sessions."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def none_left(sessions: list[int]) -> None:
    """Wait until no process of the sessions is left: Ray's agents look for their parent every few seconds."""
    deadline = time.monotonic() + 90
    while left := members(*sessions):
        assert time.monotonic() < deadline, f"processes live on: {[process.name() for process in left]}"
        time.sleep(0.1)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, "Kill a preparation at random moments.")
    with tempfile.TemporaryDirectory() as scratch:
        start = time.monotonic()
        outcome = run(config, Path(scratch))
    print(f"{outcome.kills.total()} kills in {time.monotonic() - start:,.0f} s:")
    for name, number in sorted(outcome.kills.items()):
        print(f"  {number:3} {name}")
    print(f"{outcome.stores} stores finished, each identical to an undisturbed one, with no file or process left over")
    print(f"{outcome.kept} parts that were committed when a command was killed, none of them written again")


if __name__ == "__main__":
    cli.run(main)
