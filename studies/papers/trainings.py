"""The work behind a table: stores, trainings and evaluations, each made once by its own command, and their cost.

    study = StudyFolder(root=Path("runs/paper"), sources={"pg19": "books"})
    training = study.training(Run("tiny-pg19-rec-fixed-skip", Data("pg19", "bytes")), seed=0)
    failed = run_jobs([training.job()], at_once=2)               # as `pipelines.train` on the command line: it resumes where it was
    failed = run_jobs([training.evaluation_job("test")], 2, study.record)    # `pipelines.evaluate`, whose report is kept
    training.evaluation("test")                             # and read

Nothing here depends on a table or a paper: benchmarks use it too.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from common import places
from common.errors import UserError
from data_prep.corpora import CORPORA
from data_prep.documents import SPLITS
from data_prep.manifest import MissingSplit, StoreError
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.retention import best
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.cluster.readiness import needs
from pipelines.config.dotted import options, with_fields
from pipelines.config.run import REPORTS, TrackingConfig, TrainConfig, check_resumable, may_change
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.presets import PRESETS
from pipelines.reports.evaluation import read_report
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records
from pipelines.tracking.score import Evaluation
from pipelines.training.jobs import Job, JobRecord, run_jobs
from recur_models.pretrained_config import UNTRAINED
from studies.papers.measuring import products_per_second, seconds_per_step, torch_threads, written_per_second
from studies.papers.tables import Data, Run


class AssumedRate(NamedTuple):
    """FLOP/s that are assumed for a step too large to time here."""

    flop_per_second: float
    source: str


A100 = AssumedRate(1.25e14, "40 % of an A100's")
"""As in benchmarks/scaling.py."""
SHARE_OF_PRODUCTS = 0.6
"""A CPU's training steps run at about this share of the rate of its matrix products (results/speed)."""
MEASURED_FLOPS = 5e11
"""The most FLOPs of a step that is timed on this machine."""
FILES = ("metadata", "ids")
"""Options of a corpus that name a local file: they are no part of a store's name."""
DECIDE_THE_BEST = frozenset({"validate_every", "validate_tokens", "checkpoint.every"})
"""Fields that only change which of a training's checkpoints is the best."""
WARM_UP = "schedule.warmup_steps"
PRETRAINED = "model.pretrained"
TIMED_STEPS = 7
"""How many steps are timed; a table has their median."""


@dataclass(frozen=True)
class Cost:
    """The cost of one training."""

    parameters: int
    tokens: int
    flops: float
    bytes: int
    """Memory that one worker needs, without activations."""
    seconds: float
    timed: bool
    """Whether a step was timed here, for `seconds`."""


