"""The targets of an evaluation: checkpoints, each with the split that it reads, and the name of the report.

targets = load_targets(config)                # checkpoints and splits are found, and fit each other
name = "rec" + suffix_of(targets, config)     # of the report, whose place `report_folder.output_for` decides
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from common.checks import check_options
from common.choices import Dtype
from common.credentials import without_credentials
from common.errors import UserError
from common.places import Place
from data_prep.manifest import Manifest, MissingSplit
from data_prep.store import SegmentStore
from pipelines.checkpoints import retention
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.checkpoints.exported import is_exported
from pipelines.checkpoints.run_folder import RunFolder, find_run, root_of
from pipelines.config.run import TrackingConfig
from pipelines.inference.report_folder import HOME
from pipelines.inference.trained import config_of, find_model, open_split, useful_segment_length, with_windows

if TYPE_CHECKING:
    from recur_models import ModelConfig

NO_NAME = r"[^\w\-. :/]"
"""Characters that MLflow refuses in names of params and metrics."""


@dataclass(frozen=True)
class TargetsConfig:
    """Models, and the text that they read."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN...")]
    """Folders or URIs of runs or of checkpoints, or exported folders."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint of a run: the newest, or the best of those that were validated."""
    store: str = ""
    """Store to read; by default the one that each run was trained on, which an exported folder does not name."""
    corpus: str = ""
    """Corpus in the store; by default the one that each run was trained on."""
    split: str = "test"
    """Split to read."""
    lanes: int = 0
    """Documents that are read side by side; 0 takes the run's number of lanes. In float32 it changes no more than the last bits."""
    segment_length: int = 0
    """Tokens of a segment; passes with State cleared clear it at each segment's start. 0 takes the run's."""
    clear_every: int = 0
    """Instead, clear State at each multiple of this number of blocks in a document."""
    clear_at: int = 0
    """Instead, clear State once in a document, before this token: a multiple of the block."""
    window: tuple[int, ...] = ()
    """Score over windows of other lengths than in training, one after the other (gpt2, llama, mamba2, gpt2-rec, llama-rec)."""
    overlap: tuple[int, ...] = ()
    """Score with other overlaps than in training: tokens that a window shares with the one before it."""
    allow_other_windows: bool = False
    """Score gpt2-rec or llama-rec with windows and overlaps other than in training, which makes it worse."""
    allow_other_store: bool = False
    """Score on another store than the run was trained on, when the tokenizer is the same."""
    precision: Dtype = "float32"
    """Precision of the products, whatever that of the training. bfloat16 is faster on a GPU, and on a CPU with Intel's
    amx_bf16 or AMD's avx512_bf16; metrics differ in about the fifth digit."""
    output: str = ""
    """Folder or URI of the report: a new or empty one, or that of an earlier report. By default `reports/<names>` beside the first
    run, or in `runs` if nothing can be written there. What differs from a run's newest checkpoint on its test split stands behind
    the names."""
    num_workers: int | None = None
    """Reading workers: the processes of this machine, without Ray, that share the documents; 0 or 1 reads in this process alone. By
    default one for each processor or GPU if there is much to read. In float32 it changes no more than the last bits."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("name at least one run or checkpoint, such as runs/demo-rec")
        check_options(self, num_workers=0, clear_every=0, clear_at=0, lanes=0, segment_length=0)
        if self.clear_every and self.clear_at:
            raise UserError(
                f"State is cleared every {self.clear_every} blocks or at {self.clear_at:,}: give one of the two"
            )

    @property
    def chosen(self) -> str:
        """Part of a report's name: the checkpoint, if not the newest, and the precision, if not float32."""
        checkpoint = "" if self.checkpoint == "newest" else f"-{self.checkpoint}"
        return checkpoint if self.precision == "float32" else f"{checkpoint}-{self.precision}"

    @property
    def cleared(self) -> str:
        """Part of a name: where State is cleared, if not at each segment's start."""
        at = f"-cleared-at-{self.clear_at}" if self.clear_at else ""
        return f"-cleared-every-{self.clear_every}" if self.clear_every else at


