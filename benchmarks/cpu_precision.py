"""bfloat16 against float32 on this CPU, on one thread: products, training steps, and the loss after a training.

    python -m benchmarks.cpu_precision                                          about six minutes of one core
    python -m benchmarks.cpu_precision --models small-rec --training-steps 300  and the loss after so many steps, in both
    python -m benchmarks.cpu_precision --models slide-768 small-slide --profile 10  and the largest entries of a step's profile
    python -m benchmarks.cpu_precision --models slide-768 --compile layer       with compiled layers
    python -m benchmarks.cpu_precision --models slide-768 --step-lanes 4        with four lanes

Both precisions take turns in one process. Times are CPU seconds of the process: other work on the machine delays it, and is not
counted. A step is forward, backward, clipping and AdamW on random tokens, State carried. The losses are those of Python's own
source in bytes, without dropout.

The floor of a step is its matrix products (recur_models/costs.py, forward and backward) at the rate of a 2,048² product, measured
in the same round: a shared machine's rate changes within minutes. A step's share of the rate is that floor over its seconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from benchmarks import machine, results
from benchmarks.contenders import model_configs
from benchmarks.gpu_checks import python_source
from benchmarks.gpu_models import SMOLLM2
from common.checks import check_options
from common.choices import Compile
from common.errors import UserError
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.training.optim import build_optimizer
from pipelines.training.precision import machine_of, width_of
from recur_models import LlamaConfig, ModelConfig, RecConfig, SlideConfig, detach
from recur_models.compiling import compile_model
from studies.papers.measuring import torch_threads

Model = Literal[
    "demo-rec", "demo-128", "rec-128", "rec-192", "small-rec", "small-llama", "small-xl", "small-memorizing", "small-delta",
    "small-mamba2", "small-mlstm", "small-retention", "small-rmt", "small-slide", "small-feedback", "slide-768", "medium-rec",
    "smollm2",
]  # fmt: skip
Rows = list[list[results.Cell]]
BY_DEFAULT: tuple[Model, ...] = ("demo-rec", "demo-128", "rec-128", "rec-192", "small-rec", "medium-rec", "smollm2")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {512: 20, 1024: 5, 2048: 2}
"""Number of products that are timed together, by their rows and columns."""


@dataclass(frozen=True)
class BenchConfig:
    """Measurements to take."""

    models: tuple[Model, ...] = BY_DEFAULT
    """Presets' models; demo-128: demo-rec's at width 128; rec-128 and rec-192: small-rec's at these widths; small-feedback:
    feedback:fixed:skip at small-rec's size; slide-768: three layers, d 768, window 256; medium-rec: the medium size of
    contenders.py; smollm2: two layers of SmolLM2-135M, with its vocabulary."""
    rounds: int = 8
    """Rounds; the first two do not count."""
    step_lanes: int = 0
    """Lanes of a timed step; 0 for each model's own."""
    training_steps: int = 0
    """Steps after which the losses of the first model are compared; 0 for none."""
    lanes: int = 2
    """Lanes of the compared trainings."""
    segment_length: int = 512
    """Tokens of a lane in a step of the compared trainings."""
    profile: int = 0
    """Entries of each step's profile, the largest first; 0 for no profile."""
    compile: Compile = "no"
    """torch.compile each layer, or the whole model. The rounds that do not count compile."""
    record: bool = False
    """Record the result in results/speed."""

    def __post_init__(self) -> None:
        machine.check_rounds(self.rounds)
        check_options(self, step_lanes=0)
        if not self.models:
            raise UserError("--models is empty: name one or more")


class Case(NamedTuple):
    """A model, and the lanes and tokens of its timed step."""

    config: ModelConfig
    vocab_size: int
    lanes: int
    length: int
    """Tokens of a lane."""


