"""A run as it is compared: what it cost and its metrics, from its folder or from MLflow.

    collect(["runs/demo-rec", "runs/sweep", "0123456789abcdef0123456789abcdef"], TrackingConfig(), Path("runs"), every_trial=False)

FLOPs are those that the model needs (recur_models/costs.py) times the tokens read. Wall time is that between a run's first metric
and its last, without the pauses in which it did not run.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.errors import UserError, given_by_user
from common.files import parse_json
from common.places import Place
from common.uris import is_uri
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.exported import is_saved_model
from pipelines.checkpoints.nearby import remedy_near
from pipelines.checkpoints.run_folder import RunFolder, is_sweep
from pipelines.config.run import TrackingConfig, config_hash_without_seed
from pipelines.reports.sweep_result import TOKENS, Point, pauses, points_of, read_sweep
from pipelines.tracking import StoredRun, read_run
from pipelines.tracking.metrics import further
from pipelines.tracking.metrics_file import Record, read_records
from pipelines.tracking.score import architecture_of, windows_of

TOKEN = "validation/bits_per_token"
BYTE = "validation/bits_per_byte"
TRAIN = "train/bits_per_token"
WORTH = "validation/worth_of_states_bits"
CLEARED = "validation/bits_per_token_states_cleared"
ERROR = "validation/error_rate"
TRAIN_ERROR = "train/error_rate"


@dataclass(frozen=True)
class FinishedRun:
    """One run."""

    name: str
    model: str
    """The model's name, for a stack of mixers with their kinds (`architecture_of`)."""
    parameters: int | None
    training_flops_per_token: float | None
    """FLOPs per token in training; None if the vocabulary is not known."""
    tokenizer: str
    """Fingerprint of the tokenizer; empty where it is not known."""
    text: str
    """Corpus, and how much of its validation split was read."""
    store: str
    """Fingerprint of the train split; empty where it is not known."""
    records: tuple[Record, ...]
    """The run's records, ordered by step."""
    forward_flops_per_token: float | None = None
    """FLOPs per token of the forward pass alone."""
    windows: Mapping[str, int] = field(default_factory=dict[str, int])
    """The `window` that the model's attention sees, and its `overlap`, if it has them."""
    seed: int | None = None
    config_hash: str = ""
    """Hash of the config without the seed; empty where the config is not at hand."""
    folder: Path | None = None
    """The run's folder, if it is on this machine."""

    @property
    def alike(self) -> tuple[object, ...]:
        """A key that is equal for runs that differ in the seed alone and have reached the same step; empty if not known."""
        step = max((record.step for record in self.records), default=0)
        return (self.config_hash, self.tokenizer, self.text, self.store, step) if self.config_hash else ()

    @cached_property
    def seconds(self) -> dict[int, float]:
        """Wall time by step: seconds since the run's first record, without its pauses."""
        seconds = {}
        clock = 0.0
        for (before, record), paused in zip(pairwise(self.records), pauses(self.records), strict=True):
            gap = (record.time - before.time) / 1e3
            if gap > 0 and not paused:  # a clock that is set back takes nothing away
                clock += gap
            seconds[record.step] = clock
        return seconds

    def curve(self, key: str) -> list[Point]:
        """Points of a metric. Their times are those of `seconds`."""
        return [replace(point, time=self.seconds.get(point.step, 0.0)) for point in points_of(self.records, key)]

    def with_metric(self, key: str) -> list[Record]:
        """The records that have the metric, by step; a NaN does not count."""
        return [record for record in self.records if math.isfinite(record.metrics.get(key, math.nan))]


def collect(names: Sequence[str], config: TrackingConfig, root: Path, every_trial: bool) -> list[FinishedRun]:
    """The runs of these folders and MLflow ids. A sweep gives its best trial, or with ``every_trial`` all that have a metric.

    Raises UserError, in a sentence, for a name that is neither.
    """
    found: list[FinishedRun] = []
    for name in names:
        place = Place.parse(name)
        if place.is_dir():
            found += runs_of_sweep(place, every_trial) if is_sweep(place) else [run_of_folder(place)]
        elif re.fullmatch("[0-9a-f]{32}", name):
            found += runs_of_mlflow(name, config, root, every_trial)
        else:
            raise UserError(
                f"{place if is_uri(name) else name} is neither the folder of a run or a sweep nor the id of a run in MLflow (32 "
                "characters)"
            )
    return found


def _config_of(run: RunFolder, saved: Sequence[Checkpoint]) -> dict[str, Any]:
    """The config of a run, from its newest checkpoint if config.json is damaged. Raises UserError where there is neither."""
    file = run.place / "config.json"
    config: Any = None
    try:
        config = parse_json(file.read_bytes())
    except FileNotFoundError:
        remedy = remedy_near(run.place, "name a folder that training or tuning wrote")
        raise UserError(
            f"{run.place} is not the folder of a run or a sweep, since it has no config.json: {remedy}"
        ) from None
    except ValueError:  # it is damaged
        pass
    match config:
        case {"run": str(), "model": {"name": str()}, "data": {"corpus": str(), "store": str()}}:
            if isinstance(config.get("validate_tokens"), int | None):
                return config
    if saved:
        return saved[0].meta["config"]
    if run.is_local and is_saved_model(run.folder):
        raise UserError(f"{run.place} is a saved model, which has no curve: name the folder of its run")
    raise UserError(f"{file} is damaged, or not that of a run: repeat the training command, which writes it again")


