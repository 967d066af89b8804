"""Every metric of a run, once: its name in metrics.jsonl and MLflow, its unit, how it is written, and which way is better.

The console, comparisons, sweeps and their charts, and `pipelines.evaluate` take names, units and formats from here; docs/mlflow.md
explains the metrics. A further metric of a validation is one more entry:

    METRICS["validation/perplexity"] = Metric(
        "validation/perplexity", "perplexity per token", "perplexity", better="lower", of=lambda score: score.perplexity
    )
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from common.errors import UserError, nearest
from pipelines.tracking.score import Score


@dataclass(frozen=True)
class Metric:
    """A metric of a run."""

    name: str
    about: str
    """The metric in words, as at an axis."""
    unit: str
    form: str = ".4f"
    """Format of its values, for `format`."""
    better: Literal["lower", "higher", "neither"] = "neither"
    """Which values are better. A sweep can minimise metrics that are better when lower."""
    console: str = ""
    """Text for the console while a run trains, with a placeholder for the value; empty: not shown there."""
    of: Callable[[Score], float] | None = None
    """For a validation metric: computes it from the sums over the split. NaN if they do not have it."""

    def __post_init__(self) -> None:
        plain = re.fullmatch(r"[/\w.\- :]{1,250}", self.name) and posixpath.normpath(self.name) == self.name
        if not plain or self.name == "." or self.name.startswith(("..", "/")):
            raise UserError(
                f"a metric cannot be called {self.name!r}: MLflow takes up to 250 letters, digits, blanks and _-.:/, and the "
                "name must be a path inside a folder"
            )

    @property
    def column(self) -> str:
        """Name of the metric's column in a table's file."""
        return self.name.removeprefix("validation/").replace("/", "_")


_KNOWN = (
    Metric(
        "train/bits_per_token", "training bits per token", "bits/token", better="lower", console="{:.3f} bits/token"
    ),
    Metric("train/error_rate", "training errors per label", "errors", ".2%", better="lower", console="{:.2%} errors"),
    Metric("train/learning_rate", "learning rate", "", ".3g"),
    Metric("train/gradient_norm", "gradient norm before clipping", "", ".3g"),
    Metric("train/tokens", "tokens read in training", "tokens", ",.0f"),
    Metric("train/epoch", "epochs read in training", "epochs", ".3f"),
    Metric(
        "train/tokens_per_second", "training speed", "tokens/s", ",.0f", better="higher", console="{:,.0f} tokens/s"
    ),
    Metric("train/mfu", "model FLOPs utilization", "", ".3f", better="higher"),
    Metric("train/share_of_matrix_rate", "share of the rate of a large matrix product", "", ".3f", better="higher"),
    Metric(
        "validation/bits_per_token",
        "validation bits per token",
        "bits/token",
        better="lower",
        console="validation {:.3f}",
        of=lambda score: score.bits_per_token,
    ),
    Metric(
        "validation/bits_per_byte",
        "validation bits per byte",
        "bits/byte",
        better="lower",
        of=lambda score: (
            score.bits_per_token * score.tokens / score.bytes_in_proportion if score.bytes_in_proportion else math.nan
        ),
    ),
    Metric(
        "validation/error_rate",
        "validation errors per label",
        "errors",
        ".2%",
        better="lower",
        console="validation errors {:.2%}",
        of=lambda score: score.error_rate,
    ),
    Metric(
        "validation/bits_per_token_states_cleared",
        "validation bits per token, recurrent states cleared",
        "bits/token",
        better="lower",
    ),
    Metric("validation/worth_of_states_bits", "worth of states", "bits/token", "+.4f", better="higher"),
    Metric("recurrence/state_share", "share of attention's output that comes from the states", "", ".3f"),
    Metric("recurrence/gate_openness", "share of a new state that its gate lets in", "", ".3f"),
    Metric("recurrence/state_change", "relative change of the states over a block", "", ".3f"),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _KNOWN}
OWN_COLUMNS = ("validation/bits_per_token", "validation/bits_per_byte", "validation/error_rate")
"""Validation metrics to which the tables of evaluations and comparisons give columns of their own."""


def about(name: str) -> str:
    """A metric in words; its name where the table does not have it."""
    return METRICS[name].about if name in METRICS else name


def training_metrics(sums: Sequence[float], tokens: int) -> dict[str, float]:
    """Training metrics from nats summed over ``tokens``. A labelled store sums nats, errors and labels; {} if no label was read."""
    labelled = len(sums) == 3
    targets = sums[2] if labelled else tokens
    if not targets:
        return {}
    rate = {"train/error_rate": sums[1] / targets} if labelled else {}
    return {"train/bits_per_token": sums[0] / math.log(2) / targets, **rate}


def validation_metrics(score: Score) -> dict[str, float]:
    """All metrics that follow from the sums over a validation split, without NaNs."""
    found = {metric.name: metric.of(score) for metric in METRICS.values() if metric.of is not None}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def further() -> list[Metric]:
    """Validation metrics besides those with columns of their own."""
    return [metric for metric in METRICS.values() if metric.of is not None and metric.name not in OWN_COLUMNS]


def check_compared(field: str, name: str, of: str = "") -> None:
    """Raise UserError unless a field names a metric that is better when lower, with the prefix ``of``."""
    choices = [each for each, metric in METRICS.items() if metric.better == "lower" and each.startswith(of)]
    if name not in choices:
        raise UserError(f"{field} is {name!r}: {nearest(name, choices)}")
