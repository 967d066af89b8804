"""Continue passages of a split where a model knows their context through its recurrence alone (GPT-2 paper, Tables 3 and 4).

    python -m pipelines.continuations runs/mine
    python -m pipelines.continuations runs/gpt2-rec --split validation --places 8 --blocks 1

At a block's start the window is emptied, so that only the recurrent State still knows the context. The model then writes the
likeliest token each time. Beside this continuation stand the document's own, and the model's without any State. The table goes to
the terminal, and as Markdown and JSON into a folder and into MLflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from common.checks import check_options
from common.errors import UserError
from common.places import Place
from data_prep.store import SegmentStore
from data_prep.tokenizers import Tokenizer
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.checkpoints.errors import retry_if_removed
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import TrackingConfig
from pipelines.inference.report_folder import output_for
from pipelines.inference.targets import mark_of, run_of, text_mark, tracking_of
from pipelines.inference.trained import device, find_model, model_of, open_split, tokenizer_of
from pipelines.reports.index import refresh_index
from pipelines.terminal import cli
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import counted
from pipelines.tracking import Tracker
from pipelines.tracking.client import check_tracking
from studies.continuations_report import Passage, continuations_table, summary, write_continuations

if TYPE_CHECKING:  # torch, which takes seconds to import, comes with the model
    from recur_models import RecurrentModel


@dataclass(frozen=True)
class ContinuationsConfig:
    """A text to continue, and the model."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder or URI of a run or of a checkpoint, or an exported folder."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint of a run: the newest, or the best of those that were validated."""
    places: int = 4
    """Places to continue, spread over as many documents as possible."""
    new_tokens: int = 80
    """Tokens to write at each place."""
    blocks: int = 0
    """Blocks to read before a place (windows of a GPT-2); 0 reads its document from the first token."""
    split: str = "test"
    """Split to read."""
    store: str = ""
    """Store to read; by default the one that the run was trained on."""
    seed: int = 0
    """Seeds the choice of places."""
    output: str = ""
    """Folder or URI of the report: a new or empty one, or that of an earlier report. By default `reports/continuations-<name>`
    beside the run, or in `runs` if nothing can be written there. Options that differ from the defaults stand behind the name."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        check_options(self, places=1, new_tokens=2, blocks=0, seed=0)

    @property
    def chosen(self) -> str:
        """Part of a report's name: the checkpoint and the options of reading and writing, where they differ from the defaults."""
        parts: list[str] = [] if self.checkpoint == "newest" else [self.checkpoint]
        for name in ("places", "new_tokens", "blocks", "seed"):
            if getattr(self, name) != getattr(type(self), name):
                parts.append(f"{name.replace('_', '-')}-{getattr(self, name)}")
        return "-".join(parts)


def choose_places(lengths: np.ndarray, block: int, config: ContinuationsConfig) -> list[tuple[int, int]]:
    """Places to continue: a document's number and a token at a block's start; token 0 is begin-of-document. Raises UserError."""
    least = max(config.blocks, 1)
    most = (lengths + 1 - config.new_tokens) // block  # blocks before the last place
    documents = np.flatnonzero(most >= least)
    if not len(documents):
        needed = least * block + config.new_tokens - 1
        raise UserError(
            f"no document of the split has {needed:,} tokens, for {counted(least, 'block')} of {block} and a continuation of "
            f"{config.new_tokens}: the longest has {lengths.max(initial=0):,}; ask for less with --blocks or --new-tokens"
        )
    drawn = np.random.default_rng(config.seed)
    there_are = {int(i): int(most[i]) - least + 1 for i in drawn.permutation(documents)}
    wanted = min(config.places, sum(there_are.values()))
    chosen = set[tuple[int, int]]()
    for document in cycle(there_are):
        if len(chosen) == wanted:
            break
        if not there_are[document]:
            continue
        there_are[document] -= 1
        before = len(chosen)
        while len(chosen) == before:
            chosen.add((document, int(drawn.integers(least, most[document], endpoint=True)) * block))
    return sorted(chosen)


