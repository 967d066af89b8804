"""Compare two trained models, or one with and without its State, token by token on a held-out split.

    python -m pipelines.tokens runs/demo-slide runs/demo-rec             what rec predicts better than slide, and where
    python -m pipelines.tokens runs/demo-rec                             one model: its recurrent states cleared, against carried

The block-recurrent paper's section 4.6 and Appendix G: what each token of each document costs (Arrow files, made once), over
position; the words with the most gain, the text around them and how far back they stood last; and what rare words cost over that
distance. On one page that needs nothing beside it, tokens.html. With one model, `--clear` says what is cleared and
`--segment-length` how often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from data_prep.errors import UserError
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_place import RunPlace
from pipelines.config.run import TrackingConfig
from pipelines.inference.subjects import Subject, SubjectsConfig, output_for, subjects_of, writable
from pipelines.inference.trained import model_of
from pipelines.reports.index import write_index
from pipelines.reports.token_losses import TokenLosses
from pipelines.reports.token_page import TokenComparison, summary, top_rows, write_pages
from pipelines.reports.words import Words, words_of, writing_of
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress
from pipelines.terminal.tables import table
from pipelines.tracking import Tracker


@dataclass(frozen=True)
class TokensConfig(SubjectsConfig):
    """What is compared, on what: two runs or checkpoints, what is compared with and then what is looked at; or one, which is
    compared with itself cleared."""

    clear: Literal["states", "everything"] = "states"
    """With one run: what is cleared at each segment's start, its recurrent states or the whole State."""
    document: int = -1
    """The document whose text is on the page, as numbered in the manifest; -1 takes the longest."""
    page_tokens: int = 100_000
    """Tokens of its text on the page, at most."""
    words: int = 40
    """Words in the table of the largest gains."""
    common: int = 1000
    """The most frequent words of the split, which the study of distances leaves out."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("page_tokens", "words"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}: give 1 or more")


@dataclass(frozen=True)
class Pass:
    """One reading of the split by one model."""

    name: str
    subject: Subject
    clearing: Literal["nothing", "states", "everything"]
    lanes: int
    segment: int

    def key(self) -> dict[str, Any]:
        """What decides the losses, in JSON's values. Lanes change no more than the last bits."""
        cleared = {} if self.clearing == "nothing" else {"clearing": self.clearing, "segment": self.segment}
        weights = self.subject.checkpoint.meta["files"]["model.safetensors"]["xxh3"]
        model = {**self.subject.checkpoint.meta["config"]["model"], **self.subject.changed}
        return {"model": model, "weights": weights, "store": self.subject.store.manifest.fingerprint, **cleared}

    def losses(self, folder: Path) -> TokenLosses:
        """Those that are there, or made now."""
        path = folder / f"{cli.file_name(self.name)}.arrow"
        if found := TokenLosses.open(path, self.key()):
            print(f"{self.name}: {path.name} is there already", flush=True)
            return found
        import torch  # seconds, and not before there is something to score

        from pipelines.training.scoring import score_split
        from pipelines.training.world import World

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, store = model_of(self.subject.checkpoint, self.subject.model).to(device), self.subject.store
        with pass_progress(self.name) as progress, TokenLosses.make(path, store, self.key()) as sink:
            score_split(
                model, store, lanes=self.lanes, segment_length=self.segment, world=World.current(device),
                clearing=self.clearing, progress=progress, each=sink.add,
            )  # fmt: skip
        made = TokenLosses.open(path, self.key())
        assert made is not None, f"{path} is not what was written"
        return made


def passes_of(config: TokensConfig, subjects: list[Subject]) -> tuple[Pass, Pass]:
    """Raises UserError where the two cannot be compared."""
    last = subjects[-1]
    if len(subjects) > 2:
        raise UserError(f"{len(subjects)} are named: name two to compare, or one to compare with itself cleared")
    for subject in subjects:
        if subject.store.labelled:
            raise UserError(
                f"{subject.store.folder} labels its tokens, and has no words: see `pipelines.evaluate` for its errors"
            )
    if len({subject.store.manifest.fingerprint for subject in subjects}) > 1:
        raise UserError(
            f"{subjects[0].name} and {last.name} were trained on different stores: name one with --store and --corpus that has "
            "the tokens of both"
        )

    def reading(subject: Subject, name: str, clearing: Literal["nothing", "states", "everything"]) -> Pass:
        data = subject.checkpoint.meta["config"]["data"]
        sizes = (config.lanes or data["lanes"], config.segment_length or data["segment_length"])
        return Pass(name, subject, clearing, *sizes)

    carried = reading(last, last.name, "nothing")
    if len(subjects) == 2:
        return reading(subjects[0], subjects[0].name, "nothing"), carried
    return reading(last, f"{last.name}-cleared", config.clear), carried


