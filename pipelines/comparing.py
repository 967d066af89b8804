"""Runs side by side: what each cost and reached, and its curve over tokens, FLOPs and wall time.

    runs = [run_of_folder(Path("runs/demo-rec")), run_of_folder(Path("runs/demo-slide"))]
    comparison = compare(runs)
    write_comparison(comparison, Path("runs/reports/compare"))      # comparison.csv, comparison.png

Runs of different tokenizers are compared in bits per byte alone. FLOPs are those that the model needs (recur_models/costs.py) times
the tokens read. Wall time is that between a run's first figure and its last, without the pauses in which it did not run.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.table import Table

from data_prep.store import SegmentStore
from pipelines import checkpoint as checkpoints
from pipelines.cli import duration
from pipelines.metrics_file import Record, read_records
from pipelines.report import COLOURS, save_figure, short
from pipelines.sweep_report import UNITS, is_sweep, longest_gap, read_sweep, write_csv
from pipelines.tracking import StoredRun, TrackingConfig, read_run
from recur_models import model_from_json
from recur_models.costs import costs

TOKEN, BYTE, TRAIN = "validation/bits_per_token", "validation/bits_per_byte", "train/bits_per_token"
WORTH, TOKENS = "validation/worth_of_states_bits", "train/tokens"
KEYS = (TOKEN, BYTE, TRAIN, WORTH, TOKENS)


@dataclass(frozen=True)
class Compared:
    """One run."""

    name: str
    model: str
    parameters: int | None
    flops_per_token: float | None
    """Of training. None where the vocabulary is not known."""
    tokenizer: str
    """Its fingerprint; empty where it is not known."""
    text: str
    """Corpus, and how much of its validation split was read."""
    records: tuple[Record, ...]
    """By step."""

    def curve(self, key: str) -> list[tuple[float, float, float]]:
        """(tokens, seconds, figure) at each of the figure's points."""
        seconds, clock = {}, 0.0
        times = [record.time / 1e3 for record in self.records]
        longest = longest_gap(times)
        for before, record in pairwise(self.records):
            gap = (record.time - before.time) / 1e3
            clock += gap if 0 < gap <= longest else 0.0
            seconds[record.step] = clock
        points: dict[int, tuple[float, float, float]] = {}
        for record in self.records:
            if key in record.metrics and TOKENS in record.metrics:
                point = (record.metrics[TOKENS], seconds.get(record.step, 0.0), record.metrics[key])
                points.setdefault(record.step, point)
        return list(points.values())

    def has(self, key: str) -> bool:
        return any(key in record.metrics and TOKENS in record.metrics for record in self.records)

    def best(self, key: str) -> Record | None:
        """The record with the lowest figure, the earliest of equals."""
        found = [record for record in self.records if key in record.metrics]
        return min(found, key=lambda record: (record.metrics[key], record.step), default=None)

    def final(self, key: str) -> Record | None:
        return next((record for record in reversed(self.records) if key in record.metrics), None)


@dataclass(frozen=True)
class Comparison:
    """Runs, the figure that is compared, and what a reader must know of it."""

    runs: tuple[Compared, ...]
    metric: str
    notes: tuple[str, ...]

    @property
    def per_token(self) -> bool:
        """Whether bits per token may be compared."""
        return self.metric != BYTE


def collect(names: Sequence[str], config: TrackingConfig, root: Path, every_trial: bool) -> list[Compared]:
    """The runs of these folders and MLflow ids; of a sweep its best trial, or all that have a figure.

    Raises ValueError for what is neither, in a sentence.
    """
    found: list[Compared] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += runs_of_sweep(path, every_trial) if is_sweep(path) else [run_of_folder(path)]
        elif len(name) == 32 and all(c in "0123456789abcdef" for c in name):
            found += runs_of_mlflow(name, config, root, every_trial)
        else:
            raise ValueError(
                f"{name} is neither the folder of a run or a sweep nor the id of a run in MLflow (32 characters)"
            )
    return found


