"""Prepare a corpus: read every document, tokenize it, and write a verified segment store that training and evaluation read.

    python -m pipelines.prepare python-source --tokenizer sentencepiece:2048 --store runs/store
    python -m pipelines.prepare pg19 --source FOLDER --tokenizer FOLDER/pg19.model
    python -m pipelines.prepare text --source FOLDER

Every document is checked before a byte is written. Parts are written in parallel by Ray tasks and committed one by one: a
rerun of the command resumes after a kill, and the bytes are the same whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from common.checks import check_options
from common.credentials import without_credentials
from common.errors import UserError
from common.lock import file_lock
from common.places import Place, remove_temporary
from data_prep import split_remarks
from data_prep.committing import check_own, discard_split, tidy_split
from data_prep.corpora import CORPORA
from data_prep.corpora.left_out import count_items
from data_prep.cutting import cut
from data_prep.documents import SPLITS, Labelled, Remarks, check_split, sources_of
from data_prep.manifest import Manifest, StoreError
from data_prep.plan import SplitPlan, check_type, plan
from data_prep.scanning import SplitScan
from data_prep.sharding import prepare_splits, scan_splits
from data_prep.sources import sizes_of
from data_prep.store import SegmentStore
from data_prep.tokenizers import (
    SentencePieceTokenizer,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    TokenizerTraining,
    about_chat,
    keep_tokenizer,
    load_tokenizer,
    tokenizer_from_spec,
)
from data_prep.training_sample import train_tokenizer
from pipelines.cluster import ray_session
from pipelines.reports.preparation import print_summary, progress
from pipelines.terminal import cli
from pipelines.terminal.commands import typed
from pipelines.terminal.output import described, lines
from pipelines.terminal.tables import counted


@dataclass(frozen=True)
class PrepareConfig:
    """One preparation of one corpus."""

    corpus: tyro.conf.OmitArgPrefixes[Any]
    store: str = "runs/store"
    """Folder of all prepared corpora, or a URI such as s3://bucket/store."""
    tokenizer: str = ""
    """bytes, the default; sentencepiece:PIECES or sentencepiece-bpe:PIECES, trained on the train split; the path of a
    SentencePiece .model, of a tokenizer.json, or of a folder that holds one; gpt2:FOLDER, with vocab.json and merges.txt; or
    STORE/CORPUS/tokenizer, that of a prepared corpus. A corpus that labels its tokens has none of these: its symbols are its
    tokens."""
    splits: tuple[str, ...] = SPLITS
    """Splits to prepare."""
    segment_length: int = 0
    """Tokens of a row in the store; 0 chooses 1024, or 1, which is ids back to back, where documents are so short that rows of 1024
    would be mostly padding. Training may read any other length from it."""
    part_bytes: int = 16 << 20
    """Bytes of text at which a part is closed; for a small split a 32nd of it, but at least 1 MiB. Each part is one
    Ray task."""
    num_workers: int | None = None
    """Preparation workers: the Ray tasks of one CPU each that read and tokenize documents at the same time; 0 prepares in this
    process, without Ray. By default the CPUs of this machine, or of the whole cluster; on one machine 0 for less than 64 MB, which
    take less time than Ray takes to start."""
    overwrite: bool = False
    """Remove the splits that the store has, and prepare them anew: for splits of something else, or damaged ones."""

    def __post_init__(self) -> None:
        check_options(self, segment_length=0, part_bytes=1, num_workers=0)
        if self.segment_length >= 1 << 31:  # Arrow's limit
            raise UserError(f"segment_length is {self.segment_length}: give less than {1 << 31:,}")
        if not self.store:
            raise UserError("--store is empty: give a folder, or a URI such as s3://bucket/store")
        if not self.splits:
            raise UserError(f"splits is empty: name one or more of {', '.join(SPLITS)}")
        for split in self.splits:
            check_split(split)

    @property
    def place(self) -> Place:
        """The corpus's folder in the store."""
        return Place.parse(self.store) / self.corpus.name

    @property
    def folder(self) -> Path:
        """The corpus's folder in a local store."""
        return Path(self.place.path)

    def workers(self, size: int) -> int:
        """Ray tasks at a time for so many bytes of text; 0 for none."""
        if self.num_workers is not None:
            return self.num_workers
        return ray_session.cpus() if size >= 64e6 or ray_session.cluster_address() else 0


def commands() -> dict[str, PrepareConfig]:
    """The command line's options for each corpus."""
    return {name: PrepareConfig(corpus()) for name, corpus in CORPORA.items()}


def main(argv: list[str]) -> None:
    """Prepare the corpus of a command line. Raises UserError for bad input."""
    config = cli.parse_preset(
        commands(), argv, "Tokenize and store a corpus.", noun="corpus", names=lambda: described("corpus", CORPORA)
    )
    prepare(config)


