"""Rate of the whole preparation, against two bare processes that only run the same tokenizer on the same text in memory.

    python -m benchmarks.prepare_throughput --source FOLDER --tokenizer FOLDER/a.model [--copies 10]
    python -m benchmarks.prepare_throughput --source FOLDER --tokenizer gpt2:FOLDER --lines 1000000

`--source` is in the layout of PG-19; `--copies` repeats it under other ids. The preparation is the command's own function: it
reads, scans, tokenizes, writes, syncs and writes the manifest, with two Ray workers that a small preparation has started before
("Ray already up"). The bare processes have read their texts and loaded their tokenizer when their time begins, share the documents
evenly by size, and call `encode` document by document. Both run in turn, `--rounds` times; the ratio is that of the medians. Beside
it stands the ratio of the CPU seconds of all processes (Ray's own included), which other work on the machine disturbs less.

With `--peers PYTHON`, an interpreter that has the peers of benchmarks/peers_data.txt, datatrove's tokenization and
`datasets.map` with two processes are run in the same turns on the same text. They encode with Hugging Face's tokenizers, we with
the library of `--tokenizer` (GPT-2: tiktoken), so that where these differ the rates compare the tokenizers first.

With `--lines N` the corpus is N short documents: the texts of `--source`, cut into lines of 160 characters, in two files of JSON
lines. The rates count the bytes of the texts, not those of the JSON around them. The report then adds the time for each document,
and the size of the store (parts, table of the documents and manifest) over that of its ids.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from benchmarks import results
from benchmarks.machine import describe
from common.errors import UserError
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.pg19 import Pg19
from data_prep.documents import SPLITS, Corpus
from pipelines.cluster import ray_session
from pipelines.prepare import PrepareConfig, prepare
from pipelines.terminal import cli

LINE = 160
"""Characters of a short document."""
SHARDS = 2
"""Files that hold the lines; each bare process reads one of them."""
COLUMNS = ("contender", "MB/s", "of bare, medians", "of bare, best runs", "of bare by CPU seconds", "µs per document")


@dataclass(frozen=True)
class BenchConfig:
    """Corpora to prepare, and how often."""

    source: str = ""
    """Folder in the layout of PG-19."""
    tokenizer: str = "bytes"
    """As for `pipelines.prepare`."""
    copies: int = 1
    """How often the corpus is repeated."""
    lines: int = 0
    """Prepare so many documents of 160 characters, cut from the texts of `source`; 0 prepares the texts as they are."""
    rounds: int = 3
    """Times that each contender is run."""
    scratch: str = ""
    """Folder for the repeated corpus and the stores; a temporary one by default."""
    peers: str = ""
    """Python that has datatrove and datasets: compare with them. Needs `peer_tokenizer`."""
    peer_tokenizer: str = ""
    """A Hugging Face tokenizer.json of the same vocabulary."""
    record: bool = False
    """Record the table in results/data/."""

    def __post_init__(self) -> None:
        for name, least in (("copies", 1), ("rounds", 1), ("lines", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} is {getattr(self, name)}: give {least} or more")
        if self.lines and (self.peers or self.peer_tokenizer):
            raise UserError(
                "--lines has no peers to compare with, which read books: leave out --peers and --peer-tokenizer"
            )
        if self.lines and self.copies > 1:
            raise UserError("--lines says itself how many documents there are: leave out --copies")


@dataclass(frozen=True)
class Measurement:
    """One run of a contender."""

    seconds: float
    tokens: int
    cpu_seconds: float
    store_over_ids: float = float("nan")
    """Bytes of the split's files over those of its ids, where there is a store."""


BARE = """
import json, sys, time
from data_prep.tokenizers import tokenizer_from_spec
start = time.perf_counter()
tokenizer = tokenizer_from_spec(sys.argv[1])
loading = time.perf_counter() - start
texts = []
for path in sys.stdin.readline().split("\\t")[:-1]:
    with open(path, encoding="utf-8", newline="") as file:
        texts += [json.loads(line)["text"] for line in file] if path.endswith(".jsonl") else [file.read()]
tokenizer.encode(texts[0][:10000])
print(loading, flush=True)
sys.stdin.readline()
start = time.process_time()
tokens = sum(len(tokenizer.encode(text)) for text in texts)
print(tokens, time.process_time() - start, flush=True)
"""
"""Script of one bare process. The first line of its input has the paths; at the second line it begins."""


