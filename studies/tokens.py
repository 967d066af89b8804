"""Compare trained models, or one with and without its State, token by token on a held-out split.

    python -m pipelines.tokens runs/demo-slide runs/demo-rec             what rec predicts better than slide, and where
    python -m pipelines.tokens runs/demo-rec                             one model: its recurrent states cleared, against carried
    python -m pipelines.tokens runs/demo-slide runs/demo-rec --clear states      both: in the study of distances there are three

It follows the block-recurrent paper's section 4.6 and Appendix G. Each token's cost goes to Arrow files, which are made once. One
page, tokens.html, shows the costs over position. It lists the words with the largest gain, the text around them, and how far back
they stood last. It also shows the cost of rare words over that distance. `--clear` chooses the part of the State that is cleared;
`--segment-length`, `--clear-every` or `--clear-at` choose the places.
"""

from __future__ import annotations

import itertools
import math
import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.checks import check_options
from common.errors import UserError
from common.lock import file_lock
from data_prep.store import SegmentStore
from pipelines.checkpoints.cloning import kept_weights
from pipelines.checkpoints.errors import retry_if_removed
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import TrackingConfig
from pipelines.inference.report_folder import UNFINISHED_LOSSES, output_for
from pipelines.inference.targets import (
    EvaluationTarget,
    TargetsConfig,
    load_targets,
    suffix_of,
    tracking_of,
)
from pipelines.reports.characters import writing_of
from pipelines.reports.index import refresh_index
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress, print_wide, printable
from pipelines.terminal.tables import counted, table
from pipelines.tracking import Tracker
from pipelines.tracking.client import check_tracking
from studies.token_comparison import COLUMNS, TokenComparison
from studies.token_losses import TokenLosses, token_nats
from studies.token_page import OPTIONAL, write_pages
from studies.words import Words, words_of

KEPT_WEIGHTS = f"{UNFINISHED_LOSSES}weights"
"""Subfolder of the report with links to the weights, while the command runs."""