def prepare(config: PrepareConfig) -> dict[str, Manifest]:
    """Prepare the splits of a corpus. Returns their manifests; see the module's docstring.

    Raises UserError (CorpusError, TokenizerError, StoreError) or OSError, before anything is written where that is possible.
    """
    asked = asked_tokenizer(config)
    split_remarks.check_outside(config.corpus, config.place)
    with file_lock(config.place, "another preparation"):
        return _prepare(config, asked)


def asked_tokenizer(config: PrepareConfig) -> Tokenizer | TokenizerTraining:
    """The tokenizer of the options. Raises TokenizerError where it is none, or not for this corpus."""
    corpus = config.corpus
    spec = config.tokenizer
    if isinstance(corpus, Labelled):
        if spec not in ("", "symbols"):
            raise TokenizerError(
                f"corpus {config.corpus.name} labels its tokens, and its symbols are its tokens: leave out --tokenizer {spec}"
            )
        return SymbolsTokenizer(corpus.symbols())
    if spec == "symbols":
        raise TokenizerError(f"corpus {corpus.name} labels no tokens, so it has no symbols: choose another tokenizer")
    return tokenizer_from_spec(spec or "bytes")


def _prepare(config: PrepareConfig, asked: Tokenizer | TokenizerTraining) -> dict[str, Manifest]:
    """`prepare` while the corpus's folder in the store is locked."""
    start = time.perf_counter()
    console = lines()

    # Scan
    corpus = cut(config.corpus, config.splits, asked)
    named = [split for split in SPLITS if split in config.splits]
    scanned = named
    if isinstance(asked, TokenizerTraining) and "train" not in named:
        scanned = ["train", *named]  # the tokenizer is trained on it
    sources = sources_of(corpus, scanned)
    sizes = {split: int(sizes_of(items).sum()) for split, items in sources.items()}
    size = sum(sizes[split] for split in named)
    total = sum(sizes.values())
    documents = counted(sum(count_items(sources[split]) for split in named), "document")
    shown = without_credentials(config.tokenizer) or ("symbols" if isinstance(asked, SymbolsTokenizer) else "bytes")
    console.print(
        f"{corpus.name}: {documents}, {size / 1e6:,.1f} MB, splits {', '.join(named)}; tokenizer {shown}; to {config.place}"
    )
    workers = config.workers(total)
    if workers:
        ray_session.start(num_cpus=workers)
    with progress(console, "scanned", "items", sum(map(len, sources.values())), total) as done:
        scans = scan_splits(corpus, sources, workers, done)

    # Check, before anything is written
    empty = [split for split in named if not scans[split].documents]
    splits = [split for split in named if split not in empty]
    split_remarks.check_documents([scans[split] for split in named], each=config.splits != SPLITS)
    for split in empty:
        console.print(f"{split}: {split_remarks.empty_split(scans[split])}")
    for split in named:
        check_own(config.place / split, config.overwrite, split in empty)
    tokenizer = _tokenizer(asked, config, scans, console)
    for split in splits:
        check_type(tokenizer, scans[split])
    plans = {split: plan(scans[split], tokenizer, config.segment_length, config.part_bytes) for split in splits}
    finished, warnings = _standing(config, plans, tokenizer, empty)
    for sentence in warnings + split_remarks.held_out_warnings(scans):
        console.print(f"warning: {sentence}")
    chat_remarks = about_chat(tokenizer, config.tokenizer)

    # Write
    _remove_replaced(config, plans, tokenizer, empty)
    manifests = _write(config.place, plans, finished, tokenizer, workers, console)

    # Report
    print_summary(console, config.place, manifests, size, time.perf_counter() - start)
    for sentence in chat_remarks:
        console.print(sentence)
    if isinstance(corpus, Remarks):
        for split in splits:
            for remark in corpus.remarks(split, scans[split].documents):
                console.print(f"{split}: {remark}")
    store = f" --data.store {shlex.quote(cli.shown(without_credentials(config.store)))}"
    console.print(f"Next: {typed('train')} PRESET --data.corpus {config.corpus.name}{store}")
    console.print(f"Look: {typed('inspect')} {shlex.quote(cli.shown((config.place / splits[0]).recorded))}")
    return manifests


def _remove_replaced(
    config: PrepareConfig, plans: Mapping[str, SplitPlan], tokenizer: Tokenizer, empty: Sequence[str]
) -> None:
    """Remove the ``empty`` splits, and with --overwrite the planned ones once the tokenizer is known to encode them anew."""
    if config.overwrite:
        standing = [planned for split, planned in plans.items() if (config.place / split / "manifest.json").exists()]
        split_remarks.check_encodes(tokenizer, [planned.scan for planned in standing])
        for split in plans:
            discard_split(config.place / split)
    for split in empty:
        discard_split(config.place / split, unfinished=True)


