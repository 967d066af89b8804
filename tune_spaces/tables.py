"""The papers' tables as sweeps over whole presets: a row is a preset, and fields given on the command line override it in all rows.

    python -m pipelines.tune rec-table-3-window --search grid --data.store runs/store

A row is a value of the pseudo-field ``preset``. Table 5 varies the store instead: ``data.store`` names a folder of stores, one for
each vocabulary, prepared from the same corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ray import tune


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    about: str
    domains: Callable[[Mapping[str, Any]], dict[str, Any]]


def _corpus(values: Mapping[str, Any]) -> str:
    """Whose rows: those of the preset's corpus, PG-19's otherwise."""
    prefix = values["preset"].partition("-")[0]
    return prefix if prefix in ("arxiv", "github") else "pg19"


def _rows(*names: str, pg19_alone: bool = True) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def domains(values: Mapping[str, Any]) -> dict[str, Any]:
        corpus = "pg19" if pg19_alone else _corpus(values)
        left_out = ("feedback", "memorizing") if corpus == "github" else ("-",)  # the paper's table has a dash there
        return {"preset": tune.choice([f"{corpus}-{name}" for name in names if not name.startswith(left_out)])}

    return domains


def _stores(values: Mapping[str, Any]) -> dict[str, Any]:
    folder, corpus = Path(values["data.store"]), values["data.corpus"]
    found = sorted(path for path in folder.glob("*") if (path / corpus / "train" / "manifest.json").exists())
    if len(found) < 2:
        raise ValueError(
            f"{folder} holds {len(found)} stores of {corpus}, and Table 5 compares vocabularies: prepare the corpus with several "
            f"tokenizers, each with a --store of its own below {folder}"
        )
    return {"data.store": tune.choice([str(path) for path in found])}


def _on_task(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Rows of the staircase paper, on the preset's task; on Reddit where it has none."""

    def domains(values: Mapping[str, Any]) -> dict[str, Any]:
        task = values["preset"].partition("-")[0]
        return {"preset": tune.choice([f"{task if task in TASKS else 'reddit'}-{name}" for name in names])}

    return domains


def _on_reddit(*names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda _: {"preset": tune.choice([f"reddit-{name}" for name in names])}


MODELS = (
    *(f"xl-{window}" for window in (512, 1024, 2048)),
    *(f"slide-{layers}L" for layers in (12, 13)),
    *(f"rec-{gate}-{cell}" for gate, cell in product(("fixed", "lstm"), ("dual", "single", "skip"))),
    *("feedback-lstm-single", "feedback-fixed-skip", "memorizing-64k"),
)
WINDOWS = [f"{model}-window-{size}" for model in ("rec-fixed-skip", "slide-12L") for size in (128, 256, 512)]
STATES = [f"rec-fixed-skip-states-{count}" for count in (128, 256, 512, 1024, 2048)]
SCALES = [
    f"scale-{scale}-{model}" for scale in ("40M", "80M", "150M", "325M", "650M", "1.3B") for model in ("rec", "xl")
]
OVERLAPS = [f"{model}-overlap-{overlap}" for model in ("gpt2", "gpt2-rec") for overlap in (0, 5, 10, 30, 50)]
WIDER = [f"gpt2-overlap-{overlap}" for overlap in (75, 100, 150, 200)]

TASKS = ("algorithm", "walk", "enwik8", "reddit")
STEPS = ("xl", "feedback", "cached-staircase", "staircase", "staircase-4", "staircase-8")
UNIVERSAL = (*(f"universal-{passes}-small" for passes in (2, 4, 8, 16)), "universal")
FORWARD_SIZES = (
    *("cached-staircase-chunk-32", "cached-staircase-chunk-64", "cached-staircase"),
    *("staircase-2-chunk-64", "staircase", "staircase-4-chunk-32", "staircase-4"),
)

TABLES: dict[str, Table] = {
    "rec-table-1": Table("block-recurrent, Table 1: the models", _rows(*MODELS, pg19_alone=False)),
    "rec-table-3-window": Table("block-recurrent, Table 3a: windows", _rows(*WINDOWS)),
    "rec-table-3-states": Table("block-recurrent, Table 3b: states", _rows(*STATES)),
    "rec-table-4": Table("block-recurrent, Table 4: scales", _rows(*SCALES)),
    "rec-table-5": Table("block-recurrent, Table 5: vocabularies, a store each", _stores),
    "staircase-figure-2": Table("staircase, Figure 2: recurrent steps, on the preset's task", _on_task(*STEPS)),
    "staircase-table-2": Table("staircase, Table 2: recurrent steps", _on_reddit("xl-2x", *STEPS, *UNIVERSAL)),
    "staircase-table-3": Table("staircase, Table 3: forward sizes", _on_reddit(*FORWARD_SIZES)),
    "gpt2-table-1": Table(
        "GPT-2 with recurrence, Table 1: overlaps, WikiText-103",
        lambda _: {"preset": tune.choice([f"wikitext-{name}" for name in OVERLAPS])},
    ),
    "gpt2-table-2": Table("GPT-2 with recurrence, Table 2: overlaps, PG-19", _rows(*OVERLAPS, *WIDER)),
}