@dataclass(frozen=True)
class EvaluationTarget:
    """A checkpoint that is scored."""

    name: str
    checkpoint: Snapshot
    run: RunFolder | None
    """The checkpoint's run; None for a lone copy of a checkpoint, and for an exported folder."""
    mark: str
    """Part of a report's name: the checkpoint, if one was named, or a checksum of weights that belong to no run."""
    store: SegmentStore
    """The split to score."""
    train: SegmentStore | None
    """The training split beside it, where there is one."""
    model: ModelConfig
    """Config of the run's model, with the windows that were asked for, if any."""
    changed: Mapping[str, int | str]
    """Windows and overlaps that differ from the run's, and the precision, if it is not float32."""
    differences: tuple[str, ...]
    """Parts of names: the text, if its store or corpus is not that of the training, and the segment length, if it is another."""
    precision: Dtype
    lanes: int
    segment_length: int
    """Tokens of a segment: as asked for, but no more than training or the longest document needs; or as many blocks as in
    training."""


def load_targets(config: TargetsConfig) -> list[EvaluationTarget]:
    """Find the checkpoints to score and their splits. Raises UserError where one is missing, or they do not fit."""
    checkpoints = [find_model(path, best=config.checkpoint == "best") for path in config.runs]
    targets = []
    for name, checkpoint, path in zip(unique_names(checkpoints), checkpoints, config.runs, strict=True):
        targets += targets_of(name, checkpoint, path, config)
    return targets


def targets_of(name: str, checkpoint: Snapshot, path: str, config: TargetsConfig) -> list[EvaluationTarget]:
    """The targets of one checkpoint: one for each pair of a window and an overlap that are asked for. Raises as `load_targets`."""
    store, train = open_store(checkpoint, config)
    trained = checkpoint.meta["config"]
    run = run_of(path)
    if config.checkpoint == "best" and not retention.best([checkpoint]):
        print(f"note: {name} was not validated at step {checkpoint.step:,}, which is read", flush=True)
    whole = EvaluationTarget(
        name=name,
        checkpoint=checkpoint,
        run=run,
        mark=mark_of(path, checkpoint, run),
        store=store,
        train=train,
        model=config_of(checkpoint),
        changed={} if config.precision == "float32" else {"precision": config.precision},
        differences=differences_of(checkpoint, store, train, config),
        precision=config.precision,
        lanes=config.lanes or trained["data"]["lanes"],
        segment_length=trained["data"]["segment_length"],
    )
    asked = {field: values for field, values in (("window", config.window), ("overlap", config.overlap)) if values}
    return [target_over(whole, dict(zip(asked, values, strict=True)), config) for values in product(*asked.values())]


def target_over(target: EvaluationTarget, windows: Mapping[str, int], config: TargetsConfig) -> EvaluationTarget:
    """The target with these windows and overlaps, and with segments that fit its blocks.

    Raises UserError for windows that the model cannot take, and where State would be cleared or a segment end inside a block.
    """
    name = target.name + "".join(f"-{field}-{value}" for field, value in windows.items())
    allow = "" if config.allow_other_windows else "--allow-other-windows"
    model = with_windows(target.model, windows, target.checkpoint.folder, allow)
    if config.clear_at % model.block:
        raise UserError(f"--clear-at is {config.clear_at}, inside a block of {name}: give a multiple of {model.block}")
    longest = int(target.store.lengths.max())
    if config.clear_at >= longest > 0:
        raise UserError(
            f"--clear-at is {config.clear_at:,}, and the longest document of {target.store.folder} has {longest:,} tokens: "
            "give less"
        )
    if config.segment_length % model.block:
        raise UserError(
            f"--segment-length is {config.segment_length}, and {name} has blocks of {model.block}: give a multiple of it"
        )
    changed = {field: value for field, value in windows.items() if getattr(target.model, field) != value}
    trained = target.segment_length // target.model.block * model.block
    return replace(
        target,
        name=name,
        model=model,
        changed={**changed, **target.changed},
        segment_length=useful_segment_length(config.segment_length, trained, longest, model.block),
    )


def mark_of(path: str, checkpoint: Snapshot, run: RunFolder | None) -> str:
    """The ``mark`` of an `EvaluationTarget`: the checkpoint, if one is named, and the folder of a run that was moved to another
    name; without a run, the beginning of the checkpoint's digest.
    """
    if run is None:
        return checkpoint.digest[:8]
    own = checkpoint.meta["config"]["run"].rpartition("/")[2]
    moved = "" if run.place.name == own else run.place.name
    return "-".join(filter(None, (moved, find_run(path)[1])))


def text_mark(manifest: Manifest) -> str:
    """Part of a name: a corpus, and the beginning of its fingerprint."""
    return f"{re.sub(NO_NAME, '-', manifest.corpus)}_{manifest.fingerprint[:8]}"


