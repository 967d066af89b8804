"""Look into a prepared split: its documents and their lengths, a decoded sample, and how full the lanes would be.

    python -m pipelines.inspect runs/store/pg19/validation
    python -m pipelines.inspect runs/store/wikitext/train --segment-length 4096 --block 512 128 --lanes 8

The histogram of the lengths is written as a PNG beside the store, in the working directory where the store is read-only or in a
bucket, or where --png says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console

from common.checks import check_options
from common.errors import UserError
from common.places import Place
from data_prep.inspection import fill, length_quantiles, passages
from data_prep.segments import rows_of
from data_prep.store import SegmentStore
from pipelines.reports.files import COLOURS, save_figure
from pipelines.terminal import cli
from pipelines.terminal.output import lines, printable
from pipelines.terminal.tables import counted, plain_table


@dataclass(frozen=True)
class InspectConfig:
    """A split to look into."""

    split: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SPLIT")]
    """Folder of a prepared split, STORE/CORPUS/SPLIT; local or any URI that pyarrow.fs opens."""
    lanes: int = 8
    """Lanes of the global batch, for their fill."""
    segment_length: int = 4096
    """Tokens of a lane in one step."""
    block: tuple[int, ...] = (512, 128)
    """Blocks at whose boundaries documents may begin; each is shown."""
    documents: int = 3
    """Documents that the sample shows, each once; 0 for none."""
    sample_tokens: int = 60
    """Tokens of a document's text in the sample."""
    png: Path | None = None
    """The histogram's file, which ends in .png; by default beside the store, or in the working directory where the store is remote
    or read-only."""

    def __post_init__(self) -> None:
        if not self.split:
            raise UserError("SPLIT is empty: give the folder of a prepared split, STORE/CORPUS/SPLIT")
        check_options(self, lanes=1, segment_length=1, sample_tokens=1, documents=0)
        for block in self.block:
            if block < 1 or self.segment_length % block:
                raise UserError(
                    f"a block of {block} tokens does not divide segments of {self.segment_length}: give another --block or "
                    "--segment-length"
                )
        if self.png is not None and self.png.suffix.lower() != ".png":
            raise UserError(f"--png is {self.png}: it must end in .png")


def main(argv: list[str]) -> None:
    """Print what a prepared split holds."""
    config = cli.parse(InspectConfig, argv, __doc__)
    store = SegmentStore.open(config.split)
    path = config.png or default_png(store)
    if not Place.parse(path).is_writable():
        raise UserError(f"{cli.shown(path)} cannot be written: name a file for the histogram with --png")
    console = lines()
    describe(console, store)
    console.print(
        f"\nfill of {config.lanes} lanes over one epoch, segments of {config.segment_length:,} tokens, in % of all tokens read"
    )
    smaller = sorted(set(config.block) - {config.segment_length}, reverse=True)
    blocks = {f"at every block of {block:,} tokens": block for block in smaller}
    blocks["at a segment's start alone"] = config.segment_length
    rows = []
    for where, block in blocks.items():
        share = fill(store.lengths, config.lanes, config.segment_length, block)
        rows.append((where, f"{share:.2%}", f"{1 - share:.2%}"))
    console.print(plain_table(("documents begin", "fill", "padding"), rows))
    if config.documents:
        show_sample(console, store, config)
    plot_lengths(store, path)
    console.print(f"\nlengths of the documents: {cli.shown(path)}")


