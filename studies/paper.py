"""A paper's table or figure as one command: train what is not trained yet, evaluate it, and print the paper's values beside ours.

    python -m pipelines.paper block-recurrent table-1 --source pg19=FOLDER arxiv=FOLDER
    python -m pipelines.paper block-recurrent table-3 --corpus python-source --seeds 0 1 2
    python -m pipelines.paper gpt2 table-2 --scale paper --dry-run                  # what it would train, and what that costs

block-recurrent has table-1 to table-5, section-4.3 and figure-3 to figure-7; gpt2 table-1 to table-4, figure-4, figure-5 and
smollm2; staircase table-1 to table-3, figure-2 and figure-3; today table-1 and figure-1, which no paper has.
`tiny` is hours on two cores, `paper` the paper's own size.

Stores, runs and reports are below `--root`, as `prepare`, `train` and `evaluate` make them. After a stop or a kill at any moment,
the same command resumes, and keeps what is done. It writes the table to `<root>/tables/…` as markdown, JSON and a picture, with the
orderings of the paper's rows that hold and those that do not.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from common.credentials import without_credentials
from common.errors import UserError, nearest
from data_prep.corpora import CORPORA, check_corpus
from data_prep.documents import check_split
from pipelines.reports.index import refresh_index
from pipelines.terminal import cli
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import plain_table, short
from pipelines.training.jobs import Job, run_jobs
from studies.continuations_report import continuations_table, summary
from studies.papers import PAPERS
from studies.papers.picture import plot
from studies.papers.plan import Plan, part_of
from studies.papers.tables import Scale
from studies.papers.trainings import (
    A100,
    FILES,
    PRETRAINED,
    AssumedRate,
    Cost,
    StudyFolder,
    rate_of_this_machine,
)

METADATA = (
    "the paper has the papers on Mathematics alone: give --options arxiv.metadata=FILE, or arxiv.subject= to read the papers of "
    "all subjects"
)
OWN = ("run", "root", "seed", "data.store", "data.corpus")
"""Fields that the table sets, or an option of its own: `--set` refuses them."""


@dataclass(frozen=True)
class PaperConfig:
    """Which table, and how much of it."""

    paper: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PAPER")]
    """block-recurrent, gpt2, staircase or today."""
    table: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TABLE")]
    """Such as table-1 or figure-3."""
    scale: Scale = "tiny"
    """tiny: models of about half a million parameters, most of which read 4 to 5 million tokens (but `gpt2 smollm2`: 135 million
    parameters and 2 million tokens); paper: as the paper has it."""
    seeds: tuple[int, ...] = (0,)
    """Seeds: each row is trained once with each; error bars are over them."""
    rates: tuple[float, ...] = ()
    """Learning rates to try with the first seed, as 2e-3 4e-3 8e-3: in each row and column the best on validation counts, by
    errors on a task and by bits per token on text. By default all have their presets'."""
    only: tuple[str, ...] = ()
    """Rows whose label has one of these words in it; by default all."""
    columns: tuple[str, ...] = ()
    """Columns whose name has one of these words in it; the columns of a picture's x and of its circles' size always stay."""
    root: Path = Path("runs/paper")
    """Folder of stores, runs and tables."""
    store: Path | None = None
    """Folder of stores, one for each tokenizer and way of reading, as `bytes` or `sentencepiece-4000-newline-normalize`; by default
    `stores` below the root."""
    source: tuple[str, ...] = ()
    """Where corpora are, as pg19=FOLDER: what is not prepared yet is prepared from there."""
    options: tuple[str, ...] = ()
    """Options of a corpus, as `prepare CORPUS --help` lists them: arxiv.metadata=FILE says which papers are of Mathematics, as the
    block-recurrent paper's are. They replace those of the table; arxiv.subject= with no value reads the papers of all subjects."""
    corpus: str = ""
    """Corpus to read instead of the paper's text in every column, such as python-source, which every machine has; tasks stay."""
    split: str = ""
    """Split to read in place of every column's own, such as validation if the test split is long compared with the training."""
    set: tuple[str, ...] = ()
    """Fields of every training, as steps=500 model.pretrained=FOLDER."""
    tokens: int = 0
    """Tokens that each training reads, in whole steps; 0 for as many as its preset says. Fewer tokens shorten the warm-up, too."""
    at_once: int = 2
    """Trainings side by side; at scale paper 1."""
    train: bool = True
    """Whether to train the missing runs; otherwise only finished results are shown."""
    dry_run: bool = False
    """Print what would run and what it costs, then exit."""
    flop_rate: float = 0.0
    """FLOP/s for the estimates of costs. With 0, two steps of each small training are timed here. The others are estimated by an
    A100's rate, or at scale tiny without a GPU by that of matrix products here."""

    def __post_init__(self) -> None:
        for value, known in ((self.paper, PAPERS), (self.table, PAPERS.get(self.paper, {}))):
            if value not in known:
                raise UserError(f"there is no {value!r}: {nearest(value, known)}")
        self.check_pairs()
        for option in self.options:
            self.check_option(option)
        if self.split:
            check_split(self.split)
        self.check_numbers()

    def check_pairs(self) -> None:
        """Raises UserError for --source and --set without a value, for a field that is no setting, and for an unknown corpus."""
        for option, pairs, example in (("source", self.source, "pg19=FOLDER"), ("set", self.set, "steps=500")):
            wrong = [pair for pair in pairs if not all(pair.partition("="))]
            if wrong:
                raise UserError(f"--{option} {wrong[0]}: write a name and its value, as in {example}")
        own = [pair for pair in self.set if pair.partition("=")[0] in OWN]
        if own:
            raise UserError(f"--set {own[0]}: that is each training's own; see --root, --seeds, --store and --corpus")
        for pair in self.source:
            check_corpus(pair.partition("=")[0])
        if self.corpus:
            check_corpus(self.corpus)

    def check_numbers(self) -> None:
        """Raises UserError for rates, a rate of FLOPs, seeds or a number of trainings that cannot be."""
        if self.rates and (min(self.rates) <= 0 or len(set(self.rates)) < len(self.rates)):
            raise UserError(f"--rates are {self.rates}: give learning rates above 0, and each once")
        if self.rates and any(pair.startswith("optim.lr=") for pair in self.set):
            raise UserError("--rates and --set optim.lr=… are given: leave one out")
        if self.tokens < 0:
            raise UserError(f"--tokens is {self.tokens}: give how many each training reads, or 0")
        if self.tokens and any(pair.startswith("steps=") for pair in self.set):
            raise UserError("--tokens and --set steps=… are given: leave one out")
        if not 0 <= self.flop_rate < math.inf:
            raise UserError(f"--flop-rate is {self.flop_rate}: give FLOP/s, or 0")
        if self.at_once < 1:
            raise UserError(f"--at-once is {self.at_once}: give 1 or more")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"--seeds are {self.seeds}: give numbers of 0 or more, and each once")

    def check_option(self, given: str) -> None:
        """Raises UserError unless ``given`` is an option of a corpus with its value, such as arxiv.subject=math."""
        corpus, name, value = option_of(given)
        if "=" not in given or not corpus or not name:
            raise UserError(f"--options {given}: write a corpus, its option and a value, as in arxiv.subject=math")
        check_corpus(corpus)
        if name == "source":
            raise UserError(f"--options {given}: give --source {corpus}={value}")
        known = sorted({each.name for each in fields(CORPORA[corpus])} - {"source"})
        if name not in known:
            raise UserError(f"--options {given}: {corpus} has no option {name!r}: {nearest(name, known)}")

    def plan(self) -> Plan:
        """The trainings and evaluations of the command: the table's rows with the given options. Raises UserError."""
        sources = dict(pair.split("=", 1) for pair in self.source)
        values = {name: value_of(value) for name, value in (pair.split("=", 1) for pair in self.set)}
        stores = self.store.absolute() if self.store else None
        options = dict[str, dict[str, str]]()
        for corpus, name, value in map(option_of, self.options):
            options.setdefault(corpus, {})[name] = value
        study = StudyFolder(self.root.absolute(), stores, sources, options, self.corpus, values, self.tokens)
        name = f"{self.paper} {self.table}"
        table = PAPERS[self.paper][self.table]
        columns = tuple(replace(column, split=self.split or column.split) for column in table.columns)
        table = replace(table, columns=columns)
        return Plan(name, part_of(table, name, self.only, self.columns), self.scale, self.seeds, study, self.rates)

    def command(self) -> str:
        """The command that makes the table again, without this machine's paths and without credentials."""
        words = [self.paper, self.table, "--scale", self.scale, "--seeds", *map(str, self.seeds)]
        words += self.content_options()
        return f"python -m pipelines.paper {shlex.join(map(without_credentials, words))}"

    def name(self) -> str:
        """Name of the table's folder, made from the options, so that each choice of rows, data and settings has its own."""
        seeds = ["seeds", *map(str, self.seeds)] if self.seeds != (0,) else []
        words = [self.paper, self.table, self.scale, *seeds, *self.content_options()]
        readable = (re.sub(r"[^\w.=,+]+", "-", without_credentials(word)).strip("-") for word in words)
        return cli.file_name("-".join(filter(None, readable)))

    def content_options(self) -> list[str]:
        """The options, as typed, that decide the content of a table, without scale and seeds."""
        words = ["--rates", *map(str, self.rates)] if self.rates else []
        if self.tokens:
            words += ["--tokens", str(self.tokens)]
        for name in ("only", "columns", "corpus", "split", "set"):
            given = [without_folder(pair) for pair in self.set] if name == "set" else getattr(self, name)
            if given:
                words += [f"--{name}", *([given] if isinstance(given, str) else given)]
        options = [option for option in self.options if option_of(option)[1] not in FILES]
        if options:
            words += ["--options", *options]
        return words


