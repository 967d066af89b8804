"""Score checkpoints on a held-out split: every document once, State carried from its first token to its last.

    python -m pipelines.evaluate runs/demo-rec runs/demo-slide
    python -m pipelines.evaluate runs/mine/checkpoints/step-00002000 --split validation
    python -m pipelines.evaluate runs/gpt2 --overlap 0 10 50             # the same weights over other windows

Bits per token, bits per byte and word-level perplexity; the same with the recurrent states, and with the whole State, cleared at
each segment; and the cumulative cross-entropy over position (block-recurrent paper, Figure 6). With several checkpoints, one table.

The figures go into the run's own metrics.jsonl and MLflow run. A checkpoint that lies elsewhere than in a run, and a run that can
not be written to, stay as they are: the report is in `runs/reports` of the working directory then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro
from rich.console import Console

from data_prep.errors import UserError
from data_prep.manifest import StoreError
from data_prep.places import Place
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint, check_fits
from pipelines.checkpoints.run_place import RECORDS, RunPlace, find_run, root_of
from pipelines.config.run import TrackingConfig
from pipelines.inference.trained import config_of, find_checkpoint, model_of
from pipelines.reports.evaluation import evaluation_rows, evaluation_table, write_report
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress
from pipelines.tracking import DatasetInfo, Tracker
from pipelines.tracking.score import Evaluation, Score, windows_of

if TYPE_CHECKING:
    from pipelines.training.scoring import Clear
    from recur_models import ModelConfig

HOME = "runs"
"""Folder of all runs by default, where `make ui` looks: of what belongs to no run that can be written to."""
NO_PARAM, MOST_LETTERS = r"[^\w\-. :/]", 250
"""What MLflow takes in no param's name, and how long that, and a run's name, may be."""
UNIGRAM_TOKENS = 20_000_000
"""Training tokens that the unigram reference is counted from, at most."""


@dataclass(frozen=True)
class EvaluateConfig:
    """What is scored, on what."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders or URIs of runs (their newest checkpoint is taken) or of checkpoints."""
    store: str = ""
    """Store to read; by default the one that each run was trained on."""
    corpus: str = ""
    """Corpus in the store; by default the one that each run was trained on."""
    split: str = "test"
    """Split to read."""
    lanes: int = 0
    """Documents that are read side by side; 0 takes the run's number of lanes. It changes the speed, not the figures."""
    segment_length: int = 0
    """Tokens of a segment, at whose start State is cleared in the cleared figures; 0 takes the run's."""
    window: tuple[int, ...] = ()
    """Score over windows of other lengths than in training, one after the other (gpt2, gpt2-rec)."""
    overlap: tuple[int, ...] = ()
    """The same of the tokens of a window that the window before it has read too."""
    allow_other_windows: bool = False
    """Score gpt2-rec over other windows and overlaps than it was trained for, which makes it worse."""
    allow_other_store: bool = False
    """Score on another store than the run was trained on, when the tokenizer is the same."""
    output: str = ""
    """Folder or URI of the report; by default `reports/<names>` beside the first run, or in `runs` where nothing can be written
    there."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("name at least one run or checkpoint: python -m pipelines.evaluate runs/demo-rec")


@dataclass(frozen=True)
class Subject:
    """A checkpoint that is scored."""

    name: str
    checkpoint: Checkpoint
    run: RunPlace | None
    """None for a lone copy of a checkpoint."""
    store: SegmentStore
    """The split to score."""
    train: SegmentStore | None
    """The training split beside it, where there is one."""
    model: ModelConfig
    """The run's, or what was asked for in the place of its windows."""
    changed: Mapping[str, int]
    """What is another than in the run."""


def subjects_of(config: EvaluateConfig) -> list[Subject]:
    """Raises ValueError where a checkpoint or a split is missing, or they do not fit."""
    checkpoints = [find_checkpoint(path) for path in config.runs]
    asked = {name: values for name, values in (("window", config.window), ("overlap", config.overlap)) if values}
    allow = "" if config.allow_other_windows else "--allow-other-windows"
    subjects = []
    for name, checkpoint, path in zip(unique_names(checkpoints), checkpoints, config.runs, strict=True):
        opened, trained = open_store(checkpoint, config), checkpoint.meta["config"]["model"]
        for values in product(*asked.values()):
            windows = dict(zip(asked, values, strict=True))
            called = "".join(f"-{field}-{value}" for field, value in windows.items())
            model = config_of(checkpoint, windows, allow)
            changed = {field: value for field, value in windows.items() if trained[field] != value}
            subjects.append(Subject(name + called, checkpoint, run_of(path), *opened, model, changed))
    return subjects