def passages_of(
    checkpoint: Snapshot, model: RecurrentModel, store: SegmentStore, tokenizer: Tokenizer, config: ContinuationsConfig
) -> list[Passage]:
    """The continued passages. Raises UserError if the model has no recurrent State, or if no document is long enough."""
    import torch  # seconds, and not before there is something to continue

    from pipelines.training.scoring import has_states
    from studies.greedy_continuation import continue_passage

    if not has_states(model):
        raise UserError(
            f"{checkpoint.folder} has no recurrent State, so it knows nothing of the text before its window; "
            "name a run of one that has a State, such as rec or gpt2-rec"
        )
    places = choose_places(store.lengths, model.block, config)
    where = device()
    model = model.to(where)
    passages = []
    for number, (document, start) in enumerate(places, 1):
        print(f"continuing passage {number} of {len(places)}, {config.new_tokens:,} tokens", flush=True)
        ids = store.tokens(document, 0, start - 1 + config.new_tokens).astype(np.int64)
        text_N = torch.from_numpy(np.concatenate([[store.bod_id], ids])).to(where)
        seen, unseen = continue_passage(model, text_N, start, config.blocks, config.new_tokens)
        read_from = max(start - 1 - config.blocks * model.block, 0) if config.blocks else 0
        described = store.manifest.documents[document]
        passages.append(
            Passage(
                document=described.title or described.id,
                token=start - 1,
                context=tokenizer.decode(ids[read_from : start - 1]),
                true=tokenizer.decode(ids[start - 1 :]),
                seen=tokenizer.decode(seen.ids),
                unseen=tokenizer.decode(unseen.ids),
                bits_seen=seen.bits_per_token,
                bits_unseen=unseen.bits_per_token,
            )
        )
    return passages


@retry_if_removed
def open_run(config: ContinuationsConfig) -> tuple[Snapshot, SegmentStore, Place, RecurrentModel]:
    """A checkpoint, the split to read, the report's place, and last the checkpoint's model, which may be large.

    Raises UserError where one is missing, they do not fit, or the report cannot be written.
    """
    checkpoint = find_model(config.run, config.checkpoint == "best")
    store = open_split(checkpoint, config.split, config.store)
    if store.labelled:
        raise UserError(
            f"{store.folder} has labels to predict and not the next token, so nothing continues it: score the run with python -m "
            "pipelines.evaluate"
        )
    run = run_of(config.run)
    output = output_for(config.output, run, report_name(config, checkpoint, run, store), config.split)
    check_tracking(*tracking_of(checkpoint, run, config.tracking))
    return checkpoint, store, output, model_of(checkpoint)


def report_name(config: ContinuationsConfig, checkpoint: Snapshot, run: RunFolder | None, store: SegmentStore) -> str:
    """The name of the report's folder: the run's, and what differs from a command without options."""
    text = text_mark(store.manifest) if config.store else ""
    name = checkpoint.meta["config"]["run"]
    return "-".join(filter(None, ("continuations", name, config.chosen, mark_of(config.run, checkpoint, run), text)))


def main(argv: list[str]) -> None:
    """Continue passages and write the page. Raises UserError for bad input."""
    config = cli.parse(ContinuationsConfig, argv, __doc__)
    checkpoint, store, output, model = open_run(config)
    run = run_of(config.run)
    target = RunFolder(output)
    tokenizer = tokenizer_of(checkpoint, config.store)
    passages = passages_of(checkpoint, model, store, tokenizer, config)
    title = f"{checkpoint.meta['config']['run']}, step {checkpoint.step:,}, on {store.manifest.corpus}/{store.manifest.split}"
    print_wide(continuations_table(passages), 120)
    print(f"{title}\n{summary(passages)}")
    paths = write_continuations(passages, title, target.folder)
    target.publish(*(path.name for path in paths))
    track(config, checkpoint, run, paths)
    print(f"  report    {cli.shown(target.folder / 'continuations.md')}")
    refresh_index(target.folder)


def track(config: ContinuationsConfig, checkpoint: Snapshot, run: RunFolder | None, paths: list[Path]) -> None:
    """Log the report's files to an MLflow run of their own, by default on the server of the model's run."""
    tracker = Tracker.start(
        *tracking_of(checkpoint, run, config.tracking),
        run_folder=paths[0].parent,
        run_name=f"continuations {checkpoint.meta['config']['run']}",
        params={"checkpoint": str(checkpoint.folder), "blocks": config.blocks, "seed": config.seed},
        tags={"stage": "continuations"},
    )
    tracker.log_artifacts(*paths)
    tracker.finish()