@dataclass(frozen=True)
class Task:
    """A corpus to prepare."""

    corpus: Corpus
    folder: Path
    splits: tuple[str, ...]
    files: list[Path]
    """The files that hold its texts."""
    documents: int
    bytes: int
    """UTF-8 bytes of the texts."""


def texts_in(source: Path) -> list[Path]:
    """The files of texts below a folder in the layout of PG-19, in the order of their names."""
    return sorted(path for split in SPLITS for path in (source / split).glob("*.txt"))


def books(source: Path, copies: int, target: Path) -> Task:
    """The texts of a folder as they are, `copies` times over."""
    source = repeat(source, copies, target)
    files = texts_in(source)
    return Task(Pg19(source=str(source)), source, SPLITS, files, len(files), sum(path.stat().st_size for path in files))


def short_documents(source: Path, count: int, target: Path) -> Task:
    """So many documents of LINE characters, cut from the texts of a folder, as JSON lines in SHARDS files."""
    target.mkdir(parents=True)
    texts = itertools.islice(pieces(source), count)
    files = [target / f"train-{i}.jsonl" for i in range(SHARDS)]
    size = 0
    for i, path in enumerate(files):
        share = count * (i + 1) // SHARDS - count * i // SHARDS
        with open(path, "w", encoding="utf-8") as file:
            for text in itertools.islice(texts, share):
                size += len(text.encode())
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return Task(JsonLines(source=str(target)), target, ("train",), files, count, size)


def pieces(source: Path) -> Iterator[str]:
    """The texts of a folder cut into lines of LINE characters, over and over; any white space becomes one blank.

    Raises UserError where no text is that long.
    """
    found = True
    while found:
        found = False
        for path in texts_in(source):
            text = " ".join(path.read_text("utf-8").split())
            for start in range(0, len(text) - LINE + 1, LINE):
                found = True
                yield text[start : start + LINE]
    raise UserError(f"--source {source} has no text of {LINE} characters: name a folder in the layout of PG-19")


def few_words(folder: Path) -> Path:
    """A small folder in the layout of PG-19."""
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        for i in range(4):
            (folder / split / f"{i}.txt").write_text("A few words to begin with.\n" * 1000)
    return folder


def task_of(config: BenchConfig, source: Path, target: Path) -> Task:
    """The work that the options ask for."""
    if config.lines:
        return short_documents(source, config.lines, target)
    return books(source, config.copies, target)


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


def bare(paths: list[Path], tokenizer: str) -> Measurement:
    """Measure two bare processes side by side."""
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
    return Measurement(seconds, sum(int(tokens) for tokens, _ in answers), sum(float(cpu) for _, cpu in answers))