def without_folder(pair: str) -> str:
    """A field and its value, of which a folder's path is left out: its name stays."""
    name, _, value = pair.partition("=")
    return f"{name}={Path(value).name}" if name == PRETRAINED else pair


def value_of(text: str) -> Any:
    """The value of a field typed on the command line: JSON without NaN and infinities, or else the text itself."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    with contextlib.suppress(ValueError):
        return json.loads(text, parse_constant=refuse)
    return text


def option_of(given: str) -> tuple[str, str, str]:
    """Corpus, name and value of an option that is given as arxiv.subject=math."""
    option, _, value = given.partition("=")
    corpus, _, name = option.partition(".")
    return corpus, name.replace("-", "_"), value


def check_weights(plan: Plan, dry_run: bool) -> None:
    """Raises UserError if trainings begin with pretrained weights and none are named; a dry run only prints a note."""
    remedy = "--set model.pretrained=FOLDER names them, and model.pretrained=none trains untrained ones"
    for training in plan.trainings(prepared=False):
        try:
            training.config.model.check_new()
        except UserError:
            raise
        except ValueError:
            needs = f"{plan.name} at scale {plan.scale} begins with pretrained weights"
            if not dry_run:
                raise UserError(f"{needs}: {remedy}") from None
            print(f"note: {needs}: {remedy}", flush=True)
            return


def prepare(plan: Plan, train: bool) -> None:
    """Prepare missing stores whose source is known, and print commands for the rest. Raises UserError if nothing can be read."""
    missing = {training.data: None for training in plan.trainings(prepared=False)}
    jobs = {data: plan.study.preparation_job(data) for data in missing if not plan.study.is_prepared(data)}
    lacking = [job for data, job in jobs.items() if {"FOLDER", "FILE"} & set(job.words) or "FOLDER" in data.tokenizer]
    if train:
        complete = {data: job for data, job in jobs.items() if job not in lacking}
        for failed in run_jobs(list(complete.values())):
            raise UserError(f"{failed.name} failed: {failed.log} says why")
        empty = [job for data, job in complete.items() if not plan.study.is_prepared(data)]
        if empty:
            raise UserError(f"{empty[0].name} left a split empty: {empty[0].log} says what to do")
    if not plan.trainings():
        remedies = [job.shown() for job in lacking]
        if train:
            remedies += ["give --source CORPUS=FOLDER", "--corpus python-source, which every machine has"]
        else:
            remedies.append("leave out --no-train")
        raise UserError(f"{plan.name} has nothing to read at scale {plan.scale} yet: {'; or '.join(remedies)}")
    for job in lacking:
        print(f"note: not prepared, and left out: {job.shown()}", flush=True)
        if "FILE" in job.words:
            print(f"      {METADATA}", flush=True)


def total_time(costs: Sequence[Cost], rate: float, at_once: int, assumed: AssumedRate) -> str:
    """The time of some trainings, those timed here and those at the assumed rate apart. ``rate``: FLOP/s for all of them, or 0."""

    def together(trainings: Sequence[Cost]) -> str:
        seconds = sum(cost.seconds for cost in trainings) / at_once
        return cli.duration(seconds) if seconds < 4e5 else f"{seconds / 3600:,.0f} h"

    if rate:
        return f"{together(costs)} at {rate:.2e} FLOP/s"
    timed = [cost for cost in costs if cost.timed]
    others = [cost for cost in costs if not cost.timed]
    found = [f"{together(timed)} as timed here"] if timed else []
    if others:
        at = f"{assumed.flop_per_second:.2e} FLOP/s, {assumed.source}"
        found.append(f"{together(others)} (*) at {at}; --flop-rate names another")
    return " and ".join(found)


def show_costs(plan: Plan, rate: float, at_once: int, *, prepared: bool) -> None:
    """Print the cost of each training, and the total of those that are not done."""
    costs: dict[object, Cost] = {}
    labels = plan.rows_of(prepared)
    rows = list[list[str]]()
    left = list[Cost]()
    assumed = A100 if rate or plan.scale == "paper" else rate_of_this_machine(at_once)
    if not rate:
        print("timing two steps of each small model; --flop-rate leaves this out", flush=True)
    for training in plan.trainings(prepared):
        key = (training.preset, training.data, training.config.model, training.config.steps)
        if key not in costs:
            costs[key] = training.cost(rate, assumed)  # seeds cost the same
        cost = costs[key]
        is_done = training.is_done()
        if not is_done:
            left.append(cost)
        sizes = (short(cost.parameters), short(cost.tokens), f"{cost.flops:.2e}", f"{cost.bytes / 2**20:,.0f}")
        mark = "" if rate or cost.timed else " *"
        config = training.config
        words = (labels[training.name], f"{config.optim.lr:g}", str(config.seed))
        rows.append([*words, *sizes, "done" if is_done else f"{cli.duration(cost.seconds)}{mark}"])
    memory = "MiB of weights, gradients,\nmoments and State"
    headings = ("row of the table", "rate", "seed", "parameters", "tokens", "FLOPs", memory, "time")
    print_wide(plain_table(headings, rows), 180)
    if len(plan.seeds) > 1 and len(plan.choice.tried) > 1:
        print(
            f"the other seeds train at the rate that is best with seed {plan.seeds[0]}; until it is known, the table has "
            f"{plan.choice.tried[0]:g}"
        )
    if not left:
        print(f"all {len(rows)} trainings are done", flush=True)
        return
    flops = sum(cost.flops for cost in left)
    print(
        f"{len(left)} of {len(rows)} trainings to do, {at_once} at once, and evaluation beside that: {flops:.2e} FLOPs, "
        f"{total_time(left, rate, at_once, assumed)}",
        flush=True,
    )


def main(argv: list[str]) -> int:
    """Make a table of a paper, training what is missing. Raises UserError for bad input."""
    config = cli.parse(PaperConfig, argv, __doc__)
    plan = config.plan()
    at_once = config.at_once if config.scale == "tiny" else 1
    check_weights(plan, config.dry_run)
    if config.dry_run:
        show_costs(plan, config.flop_rate, at_once, prepared=False)
        return 0
    prepare(plan, config.train)
    folder = plan.study.root / "tables" / config.name()
    failed: list[Job] = []
    if config.train:
        show_costs(plan, config.flop_rate, at_once, prepared=True)
        failed = plan.make(at_once, folder)
    results = plan.results(config.command())
    if not results.facts:  # no cell has an evaluation
        remedy = f"see {plan.study.log(failed[0].name)}" if failed else "leave out --no-train"
        raise UserError(f"no training of {plan.name} is done below {config.root}: {remedy}")
    paths = [*results.write(folder), plot(results, folder / "table.png"), *plan.pages(folder)]
    print(results.title())
    print_wide(plain_table(*results.grid()), 200)
    for sentence in results.sentences():
        print(f"- {sentence}")
    passages = plan.passages(folder)
    if passages:
        print_wide(continuations_table(passages), 120)
        print(summary(passages))
    for path in paths:
        print(f"  {cli.shown(path)}")
    refresh_index(folder)
    for job in failed:
        print(f"failed: {job.name}, see {cli.shown(plan.study.log(job.name))}; the same command tries it again")
    return 1 if failed else 0