@dataclass(frozen=True)
class StudyFolder:
    """The folder of stores, runs and reports, with the settings of all trainings there."""

    root: Path
    stores: Path | None = None
    """Folder of stores (`Data.store`); by default below the root."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folder or file of a corpus, by its name."""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Options by corpus, then by their names: they replace those of a table's data."""
    corpus: str = ""
    """A corpus that replaces every corpus of text."""
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted fields that all trainings are given."""
    tokens: int = 0
    """Tokens that each training reads, in whole steps; 0 for as many as its own. A shorter training has a shorter warm-up."""

    @property
    def record(self) -> JobRecord:
        """Record of the evaluations, comparisons and continuations of this folder."""
        return JobRecord(places.Place.parse(self.root) / "jobs.json")

    def data(self, data: Data) -> Data:
        """``data`` with this folder's corpus and options in place of its own."""
        if self.corpus and data.is_text:
            data = replace(data, corpus=self.corpus, options=())
        values = self.options.get(data.corpus, {})
        return data.with_options({name: value for name, value in values.items() if name not in FILES})

    def store(self, data: Data) -> Path:
        """The folder of the store of ``data``, which holds one for each corpus."""
        return data.store(self.stores or self.root / "stores")

    def is_prepared(self, data: Data) -> bool:
        """Whether the store of ``data`` has all splits."""
        return all((self.store(data) / data.corpus / split / "manifest.json").is_file() for split in SPLITS)

    def preparation_job(self, data: Data) -> Job:
        """The command that prepares ``data``. FOLDER stands for a source or a tokenizer that must be given, FILE for metadata."""
        needs = data.corpus != "python-source" and "source" in {each.name for each in fields(CORPORA[data.corpus])}
        path = self.sources.get(data.corpus, "FOLDER" if needs else "")
        source = ("--source", path) if path else ()
        files = {name: value for name, value in self.options.get(data.corpus, {}).items() if name in FILES}
        if "--subject" in data.options:
            files = {"metadata": "FILE", **files}
        beside = [word for name, value in files.items() for word in (f"--{name}", value)]
        own = replace(data, tokenizer=self.tokenizer(data))
        words = (*own.words, *source, *beside, "--store", str(self.store(data)), "--num-workers", "0")
        name = f"prepare {data}"
        return Job(name, "prepare", words, log=self.log(name))

    def tokenizer(self, data: Data) -> str:
        """The tokenizer, as `pipelines.prepare` takes it; FOLDER stands for a folder that must be given."""
        if not data.of_pretrained:
            return data.tokenizer
        folder = self.set.get(PRETRAINED, UNTRAINED)
        return "FOLDER" if folder == UNTRAINED else folder

    def log(self, name: str) -> Path:
        """The file for the output of the job of this name."""
        readable = re.sub(r"[^-.\w]+", "-", name)
        return self.root / "logs" / f"{cli.file_name(readable)}.log"

    def training(self, run: Run, seed: int) -> Training:
        """The training of ``run`` with this seed. Raises UserError for a field that the preset lacks, and conflicting values."""
        data = self.data(run.data)
        values = {
            **self.fields(run),
            "data.store": str(self.store(data)),
            "data.corpus": data.corpus,
            "root": str(self.root),
            "seed": seed,
            "run": self.training_name(run, seed),
        }
        return Training(self, data, with_fields(PRESETS[run.preset], values), run.preset, run.read, run.checkpoint)

    def fields(self, run: Run) -> dict[str, Any]:
        """The fields by which a run's training differs from its preset, those of this folder included.

        With fewer tokens, the warm-up keeps its share of the steps, but for a schedule whose peak depends on the warm-up, and
        where it is set by hand.
        """
        values = {**run.fields, **self.set}
        if not self.tokens:
            return values
        own = with_fields(PRESETS[run.preset], values)
        steps = max(1, self.tokens // own.tokens_per_step)
        if steps != own.steps:
            values["steps"] = steps
        if steps < own.steps and own.schedule.name != "inverse-sqrt" and WARM_UP not in self.set:
            values[WARM_UP] = own.schedule.warmup_steps * steps // own.steps
        return values

    def training_name(self, run: Run, seed: int) -> str:
        """The name of a training: its preset, its data, and the fields by which its weights differ from the preset's."""
        data = self.data(run.data)
        by_default = replace(self, options={}).data(run.data)
        corpus_words = data.options if data.options != by_default.options else ()
        differing = []
        for key, value in self.fields(run).items():
            decides_best = run.checkpoint == "best" and key in self.set and key in DECIDE_THE_BEST
            if decides_best or not may_change(key):
                differing.append(f"{key.rpartition('.')[2]}-{value}")
        words = [run.preset, data.corpus, data.tokenizer, *(word.lstrip("-") for word in corpus_words), *differing]
        words.append(f"seed-{seed}")
        return cli.file_name("-".join(re.sub(r"[^\w.]+", "-", word) for word in words if word))


@dataclass(frozen=True)
class Training:
    """One run in a `StudyFolder`."""

    study: StudyFolder
    data: Data
    config: TrainConfig
    preset: str
    read: Mapping[str, int]
    """`window` and `overlap` in scoring, where they differ from those of training."""
    checkpoint: Literal["newest", "best"]
    """Which checkpoint is scored; best: the best of those that were validated."""

    @property
    def name(self) -> str:
        return self.config.run

    @property
    def folder(self) -> Path:
        return self.study.root / self.name

    def job(self) -> Job:
        """The `train` command that begins or resumes it."""
        words = (self.preset, *options(self.config, PRESETS[self.preset]))
        name = f"train {self.name}"
        return Job(name, "train", words, log=self.study.log(name))

    def is_done(self) -> bool:
        """Whether its last step is saved. Raises UserError if another run has its name."""
        newest = next(iter(RunFolder.parse(self.folder).complete_checkpoints()), None)
        if newest is not None:
            try:
                check_resumable(newest.meta["config"], self.config, self.folder)
            except UserError as error:
                differs = str(error).partition(": choose")[0]
                raise UserError(f"{differs}: name another --root, or remove that run") from None
            self.check_store(newest)
        return newest is not None and newest.step >= self.config.steps

    def check_store(self, checkpoint: Checkpoint) -> None:
        """Raises UserError if the store that stands here now is not the one that this run was trained on."""
        data = self.config.data
        with contextlib.suppress(MissingSplit):  # it is prepared later, and then checked
            fingerprint = SegmentStore.open(data.store, data.corpus, "train").manifest.fingerprint
            if fingerprint != checkpoint.meta["store"]:
                raise UserError(
                    f"{self.folder} was trained on another store than {data.store}: name another --root, or remove that run"
                )

    def scored(self) -> Checkpoint | None:
        """The checkpoint that is scored; None before there is one. Without a validation there is no best one: it is the newest."""
        complete = RunFolder.parse(self.folder).complete_checkpoints()
        chosen = best(complete) if self.checkpoint == "best" else []
        return next(iter([*chosen, *complete]), None)

    def lacks_best(self) -> bool:
        """Whether its newest checkpoint is scored instead of the best, because none was validated."""
        scored = self.scored() if self.checkpoint == "best" else None
        return scored is not None and not best([scored])

    def report(self, split: str) -> Path:
        """Folder of the evaluation on a split."""
        windows = "".join(f"-{name}-{value}" for name, value in self.read.items())
        of_best = "-best" if self.checkpoint == "best" else ""
        return self.study.root / REPORTS / cli.file_name(f"{self.name}{windows}{of_best}-{split}")

    @property
    def scored_folder(self) -> Path:
        """Folder of the checkpoint that is scored; before there is one, the run's."""
        scored = self.scored()
        return scored.folder if scored else self.folder

    def scoring_inputs(self, split: str) -> tuple[Path, ...]:
        """The files that identify the weights and the text of a command that scores this training."""
        return (
            self.scored_folder / "checkpoint.json",
            Path(self.config.data.store) / self.data.corpus / split / "manifest.json",
        )

    def evaluation_job(self, split: str) -> Job:
        """The `evaluate` command that scores it on a split, State carried and recurrent states cleared."""
        windows = [word for name, value in self.read.items() for word in (f"--{name}", str(value))]
        output = self.report(split)
        words = ("--split", split, *windows, "--clear", "states")  # no table shows the worth of all State
        tracking = tracking_words(self.config.tracking)
        store = str(self.study.store(self.data))
        where = (str(self.scored_folder), "--store", store, "--output", str(output), *tracking)
        name = f"evaluate {output.name}"
        made = (output / "report.json",)
        return Job(name, "evaluate", words, self.scoring_inputs(split), made, where, self.study.log(name))

    def evaluation(self, split: str) -> Evaluation | None:
        """The finished evaluation; None if there is none, or if the weights or the text have changed since."""
        if not self.study.record.is_current(self.evaluation_job(split)):
            return None
        (found,) = read_report(self.report(split))
        return found

    def validated(self, errors: bool) -> float:
        """Validation's share of errors if ``errors``, else its bits per token: the last, or the least where the best checkpoint is
        scored; infinite without a validation."""
        name = "validation/error_rate" if errors else "validation/bits_per_token"
        records = read_records(self.folder / "metrics.jsonl")
        found = [record.metrics[name] for record in records if name in record.metrics]
        if not found:
            return math.inf
        return min(found) if self.checkpoint == "best" else found[-1]

    def ms_per_step(self) -> float | None:
        """Milliseconds of a step: timed now if it is small, since trainings run beside others; else the median of its curve.

        None if the step is large and there is no curve.
        """
        vocab_size = self.vocab_size()
        if self.flops_per_step(vocab_size) <= MEASURED_FLOPS:
            return 1e3 * seconds_per_step(self.config, vocab_size, TIMED_STEPS)
        records = read_records(self.folder / "metrics.jsonl")
        logged = [record for record in records if "train/tokens_per_second" in record.metrics]
        if not logged:
            return None
        tokens_per_step = logged[-1].metrics["train/tokens"] / logged[-1].step
        return 1e3 * tokens_per_step / median(record.metrics["train/tokens_per_second"] for record in logged)

    def written_per_second(self) -> float | None:
        """Tokens that a lane writes in a second, timed now; None if the model is too large for this machine."""
        vocab_size = self.vocab_size()
        flops = self.config.model.costs(vocab_size).flops_per_token * self.config.model.block
        return written_per_second(self.config.model, vocab_size) if flops <= MEASURED_FLOPS else None

    def names_wrong(self, windows: int) -> float:
        """Percentage of the names of the corpus `names` that the model does not know so many windows later, asked now."""
        from studies.recall import measure_recall

        store = SegmentStore.open(self.config.data.store, self.data.corpus, "test")
        with torch_threads(1):
            model = model_of(find_checkpoint(self.scored_folder))
            return 100 * (1 - measure_recall(model, store, windows, cleared=False).names)

    def cost(self, rate: float = 0.0, assumed: AssumedRate = A100) -> Cost:
        """The cost of the training. ``rate``: FLOP/s; with 0, small steps are timed here, and large ones take ``assumed``."""
        vocab_size = self.vocab_size()
        steps = self.config.steps
        per_step = self.flops_per_step(vocab_size)
        timed = not rate and per_step <= MEASURED_FLOPS
        step = seconds_per_step(self.config, vocab_size, 1) if timed else per_step / (rate or assumed.flop_per_second)
        _, worker_bytes = needs(self.config, vocab_size)
        return Cost(
            parameters=self.config.model.costs(vocab_size).parameters,
            tokens=steps * self.config.tokens_per_step,
            flops=steps * per_step,
            bytes=worker_bytes,
            seconds=steps * step,
            timed=timed,
        )

    def vocab_size(self) -> int:
        """The store's number of ids; before there is a store, the number that its tokenizer will have."""
        with contextlib.suppress(StoreError):
            return SegmentStore.open(self.config.data.store, self.data.corpus, "train").vocab_size
        return self.data.vocab_size

    def flops_per_step(self, vocab_size: int) -> float:
        return self.config.model.costs(vocab_size).training_flops_per_token * self.config.tokens_per_step


def tracking_words(config: TrackingConfig) -> tuple[str, ...]:
    """Options that track a command as its training is tracked, with the credentials that no checkpoint records."""
    return ("--tracking.backend", config.backend, *(("--tracking.uri", config.uri) if config.uri else ()))


def rate_of_this_machine(at_once: int) -> AssumedRate:
    """The rate of each of some trainings at once: an A100's on a machine with a GPU, else a share of this CPU's, timed now."""
    import torch

    if torch.cuda.is_available():
        return A100
    share = f"{SHARE_OF_PRODUCTS:.0%} of the rate of matrix products on this CPU"
    return AssumedRate(SHARE_OF_PRODUCTS * products_per_second() / at_once, share)


def make(trainings: Sequence[Training], at_once: int, scored: str = "") -> None:
    """Prepare missing stores, train missing runs, and score the split ``scored``, if given. Raises UserError if a command fails."""

    def run_all(jobs: Sequence[Job], at_once: int) -> None:
        for failed in run_jobs(jobs, at_once, trainings[0].study.record):
            raise UserError(f"{failed.name} failed: see {failed.log}")

    studies = {each.data: each.study for each in trainings}
    run_all([study.preparation_job(data) for data, study in studies.items() if not study.is_prepared(data)], 1)
    run_all([each.job() for each in trainings if not each.is_done()], at_once)
    if scored:
        run_all([each.evaluation_job(scored) for each in trainings if not each.evaluation(scored)], at_once)
