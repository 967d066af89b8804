"""A training step with recurrence against one without, at SmolLM2-135M's sizes on this CPU.

    python -m benchmarks.pretrained_step                                about fifteen minutes of one core, 12 GB
    python -m benchmarks.pretrained_step --layers 5 --vocabulary 8193   two minutes, with about the same share of the output layer
    python -m benchmarks.pretrained_step --models llama --lanes 4 --threads 2 --compiled    and with `--compile layer`

The models take turns in one process. Weights and tokens are random. A step is forward, backward, clipping and AdamW over lanes of
10 windows of 100 tokens, as in `paper gpt2 smollm2`. With one thread, times are CPU seconds of the process: other work on the
machine delays it, and is not counted. With more threads they are wall-clock seconds, for which the machine must be idle.

The floor of a step is its matrix products (recur_models/costs.py, forward and backward) at the rate of a 2,048² product, measured
in the same round. The frozen model has none, since costs count the gradients of all weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from benchmarks import machine, results
from benchmarks.cpu_precision import (
    DTYPES,
    Rows,
    Training,
    largest_product,
    products,
    profiled,
    record_profiles,
    share_of_rate,
    take_turns,
)
from benchmarks.gpu_models import SMOLLM2
from common.errors import UserError
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.precision import machine_of
from recur_models import ModelConfig
from recur_models.compiling import compile_model
from studies.papers.measuring import torch_threads

TOKENS = 1_000
PRODUCT = "product"
Model = Literal["llama", "llama-rec", "llama-rec-frozen", "llama-rec-layers"]
MODELS: dict[Model, tuple[str, dict[str, Any]]] = {
    "llama": ("smollm2", {}),
    "llama-rec": ("smollm2-rec", {}),
    "llama-rec-frozen": ("smollm2-rec", {"trained": "recurrence"}),
    "llama-rec-layers": ("smollm2-rec-layers", {}),
}
"""Presets and changes to their models."""


@dataclass(frozen=True)
class BenchConfig:
    """Measurements to take."""

    models: tuple[Model, ...] = tuple(MODELS)
    """llama; llama-rec: with the paper's recurrence; llama-rec-frozen: the recurrence alone is trained; llama-rec-layers: with an
    h_prev for each layer from the fifth on, as preset `smollm2-rec-layers`. Ratios are to the first of them."""
    compiled: bool = False
    """Measure each model also with `--compile layer`, whose first step takes a minute."""
    lanes: int = 2
    """Lanes of a step."""
    threads: int = 1
    """Threads of torch."""
    rounds: int = 5
    """Rounds; the first two do not count."""
    layers: int = 30
    """Layers; SmolLM2-135M has 30."""
    vocabulary: int = 49_153
    """Token ids; SmolLM2 has 49,152, and a store one more."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of the matrix products."""
    profile: int = 0
    """Entries of each step's profile, the largest first; 0 for no profile."""
    record: bool = False
    """Record the result in results/pretrained."""

    def __post_init__(self) -> None:
        machine.check_rounds(self.rounds)
        if not self.models:
            raise UserError("--models is empty: name one or more")
        for name in ("lanes", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}: give 1 or more")
        if self.layers < 5:
            raise UserError(
                f"--layers is {self.layers}: give 5 or more, since the fifth is the first with an h_prev of its own"
            )
        if self.vocabulary < 2:
            raise UserError(f"--vocabulary is {self.vocabulary}: give 2 or more")


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("pretrained", "benchmarks.pretrained_step", argv, config.record)
    kind = machine_of(torch.device("cpu")).kind
    with torch_threads(config.threads):
        print(f"{machine.describe()}; {kind}", flush=True)
        products(config.rounds)
        trainings = trainings_of(config)
        generator = torch.Generator().manual_seed(0)
        tokens_BT = torch.randint(config.vocabulary, (config.lanes, TOKENS), generator=generator)
        runs: dict[str, Callable[[], object]] = {
            label: partial(training.step, tokens_BT, tokens_BT.roll(-1, 1)) for label, training in trainings.items()
        }
        large = {PRODUCT: largest_product(DTYPES[config.precision])}
        seconds_of = machine.cpu_seconds if config.threads == 1 else machine.wall_seconds
        rows = rows_of(trainings, config.lanes * TOKENS, take_turns(config.rounds, runs | large, seconds_of))
        profiles: Rows = []
        if config.profile:
            for label, run in runs.items():
                profiles += profiled(label, {config.precision: run}, config.profile)
    clock = "CPU" if config.threads == 1 else "wall-clock"
    recorder.table(
        "A training step with recurrence against one without",
        (
            "model",
            f"{clock} s a step, median (least)",
            "tokens/s",
            f"/ {next(iter(trainings))}, median (range)",
            "of the matrix rate",
        ),
        rows,
        text=[
            f"{config.lanes} lanes, {config.layers} layers, {config.vocabulary:,} ids, {config.precision}; {kind}; "
            f"threads: {config.threads}."
        ],
    )
    record_profiles(recorder, "Profile of a training step with recurrence", profiles, kind, config.threads)


def trainings_of(config: BenchConfig) -> dict[str, Training]:
    """The trainings to measure, by label."""
    trainings = dict[str, Training]()
    for name in config.models:
        sizes = sized(name, config.layers)
        trainings[name] = Training(sizes, config.vocabulary, config.lanes, DTYPES[config.precision])
        if config.compiled:
            compiled = Training(sizes, config.vocabulary, config.lanes, DTYPES[config.precision])
            compile_model(compiled.model, "layer")
            trainings[f"{name}, compiled"] = compiled
    return trainings


def rows_of(trainings: dict[str, Training], tokens: int, seconds: dict[str, list[float]]) -> Rows:
    """A row for each training, which is also printed. ``tokens``: of a step. ``seconds``: those of its steps, and of a product, by
    round."""
    first = next(iter(trainings))
    rows: Rows = []
    for label, training in trainings.items():
        median = statistics.median(seconds[label])
        ratio = machine.ratios(seconds[label], seconds[first])
        spent = f"{median:.2f} ({min(seconds[label]):.2f})"
        speed = f"{tokens / median:,.0f}"
        flops = training.config.costs(training.vocab_size).computed_training_flops_per_token * tokens
        frozen = any(not parameter.requires_grad for parameter in training.model.parameters())
        share = results.NONE if frozen else share_of_rate(flops, seconds[label], seconds[PRODUCT])
        print(f"  {label:26} {spent:>14} s  {speed:>6} tokens/s  {ratio:20} {share:>4} of the rate", flush=True)
        rows.append([label, spent, speed, ratio, share])
    return rows


def sized(name: Model, layers: int) -> ModelConfig:
    """A model at SmolLM2's sizes, without pretrained weights."""
    preset, changes = MODELS[name]
    model: Any = PRESETS[preset].model
    sizes = {name: value for name, value in SMOLLM2.items() if name != "window"}
    return replace(model, **sizes | {"layers": layers} | changes)


if __name__ == "__main__":
    cli.run(main)
