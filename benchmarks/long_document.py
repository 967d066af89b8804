"""Tokenizes a long document in pieces, and at once by the same library: MB per CPU second, and memory per byte of text.

    python -m benchmarks.long_document BOOK.txt --megabytes 20 --tokenizers sentencepiece.model gpt2:FOLDER

Each way is measured in a process of its own, after the document, the file repeated, is loaded. The rate is the best of the runs.
The ids are compared: those of a unigram model may differ on the whole text, where sums in 32 bits round.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.machine import resident
from data_prep.tokenizers import (
    GPT2Tokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerTraining,
    tokenizer_from_spec,
)
from pipelines.terminal import cli


@dataclass(frozen=True)
class BenchConfig:
    """The document and the tokenizers to measure."""

    text: tyro.conf.Positional[Path]
    """UTF-8 text that is repeated until it has the document's size."""
    tokenizers: tuple[str, ...]
    """As --tokenizer of pipelines.prepare."""
    megabytes: int = 20
    """Size of the document, in megabytes."""
    runs: int = 2
    """Runs of each, one after the other."""


def whole(tokenizer: Tokenizer) -> Callable[[str], np.ndarray]:
    """The library's own call on the whole text."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer._processor.encode_as_numpy
    if isinstance(tokenizer, GPT2Tokenizer):
        encoding = tokenizer._encoding
        table = tokenizer._table
        return lambda text: table[np.array(encoding.encode_ordinary(text))]
    return tokenizer.encode


def document(path: Path, megabytes: int) -> tuple[str, int]:
    """The file over and over, and its bytes. A character that the end cuts in two is left out."""
    data = path.read_bytes()
    size = megabytes * 1_000_000
    text = (data * (size // len(data) + 1))[:size].decode(errors="ignore")
    return text, size


def measure(spec: str, way: str, path: Path, megabytes: int, runs: int) -> tuple[float, float, Any]:
    """MB per CPU second, peak bytes of memory beyond the document for each byte of text, and the ids."""
    tokenizer = tokenizer_from_spec(spec)
    assert not isinstance(tokenizer, TokenizerTraining)
    text, size = document(path, megabytes)
    encode = tokenizer.encode if way == "pieces" else whole(tokenizer)
    encode(text[:10_000])
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present memory
    before = resident("VmHWM")
    ids = np.empty(0)
    seconds = float("inf")
    for _ in range(runs):
        del ids
        start = time.process_time()
        ids = encode(text)
        seconds = min(seconds, time.process_time() - start)
    peak = resident("VmHWM") - before
    return size / 1e6 / seconds, peak / size, np.asarray(ids, dtype=np.int32)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    context = multiprocessing.get_context("spawn")
    for spec in config.tokenizers:
        results = {}
        for way in ("whole", "pieces"):
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                results[way] = pool.submit(measure, spec, way, config.text, config.megabytes, config.runs).result()
        rates = ", ".join(
            f"{way} {rate:.1f} MB/s and {peak:.1f} bytes/byte" for way, (rate, peak, _) in results.items()
        )
        one = results["whole"][2]
        other = results["pieces"][2]
        same = "same ids" if np.array_equal(one, other) else f"{len(one):,} and {len(other):,} tokens, not the same ids"
        print(f"{Path(spec.rpartition(':')[2]).name}, {config.megabytes} MB: {rates}; {same}", flush=True)


if __name__ == "__main__":
    cli.run(main)
