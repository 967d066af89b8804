"""An evaluation's table and figures. Plain files in, plain files out: no torch, no mlflow.

paths = write_report(evaluations, Path("runs/reports/rec-vs-slide"), {"f1e793…": 4.1})    # report.json, table.csv, pictures
Console(markup=False).print(evaluation_table(evaluations, {"f1e793…": 4.1}))
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from rich.table import Table

from common.files import finite, parse_json
from pipelines.checkpoints.run_folder import RunFolder, reports_of
from pipelines.reports.evaluation_figures import is_labelled, of_one_text, plot_cumulative, plot_errors, plot_worth
from pipelines.reports.files import save, write_csv
from pipelines.reports.frontier import Spot, plot_frontier
from pipelines.reports.seeds import members, over_seeds, seeds_table
from pipelines.terminal.tables import Form, perplexity, short, table
from pipelines.tracking.metrics import METRICS, further
from pipelines.tracking.score import Evaluation, Score


def evaluation_rows(
    evaluations: Sequence[Evaluation], unigrams: Mapping[str, float] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """One row for each evaluation, in their order, then one for the unigram reference of each store, as far as it is given: bits
    per byte by the store's fingerprint.

    Values that do not apply are None: cleared metrics of a model without that State, bytes and words of clipped documents.
    """
    rows = []
    labelled = is_labelled(evaluations)
    for e in evaluations:
        row = {
            "name": e.name,
            "model": e.model,
            "split": e.split,
            "parameters": e.parameters,
            "steps": e.step,
            "train_tokens": e.train_tokens,
            "forward_flops_per_token": e.flops_per_token,
            "bits_per_token": e.carried.bits_per_token,
            "bits_per_byte": e.carried.bits_per_byte,
            "bits_per_character": e.bits_per_character,
            "word_perplexity": e.carried.word_perplexity,
            "published_word_perplexity": e.published_word_perplexity,
            **({"error_rate": e.carried.error_rate} if labelled else {}),
            **{metric.column: metric.of(e.carried) for metric in further() if metric.of},
        }
        for what, cleared in (("states_cleared", e.cleared_states), ("all_cleared", e.cleared_all)):
            bits = cleared.bits_per_byte if cleared else math.nan
            row |= {f"{what}_bits_per_byte": bits, f"{what}_difference": bits - e.carried.bits_per_byte}
            if labelled:
                row[f"{what}_error_rate"] = cleared.error_rate if cleared else math.nan
        rows.append(finite(row))
    for fingerprint, bits in unigrams.items():
        first = next(e for e in evaluations if e.store_fingerprint == fingerprint)
        name = "unigram" if of_one_text(evaluations) else f"unigram ({first.name}'s store)"
        rows.append({**dict.fromkeys(rows[0]), "name": name, "split": first.split, "bits_per_byte": bits})
    return rows


def evaluation_table(evaluations: Sequence[Evaluation], unigrams: Mapping[str, float] = MappingProxyType({})) -> Table:
    """The rows for a terminal. If all evaluations are on one text, the best values are bold; those per token only if the tokens
    are the same.
    """
    rows = [_shown(row) for row in evaluation_rows(evaluations, unigrams)]
    known = {key for row in rows for key, value in row.items() if value is not None}
    title = None
    if len({e.split for e in evaluations}) == 1:
        title = evaluations[0].split
        known.remove("split")
    if not any(map(_differ, rows)):
        known.discard("bits_per_character")
    columns = {key: column for key, column in _columns().items() if key in known}
    best = [key for key in _comparable(evaluations) if key in columns]
    return table(rows, columns, dict.fromkeys(best, min), title=title, title_justify="left", title_style="bold")


def _columns() -> dict[str, tuple[str, Form]]:
    """All columns of the terminal's table: heading and form of each. A plugin may have added metrics."""
    errors = METRICS["validation/error_rate"].form
    return {
        "name": ("model", None),
        "split": ("split", None),
        "parameters": ("parameters", short),
        "steps": ("steps", ","),
        "train_tokens": ("tokens\ntrained", short),
        "forward_flops_per_token": ("FLOPs/\ntoken", ".2e"),
        "bits_per_token": ("bits/\ntoken", ".4f"),
        "bits_per_byte": ("bits/\nbyte", ".4f"),
        "bits_per_character": ("bits/\ncharacter", ".4f"),
        "word_perplexity": ("word\nperplexity", perplexity),
        "published_word_perplexity": ("by the count\npublished", perplexity),
        **{metric.column: (metric.unit, metric.form) for metric in further()},
        "states_cleared": ("bits/byte with\nstates cleared", str),
        "all_cleared": ("bits/byte with\nall State cleared", str),
        "error_rate": ("errors", errors),
        "states_cleared_error_rate": ("errors with\nstates cleared", errors),
        "all_cleared_error_rate": ("errors with\nall State cleared", errors),
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the model in its name, and with one column for the result and the difference of each cleared pass."""
    shown = {**row, "split": row["split"] or ""}
    if row["model"] not in (None, row["name"]):
        shown["name"] = f"{row['name']} ({row['model']})"
    for what in ("states_cleared", "all_cleared"):
        difference = row[f"{what}_difference"]
        if difference is not None:
            shown[what] = f"{row[f'{what}_bits_per_byte']:.4f} ({difference:+.4f})"
    return shown


def _comparable(evaluations: Sequence[Evaluation]) -> list[str]:
    """The columns whose lowest value is the best of these evaluations; empty if they are on several texts."""
    if len(evaluations) == 1 or len({e.text for e in evaluations}) > 1:
        return []
    per_text = ["bits_per_byte", "word_perplexity", "error_rate"]
    return [*per_text, "bits_per_token"] if of_one_text(evaluations) else per_text


def _differ(row: dict[str, Any]) -> bool:
    """Whether bits per character are known, and differ in print from bits per byte."""
    bits = row["bits_per_byte"]
    other = row["bits_per_character"]
    return None not in (bits, other) and f"{bits:.4f}" != f"{other:.4f}"


SEEDS: dict[str, tuple[str, Form]] = {
    "bits_per_token": ("bits/token", ".4f"),
    "bits_per_byte": ("bits/byte", ".4f"),
    "bits_per_character": ("bits/character", ".4f"),
    "word_perplexity": ("word perplexity", perplexity),
    "error_rate": ("errors", ".2%"),
    "states_cleared_difference": ("states cleared, bits/byte", "+.4f"),
}
"""Metrics whose mean over seeds is printed."""


def seeds_of(evaluations: Sequence[Evaluation]) -> Table | None:
    """Table of means over seeds; None if no evaluations differ in the seed alone, or there are several splits."""
    every = evaluation_rows(evaluations)
    rows = over_seeds(evaluations, every, list(SEEDS))
    columns = {key: column for key, column in SEEDS.items() if key != "bits_per_character" or any(map(_differ, every))}
    return seeds_table(rows, columns) if rows and len({e.split for e in evaluations}) == 1 else None


PICTURES = ("cumulative.png", "errors.png", "worth.png", "frontier.png")
"""All pictures of `write_report`. Some of them are not made for every set of evaluations."""


def write_report(
    evaluations: Sequence[Evaluation], folder: Path, unigrams: Mapping[str, float] = MappingProxyType({})
) -> list[Path]:
    """Write report.json (every metric, by position too) and table.csv, and the pictures that apply. These are cumulative.png for
    one text, worth.png if there is something to compare, errors.png for labelled splits, and frontier.png if costs differ. Each is
    written atomically. Returns their paths.
    """
    rows = evaluation_rows(evaluations, unigrams)
    seeds = over_seeds(evaluations, rows, list(SEEDS))
    values = {"table": rows, "seeds": seeds, "evaluations": [asdict(e) for e in evaluations]}
    table = write_csv(rows, folder / "table.csv")
    report = save(folder / "report.json", (json.dumps(values, allow_nan=False) + "\n").encode())
    cumulative = [plot_cumulative(evaluations, folder / "cumulative.png")] if of_one_text(evaluations) else []
    errors = [plot_errors(evaluations, folder / "errors.png")] if is_labelled(evaluations) else []
    worth = plot_worth(evaluations, folder / "worth.png")
    what, spots = spots_of(evaluations)
    unit = "token" if of_one_text(evaluations) else "byte"
    costs = plot_frontier(spots, what, f"FLOPs of the forward pass per {unit}", folder / "frontier.png")
    return [report, table, *cumulative, *worth, *errors, *costs]


def read_report(folder: Path) -> list[Evaluation]:
    """The evaluations of a report. Raises OSError, ValueError, KeyError or TypeError where `write_report` wrote none."""
    read = []
    for values in parse_json((folder / "report.json").read_bytes())["evaluations"]:
        passes = {name: values[name] and Score(**values[name]) for name in ("carried", "cleared_states", "cleared_all")}
        read.append(Evaluation(**values | passes))
    return read


def kept_evaluation(run: Path, config_hash: str, seed: int | None) -> Evaluation | None:
    """The evaluation of a run's latest step on the test split, over its training's windows, in a report beside it or its sweep.

    None without one. If several have that step, one that clears state at each segment counts, and of those the newest.

    Args:
        config_hash, seed: those of the training's config, since another run may have had the same name.
    """
    reports = [
        path
        for path in Path(reports_of(RunFolder.parse(run)).path).glob("*/report.json")
        if run.name in path.parent.name or re.search("-[0-9a-f]{16}$", path.parent.name)  # many names, cut short
    ]
    matching: list[Evaluation] = []
    for path in sorted(reports, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged report, or one of another version
            for found in read_report(path.parent):
                name = found.name.rpartition("/")[2]  # the folder of sweep/trials/003 is 003
                of_it = (name, found.config_hash, found.seed) == (run.name, config_hash, seed)
                if of_it and found.split.endswith("/test"):
                    matching.append(found)
    return max(matching, key=lambda found: (found.step, not found.cleared_at), default=None)


def spots_of(evaluations: Sequence[Evaluation]) -> tuple[str, list[Spot]]:
    """Cost and result of each evaluation on one text, the mean of those that differ in the seed alone: word perplexity if it is
    known, else perplexity per token of one text. The cost is in FLOPs per token, or per byte where the tokens differ.
    """
    by_word = all(math.isfinite(e.carried.word_perplexity) for e in evaluations)
    spots = []
    for name, seeds in members(evaluations).items():
        value = mean(e.carried.word_perplexity if by_word else e.carried.perplexity for e in seeds)
        first = seeds[0]
        if first.flops_per_token is not None:
            tokens = 1.0 if of_one_text(evaluations) else first.carried.tokens / (first.carried.bytes or math.inf)
            spots.append(Spot(name, first.model, first.windows, tokens * first.flops_per_token, value))
    alike = len({e.text for e in evaluations}) == 1 if by_word else of_one_text(evaluations)
    return f"perplexity per {'word' if by_word else 'token'}", spots if alike else []
