"""The work behind a table: stores, trainings and evaluations, each made once by its own command, and their cost.

    place = StudyFolder(root=Path("runs/paper"), sources={"pg19": "books"})
    training = place.training(Run("tiny-pg19-rec-fixed-skip", Data("pg19", "bytes")), seed=0)
    failed = run_jobs([training.job()], at_once=2)               # as `pipelines.train` on the command line: it resumes where it was
    failed = run_jobs([training.evaluating({}, "test")], 2, place.record)    # `pipelines.evaluate`, whose report is kept
    training.evaluation({}, "test")                         # and read

Which table it is for, or which paper's, nothing here knows: benchmarks use it too.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from common import places
from common.errors import UserError, given_by_user
from data_prep.corpora import CORPORA
from data_prep.documents import SPLITS
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.retention import best
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.dotted import options, with_fields
from pipelines.config.run import ModelSettings, TrainConfig, check_resumable, may_change
from pipelines.presets import PRESETS
from pipelines.reports.evaluation import read_report
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records
from pipelines.tracking.score import Evaluation
from pipelines.training.jobs import Job, Record
from studies.papers.tables import Data, Run

ASSUMED_RATE = 1.25e14
"""FLOP/s where nothing is measured: 40 % of an A100's, as benchmarks/scaling.py guesses."""
MEASURED_FLOPS = 5e11
"""FLOPs of a step that is timed on this machine, at most."""
FILES = ("metadata", "ids")
"""Options of a corpus that name a file, and so belong to one machine: no store is named after them."""
TIMED_STEPS = 7
"""Steps that are timed; a table has their median."""


@dataclass(frozen=True)
class Cost:
    """The cost of one training."""

    parameters: int
    tokens: int
    flops: float
    bytes: int
    """Memory of weights, gradients and the optimizer's two moments, in float32."""
    seconds: float


@dataclass(frozen=True)
class StudyFolder:
    """Where stores, runs and reports are, and what holds for all trainings there."""

    root: Path
    stores: Path | None = None
    """Folder of stores (`Data.store`); by default below the root."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folder or file of a corpus, by its name."""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Options of a corpus by their names, by the corpus's name: they replace those of a table's data."""
    corpus: str = ""
    """Read in place of every corpus of text."""
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted fields of all trainings."""

    @property
    def record(self) -> Record:
        """Record of the evaluations, comparisons and continuations of this folder."""
        return Record(places.Place.parse(self.root) / "jobs.json")

    def data(self, data: Data) -> Data:
        """``data`` with this folder's corpus and options in place of its own."""
        if self.corpus and data.tokenizer:
            data = replace(data, corpus=self.corpus, options=())
        given = self.options.get(data.corpus, {})
        return data.with_options({name: value for name, value in given.items() if name not in FILES})

    def store(self, data: Data) -> Path:
        return data.store(self.stores or self.root / "stores")

    def is_prepared(self, data: Data) -> bool:
        return all((self.store(data) / data.corpus / split / "manifest.json").is_file() for split in SPLITS)

    def preparing(self, data: Data) -> Job:
        """The command that prepares it; where a source has to be given it has FOLDER in it, and where metadata has, FILE."""
        needs = data.corpus != "python-source" and "source" in {each.name for each in fields(CORPORA[data.corpus])}
        given = self.sources.get(data.corpus, "FOLDER" if needs else "")
        source = ("--source", given) if given else ()
        files = {name: value for name, value in self.options.get(data.corpus, {}).items() if name in FILES}
        if "--subject" in data.options:
            files = {"metadata": "FILE", **files}
        beside = [word for name, value in files.items() for word in (f"--{name}", value)]
        words = (*data.words, *source, *beside, "--store", str(self.store(data)), "--num-workers", "0")
        name = f"prepare {data}"
        return Job(name, "prepare", words, log=self.log(name))

    def log(self, name: str) -> Path:
        readable = re.sub(r"[^-.\w]+", "-", name)
        return self.root / "logs" / f"{cli.file_name(readable)}.log"

    def training(self, run: Run, seed: int) -> Training:
        """Raises UserError for a field that the preset does not have, and for values that do not go together."""
        data = self.data(run.data)
        named = {key: value for key, value in {**run.fields, **self.set}.items() if not may_change(key)}
        changed = [f"{key.rpartition('.')[2]}-{value}" for key, value in named.items()]
        words = (run.preset, data.corpus, data.tokenizer, *changed, f"seed-{seed}")
        name = cli.file_name("-".join(re.sub(r"[^\w.]+", "-", word) for word in words if word))
        where = {"data.store": str(self.store(data)), "data.corpus": data.corpus, "root": str(self.root)}
        values = {**run.fields, **self.set, **where, "seed": seed, "run": name}
        return Training(self, data, with_fields(PRESETS[run.preset], values), run.preset, run.checkpoint)


