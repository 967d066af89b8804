"""Rate of reading: random segments of 4,096 tokens into batches [16, 4096] of int64, against numpy's memmap and three libraries.

    python -m benchmarks.reading --source FOLDER --peers /path/to/python

`--source` is in the layout of PG-19; its train split is prepared in bytes, and the same tokens are written for every contender.
Each runs in a process of its own, with one thread and the files in the page cache; all are asked in turn, `--rounds` times, for
the same random rows, and their checksums must agree. Times are medians. `--peers` is an interpreter that has what
benchmarks/peers_data.txt lists; without it only numpy is compared with.

Then it reads epochs: it opens the store anew, and reads every row once, or three times. One reader verifies record batches when it
first touches them, the other trusts the bytes. Both read random rows as above, and the batches of lanes that training reads
(inputs, targets, marks). The cost of a checksum alone over the same bytes is printed too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks.machine import describe
from data_prep.corpora.pg19 import Pg19
from data_prep.store import SegmentStore
from pipelines.prepare import PrepareConfig, prepare
from pipelines.terminal import cli

SCRIPT = Path(__file__).with_name("reading_contenders.py")
PEERS = ("datasets", "streaming", "litdata")
ROW = 4096


class Unverified(SegmentStore):
    """A store that trusts its bytes, to measure the cost of verification."""

    def _read_batch(self, part: int, batch: int) -> tuple[np.ndarray, ...]:
        block = self.manifest.parts[part].batches[batch]
        data = self._read(self._open_part(part), block.offset, block.bytes)
        rows = pa.ipc.read_record_batch(data, self._schema)
        return (rows.column("tokens").flatten().to_numpy(zero_copy_only=True),)


@dataclass(frozen=True)
class BenchConfig:
    """Stores to read, and how often."""

    source: str = ""
    """Folder in the layout of PG-19."""
    peers: str = ""
    """Python that has the libraries of benchmarks/peers_data.txt."""
    rounds: int = 7
    rows: int = 8000
    """Rows that each contender reads in a round."""
    scratch: str = ""
    """Folder for the files; a temporary one by default."""


class Contender:
    """A process that reads when it is asked."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1])}
        self.name = name
        self._log = open(folder / f"{name}.log", "w+")  # noqa: SIM115 (lives with the process)
        words = [python, str(SCRIPT), name, str(folder)]
        if name in PEERS:
            subprocess.run([*words, "make"], check=True, env=environment, stdout=self._log, stderr=self._log)
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._answer(until="ready")

    def ask(self, *words: object) -> dict[str, float]:
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer(until="{"))

    def _answer(self, until: str) -> str:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(until):
                return line
        self._log.seek(0)
        raise RuntimeError(f"{self.name} ended: {self._log.read()[-2000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, "Rate of reading random segments.")
    with tempfile.TemporaryDirectory(dir=config.scratch or None) as scratch:
        folder = Path(scratch)
        made = PrepareConfig(Pg19(source=config.source), store=str(folder / "store"), splits=("train",), num_workers=0)
        with contextlib.redirect_stdout(io.StringIO()):
            prepare(made)
        store = SegmentStore.open(folder / "store" / "pg19" / "train")
        with open(folder / "tokens.bin", "wb") as file:
            for document, length in enumerate(store.lengths.tolist()):
                file.write(store.tokens(document, 0, length // ROW * ROW).tobytes())
        print(f"{(folder / 'tokens.bin').stat().st_size // 2 // ROW:,} rows of {ROW:,} tokens; {describe()}")

        names = ["memmap", "throughline", *(PEERS if config.peers else ())]
        contenders = [Contender(name, config.peers if name in PEERS else sys.executable, folder) for name in names]
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(config.rounds + 1):
            answers = {contender.name: contender.ask("read", config.rows, turn) for contender in contenders}
            assert len({answer["checksum"] for answer in answers.values()}) == 1, (
                f"they read different tokens: {answers}"
            )
            for name, answer in answers.items():
                seconds[name] += [answer["seconds"]] * (turn > 0)
        rates = {name: config.rows / statistics.median(values) for name, values in seconds.items()}
        for name, rate in rates.items():
            print(f"{name:12} {rate:10,.0f} segments/s   ours is {rates['throughline'] / rate:6.2f} ×")
        for contender in contenders:
            contender.close()

        data = (folder / "tokens.bin").read_bytes()
        xxhash.xxh3_64_hexdigest(data)
        start = time.perf_counter()
        xxhash.xxh3_64_hexdigest(data)
        print(f"xxh3-64 of {len(data) / 1e6:,.1f} MB in memory: {1e3 * (time.perf_counter() - start):.2f} ms")
        for names in (("throughline", "unverified"), ("lanes", "unverified_lanes")):
            for count in (1, 3):
                epochs(names, folder, count, config.rounds)


def epochs(names: tuple[str, str], folder: Path, count: int, rounds: int) -> None:
    """Print the cost of verification in the first epochs: the first reader verifies, the second does not."""
    pair = [Contender(name, sys.executable, folder) for name in names]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for contender in pair if turn % 2 else pair[::-1]:
            answer = contender.ask("epoch", count, turn)
            seconds[contender.name].append(answer["seconds"] / answer["rows"])
    verified, trusted = (statistics.median(seconds[name]) for name in names)
    print(
        f"{count} epoch{'s' * (count > 1)}, {names[0]}: {1 / verified:,.0f} segments/s verified, {1 / trusted:,.0f} not: "
        f"verification is {100 * (1 - trusted / verified):.1f} % of the time"
    )
    for contender in pair:
        contender.close()


if __name__ == "__main__":
    cli.run(main)
