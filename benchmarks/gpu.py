"""The paper's 150M models on one GPU: tokens/s, MFU, step times against slide, peak memory, and where the time goes.

    python -m benchmarks.gpu --output gpu.json
    python -m benchmarks.gpu --models slide rec --compile no                # a part of it
    python -m benchmarks.gpu --device cpu --size tiny --steps 2             # the same code in seconds, to try it

It needs torch, transformers, tokenizers, sentencepiece and tyro: neither Ray nor MLflow, and no data. First the floor: the rate of
a large product in the same precision, and the time that the needed FLOPs (recur_models/costs.py) take at it; MFU is by the data
sheet's rate, which is higher. Then each model, as it is and compiled: forward, backward, clipping, the preset's optimizer, State
carried, random tokens. A model that does not fit, or does not compile, is told of, and the next one is run. The JSON file is
written anew after each.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import machine
from data_prep.errors import UserError
from pipelines.config.run import ModelSettings, OptimConfig
from pipelines.presets.block_recurrent import TABLE_1
from pipelines.terminal import cli
from pipelines.training.optim import build_optimizer
from pipelines.training.utilisation import GPU_SIZE, matrix_rate, peak_rate, synchronize
from recur_models import State, VanillaConfig, detach
from recur_models.compiling import Compile, compile_model

Model = Literal["vanilla", "slide", "rec", "feedback"]
VOCAB_SIZE = 32_001
MODELS: dict[Model, ModelSettings] = {
    "vanilla": VanillaConfig(layers=13),
    "slide": TABLE_1["slide-13L"].model,
    "rec": TABLE_1["rec-fixed-skip"].model,
    "feedback": TABLE_1["feedback-fixed-skip"].model,
}
"""The paper's 150M models. Under feedback each layer reads the states, which takes a sixth more FLOPs than slide has."""

TINY: dict[str, Any] = {"layers": 2, "d_model": 32, "heads": 2, "head_dim": 16, "mlp_dim": 64, "window": 16}
ROUNDS = 5
"""Times that the steps are timed; the figure is the median."""


@dataclass(frozen=True)
class BenchConfig:
    """What is timed."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where."""
    size: Literal["150M", "tiny"] = "150M"
    """150M: as in the paper, vocabulary 32,001, bfloat16. tiny: to try the script; sizes that a CPU does in seconds."""
    models: tuple[Model, ...] = ("vanilla", "slide", "rec", "feedback")
    """Models, in this order."""
    compile: tuple[Compile, ...] = ("no", "layer")
    """How each is compiled, in turn; `model` compiles the whole, which takes minutes under feedback."""
    segment_length: int = 0
    """Tokens of a lane in a step; 0 takes the paper's 4,096 (tiny: 64)."""
    lanes: int = 0
    """Lanes; 0 takes the paper's 32 (tiny: 2), and half of them as often as a model does not fit."""
    steps: int = 4
    """Steps of a round; there are five rounds, after two steps that do not count."""
    output: Path | None = None
    """JSON file of all figures."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"--steps is {self.steps}: it must be at least 1")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError(
                "torch sees no GPU: run this on a machine that has one, or try it with --device cpu --size tiny"
            )


def sized(model: Any, config: BenchConfig) -> ModelSettings:
    """The model at the size asked for."""
    if config.size == "150M":
        return model
    recurrent = {"recurrent_layers": (2,), "states": 16} if model.name == "rec" else {}
    return replace(model, **TINY, **recurrent)


class Training:
    """A model in training on random tokens."""

    def __init__(
        self, model: ModelSettings, optim: OptimConfig, vocab_size: int, lanes: int, length: int, device: torch.device
    ):
        torch.manual_seed(0)
        self.model = model.build(vocab_size).to(device)
        self.optimizer = build_optimizer(self.model, optim)
        self.tokens_BT = torch.randint(vocab_size, (lanes, length), device=device)
        self.targets_BT = self.tokens_BT.roll(-1, 1)
        self.fresh_BK = torch.zeros(lanes, length // model.block, dtype=torch.bool, device=device)
        self.state: State = self.model.initial_state(lanes)
        self.losses: list[torch.Tensor] = []
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext
        if device.type == "cuda":
            self.autocast = lambda: torch.autocast("cuda", dtype=torch.bfloat16)

    def step(self) -> None:
        with self.autocast():
            nats_BT, state = self.model(self.tokens_BT, self.state, self.fresh_BK, self.targets_BT)
        loss = nats_BT.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state = detach(state)
        self.losses.append(loss.detach())


@dataclass
class Figures:
    """Of one model, compiled or not."""

    model: str
    compile: str
    parameters: int
    lanes: int
    segment_length: int
    floor_seconds: float
    """Of a step: needed FLOPs over the matrix rate."""
    peak_seconds: float = math.nan
    """Of a step: needed FLOPs over the rate of the GPU's data sheet, where it is known."""
    compile_seconds: float = math.nan
    """The first two steps, compiler included."""
    seconds: float = math.nan
    """Of a step: the median round."""
    fastest_seconds: float = math.nan
    slowest_seconds: float = math.nan
    peak_bytes: int = 0
    """Memory that torch held at most; 0 on a CPU."""
    losses: tuple[float, ...] = ()
    """Of the first two steps."""
    where: tuple[tuple[str, float, float], ...] = ()
    """Operations: name, milliseconds of a step, share; the greatest first."""
    failure: str = ""

    @property
    def mfu(self) -> float:
        return self.peak_seconds / self.seconds

    @property
    def share_of_matrix_rate(self) -> float:
        return self.floor_seconds / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.lanes * self.segment_length / self.seconds


