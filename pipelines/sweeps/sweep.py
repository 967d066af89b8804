"""What a sweep is, and its folder, which is the whole of its memory: a sweep goes on from these files, however it ended.

    <root>/<sweep>/
        sweep.json          what is varied, how, and the command; another sweep is refused
        results.jsonl       every draw, begin, validation figure and end in the order in which they counted, with what was decided
        budget.json         seconds that the sweep has taken so far
        trials/003/         an ordinary run, and trial.json: its values, status, reason, steps, best and last figure
        best.json           the winner: its values, its command, and its config, which pipelines.train takes in place of a preset

Each line of results.jsonl is written before it is acted on. Feeding the lines to the rule of early stopping and to the searcher
again puts both where they were.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from data_prep.errors import UserError, nearest
from data_prep.manifest import write_atomically
from data_prep.store import SegmentStore
from pipelines.checkpoints.lock import LOCK
from pipelines.checkpoints.run_place import RunPlace
from pipelines.config.dotted import changes, with_fields
from pipelines.config.run import CHANGEABLE_ON_RESUME, LATER, TrainConfig, flatten, to_json
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import value_of
from pipelines.terminal import cli
from pipelines.tracking.metrics import METRICS
from tune_spaces.drawing import SEARCHERS
from tune_spaces.named import is_path

Status = Literal["pending", "running", "finished", "stopped", "failed"]
NAMES = {
    "search": ("random", "grid", *SEARCHERS),
    "scheduler": ("asha", "median", "pbt", "none"),
    "stop": ("none", "plateau"),
}
"""Of fields that take an import path too."""
CHANGEABLE = ("train", "concurrent", "workers", "seconds", "tokens", "trials", "num_cpus")
"""Fields of a sweep that may differ when it is resumed; of its run those below."""
CHANGEABLE_OF_RUN = tuple(
    name for name in CHANGEABLE_ON_RESUME if name not in ("data.store", "validate_every", "validate_tokens")
)
BUDGET = "the sweep's budget"
"""How the reason of a trial begins that a larger budget would continue."""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep over a preset. Repeating the command resumes it. The fields of a run come after those of the sweep."""

    space: tyro.conf.Suppress[str]
    """What is varied: named spaces and fields joined by +."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The run that is varied; `run` names the sweep."""
    preset: str = "small-rec"
    """Named run around which the space is laid."""
    samples: int = 12
    """Trials to draw; a grid has as many as it has."""
    search: str = "random"
    """random: independent draws; grid: every combination; or what optuna (pip install optuna) or bohb (pip install hpbandster
    ConfigSpace) suggests from the results so far; or another searcher of Ray Tune's by its import path, with arguments:
    'ray.tune.search.hyperopt:HyperOptSearch(n_initial_points=5)'."""
    points: int = 3
    """Values that a grid takes of a range."""
    scheduler: str = "asha"
    """Which trials are stopped early: asha those not among the best of a rung; median those worse than the others' median; none;
    pbt none, but at every validation the worst quarter goes on from copies of the best quarter's checkpoints, with other rates.
    Or another scheduler of Ray Tune's that decides by results, by its import path; its time is in tokens:
    'ray.tune.schedulers:AsyncHyperBandScheduler(brackets=2, grace_period=100000, max_t=1000000)'."""
    stop: str = "none"
    """Which trials are stopped besides: none; plateau those whose last four figures differ by less than 0.01; or a stopper of Ray
    Tune's by its import path: 'ray.tune.stopper:TrialPlateauStopper(std=0.001, num_results=6)'."""
    reduction: int = 3
    """asha: one in so many goes on from a rung to the next."""
    rung_tokens: int = 0
    """Tokens before a trial may be stopped (asha: its first rung); 0 is a ninth of a trial."""
    equal: Literal["tokens", "flops", "steps"] = "tokens"
    """What all trials have as much of as the preset; their steps follow from it."""
    metric: str = "validation/bits_per_token"
    """The figure to make small: one that is better when lower, of validation or of training (pipelines/tracking/metrics.py).
    validation/bits_per_byte compares vocabularies."""
    concurrent: int = 0
    """Trials at once, at most; 0 for as many as fit."""
    baseline: Literal["yes", "no"] = "yes"
    """Whether the preset itself is the first trial, which is never stopped early."""
    workers: Literal["reuse", "fresh"] = "reuse"
    """Whether the Ray Train workers of a trial that has ended take the next one, or new ones are started for each."""
    seconds: float = 0
    """Budget of wall time, over all starts of the command; 0 for none."""
    tokens: int = 0
    """Budget of training tokens over all trials; 0 for none."""
    trials: int = 0
    """Budget of trials: those beyond are not begun; 0 for none."""
    num_cpus: int = 0
    """CPUs that the sweep may use of this machine; 0 for all."""

    def __post_init__(self) -> None:
        choices = [metric.name for metric in METRICS.values() if metric.better == "lower"]
        if self.metric not in choices:
            raise UserError(f"metric is {self.metric!r}: {nearest(self.metric, choices)}")
        for name, known in NAMES.items():
            if getattr(self, name) not in known and not is_path(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)!r}: {nearest(getattr(self, name), known)}")
        least = {"samples": 1, "points": 1, "reduction": 2}
        for name in (*least, "rung_tokens", "concurrent", "seconds", "tokens", "trials", "num_cpus"):
            if getattr(self, name) < least.get(name, 0):
                raise UserError(f"{name} is {getattr(self, name)}: it must be at least {least.get(name, 0)}")

    @property
    def rule(self) -> str:
        """What stops trials early by comparing them."""
        return "none" if self.scheduler == "pbt" else self.scheduler

    @property
    def suggested(self) -> bool:
        """Whether a searcher chooses trials by the results of those before."""
        return self.search not in ("random", "grid")

    @property
    def whole(self) -> int:
        """Tokens of a trial, where all have the same."""
        return self.train.steps * self.train.tokens_per_step


