"""Measures what today's mixers cost: a training step against `slide`, its growth with the length, and transformers' own torch code.

    python -m benchmarks.mixer_cost                      about ten minutes on one thread
    python -m benchmarks.mixer_cost --mixers delta --rounds 12

All take turns: a round is one step of each, and gives one ratio. Three questions:

- Steps: forward, backward and AdamW of small-delta, small-mamba2 … over segments of 1,024 tokens, against small-slide's, which has
  as many parameters; their shares of the rate of a large matrix product; and the bytes that they keep for the backward pass.
- Growth: the same steps with segments two and four times as long, as the time per token over that of the first length. A mixer
  that is linear in the length has 1.
- transformers: its torch code on the same sizes, forward and backward: the delta rule and the matrix memory of xLSTM alone, in
  chunks of 64, and a whole Mamba-2 that both read from one folder, transformers in chunks of 64 and in its own of 256.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks import machine, results
from benchmarks.contenders import LANES, VOCAB, Contender
from benchmarks.kept import kept_bytes
from common.errors import UserError
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import plain_table
from pipelines.training.utilisation import matrix_rate
from recur_models.gated_delta import gated_delta_rule
from recur_models.mamba2_model import Mamba2Config
from recur_models.mixers import MixersConfig
from recur_models.mlstm import matrix_memory
from recur_models.norms import unit_norm

MixerName = Literal[
    "delta", "delta-two-keys", "mamba2", "mlstm", "retention", "rwkv7", "slstm", "delta-window", "mamba2-window"
]
STEPS = ("model", "parameters", "s a step", "/ slide, median (range)", "of the matrix rate", "MiB kept", "× 2", "× 4")
PAIRS = ("rule or model", "ours, s", "transformers, s", "transformers / ours, median (range)")
CHUNK = 64

Pass = Callable[[], Tensor]
"""A forward pass, whose result is summed and differentiated."""


@dataclass(frozen=True)
class BenchConfig:
    """Mixers to time, and the sizes."""

    mixers: tuple[MixerName, ...] = get_args(MixerName)
    """Mixers, by the names of the presets small-…"""
    segment: int = 1024
    """Tokens of a segment."""
    rounds: int = 8
    """Rounds; the first two do not count."""
    threads: int = 1
    """Threads of torch."""
    record: bool = False
    """Record both tables in results/today/."""

    def __post_init__(self) -> None:
        machine.check_rounds(self.rounds)
        if self.segment < 128 or self.segment % 128:
            raise UserError(f"--segment is {self.segment}: give a multiple of 128, which is a block")


def steps(config: BenchConfig) -> list[tuple[results.Cell, ...]]:
    """A row for slide and for each mixer."""
    names = ("slide", *config.mixers)
    lengths = [config.segment, 2 * config.segment, 4 * config.segment]
    models: dict[str, Any] = {name: PRESETS[f"small-{name}"].model for name in names}
    made = {(name, length): Contender(models[name], length) for name in names for length in lengths}
    timers = {f"{name} {length}": contender.step for (name, length), contender in made.items()}
    seconds = machine.seconds_in_turns(config.rounds, timers)
    rate = matrix_rate(torch.device("cpu"), torch.float32, size=2048, repeats=3)
    rows: list[tuple[results.Cell, ...]] = []
    for name in names:
        contender = made[name, config.segment]
        first, *longer = (seconds[f"{name} {length}"] for length in lengths)
        median = statistics.median(first)
        growth = [
            statistics.median(each) / median * config.segment / n for each, n in zip(longer, lengths[1:], strict=True)
        ]
        kept = kept_bytes(contender.loss) / 2**20
        rows.append(
            (
                name,
                contender.parameters,
                round(median, 3),
                machine.ratios(first, seconds[f"slide {config.segment}"]),
                f"{contender.flops / median / rate:.0%}",
                round(kept),
                *(round(each, 2) for each in growth),
            )
        )
    return rows


def timed(forward: Pass) -> Callable[[], float]:
    """Seconds of the processor for a forward and a backward pass."""
    return partial(machine.cpu_seconds, lambda: forward().sum().backward())


def heads(name: MixerName, segment: int) -> tuple[MixersConfig, list[Tensor]]:
    """The preset's sizes, and random q, k, v, log decays and gates of its heads, [B, T, H, …]."""
    sizes = PRESETS[f"small-{name}"].model
    assert isinstance(sizes, MixersConfig)
    shape = (LANES, segment, sizes.heads)
    torch.manual_seed(0)
    return sizes, [
        unit_norm(torch.randn(*shape, sizes.key_dim)).requires_grad_(),
        unit_norm(torch.randn(*shape, sizes.key_dim)).requires_grad_(),
        torch.randn(*shape, sizes.value_dim, requires_grad=True),
        torch.randn(*shape) + 2,
        torch.rand(*shape),
    ]


