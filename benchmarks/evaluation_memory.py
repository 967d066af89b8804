"""Peak memory of `pipelines.evaluate` over the length of a document.

    python -m benchmarks.evaluation_memory runs/evaluation_memory               about two minutes on two cores
    python -m benchmarks.evaluation_memory runs/evaluation_memory --megabytes 1 30

A small rec is trained for two steps on bytes. Each document, a text of random words, is a whole test split. One process scores it
with State carried and cleared. All the while its memory is measured without pages of files, since the kernel can take back the
store's. The floor is the model, torch, and the positions that are kept (scoring.MAX_POSITIONS).
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from benchmarks import machine
from pipelines import prepare, train
from pipelines.terminal import cli

TINY = shlex.split("""
    small-rec --model.layers 2 --model.recurrent-layers 2 --model.d-model 16 --model.heads 2 --model.head-dim 8 --model.mlp-dim 32
    --model.window 64 --model.states 8 --data.lanes 4 --data.segment-length 512 --steps 2 --schedule.warmup-steps 1
    --validate-every 0 --num-workers 0 --use-gpu no --tracking.backend none
""")


@dataclass(frozen=True)
class BenchConfig:
    """Documents to measure, and their folder."""

    folder: tyro.conf.Positional[Path]
    """Folder for texts, stores and the run."""
    megabytes: tuple[float, ...] = (1.0, 4.0, 16.0)
    """Sizes of the document, in megabytes."""


def write_text(path: Path, size: int, rng: np.random.Generator) -> None:
    """Write about ``size`` bytes of random words of four letters."""
    letters = rng.integers(97, 123, (size // 5, 5), dtype=np.uint8)
    letters[:, 4] = 32
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(letters.tobytes())


def measure(config: BenchConfig, megabytes: float) -> int:
    """Peak memory of an evaluation, in bytes."""
    rng = np.random.default_rng(0)
    folder = config.folder.absolute() / f"{megabytes:g}"
    for split, size in (("train", 100_000), ("validation", 10_000), ("test", int(1e6 * megabytes))):
        write_text(folder / "text" / split / "document.txt", size, rng)
    store = str(folder / "store")
    prepare.main(
        ["text", "--source", str(folder / "text"), "--tokenizer", "bytes", "--store", store, "--num-workers", "0"]
    )
    where = ["--data.corpus", "text", "--data.store", store, "--root", str(folder), "--run", "rec"]
    train.main([*TINY, *where])
    words = [str(folder / "rec"), "--num-workers", "1", "--clear", "states", "--tracking.backend", "none"]
    most = 0
    with subprocess.Popen([sys.executable, "-m", "pipelines.evaluate", *words], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):  # the process has ended
                most = max(most, machine.resident("RssAnon", process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return most


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    found = [(megabytes, measure(config, megabytes)) for megabytes in config.megabytes]
    print(machine.describe())
    least = found[0][1]
    for megabytes, most in found:
        print(f"{megabytes:g} MB in one document: {most / 1e6:.0f} MB ({most / least:.3f})")


if __name__ == "__main__":
    cli.run(main)
