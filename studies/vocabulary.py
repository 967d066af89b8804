"""Compare tokenizers on one split of a corpus, as the block-recurrent paper's Table 5 does: size, tokens, tokens per word, bytes
per token, and whether the text comes back.

    python -m pipelines.vocabulary pg19 --source FOLDER --split validation --tokenizers bytes gpt2:FOLDER sentencepiece:4000

A tokenizer is written as for `pipelines.prepare`; one that is to be trained is trained on the corpus's train split. The table is
printed, written to vocabulary.csv, and logged to MLflow with the metrics of every tokenizer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import DownloadColumn

from common.errors import UserError
from common.files import digest
from common.places import Place
from data_prep.corpora import CORPORA
from data_prep.cutting import CutsByTokens
from data_prep.documents import Labelled, Skipped, check_split, sources_of
from data_prep.scanning import SplitScan
from data_prep.sharding import scan_splits
from data_prep.sources import sizes_of
from data_prep.tokenizers import Tokenizer, TokenizerTraining, tokenizer_from_spec
from data_prep.training_sample import train_tokenizer
from data_prep.vocabulary import VocabularyRow, study
from pipelines.config.run import TrackingConfig
from pipelines.reports.files import write_csv
from pipelines.terminal import cli
from pipelines.terminal.output import bar, described, lines
from pipelines.terminal.tables import Form, counted, table
from pipelines.tracking import Tracker
from pipelines.tracking.client import check_tracking

COLUMNS: dict[str, tuple[str, Form]] = {
    "size": ("size", ","),
    "tokens": ("tokens", ","),
    "tokens_per_word": ("tokens/word", ".4f"),
    "bytes_per_token": ("bytes/token", ".3f"),
    "lossless": ("lossless", lambda value: "yes" if value else "no"),
}
"""Heading and form of each tokenizer's metrics, in MLflow too."""


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
    root: Path = Path("runs")
    """Folder of all runs: the table's folder is made in it."""
    tracking: TrackingConfig = field(default_factory=lambda: TrackingConfig(system_metrics="off"))

    def __post_init__(self) -> None:
        check_split(self.split)
        if not self.tokenizers:
            raise UserError("tokenizers is empty: name one or more, such as bytes sentencepiece:2048")
        if isinstance(self.corpus, CutsByTokens) and self.corpus.first_tokens(self.split):
            raise UserError(
                f"split {self.split} is cut after so many tokens of one tokenizer, and several are compared: leave that option out "
                "(--validation-tokens of pg19)"
            )

    @property
    def folder(self) -> Path:
        """The folder of all tables."""
        return Path(Place.parse(self.root).path) / "vocabulary"


def main(argv: list[str]) -> None:
    """Compare tokenizers on a split. Raises UserError for bad input."""
    corpora = {name: VocabularyConfig(corpus()) for name, corpus in CORPORA.items()}
    config = cli.parse_preset(
        corpora,
        argv,
        "Compare tokenizers on one split of a corpus.",
        noun="corpus",
        names=lambda: described("corpus", CORPORA),
    )
    corpus = config.corpus
    if isinstance(corpus, Labelled):
        raise UserError(
            f"corpus {config.corpus.name} labels its tokens, and its symbols are its tokens: name a corpus of text"
        )
    if not Place.parse(config.folder).is_writable():
        raise UserError(f"the table cannot be written below {config.root}: name another --root")
    check_tracking(config.tracking.located(), config.folder.parent)
    asked = [tokenizer_from_spec(spec) for spec in config.tokenizers]
    sources = sources_of(config.corpus, (config.split,))[config.split]
    console = lines()
    tokenizers = trained(asked, config, console)
    documents = (item for item in config.corpus.read(sources) if not isinstance(item, Skipped))
    with bar("tokenizing", int(sizes_of(sources).sum()), DownloadColumn(), console=console) as update:
        rows = study(tokenizers, documents, lambda size: update(advance=size))
    if not rows[0].words:
        raise UserError(f"split {config.split} of {config.corpus.name} holds no word: choose another --split")
    first = rows[0]
    console.print(
        f"{config.corpus.name}, {config.split}: {counted(first.documents, 'document')}, {first.bytes:,} bytes, "
        f"{first.words:,} words"
    )
    columns = {"name": ("tokenizer", None), **COLUMNS}
    if config.speed:
        columns["megabytes_per_second"] = ("MB/s", ".1f")
    shown = [{key: getattr(row, key) for key in columns} for row in rows]
    console.print(table(shown, columns, {}, box=None, pad_edge=False))
    console.print(f"table: {cli.shown(track(config, tokenizers, rows))}")


def trained(asked: list[Tokenizer | TokenizerTraining], config: VocabularyConfig, console: Console) -> list[Tokenizer]:
    """The tokenizers. Those that need training are trained on the train split, which is read only once."""
    scan: SplitScan | None = None
    made: list[Tokenizer] = []
    for one in asked:
        if not isinstance(one, TokenizerTraining):
            made.append(one)
            continue
        if scan is None:
            scan = scan_splits(config.corpus, sources_of(config.corpus, ("train",)), 0, lambda *_: None)["train"]
        made.append(train_tokenizer(one, scan, console.print))
    return made


def track(config: VocabularyConfig, tokenizers: list[Tokenizer], rows: list[VocabularyRow]) -> Path:
    """Write the table and log it. The same study again continues the same run. Returns the table's path."""
    study_of = digest([config.corpus.name, config.corpus.options(), rows[0].bytes, [t.fingerprint for t in tokenizers]])
    folder = config.folder / f"{config.corpus.name}-{config.split}-{study_of[:8]}"
    lines = [
        {
            "tokenizer": row.name,
            **{key: getattr(row, key) for key in ("size", "words", "bytes", "tokens")},
            **{key: f"{getattr(row, key):.6f}" for key in ("tokens_per_word", "bytes_per_token")},
            "lossless": row.lossless,
        }
        for row in rows
    ]
    path = write_csv(lines, folder / "vocabulary.csv")
    tracker = Tracker.start(
        config.tracking.located(),
        root=config.folder.parent,
        run_folder=folder,
        run_name=f"vocabulary {config.corpus.name} {config.split}",
        params={"corpus": config.corpus.name, "split": config.split, "tokenizers": " ".join(row.name for row in rows)},
        tags={"stage": "vocabulary"},
    )
    plain = [re.sub(r"[^\w./ -]", "-", row.name) for row in rows]
    counts = [plain[: i + 1].count(name) for i, name in enumerate(plain)]  # files of one name, in several folders
    names = [name if count == 1 else f"{name}.{count}" for name, count in zip(plain, counts, strict=True)]
    pairs = [(row, name, metric) for row, name in zip(rows, names, strict=True) for metric in COLUMNS]
    tracker.log({f"{metric}/{name}": getattr(row, metric) for row, name, metric in pairs}, step=0)
    tracker.log_artifacts(path)
    tracker.finish()
    return path
