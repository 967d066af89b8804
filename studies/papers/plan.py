"""The plan of a table: the trainings and evaluations of its cells, and their results.

name, table = "block-recurrent table-1", PAPERS["block-recurrent"]["table-1"]
plan = Plan(name, part_of(table, name, only=("Rec",)), "tiny", seeds=(0, 1), place=place)
failed = plan.make(2, folder)
plan.results("python -m pipelines.paper …").markdown()
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import itemgetter
from pathlib import Path
from statistics import mean

from common.errors import UserError
from data_prep.corpora import CODE
from data_prep.store import SegmentStore
from pipelines.reports.evaluation_figures import plot_cumulative
from pipelines.tracking.score import Evaluation
from pipelines.training.jobs import Job, run_jobs
from recur_models.pretrained_config import UNTRAINED
from studies.continuations_report import Passage, read_continuations
from studies.papers.results import Results
from studies.papers.tables import BY_WORD, TIMES, Column, Metric, Row, Run, Scale, Table
from studies.papers.trainings import StudyFolder, Training


@dataclass(frozen=True)
class Plan:
    """A table, or what was asked for of it, at one scale."""

    name: str
    table: Table
    scale: Scale
    seeds: tuple[int, ...]
    place: StudyFolder

    def runs_of(self, row: Row, prepared: bool = True) -> dict[str, Run]:
        """Runs to train for a row's columns; ``prepared``: only those that have a store."""
        runs = row.runs.get(self.scale, {})
        wanted = {column.of for column in self.table.columns} - {""}
        found = {key: run for key, run in runs.items() if key in wanted or not wanted}
        return {
            key: run for key, run in found.items() if not prepared or self.place.is_prepared(self.place.data(run.data))
        }

    def trainings(self, prepared: bool = True) -> list[Training]:
        """Each once, those of a seed together."""
        runs = [run for row in self.table.rows for run in self.runs_of(row, prepared).values()]
        made = [self.place.training(run, seed) for seed in self.seeds for run in runs]
        return list({training.name: training for training in made}.values())

    def cells(self) -> Iterator[tuple[Row, Column, Run, Training]]:
        """The runs behind each of our results, seed by seed."""
        for seed in self.seeds:
            for row in self.table.rows:
                runs = self.runs_of(row)
                for column in self.table.columns:
                    key = column.of or next(iter(runs), "")
                    run = runs.get(key)
                    if run:
                        yield row, self.scored(column, key), run, self.place.training(run, seed)

    def scored(self, column: Column, key: str) -> Column:
        """The column, with the split of the others of this run if it has no text of its own: a time is of no split."""
        own = [other.split for other in self.table.columns if other.of and other.of == key]
        return replace(column, split=own[0]) if own and not column.of else column

    def make(self, at_once: int, folder: Path) -> list[Job]:
        """Train, evaluate, compare and continue, into ``folder``, what is not there; what failed."""
        failed = run_jobs([training.job() for training in self.trainings() if not training.is_done()], at_once)
        run_jobs(self.evaluating(), at_once, self.place.record)
        reading = [*self.comparing(folder), *self.continuing(folder)]
        return [*failed, *self.evaluating(), *run_jobs(reading, 1, self.place.record)]

    def evaluating(self) -> list[Job]:
        """The evaluations that trainings lack, each once. One that is lacking still when it was run has failed."""
        cells = [(column, run.read, training) for _, column, run, training in self.cells() if training.is_done()]
        jobs = {training.evaluating(read, column.split): None for column, read, training in cells}
        return [job for job in jobs if not self.place.record.is_current(job)]

    def comparing(self, folder: Path) -> list[Job]:
        """The comparison of the table's two models token by token, each with its row's first seed and column."""
        first: dict[str, Training] = {}
        for row, _, _, training in self.cells():
            first.setdefault(row.label, training)
        compared = [first[label] for label in self.table.tokens if label in first and first[label].is_done()]
        if not compared or len(compared) < len(self.table.tokens):
            return []
        return [self.reading("tokens", compared, self.table.token_words, folder)]

    def continuing(self, folder: Path) -> list[Job]:
        """The continuation of passages with the model of the table's first row and first seed."""
        training = next((training for *_, training in self.cells()), None)
        if not self.table.continued or training is None or not training.is_done():
            return []
        return [self.reading("continuations", [training], self.table.continued, folder)]

    def reading(self, module: str, trainings: Sequence[Training], words: Sequence[str], folder: Path) -> Job:
        """A command that reads the split of the first column with these models, and reports into a folder of its own name."""
        first = trainings[0]
        split = self.table.columns[0].split
        models = [str(training.model) for training in trainings]
        reads = [path for training in trainings for path in training.reads(split)]
        made = folder / module
        words = (*words, "--split", split)
        where = (*models, "--output", str(made), "--tracking.backend", first.config.tracking.backend)
        name = f"{module} {self.name}"
        return Job(name, module, words, tuple(reads), (made,), where, self.place.log(name))

    def results(self, command: str) -> Results:
        """The metrics of everything that is evaluated."""
        found: dict[tuple[str, str], list[float]] = {}
        validated: dict[tuple[str, str], list[tuple[float, float]]] = {}
        runs: dict[str, set[str]] = {}
        read = dict[str, str]()
        tokens = set[int]()
        wordless = set[str]()
        unvalidated = set[str]()
        for row, column, of, training in self.cells():
            evaluation = training.evaluation(of.read, column.split)
            if evaluation:
                value = metric_of(column.metric, training, evaluation)
                by = training.validated(column.metric == "error_percent") if column.best else 0.0
                if not math.isfinite(by):
                    unvalidated.add(training.name)
                elif value is not None and math.isfinite(value):
                    found.setdefault((row.label, column.name), []).append(value)
                    if column.best:
                        validated.setdefault((row.label, column.name), []).append((by, value))
                elif column.metric in BY_WORD and training.config.data.corpus in CODE:
                    wordless.add(training.config.data.corpus)
                runs.setdefault(row.label, set()).add(training.name)
                read[f"{training.data}, {column.split}"] = evaluation.store_fingerprint[:12]
                tokens.add(evaluation.train_tokens)
        baseless: list[str] = []
        for column in self.table.columns:
            if column.metric == "relative_time":
                base = found.get((self.table.base, column.name))
                keys = [key for key in found if key[1] == column.name]
                for key in keys:
                    found[key] = [time / mean(base) for time in found[key]] if base else []
                baseless += [column.name] if keys and not base else []
        data = "; ".join(f"{name} {fingerprint}" for name, fingerprint in read.items())
        range_ = " to ".join(f"{count:,}" for count in sorted({min(tokens), max(tokens)})) if tokens else ""
        facts = (f"data: {data}", f"tokens read in training: {range_}") if read else ()
        facts += tuple(f"{corpus} is program code, of which no metric is given by word" for corpus in sorted(wordless))
        facts += tuple(
            f"{name} was never validated: it is in no column of the best seed" for name in sorted(unvalidated)
        )
        facts += tuple(f"{name} is against {self.table.base}, which has none here" for name in baseless)
        lacking = [each.name for each in self.trainings() if each.lacks_best()] if facts else []
        facts += tuple(f"{name} was never validated: its newest checkpoint is scored" for name in lacking)
        if facts and self.place.set.get("model.pretrained") == UNTRAINED:
            facts += ("the weights began untrained, the paper's pretrained: the two do not compare",)
        if any(column.metric in TIMES for column in self.table.columns):
            facts += ("times, where a step is small: of one thread, timed when this was written",) if facts else ()
        cells = {key: tuple(values) for key, values in found.items() if values}
        named = {label: sorted(names) for label, names in runs.items()}
        best = {key: min(pairs, key=itemgetter(0))[1] for key, pairs in validated.items()}
        return Results(self.name, self.table, self.scale, self.seeds, cells, command, facts, {"runs": named}, best)

    def pages(self, folder: Path) -> list[Path]:
        """Pages beside a table: cross-entropy over position, a comparison token by token, or continuations."""
        made: list[Path] = []
        if self.table.cumulative:
            split = self.table.columns[0].split
            found = [training.evaluation({}, split) for training in self.trainings()]
            evaluations = [evaluation for evaluation in found if evaluation]
            if evaluations:
                made.append(plot_cumulative(evaluations, folder / "cumulative.png"))
        pages = (folder / "tokens" / "tokens.html", folder / "continuations" / "continuations.md")
        return [*made, *(page for page in pages if page.exists())]

    def passages(self, folder: Path) -> list[Passage]:
        """Those that `continuing` has written. Raises UserError where its file is damaged."""
        return read_continuations(folder / "continuations") if self.table.continued else []


