from __future__ import annotations

import itertools
from typing import Any

import pytest

from recur_models import ModelConfig
from recur_models.block_recurrent import RecConfig
from recur_models.feedback_transformer import FeedbackTransformerConfig
from recur_models.gates import GATES
from recur_models.gpt2 import GPT2Config, GPT2RecConfig
from recur_models.llama import LlamaConfig, LlamaRecConfig
from recur_models.lstm import LSTMConfig
from recur_models.mamba2_model import Mamba2Config
from recur_models.memorizing import MemorizingConfig
from recur_models.memory_tokens import ARMTConfig, RMTConfig
from recur_models.mixers import MixersConfig
from recur_models.sliding_window import SlideConfig, XLConfig
from recur_models.staircase import CachedStaircaseConfig, StaircaseConfig
from recur_models.transformer_xl import TransformerXLConfig, UniversalTransformerConfig
from recur_models.vanilla import VanillaConfig

SIZE: dict[str, Any] = {
    "layers": 3,
    "d_model": 24,
    "heads": 2,
    "head_dim": 12,
    "mlp_dim": 40,
    "window": 4,
    "dropout": 0.0,
}


def small_configs() -> dict[str, ModelConfig]:
    configs: dict[str, ModelConfig] = {"vanilla": VanillaConfig(**SIZE)}
    for equations in ("meliad", "paper"):
        configs[f"slide-{equations}"] = SlideConfig(**SIZE, equations=equations)
        configs[f"xl-{equations}"] = XLConfig(**SIZE, equations=equations)
        configs[f"memorizing-{equations}"] = MemorizingConfig(
            **SIZE,
            memory=12,  # smaller than a document: the ring turns
            memory_layer=2,
            top_k=5,
            equations=equations,
        )
        for gate, cell in itertools.product(GATES, ("dual", "single", "skip")):
            kind: dict[str, Any] = {"gate": gate, "cell": cell, "equations": equations}
            rec = RecConfig(**SIZE, recurrent_layers=(2,), states=6, **kind)
            configs[f"rec-{gate}-{cell}-{equations}"] = rec
        feedback = RecConfig(**SIZE, recurrent_layers=(1, 3), states=6, feedback=True, equations=equations)
        configs[f"feedback-two-layers-{equations}"] = feedback
    configs["feedback-second-layer"] = RecConfig(
        **SIZE, recurrent_layers=(2,), states=6, gate="lstm", feedback=True, equations="paper"
    )
    configs["lstm"] = LSTMConfig(layers=2, d_model=24, window=4)
    mixer: dict[str, Any] = {"d_model": 24, "heads": 2, "key_dim": 6, "value_dim": 8, "mlp_dim": 20, "window": 4}
    configs["mixers-delta"] = MixersConfig(**mixer, layers=("delta", "delta"), chunk=2, negative_eigenvalues=True)
    configs["mixers-householders"] = MixersConfig(**mixer, layers=("delta", "window"), decays=False, householders=2)
    configs["mixers-householders-decays"] = MixersConfig(**mixer, layers=("delta", "window"), chunk=2, householders=2)
    bare: dict[str, Any] = {"decays": False, "output_gate": False, "head_norm": False, "conv": 1, "mlp_dim": 0}
    configs["mixers-state-tracker"] = MixersConfig(
        **mixer | bare, layers=("delta",), output="own", initial_std=0.02, negative_eigenvalues=True, householders=2
    )
    configs["mixers-mamba2"] = MixersConfig(**mixer, layers=("mamba2", "window"), chunk=2)
    configs["mixers-mlstm"] = MixersConfig(**mixer, layers=("mlstm", "retention"), chunk=2)
    configs["mixers-rotary"] = MixersConfig(**mixer, layers=("retention", "window"), chunk=2, rotary=True)
    configs["mixers-rwkv7"] = MixersConfig(**mixer, layers=("rwkv7", "window"), chunk=2)
    configs["mixers-rwkv7-negative"] = MixersConfig(**mixer, layers=("rwkv7", "rwkv7"), negative_eigenvalues=True)
    configs["mixers-slstm"] = MixersConfig(**mixer, layers=("slstm", "window"))
    configs["rmt"] = RMTConfig(**SIZE | {"layers": 2}, memory_tokens=3)
    configs["armt"] = ARMTConfig(**SIZE | {"layers": 2}, memory_tokens=3, memory_dim=16)
    core: dict[str, Any] = {**SIZE, "layers": 2}
    window = core.pop("window")
    for absent in ("zeros", "masked"):
        core["absent"] = absent
        configs[f"staircase-{absent}"] = StaircaseConfig(**core, chunk=window, passes=3)
        configs[f"cached_staircase-{absent}"] = CachedStaircaseConfig(**core, chunk=window, passes=2, chunks=4)
        configs[f"transformer_xl-{absent}"] = TransformerXLConfig(**core, window=window, span=6)
        configs[f"universal-{absent}"] = UniversalTransformerConfig(
            **core | {"layers": 1}, window=window, span=6, passes=3
        )
        configs[f"feedback_transformer-{absent}"] = FeedbackTransformerConfig(
            **core, window=window, span=6, keys="shared" if absent == "masked" else "own"
        )
    size = {name: SIZE[name] for name in ("d_model", "heads", "mlp_dim", "layers")} | {"positions": 12, "dropout": 0.0}
    for overlap in (0, 2, 6):  # less and more than a block, which is always 4
        configs[f"gpt2-overlap-{overlap}"] = GPT2Config(**size, window=4 + overlap, overlap=overlap)
        configs[f"gpt2_rec-overlap-{overlap}"] = GPT2RecConfig(
            **size, window=4 + overlap, overlap=overlap, hidden=(16, 8)
        )
    for pooling in ("max", "attention"):
        configs[f"gpt2_rec-{pooling}"] = GPT2RecConfig(
            **size, window=6, overlap=2, pooling=pooling, insert_layer=0, embeddings=2, hidden=()
        )
    # The six dimensions of a head turn in three pairs, each at a speed of its own.
    shared: dict[str, Any] = {**size, "heads": 4, "kv_heads": 2, "rope_base": 20.0, "norm_eps": 1e-5}
    configs["llama-overlap-2"] = LlamaConfig(**shared, window=6, overlap=2)
    for overlap in (0, 2, 6):
        configs[f"llama_rec-overlap-{overlap}"] = LlamaRecConfig(
            **shared, window=4 + overlap, overlap=overlap, hidden=(16, 8), output="own" if overlap == 2 else "tied"
        )
    own: dict[str, Any] = {"source": "layer", "hidden": (8,)}
    configs["gpt2_rec-layers"] = GPT2RecConfig(**size, window=6, overlap=2, insert_layer=0, **own)
    configs["llama_rec-layers"] = LlamaRecConfig(**shared, window=6, overlap=2, insert_layer=2, **own)
    configs["llama_rec-everywhere"] = LlamaRecConfig(
        **shared, window=6, overlap=2, insert_layer=0, embeddings=2, hidden=()
    )
    stack: dict[str, Any] = {"layers": 2, "d_model": 24, "heads": 4, "key_dim": 6, "value_dim": 12, "conv": 3}
    configs["mamba2-tied"] = Mamba2Config(**stack, window=4, chunk=2)
    configs["mamba2-groups"] = Mamba2Config(
        **stack, window=4, groups=2, biases="both", step_limit=(0.002, 0.7), output="own"
    )
    return configs


def pairwise_configs() -> dict[str, ModelConfig]:
    """The same with half of the recurrent ones, among which each two of gate, cell and equations still meet in every way."""
    left_out = {
        f"rec-{gate}-{cell}-{equations}"
        for gate, cell in itertools.product(GATES, ("dual", "single", "skip"))
        for equations in ("meliad", "paper")
        if (gate == "lstm") ^ (cell == "single") ^ (equations == "paper")
    }
    return {name: config for name, config in small_configs().items() if name not in left_out}


@pytest.fixture(params=pairwise_configs().items(), ids=lambda item: item[0])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """A model. Its golden losses, and the restatement of its equations, are held against every one of `small_configs`."""
    return request.param[1]
