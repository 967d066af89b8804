"""The measurements of benchmarks/gpu.py beside speed: a step's kernels, the cost of bfloat16 and resuming, and generation."""

from __future__ import annotations

import copy
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from benchmarks.gpu_attention import WAYS, timed
from benchmarks.gpu_models import BenchConfig, Model, Ours, Training, is_ours, one_line
from benchmarks.machine import resident
from pipelines.training.utilisation import matrix_rate, synchronize
from recur_models.decoding import begin, read


class Say(Protocol):
    """Prints and writes a line, with the measurement that it shows."""

    def __call__(self, line: str, measurement: dict[str, Any] | None = None) -> None: ...


KERNELS = 10
STRETCHES = 10


def profile(name: Model, config: BenchConfig, say: Say) -> None:
    """Report the largest kernels of a step, its time and its floor. A kernel's time leaves out the kernels that it calls."""
    device = config.torch_device
    cuda = device.type == "cuda"
    rate = matrix_rate(device, config.dtype, 512 if config.size == "tiny" else 8192)
    for unit in config.compile:
        torch.compiler.reset()
        training = Training(name, config, unit)
        for _ in range(3):
            training.step()
        synchronize(device)
        began = time.perf_counter()
        training.step()
        synchronize(device)
        step = (time.perf_counter() - began) * 1e3
        with torch_profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiler:
            training.step()
            synchronize(device)
        events = [
            (event.key, (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e3, event.count)
            for event in profiler.key_averages()
            if not cuda or event.device_type.name == "CUDA"  # kernels, not the calls that queued them
        ]
        events.sort(key=lambda event: -event[1])
        busy = sum(milliseconds for _, milliseconds, _ in events)
        floor = 0.0
        if is_ours(name):
            needed = config.of(name).costs(config.vocab_size).training_flops_per_token
            floor = needed * config.most_lanes * config.length / rate * 1e3
        rows = [[key[:90], milliseconds, count] for key, milliseconds, count in events[:KERNELS]]
        table = [f"| {key} | {each:.3f} | {each / (busy or 1):.1%} | {count} |" for key, each, count in rows]
        say(
            f"\n{name}, compile {unit}: a step takes {step:.1f} ms, its {sum(n for *_, n in events):,} kernels {busy:.1f} ms, "
            f"the needed FLOPs at {rate / 1e12:.3g} TFLOP/s {floor:.1f} ms\n",
            {"model": name, "compile": unit, "step_ms": step, "busy_ms": busy, "floor_ms": floor, "kernels": rows},
        )
        say("\n".join(["| kernel | ms | share | launches |", "|---|---|---|---|", *table]))


def python_source() -> torch.Tensor:
    """The bytes of Python's own source: uint8 [bytes]."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)), dtype=torch.uint8)


def text(config: BenchConfig) -> torch.Tensor:
    """Bytes of Python's own source, int64 [B, steps · T + 1]. Each lane has another part, and begins again at the source's end."""
    width = config.training_steps * config.length + 1
    ids = python_source()
    starts_B1 = torch.arange(config.most_lanes)[:, None] * (len(ids) // config.most_lanes)
    return ids[(starts_B1 + torch.arange(width)) % len(ids)].to(config.torch_device, torch.int64)


def trained(name: Model, config: BenchConfig, dtype: torch.dtype) -> list[float]:
    """The losses of a model that learns the text without dropout, in nats per token."""
    training = Training(name, config, config.compile[0], dtype, dropout=0.0)
    text_BS = text(config)
    for step in range(config.training_steps):
        begins = step * config.length
        training.tokens_BT.copy_(text_BS[:, begins : begins + config.length])
        training.targets_BT.copy_(text_BS[:, begins + 1 : begins + config.length + 1])
        training.step()
    return torch.stack(training.losses).tolist()


def precision(name: Ours, config: BenchConfig, say: Say) -> bool:
    """Compare bfloat16 with float32, on a CPU too, and a resumed run with an uninterrupted one. Returns whether they agree."""
    single, half = (trained(name, config, dtype) for dtype in (torch.float32, torch.bfloat16))
    last = max(1, config.training_steps // 15)
    ends = [sum(losses[-last:]) / last for losses in (single, half)]
    off = ends[1] / ends[0] - 1
    passed = abs(off) < 0.01
    say(
        f"{name}: loss of the last {last} of {config.training_steps} steps {ends[0]:.4f} in float32, {ends[1]:.4f} in "
        f"bfloat16 ({off:+.2%}); of the first {single[0]:.5f} and {half[0]:.5f} ({half[0] / single[0] - 1:+.3%})",
        {"model": name, "float32": single, "bfloat16": half, "off": off},
    )
    for deterministic in (False, True):
        equal, seconds, without = resumed(name, config, deterministic)
        passed &= equal or not deterministic
        way = "deterministic algorithms" if deterministic else "the usual algorithms"
        say(
            f"{name}: with {way} a resumed run is {'the same bit for bit' if equal else 'NOT the same'}; "
            f"{seconds * 1e3:.1f} ms a step"
            + (f"; without a deterministic one: {', '.join(without)}" if without else ""),
            {"model": name, "deterministic": deterministic, "equal": equal, "seconds": seconds, "without": without},
        )
    return passed


def resumed(name: Model, config: BenchConfig, deterministic: bool) -> tuple[bool, float, list[str]]:
    """Whether four steps give the weights of two steps and two more in another model that resumes them; seconds of a step;
    operations without a deterministic algorithm."""
    device = config.torch_device

    def new() -> Training:
        return Training(name, config, config.compile[0])

    def noise() -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            whole = new()
            whole.step()
            whole.step()
            kept = copy.deepcopy((whole.model.state_dict(), whole.optimizer.state_dict(), whole.state)), noise()
            synchronize(device)
            began = time.perf_counter()
            whole.step()
            whole.step()
            synchronize(device)
            seconds = (time.perf_counter() - began) / 2
            other = new()
            (weights, moments, other.state), states = kept
            other.model.load_state_dict(weights)
            other.optimizer.load_state_dict(moments)
            torch.set_rng_state(states[0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(states[1], device)
            other.step()
            other.step()
    finally:
        torch.use_deterministic_algorithms(False)
    pairs = zip(whole.model.parameters(), other.model.parameters(), strict=True)
    without = sorted({str(each.message).split(" ")[0] for each in caught if "deterministic" in str(each.message)})
    return all(torch.equal(one, another) for one, another in pairs), seconds, without


@torch.no_grad()
def generation(name: Ours, config: BenchConfig, say: Say) -> None:
    """Generate in one lane, the likeliest token each time, and report tokens/s and memory for each tenth."""
    device = config.torch_device
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    model = config.of(name).build(config.vocab_size).to(device, config.dtype).eval()
    decoder = model.incremental_decoder()
    reading = begin(decoder, lanes=1)
    token_B1 = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for stretch in range(STRETCHES):
        synchronize(device)
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        count = max(1, config.tokens // STRETCHES)
        for _ in range(count):
            logits_B1V, reading = read(decoder, reading, token_B1, keep=1)
            token_B1 = logits_B1V.argmax(-1)
        synchronize(device)
        rate = count / (time.perf_counter() - began)
        held = torch.cuda.max_memory_allocated(device) if cuda else resident()
        say(
            f"{name}: tokens {stretch * count:,} to {(stretch + 1) * count:,}: {rate:,.0f} tokens/s, "
            f"{'at most ' * cuda}{held / 2**20:,.1f} MiB",
            {"model": name, "tokens": (stretch + 1) * count, "tokens_per_second": rate, "bytes": held},
        )


def attention(config: BenchConfig, say: Say) -> None:
    """Report time and memory of one layer of windowed attention, for each of WAYS."""
    say("\n| attention | forward, ms | and backward, ms | peak GiB |\n|---|---|---|---|")
    for name in WAYS:
        try:
            forward, both, held = timed(name, config)
        except Exception as error:  # the others are to be measured too
            say(f"| {name} | {one_line(error)} |")
            continue
        told = {"way": name, "forward_ms": forward, "both_ms": both, "bytes": held}
        say(f"| {name} | {forward:.2f} | {both:.2f} | {held / 2**30:.2f} |", told)