def evaluate(subject: Subject, config: EvaluateConfig) -> Evaluation:
    """Score one checkpoint, with State carried and cleared."""
    import torch  # seconds, and not before there is something to evaluate

    from pipelines.training.scoring import has_states, score_split
    from pipelines.training.world import World

    checkpoint, store, meta = subject.checkpoint, subject.store, subject.checkpoint.meta
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model_of(checkpoint, subject.model).to(device)
    data = meta["config"]["data"]
    trained = config_of(checkpoint).block  # as many blocks as in training, where these are others
    segment_length = config.segment_length or data["segment_length"] // trained * model.block

    def score(clearing: Clear, label: str) -> Score:
        with pass_progress(f"{subject.name}, {label}") as progress:
            return score_split(
                model,
                store,
                lanes=config.lanes or data["lanes"],
                segment_length=segment_length,
                world=World.current(device),
                clearing=clearing,
                progress=progress,
            )

    return Evaluation(
        name=subject.name,
        model=meta["config"]["model"]["name"],
        parameters=sum(p.numel() for p in model.parameters()),
        step=checkpoint.step,
        train_tokens=meta["tokens"],
        checkpoint=str(checkpoint.folder),
        split=f"{store.manifest.corpus}/{store.manifest.split}",
        store_fingerprint=store.manifest.fingerprint,
        carried=score("nothing", "State carried"),
        cleared_states=score("states", "states cleared") if has_states(model) else None,
        cleared_all=score("everything", "all State cleared") if model.initial_state(0) else None,
        flops_per_token=subject.model.costs(meta["vocab_size"]).flops_per_token,
        windows=windows_of(subject.model.to_json()),
    )


def unigram_bits_per_byte(train: SegmentStore, test: SegmentStore) -> float:
    """Bits per byte of the model that knows only how often each token occurs in training text (add-one smoothing)."""
    counts = np.ones(train.vocab_size)
    read = 0
    for document, length in enumerate(train.lengths.tolist()):
        counts += np.bincount(train.tokens(document, 0, length), minlength=train.vocab_size)
        read += length
        if read >= UNIGRAM_TOKENS:
            break
    bits = -np.log2(counts / counts.sum())
    total = sum(bits[test.tokens(document, 0, length)].sum() for document, length in enumerate(test.lengths.tolist()))
    return float(total / test.manifest.totals.bytes)


def open_store(checkpoint: Checkpoint, config: EvaluateConfig) -> tuple[SegmentStore, SegmentStore | None]:
    """The split to score, and the training split beside it where there is one. Raises ValueError when they do not fit."""
    data = checkpoint.meta["config"]["data"]
    place, corpus = config.store or data["store"], config.corpus or data["corpus"]
    store = SegmentStore.open(place, corpus, config.split)
    try:
        train = SegmentStore.open(place, corpus, "train")
    except StoreError:
        train = None
    for split, may_differ in ((train, config.allow_other_store), (store, True)):
        if split:
            check_fits(checkpoint, split, "" if may_differ else "--allow-other-store")
    return store, train


