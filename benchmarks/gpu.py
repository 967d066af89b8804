"""The 150M models on one GPU: tokens/s, MFU, step times against slide, peak memory; a profile; bfloat16 and resuming; generation.

    python -m benchmarks.gpu --output gpu.json
    python -m benchmarks.gpu --measure profile --models rec slide --lanes 8 --output profile.json
    python -m benchmarks.gpu --measure precision --models rec --lanes 4 --output precision.json
    python -m benchmarks.gpu --measure generation --models rec --output generation.json
    python -m benchmarks.gpu --measure attention
    python -m benchmarks.gpu --device cpu --size tiny --steps 1 --compile no layer --backend aot_eager       # to try it, in seconds

It needs torch, numpy, pyarrow, xxhash and safetensors, but no data, and neither Ray, MLflow nor tyro. It first measures the floor:
the rate of a large product in the same precision, and the time of the needed FLOPs (recur_models/costs.py) at this rate. MFU is by
the data sheet's rate, which is higher, and counts windows as windows. Then it times each model, compiled by layers, not compiled,
and compiled as a whole: forward, backward, clipping, the preset's optimizer, State carried, random tokens. A model that does not
fit is given half the lanes; one that does not compile is reported, and the next one is run. After `--limit` seconds it ends with
what it has: gpu.json and gpu.md are written anew after each line.

profile: the largest kernels of a step. precision: the loss after 300 steps on Python's own source in bfloat16 and float32, the
difference of one forward pass, and whether a run that is resumed is the same bit for bit. generation: 100,000 tokens one by one.
attention: a layer's windowed attention in three ways (gpu_attention.py).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks import bare, gpu_checks, machine
from benchmarks.contenders import PEER, peer_version
from benchmarks.gpu_models import BenchConfig, Model, Training, free_memory, is_ours, one_line
from common.choices import Compile
from common.errors import UserError
from common.files import finite
from pipelines.training.utilisation import GPU_SIZE, matrix_rate, peak_rate, synchronize

ROUNDS = 5
"""Rounds of timed steps; the result is their median."""


@dataclass
class Measurement:
    """Measurements of one model, compiled in one way."""

    model: str
    compile: str
    lanes: int
    segment_length: int
    parameters: int = 0
    floor_seconds: float = math.nan
    """Time of a step: needed FLOPs over our measured matrix rate."""
    peak_seconds: float = math.nan
    """Time of a step: needed FLOPs over the rate of the GPU's data sheet, if known."""
    compile_seconds: float = math.nan
    """The first two steps, compiler included."""
    seconds: float = math.nan
    """Time of a step: the median round."""
    fastest_seconds: float = math.nan
    slowest_seconds: float = math.nan
    peak_bytes: int = 0
    """Memory that torch held at most; 0 on a CPU."""
    losses: tuple[float, ...] = ()
    """Losses of the first two steps."""
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

    def over(self, name: str, done: list[Measurement]) -> float:
        """This one's time per token over that of another model, compiled in the same way."""
        other = [each for each in done if (each.model, each.compile) == (name, self.compile)]
        return other[0].tokens_per_second / self.tokens_per_second if other else math.nan


class Report:
    """The report, printed and written anew after each line: a table, and the same as JSON."""

    def __init__(self, config: BenchConfig, rates: dict[str, Any]) -> None:
        self.output = config.output
        self.lines = [machine.describe()]
        self.told: dict[str, Any] = {
            "machine": machine.describe(),
            "measure": config.measure,
            **rates,
            "measurements": [],
        }
        self.limit = threading.Timer(config.limit, self.give_up, [config.limit])
        self.limit.daemon = True
        self.limit.start()
        print(self.lines[0], flush=True)

    def say(self, line: str, measurement: dict[str, Any] | None = None) -> None:
        """Print and write one line, with the measurement that it shows."""
        print(line, flush=True)
        self.lines.append(line)
        if measurement:
            self.told["measurements"].append(finite(measurement))
        if self.output:
            text = json.dumps(self.told, indent=1, allow_nan=False)
            self.output.write_text(text + "\n", "utf-8")
            self.output.with_suffix(".md").write_text("\n".join(self.lines) + "\n", "utf-8")

    def give_up(self, seconds: float) -> None:
        """End the process, whatever the main thread does, such as compiling."""
        self.say(f"\nended after {seconds:g} s, as --limit says: what is missing was not reached")
        sys.stdout.flush()
        os._exit(1)


