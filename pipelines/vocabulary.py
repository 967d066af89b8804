"""Compare tokenizers on one split of a corpus, as the block-recurrent paper's Table 5 does: size, tokens, tokens per word, bytes
per token, and whether the text comes back.

    python -m pipelines.vocabulary pg19 --source FOLDER --split validation --tokenizers bytes gpt2:FOLDER sentencepiece:4000

A tokenizer is written as for `pipelines.prepare`; one that is to be trained is trained on the corpus's train split. The table is
printed, written to vocabulary.csv, and logged to MLflow with the figures of every tokenizer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import DownloadColumn

from data_prep.corpora import CORPORA
from data_prep.documents import SPLITS, Skipped, sources_of
from data_prep.errors import UserError, nearest
from data_prep.manifest import digest
from data_prep.plan import SplitScan, sample_documents, sample_lines
from data_prep.sharding import scan_splits
from data_prep.tokenizers import Tokenizer, Training, shortfall, tokenizer_from_spec, train_sentencepiece
from data_prep.vocabulary import VocabularyRow, study
from pipelines.config.run import TrackingConfig
from pipelines.reports.files import write_csv
from pipelines.terminal import cli
from pipelines.terminal.output import bar, lines
from pipelines.terminal.tables import plain_table
from pipelines.tracking import Tracker

COLUMNS = ("tokenizer", "size", "tokens", "tokens/word", "bytes/token", "lossless")
FIGURES = ("size", "tokens", "lossless", "tokens_per_word", "bytes_per_token")
"""Of each tokenizer, in MLflow."""


@dataclass(frozen=True)
class VocabularyConfig:
    """Which tokenizers are compared, and on what."""

    corpus: tyro.conf.OmitArgPrefixes[Any]
    tokenizers: tuple[str, ...] = ("bytes",)
    """As --tokenizer of pipelines.prepare: bytes, sentencepiece:PIECES, gpt2:FOLDER, the path of a model, and so on."""
    split: str = "validation"
    """Split that they are compared on."""
    speed: bool = False
    """Show MB/s of each in one process too."""
    root: str = "runs"
    """Folder of all runs: the table's folder is made in it."""
    tracking: TrackingConfig = field(default_factory=lambda: TrackingConfig(system_metrics="off"))

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UserError(f"unknown split {self.split!r}: {nearest(self.split, SPLITS)}")
        if not self.tokenizers:
            raise UserError("tokenizers is empty: name one or more, such as bytes sentencepiece:2048")


def commands() -> dict[str, VocabularyConfig]:
    """What the command line offers for each corpus."""
    return {name: VocabularyConfig(corpus()) for name, corpus in CORPORA.items()}


def main(argv: list[str]) -> None:
    config = cli.parse_preset(commands(), argv, "Compare tokenizers on one split of a corpus.", noun="corpus")
    asked = [tokenizer_from_spec(spec) for spec in config.tokenizers]
    sources = sources_of(config.corpus, (config.split,))[config.split]
    if not sources:
        raise UserError(f"split {config.split} of {config.corpus.name} holds no document: choose another --split")
    console = lines()
    tokenizers = trained(asked, config, console)
    documents = (item for item in config.corpus.read(sources) if not isinstance(item, Skipped))
    with bar("tokenizing", sum(source.bytes for source in sources), DownloadColumn(), console=console) as update:
        rows = study(tokenizers, documents, lambda size: update(advance=size))
    if not rows[0].words:
        raise UserError(f"split {config.split} of {config.corpus.name} holds no word: choose another --split")
    first = rows[0]
    console.print(
        f"{config.corpus.name}, {config.split}: {first.documents:,} documents, {first.bytes:,} bytes, {first.words:,} words"
    )
    console.print(plain_table((*COLUMNS, *["MB/s"] * config.speed), [cells(row, config.speed) for row in rows]))
    path = track(config, tokenizers, rows)
    console.print(f"table: {cli.shown(path)}")


def trained(asked: list[Tokenizer | Training], config: VocabularyConfig, console: Console) -> list[Tokenizer]:
    """The tokenizers themselves; those to be trained are trained on the train split, which is read for it once."""
    scan: SplitScan | None = None
    made: list[Tokenizer] = []
    for one in asked:
        if isinstance(one, Training):
            if scan is None:
                scan = scan_splits(config.corpus, sources_of(config.corpus, ("train",)), 0, lambda *_: None)["train"]
            sample = sample_documents(scan)
            console.print(f"training {one.spec} on {sum(d.bytes for d in sample) / 1e6:,.1f} MB of the train split")
            tokenizer = train_sentencepiece(one, scan.inputs["content"], sample_lines(scan, sample))
            if sentence := shortfall(one, tokenizer):
                console.print(f"warning: {sentence}")
            made.append(tokenizer)
        else:
            made.append(one)
    return made


def cells(row: VocabularyRow, speed: bool) -> list[str]:
    """A row of the table that is printed."""
    figures = [f"{row.size:,}", f"{row.tokens:,}", f"{row.tokens_per_word:.4f}", f"{row.bytes_per_token:.3f}"]
    rate = [f"{row.megabytes_per_second:.1f}"] if speed else []
    return [row.name, *figures, "yes" if row.lossless else "no", *rate]


def track(config: VocabularyConfig, tokenizers: list[Tokenizer], rows: list[VocabularyRow]) -> Path:
    """Write the table and log it. The same study again continues the same run. Returns the table's path."""
    study_of = digest([config.corpus.name, config.corpus.options(), rows[0].bytes, [t.fingerprint for t in tokenizers]])
    root = Path(config.root).expanduser().absolute()
    folder = root / "vocabulary" / f"{config.corpus.name}-{config.split}-{study_of[:8]}"
    table = [
        {
            "tokenizer": row.name,
            "size": row.size,
            "words": row.words,
            "bytes": row.bytes,
            "tokens": row.tokens,
            "tokens_per_word": f"{row.tokens_per_word:.6f}",
            "bytes_per_token": f"{row.bytes_per_token:.6f}",
            "lossless": row.lossless,
        }
        for row in rows
    ]
    path = write_csv(table, folder / "vocabulary.csv")
    tracker = Tracker.start(
        config.tracking,
        root=root,
        run_folder=folder,
        run_name=f"vocabulary {config.corpus.name} {config.split}",
        params={"corpus": config.corpus.name, "split": config.split, "tokenizers": " ".join(row.name for row in rows)},
        tags={"stage": "vocabulary"},
    )
    metrics: dict[str, float] = {}
    for row in rows:
        name = re.sub(r"[^\w./ -]", "-", row.name)
        metrics |= {f"{figure}/{name}": float(getattr(row, figure)) for figure in FIGURES}
    tracker.log(metrics, step=0)
    tracker.log_artifact(path)
    tracker.finish()
    return path


if __name__ == "__main__":
    cli.run(main)