def _write(
    place: Place,
    plans: Mapping[str, SplitPlan],
    finished: Mapping[str, Manifest],
    tokenizer: Tokenizer,
    workers: int,
    console: Console,
) -> dict[str, Manifest]:
    """Write the tokenizer and the splits that are not ``finished``. Returns the manifests of all planned splits."""
    keep_tokenizer(tokenizer, place / "tokenizer")
    for split, planned in plans.items():
        console.print(f"{split}: " + ("already prepared" if split in finished else planned.described))
    manifests = dict(finished)
    missing = {split: planned for split, planned in plans.items() if split not in finished}
    if missing:
        count = sum(len(planned.scan.documents) for planned in missing.values())
        size = sum(planned.scan.bytes for planned in missing.values())
        with progress(console, "written", "documents", count, size) as done:
            for manifest in prepare_splits(place, missing, workers, done):
                manifests[manifest.split] = manifest
    keep_tokenizer(tokenizer, place / "tokenizer")  # again, where it was removed meanwhile
    remove_temporary(place / "tokenizer")
    return {split: manifests[split] for split in plans}


def _tokenizer(
    asked: Tokenizer | TokenizerTraining, config: PrepareConfig, scans: dict[str, SplitScan], console: Console
) -> Tokenizer:
    """The tokenizer itself; one that is to be trained is taken from the store where it was trained on the same text."""
    if not isinstance(asked, TokenizerTraining):
        return asked
    content = scans["train"].inputs["content"]
    with contextlib.suppress(TokenizerError):
        kept = load_tokenizer(config.place / "tokenizer")
        recipe = kept.recipe if isinstance(kept, SentencePieceTokenizer) else None
        if recipe and (recipe.spec, recipe.corpus) == (asked.spec, content):
            return kept
    return train_tokenizer(asked, scans["train"], console.print)


def _standing(
    config: PrepareConfig, plans: Mapping[str, SplitPlan], tokenizer: Tokenizer, empty: Sequence[str]
) -> tuple[dict[str, Manifest], list[str]]:
    """Compare the splits in the store with the plans. Returns the manifests of those that are already what their plan would make,
    and warnings about splits that stay as they are.

    Raises StoreError if a split would have to be replaced without --overwrite: it was made from something else, is damaged, or has
    no documents now. Also if a split that is not planned was made with another tokenizer, since a corpus in a store has only one.
    """
    finished = {}
    sentences = []
    for split in sorted(SPLITS, key=lambda split: split not in plans):
        folder = config.place / split
        replaced = config.overwrite and (split in plans or split in empty)
        if replaced or not (folder / "manifest.json").is_file():
            continue
        if split in empty:
            raise StoreError(
                f"{folder} was prepared from something else, and now {split} holds no document with text: "
                "give another --store, or --overwrite to remove it"
            )
        store = SegmentStore.open(folder)
        if split in plans:
            sentences += _check_made_by(plans[split], store, folder)
            tidy_split(folder)  # a preparation was killed after its last write
            finished[split] = store.manifest
        else:
            sentences += _check_beside(plans, tokenizer, store, folder)
    return finished, sentences


def _check_made_by(planned: SplitPlan, store: SegmentStore, folder: Place) -> list[str]:
    """What to say of a split that stands where this plan would write it. Raises StoreError unless this plan has made it."""
    if store.manifest.fingerprint != planned.fingerprint:
        raise StoreError(
            f"{folder} was prepared with another {planned.difference(store.manifest)}: "
            "give another --store, or --overwrite to replace it"
        )
    _, titles = planned.scan.documents.names_of(range(len(store.documents)))
    if store.documents.texts("title") == titles:
        return []
    return [f"{folder} keeps the titles it was prepared with; --overwrite replaces them"]


def _check_beside(
    plans: Mapping[str, SplitPlan], tokenizer: Tokenizer, store: SegmentStore, folder: Place
) -> list[str]:
    """What to say of a split that stays beside the planned ones. Raises StoreError if it has another tokenizer than they."""
    made = store.manifest
    if made.tokenizer.fingerprint != tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was prepared with another tokenizer ({made.tokenizer.name}), but a store has only one: "
            "prepare all splits with --overwrite, or give another --store"
        )
    unlike = split_remarks.difference_of_standing(store, {name: plan.scan for name, plan in plans.items()})
    if not unlike:
        return []
    return [f"{folder} stays as it was prepared before, {unlike}: prepare all splits together, with --overwrite"]


if __name__ == "__main__":
    cli.run(main)
