"""Peak memory of every process of a preparation: by size of the corpus, and by length of its longest document.

    python -m benchmarks.prepare_memory --source FOLDER --tokenizer bytes --megabytes 100 2000

The files of `--source` (any folder with *.txt) are linked under new names until there are so many megabytes; each corpus is
prepared by the real command, with two Ray workers and once more in one process. Then a corpus with one document of `--longest`
megabytes is prepared in the same way. Peaks are the kernel's own high-water marks of resident memory (VmHWM), read 20 times a
second. The factor is the growth of a process's peak through the long document, over that document's size.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import resident
from benchmarks.prepare_kills import kind_of
from common.errors import UserError
from pipelines.terminal import cli

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class BenchConfig:
    """Corpora to prepare."""

    source: str
    """Folder with *.txt files, searched with its folders."""
    tokenizer: str = "bytes"
    megabytes: tuple[int, ...] = (100, 2000)
    """Sizes of the corpora; none leaves this out."""
    longest: int = 100
    """Megabytes of the long document; 0 leaves it out."""
    workers: tuple[int, ...] = (2, 0)
    scratch: str = ""
    """Folder for corpora and stores, on the disk of `source` to be able to link; a temporary one by default."""


def texts(source: str) -> list[Path]:
    """All *.txt below a folder. Raises UserError where they hold nothing."""
    files = sorted(path.resolve() for path in Path(source).expanduser().rglob("*.txt"))
    if not any(path.stat().st_size for path in files):
        raise UserError(f"--source {source} has no *.txt file with text in it: name a folder that has")
    return files


def corpus_of(files: list[Path], megabytes: int, folder: Path) -> Path:
    """Links to the files over and over, until their sizes sum to so many megabytes."""
    (folder / "train").mkdir(parents=True)
    size = number = 0
    while size < megabytes * 1_000_000:
        path = files[number % len(files)]
        (folder / "train" / f"{number:06d}.txt").symlink_to(path)
        size += path.stat().st_size
        number += 1
    return folder


def long_document(files: list[Path], megabytes: int, folder: Path) -> Path:
    (folder / "train").mkdir(parents=True)
    with open(folder / "train" / "long.txt", "wb") as file:
        for path in itertools.cycle(files):
            if file.tell() >= megabytes * 1_000_000:
                break
            file.write(path.read_bytes())
    return folder


def peaks(corpus: Path, tokenizer: str, workers: int, store: Path) -> tuple[dict[str, float], float]:
    """Megabytes at the peak of the command and of its largest worker, and the seconds that it took."""
    words = ["text", "--source", str(corpus), "--store", str(store), "--splits", "train", "--tokenizer", tokenizer]
    start = time.monotonic()
    log = store.with_suffix(".log")
    with open(log, "wb") as errors:  # not a pipe, which nobody reads meanwhile and Ray's agents would hold open
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.prepare", *words, "--num-workers", str(workers)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
        )  # fmt: skip
    found: dict[str, float] = {}
    while process.poll() is None:
        members: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            command = psutil.Process(process.pid)
            members = [command, *command.children(recursive=True)]
        for member in members:
            with contextlib.suppress(psutil.Error, OSError, StopIteration):
                kind = kind_of(member, process.pid)
                if kind in ("command", "worker"):
                    found[kind] = max(found.get(kind, 0), resident("VmHWM", member.pid) / 1e6)
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(log.read_text("utf-8", "replace"))
    shutil.rmtree(store)
    return found, time.monotonic() - start


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, "Peak memory of a preparation.")
    files = texts(config.source)
    print(f"tokenizer {config.tokenizer}, {len(files)} files of {config.source}; {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(dir=config.scratch or None) as scratch:
        folder = Path(scratch)
        for workers in config.workers:
            base: dict[str, float] = {}
            for megabytes in config.megabytes:
                corpus = corpus_of(files, megabytes, folder / "corpus")
                found, seconds = peaks(corpus, config.tokenizer, workers, folder / "store")
                base = base or found
                shutil.rmtree(corpus)
                report(f"{megabytes:,} MB", workers, found, seconds)
            if config.longest:
                corpus = long_document(files, config.longest, folder / "corpus")
                found, seconds = peaks(corpus, config.tokenizer, workers, folder / "store")
                shutil.rmtree(corpus)
                report(f"one document of {config.longest} MB", workers, found, seconds)
                for kind in found:
                    if kind in base:
                        factor = (found[kind] - base[kind]) / config.longest
                        print(f"  the {kind}'s peak grew by {factor:.1f} × the document")


def report(what: str, workers: int, found: dict[str, float], seconds: float) -> None:
    words = ", ".join(f"{kind} {peak:,.0f} MB" for kind, peak in sorted(found.items()))
    print(f"{what}, {workers} workers: {words}; {seconds:,.0f} s", flush=True)


if __name__ == "__main__":
    cli.run(main)