def whole(task: Task, tokenizer: str, store: Path, num_workers: int = 2) -> Measurement:
    """Measure a preparation into a new store, which is then removed. The Ray session of its workers is already up."""
    config = PrepareConfig(
        task.corpus, store=str(store), tokenizer=tokenizer, splits=task.splits, num_workers=num_workers
    )
    before = cpu_seconds()
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        manifests = prepare(config)
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - before
    files = [path for split in task.splits for path in (config.folder / split).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    ids = sum(manifest.token_bytes for manifest in manifests.values())
    shutil.rmtree(store)
    return Measurement(seconds, sum(manifest.totals.tokens for manifest in manifests.values()), cpu, size / ids)


def cpu_seconds() -> float:
    """CPU seconds of this process and all its children: Ray and its workers."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, "Rate of a preparation against bare tokenizers.")
    source = Path(config.source).expanduser()
    if not config.source:
        raise UserError("--source is not given: name a folder in the layout of PG-19")
    if not texts_in(source):
        raise UserError(
            f"--source {config.source} has no .txt file in train, validation or test: name a folder in the layout of PG-19"
        )
    recorder = results.Recorder("data", "benchmarks.prepare_throughput", argv, config.record)
    with tempfile.TemporaryDirectory(dir=config.scratch or None) as folder:
        scratch = Path(folder)
        task = task_of(config, source, scratch / "corpus")
        print(f"{task.documents:,} documents, {task.bytes / 1e6:,.1f} MB, tokenizer {config.tokenizer}; {describe()}")
        first = replace(config, copies=1, lines=min(config.lines, 200))
        ray_session.start(num_cpus=2)
        whole(task_of(first, few_words(scratch / "words"), scratch / "small"), config.tokenizer, scratch / "store")
        contenders: dict[str, Callable[[], Measurement]] = {
            "bare": partial(bare, task.files, config.tokenizer),
            "whole preparation": partial(whole, task, config.tokenizer, scratch / "store"),
        }
        if config.peers:
            for name in ("datatrove", "datasets"):
                contenders[name] = partial(peer, name, config, task.folder, scratch / "peer")
        runs: dict[str, list[Measurement]] = {name: [] for name in contenders}
        for _ in range(config.rounds):
            for name, run in contenders.items():
                measured = run()
                runs[name].append(measured)
                rate = f"{task.bytes / 1e6 / measured.seconds:7.2f} MB/s"
                print(
                    f"  {name:18} {measured.seconds:7.2f} s  {rate}  {measured.tokens:,} tokens  "
                    f"{measured.cpu_seconds:6.2f} s of CPU",
                    flush=True,
                )
        rows = report(task, runs, short=config.lines > 0)
        recorder.table("Short documents" if config.lines else "Throughput of prepare", COLUMNS, rows)


def report(task: Task, runs: dict[str, list[Measurement]], short: bool) -> list[tuple[results.Cell, ...]]:
    """Print a line for each contender, with its cost for each document where documents are short. Returns their rows under
    COLUMNS.
    """
    rows: list[tuple[results.Cell, ...]] = []
    median = {name: statistics.median(run.seconds for run in some) for name, some in runs.items()}
    best = {name: min(run.seconds for run in some) for name, some in runs.items()}
    cpu = {name: statistics.median(run.cpu_seconds for run in some) for name, some in runs.items()}
    for name, some in runs.items():
        rate = f"{task.bytes / 1e6 / median[name]:7.2f} MB/s"
        ratios = f"{median['bare'] / median[name]:.3f} of bare (the best runs: {best['bare'] / best[name]:.3f}"
        print(f"{name:18} {rate}, {ratios}; by CPU seconds: {cpu['bare'] / cpu[name]:.3f})")
        if short:
            each = 1e6 / task.documents
            print(f"{'':18} {each * median[name]:.1f} µs per document, {each * cpu[name]:.1f} µs of CPU")
        if short and not math.isnan(some[0].store_over_ids):
            print(f"{'':18} the store has {some[0].store_over_ids:.2f} × the bytes of its ids")
        by_cpu = "" if math.isnan(cpu[name]) else round(cpu["bare"] / cpu[name], 3)
        per_document = round(1e6 * median[name] / task.documents, 1)
        of_bare = round(median["bare"] / median[name], 3), round(best["bare"] / best[name], 3)
        rows.append((name, round(task.bytes / 1e6 / median[name], 2), *of_bare, by_cpu, per_document))
    return rows


def peer(name: str, config: BenchConfig, source: Path, output: Path) -> Measurement:
    """Measure another library's preparation in a process of its own, after its imports."""
    shutil.rmtree(output, ignore_errors=True)
    done = subprocess.run(
        [config.peers, str(Path(__file__).with_name("peer_prepare.py")), name, str(source), config.peer_tokenizer, str(output)],
        capture_output=True, text=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Measurement(result["seconds"], result["tokens"], float("nan"))


if __name__ == "__main__":
    cli.run(main)