def run_of_folder(folder: Path, name: str = "") -> Compared:
    """Raises ValueError when it is no run's folder."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        model, data = config["model"], config["data"]
    except (FileNotFoundError, KeyError, ValueError, TypeError):
        raise ValueError(f"{folder} is not the folder of a run or a sweep: it has no config.json of one") from None
    vocab_size, tokenizer = 0, ""
    saved = checkpoints.glance_all(folder / "checkpoints")
    if saved:
        vocab_size, tokenizer = saved[0].meta["vocab_size"], saved[0].meta["tokenizer"]
    else:
        try:
            manifest = SegmentStore.open(data["store"], data["corpus"], "train").manifest
            vocab_size, tokenizer = manifest.tokenizer.vocab_size, manifest.tokenizer.fingerprint
        except (ValueError, OSError):
            pass  # neither a checkpoint nor the store: what depends on the vocabulary is left open
    text = _text(data["corpus"], config.get("validate_tokens"))
    return _run(name or config["run"], model, vocab_size, tokenizer, text, read_records(folder / "metrics.jsonl"))


def runs_of_sweep(folder: Path, every_trial: bool) -> list[Compared]:
    sweep = read_sweep(folder)
    if not sweep.scored:
        raise ValueError(f"{folder}: no trial of this sweep has a figure yet")
    trials = sweep.scored if every_trial else sweep.scored[:1]
    return [run_of_folder(folder / "trials" / trial.id, f"{sweep.name}/{trial.id}") for trial in trials]


def runs_of_mlflow(run_id: str, config: TrackingConfig, root: Path, every_trial: bool) -> list[Compared]:
    run = read_run(config, root, run_id, KEYS)
    if not run.children:
        return [run_of_mlflow(run)]
    below = [run_of_mlflow(read_run(config, root, child, KEYS)) for child in run.children]
    scored = {name.name: best.metrics[TOKEN] for name in below if (best := name.best(TOKEN))}
    trials = sorted((child for child in below if child.name in scored), key=lambda child: scored[child.name])
    if not trials:
        raise ValueError(f"no run below {run.name} ({run_id}) has a figure {TOKEN}")
    return trials if every_trial else trials[:1]


def run_of_mlflow(run: StoredRun) -> Compared:
    model = {key.removeprefix("model."): _value(value) for key, value in run.params.items() if key.startswith("model.")}
    if "name" not in model:
        raise ValueError(
            f"the run {run.name} ({run.id}) is not one that pipelines.train has made: it has no model.name"
        )
    text = _text(run.params.get("data.corpus", ""), _value(run.params.get("validate_tokens", "None")))
    vocab_size, tokenizer = int(run.tags.get("vocab_size", 0)), run.tags.get("tokenizer_fingerprint", "")
    return _run(run.name, model, vocab_size, tokenizer, text, run.records)


def _value(text: str) -> Any:
    """A param as it was before it was text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _text(corpus: str, validate_tokens: Any) -> str:
    return f"{corpus}, {validate_tokens:,} tokens" if validate_tokens else f"{corpus}, all of it"


def _run(
    name: str, model: Mapping[str, Any], vocab_size: int, tokenizer: str, text: str, records: Sequence[Record]
) -> Compared:
    cost = costs(model_from_json(dict(model)), vocab_size) if vocab_size else None
    return Compared(
        name=name,
        model=model["name"],
        parameters=cost.parameters if cost else None,
        flops_per_token=cost.training_flops_per_token if cost else None,
        tokenizer=tokenizer,
        text=text,
        records=tuple(sorted(records, key=lambda record: (record.step, record.time))),
    )


