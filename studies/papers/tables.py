"""A table of a paper: its columns, its rows with the paper's results, and the run behind each of our results.

    Table(
        "Table 1: the models",
        columns=(Column("PG19 tokens", "bits_per_token", of="PG19 tokens"),),
        rows=(Row("Slide:13L", {"PG19 tokens": 3.58}, {"paper": {"PG19 tokens": Run("pg19-slide-13L", PG19)}}),),
    )

A row names a preset and the fields that differ from it, once for each scale and each training. It holds values alone, as
pipelines/presets/ does; trainings.py makes results of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.corpora import CORPORA
from data_prep.corpora.names import Names
from data_prep.corpora.tasks import Task

Scale = Literal["tiny", "paper"]
"""tiny: hours on two cores; paper: the paper's own size."""
Metric = Literal[
    "bits_per_token", "bits_per_byte", "perplexity", "word_perplexity", "error_percent", "relative_time", "ms_per_step",
    "flops_without_output", "parameters", "layers", "vocabulary", "tokens", "tokens_per_word", "states_cleared",
    "state_bytes", "tokens_per_second", "written_per_second", "names_wrong",
]  # fmt: skip
"""Metrics of a column. `perplexity` is by token, `error_percent` of labels. `flops_without_output` counts the forward pass for a
token, without the output layer. `relative_time` is a step's time over that of `Table.base`. `vocabulary` counts the tokenizer's ids
without begin-of-document. `tokens` and `tokens_per_word` are of the split. `states_cleared` is the cost, in bits per token, of
clearing the recurrent states, or the memory, at each segment. `state_bytes` are those of a lane. `tokens_per_second` are read in
training; `written_per_second` are written one by one in one lane. `names_wrong` is the percentage of names that are not known
`Column.windows` later (studies/recall.py)."""
LOWER = ("bits_per_token", "bits_per_byte", "perplexity", "word_perplexity", "error_percent", "names_wrong")
"""Metrics whose lower values are better; rows are ordered by them."""
PERCENTAGES = ("error_percent", "names_wrong")
BY_WORD = ("word_perplexity", "tokens_per_word")
TIMES = ("relative_time", "ms_per_step", "tokens_per_second", "written_per_second")
"""Metrics that are measured when the table is written, on no text."""
COSTS = ("parameters", "layers", "vocabulary", "flops_without_output", "state_bytes")
"""Metrics of a model's size, which are known before it is trained."""
READ_NO_TEXT = (*COSTS, *TIMES)
"""Metrics that are the same for every split."""


@dataclass(frozen=True)
class Data:
    """A corpus with a tokenizer, as `pipelines.prepare` takes it."""

    corpus: str
    tokenizer: str = ""
    """Empty where the corpus labels its own symbols."""
    options: tuple[str, ...] = ()
    """Further words of `pipelines.prepare`."""
    vocabulary: int = 0
    """Number of symbols, if the tokenizer's name does not give it: for the cost of trainings before their store is prepared."""
    of_pretrained: bool = False
    """Whether the tokenizer is that of the pretrained model, in whose folder it is; `tokenizer` then names the store."""

    @property
    def vocab_size(self) -> int:
        """Symbols and begin-of-document, as far as is known beforehand."""
        corpus = CORPORA[self.corpus]
        if issubclass(corpus, Task):
            import tyro  # missing on a machine that only measures step times

            drawn, _ = tyro.cli(corpus, args=self.options, return_unknown_args=True)  # other words are `prepare`'s
            return len(drawn.symbols()) + 1
        pieces = re.search(r":(\d+)$", self.tokenizer)
        return self.vocabulary or (int(pieces[1]) + 1 if pieces else 257)

    @property
    def is_text(self) -> bool:
        """Whether another text can take its place: it is no task. The names to recall are a task, though one in bytes."""
        return bool(self.tokenizer) and self.corpus != Names.name

    def store(self, stores: Path) -> Path:
        """The store below the folder of stores: one for each tokenizer, and for each way in which a corpus is read."""
        options = (re.sub(r"^-(?=[\d.])", "minus-", word) for word in self.options)
        return stores / re.sub(r"[^\w.]+", "-", " ".join((self.tokenizer or "symbols", *options)))

    def with_options(self, given: Mapping[str, str]) -> Data:
        """The data with the given options of the corpus in place of its own; an empty value leaves an option out."""
        words = list(self.options)
        for name, value in given.items():
            flag = f"--{name.replace('_', '-')}"
            if flag in words:
                start = words.index(flag)
                ends = (end for end in range(start + 1, len(words)) if words[end].startswith("--"))
                del words[start : next(ends, len(words))]
            if value:
                words += [flag, *shlex.split(value)]
        return replace(self, options=tuple(words))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of `pipelines.prepare`, without source and store."""
        return (self.corpus, *(("--tokenizer", self.tokenizer) if self.tokenizer else ()), *self.options)

    def __str__(self) -> str:
        return f"{self.corpus}, {self.tokenizer}" if self.tokenizer else self.corpus


@dataclass(frozen=True)
class Run:
    """A training, up to its seed, and how it is read."""

    preset: str
    data: Data
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted fields that differ from the preset's."""
    read: Mapping[str, int] = field(default_factory=dict[str, int])
    """`window` and `overlap` in scoring, where they differ from those of training."""
    checkpoint: Literal["newest", "best"] = "newest"
    """Which checkpoint is scored; best: the best on validation, where the paper stops early."""


@dataclass(frozen=True)
class Column:
    """A column of metrics."""

    name: str
    metric: Metric
    of: str = ""
    """Key of the row's run that the column is measured on; empty: the first that there is."""
    split: str = "test"
    form: str = ".3f"
    """Format of the values, the paper's and ours."""
    windows: int = 0
    """Windows between a name and the question, of `names_wrong`."""
    best: bool = False
    """Whether the paper shows the seed that is best on validation instead of a mean; then our column does, too."""


PARAMETERS = Column("parameters", "parameters", form=",.0f")
FLOPS_PER_TOKEN = Column("FLOPs/token", "flops_without_output", form=".2e")


@dataclass(frozen=True)
class Row:
    """A row: the paper's values by column, and our runs by scale."""

    label: str
    paper: Mapping[str, float]
    runs: Mapping[str, Mapping[str, Run]] = field(default_factory=dict[str, Mapping[str, Run]])
    """Runs by scale, then by the name that columns have in `of`. Empty: the row has published values alone."""
    series: str = ""
    """Line of the picture: rows of one series are joined."""
    x: float | None = None
    """The picture's x, by the paper's counting, if `Table.x` is no column."""


@dataclass(frozen=True)
class Table:
    """A table or a figure."""

    about: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    base: str = ""
    """Label of the row that `relative_time` is against."""
    x: str = ""
    """The picture's x: a column's name, or a heading for `Row.x`. Empty: rows stand below each other in the picture."""
    size: str = ""
    """A column that the size of the picture's circles is proportional to; empty: all points are alike."""
    sized: Literal["radius", "area"] = "radius"
    """Whether a circle's radius or its area shows the size."""
    cumulative: bool = False
    """Whether cross-entropy over position is drawn too."""
    tokens: tuple[str, ...] = ()
    """Labels of the rows that `pipelines.tokens` compares, two or one."""
    token_words: tuple[str, ...] = ()
    """Further words of `pipelines.tokens`."""
    continued: tuple[str, ...] = ()
    """Words of `pipelines.continuations`, which continues passages with the first row's model; empty: none are continued."""
    note: Mapping[str, str] = field(default_factory=dict[str, str])
    """Notes for the reader, by scale."""