def main(argv: list[str]) -> None:
    config = cli.parse(EvaluateConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    subjects = subjects_of(config)
    output = output_for(config, subjects)
    for subject in subjects:
        totals = subject.store.manifest.totals
        counts = f"{totals.documents:,} documents, {totals.tokens:,} tokens"
        at = f"{subject.name}, step {subject.checkpoint.step:,}"
        print(f"evaluating {at}, on {cli.shown(subject.store.folder)}: {counts}")

    evaluations = [evaluate(subject, config) for subject in subjects]
    first = subjects[0]
    unigram = unigram_bits_per_byte(first.train, first.store) if first.train and not first.store.labelled else None
    Console(width=max(Console().width, 130), markup=False).print(evaluation_table(evaluations, unigram))
    for evaluation in evaluations:
        if evaluation.cleared_states:
            print(f"{evaluation.name}: {remark_on(evaluation.carried, evaluation.cleared_states)}", flush=True)
    target = RunPlace(output)  # a bucket gets it from a working folder
    paths = write_report(evaluations, target.folder, unigram=unigram)
    target.publish(*(path.name for path in paths))
    track(config, subjects, evaluations, paths)
    look = target.folder / "cumulative.png"
    print(f"  report    {cli.shown(output.recorded)}\n  look      {cli.shown(look)}, or make ui")


def run_of(path: str) -> RunPlace | None:
    """The run at this path, or the one that the checkpoint there belongs to; None for a lone copy of a checkpoint."""
    run, name = find_run(path)
    belongs = not name or (run.checkpoints / name == Place.parse(path) and (run.place / "config.json").exists())
    return run if belongs else None


def output_for(config: EvaluateConfig, subjects: list[Subject]) -> Place:
    """Where the report goes. Raises UserError, before anything is scored, where it cannot be written."""
    name, first = cli.file_name("-vs-".join(subject.name for subject in subjects)), subjects[0].run
    beside = [] if first is None else [first.place.parent / "reports" / name]
    places = [Place.parse(config.output)] if config.output else [*beside, Place.parse(HOME) / "reports" / name]
    chosen = next(filter(writable, places), None)
    if chosen is None:
        raise UserError(f"the report cannot be written to {places[-1]}: name another folder with --output")
    if chosen != places[0]:
        print(f"note: {places[0].parent} cannot be written: the report goes to {chosen}", flush=True)
    return chosen


def writable(file: Path | Place) -> bool:
    """Whether a file or folder can be written or made, as far as the system says so beforehand."""
    place = Place.parse(file)
    path = Path(place.path)
    while place.is_local and not path.exists():
        path = path.parent
    return not place.is_local or os.access(path, os.W_OK)


def unique_names(found: list[Checkpoint]) -> list[str]:
    """Each run's name, with the step where one run appears twice, and a number where a step does."""
    names = [checkpoint.meta["config"]["run"] for checkpoint in found]
    steps = [
        name if names.count(name) == 1 else f"{name}@{checkpoint.step}"
        for name, checkpoint in zip(names, found, strict=True)
    ]
    return [step if steps.count(step) == 1 else f"{step}.{steps[: i + 1].count(step)}" for i, step in enumerate(steps)]


def remark_on(carried: Score, cleared: Score) -> str:
    """What a reader should know of the figures: whether a model's recurrent states are worth anything yet."""
    unit = "byte" if carried.errors is None else "label"
    worth = cleared.bits_per_byte - carried.bits_per_byte
    if carried.errors is not None:
        worth = cleared.bits_per_token - carried.bits_per_token
    if worth > 0:
        return f"clearing its recurrent states costs {worth:.4f} bits per {unit}, so they carry something"
    if not carried.shows_worth:
        return (
            "what its recurrent states are worth does not show: most tokens are in the first segment of their document; try a "
            "shorter --segment-length"
        )
    return (
        f"clearing its recurrent states costs nothing ({worth:+.4f} bits per {unit}): it does not use them yet. Minutes of "
        "training are few; RESULTS.md shows a longer run"
    )


def track(
    config: EvaluateConfig, subjects: list[Subject], evaluations: list[Evaluation], paths: Sequence[Path]
) -> None:
    """Figures into each model's own MLflow run; table and plot into a run of their own."""
    home = Path(HOME).absolute()
    for subject, evaluation in zip(subjects, evaluations, strict=True):
        if (run := subject.run) is None:
            continue
        run.fetch(*RECORDS)
        if not (writable(run.folder) and writable(run.folder / "metrics.jsonl")):
            print(f"note: {run.place} cannot be written: its figures are in the report alone", flush=True)
            continue
        root = root_of(run.folder, subject.checkpoint.meta["config"]["run"])
        home = root if subject is subjects[0] else home
        tracker = Tracker.attach(tracking_of(subject, config.tracking), root, run.folder)
        row, split = evaluation_rows([evaluation])[0], evaluation.split.rpartition("/")[2]
        of = "_".join([f"whole_{split}", *(f"{field}_{value}" for field, value in subject.changed.items())])
        figures = {f"{of}/{key}": value for key, value in row.items() if isinstance(value, float)}
        tracker.log(figures, evaluation.step)
        tracker.finish()  # to a bucket metrics.jsonl is not sent back: the run may be training
    first, tracking = evaluations[0], tracking_of(subjects[0], config.tracking)
    tracking = tracking.located() if subjects[0].run is None else tracking  # its run's database is not beside it
    tracker = Tracker.start(
        tracking if tracking.uri or writable(home) else replace(tracking, backend="none"),
        root=home,
        run_folder=paths[0].parent,
        run_name=("evaluate " + " ".join(evaluation.name for evaluation in evaluations))[:MOST_LETTERS],
        params={f"{re.sub(NO_PARAM, '-', e.name)[: MOST_LETTERS - 20]}.checkpoint": e.checkpoint for e in evaluations},
        tags={"stage": "evaluate", "data_fingerprint": first.store_fingerprint},
        dataset=DatasetInfo(
            name=first.split,
            digest=first.store_fingerprint,
            source=first.split,
            documents=first.carried.documents,
            tokens=first.carried.tokens,
            context="evaluation",
        ),
    )
    for path in paths:
        tracker.log_artifact(path)
    tracker.finish()


def tracking_of(subject: Subject, asked: TrackingConfig) -> TrackingConfig:
    """Where the run itself was tracked, unless the command line says where."""
    trained = subject.checkpoint.meta["config"]["tracking"]
    where = {} if asked.uri or asked.backend == "none" else {"uri": trained["uri"], "backend": trained["backend"]}
    return replace(asked, **where, experiment=asked.experiment or trained["experiment"], system_metrics="off")


if __name__ == "__main__":
    cli.run(main)
