"""Generation in constant memory: 50,000 tokens, and a prompt of 100,000, by `pipelines.generate` and by transformers' `generate()`.

    python -m benchmarks.long_generation                                    about three minutes on two cores
    python -m benchmarks.long_generation --preset recall-delta --ways ours --tokens 100000 --stretch 10000

A rec model, or that of a preset, with random weights (what it writes does not matter for time and memory) samples token by token;
each stretch of 5,000 tokens gives its median time per token and the resident memory at its end. The first stretch only warms up: it
is shown, and the others are compared with their own median. A prompt is read in passes of 2,048 tokens; time and resident memory
are noted after each. transformers' generate() keeps all ids and a mask, and copies them at every token: 16 bytes for each token so
far.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import machine
from common.errors import UserError
from pipelines.generate import GenerateConfig, generate
from pipelines.inference.trained import Trained
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from recur_models import RecConfig
from recur_models.decoding import TOKENS_AT_ONCE, begin, read
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig

VOCAB_SIZE = 257
MODEL = RecConfig(
    layers=3, recurrent_layers=(2,), d_model=64, heads=2, head_dim=32, mlp_dim=128, window=64, states=32, dropout=0.0
)
MEMORY_TOLERANCE = 0.05
TIME_TOLERANCE = 0.10
MEBIBYTE = 2**20

Way = Literal["ours", "transformers", "prompt"]


@dataclass(frozen=True)
class BenchConfig:
    """The model, and the numbers of tokens to generate and to read."""

    ways: tuple[Way, ...] = ("ours", "transformers", "prompt")
    """ours: pipelines.generate; transformers: its generate(); prompt: reading one."""
    tokens: int = 50_000
    """Tokens to generate."""
    stretch: int = 5_000
    """Tokens of a stretch."""
    prompt: int = 100_000
    """Tokens of the prompt."""
    preset: str = ""
    """Preset of the model; by default a small rec."""

    def __post_init__(self) -> None:
        machine.check_presets(*filter(None, [self.preset]))
        if self.stretch < 1 or self.tokens < 3 * self.stretch:
            raise UserError(f"--tokens is {self.tokens}: it must be at least three times --stretch, {self.stretch}")
        if self.prompt < 10 * TOKENS_AT_ONCE:
            raise UserError(f"--prompt is {self.prompt}: it must be at least {10 * TOKENS_AT_ONCE}")


class NoTokenizer:
    """Stands where a trained model has a tokenizer: ids are generated, and never shown as text."""

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


@dataclass(frozen=True)
class Stretch:
    """Measurements of some consecutive tokens."""

    milliseconds: float
    """Median time of a token."""
    resident: int
    """Resident memory at the end, in bytes."""


class Watch:
    """Times tokens as they come; also a streamer of transformers' generate()."""

    def __init__(self, length: int) -> None:
        self.found: list[Stretch] = []
        self._length = length
        self._seconds = []
        self._began = 0.0

    def put(self, value: object) -> None:
        """A token; the first value is the prompt."""
        now = time.perf_counter()
        if self._began:
            self._seconds.append(now - self._began)
        if len(self._seconds) == self._length:
            self.found.append(Stretch(statistics.median(self._seconds) * 1e3, machine.resident()))
            self._seconds = []
        self._began = time.perf_counter()

    def end(self) -> None: ...


def by_ours(trained: Trained, asked: GenerateConfig, length: int) -> list[Stretch]:
    """Our own generate()."""
    watch = Watch(length)
    watch.put(None)  # the time begins
    for token in generate(trained, [], asked, seed=0):
        watch.put(token)
    return watch.found


def by_transformers(model: Any, config: BenchConfig) -> list[Stretch]:
    """One call of transformers' generate()."""
    watch = Watch(config.stretch)
    start = torch.tensor([[VOCAB_SIZE - 1]])
    model.generate(start, max_new_tokens=config.tokens, do_sample=True, top_k=50, streamer=watch)
    return watch.found


def flat(name: str, values: list[float], tolerance: float, unit: str) -> bool:
    """Print whether all values lie within the tolerance of their median, and how far the last is from the first."""
    middle = statistics.median(values)
    worst = max(abs(value / middle - 1) for value in values)
    good = worst <= tolerance
    print(
        f"{'flat' if good else 'NOT FLAT':8} {name}: median {middle:.3f} {unit}, {min(values):.3f} to {max(values):.3f}, at most "
        f"{worst:.1%} off (allowed {tolerance:.0%}); last over first {values[-1] / values[0]:.3f}",
        flush=True,
    )
    return good


def verdict(name: str, found: list[Stretch], length: int) -> bool:
    """Print the stretches, and whether memory and time are flat."""
    for i, stretch in enumerate(found):
        print(
            f"  tokens {i * length + 1:>7,} to {(i + 1) * length:>7,}: {stretch.milliseconds:.3f} ms a token, "
            f"{stretch.resident / MEBIBYTE:.1f} MiB",
            flush=True,
        )
    memory = flat(f"{name}, memory", [s.resident / MEBIBYTE for s in found[1:]], MEMORY_TOLERANCE, "MiB")
    return flat(f"{name}, time", [s.milliseconds for s in found[1:]], TIME_TOLERANCE, "ms a token") and memory


def read_prompt(trained: Trained, count: int) -> bool:
    """Read a prompt as `generate` does. Returns whether time and memory of the passes are flat, the first two left out."""
    decoder = trained.model.incremental_decoder()
    passes: list[Stretch] = []
    began = time.perf_counter()

    def note(*_: object) -> None:
        nonlocal began
        now = time.perf_counter()
        passes.append(Stretch((now - began) * 1e3 / TOKENS_AT_ONCE, machine.resident()))
        began = time.perf_counter()

    hook = trained.model.register_forward_hook(note)
    tokens_BT = torch.randint(VOCAB_SIZE - 1, (1, count), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        read(decoder, begin(decoder, lanes=1), tokens_BT, keep=1)
    hook.remove()
    whole = passes[2 : count // TOKENS_AT_ONCE]
    memory = flat(
        f"prompt of {count:,} tokens, memory", [s.resident / MEBIBYTE for s in whole], MEMORY_TOLERANCE, "MiB"
    )
    tenth = max(1, len(whole) // 10)
    groups = [whole[i : i + tenth] for i in range(0, len(whole) - tenth + 1, tenth)]
    medians = [statistics.median(s.milliseconds for s in group) for group in groups]
    return flat(f"prompt of {count:,} tokens, time", medians, TIME_TOLERANCE, "ms a token") and memory


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = PRESETS[config.preset].model if config.preset else MODEL
    wrapped: Any = ThroughlineForCausalLM(ThroughlineConfig.of(model, VOCAB_SIZE)).eval()
    trained = Trained("random weights", wrapped.model, NoTokenizer(), VOCAB_SIZE - 1)
    parameters = sum(parameter.numel() for parameter in wrapped.parameters())
    print(
        f"{machine.describe()}\n{config.preset or model.name}, {parameters:,} parameters, blocks of {model.block} tokens"
    )
    passed = True
    if "ours" in config.ways:
        asked = GenerateConfig(run=None, max_new_tokens=config.tokens, top_k=50)  # type: ignore[arg-type]
        passed &= verdict("ours", by_ours(trained, asked, config.stretch), config.stretch)
    if "transformers" in config.ways:
        passed &= verdict("transformers", by_transformers(wrapped, config), config.stretch)
    if "prompt" in config.ways:
        passed &= read_prompt(trained, config.prompt)
    return 0 if passed else 1


if __name__ == "__main__":
    cli.run(main)
