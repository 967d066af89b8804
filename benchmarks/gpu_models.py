"""The 150M models that benchmarks/gpu.py times, in training on random tokens: forward, backward, clipping, optimizer, State.

    training = Training("rec", BenchConfig(lanes=16))
    training.step()

`peer` is block-recurrent-transformer-pytorch at rec's sizes, where it is installed: its keys and values have one head, its MLP a
gate.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

import torch

from benchmarks.contenders import peer_model
from common.checks import check_options
from common.choices import Compile
from pipelines.config.run import ModelSettings
from pipelines.presets import PRESETS
from pipelines.training.optim import build_optimizer
from recur_models import (
    CachedStaircaseConfig,
    GPT2RecConfig,
    LlamaConfig,
    LlamaRecConfig,
    StaircaseConfig,
    State,
    TransformerXLConfig,
    VanillaConfig,
    detach,
)
from recur_models.compiling import compile_model
from recur_models.memorizing import fill_memory

Ours = Literal[
    "slide", "rec", "rec-lstm-dual", "feedback", "xl", "memorizing",
    "staircase", "cached-staircase", "transformer-xl", "gpt2-rec", "vanilla",
    "delta", "mamba2", "mlstm", "retention", "rwkv7", "llama", "llama-rec",
]  # fmt: skip
Model = Literal[Ours, "peer"]
SIZE: dict[str, Any] = {"layers": 12, "d_model": 1024, "heads": 8, "head_dim": 128, "mlp_dim": 4096}
SMOLLM2: dict[str, Any] = {
    "pretrained": "none", "layers": 30, "d_model": 576, "heads": 9, "kv_heads": 3, "mlp_dim": 1536, "positions": 8192,
    "window": 256,
}  # fmt: skip
MIXERS: tuple[Ours, ...] = ("delta", "mamba2", "mlstm", "retention", "rwkv7")
MODELS: dict[Ours, ModelSettings] = {
    "slide": PRESETS["pg19-slide-13L"].model,
    "rec": PRESETS["pg19-rec-fixed-skip"].model,
    "rec-lstm-dual": PRESETS["pg19-rec-lstm-dual"].model,
    "feedback": PRESETS["pg19-feedback-fixed-skip"].model,
    "xl": PRESETS["pg19-xl-2048"].model,
    "memorizing": PRESETS["pg19-memorizing-64k"].model,
    "staircase": StaircaseConfig(**SIZE, chunk=512, passes=2),
    "cached-staircase": CachedStaircaseConfig(**SIZE, chunk=512, passes=1, chunks=2),
    "transformer-xl": TransformerXLConfig(**SIZE, window=512, span=512),
    "gpt2-rec": GPT2RecConfig(
        **{name: size for name, size in SIZE.items() if name != "head_dim"}, window=320, overlap=64, positions=1024
    ),
    "vanilla": VanillaConfig(layers=13),
    **{name: PRESETS[f"pg19-mixers-{name}"].model for name in MIXERS},
    "llama": LlamaConfig(**SMOLLM2),
    "llama-rec": LlamaRecConfig(**SMOLLM2),
}
"""The block-recurrent paper's 150M models, and the others at the same width and depth. The mixers have slide's parameters, and
States of equal size. llama has SmolLM2-135M's sizes. The windows of gpt2-rec and llama are so short that they fill a segment; the
recurrent ones run their layers once for each window."""

TINY: dict[str, Any] = {"layers": 2, "d_model": 32, "heads": 2, "head_dim": 16, "mlp_dim": 64, "window": 16}
TINY |= {"recurrent_layers": (2,), "states": 16, "memory": 64, "top_k": 4, "chunk": 16, "span": 16, "positions": 64}
TINY |= {"kv_heads": 1, "key_dim": 8, "value_dim": 8}
TINY_OF: dict[Ours, dict[str, Any]] = {"xl": {"window": 32}, "gpt2-rec": {"window": 20, "overlap": 4}}
TINY_OF |= {name: {"layers": (name,) * 2} for name in MIXERS}


BY_DEFAULT: tuple[Model, ...] = (
    "slide", "rec", "rec-lstm-dual", "feedback", "xl", "memorizing", "staircase", "cached-staircase", "gpt2-rec",
    *MIXERS, "llama", "llama-rec", "peer",
)  # fmt: skip


@dataclass(frozen=True)
class BenchConfig:
    """Measurements to take (benchmarks/gpu.py)."""

    measure: Literal["speed", "profile", "precision", "generation", "attention"] = "speed"
    """What is measured."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Where: on a GPU in bfloat16, on a CPU in float32."""
    size: Literal["150M", "tiny"] = "150M"
    """150M: as in the paper, vocabulary 32,001. tiny: sizes that a CPU does in seconds."""
    lanes: int = 0
    """Lanes; 0 takes the paper's 32 (tiny: 2), and half of them as often as a model does not fit."""
    segment_length: int = 0
    """Tokens of a lane in a step; 0 takes the paper's 4,096 (tiny: 64)."""
    models: tuple[Model, ...] = BY_DEFAULT
    """Models, in this order; peer is block-recurrent-transformer-pytorch, where it is installed (benchmarks/peers.txt)."""
    compile: tuple[Compile, ...] = ("layer", "no", "model")
    """How all are compiled, in turn; `model` compiles the whole, which takes minutes under feedback."""
    backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """Backend of torch.compile; the others only test compiling, and make nothing faster: inductor takes minutes on a CPU."""
    steps: int = 2
    """Steps of a round; there are five rounds, after two steps that do not count."""
    training_steps: int = 300
    """precision: steps of which the losses are compared."""
    tokens: int = 100_000
    """generation: tokens that are generated."""
    limit: float = 540.0
    """Seconds after which it ends with the measurements that it has."""
    output: Path | None = None
    """JSON file of all measurements; the table goes beside it as Markdown."""

    def __post_init__(self) -> None:
        check_options(self, steps=1, training_steps=1, tokens=1)

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the products."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @property
    def vocab_size(self) -> int:
        return 257 if self.size == "tiny" else 32_001

    @property
    def length(self) -> int:
        return self.segment_length or (64 if self.size == "tiny" else 4096)

    @property
    def most_lanes(self) -> int:
        return self.lanes or (2 if self.size == "tiny" else 32)

    def of(self, model: Ours) -> ModelSettings:
        """The model at this size."""
        config: Any = MODELS[model]
        if self.size == "150M":
            return config
        own = {field.name for field in fields(config)}
        return replace(config, **{name: value for name, value in TINY.items() if name in own} | TINY_OF.get(model, {}))


