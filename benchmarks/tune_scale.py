"""Measures a sweep's driver with many trials: its time and memory, the replay at its end, and how busy a large cluster is.

    python -m benchmarks.tune_scale                         1,000 trials of a tiny model, two at a time: half an hour on two cores
    python -m benchmarks.tune_scale --kind sleep            trials that sleep, on a cluster that says it has 64 CPUs

The trials go through the sweep's own results.jsonl and Tuner; those that sleep have an actor that trains nothing. `busy` is the
share of the CPUs with a sleeping trial, from the moment when every actor has had a trial until the last trial begins. Before that
the actors' processes start, 64 of them on the cores that there are; this time is printed, too.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import psutil

from benchmarks.killing import make_store
from pipelines.cluster import ray_session
from pipelines.sweeps import tuner
from pipelines.sweeps.checks import read_and_check
from pipelines.sweeps.command import SweepConfig
from pipelines.sweeps.planning import open_or_plan
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.sweep import Sweep
from pipelines.sweeps.trial import POINTER, TrialActor
from pipelines.sweeps.trial_loop import ended_as
from pipelines.terminal import cli
from pipelines.training.stopping import Stop
from tune_spaces import fields
from tune_spaces.drawing import METRIC

SECONDS = "TUNE_SCALE_SECONDS"
"""Environment variable of the actors: seconds that a trial sleeps before each of its validations."""
SLEPT = "TUNE_SCALE_SLEPT"
"""Environment variable of the actors: folder in which each notes when its trials slept."""
WORDS = """
    --preset small-rec --num-workers 1 --search grid --scheduler none --baseline no --use-gpu no --tracking.backend none
    --model.layers 1 --model.recurrent-layers 1 --model.d-model 8 --model.heads 1 --model.head-dim 8 --model.mlp-dim 8
    --model.window 8 --model.states 2 --data.corpus text --data.lanes 2 --data.segment-length 16 --steps 6 --schedule.warmup-steps 2
    --validate-every 3 --validate-tokens 50 --checkpoint.every 3
"""


@dataclass(frozen=True)
class BenchConfig:
    """Number and kind of the trials."""

    kind: Literal["train", "sleep"] = "train"
    """Trials of a tiny model, or ones that sleep."""
    trials: int = 1000
    """Number of trials."""
    cpus: int = 0
    """CPUs of the Ray session; 0 for 2, or for 64 if trials sleep."""
    seconds: float = 10.0
    """Seconds that a trial sleeps before each of its two validations."""


class Sleeps(TrialActor):
    """A trial that trains nothing."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._done = 0
        self._slept = []
        return True

    def step(self) -> dict[str, Any]:
        began = time.time()
        time.sleep(float(os.environ[SECONDS]))
        self._slept.append((began, time.time()))
        self._done += 3
        metrics = {METRIC: 5.0, "validation/bits_per_token": 5.0}
        told = {"trial": self.trial_name, "step": self._done, "tokens": self._done * 32, **metrics}
        if self._done < 6:
            return told
        with Path(os.environ[SLEPT], str(os.getpid())).open("a") as file:
            file.write(json.dumps(self._slept) + "\n")
        return told | ended_as("finished", "")

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, POINTER).write_text("{}")


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    at_once = config.cpus or (64 if config.kind == "sleep" else 2)
    os.environ[SECONDS] = str(config.seconds)
    with tempfile.TemporaryDirectory() as folder:
        slept = Path(folder, "slept")
        slept.mkdir()
        os.environ[SLEPT] = str(slept)
        swept, domains = many(Path(folder), config.trials)
        sweep = planned(swept, domains)
        ray_session.start(num_cpus=at_once, log_to_driver=False)
        watch = Watch(sweep)
        kind = Sleeps if config.kind == "sleep" else TrialActor
        room: Any = SimpleNamespace(at_once=lambda: at_once, use_gpu=False)
        tracking: Any = SimpleNamespace(as_child=lambda run: run)
        tuner.fit(SweepRecord(sweep), domains, tracking, room, Stop(sweep.folder), kind)
        watch.end()
        assert [trial.status for trial in sweep.trials.values()] == ["finished"] * len(sweep.trials)
        began = time.monotonic()
        again = Sweep(swept, fields(domains))
        again.open_folder()
        grid = tuner.fit(SweepRecord(again), domains, tracking, room, Stop(sweep.folder), kind)
        assert len(grid) == len(sweep.trials)
        print(f"a start over {len(grid):,} trials that are over: {time.monotonic() - began:.1f} s")
        if config.kind == "sleep":
            files = [(int(file.name), file.read_text().splitlines()) for file in slept.iterdir()]
            busy([(process, json.loads(line)) for process, lines in files for line in lines], at_once)


def many(folder: Path, trials: int) -> tuple[SweepConfig, dict[str, Any]]:
    """A sweep of ``trials`` trials of a tiny model below ``folder``, and the domains that it varies."""
    values = ",".join(f"{1e-3 * (1 + i / 1000):.6g}" for i in range(trials))
    place = ["--data.store", str(make_store(folder)), "--root", str(folder), "--run", "many"]
    return read_and_check([f"schedule.min_lr_ratio={values}", *shlex.split(WORDS), *place])


def planned(swept: SweepConfig, domains: dict[str, Any]) -> Sweep:
    """The sweep with its trials, planned in its folder."""
    sweep = Sweep(swept, fields(domains))
    if not open_or_plan(sweep, domains):
        sweep.write_plan("")
    return sweep


class Watch:
    """The driver's CPU time and memory, as trials end."""

    def __init__(self, sweep: Any) -> None:
        self._sweep = sweep
        self._over = threading.Event()
        self._me = psutil.Process()
        self._began = time.monotonic()
        self._first = sum(self._me.cpu_times()[:2])
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        every = max(1, len(self._sweep.trials) // 10)
        told = 0
        while not self._over.wait(0.5):
            ended = sum(trial.over for trial in self._sweep.trials.values())
            if ended >= told + every:
                told = ended
                self.tell(ended)

    def tell(self, ended: int) -> None:
        used = sum(self._me.cpu_times()[:2]) - self._first
        memory = self._me.memory_info().rss >> 20
        wall = time.monotonic() - self._began
        print(
            f"{ended:6,} trials, {wall:5.0f} s: driver {1e3 * used / ended:.0f} ms of CPU a trial, {memory} MB",
            flush=True,
        )

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.tell(len(self._sweep.trials))


def busy(slept: list[tuple[int, list[tuple[float, float]]]], at_once: int) -> None:
    """Print how busy the CPUs were. ``slept``: each trial's process and sleeps. Raises AssertionError if a CPU had no trial."""
    firsts = dict[int, float]()
    for process, sleeps in slept:
        firsts[process] = min(firsts.get(process, math.inf), sleeps[0][0])
    assert len(firsts) == at_once, f"{len(firsts)} processes on {at_once} CPUs"
    begins = sorted(sleeps[0][0] for _, sleeps in slept)
    first = max(firsts.values())
    last = begins[-1]
    inside = [(max(began, first), min(ended, last)) for _, sleeps in slept for began, ended in sleeps]
    share = sum(max(0.0, ended - began) for began, ended in inside) / (at_once * (last - first))
    rate = sum(begin > first for begin in begins) / (last - first)
    print(f"all {at_once} CPUs had a trial {first - begins[0]:.0f} s after the first one")
    print(f"from then on {rate:.2f} trials started a second, {share:.1%} of the CPUs busy for {last - first:.0f} s")


if __name__ == "__main__":
    cli.run(main)