def measured(name: Model, unit: Compile, config: BenchConfig) -> Measurement:
    """The measurement, with no rates yet. Raises whatever the model raises."""
    device = config.torch_device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    training = Training(name, config, unit)
    measurement = Measurement(name, unit, config.most_lanes, config.length, training.parameters)

    def rounds(steps: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(steps):
            training.step()
        synchronize(device)
        return (time.perf_counter() - began) / steps

    measurement.compile_seconds = 2 * rounds(2)
    measurement.losses = tuple(float(loss) for loss in training.losses)
    seconds = [rounds(config.steps) for _ in range(ROUNDS)]
    measurement.seconds = statistics.median(seconds)
    measurement.fastest_seconds = min(seconds)
    measurement.slowest_seconds = max(seconds)
    if device.type == "cuda":
        measurement.peak_bytes = torch.cuda.max_memory_allocated(device)
    return measurement


def fitted(name: Model, unit: Compile, config: BenchConfig) -> Measurement:
    """The measurement at the lanes asked for, or at the paper's, halved until they fit; after an error, with its ``failure``."""
    asked = config.lanes
    while True:
        torch.compiler.reset()
        try:
            return measured(name, unit, config)
        except Exception as error:  # out of memory, or the compiler's, or a model's own: the others are measured too
            failed = Measurement(name, unit, config.most_lanes, config.length)
            failed.failure = one_line(error)
            halved = failed.lanes // 2 if isinstance(error, torch.OutOfMemoryError) and not asked else 0
        finally:
            free_memory()
        if not halved:
            return failed
        config = replace(config, lanes=halved)


def speed(config: BenchConfig, report: Report) -> bool:
    """Time all models, compiled in each way. Returns whether none failed."""
    rate = report.told["matrix_flops_per_second"]
    peak = report.told["data_sheet_flops_per_second"] or math.nan
    report.say(
        "\n| model | compile | lanes | step, ms | fastest to slowest | floor, ms | tokens/s | of the floor | MFU | / slide | "
        "peak GiB | first steps, s |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    done: list[Measurement] = []
    models = [name for name in config.models if name != "peer" or peer_version()]
    for unit in config.compile:
        for name in models:
            found = fitted(name, unit, config)
            if is_ours(name):
                needed = config.of(name).costs(config.vocab_size).training_flops_per_token
                flops = needed * found.lanes * config.length
                found.floor_seconds = flops / rate
                found.peak_seconds = flops / peak
            done.append(found)
            report.say(row(found, done), {**asdict(found), **ratios(found, done)})
    if len(models) < len(config.models):
        report.say(f"\n{PEER} is not installed (benchmarks/peers.txt), and left out")
    for unit in config.compile:
        timed = {each.model: each for each in done if each.compile == unit and not each.failure}
        if {"rec", "peer"} <= timed.keys():
            report.say(f"\n{against_peer(timed['rec'], timed['peer'])} (compile {unit})")
    return not any(measurement.failure for measurement in done)


def against_peer(rec: Measurement, peer: Measurement) -> str:
    """Compare rec with the peer in a sentence; memory is compared only at equal lanes."""
    told = f"rec reads {rec.tokens_per_second / peer.tokens_per_second:.2f} × the peer's tokens/s"
    if rec.lanes != peer.lanes:
        return f"{told}, {rec.lanes} lanes against {peer.lanes}"
    return f"{told}, at {rec.peak_bytes / peer.peak_bytes:.2f} × its memory" if peer.peak_bytes else told


def ratios(measurement: Measurement, done: list[Measurement]) -> dict[str, float]:
    names = ("mfu", "share_of_matrix_rate", "tokens_per_second")
    return {**{name: getattr(measurement, name) for name in names}, "to_slide": measurement.over("slide", done)}


def row(measurement: Measurement, done: list[Measurement]) -> str:
    head = f"| {measurement.model} | {measurement.compile} | {measurement.lanes} |"
    if measurement.failure:
        return f"{head} {measurement.failure} |"
    spread = f"{measurement.fastest_seconds * 1e3:.1f} to {measurement.slowest_seconds * 1e3:.1f}"
    told = (
        f"{head} {measurement.seconds * 1e3:.1f} | {spread} | {measurement.floor_seconds * 1e3:.1f} | "
        f"{measurement.tokens_per_second:,.0f} | {measurement.share_of_matrix_rate:.1%} | {measurement.mfu:.1%} | "
        f"{measurement.over('slide', done):.3f} | {measurement.peak_bytes / 2**30:.1f} | {measurement.compile_seconds:.1f} |"
    )
    return told.replace("nan%", "–").replace("nan", "–")


def checked(config: BenchConfig, report: Report) -> bool:
    """Profile every model, check its precision or let it generate, also after another has failed. Returns whether all passed."""
    passed = True
    for name in config.models:
        try:
            if config.measure == "profile":
                gpu_checks.profile(name, config, report.say)
            elif is_ours(name) and config.measure == "precision":
                passed &= gpu_checks.precision(name, config, report.say)
            elif is_ours(name) and config.measure == "generation":
                gpu_checks.generation(name, config, report.say)
        except Exception as error:
            passed = False
            report.say(f"{name}: {one_line(error)}")
        free_memory()
    return passed


def main(argv: list[str]) -> int:
    config = bare.parse(BenchConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "torch sees no GPU: run this on a machine that has one, or try it with --device cpu --size tiny"
        )
    if config.measure == "precision":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has no deterministic way
    device = config.torch_device
    size = 512 if config.size == "tiny" else GPU_SIZE
    rate = matrix_rate(device, config.dtype, size)
    peak = peak_rate(torch.cuda.get_device_name(device), config.dtype) if device.type == "cuda" else None
    report = Report(config, {"matrix_flops_per_second": rate, "data_sheet_flops_per_second": peak})
    sheet = f"data sheet {peak / 1e12:.4g}" if peak else "no data sheet"
    report.say(
        f"floor: {rate / 1e12:.3g} TFLOP/s, a {size}² product in {str(config.dtype).removeprefix('torch.')} ({sheet}); "
        f"{config.length:,} tokens of a lane, vocabulary {config.vocab_size:,}, backend {config.backend}"
    )
    passed = True
    if config.measure == "speed":
        passed = speed(config, report)
    elif config.measure == "attention":
        gpu_checks.attention(config, report.say)
    else:
        passed = checked(config, report)
    report.limit.cancel()
    return 0 if passed else 1


if __name__ == "__main__":
    bare.run(main)
