"""Kills Ray's own processes under a training run: how soon the command ends, its message, and whether a rerun resumes exactly.

    python -m benchmarks.ray_killed                      about five minutes on two cores

Two workers, dropout on. gcs_server (Ray's head) and then raylet are ended by SIGKILL in a run each, the same command is given
again, and weights, optimizer, generators, State, cursor and curve are compared with those of a run that nothing disturbed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.killing import MODELS, TINY, curve, final_tensors, make_store
from pipelines.checkpoints.run_folder import RunFolder

STEPS = 400
AT = 60
"""Step of the checkpoint that the kill waits for."""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = make_store(root)
        words = [*MODELS["rec fixed:skip"], *TINY, "--steps", str(STEPS), "--num-workers", "2"]
        words += ["--checkpoint.every", "20", "--validate-every", "0", "--tracking.backend", "none"]
        words += ["--data.store", str(store), "--root", str(root)]
        status, said, _ = train([*words, "--run", "calm"], root, None)
        assert status == 0, said
        wrong = 0
        for victim in ("gcs_server", "raylet"):
            name = f"killed-{victim}"
            status, said, seconds = train([*words, "--run", name], root, victim)
            print(
                f"{victim} was killed: the command ended {seconds:.0f} s later with status {status}, and said:\n  {said}"
            )
            again, told, _ = train([*words, "--run", name], root, None)
            expected = final_tensors(root / "calm", STEPS)
            found = final_tensors(root / name, STEPS)
            differences = [key for key in expected if found.get(key) != expected[key]]
            differences += ["curve"] if curve(root / name) != curve(root / "calm") else []
            resumed = re.search(r"resumes from step \d+", worker_log(root / name))
            print(
                f"  the same command again: status {again}, {resumed[0] if resumed else 'not resumed'}; "
                f"{'identical to the undisturbed run' if not differences else f'DIFFERENT in {differences}'}",
                flush=True,
            )
            wrong += bool(differences) or again != 0 or status != 1 or "repeat the command" not in said or not resumed
            if again:
                print(told)
    return 1 if wrong else 0


def worker_log(run: Path) -> str:
    return (run / "logs" / "worker-0.log").read_text()


def train(words: list[str], root: Path, victim: str | None) -> tuple[int, str, float]:
    """Run the command, and kill Ray's ``victim`` on the way. Returns its status, its last lines, and its seconds after the kill."""
    log = root / "said"
    began = time.monotonic()
    run = root / words[words.index("--run") + 1]
    with open(log, "w") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("RAY_ADDRESS", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.train", *words], env=environment, stdout=file, stderr=file
        )
        if victim:
            while RunFolder.parse(run).newest_step() < AT:
                assert process.poll() is None and time.monotonic() - began < 200, log.read_text()
                time.sleep(0.05)
            family = psutil.Process(process.pid).children(recursive=True)
            next(child for child in family if child.name() == victim).kill()
        began = time.monotonic()
        status = process.wait(300)
    lines = [line for line in log.read_text().splitlines() if not line.startswith("step ")]
    return status, "\n  ".join(lines[-6:]), time.monotonic() - began


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False).parse_args()
    sys.exit(main())
