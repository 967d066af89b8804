"""Measures the start of a sweep's trial: from the decision to train it to its first step, with workers reused and with new ones.

    python -m benchmarks.trial_startup                      about five minutes on two cores

Six short trials of the same run, two at a time on workers of one CPU. A trial's start-up is the time from its `begin` in
results.jsonl to its first step's line in metrics.jsonl; its share is the part of the time until the trial's end. Ray's processes
count if their titles begin with `ray::`; their memory is the memory that they do not share.
"""

from __future__ import annotations

import contextlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.killing import SIZE, TINY, make_store
from pipelines.sweeps.command import SweepConfig, read_command
from pipelines.sweeps.sweep import Sweep
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records

SWEEP = shlex.split(f"""
    optim.lr=1e-3,2e-3,3e-3,4e-3,5e-3,6e-3 --preset small-rec --search grid --scheduler none --num-workers 1 --baseline no
    {SIZE} --model.recurrent-layers 2 --model.states 4
""")


@dataclass(frozen=True)
class BenchConfig:
    """Length and tracking of a trial."""

    steps: int = 1000
    """Steps of a trial."""
    backend: str = "mlflow"
    """mlflow, or none."""


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        for workers in ("fresh", "reuse"):
            rest = shlex.split(f"""
                --num-workers 1 --steps {config.steps} --validate-every 200 --checkpoint.every 200 --workers {workers}
                --run {workers} --tracking.backend {config.backend} --num-cpus 2
            """)
            words = [*SWEEP, *TINY, *rest, "--data.store", str(store), "--root", folder]
            began = time.monotonic()
            processes, memory = ray_processes([sys.executable, "-m", "pipelines.tune", *words])
            whole = time.monotonic() - began
            starts, shares = zip(*start_ups(read_command(words)), strict=True)
            told = " ".join(f"{seconds:.1f}" for seconds in starts)
            print(
                f"{workers}: start-up {told} s (median {statistics.median(starts):.1f} s, of those after the first two "
                f"{statistics.median(starts[2:]):.1f} s), {statistics.median(shares):.0%} of a trial; the sweep {whole:.0f} s; "
                f"{processes} processes of Ray's, {memory:,} MB",
                flush=True,
            )


def ray_processes(command: list[str]) -> tuple[int, int]:
    """Run a command. Returns the most Ray processes that lived at once, and the most megabytes that they held unshared."""
    most = memory = 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        held = []
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "ray::" in " ".join(child.cmdline()[:1]):
                    held.append(child.memory_full_info().uss >> 20)
        most = max(most, len(held))
        memory = max(memory, sum(held))
        time.sleep(1)
    assert process.returncode == 0
    return most, memory


def start_ups(config: SweepConfig) -> list[tuple[float, float]]:
    """For each trial, in the order of their beginnings: seconds to its first step, and their share of its time."""
    sweep = Sweep(config, [])
    begins, ends = (
        {event["trial"]: event["time"] for event in sweep.events() if event["event"] == kind}
        for kind in ("begin", "end")
    )
    found = []
    for trial, begin in begins.items():
        first = read_records(sweep.folder / "trials" / trial / "metrics.jsonl")[0].time / 1e3
        found.append((first - begin, (first - begin) / (ends[trial] - begin)))
    return found


if __name__ == "__main__":
    cli.run(main)