def window_of(subject: Subject) -> int:
    """Tokens that a layer sees without recurrence; the block where the model has no window."""
    return int(getattr(subject.model, "window", 0) or subject.model.block)


def compared(config: TokensConfig, passes: tuple[Pass, Pass], folder: Path) -> TokenComparison:
    """Both passes over the split, and its words."""
    store: SegmentStore = passes[1].subject.store
    first, second = (reading.losses(folder) for reading in passes)
    write = writing_of(store.tokenizer())
    chosen = int(store.lengths.argmax()) if config.document < 0 else config.document
    if chosen >= len(store.lengths):
        raise UserError(f"--document is {chosen}, and {store.folder} has documents 0 to {len(store.lengths) - 1}")

    def tokens(document: int) -> Any:
        return store.tokens(document, 0, int(store.lengths[document]))

    def nats(document: int) -> tuple[Any, Any]:
        return first.column("nats", document), second.column("nats", document)

    parts = [words_of(write, tokens(number), nats(number), number) for number in range(len(store.lengths))]
    return TokenComparison(
        names=(passes[0].name, passes[1].name),
        split=f"{store.manifest.corpus}/{store.manifest.split}",
        titles=[document.title or document.id for document in store.manifest.documents],
        tokens=tokens,
        nats=nats,
        write=write,
        words=Words.join(parts),
        window=window_of(passes[1].subject),
        segment=passes[1].segment,
        shown=chosen,
        shown_tokens=config.page_tokens,
        count=config.words,
        common=config.common,
    )


def main(argv: list[str]) -> None:
    config = cli.parse(TokensConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    subjects = subjects_of(config)
    passes = passes_of(config, subjects)
    name = "tokens-" + "-vs-".join(reading.name for reading in passes)
    target = RunPlace(output_for(config, subjects, name))
    totals = subjects[-1].store.manifest.totals
    counts = f"{totals.documents:,} documents, {totals.tokens:,} tokens"
    print(
        f"comparing {passes[1].name} with {passes[0].name} on {cli.shown(subjects[-1].store.folder)}: {counts}",
        flush=True,
    )
    comparison = compared(config, passes, target.folder)
    paths = write_pages(comparison, target.folder)
    target.publish(*(path.name for path in target.folder.iterdir() if path.is_file()))
    console, facts = Console(width=max(Console().width, 120), markup=False), summary(comparison)
    base, better = comparison.names
    columns = {
        "word": ("word", None), "gain": ("gain,\nnats", ".2f"), base: (base, ".2f"), better: (better, ".2f"),
        "last_seen": ("tokens back", ","), "where": ("stood last", None), "document": ("document", None), "token": ("token", ","),
    }  # fmt: skip
    console.print(table([{**row, "document": row["document"][:30]} for row in top_rows(comparison)[:10]], columns, {}))
    bits = facts["bits_per_token"]
    shares = f"{facts['names_among_top']:.0%} are names, of all {facts['names_among_all']:.0%}"
    print(f"bits per token: {base} {bits[0]:.4f}, {better} {bits[1]:.4f} ({bits[1] - bits[0]:+.4f})")
    print(f"of the {comparison.count} words with most gain {shares}")
    track(config, subjects, comparison, target.folder, paths)
    print(
        f"  look      {cli.shown(paths[0])}\n  losses    {cli.shown(target.folder)}/*.arrow: document, offset, token, nats"
    )
    if page := write_index(target.folder):
        print(f"  index     {cli.shown(page)}")


def track(
    config: TokensConfig, subjects: list[Subject], comparison: TokenComparison, folder: Path, paths: list[Path]
) -> None:
    """A run of its own in MLflow, with the page and the pictures."""
    home = folder.parent.parent
    tracking = config.tracking.located()
    facts = summary(comparison)
    tracker = Tracker.start(
        replace(
            tracking if tracking.uri or writable(home) else replace(tracking, backend="none"), system_metrics="off"
        ),
        root=home,
        run_folder=folder,
        run_name=f"tokens {comparison.names[1]} against {comparison.names[0]}"[:250],
        params={f"compared.{number}": str(subject.checkpoint.folder) for number, subject in enumerate(subjects)},
        tags={"stage": "tokens", "data_fingerprint": subjects[-1].store.manifest.fingerprint},
    )
    figures = {
        "tokens/bits_per_token_difference": facts["bits_per_token"][1] - facts["bits_per_token"][0],
        "tokens/names_among_top": facts["names_among_top"],
    }
    tracker.log({name: value for name, value in figures.items() if math.isfinite(value)}, subjects[-1].checkpoint.step)
    for path in paths:
        tracker.log_artifact(path)
    tracker.finish()


if __name__ == "__main__":
    cli.run(main)