def describe(console: Console, store: SegmentStore) -> None:
    """Counts, lengths and tokenizer, in words."""
    manifest = store.manifest
    totals = store.manifest.totals
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in totals.skipped.items())
    console.print(f"{store.folder}: {manifest.corpus}, split {manifest.split}, fingerprint {manifest.fingerprint[:12]}")
    console.print(
        f"  {counted(totals.documents, 'document')} in {counted(len(manifest.parts), 'part')}"
        + (f"; skipped {skipped}" if skipped else "")
    )
    console.print(f"  {totals.bytes:,} bytes, {totals.words:,} words, {totals.tokens:,} tokens")
    console.print(
        f"  {totals.bytes / max(totals.tokens, 1):.2f} bytes/token, {totals.tokens / max(totals.words, 1):.2f} tokens/word"
    )
    if totals.labels is not None:
        share = totals.labels / max(totals.tokens, 1)
        console.print(
            f"  {totals.labels:,} of its tokens are labelled ({share:.1%}): there the label is predicted, not the next token"
        )
    tokenizer = manifest.tokenizer
    lossless = "lossless in samples" if manifest.tokenizer.lossless else "not lossless"
    console.print(f"  tokenizer {tokenizer.name}: {tokenizer.vocab_size:,} ids with begin-of-document, {lossless}")
    console.print(
        f"  {rows_of(manifest.segment_length)}: {manifest.file_bytes:,} bytes of files, "
        f"{manifest.file_bytes / max(manifest.token_bytes, 1):.2f} × the ids"
    )
    lengths = ", ".join(f"{name} {value:,} tokens" for name, value in length_quantiles(store.lengths).items())
    console.print(f"  length of a document: {lengths}")
    without = int(np.count_nonzero(store.lengths == 0))
    if without:
        console.print(f"  {counted(without, 'document')} without tokens, left out of training and evaluation")


def show_sample(console: Console, store: SegmentStore, config: InspectConfig) -> None:
    """Where documents begin on the first lane, and how the one before each ends. No document is shown twice."""
    block = config.block[0] if config.block else config.segment_length
    most = min(config.documents, int(np.count_nonzero(store.lengths)))
    console.print(f"\nthe first lane, in blocks of {block:,} tokens")
    shown: set[int] = set()
    middle = again = 0
    is_again = False
    for run in passages(store, config.lanes, config.segment_length, block, config.sample_tokens):
        if run.offset == 0:
            is_again = run.document in shown
        if is_again:  # in a later epoch
            again += 1
            continue
        if run.offset and run.offset + run.tokens < run.of:
            middle += 1
            continue
        if middle:
            console.print(f"… {counted(middle, 'segment')} of the same document")
        if again:
            console.print(f"… {counted(again, 'passage')} of documents shown above")
        middle = again = 0
        title = printable(run.title).replace("\n", " ")[:80]
        mark, verb = ("▶", "begins") if run.offset == 0 else ("…", "ends")
        console.print(
            f"{mark} step {run.step}, token {run.column:,} of the segment: document {run.document:,}, {title!r}, {verb} "
            f"({run.tokens:,} of its {run.of:,} tokens here)"
        )
        console.print("\n".join("    " + line for line in printable(run.text).split("\n")))
        shown.add(run.document)
        if len(shown) == most:
            return


def default_png(store: SegmentStore) -> Path:
    """`<store>-<corpus>-<split>-lengths.png` beside the store; in the working directory where nothing can be written there."""
    corpus = store.place.parent
    root = store.place.parent.parent
    name = f"{root.name}-{corpus.name}-{store.place.name}-lengths.png"
    beside = root.parent
    return Path(beside.path) / name if beside.is_local and beside.is_writable() else Path(name)


def plot_lengths(store: SegmentStore, path: Path) -> None:
    """Histogram of the documents' lengths, in documents and in tokens, over a logarithmic axis."""
    from matplotlib.figure import Figure  # takes a third of a second

    lengths = np.sort(store.lengths[store.lengths > 0])
    edges = np.geomspace(lengths.min() * 0.95, lengths.max() * 1.05, min(40, 8 + len(lengths)))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.hist(lengths, bins=edges.tolist(), color=COLOURS[0], label="documents")
    axes.set_xscale("log")
    axes.set_xlabel("tokens of a document")
    axes.set_ylabel("documents")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    median = length_quantiles(lengths)["median"]
    axes.axvline(median, color="black", linestyle="--", label=f"median {median:,}")
    share = axes.twinx()
    label = "share of all tokens in documents up to this length (right)"
    share.plot(lengths, np.cumsum(lengths) / lengths.sum(), color=COLOURS[1], label=label)
    share.set_ylim(0, 1.02)
    share.yaxis.set_major_formatter("{x:.0%}")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    manifest = store.manifest
    counts = f"{counted(len(store.lengths), 'document')}, {manifest.totals.tokens:,} tokens"
    axes.set_title(f"{manifest.corpus}, {manifest.split}: {counts} ({manifest.tokenizer.name})")
    save_figure(figure, path, dpi=120)


if __name__ == "__main__":
    cli.run(main)
