"""Rate of the whole preparation, against two bare processes that only run the same tokenizer on the same text in memory.

    python -m benchmarks.prepare_throughput --source FOLDER --tokenizer FOLDER/a.model [--copies 10]

`--source` is in the layout of PG-19; `--copies` repeats it under other ids. The preparation is the command's own function: it
reads, scans, tokenizes, writes, syncs and writes the manifest, with two Ray workers that a small preparation has started before
("Ray already up"). The bare processes have read their texts and loaded their tokenizer when their time begins, share the documents
evenly by size, and call `encode` document by document. Both in turn, `--rounds` times; the ratio is that of the medians. Beside it
stands the ratio of the CPU seconds of all processes (Ray's own included), which other work on the machine disturbs less.

With `--peers PYTHON`, an interpreter that has the peers of benchmarks/peers_data.txt, datatrove's tokenization and
`datasets.map` with two processes are run in the same turns on the same text. They encode with Hugging Face's tokenizers, we with
the library of `--tokenizer` (GPT-2: tiktoken), so that where these differ the rates compare the tokenizers first.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import describe
from data_prep.corpora.pg19 import Pg19
from data_prep.documents import SPLITS
from pipelines.cluster import ray_session
from pipelines.prepare import PrepareConfig, prepare
from pipelines.terminal import cli


@dataclass(frozen=True)
class BenchConfig:
    """What is prepared, and how often."""

    source: str = ""
    """Folder in the layout of PG-19."""
    tokenizer: str = "bytes"
    """As for `pipelines.prepare`."""
    copies: int = 1
    """How often the corpus is repeated."""
    rounds: int = 3
    """Times that each contender is run."""
    scratch: str = ""
    """Folder for the repeated corpus and the stores; a temporary one by default."""
    peers: str = ""
    """Python that has datatrove and datasets: compare with them. Needs `peer_tokenizer`."""
    peer_tokenizer: str = ""
    """A Hugging Face tokenizer.json of the same vocabulary."""


BARE = """
import sys, time
from data_prep.tokenizers import tokenizer_from_spec
start = time.perf_counter()
tokenizer = tokenizer_from_spec(sys.argv[1])
loading = time.perf_counter() - start
texts = [open(path, encoding="utf-8", newline="").read() for path in sys.stdin.readline().split("\\t")[:-1]]
tokenizer.encode(texts[0][:10000])
print(loading, flush=True)
sys.stdin.readline()
start = time.process_time()
tokens = sum(len(tokenizer.encode(text)) for text in texts)
print(tokens, time.process_time() - start, flush=True)
"""
"""One bare process: paths on the first line of its input; begins at the second."""


def repeat(source: Path, copies: int, target: Path) -> Path:
    """The corpus `copies` times over, each copy under ids of its own."""
    if copies == 1:
        return source
    for split in SPLITS:
        (target / split).mkdir(parents=True, exist_ok=True)
        for path in sorted((source / split).glob("*.txt")):
            for copy in range(copies):
                shutil.copyfile(path, target / split / f"{path.stem}{copy:02d}.txt")
    return target


def bare(paths: list[Path], tokenizer: str) -> tuple[float, int, float]:
    """Seconds, tokens and CPU seconds of two bare processes."""
    halves: list[list[Path]] = [[], []]
    sizes = [0, 0]
    for path in sorted(paths, key=lambda path: -path.stat().st_size):
        least = sizes.index(min(sizes))
        halves[least].append(path)
        sizes[least] += path.stat().st_size
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BARE, tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in halves
    ]
    for process, half in zip(processes, halves, strict=True):
        assert process.stdin and process.stdout
        process.stdin.write("\t".join(map(str, half)) + "\t\n")
        process.stdin.flush()
    loading = max(float(process.stdout.readline()) for process in processes if process.stdout)
    start = time.perf_counter()
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.stdout.readline().split() for process in processes if process.stdout]
    seconds = time.perf_counter() - start
    for process in processes:
        process.communicate()
    print(f"  (its tokenizer was loaded in {loading:.2f} s, not counted)")
    return seconds, sum(int(tokens) for tokens, _ in answers), sum(float(cpu) for _, cpu in answers)


def whole(source: Path, tokenizer: str, store: Path) -> tuple[float, int, float]:
    """Seconds, tokens and CPU seconds of a preparation into a new store, the Ray session being up."""
    config = PrepareConfig(Pg19(source=str(source)), store=str(store), tokenizer=tokenizer, num_workers=2)
    before, start = cpu_seconds(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        manifests = prepare(config)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    shutil.rmtree(store)
    return seconds, sum(manifest.totals.tokens for manifest in manifests.values()), cpu


def cpu_seconds() -> float:
    """Of this process and all below it: Ray and its workers."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, "Rate of a preparation against bare tokenizers.")
    with tempfile.TemporaryDirectory(dir=config.scratch or None) as scratch:
        source = repeat(Path(config.source).expanduser(), config.copies, Path(scratch) / "corpus")
        paths = [path for split in SPLITS for path in (source / split).glob("*.txt")]
        size = sum(path.stat().st_size for path in paths)
        print(f"{len(paths):,} documents, {size / 1e6:,.1f} MB, tokenizer {config.tokenizer}; {describe()}")
        small = Path(scratch) / "small"
        for split in SPLITS:
            (small / split).mkdir(parents=True)
            for i in range(4):
                (small / split / f"{i}.txt").write_text("A few words to begin with.\n" * 1000)
        ray_session.start(num_cpus=2)
        whole(small, config.tokenizer, Path(scratch) / "store")
        contenders = {
            "bare": lambda: bare(paths, config.tokenizer),
            "whole preparation": lambda: whole(source, config.tokenizer, Path(scratch) / "store"),
        }
        if config.peers:
            contenders |= {
                name: lambda name=name: peer(name, config, source, Path(scratch) / "peer")
                for name in ("datatrove", "datasets")
            }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        cpus: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(config.rounds):
            for name, run in contenders.items():
                taken, tokens, cpu = run()
                seconds[name].append(taken)
                cpus[name].append(cpu)
                rate = f"{size / 1e6 / taken:7.2f} MB/s"
                print(f"  {name:18} {taken:7.2f} s  {rate}  {tokens:,} tokens  {cpu:6.2f} s of CPU", flush=True)
        rates = {name: size / 1e6 / statistics.median(taken) for name, taken in seconds.items()}
        best = {name: min(taken) for name, taken in seconds.items()}
        median = {name: statistics.median(cpu) for name, cpu in cpus.items()}
        for name, rate in rates.items():
            ratios = f"{rate / rates['bare']:.3f} of bare (the best runs: {best['bare'] / best[name]:.3f}"
            print(f"{name:18} {rate:7.2f} MB/s, {ratios}; by CPU seconds: {median['bare'] / median[name]:.3f})")


def peer(name: str, config: BenchConfig, source: Path, output: Path) -> tuple[float, int, float]:
    """Seconds and tokens of another preparation, measured in its own process after its imports."""
    shutil.rmtree(output, ignore_errors=True)
    done = subprocess.run(
        [config.peers, str(Path(__file__).with_name("peer_prepare.py")), name, str(source), config.peer_tokenizer, str(output)],
        capture_output=True, text=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["tokens"], float("nan")


if __name__ == "__main__":
    cli.run(main)