def measure(figures: Figures, training: Training, config: BenchConfig, device: torch.device) -> None:
    """Fill the figures in. Raises whatever the model raises."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def rounds(steps: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(steps):
            training.step()
        synchronize(device)
        return (time.perf_counter() - began) / steps

    figures.compile_seconds = 2 * rounds(2)
    figures.losses = tuple(float(loss) for loss in training.losses)
    seconds = [rounds(config.steps) for _ in range(ROUNDS)]
    figures.seconds = statistics.median(seconds)
    figures.fastest_seconds, figures.slowest_seconds = min(seconds), max(seconds)
    if device.type == "cuda":
        figures.peak_bytes = torch.cuda.max_memory_allocated(device)
    figures.where = where_time_goes(training, device)


def where_time_goes(training: Training, device: torch.device, count: int = 15) -> tuple[tuple[str, float, float], ...]:
    """The operations of one step that take most of the device's time, each without those that it calls."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiler:
        training.step()
        synchronize(device)
    times = [
        (event.key, event.self_device_time_total if cuda else event.self_cpu_time_total)
        for event in profiler.key_averages()
        if not cuda or event.device_type.name == "CUDA"  # kernels, not the calls that queued them
    ]
    total = sum(microseconds for _, microseconds in times) or 1.0
    times.sort(key=lambda item: -item[1])
    return tuple((name[:90], microseconds / 1e3, microseconds / total) for name, microseconds in times[:count])


def lanes_that_fit(config: BenchConfig, vocab_size: int, length: int, device: torch.device) -> int:
    """The lanes asked for, or the paper's, halved until the largest of the models does two steps."""
    if config.lanes:
        return config.lanes
    lanes = 32 if config.size == "150M" else 2
    for name in config.models:
        while lanes > 1:
            try:
                training = Training(
                    sized(MODELS[name], config), TABLE_1["slide-13L"].optim, vocab_size, lanes, length, device
                )
                training.step()
                training.step()
                break
            except torch.OutOfMemoryError:
                lanes //= 2
            finally:
                training = None
                empty_cache()
    return lanes


def empty_cache() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    device, tiny = torch.device(config.device), config.size == "tiny"
    vocab_size = 257 if tiny else VOCAB_SIZE
    length = config.segment_length or (64 if tiny else 4096)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = 512 if tiny else GPU_SIZE
    rate = matrix_rate(device, dtype, size)
    peak = peak_rate(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None
    lanes = lanes_that_fit(config, vocab_size, length, device)
    print(
        f"{machine.describe()}\nfloor: {rate / 1e12:.3g} TFLOP/s, a {size}² product in {str(dtype).removeprefix('torch.')}"
    )
    print(f"{lanes} lanes × {length:,} tokens, vocabulary {vocab_size:,}")
    print(
        "model     compile  step, ms (fastest to slowest)      floor, ms   tokens/s  "
        "floor    MFU  / slide  peak GiB  first steps, s"
    )
    done: list[Figures] = []
    for name in config.models:
        model = sized(MODELS[name], config)
        cost = model.costs(vocab_size)
        needed = cost.training_flops_per_token * lanes * length
        for unit in config.compile:
            figures = Figures(name, unit, cost.parameters, lanes, length, needed / rate, needed / (peak or math.nan))
            training = None
            torch.compiler.reset()
            try:
                training = Training(model, TABLE_1["slide-13L"].optim, vocab_size, lanes, length, device)
                compile_model(training.model, unit)
                measure(figures, training, config, device)
            except RuntimeError as error:  # out of memory, or the compiler's
                figures.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            del training
            empty_cache()
            done.append(figures)
            print(row(figures, done), flush=True)
            write(config, done, rate)
    for figures in done:
        if figures.where:
            print(f"\nwhere a step of {figures.model} goes (compile {figures.compile})")
            for operation, milliseconds, share in figures.where:
                print(f"  {share:6.1%} {milliseconds:10.3f} ms  {operation}")
    return 1 if any(figures.failure for figures in done) else 0


def to_slide(figures: Figures, done: list[Figures]) -> float:
    """This step's time over that of slide, compiled in the same way."""
    slide = [other.seconds for other in done if (other.model, other.compile) == ("slide", figures.compile)]
    return figures.seconds / slide[0] if slide else math.nan


def row(figures: Figures, done: list[Figures]) -> str:
    if figures.failure:
        return f"{figures.model:9} {figures.compile:8} {figures.failure}"
    spread = f"({figures.fastest_seconds * 1e3:.1f} to {figures.slowest_seconds * 1e3:.1f})"
    return (
        f"{figures.model:9} {figures.compile:8} {figures.seconds * 1e3:9.1f} {spread:24} {figures.floor_seconds * 1e3:9.1f} "
        f"{figures.tokens_per_second:11,.0f} {figures.share_of_matrix_rate:6.1%} {figures.mfu:6.1%} "
        f"{to_slide(figures, done):8.3f} {figures.peak_bytes / 2**30:9.1f} "
        f"{figures.compile_seconds:9.1f}"
    )


def write(config: BenchConfig, done: list[Figures], rate: float) -> None:
    """All figures so far."""
    if config.output is None:
        return
    rows = [
        {
            **asdict(f),
            "mfu": f.mfu,
            "share_of_matrix_rate": f.share_of_matrix_rate,
            "tokens_per_second": f.tokens_per_second,
            "to_slide": to_slide(f, done),
        }
        for f in done
    ]
    text = json.dumps({"machine": machine.describe(), "matrix_flops_per_second": rate, "figures": rows}, indent=1)
    config.output.write_text(text.replace("NaN", "null") + "\n", "utf-8")


if __name__ == "__main__":
    cli.run(main)
