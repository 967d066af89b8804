"""Trains for a long time under kills and compares the end with that of an undisturbed run.

    python -m benchmarks.soak --minutes 30            as long again for the undisturbed run

Two processes, dropout on, a checkpoint every 10 steps. Every 20 to 60 seconds one of them, or both, is killed by SIGKILL, and the
command is rerun to resume. At the end training is asked to stop. An undisturbed run of exactly as many steps must end in the same
bytes, with the same curve. Memory and open files of rank 0 are read every second.
"""

from __future__ import annotations

import random
import signal
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.killing import MODELS, TINY, Group, Point, curve, final_tensors, make_store
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.terminal import cli
from pipelines.training.stopping import STOPPED_STATUS


@dataclass(frozen=True)
class BenchConfig:
    """Length of the training, and the kills."""

    minutes: float = 30.0
    """Minutes of training under kills."""
    pause: tuple[float, float] = (20.0, 60.0)
    """Least and most seconds between two kills."""
    seed: int = 0
    """Seed of the kills."""


LARGER = ["--model.d-model", "64", "--model.mlp-dim", "256", "--model.head-dim", "32", "--model.states", "16"]
LARGER += ["--model.window", "16", "--data.segment-length", "128", "--checkpoint.every", "10", "--validate-every", "50"]
LARGER += ["--schedule.name", "constant", "--tracking.backend", "none"]


class Meter:
    """Memory (MB) and open files of rank 0, read about every second."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float, int]] = []
        """Seconds since the beginning, MB, open files."""
        self.began = self.read = time.monotonic()

    def look(self, group: Group) -> None:
        if time.monotonic() - self.read < 1:
            return
        self.read = time.monotonic()
        with suppress(psutil.Error):
            found = psutil.Process(group.processes[0].pid)
            self.readings.append((self.read - self.began, found.memory_info().rss / 1e6, found.num_fds()))

    def told(self) -> str:
        """Medians over the second and over the last fifth of the time, as text."""
        end = self.readings[-1][0]

        def median(least: float, most: float, column: int) -> float:
            values = [r[column] for r in self.readings if least * end <= r[0] <= most * end]
            return statistics.median(values) if values else float("nan")

        early = (0.2, 0.4)
        late = (0.8, 1.0)
        return (
            f"memory {median(*early, 1):.0f} MB, at the end {median(*late, 1):.0f} MB; "
            f"open files {median(*early, 2):.0f}, at the end {median(*late, 2):.0f}"
        )


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    random.seed(config.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = make_store(root, documents=40, words=4000)
        words = [*MODELS["rec fixed:skip"], *TINY, *LARGER, "--data.store", str(store), "--root", str(root)]
        kills, again, meter = soak([*words, "--run", "soak", "--steps", "1000000"], root, config)
        last = newest(root / "soak")
        print(f"{kills} kills in {config.minutes:g} minutes and {last:,} steps; {again:,} steps made again", flush=True)
        print(f"under kills: {meter.told()}", flush=True)
        calm = Meter()
        began = time.monotonic()
        with Group([*words, "--run", "calm", "--steps", str(last)], 2, root / "calm.log") as group:
            while any(process.is_alive() for process in group.processes):
                calm.look(group)
                time.sleep(0.1)
            assert group.wait(1) == [0, 0], group.said()
        print(f"undisturbed: {(time.monotonic() - began) / 60:.1f} minutes; {calm.told()}", flush=True)
        # Only the undisturbed run validates the last step: the other did not know that it was the last.
        expected, found = (final_tensors(root / run, last, unless=("validation",)) for run in ("calm", "soak"))
        different = [name for name in expected if found.get(name) != expected[name]]
        steps = [step for step, key, _ in curve(root / "soak") if key == "train/bits_per_token"]
        lost = last - len(set(steps))
        print(f"final checkpoint: {'DIFFERENT in ' + ', '.join(different) if different else 'identical'}")
        same = same_metrics(curve(root / "soak"), curve(root / "calm"), last)
        twice = len(steps) - len(set(steps))
        print(f"steps lost: {lost}; twice in the curve: {twice}; metrics {'the same' if same else 'DIFFERENT'}")
    return 1 if different or lost or twice or not same else 0


def same_metrics(disturbed: list[Point], calm: list[Point], last: int) -> bool:
    """Whether both have the same metrics, but for the last step's validation, which the undisturbed run alone has."""
    missing = set(calm) - set(disturbed)
    others = [key for step, key, _ in missing if step != last or not key.startswith("validation/")]
    return set(disturbed) <= set(calm) and not others


def soak(words: list[str], root: Path, config: BenchConfig) -> tuple[int, int, Meter]:
    """Train under kills, then stop. Returns the kills, the steps that were made again, and the meter."""
    end = time.monotonic() + 60 * config.minutes
    kills = 0
    again = 0
    meter = Meter()
    while True:
        furthest = reached(root / "soak")
        with Group(words, 2, root / "soak.log") as group:
            kill_at = time.monotonic() + random.uniform(*config.pause)
            while time.monotonic() < min(kill_at, end):
                assert all(process.is_alive() for process in group.processes), group.said()
                meter.look(group)
                time.sleep(0.05)
            if kill_at > end:
                while reached(root / "soak") <= furthest:  # a process that has only begun cannot save
                    assert all(process.is_alive() for process in group.processes), group.said()
                    time.sleep(0.1)
                group.signal(signal.SIGTERM)
                statuses = group.wait(120)
                assert statuses == [STOPPED_STATUS] * 2, f"{statuses} {group.said()}"
                return kills, again, meter
            before = newest(root / "soak")
            victims = random.choice(((0,), (1,), (0, 1)))
            for rank in victims:
                group.signal(signal.SIGKILL, rank)
            group.wait_until_killed(victims, 60)
        kills += 1
        again += reached(root / "soak") - newest(root / "soak")
        assert newest(root / "soak") >= before


def reached(run: Path) -> int:
    """The last step of the curve."""
    return max((step for step, *_ in curve(run)), default=0)


def newest(run: Path) -> int:
    return RunFolder.parse(run).newest_step()


if __name__ == "__main__":
    cli.run(main)