def case(name: Model) -> Case:
    """The model of this name, with its own number of lanes."""
    small: Any = PRESETS["small-rec"].model
    if name == "smollm2":
        return Case(LlamaConfig(**SMOLLM2 | {"layers": 2}), 49_153, 1, 512)
    if name == "medium-rec":
        return Case(model_configs("medium")["rec:fixed:skip"], 257, 1, 2048)
    if name == "demo-128":
        demo: Any = PRESETS["demo-rec"].model
        return Case(replace(demo, d_model=128, heads=4, mlp_dim=512), 257, 16, 256)
    if name == "small-feedback":
        return Case(model_configs("small")["feedback:fixed:skip"], 257, 2, 1024)
    if name == "slide-768":
        return Case(SlideConfig(3, 768, heads=12, head_dim=64, mlp_dim=3072, window=256, dropout=0.0), 257, 2, 1024)
    if name in ("rec-128", "rec-192"):
        width = int(name[-3:])
        narrow: RecConfig = replace(small, d_model=width, heads=width // 64, mlp_dim=4 * width)
        return Case(narrow, 257, 2, 1024)
    preset: Any = PRESETS[name]
    lanes = preset.data.lanes if name == "demo-rec" else 2
    return Case(preset.model, 257, lanes, preset.data.segment_length)


class Training:
    """A model in training in one precision."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, lanes: int, dtype: torch.dtype, compile: Compile = "no"
    ) -> None:
        torch.manual_seed(0)
        self.config = config
        self.vocab_size = vocab_size
        self.dtype = dtype
        self.model = config.build(vocab_size)
        compile_model(self.model, compile)
        self.optimizer = build_optimizer(self.model, replace(PRESETS["small-rec"].optim, lr=1e-3))
        self.state = self.model.initial_state(lanes)

    def step(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> float:
        """Make one step. Returns its loss, in nats per token."""
        fresh_BK = torch.zeros(len(tokens_BT), tokens_BT.shape[1] // self.config.block, dtype=torch.bool)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            nats_BT, state = self.model(tokens_BT, self.state, fresh_BK, targets_BT)
        loss = nats_BT.mean()
        loss.backward()
        self.state = detach(state)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def alternating(rounds: int, runs: dict[str, Callable[[], object]]) -> tuple[dict[str, float], list[float]]:
    """Median CPU seconds of each run over the rounds that count; and the ratio of float32's to bfloat16's seconds in each round."""
    return medians_and_ratios(take_turns(rounds, runs))


def medians_and_ratios(seconds: dict[str, list[float]]) -> tuple[dict[str, float], list[float]]:
    """The median of each run's seconds; and float32's over bfloat16's in each round."""
    ratios = [one / half for one, half in zip(seconds["float32"], seconds["bfloat16"], strict=True)]
    return {name: statistics.median(each) for name, each in seconds.items()}, ratios


def take_turns(
    rounds: int,
    runs: dict[str, Callable[[], object]],
    seconds_of: Callable[[Callable[[], object]], float] = machine.cpu_seconds,
) -> dict[str, list[float]]:
    """Seconds of each run in each round that counts: the first two do not. Every other round goes the other way round."""
    timers = {name: partial(seconds_of, run) for name, run in runs.items()}
    return machine.seconds_in_turns(rounds, timers, back_and_forth=True)


def row(label: str, unit: str, work: float, seconds: dict[str, float], ratios: list[float]) -> list[results.Cell]:
    """A row of the table, which is also printed."""
    rates = [f"{work / seconds[name]:,.0f}" for name in DTYPES]
    ratio = machine.median_and_range(ratios)
    print(f"  {label:44} {rates[0]:>8} {rates[1]:>8} {unit:9} {ratio}", flush=True)
    return [label, *rates, unit, ratio]


def product_run(size: int, dtype: torch.dtype) -> Callable[[], object]:
    """A function that multiplies two square matrices as often as SIZES says."""
    a, b = (torch.randn(size, size, dtype=dtype) for _ in range(2))
    return lambda: [torch.mm(a, b) for _ in range(SIZES[size])]


def largest_product(dtype: torch.dtype) -> Callable[[], object]:
    """`product_run` of the largest size."""
    return product_run(max(SIZES), dtype)


def products(rounds: int) -> Rows:
    """A row for each size."""
    rows: Rows = []
    for size, repeats in SIZES.items():
        seconds, ratios = alternating(rounds, {name: product_run(size, dtype) for name, dtype in DTYPES.items()})
        rows.append(row(f"product of {size:,}²", "GFLOP/s", 2e-9 * size**3 * repeats, seconds, ratios))
    return rows


def share_of_rate(flops: float, seconds: list[float], product_seconds: list[float]) -> str:
    """The median over rounds of a step's FLOP/s over those of the largest product, in percent.

    ``flops``: of a step. ``seconds``, ``product_seconds``: those of a step and of a `largest_product` in each round.
    """
    size, repeats = max(SIZES.items())
    product_flops = 2 * size**3 * repeats
    pairs = zip(seconds, product_seconds, strict=True)
    return f"{statistics.median(flops / step / (product_flops / product) for step, product in pairs):.0%}"


def step_runs(timed: Case, compile: Compile) -> dict[str, Callable[[], object]]:
    """A model's training step in each precision, on the same tokens."""
    config, vocab_size, lanes, length = timed
    tokens_BT = torch.randint(vocab_size, (lanes, length), generator=torch.Generator().manual_seed(0))
    runs: dict[str, Callable[[], object]] = {}
    for dtype_name, dtype in DTYPES.items():
        training = Training(config, vocab_size, lanes, dtype, compile)
        runs[dtype_name] = lambda training=training: training.step(tokens_BT, tokens_BT.roll(-1, 1))
    return runs


def steps(name: Model, timed: Case, runs: dict[str, Callable[[], object]], rounds: int) -> Rows:
    """The rows of a model: its tokens/s, and the share that it reaches of the rate of a large product."""
    config, vocab_size, lanes, length = timed
    large = {f"{dtype_name} product": largest_product(dtype) for dtype_name, dtype in DTYPES.items()}
    counted = take_turns(rounds, runs | large)
    seconds, ratios = medians_and_ratios(counted)
    label = f"{name}, d {width_of(config, vocab_size)}, {lanes} × {length:,} tokens"
    speeds = row(label, "tokens/s", lanes * length, seconds, ratios)
    flops = config.costs(vocab_size).computed_training_flops_per_token * lanes * length
    shares = [share_of_rate(flops, counted[dtype], counted[f"{dtype} product"]) for dtype in DTYPES]
    print(f"  {f'{flops / 1e9:,.0f} GFLOP':>44} {shares[0]:>8} {shares[1]:>8} of the rate", flush=True)
    return [speeds, [f"{name}: {flops / 1e9:,.0f} GFLOP a step", *shares, "of the rate", results.NONE]]


def profiled(name: str, runs: dict[str, Callable[[], object]], entries: int) -> Rows:
    """The largest entries of a step's profile in each precision: milliseconds of an operation itself, the median of three."""
    rows: Rows = []
    for dtype, run in runs.items():
        found: dict[str, list[float]] = {}
        calls: dict[str, int] = {}
        for _ in range(3):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                run()
            for event in profile.key_averages():
                found.setdefault(event.key, []).append(event.self_cpu_time_total / 1000)
                calls[event.key] = event.count
        median = {key: statistics.median(each) for key, each in found.items()}
        total = sum(median.values())
        for key in sorted(median, key=lambda key: -median[key])[:entries]:
            cells: list[results.Cell] = [
                f"{name}, {dtype}",
                key,
                calls[key],
                f"{median[key]:.1f}",
                f"{median[key] / total:.1%}",
            ]
            print(f"  {cells[0]:24} {key:50.50} {calls[key]:>6} {cells[3]:>9} ms {cells[4]:>6}", flush=True)
            rows.append(cells)
    return rows


def record_profiles(recorder: results.Recorder, name: str, profiles: Rows, kind: str, threads: int = 1) -> None:
    """Record what `profiled` gave on this kind of machine with so many threads, where there is any."""
    if profiles:
        recorder.table(
            name,
            ("step", "operation", "calls", "ms", "of the step"),
            profiles,
            text=[f"{kind}; threads: {threads}; milliseconds of wall-clock time, the median of three steps."],
        )


def losses(config: BenchConfig) -> list[results.Cell]:
    """A row of mean losses over the last tenth of the steps, in bits per byte, and their relative difference."""
    model, vocab_size, *_ = case(config.models[0])
    ids = python_source().long()
    starts_B1 = torch.arange(config.lanes)[:, None] * (len(ids) // config.lanes)
    trainings = [Training(model, vocab_size, config.lanes, dtype, config.compile) for dtype in DTYPES.values()]
    nats: list[list[float]] = [[], []]
    for step in range(config.training_steps):
        places_BT = (starts_B1 + step * config.segment_length + torch.arange(config.segment_length)) % (len(ids) - 1)
        for training, found in zip(trainings, nats, strict=True):
            found.append(training.step(ids[places_BT], ids[places_BT + 1]))
    last = max(1, config.training_steps // 10)
    single, half = (statistics.mean(found[-last:]) / math.log(2) for found in nats)
    tokens = f"{config.lanes} × {config.segment_length} tokens"
    label = f"{config.models[0]}: bits/byte, last {last} of {config.training_steps} steps of {tokens}"
    print(f"  {label}: {single:.4f} in float32, {half:.4f} in bfloat16 ({half / single - 1:+.2%})", flush=True)
    return [label, f"{single:.4f}", f"{half:.4f}", "bits/byte", f"{half / single - 1:+.2%}"]


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("speed", "benchmarks.cpu_precision", argv, config.record)
    kind = machine_of(torch.device("cpu")).kind
    with torch_threads(1):
        print(f"{machine.describe()}; {kind}", flush=True)
        rows = products(config.rounds)
        profiles: Rows = []
        for name in config.models:
            timed = case(name)
            if config.step_lanes:
                timed = timed._replace(lanes=config.step_lanes)
            runs = step_runs(timed, config.compile)
            rows += steps(name, timed, runs, config.rounds)
            if config.profile:
                profiles += profiled(name, runs, config.profile)
        if config.training_steps:
            rows.append(losses(config))
    recorder.table(
        "bfloat16 on a CPU",
        ("measurement", "float32", "bfloat16", "unit", "ratio, median (range)"),
        rows,
        text=[f"{kind}; one thread, rates by CPU seconds; ratios are float32's seconds over bfloat16's by round."],
    )
    record_profiles(recorder, "Profile of a training step on a CPU", profiles, kind)


if __name__ == "__main__":
    cli.run(main)
