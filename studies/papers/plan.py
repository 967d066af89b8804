"""The plan of a table: the trainings and evaluations of its cells, and their results.

name, table = "block-recurrent table-1", PAPERS["block-recurrent"]["table-1"]
plan = Plan(name, part_of(table, name, only=("Rec",)), "tiny", seeds=(0, 1), study=study)
failed = plan.make(2, folder)
plan.results("python -m pipelines.paper …").markdown()
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, product
from operator import itemgetter
from pathlib import Path
from statistics import mean

from common.errors import UserError
from data_prep.corpora import CODE
from data_prep.store import SegmentStore
from pipelines.reports.evaluation_figures import plot_cumulative
from pipelines.terminal.tables import counted
from pipelines.tracking.score import Evaluation
from pipelines.training.jobs import Job, run_jobs
from recur_models.pretrained_config import UNTRAINED
from studies.continuations_report import Passage, read_continuations
from studies.papers.rates import Rates
from studies.papers.results import Results
from studies.papers.tables import BY_WORD, READ_NO_TEXT, TIMES, Column, Row, Run, Scale, Table
from studies.papers.trainings import PRETRAINED, StudyFolder, Training, tracking_words


@dataclass(frozen=True)
class Plan:
    """A table, or the requested part of one, at one scale."""

    name: str
    table: Table
    scale: Scale
    seeds: tuple[int, ...]
    study: StudyFolder
    rates: tuple[float, ...] = ()
    """Learning rates to choose from for each run; without any, runs have their preset's."""

    def runs_of(self, row: Row, prepared: bool = True) -> dict[str, Run]:
        """Runs to train for a row's columns; ``prepared``: only those that have a store."""
        wanted = {column.of for column in self.table.columns} - {""}
        found = {}
        for key, run in row.runs.get(self.scale, {}).items():
            is_wanted = key in wanted or not wanted
            if is_wanted and (not prepared or self.study.is_prepared(self.study.data(run.data))):
                found[key] = run
        return found

    @property
    def choice(self) -> Rates:
        """How each run's learning rate is chosen: with the first seed."""
        return Rates(self.study, self.seeds[0], self.rates)

    def trainings(self, prepared: bool = True) -> list[Training]:
        """The trainings, each once, seed by seed: the first seed at all rates, the others at the chosen rate."""
        runs = [run for row in self.table.rows for run in self.runs_of(row, prepared).values()]
        first, *others = self.seeds
        made = [self.study.training(each, first) for run in runs for each in self.choice.runs(run)]
        chosen = [self.choice.chosen(run) for run in runs] if others else []
        made += [self.study.training(run, seed) for seed in others for run in chosen]
        return list({training.name: training for training in made}.values())

    def rows_of(self, prepared: bool = True) -> dict[str, str]:
        """The table's rows that each training stands in, for people, by the training's name. Where a row has several trainings, the
        column follows.
        """
        labels: dict[str, list[str]] = {}
        for row in self.table.rows:
            runs = self.runs_of(row, prepared)
            for key, run in runs.items():
                label = row.label if len(runs) == 1 else f"{row.label}, {key}"
                for each, seed in product(self.choice.runs(run), self.seeds):
                    labels.setdefault(self.study.training(each, seed).name, []).append(label)
        return {
            name: first if not others else f"{first}, and {counted(len(others), 'more row')}"
            for name, (first, *others) in labels.items()
        }

    def cells(self) -> Iterator[tuple[Row, Column, Training]]:
        """Row, column and training of each of our results, seed by seed."""
        chosen = [
            (row, {key: self.choice.chosen(run) for key, run in self.runs_of(row).items()}) for row in self.table.rows
        ]
        for seed in self.seeds:
            for row, runs in chosen:
                for column in self.table.columns:
                    key = column.of or next(iter(runs), "")
                    run = runs.get(key)
                    if run:
                        yield row, self.scored(column, key), self.study.training(run, seed)

    def scored(self, column: Column, key: str) -> Column:
        """The column; a cost or a time, which reads no text, takes the split of the first column that reads the run ``key``."""
        if column.metric not in READ_NO_TEXT:
            return column
        reading = [each for each in self.table.columns if each.metric not in READ_NO_TEXT and each.of in ("", key)]
        return replace(column, split=reading[0].split) if reading else column

    def make(self, at_once: int, folder: Path) -> list[Job]:
        """Train, evaluate, compare and continue what is missing; reports go into ``folder``. Returns the jobs that failed."""
        failed = self.train(at_once)
        run_jobs(self.evaluation_jobs(), at_once, self.study.record)
        reading = [*self.comparison_jobs(folder), *self.continuation_jobs(folder)]
        return [*failed, *self.evaluation_jobs(), *run_jobs(reading, 1, self.study.record)]

    def train(self, at_once: int) -> list[Job]:
        """Train what is missing, the first seed before the others. Returns the jobs that failed."""
        failed = list[Job]()
        for plan in (replace(self, seeds=self.seeds[:1]), self):
            jobs = [training.job() for training in plan.trainings() if not training.is_done()]
            failed += run_jobs([job for job in jobs if job not in failed], at_once)
        return failed

    def evaluation_jobs(self) -> list[Job]:
        """The missing evaluations of finished trainings, each once. One that is still missing after it was run has failed."""
        done = [(column, training) for _, column, training in self.cells() if training.is_done()]
        jobs = {training.evaluation_job(column.split): None for column, training in done}
        return [job for job in jobs if not self.study.record.is_current(job)]

    def comparison_jobs(self, folder: Path) -> list[Job]:
        """The comparison of the table's two models token by token, each with its row's first seed and column."""
        first: dict[str, Training] = {}
        for row, _, training in self.cells():
            first.setdefault(row.label, training)
        compared = [first[label] for label in self.table.tokens if label in first and first[label].is_done()]
        if not compared or len(compared) < len(self.table.tokens):
            return []
        return [self.reading_job("tokens", compared, self.table.token_words, folder)]

    def continuation_jobs(self, folder: Path) -> list[Job]:
        """The continuation of passages with the model of the table's first row and first seed."""
        training = next((training for *_, training in self.cells()), None)
        if not self.table.continued or training is None or not training.is_done():
            return []
        return [self.reading_job("continuations", [training], self.table.continued, folder)]

    def reading_job(self, module: str, trainings: Sequence[Training], words: Sequence[str], folder: Path) -> Job:
        """A command that reads the split of the first column with these models, and reports into a folder of its own name."""
        first = trainings[0]
        split = self.table.columns[0].split
        models = [str(training.scored_folder) for training in trainings]
        reads = [path for training in trainings for path in training.scoring_inputs(split)]
        made = folder / module
        words = (*words, "--split", split)
        tracking = tracking_words(first.config.tracking)
        where = (*models, "--store", str(first.study.store(first.data)), "--output", str(made), *tracking)
        name = f"{module} {self.name}"
        return Job(name, module, words, tuple(reads), (made,), where, self.study.log(name))

    def results(self, command: str) -> Results:
        """The metrics of everything that is evaluated."""
        found = Found()
        for row, column, training in self.cells():
            evaluation = training.evaluation(column.split)
            if evaluation:
                found.add(row, column, training, evaluation)
        found.divide_times(self.table)
        facts = self.facts(found) if found.fingerprints else ()
        cells = {key: tuple(values) for key, values in found.values.items() if values}
        reads_text = any(
            run.data.is_text for row in self.table.rows for run in self.runs_of(row, prepared=False).values()
        )
        runs = {label: sorted(names) for label, names in found.runs.items()}
        best = {key: min(pairs, key=itemgetter(0))[1] for key, pairs in found.validated.items()}
        return Results(
            self.name,
            self.table,
            self.scale,
            self.seeds,
            cells,
            command=command,
            facts=facts,
            runs=runs,
            best=best,
            corpus=self.study.corpus if reads_text else "",
        )

    def scored_trainings(self) -> list[Training]:
        """The trainings behind the cells, each once. Where several learning rates are tried, only those of the chosen one."""
        return list({training.name: training for *_, training in self.cells()}.values())

    def facts(self, found: Found) -> tuple[str, ...]:
        """Sentences on the data, and on values that are missing or do not compare with the paper's."""
        data = "; ".join(f"{name} {fingerprint}" for name, fingerprint in found.fingerprints.items())
        counts = sorted({min(found.train_tokens), max(found.train_tokens)})
        tokens = " to ".join(f"{count:,}" for count in counts)
        asked = f", since --tokens {self.study.tokens} replaces the presets' numbers" if self.study.tokens else ""
        facts = [f"data: {data}", f"tokens read in training: {tokens}{asked}"]
        for corpus in sorted(found.wordless):
            facts.append(f"{corpus} is program code, of which no metric is given by word")
        for name in sorted(found.unvalidated):
            facts.append(f"{name} was never validated: it is in no column of the best seed")
        for name in found.baseless:
            facts.append(f"{name} is left out: {self.table.base}, which it is divided by, has none here")
        for training in self.scored_trainings():
            if training.lacks_best():
                facts.append(f"{training.name} was never validated: its newest checkpoint is scored")
        facts += self.choice.facts([run for row in self.table.rows for run in self.runs_of(row).values()])
        if self.study.set.get(PRETRAINED) == UNTRAINED:
            facts.append("the weights began untrained, the paper's pretrained: the two do not compare")
        if any(column.metric in TIMES for column in self.table.columns):
            facts.append("times, where a step is small: of one thread, timed when this was written")
        return tuple(facts)

    def pages(self, folder: Path) -> list[Path]:
        """Pages beside a table: cross-entropy over position, a comparison token by token, or continuations."""
        made: list[Path] = []
        if self.table.cumulative:
            split = self.table.columns[0].split
            found = [training.evaluation(split) for training in self.scored_trainings()]
            evaluations = [evaluation for evaluation in found if evaluation]
            if evaluations:
                made.append(plot_cumulative(evaluations, folder / "cumulative.png"))
        pages = (folder / "tokens" / "tokens.html", folder / "continuations" / "continuations.md")
        return [*made, *(page for page in pages if page.exists())]

    def passages(self, folder: Path) -> list[Passage]:
        """The passages that `continuation_jobs` has written. Raises UserError if their file is damaged."""
        return read_continuations(folder / "continuations") if self.table.continued else []