def one_line(error: Exception) -> str:
    """The error's type and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def free_memory() -> None:
    """Give back what models that are gone have held on a GPU."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no GPU is in use


def is_ours(model: Model) -> TypeGuard[Ours]:
    return model in get_args(Ours)


class Training:
    """A model in training on random tokens, the same ones at each step."""

    def __init__(
        self,
        name: Model,
        config: BenchConfig,
        unit: Compile = "no",
        dtype: torch.dtype | None = None,
        dropout: float | None = None,
    ):
        """
        Args:
            unit: how the model is compiled.
            dtype: of the products, by autocast; None takes the config's.
            dropout: replaces the model's own; None keeps it.
        """
        torch.manual_seed(0)
        device = config.torch_device
        dtype = dtype or config.dtype
        lanes = config.most_lanes
        length = config.length
        vocab_size = config.vocab_size
        self.tokens_BT = torch.randint(vocab_size, (lanes, length), device=device)
        self.targets_BT = self.tokens_BT.roll(-1, 1)
        self.losses: list[torch.Tensor] = []
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext
        if dtype != torch.float32:
            self.autocast = lambda: torch.autocast(device.type, dtype=dtype)
        if is_ours(name):
            sizes: Any = config.of(name)
            sizes = sizes if dropout is None else replace(sizes, dropout=dropout)
            self.model = sizes.build(vocab_size).to(device)
            compile_model(self.model, unit, config.backend)
            fresh_BK = torch.zeros(lanes, length // sizes.block, dtype=torch.bool, device=device)
            self.state: State = self.model.initial_state(lanes)
            fill_memory(self.state)

            def read() -> torch.Tensor:
                nats_BT, state = self.model(self.tokens_BT, self.state, fresh_BK, self.targets_BT)
                self.state = detach(state)
                return nats_BT.mean()

        else:
            self.model = peer_model(vars(config.of("rec")), vocab_size, length).to(device)
            if unit != "no":
                self.model.compile(backend=config.backend)
            carried: list[Any] = [[], []]
            text_BT = torch.cat([self.tokens_BT, self.targets_BT[:, -1:]], 1)  # its loss leaves the first token out

            def read() -> torch.Tensor:
                loss, *carried[:] = self.model(text_BT, return_loss=True, xl_memories=carried[0], states=carried[1])
                return loss

        self.loss = read
        run = PRESETS["pg19-slide-13L"]
        self.optimizer = build_optimizer(self.model, replace(run.optim, lr=run.schedule.warmup_steps**-0.5))  # its peak

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> None:
        with self.autocast():
            loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())