def delta_rule(segment: int) -> tuple[Pass, Pass]:
    """The gated delta rule of small-delta's sizes: ours and transformers'."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    sizes, (q, k, v, forget, beta) = heads("delta", segment)
    log_decay = logsigmoid(forget)
    state = torch.zeros(LANES, sizes.heads, sizes.key_dim, sizes.value_dim)

    def ours() -> Tensor:
        return gated_delta_rule(q, k, v, log_decay, beta, state, chunk=CHUNK)[0]

    def theirs() -> Tensor:
        return torch_chunk_gated_delta_rule(q, k, v, g=log_decay, beta=beta, chunk_size=CHUNK)[0]

    return ours, theirs


def memory(segment: int) -> tuple[Pass, Pass]:
    """The matrix memory of small-mlstm's sizes: ours and transformers'."""
    from transformers.models.xlstm import modeling_xlstm

    chunkwise: Any = modeling_xlstm.mlstm_chunkwise_native_autograd
    sizes, given = heads("mlstm", segment)
    q, k, v, forget, write = given
    state = torch.zeros(LANES, sizes.heads, sizes.key_dim, sizes.value_dim + 1)
    scale = torch.zeros(LANES, sizes.heads)

    def ours() -> Tensor:
        return matrix_memory(q * sizes.key_dim**-0.5, k, v, write, logsigmoid(forget), state, scale, chunk=CHUNK)[0]

    def theirs() -> Tensor:
        heads_first = [each.transpose(1, 2) for each in (q, k, v, write, forget)]
        return chunkwise(*heads_first, chunk_size=CHUNK).transpose(1, 2)

    return ours, theirs


@contextmanager
def mamba2(segment: int) -> Iterator[tuple[Pass, Pass, Pass]]:
    """Ours, transformers' in the same chunks, and in its own, all of one folder: d 256, 6 layers, 8 heads of 64, states of 36."""
    from importlib import import_module

    module: Any = import_module("transformers.models.mamba2.modeling_mamba2")  # decorators hide its types
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_heads": 8, "head_dim": 64, "state_size": 36}
    own = module.Mamba2ForCausalLM(module.Mamba2Config(**sizes, n_groups=1, vocab_size=VOCAB))
    tokens = torch.randint(VOCAB, (LANES, segment))
    with tempfile.TemporaryDirectory() as folder:
        own.save_pretrained(folder)
        same = module.Mamba2ForCausalLM.from_pretrained(folder, chunk_size=CHUNK)
        ours = Mamba2Config(pretrained=folder, window=128, chunk=CHUNK).build(VOCAB)
        yield (
            lambda: ours(tokens)[0],
            lambda: same(tokens, use_cache=False).logits,
            lambda: own(tokens, use_cache=False).logits,
        )


def pairs(config: BenchConfig) -> list[tuple[results.Cell, ...]]:
    """A row for each rule or model that transformers has, too."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with mamba2(config.segment) as (ours_mamba2, same_chunks, own_chunks):
        both = {
            "gated delta rule": delta_rule(config.segment),
            "matrix memory": memory(config.segment),
            "Mamba-2, 6 layers": (ours_mamba2, same_chunks),
            "Mamba-2, theirs in chunks of 256": (ours_mamba2, own_chunks),
        }
        passes = {f"{name} {i}": timed(each) for name, pair in both.items() for i, each in enumerate(pair)}
        seconds = machine.seconds_in_turns(config.rounds, passes)
    rows: list[tuple[results.Cell, ...]] = []
    for name in both:
        ours = seconds[f"{name} 0"]
        theirs = seconds[f"{name} 1"]
        medians = (round(statistics.median(each), 4) for each in (ours, theirs))
        rows.append((name, *medians, machine.ratios(theirs, ours)))
    return rows


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    recorder = results.Recorder("today", "benchmarks.mixer_cost", argv, config.record)
    torch.set_num_threads(config.threads)
    print(
        f"{machine.describe()}, transformers {version('transformers')}\n{LANES} lanes × {config.segment:,} tokens, d 256, float32; "
        f"{config.rounds - 2} rounds",
        flush=True,
    )
    for name, columns, measure in (("Step of a mixer", STEPS, steps), ("Against transformers", PAIRS, pairs)):
        rows = measure(config)
        print_wide(plain_table(columns, [[*map(str, row)] for row in rows]), 120)
        recorder.table(name, columns, rows)


if __name__ == "__main__":
    cli.run(main)