@dataclass(frozen=True)
class Training:
    """One run below a place's root."""

    place: StudyFolder
    data: Data
    config: TrainConfig
    preset: str
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint is scored; best: the best of those that were validated."""

    @property
    def name(self) -> str:
        return self.config.run

    @property
    def folder(self) -> Path:
        return self.place.root / self.name

    def job(self) -> Job:
        words = (self.preset, *options(self.config, PRESETS[self.preset]))
        name = f"train {self.name}"
        return Job(name, "train", words, log=self.place.log(name))

    def is_done(self) -> bool:
        """Whether its last step is saved. Raises UserError where another run has its name."""
        newest = next(iter(RunFolder.parse(self.folder).complete_checkpoints()), None)
        if newest is not None:
            try:
                check_resumable(newest.meta["config"], self.config, self.folder)
            except UserError as error:
                differs = str(error).partition(": choose")[0]
                raise UserError(f"{differs}: name another --root, or remove that run") from None
        return newest is not None and newest.step >= self.config.steps

    def scored(self) -> Checkpoint | None:
        """The checkpoint that is scored; None before there is one. A run that was never validated has no best one: its newest."""
        whole = RunFolder.parse(self.folder).complete_checkpoints()
        chosen = best(whole) if self.checkpoint == "best" else []
        return next(iter([*chosen, *whole]), None)

    def lacks_best(self) -> bool:
        """Whether its newest checkpoint is scored instead of the best, since none was validated."""
        scored = self.scored() if self.checkpoint == "best" else None
        return scored is not None and not best([scored])

    def report(self, read: Mapping[str, int], split: str) -> Path:
        """Folder of the evaluation over these windows."""
        windows = "".join(f"-{name}-{value}" for name, value in read.items())
        of_best = "-best" if self.checkpoint == "best" else ""
        return self.place.root / "reports" / cli.file_name(f"{self.name}{windows}{of_best}-{split}")

    @property
    def model(self) -> Path:
        """Folder of the checkpoint that is scored; before there is one, the run's."""
        scored = self.scored()
        return scored.folder if scored else self.folder

    def reads(self, split: str) -> tuple[Path, ...]:
        """The records of the weights and of the text that a command reads which scores it."""
        return (
            self.model / "checkpoint.json",
            Path(self.config.data.store) / self.data.corpus / split / "manifest.json",
        )

    def evaluating(self, read: Mapping[str, int], split: str) -> Job:
        windows = [word for name, value in read.items() for word in (f"--{name}", str(value))]
        output = self.report(read, split)
        words = ("--split", split, *windows, "--clear", "states")  # of all State no table asks for the worth
        where = (str(self.model), "--output", str(output), "--tracking.backend", self.config.tracking.backend)
        name = f"evaluate {output.name}"
        made = (output / "report.json",)
        return Job(name, "evaluate", words, self.reads(split), made, where, self.place.log(name))

    def evaluation(self, read: Mapping[str, int], split: str) -> Evaluation | None:
        """The finished evaluation; None if there is none, or if the weights or the text have changed since."""
        if not self.place.record.is_current(self.evaluating(read, split)):
            return None
        (found,) = read_report(self.report(read, split))
        return found

    def validated(self, errors: bool) -> float:
        """The last validation's share of errors, or bits per token; infinite where there was none."""
        name = "validation/error_rate" if errors else "validation/bits_per_token"
        records = read_records(self.folder / "metrics.jsonl")
        return next((record.metrics[name] for record in reversed(records) if name in record.metrics), math.inf)

    def ms_per_step(self) -> float | None:
        """Where a step is small, timed here and now: a training beside others is as fast as they let it. Else the median over the
        points of its curve; None before there is one.
        """
        vocab_size = self.vocab_size()
        if self.flops_per_step(vocab_size) <= MEASURED_FLOPS:
            return 1e3 * seconds_per_step(self.config, vocab_size, TIMED_STEPS)
        records = read_records(self.folder / "metrics.jsonl")
        rates = [rate for record in records if (rate := record.metrics.get("train/tokens_per_second"))]
        return 1e3 * self.config.tokens_per_step / median(rates) if rates else None

    def written_per_second(self) -> float | None:
        """Tokens that a lane writes in a second, timed here and now; None where the model is too large for that."""
        vocab_size = self.vocab_size()
        flops = self.config.model.costs(vocab_size).flops_per_token * self.config.model.block
        return written_per_second(self.config.model, vocab_size) if flops <= MEASURED_FLOPS else None

    def cost(self, rate: float = 0.0) -> Cost:
        """``rate``: FLOP/s; 0 times two steps here where they are small, and assumes one otherwise."""
        vocab_size = self.vocab_size()
        steps = self.config.steps
        per_step = self.flops_per_step(vocab_size)
        parameters = self.config.model.costs(vocab_size).parameters
        if not rate and per_step <= MEASURED_FLOPS:
            seconds = steps * seconds_per_step(self.config, vocab_size, 1)
        else:
            seconds = steps * per_step / (rate or ASSUMED_RATE)
        return Cost(parameters, steps * self.config.tokens_per_step, steps * per_step, 16 * parameters, seconds)

    def vocab_size(self) -> int:
        """The store's; before there is one, what its tokenizer will have."""
        with contextlib.suppress(StoreError):
            return SegmentStore.open(self.config.data.store, self.data.corpus, "train").vocab_size
        return self.data.vocab_size

    def flops_per_step(self, vocab_size: int) -> float:
        return self.config.model.costs(vocab_size).training_flops_per_token * self.config.tokens_per_step


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes in one thread, and afterwards in as many as before."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seconds_per_step(config: TrainConfig, vocab_size: int, steps: int) -> float:
    """Seconds of a forward and backward pass on random tokens and a quarter of the lanes, in this process.

    It is a thread's processor time, which other work on the machine changes little: the median of ``steps``, after a first one,
    which is slower.
    """
    import torch

    lanes = max(config.data.lanes // 4, 1)
    with one_thread():
        with given_by_user(ValueError):  # of pretrained weights, say
            model = config.model.build(vocab_size)
        tokens_BT = torch.randint(vocab_size - 1, (lanes, config.data.segment_length))
        seconds = []
        for _ in range(1 + steps):
            began = time.process_time()
            model(tokens_BT, None, None, tokens_BT)[0].sum().backward()
            seconds.append(time.process_time() - began)
        return median(seconds[1:]) * config.data.lanes / lanes


def written_per_second(config: ModelSettings, vocab_size: int) -> float:
    """Tokens that this model reads one by one in a second of a thread's processor time, as it does where it writes.

    From the second block on, where State has begun; each of four blocks is timed, and the median counts.
    """
    import torch

    from recur_models.decoding import begin, read

    with one_thread(), torch.no_grad():
        model = config.build(vocab_size).eval()
        tokens_BT = torch.randint(vocab_size - 1, (1, 5 * config.block))
        decoder = model.incremental_decoder()
        reading = begin(decoder, lanes=1)
        rates = []
        for block_BW in tokens_BT.split(config.block, 1):
            began = time.process_time()
            for token_B1 in block_BW.split(1, 1):
                _, reading = read(decoder, reading, token_B1, keep=1)
            rates.append(config.block / (time.process_time() - began))
        return median(rates[1:])


def value_of(text: str) -> Any:
    """A field's value as it is typed: JSON, which has no NaN, or else a word."""
    with contextlib.suppress(ValueError):
        return json.loads(text, parse_constant=int)
    return text