@dataclass(frozen=True)
class TokensConfig(TargetsConfig):
    """Runs or checkpoints to compare on a split: the last one is compared with the first; those between join the study of
    distances. A single one is compared with itself, State cleared."""

    clear: Literal["auto", "states", "everything"] = "auto"
    """Also read the last model with its recurrent states or the whole State cleared. auto: its states, if it is the only model."""
    document: int = -1
    """Document whose text is on the page, by its number in the manifest; -1 takes the longest."""
    page_tokens: int = 100_000
    """Tokens of its text on the page, at most."""
    words: int = 40
    """Words in the table of the largest gains, of the whole split."""
    per_document: int = 0
    """Words of each document in that table, in place of --words (the paper has four for each of five books); 0 uses --words."""
    by: Literal["word", "token"] = "word"
    """Rows of that table: words, or the tokens of words one by one, as in the paper."""
    documents: int = 0
    """Documents to report on, drawn at random, always the same for a split (the paper has five books); 0 for all."""
    common: int = 1000
    """The most frequent words of the split, which the study of distances leaves out."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, page_tokens=1, words=1, per_document=0, documents=0, common=0, document=-1)


@dataclass(frozen=True)
class Pass:
    """One reading of the split by one model."""

    name: str
    target: EvaluationTarget
    clearing: Literal["nothing", "states", "everything"]
    every: int = 0
    """Blocks after which State is cleared, if not at each segment."""
    at: int = 0
    """Token before which State is cleared, if not at each segment."""

    def key(self) -> dict[str, Any]:
        """JSON values of all that decides the losses. Lanes are left out: they change no more than the last bits."""
        key = {
            "model": {**self.target.checkpoint.meta["config"]["model"], **self.target.changed},
            "weights": self.target.checkpoint.digest,
            "store": self.target.store.manifest.fingerprint,
        }
        if self.clearing == "nothing":
            return key
        key["clearing"] = self.clearing
        if self.every:
            return key | {"every": self.every}
        if self.at:
            return key | {"at": self.at}
        return key | {"segment": self.target.segment_length, "aligned": True}

    def losses(self, folder: Path, workers: int | None) -> TokenLosses:
        """The losses in ``folder``, or made now by ``workers`` processes; None takes as many processes as the work is worth."""
        path = folder / f"{cli.file_name(self.name)}.arrow"
        found = TokenLosses.open(path, self.key())
        if found:
            print(f"{self.name}: {path.name} is there already", flush=True)
            return found
        # With torch, which takes seconds: not before there is something to score.
        from pipelines.training.reading import StateReset, workers_for
        from pipelines.training.scoring import Scoring

        target = self.target
        flops = target.model.costs(target.checkpoint.meta["vocab_size"]).flops_per_token
        workers = workers_for(workers, flops * int(target.store.lengths.sum()))
        with TokenLosses.make(path, target.store, self.key()) as nats:
            scoring = Scoring(
                target.checkpoint,
                target.model,
                target.store,
                (self.clearing,),
                reset=StateReset(self.every, self.at),
                lanes=target.lanes,
                segment_length=target.segment_length,
                shards=max(workers, 1),
                folder=nats.parent,
                precision=target.precision,
            )
            reading = replace(scoring.reading, sink=partial(token_nats, nats, target.store.lengths))
            with pass_progress(self.name, reading.tokens) as update:
                reading.read(workers, lambda tokens: update(advance=tokens))
        made = TokenLosses.open(path, self.key())
        assert made is not None, f"{path} is not what was written"
        return made


def passes_of(config: TokensConfig, targets: list[EvaluationTarget]) -> list[Pass]:
    """The passes to compare. Raises UserError if the targets cannot be compared."""
    last = targets[-1]
    for target in targets:
        if target.store.labelled:
            raise UserError(
                f"{target.store.folder} labels its tokens, and has no words: see `pipelines.evaluate` for its errors"
            )
    if len({target.store.manifest.fingerprint for target in targets}) > 1:
        raise UserError(
            f"{' and '.join(target.name for target in targets)} were trained on different stores: name one with --store and "
            "--corpus that has the tokens of all"
        )

    def reading(target: EvaluationTarget) -> Pass:
        return Pass(target.name, target, "nothing", config.clear_every, config.clear_at)

    *others, carried = map(reading, targets)
    if config.clear == "auto" and others:
        if config.cleared:
            raise UserError("--clear-every and --clear-at say where: give --clear states or --clear everything too")
        return with_unique_names([*others, carried])
    clearing = "states" if config.clear == "auto" else config.clear
    if clearing == "states":
        check_has_states(last)
    part = "-all" if clearing == "everything" else ""
    cleared = replace(carried, name=f"{last.name}{part}{config.cleared or '-cleared'}", clearing=clearing)
    return with_unique_names([*others, cleared, carried])


def check_has_states(target: EvaluationTarget) -> None:
    """Raises UserError if the model has no recurrent states to clear."""
    from pipelines.training.scoring import carries_states  # imports torch: seconds

    if not carries_states(target.model, target.checkpoint.meta["vocab_size"]):
        raise UserError(f"{target.name} has no recurrent states: give --clear everything")


def with_unique_names(passes: list[Pass]) -> list[Pass]:
    """The passes with unequal names, for files and tables: a number is added to a name that a pass before it or a column has."""
    taken = set(COLUMNS)
    renamed = list[Pass]()
    for reading in passes:
        names = itertools.chain([reading.name], (f"{reading.name}.{number}" for number in itertools.count(2)))
        name = next(name for name in names if not {cli.file_name(name), f"{name}_error"} & taken)
        taken |= {cli.file_name(name), f"{name}_error"}
        renamed.append(replace(reading, name=name))
    return renamed


def documents_of(config: TokensConfig, store: SegmentStore) -> list[int]:
    """The numbers of the documents to report on, in their order: all, or ``--documents`` of those with tokens.

    Raises UserError where the document to show is none of them.
    """
    numbers = list(range(len(store.lengths)))
    shown = config.document
    if shown >= len(numbers):
        raise UserError(f"--document is {shown}, and {store.folder} has documents 0 to {len(numbers) - 1}")
    if not config.documents:
        return numbers
    filled = np.flatnonzero(store.lengths)
    count = min(config.documents, len(filled))
    numbers = sorted(np.random.default_rng(0).choice(filled, count, replace=False).tolist())
    if shown >= 0 and shown not in numbers:
        named = ", ".join(map(str, numbers))
        raise UserError(f"--document is {shown}, which is none of the {count} that --documents draws: {named}")
    return numbers


def compare_passes(config: TokensConfig, passes: list[Pass], folder: Path) -> TokenComparison:
    """The comparison of the passes, with the words of the split; missing losses are made first.

    Raises UserError for a split without tokens, and as `documents_of`.
    """
    last = passes[-1]
    store = last.target.store
    model = last.target.model
    if not store.lengths.any():
        raise UserError(f"{store.folder} has no document with any token: choose another --split")
    numbers = documents_of(config, store)
    lengths = store.lengths[numbers]
    shown = int(lengths.argmax()) if config.document < 0 else numbers.index(config.document)
    write = writing_of(store.tokenizer())
    losses = [reading.losses(folder, config.num_workers) for reading in passes]
    for left in folder.glob(f"{UNFINISHED_LOSSES}*"):  # of passes that were killed
        shutil.rmtree(left, ignore_errors=True)

    def tokens(document: int) -> Any:
        return store.tokens(numbers[document], 0, int(lengths[document]))

    def nats(document: int) -> list[Any]:
        return [made.column("nats", numbers[document]) for made in losses]

    titles = store.documents.texts("title")
    ids = store.documents.texts("id")
    drawn = f", drawn at random from its {len(ids)} documents" if len(numbers) < len(ids) else ""
    parts = [words_of(write, tokens(document), nats(document), document) for document in range(len(numbers))]
    return TokenComparison(
        names=tuple(reading.name for reading in passes),
        split=f"{store.manifest.corpus}/{store.manifest.split}{drawn}",
        titles=[titles[number] or ids[number] for number in numbers],
        lengths=lengths.tolist(),
        tokens=tokens,
        nats=nats,
        write=write,
        words=Words.join(parts),
        window=model.attention_window,
        segment=config.clear_every * model.block or last.target.segment_length,
        cut=config.clear_at,
        shown=shown,
        shown_tokens=config.page_tokens,
        count=config.words,
        of_each=config.per_document,
        by=config.by,
        common=config.common,
    )


def main(argv: list[str]) -> None:
    """Compare models token by token and write the page. Raises UserError for bad input."""
    compare_models(cli.parse(TokensConfig, argv, __doc__))


@retry_if_removed
def compare_models(config: TokensConfig) -> None:
    """Find the checkpoints, compare them and write the page. Raises UserError for bad input."""
    targets = load_targets(config)
    passes = passes_of(config, targets)
    name = "tokens-" + "-vs-".join(reading.name for reading in passes) + suffix_of(targets, config)
    report_folder = RunFolder(output_for(config.output, targets[0].run, name, config.split))
    check_tracking(*tracking_of(targets[-1].checkpoint, targets[-1].run, config.tracking))
    totals = targets[-1].store.manifest.totals
    counts = f"{counted(totals.documents, 'document')}, {totals.tokens:,} tokens"
    others = ", ".join(reading.name for reading in passes[:-1])
    print(f"comparing {passes[-1].name} with {others} on {cli.shown(targets[-1].store.folder)}: {counts}", flush=True)
    with (
        file_lock(report_folder.folder, "another pipelines.tokens"),
        kept_weights([each.target.checkpoint for each in passes], report_folder.folder / KEPT_WEIGHTS) as kept,
    ):
        # All of them, before the first is read: that may take hours.
        targets_kept = [
            replace(each.target, checkpoint=checkpoint) for each, checkpoint in zip(passes, kept, strict=True)
        ]
        passes = [replace(each, target=target) for each, target in zip(passes, targets_kept, strict=True)]
        comparison = compare_passes(config, passes, report_folder.folder)
        paths = write_pages(comparison, report_folder.folder)
    files = [path for path in report_folder.folder.iterdir() if path.is_file()]
    files.sort(key=lambda path: path.name != "tokens.html")  # first, since a later command knows a report by it
    report_folder.publish_report(files, OPTIONAL)
    print_comparison(comparison)
    track(config, targets, comparison, report_folder.folder, paths)
    print(
        f"  look      {cli.shown(paths[0])}\n  losses    {cli.shown(report_folder.folder)}/*.arrow: document, offset, token, nats"
    )
    refresh_index(report_folder.folder)


def print_comparison(comparison: TokenComparison) -> None:
    """Print the words of the largest gains, bits per token, and the share of names."""
    base, better = comparison.pair
    columns = {
        "word": ("word", None), "gain": ("gain,\nnats", ".2f"), base: (base, ".2f"), better: (better, ".2f"),
        "last_seen": ("tokens back", ","), "where": ("stood last", None), "document": ("document", None), "token": ("token", ","),
    }  # fmt: skip
    rows = [
        {**row, "document": printable(row["document"][:30]), "word": printable(row["word"])}
        for row in comparison.rows[:10]
    ]
    print_wide(table(rows, columns, {}), 120)
    bits = zip(comparison.names, comparison.facts["bits_per_token"], strict=True)
    each = ", ".join(f"{name} {value:.4f}" for name, value in bits)
    print(f"bits per token: {each} ({comparison.difference()})")
    print(comparison.share_of_names())


def track(
    config: TokensConfig, targets: list[EvaluationTarget], comparison: TokenComparison, folder: Path, paths: list[Path]
) -> None:
    """Log metrics, page and pictures to an MLflow run of their own."""
    last = targets[-1]
    facts = comparison.facts
    tracker = Tracker.start(
        *tracking_of(last.checkpoint, last.run, config.tracking),
        run_folder=folder,
        run_name=f"tokens {comparison.names[-1]} against {', '.join(comparison.names[:-1])}",
        params={f"compared.{number}": str(target.checkpoint.folder) for number, target in enumerate(targets)},
        tags={"stage": "tokens", "data_fingerprint": last.store.manifest.fingerprint},
    )
    metrics = {
        "tokens/bits_per_token_difference": facts["bits_per_token"][-1] - facts["bits_per_token"][0],
        "tokens/names_among_top": facts["names_among_top"],
    }
    tracker.log({name: value for name, value in metrics.items() if math.isfinite(value)}, last.checkpoint.step)
    tracker.log_artifacts(*paths)
    tracker.finish()
