"""Shows a preparation while it runs, and what it has made.

    with progress(console, "written", "documents", count=40, size=2_000_000) as done:
        done(1, 50_000)                         # a document, and the bytes of its text
    print_summary(console, place, manifests, size, seconds)

Where there is no terminal, progress is a line every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import TextColumn

from common.places import Place
from data_prep.manifest import Manifest
from data_prep.sharding import Done
from data_prep.store import SegmentStore
from pipelines.terminal.cli import duration
from pipelines.terminal.output import bar
from pipelines.terminal.tables import counted, plain_table

LINE_SECONDS = 5.0
"""Seconds between two lines of progress where there is no terminal."""


@contextmanager
def progress(console: Console, verb: str, noun: str, count: int, size: int) -> Iterator[Done]:
    """A bar over the text of all splits on a terminal; elsewhere a line every few seconds.

    Args:
        verb, noun: what is done to what, as in "scanned 3 of 9 items".
        count: number of all items.
        size: bytes of all their text.
    """
    start = time.perf_counter()
    printed = start
    documents_done = 0
    bytes_done = 0
    with bar(verb, size, TextColumn("{task.fields[detail]}"), console=console) as update:
        update(detail=f"0 of {count:,} {noun}")

        def done(more_documents: int, more_bytes: int) -> None:
            nonlocal printed, documents_done, bytes_done
            documents_done += more_documents
            bytes_done += more_bytes
            now = time.perf_counter()
            rate = bytes_done / 1e6 / max(now - start, 1e-9)
            megabytes = f"{bytes_done / 1e6:,.1f} of {size / 1e6:,.1f} MB, {rate:,.1f} MB/s"
            counts = f"{documents_done:,} of {count:,} {noun}, {megabytes}"
            update(completed=bytes_done, detail=counts)
            if not console.is_terminal and now - printed > LINE_SECONDS:
                printed = now
                left = max(size - bytes_done, 0) / 1e6 / max(rate, 1e-9)
                console.print(f"  {verb} {counts}, {duration(left)} left")

        yield done


def print_summary(console: Console, place: Place, manifests: Mapping[str, Manifest], size: int, seconds: float) -> None:
    """Print a table of the prepared splits, their tokenizer, and the time.

    Args:
        place: the corpus's folder in the store.
        size: bytes of text that were read.
    """
    headings = ("split", "documents", "skipped", "bytes", "words", "tokens", "bytes/token", "tokens/word", "files/ids")
    rows = []
    for split, manifest in manifests.items():
        totals = manifest.totals
        skipped = sum(totals.skipped.values())
        numbers = (totals.documents, skipped, totals.bytes, totals.words, totals.tokens)
        ratios = (
            totals.bytes / max(totals.tokens, 1),
            totals.tokens / totals.words,
            manifest.file_bytes / max(manifest.token_bytes, 1),
        )
        counts = [f"{number:,}" for number in numbers]
        rows.append((split, *counts, *(f"{ratio:.2f}" for ratio in ratios)))
    console.print(plain_table(headings, rows))
    for split, manifest in manifests.items():
        reasons = [f"{count:,} {reason}" for reason, count in manifest.totals.skipped.items()]
        if reasons:
            console.print(f"{split}: skipped {', '.join(reasons)}")
        without = int(np.count_nonzero(SegmentStore.open(place / split).lengths == 0))
        if without:
            documents = counted(without, "document")
            console.print(f"{split}: {documents} without tokens, left out of training and evaluation")
    info = next(iter(manifests.values())).tokenizer
    lossless = all(manifest.tokenizer.lossless for manifest in manifests.values())
    in_samples = ", lossless in samples" if lossless else ""
    console.print(f"tokenizer {info.name}: {info.vocab_size:,} ids with begin-of-document{in_samples}")
    console.print(f"{size / 1e6:,.1f} MB in {duration(seconds)}, {size / 1e6 / seconds:,.1f} MB/s")
    if not lossless:
        console.print(f"warning: tokenizer {info.name} is not lossless: some text does not survive a round trip")
