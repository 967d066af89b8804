"""Measures a command's start-up: CPU and wall time of `--help` and of refusals, the least of several.

    python -m benchmarks.start_up                           # all commands of this tree
    python -m benchmarks.start_up --times 3 train tune      # some of them
    (cd OTHER && python BENCHMARKS/start_up.py)             # those of another tree: the working directory's

The floor of a command that must know a model's config is `python -c "import torch"`, which is measured beside them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

UNKNOWN = "--zzz"
NOWHERE = "nowhere/at-all"
WORDS = {
    "prepare": ["--help", "python-source --help", f"python-source {UNKNOWN}", "python-sourc"],
    "inspect": ["--help", UNKNOWN, NOWHERE],
    "verify": ["--help", UNKNOWN, NOWHERE],
    "vocabulary": ["--help", "python-source --help", f"python-source {UNKNOWN}", "python-sourc"],
    "train": ["--help", "demo-rec --help", f"demo-rec {UNKNOWN}", "demo-re", f"demo-rec --data.store {NOWHERE}"],
    "tune": ["--help", "lr --help", f"lr {UNKNOWN}", "lr --preset smal-rec", f"lr --data.store {NOWHERE}"],
    "doctor": ["--help", UNKNOWN, NOWHERE],
    "evaluate": ["--help", UNKNOWN, NOWHERE],
    "compare": ["--help", UNKNOWN, NOWHERE],
    "tokens": ["--help", UNKNOWN, NOWHERE],
    "paper": ["--help", f"block-recurrent table-1 {UNKNOWN}", "block-recurren table-1"],
    "generate": ["--help", UNKNOWN, NOWHERE],
    "continuations": ["--help", UNKNOWN, NOWHERE],
    "embed": ["--help", f"{NOWHERE} --output out {UNKNOWN}", f"{NOWHERE} --output out"],
    "export": ["--help", UNKNOWN, f"{NOWHERE} out"],
    "preflight": ["--help", f"demo-rec {UNKNOWN}", "demo-re"],
    "run": ["--help", f"demo-rec {UNKNOWN}", "demo-re"],
    "completion": ["--help", "bashh"],
    "ui": ["--help", UNKNOWN, f"--root {NOWHERE}"],
}
"""Arguments for each command: `--help`, and one of each kind that it refuses."""


def measured(command: list[str], times: int, folder: str) -> tuple[float, float, int]:
    """The least CPU seconds and the least wall seconds of a command, and its exit status."""
    cpu = []
    wall = []
    status = 0
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "COLUMNS": "120"}
    for _ in range(times):
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env=environment
        )
        _, code, used = os.wait4(process.pid, 0)
        status = os.waitstatus_to_exitcode(code)
        wall.append(time.perf_counter() - began)
        cpu.append(used.ru_utime + used.ru_stime)
    return min(cpu), min(wall), status


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("commands", nargs="*", default=list(WORDS))
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    print(f"{'command':48} {'CPU s':>6} {'wall s':>7} {'status':>7}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [("import torch", [sys.executable, "-c", "import torch"])]
        rows += [
            (f"{name} {words}", [sys.executable, "-m", f"pipelines.{name}", *words.split()])
            for name in given.commands
            for words in WORDS[name]
        ]
        for title, command in rows:
            cpu, wall, status = measured(command, given.times, folder)
            print(f"{title:48} {cpu:6.2f} {wall:7.2f} {status:7}", flush=True)


if __name__ == "__main__":
    main()