def part_of(table: Table, name: str, only: Sequence[str] = (), columns: Sequence[str] = ()) -> Table:
    """The rows and columns that have one of these words in their names, all where there is none; x and size of the picture always.

    Raises UserError for a word that none has.
    """

    def chosen(words: Sequence[str], names: Sequence[str]) -> list[bool]:
        for word in words:
            if not any(word.lower() in known.lower() for known in names):
                raise UserError(f"{name} has nothing with {word!r} in its name: {', '.join(names)}")
        return [not words or any(word.lower() in known.lower() for word in words) for known in names]

    rows = chosen(only, [row.label for row in table.rows])
    names = [column.name for column in table.columns]
    drawn = (table.x, table.size)
    kept = [keep or named in drawn for keep, named in zip(chosen(columns, names), names, strict=True)]
    return replace(table, rows=tuple(compress(table.rows, rows)), columns=tuple(compress(table.columns, kept)))


def metric_of(metric: Metric, training: Training, evaluation: Evaluation) -> float | None:
    """Ours; `relative_time` is a time still, in milliseconds."""
    if metric == "written_per_second":
        return training.written_per_second()
    if metric in TIMES:
        milliseconds = training.ms_per_step()
        if metric == "tokens_per_second" and milliseconds:
            return 1e3 * training.config.tokens_per_step / milliseconds
        return milliseconds
    if metric == "state_bytes":
        return float(training.config.model.state_bytes(training.vocab_size()))
    score = evaluation.carried
    split = evaluation.split.rpartition("/")[2]
    store = SegmentStore.open(training.config.data.store, training.data.corpus, split)
    totals = store.manifest.totals
    cleared = evaluation.cleared_states
    published = evaluation.published_words  # by which papers reckon
    words = published or score.words
    layers = training.config.model.to_json().get("layers")
    output = 2 * training.config.model.costs(store.vocab_size).embedding_parameters
    values: dict[Metric, float | None] = {
        "bits_per_token": score.bits_per_token,
        "bits_per_byte": score.bits_per_byte,
        "perplexity": 2**score.bits_per_token,
        "word_perplexity": evaluation.published_word_perplexity if published else score.word_perplexity,
        "error_percent": 100 * score.error_rate,
        "flops_without_output": (evaluation.flops_per_token or math.nan) - output,
        "parameters": float(evaluation.parameters),
        "layers": float(layers) if layers else None,
        "vocabulary": float(store.vocab_size - 1),
        "tokens": float(totals.tokens),
        "tokens_per_word": totals.tokens / words if words else None,
        "states_cleared": cleared.bits_per_token - score.bits_per_token if cleared else None,
    }
    return values[metric]
