"""Contenders to time and weigh: models in training on random tokens, ours or public ones, in one of two sizes.

    contender = contenders("small")["rec:fixed:skip"]()
    seconds = contender.step()

A step is forward, backward and AdamW on one segment, State carried. The peer is optional: `pip install -r benchmarks/peers.txt`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from common.choices import Compile
from recur_models import MemorizingConfig, ModelConfig, RecConfig, Recompute, SlideConfig, State, XLConfig, detach
from recur_models.compiling import compile_model
from recur_models.memorizing import fill_memory

Size = Literal["small", "medium"]
SIZES: dict[str, dict[str, int]] = {
    "small": {"d_model": 256, "layers": 6, "heads": 4, "head_dim": 64, "mlp_dim": 1024, "window": 128},
    "medium": {"d_model": 512, "layers": 8, "heads": 8, "head_dim": 64, "mlp_dim": 2048, "window": 256},
}
SEGMENT = {"small": 1024, "medium": 2048}
LANES = 2
"""Lanes where nothing else is asked for."""
VOCAB = 256
PEER = "block-recurrent-transformer-pytorch"


class Contender:
    """A model of ours in training."""

    def __init__(
        self,
        config: ModelConfig,
        segment: int,
        recompute: Recompute = "nothing",
        compile: Compile = "no",
        lanes: int = LANES,
    ):
        torch.manual_seed(0)
        self.config = config
        self.model: Any = config.build(VOCAB)
        self.model.recompute = recompute
        compile_model(self.model, compile)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(VOCAB, (lanes, segment))
        self.fresh = torch.zeros(lanes, segment // config.block, dtype=torch.bool)
        self.state: State = self.model.initial_state(lanes)
        fill_memory(self.state)

    def loss(self) -> Tensor:
        nats, state = self.model(self.tokens, self.state, self.fresh, self.tokens)
        self.state = detach(state)
        return nats.mean()

    def step(self) -> float:
        """Make one training step. Returns its seconds."""
        began = time.perf_counter()
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def flops(self) -> float:
        """FLOPs of a step, forward and backward, as our code does them (recur_models/costs.py). Those of `Peer` are not counted."""
        cost = self.config.costs(VOCAB)
        lanes, segment = self.tokens.shape
        return lanes * (cost.computed_training_flops_per_token * segment + 3 * cost.segment_flops)


class Peer(Contender):
    """The package block-recurrent-transformer-pytorch at the same dimensions (keys and values shared by all heads, GEGLU)."""

    def __init__(self, size: dict[str, int], segment: int, lanes: int = LANES):
        torch.manual_seed(0)
        self.model: nn.Module = peer_model(size, VOCAB, segment)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(VOCAB, (lanes, segment + 1))  # its loss leaves the first token out
        self.memories: list[Tensor] = []
        self.states: list[Tensor] = []

    def loss(self) -> Tensor:
        loss, self.memories, self.states = self.model(
            self.tokens, return_loss=True, xl_memories=self.memories, states=self.states
        )
        return loss


def model_configs(name: Size) -> dict[str, ModelConfig]:
    """The models of Table 1 at this size; rec has a recurrent layer third from the top, the others one layer more."""
    size: dict[str, Any] = dict(SIZES[name])
    window = size.pop("window")
    layers = size.pop("layers")
    rec = RecConfig(
        **size, window=window, layers=layers, recurrent_layers=(layers - 2,), states=window, gate="fixed", dropout=0.0
    )
    plain: dict[str, Any] = {**size, "layers": layers + 1, "dropout": 0.0}
    return {
        "slide": SlideConfig(**plain, window=window),
        "rec:fixed:skip": rec,
        "rec:lstm:dual": replace(rec, gate="lstm", cell="dual"),
        "feedback:fixed:skip": replace(rec, feedback=True),
        "xl, window × 4": XLConfig(**plain, window=4 * window),
        "memorizing": MemorizingConfig(**plain, window=window, memory=128 * window, top_k=32),
    }


def contenders(name: Size, compile: Compile = "no", lanes: int = LANES) -> dict[str, Callable[[], Contender]]:
    """A constructor for each contender, ours compiled if wanted; the peer's is there when it is installed."""
    segment = SEGMENT[name]
    made: dict[str, Callable[[], Contender]] = {
        label: (lambda config=config: Contender(config, segment, compile=compile, lanes=lanes))
        for label, config in model_configs(name).items()
    }
    version = peer_version()
    if version:
        made[f"{PEER} {version}"] = lambda: Peer(SIZES[name], segment, lanes)
    return made


def peer_model(size: Mapping[str, Any], vocab_size: int, segment: int) -> nn.Module:
    """The peer with these dimensions. Raises ModuleNotFoundError where it is not installed."""
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer  # pyrefly: ignore

    return BlockRecurrentTransformer(
        num_tokens=vocab_size,
        dim=size["d_model"],
        depth=size["layers"],
        heads=size["heads"],
        dim_head=size["head_dim"],
        ff_mult=size["mlp_dim"] // size["d_model"],
        max_seq_len=segment,
        block_width=size["window"],
        num_state_vectors=size["window"],
        recurrent_layers=(max(size["layers"] - 2, 1),),
    )


def peer_version() -> str | None:
    """The peer's version where it is installed."""
    installed = importlib.util.find_spec(PEER.replace("-", "_"))
    return importlib.metadata.version(PEER) if installed else None
