"""Kills training at random moments and compares the result, bit for bit, with that of an undisturbed run.

    python -m benchmarks.kills                     20 models, 20 kills each: half an hour or more on two busy cores

Each run has 60 steps on two processes with dropout on, a checkpoint every 3 steps, validation every 5, tracked in MLflow. One
process, or both, is killed by SIGKILL inside forward, backward, an all-reduce, the optimizer, log, upload, validation, or a save
at any point of it; then the command is rerun to resume. The victims alone must have died of SIGKILL: anything else ends the
benchmark. A checkpoint from the middle of the disturbed run is then resumed twice more. Weights,
optimizer, generators, State, cursor and curve of all must be those of the undisturbed run; MLflow must have each step once, with
its value.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.killing import MODELS, MOMENTS, TINY, Group, Trap, curve, final_tensors, make_store, mlflow_curve
from common.errors import UserError
from pipelines.checkpoints.checkpoint import name_of, step_of
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.terminal import cli

STEPS = 60


@dataclass(frozen=True)
class BenchConfig:
    """Runs to kill, and how often."""

    models: tuple[str, ...] = tuple(MODELS)
    """Some of: rec fixed:skip, rec lstm:dual, slide, xl, memorizing, staircase, cached-staircase, feedback-transformer,
    transformer-xl, universal-transformer, lstm, mixers, rmt, armt, gpt2, gpt2-rec, llama, llama-rec, llama-rec layers, mamba2."""
    kills: int = 20
    """Kills of each run."""
    seed: int = 0
    """Seed of the moments of the kills."""

    def __post_init__(self) -> None:
        for name in self.models:
            if name not in MODELS:
                raise UserError(f"--models names {name!r}: give some of {', '.join(map(repr, MODELS))}")


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    random.seed(config.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        for name in config.models:
            began = time.monotonic()
            root = Path(folder) / name.replace(" ", "-").replace(":", "-")
            words = [*MODELS[name], *TINY, "--data.store", str(store), "--root", str(root)]
            differences, moments = compare(words, root, config.kills)
            wrong += bool(differences)
            told = ", ".join(f"{moment} {count}" for moment, count in sorted(moments.items()))
            print(
                f"{name}: {'identical' if not differences else 'DIFFERENT in ' + '; '.join(differences)} after "
                f"{sum(moments.values())} kills in {time.monotonic() - began:.0f} s ({told})",
                flush=True,
            )
    return 1 if wrong else 0


def compare(words: list[str], root: Path, kills: int) -> tuple[list[str], Counter[str]]:
    """Differences between the undisturbed run, the killed one and two more that resume from its middle; and the kills' moments."""
    logs = root / "logs"
    logs.mkdir(parents=True)
    finish([*words, "--run", "calm"], logs / "calm")
    moments = kill_again_and_again([*words, "--run", "killed"], root, kills)
    middle = sorted((root / "middle").iterdir())[0]
    for twin in ("twin-1", "twin-2"):
        shutil.copytree(middle, root / twin / "checkpoints" / middle.name)
        finish([*words, "--run", twin, "--tracking.backend", "none"], logs / twin)
    calm = root / "calm"
    differences = []
    for other in ("killed", "twin-1", "twin-2"):
        expected = final_tensors(calm, STEPS)
        found = final_tensors(root / other, STEPS)
        differences += [f"{other}'s {name}" for name in expected if found.get(name) != expected[name]]
    whole = curve(calm)
    if whole != curve(root / "killed"):
        differences.append("the curve of metrics.jsonl")
    after = [point for point in whole if point[0] > step_of(middle.name)]
    differences += [f"{twin}'s curve" for twin in ("twin-1", "twin-2") if curve(root / twin) != after]
    if mlflow_curve(root, "killed") != whole or mlflow_curve(root, "calm") != whole:
        differences.append("the curve in MLflow")
    if [step for step, key, _ in whole if key == "train/bits_per_token"] != list(range(1, STEPS + 1)):
        differences.append("the steps of the curve")
    return differences, moments


def kill_again_and_again(words: list[str], root: Path, kills: int) -> Counter[str]:
    """Run the command until it is done, with ``kills`` kills on the way. A copy of a checkpoint is left in `middle`."""
    moments: Counter[str] = Counter()
    kinds = [kind for _ in range(0, kills, len(MOMENTS)) for kind in random.sample(list(MOMENTS), len(MOMENTS))]
    run = root / "killed"
    while sum(moments.values()) < kills:
        count = sum(moments.values())
        newest = RunFolder.parse(run).newest_step()
        if newest == STEPS:  # done: go back by one checkpoint
            shutil.rmtree(run / "checkpoints" / name_of(STEPS))
            continue
        target = min(STEPS - 1, max(newest, round(STEPS * (count + random.random()) / (kills + 1))))
        victims = random.choice(((0,), (1,), (0, 1)))
        kind = kinds[count]
        if kind in ("log", "upload to MLflow", "commit", "pruning"):
            victims = (0,)  # the others do none of it
        trap = Trap(kind, target, random.choice((0.0, random.uniform(0, 3), random.uniform(0, 20))))
        log = root / "logs" / f"killed-{count:02d}-{kind.replace(' ', '-')}"
        with Group(words, 2, log, dict.fromkeys(victims, trap)) as group:
            group.wait_until_killed(victims, 180)
        moments[kind] += 1
        if count == kills // 2:
            found, _ = RunFolder.parse(run).newest()
            assert found
            shutil.copytree(found.folder, root / "middle" / found.folder.name)
    finish(words, root / "logs" / "killed-at-last")
    return moments


def finish(words: list[str], log: Path) -> None:
    with Group(words, 2, log) as group:
        statuses = group.wait(300)
    assert statuses == [0, 0], f"{statuses}: {re.sub('step .*', '', group.said())}"


if __name__ == "__main__":
    cli.run(main)