def differences_of(
    checkpoint: Snapshot, store: SegmentStore, train: SegmentStore | None, config: TargetsConfig
) -> tuple[str, ...]:
    """The ``differences`` of an `EvaluationTarget`.

    A store that was named is another text if its train split, or the split to score, is not that of the training's store. It
    always is without a train split. If the training's store is gone, the train split decides.
    """
    trained = checkpoint.meta["config"]["data"]
    manifest = store.manifest
    parts = []
    same_text = not config.store
    if train:
        same_text = train.manifest.fingerprint == checkpoint.meta["store"]
    if same_text and config.store:
        with suppress(ValueError, OSError):  # the store of the training may be gone
            same_text = open_split(checkpoint, config.split).manifest.fingerprint == manifest.fingerprint
    if not same_text or manifest.corpus != trained["corpus"]:
        parts.append(text_mark(manifest))
    if config.segment_length not in (0, trained["segment_length"]) and not config.cleared:
        parts.append(f"segment_length_{config.segment_length}")
    return tuple(parts)


def suffix_of(targets: Sequence[EvaluationTarget], config: TargetsConfig) -> str:
    """The end of a report's name. It differs between readings, so that none replaces another's report."""
    marks = [targets[0].mark]
    if any(target.mark != targets[0].mark for target in targets):
        marks = [target.mark or config.checkpoint for target in targets]  # in the order of the models' names
    parts = [*filter(None, marks), *dict.fromkeys(chain.from_iterable(target.differences for target in targets))]
    return config.chosen + "".join(f"-{part}" for part in parts)


def open_store(checkpoint: Snapshot, config: TargetsConfig) -> tuple[SegmentStore, SegmentStore | None]:
    """The split to score, and the training split beside it where there is one. Raises UserError when they do not fit."""
    override = "" if config.allow_other_store else "--allow-other-store"
    opened = open_split(checkpoint, config.split, config.store, config.corpus)
    try:
        train = open_split(checkpoint, "train", config.store, config.corpus, override)
    except MissingSplit:
        if config.store and override:
            raise UserError(
                f"{config.store} has no train split, which would tell whether it is the store of the training: give {override} to "
                "read it all the same"
            ) from None
        train = None
    return opened, train


def run_of(path: str) -> RunFolder | None:
    """The run at this path, or the one that the checkpoint there belongs to; None for a lone copy of a checkpoint, and for an
    exported folder."""
    if is_exported(path):
        return None
    run, name = find_run(path)
    belongs = not name or (run.checkpoints / name == Place.parse(path) and (run.place / "config.json").exists())
    return run if belongs else None


def tracked_as(trained: Mapping[str, Any], asked: TrackingConfig) -> TrackingConfig:
    """Where to track: as ``asked``, else as a run, whose config has ``trained`` under tracking."""
    located = asked.located()
    experiment = asked.experiment or trained["experiment"] or located.experiment
    if asked.uri or asked.backend == "none":
        return replace(asked, experiment=experiment)
    uri = trained["uri"]
    if without_credentials(located.uri) == uri:
        uri = located.uri  # with the password, which no run records
    return replace(asked, uri=uri, backend=trained["backend"], experiment=experiment)


def tracking_of(checkpoint: Snapshot, run: RunFolder | None, asked: TrackingConfig) -> tuple[TrackingConfig, Path]:
    """Where to track, and the folder of all runs, which has MLflow's file.

    The command line decides first, then the config of the checkpoint's run. A lone checkpoint and a read-only run use the working
    directory's folder.
    """
    found = replace(tracked_as(checkpoint.meta["config"]["tracking"], asked), system_metrics="off")
    if run is not None and Place.parse(run.folder).is_writable():
        trained_in = RunFolder(run.place, trains=True).folder  # has MLflow's file of a run in a bucket
        return found, root_of(trained_in, checkpoint.meta["config"]["run"])
    found = found.located()
    home = Path(HOME).absolute()
    return found if found.uri or Place.parse(home).is_writable() else replace(found, backend="none"), home


def unique_names(checkpoints: Sequence[Snapshot]) -> list[str]:
    """The name of each checkpoint's run, with the step where one run appears twice, and a number where a step does."""
    names = [checkpoint.meta["config"]["run"] for checkpoint in checkpoints]
    steps = [
        name if names.count(name) == 1 else f"{name}@{checkpoint.step}"
        for name, checkpoint in zip(names, checkpoints, strict=True)
    ]
    return [step if steps.count(step) == 1 else f"{step}.{steps[: i + 1].count(step)}" for i, step in enumerate(steps)]