def run_of_folder(folder: Path | Place, name: str = "") -> FinishedRun:
    """A run, in a folder or a bucket. Raises UserError where there is none."""
    run = RunFolder.parse(folder)
    saved = run.complete_checkpoints()
    config = _config_of(run, saved)
    model = config["model"]
    data = config["data"]
    # they stay empty, and dependent values unknown, if there is neither a checkpoint nor the store
    vocab_size = 0
    tokenizer = ""
    store = ""
    if saved:
        vocab_size = saved[0].meta["vocab_size"]
        tokenizer = saved[0].meta["tokenizer"]
        store = saved[0].meta["store"]
    else:
        with suppress(ValueError, OSError):
            manifest = SegmentStore.open(data["store"], data["corpus"], "train").manifest
            vocab_size = manifest.tokenizer.vocab_size
            tokenizer = manifest.tokenizer.fingerprint
            store = manifest.fingerprint
    run.fetch("metrics.jsonl")
    file = run.folder / "metrics.jsonl"
    records = read_records(file)
    stopped_early = file.exists() and not file.stat().st_size  # before its first record
    if saved and not records and not stopped_early:
        raise UserError(
            f"{run.place / 'metrics.jsonl'} is missing or damaged: restore it, or name the run by its id in MLflow"
        )
    made = _finished_run(
        name=name or config["run"],
        model=model,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        corpus=data["corpus"],
        store=store,
        validate_tokens=config.get("validate_tokens"),
        records=records,
    )
    return replace(
        made,
        seed=config.get("seed"),
        config_hash=config_hash_without_seed(config),
        folder=run.folder if run.is_local else None,
    )


def runs_of_sweep(place: Place, every_trial: bool) -> list[FinishedRun]:
    """The sweep's best trial, or with ``every_trial`` all that have a result. Raises UserError where none has one."""
    sweep = read_sweep(place)
    if not sweep.scored:
        raise UserError(f"{place}: no trial of this sweep has a result yet")
    trials = sweep.scored if every_trial else sweep.scored[:1]
    return [run_of_folder(place / f"trials/{trial.id}", f"{sweep.name}/{trial.id}") for trial in trials]


def runs_of_mlflow(run_id: str, config: TrackingConfig, root: Path, every_trial: bool) -> list[FinishedRun]:
    """A run that MLflow keeps, or the best trial (every trial) of a sweep. Raises UserError where none has the metric."""
    keys = (TOKEN, BYTE, TRAIN, WORTH, CLEARED, ERROR, TRAIN_ERROR, TOKENS, *(metric.name for metric in further()))
    run = read_run(config, root, run_id, keys)
    if not run.children:
        return [run_of_mlflow(run)]
    metric = run.params.get("metric", TOKEN)
    stored = [read_run(config, root, child, (*keys, metric)) for child in run.children]
    below = [run_of_mlflow(child) for child in stored if child.tags.get("trial.status") != "failed"]
    scored = [child for child in below if child.with_metric(metric)]
    trials = sorted(scored, key=lambda child: min(record.metrics[metric] for record in child.with_metric(metric)))
    if not trials:
        raise UserError(f"no run below {run.name} ({run_id}) has the metric {metric}")
    return trials if every_trial else trials[:1]


def run_of_mlflow(run: StoredRun) -> FinishedRun:
    """A run of `pipelines.train` from its parameters and metrics in MLflow. Raises UserError for a run of another program."""
    model = {key.removeprefix("model."): _value(value) for key, value in run.params.items() if key.startswith("model.")}
    if "name" not in model:
        raise UserError(f"the run {run.name} ({run.id}) is not one that pipelines.train has made: it has no model.name")
    return _finished_run(
        name=run.name,
        model=model,
        vocab_size=int(run.tags.get("vocab_size", 0)),
        tokenizer=run.tags.get("tokenizer_fingerprint", ""),
        corpus=run.params.get("data.corpus", ""),
        store=run.tags.get("data_fingerprint", ""),
        validate_tokens=_value(run.params.get("validate_tokens", "None")),
        records=run.records,
    )


def _value(text: str) -> Any:
    """The value of a param, which MLflow keeps as text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _finished_run(
    *,
    name: str,
    model: dict[str, Any],
    vocab_size: int,
    tokenizer: str,
    corpus: str,
    store: str,
    validate_tokens: Any,
    records: Sequence[Record],
) -> FinishedRun:
    """The run's costs and records. ``vocab_size``: 0 where it is not known. ``validate_tokens``: 0 or None where all were read."""
    from recur_models import model_from_json  # torch: seconds, and not before there is a run

    trained = [record for record in records if not all(key.startswith("whole_") for key in record.metrics)]
    with given_by_user(ValueError):  # a model that this version does not know
        cost = model_from_json(model).costs(vocab_size) if vocab_size else None
    return FinishedRun(
        name=name,
        model=architecture_of(model),
        parameters=cost.parameters if cost else None,
        training_flops_per_token=cost.training_flops_per_token if cost else None,
        tokenizer=tokenizer,
        text=f"{corpus}, {validate_tokens:,} tokens" if validate_tokens else f"{corpus}, all of it",
        store=store,
        records=tuple(sorted(trained, key=lambda record: (record.step, record.time))),
        forward_flops_per_token=cost.flops_per_token if cost else None,
        windows=windows_of(model),
    )
