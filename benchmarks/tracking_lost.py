"""Whether MLflow loses a metric: a server that is silent for a minute, and many runs at once into one sqlite file and one server.

    python -m benchmarks.tracking_lost --seconds 60 --runs 8

The server is stopped with SIGSTOP in the middle of a run that logs ten times a second, and woken with SIGCONT. What it has
afterwards is asked through its REST API; the order in which it got the points is read from its database. The many runs are
processes that begin at the same moment, where there is no database yet. Ends with status 1 where anything is lost or out of order.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe
from pipelines.config.run import TrackingConfig
from pipelines.terminal import cli
from pipelines.tracking import Tracker
from tests.mlflow_server import Server, serve, wait_until


@dataclass(frozen=True)
class BenchConfig:
    """Length of the silence, and numbers of runs and points."""

    seconds: float = 60.0
    """Seconds of silence; 0 skips this part."""
    runs: int = 8
    """Processes that log at the same time; 0 leaves them out."""
    points: int = 500
    """Points of three metrics that each process logs."""


def silence(server: Server, root: Path, seconds: float) -> bool:
    """Stop the server in the middle of a run, wake it, and count its points. Returns whether it has all, in order."""
    config = TrackingConfig(uri=server.uri, experiment="silence", system_metrics="off", patience=120)
    tracker = Tracker.start(config, root, root / "run", "run", {}, {})
    wait_until(lambda: tracker.run_id, 60)
    longest = 0.0
    steps = 0
    began = time.monotonic()
    stopped = woken = 0.0
    while not woken or time.monotonic() < woken + 5:
        steps += 1
        before = time.perf_counter()
        tracker.log({"a": steps / 2, "b": -float(steps)}, steps)
        longest = max(longest, time.perf_counter() - before)
        time.sleep(0.1)
        now = time.monotonic()
        if not stopped and now > began + 5:
            server.signal(signal.SIGSTOP)
            stopped = now
        elif stopped and not woken and now > stopped + seconds:
            server.signal(signal.SIGCONT)
            woken = now
    tracker.finish()
    caught_up = time.monotonic() - woken - 5
    run_id = tracker.run_id or ""
    got = {key: sorted((p["step"], p["value"]) for p in server.points(run_id, key)) for key in ("a", "b")}
    whole = {"a": [(s, s / 2) for s in range(1, steps + 1)], "b": [(s, -float(s)) for s in range(1, steps + 1)]}
    with sqlite3.connect(root / "mlflow.db") as database:
        query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = 'a' ORDER BY rowid"
        order = [step for (step,) in database.execute(query, (run_id,))]
    there = got == whole
    ordered = order == sorted(order)
    print(
        f"silent for {seconds:.0f} s: {steps} points of two metrics, {'all there, each once' if there else 'NOT ALL THERE'}, "
        f"{'in order' if ordered else 'NOT IN ORDER'}; the longest call of log took {longest * 1e3:.1f} ms, "
        f"and all was sent {max(caught_up, 0):.1f} s after the last of them"
    )
    return there and ordered


LOGS = """
import sys
from pathlib import Path
from pipelines.config.run import TrackingConfig
from pipelines.tracking import Tracker
root, name, uri, points = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
config = TrackingConfig(uri=uri, experiment="crowd", system_metrics="off")
tracker = Tracker.start(config, root, root / name, name, {"optim.lr": 0.001}, {"model": "rec"})
for step in range(1, points + 1):
    tracker.log({"a": step / 2, "b": -step, name: 1.0}, step)
tracker.finish()
"""


def crowd(root: Path, uri: str, runs: int, points: int) -> tuple[float, str]:
    """Run the processes. Returns the seconds that all took, and their messages. Raises RuntimeError if one fails."""
    command = [sys.executable, "-c", LOGS, str(root)]
    began = time.monotonic()
    crowd = [
        subprocess.Popen([*command, f"run-{i}", uri, str(points)], stderr=subprocess.PIPE, env={**os.environ})
        for i in range(runs)
    ]
    said = b"".join(process.communicate()[1] for process in crowd).decode()
    failed = [process.returncode for process in crowd if process.returncode]
    if failed:
        raise RuntimeError(f"{len(failed)} of {runs} processes failed, with statuses {failed}: {said[-3000:]}")
    return time.monotonic() - began, said


def whole_runs(root: Path, steps: Callable[[str, str], list[int]], config: BenchConfig) -> int:
    """How many runs of a crowd have each point once. ``steps``: those of a run's metric in MLflow, in order, by its id and key."""
    whole = 0
    for name in (f"run-{i}" for i in range(config.runs)):
        run_id = json.loads((root / name / "mlflow_run.json").read_bytes())["run_id"]
        whole += all(steps(run_id, key) == list(range(1, config.points + 1)) for key in ("a", "b", name))
    return whole


def tell(kind: str, whole: int, config: BenchConfig, seconds: float, said: str) -> bool:
    """Print how many runs are whole. Returns whether all are."""
    told = f"{whole} of {config.runs} runs have all of 3 × {config.points} points once"
    print(f"{kind}: {told}; {seconds:.0f} s; {said.strip() or 'no warning'}")
    return whole == config.runs


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    print(describe())
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as server:
        root = Path(folder)
        passed = not config.seconds or silence(server, root, config.seconds)
        if not config.runs:
            return 0 if passed else 1
        seconds, said = crowd(root / "remote", server.uri, config.runs, config.points)
        passed &= tell("server", whole_runs(root / "remote", server.steps, config), config, seconds, said)
        seconds, said = crowd(root / "local", "", config.runs, config.points)
        with sqlite3.connect(root / "local/mlflow.db") as database:

            def steps(run_id: str, key: str) -> list[int]:
                query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
                return [step for (step,) in database.execute(query, (run_id, key))]

            whole = whole_runs(root / "local", steps, config)
        passed &= tell("sqlite", whole, config, seconds, said)
    return 0 if passed else 1


if __name__ == "__main__":
    cli.run(main)