@dataclass(frozen=True)
class Figure:
    """The sweep's metric at one step of a trial."""

    step: int
    value: float


@dataclass
class Trial:
    """One run of a sweep, as trial.json says it."""

    id: str
    values: dict[str, Any]
    status: Status = "pending"
    reason: str = ""
    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    best: Figure | None = None
    last: Figure | None = None
    exploited: list[dict[str, Any]] = field(default_factory=list)
    baseline: bool = False
    recorded: bool = False
    """Whether MLflow has all of it, its end included."""

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped", "failed")

    def told(self) -> str:
        """Its values, as short as they are clear."""
        return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.values.items()) or "the preset"


@dataclass
class Sweep:
    """A sweep under way: its config, trials and files."""

    config: SweepConfig
    fields: list[str]
    trials: dict[str, Trial] = field(default_factory=dict)
    _vocab_sizes: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return RunPlace.of(self.config.train).folder

    def run_of(self, trial: Trial) -> TrainConfig:
        """The trial as an ordinary run: of equal cost, with a checkpoint at every validation. Raises ValueError when its values
        do not fit.
        """
        config = self.config
        run = base_of(config, trial.values)
        run = with_fields(run, {key: value for key, value in trial.values.items() if key != "preset"})
        if config.equal == "tokens":
            run = replace(run, steps=max(1, round(config.whole / run.tokens_per_step)))
        elif config.equal == "flops":
            whole = config.whole * self.flops_per_token(config.train)
            run = replace(run, steps=max(1, round(whole / (run.tokens_per_step * self.flops_per_token(run)))))
        every = run.validate_every
        if every and every % run.checkpoint.every:
            run = replace(run, checkpoint=replace(run.checkpoint, every=every))
        allowed = tuple({*run.allow_change, *self.fields}) if config.scheduler == "pbt" else run.allow_change
        return replace(run, run=f"{config.train.run}/trials/{trial.id}", allow_change=tuple(sorted(allowed)))

    def flops_per_token(self, run: TrainConfig) -> float:
        """Of training, needed."""
        return run.model.costs(self._vocab_size(run)).training_flops_per_token

    def _vocab_size(self, run: TrainConfig) -> int:
        key = (run.data.store, run.data.corpus)
        if key not in self._vocab_sizes:
            split = "validation" if run.validate_every else "train"
            self._vocab_sizes[key] = SegmentStore.open(run.data.store, run.data.corpus, split).vocab_size
        return self._vocab_sizes[key]

    # Files

    def open_folder(self, command: str, baseline: dict[str, Any]) -> None:
        """Begin the sweep's folder, or go on in it. Raises UserError when it is another's."""
        config, folder, path = self.config, self.folder, self.folder / "sweep.json"
        run = flatten(to_json(config.train))
        fixed = [key for key in run if not any(key == name or key.startswith(f"{name}.") for name in CHANGEABLE_OF_RUN)]
        names = (each.name for each in dataclasses.fields(config) if each.name not in CHANGEABLE)
        ours = {name: getattr(config, name) for name in names} | {key: run[key] for key in fixed}
        if path.exists():
            try:
                theirs = {**LATER, "stop": "none", **json.loads(path.read_text("utf-8"))["identity"]}
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path} is damaged ({error}): choose another --run") from None
            for key in [*ours, *(key for key in theirs if key not in ours)]:
                if ours.get(key) != theirs.get(key):
                    raise UserError(
                        f"{cli.shown(folder)} holds another sweep, with {key}={theirs.get(key)}, and this command says "
                        f"{ours.get(key)}: choose another --run"
                    )
            self._load_trials()
            return
        if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
            raise UserError(f"{cli.shown(folder)} holds something else than a sweep: choose another --run")
        folder.mkdir(parents=True, exist_ok=True)
        values = {"name": config.train.run, "space": config.space, "preset": config.preset, "seed": config.train.seed}
        values |= {name: getattr(config, name) for name in ("samples", "search", "scheduler", "metric")}
        values |= {"mode": "min", "fields": self.fields, "command": command, "baseline": baseline, "identity": ours}
        write_json(path, values)

    def place(self, trial: Trial) -> Path:
        return self.folder / "trials" / trial.id

    def save(self, trial: Trial) -> None:
        self.place(trial).mkdir(parents=True, exist_ok=True)
        figures = {"best": self.named(trial.best), "last": self.named(trial.last)}
        write_json(self.place(trial) / "trial.json", asdict(trial) | figures)

    def named(self, figure: Figure | None) -> dict[str, Any] | None:
        """A figure for JSON, under the metric's own name: ``{"step": 60, "validation/bits_per_byte": 2.1}``."""
        return None if figure is None else {"step": figure.step, self.config.metric: figure.value}

    def note(self, **event: Any) -> None:
        """One more line of results.jsonl."""
        data = json.dumps(event).encode() + b"\n"
        descriptor = os.open(self.folder / "results.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + data if torn else data)
        finally:
            os.close(descriptor)

    def events(self) -> Iterator[dict[str, Any]]:
        """The whole lines of results.jsonl."""
        try:
            lines = (self.folder / "results.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # torn by a kill, and written again after it

    def _load_trials(self) -> None:
        """The trials of earlier starts."""
        for path in sorted((self.folder / "trials").glob("*/trial.json")):
            try:
                trial = Trial(**json.loads(path.read_text("utf-8")))
                trial.best, trial.last = self._figure(trial.best), self._figure(trial.last)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UserError(f"{path} is damaged ({error}): remove it, and the trial's folder with it") from None
            self.trials[trial.id] = trial

    def _figure(self, saved: Any) -> Figure | None:
        value = value_of(saved or {}, self.config.metric)
        return None if value is None else Figure(saved["step"], value)

    def spent(self) -> float:
        """Seconds of earlier starts."""
        try:
            return float(json.loads((self.folder / "budget.json").read_text("utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def best(self) -> Trial | None:
        """The trial with the lowest figure; the earliest of equals."""
        scored = [trial for trial in self.trials.values() if trial.best and trial.status != "failed"]
        return min(scored, key=lambda trial: trial.best.value if trial.best else 0.0, default=None)


def base_of(config: SweepConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The run that a trial's values change: the sweep's, or another preset with the same fields overridden where it has them."""
    if "preset" not in values:
        return config.train
    row = PRESETS[values["preset"]]
    overridden = changes(config.train, PRESETS[config.preset])
    known = flatten(to_json(row))
    return with_fields(row, {key: value for key, value in overridden.items() if key in known and key != "model.name"})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=1).encode())