@dataclass
class Found:
    """Values that `Plan.results` collects from evaluations. A pair as a key is a row's label and a column's name."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])
    """Values by cell, one for each seed."""
    validated: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[float, float]]]
    )
    """For columns of the best seed: the validation's score, and the value, of each seed."""
    runs: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Names of the runs behind each row."""
    fingerprints: dict[str, str] = field(default_factory=dict[str, str])
    """Fingerprints of the stores, by data and split."""
    train_tokens: set[int] = field(default_factory=set[int])
    wordless: set[str] = field(default_factory=set[str])
    """Corpora of program code, which have no metrics by word."""
    unvalidated: set[str] = field(default_factory=set[str])
    """Names of runs that were never validated."""
    baseless: list[str] = field(default_factory=list[str])
    """Columns of relative times whose base row has no time."""

    def add(self, row: Row, column: Column, training: Training, evaluation: Evaluation) -> None:
        """Add the value of one cell and one seed."""
        key = (row.label, column.name)
        value = metric_of(column, training, evaluation)
        score = training.validated(column.metric == "error_percent") if column.best else 0.0
        if not math.isfinite(score):
            self.unvalidated.add(training.name)
        elif value is not None and math.isfinite(value):
            self.values.setdefault(key, []).append(value)
            if column.best:
                self.validated.setdefault(key, []).append((score, value))
        elif column.metric in BY_WORD and training.config.data.corpus in CODE:
            self.wordless.add(training.config.data.corpus)
        self.runs.setdefault(row.label, set()).add(training.name)
        self.fingerprints[f"{training.data}, {column.split}"] = evaluation.store_fingerprint[:12]
        self.train_tokens.add(evaluation.train_tokens)

    def divide_times(self, table: Table) -> None:
        """Divide relative times by the mean of the base row; without one, leave them out."""
        for column in table.columns:
            keys = [key for key in self.values if key[1] == column.name]
            if column.metric != "relative_time" or not keys:
                continue
            base = self.values.get((table.base, column.name))
            if not base:
                self.baseless.append(column.name)
            unit = mean(base) if base else math.nan
            for key in keys:
                self.values[key] = [time / unit for time in self.values[key]] if base else []


def part_of(table: Table, name: str, only: Sequence[str] = (), columns: Sequence[str] = ()) -> Table:
    """The rows and columns whose names contain one of these words, or all without words. The picture's x and size always stay.

    Raises UserError for a word that no name contains.
    """

    def chosen(words: Sequence[str], names: Sequence[str]) -> list[bool]:
        for word in words:
            if not any(word.lower() in known.lower() for known in names):
                raise UserError(f"{name} has nothing with {word!r} in its name: {'; '.join(names)}")
        return [not words or any(word.lower() in known.lower() for word in words) for known in names]

    rows = chosen(only, [row.label for row in table.rows])
    names = [column.name for column in table.columns]
    drawn = (table.x, table.size)
    kept = [keep or named in drawn for keep, named in zip(chosen(columns, names), names, strict=True)]
    return replace(table, rows=tuple(compress(table.rows, rows)), columns=tuple(compress(table.columns, kept)))


def metric_of(column: Column, training: Training, evaluation: Evaluation) -> float | None:
    """Our value of a column's metric; None if there is none. `relative_time` is still in milliseconds (`Found.divide_times`)."""
    config = training.config
    score = evaluation.carried
    match column.metric:
        case "bits_per_token":
            return score.bits_per_token
        case "bits_per_byte":
            return score.bits_per_byte
        case "perplexity":
            return score.perplexity
        case "word_perplexity":
            published = evaluation.published_words  # the count that papers use
            return evaluation.published_word_perplexity if published else score.word_perplexity
        case "error_percent":
            return 100 * score.error_rate
        case "states_cleared":
            cleared = evaluation.cleared_states
            return cleared.bits_per_token - score.bits_per_token if cleared else None
        case "names_wrong":
            return training.names_wrong(column.windows)
        case "tokens":
            return float(scored_split(training, evaluation).manifest.totals.tokens)
        case "tokens_per_word":
            words = evaluation.published_words or score.words
            return scored_split(training, evaluation).manifest.totals.tokens / words if words else None
        case "vocabulary":
            return float(scored_split(training, evaluation).vocab_size - 1)
        case "parameters":
            return float(evaluation.parameters)
        case "layers":
            layers = config.model.to_json().get("layers")
            count = len(layers) if isinstance(layers, list) else layers  # a list has a name for each layer
            return float(count) if count else None
        case "flops_without_output":
            output = 2 * config.model.costs(training.vocab_size()).embedding_parameters
            return (evaluation.flops_per_token or math.nan) - output
        case "state_bytes":
            return float(config.model.state_bytes(training.vocab_size()))
        case "relative_time" | "ms_per_step":
            return training.ms_per_step()
        case "tokens_per_second":
            milliseconds = training.ms_per_step()
            return 1e3 * config.tokens_per_step / milliseconds if milliseconds else None
        case "written_per_second":
            return training.written_per_second()


def scored_split(training: Training, evaluation: Evaluation) -> SegmentStore:
    """The split that an evaluation has scored."""
    return SegmentStore.open(training.config.data.store, training.data.corpus, evaluation.split.rpartition("/")[2])