def compare(runs: Sequence[Compared]) -> Comparison:
    """Choose the figure that all of them have and that means the same for all. Raises ValueError when there is none."""
    names = [run.name for run in runs]
    runs = [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({i})") for i, run in enumerate(runs, 1)
    ]
    for run in runs:
        if not any(run.has(key) for key in (TOKEN, BYTE, TRAIN)):
            raise ValueError(f"{run.name} has no figure to compare: it was never logged, train it first")
    notes, wanted = [], (TOKEN, BYTE, TRAIN)
    tokenizers = {run.tokenizer for run in runs}
    if len(tokenizers - {""}) > 1:
        notes.append("the runs have different tokenizers: only bits per byte can be compared")
        wanted = (BYTE,)
    elif "" in tokenizers and len(runs) > 1:
        unknown = [run.name for run in runs if not run.tokenizer]
        notes.append(
            f"the tokenizer of {', '.join(unknown)} is not known: bits per token compare only if it is that of the others"
        )
    if len({run.text for run in runs}) > 1 and len(runs) > 1:
        notes.append("they were validated on different text: " + "; ".join(f"{run.name} on {run.text}" for run in runs))
    metric = next((key for key in wanted if all(run.has(key) for run in runs)), None)
    if metric is None:
        lacking = "; ".join(
            f"{run.name} has no {' and no '.join(key for key in wanted if not run.has(key))}"
            for run in runs
            if not all(map(run.has, wanted))
        )
        raise ValueError(f"there is no figure that all of the runs have and that can be compared: {lacking}")
    if metric == TRAIN:
        notes.append("not all of them were validated: the training figure is compared, of different text for each step")
    return Comparison(tuple(runs), metric, tuple(notes))


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for each run, in their order. What is not known is None."""
    found = []
    for run in comparison.runs:
        curve = run.curve(comparison.metric)
        tokens = max((record.metrics[TOKENS] for record in run.records if TOKENS in record.metrics), default=0.0)
        best, final = run.best(comparison.metric), run.final(comparison.metric)

        def figure(record: Record | None, key: str) -> float | None:
            return record.metrics.get(key) if record else None

        row: dict[str, Any] = {
            "run": run.name,
            "model": run.model,
            "parameters": run.parameters,
            "tokens": int(tokens),
            "flops": run.flops_per_token * tokens if run.flops_per_token else None,
            "seconds": round(curve[-1][1], 1) if curve else None,
            "best_step": best.step if best else None,
        }
        if comparison.metric == TRAIN:
            row |= {
                "best_train_bits_per_token": figure(best, TRAIN),
                "final_train_bits_per_token": figure(final, TRAIN),
            }
        else:
            if comparison.per_token:
                row |= {"best_bits_per_token": figure(best, TOKEN), "final_bits_per_token": figure(final, TOKEN)}
            row |= {"best_bits_per_byte": figure(best, BYTE), "final_bits_per_byte": figure(final, BYTE)}
        found.append({**row, "worth_of_states_bits_per_token": figure(best, WORTH)})
    return found


HEADINGS = {
    "run": "run",
    "model": "model",
    "parameters": "parameters",
    "tokens": "tokens",
    "flops": "FLOPs",
    "seconds": "wall\ntime",
    "best_step": "best at\nstep",
    "best_bits_per_token": "bits/token\nbest",
    "final_bits_per_token": "bits/token\nlast",
    "best_bits_per_byte": "bits/byte\nbest",
    "final_bits_per_byte": "bits/byte\nlast",
    "best_train_bits_per_token": "train bits/\ntoken best",
    "final_train_bits_per_token": "train bits/\ntoken last",
    "worth_of_states_bits_per_token": "worth of\nstates (bits)",
}


def comparison_table(comparison: Comparison) -> Table:
    """The rows for a terminal; the best figure of a column is bold."""
    found = rows(comparison)
    table = Table()
    for key in found[0]:
        table.add_column(HEADINGS[key], justify="left" if key in ("run", "model") else "right")

    def cell(key: str, value: Any) -> str:
        if value is None:
            return "–"
        if key in ("run", "model"):
            return value
        if key == "seconds":
            return duration(value)
        if key == "best_step":
            return f"{value:,}"
        if key == "flops":
            return f"{value:.2e}"
        if key in ("parameters", "tokens"):
            return short(value)
        if key.startswith("worth"):
            return f"{value:+.4f}"
        best = min(row[key] for row in found if row[key] is not None)
        return f"[bold]{value:.4f}[/bold]" if value == best and len(found) > 1 else f"{value:.4f}"

    for row in found:
        table.add_row(*(cell(key, value) for key, value in row.items()))
    return table


def plot_comparison(comparison: Comparison, path: Path) -> Path:
    """The figure over tokens, over FLOPs and over wall time; the best point of each run is filled."""
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    longest = max((curve[-1][1] for run in comparison.runs if (curve := run.curve(comparison.metric))), default=0.0)
    size, unit = (1.0, "seconds") if longest < 180 else (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")
    places: tuple[tuple[str, Any], ...] = (
        ("tokens read in training", lambda run, tokens, seconds: tokens),
        ("FLOPs of training (needed ones)", lambda run, tokens, seconds: (run.flops_per_token or 0.0) * tokens),
        (f"wall time ({unit}, pauses left out)", lambda run, tokens, seconds: seconds / size),
    )
    unknown = [run.name for run in comparison.runs if run.flops_per_token is None]
    for panel, (label, place) in enumerate(places):
        axes = panels[panel]
        for number, run in enumerate(comparison.runs):
            if panel == 1 and run.flops_per_token is None:
                continue
            curve = run.curve(comparison.metric)
            at, bits = [place(run, tokens, seconds) for tokens, seconds, _ in curve], [bits for *_, bits in curve]
            colour, style = COLOURS[number % len(COLOURS)], ("-", "--", ":")[number // len(COLOURS) % 3]
            few = len(curve) <= 60
            axes.plot(
                at, bits, style, color=colour, linewidth=1.5, marker="o" if few else "", markersize=3, label=run.name
            )
            least = bits.index(min(bits))
            axes.plot(at[least], bits[least], "o", color=colour, markersize=8, markeredgecolor="white")
        axes.set_xlabel(label + (f"\nnot known of {', '.join(unknown)}" if panel == 1 and unknown else ""))
        axes.set_xlim(0, None)
        axes.grid(alpha=0.25)
        if panel == 0:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    panels[0].set_ylabel(UNITS.get(comparison.metric, comparison.metric))
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) <= 4:
        panels[0].legend(handles, labels, fontsize=9, framealpha=0.9)
    else:
        figure.legend(handles, labels, fontsize=8, loc="outside right upper", frameon=False)
    best = "; the large points are the best ones, lower is better"
    figure.suptitle(f"{UNITS.get(comparison.metric, comparison.metric)} by what it cost{best}", fontsize=11)
    return save_figure(figure, path)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """comparison.csv and comparison.png."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_csv(rows(comparison), folder / "comparison.csv"),
        plot_comparison(comparison, folder / "comparison.png"),
    ]
