"""Presets for the state-tracking tasks at a size that a CPU trains: `python -m pipelines.train tiny-walk-staircase`.

There is one for every model of the papers and today's mixers. Each has about 50,000 parameters beside its embeddings, and reads the
same tokens. Recurrent models have one layer, models that only have depth have two. benchmarks/state_tracking.py prepares the tasks,
trains all and compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.config.run import CheckpointConfig, DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import (
    ARMTConfig,
    CachedStaircaseConfig,
    FeedbackTransformerConfig,
    LSTMConfig,
    MemorizingConfig,
    MixersConfig,
    RecConfig,
    RMTConfig,
    SlideConfig,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalTransformerConfig,
)
from recur_models.mixers import MixerName

CORE: dict[str, Any] = {"d_model": 64, "heads": 4, "head_dim": 16}


def windowed(d_model: int, layers: int, mlp_dim: int) -> dict[str, Any]:
    """Sizes that the models with a sliding window share on the tasks."""
    return {
        "d_model": d_model,
        "heads": 4,
        "head_dim": d_model // 4,
        "layers": layers,
        "mlp_dim": mlp_dim,
        "window": 8,
        "dropout": 0.0,
    }


def mixers(layers: tuple[MixerName, ...], **options: Any) -> MixersConfig:
    """A stack whose projections begin smaller than by default: training finds products in S3 with 0.05, and not with 0.02."""
    sizes: dict[str, Any] = {"d_model": 64, "heads": 2, "key_dim": 16, "value_dim": 32, "window": 8, "chunk": 8}
    return MixersConfig(layers=layers, **sizes | {"output": "own", "initial_std": 0.05} | options)


BARE: dict[str, Any] = {"decays": False, "output_gate": False, "head_norm": False, "conv": 1}
"""The delta rule alone: no gates, no convolution."""


def deltanet(size: int, keys: int, negative: bool) -> MixersConfig:
    """One layer of the bare delta rule without an MLP; ``size``: of a head, ``keys``: of each token."""
    sizes = {"d_model": 124, "key_dim": size, "value_dim": size, "householders": keys, "mlp_dim": 0}
    return mixers(("delta",), **BARE, **sizes, negative_eigenvalues=negative)


def two_deltanets(mlp_dim: int, keys: int, negative: bool) -> MixersConfig:
    """Two layers of the bare delta rule; ``keys``: of each token."""
    sizes = {"key_dim": 24, "value_dim": 24, "householders": keys, "mlp_dim": mlp_dim}
    return mixers(("delta",) * 2, **BARE, **sizes, negative_eigenvalues=negative)


RECURRENT: dict[str, Any] = {"recurrent_layers": (1,), "states": 8}
MODELS: dict[str, ModelSettings] = {
    "staircase": StaircaseConfig(**CORE, layers=1, mlp_dim=256, chunk=1, passes=2),
    "cached-staircase": CachedStaircaseConfig(**CORE, layers=1, mlp_dim=256, chunk=1, passes=1, chunks=4),
    "feedback-transformer": FeedbackTransformerConfig(**CORE, layers=1, mlp_dim=256, span=4, window=8),
    "lstm": LSTMConfig(layers=1, d_model=78, window=8),
    "transformer-xl": TransformerXLConfig(**CORE, layers=2, mlp_dim=60, span=64, window=8),
    "universal-transformer": UniversalTransformerConfig(**CORE, passes=2, mlp_dim=250, span=64, window=8),
    "rec-fixed-skip": RecConfig(**windowed(60, 1, 48), **RECURRENT),
    "rec-lstm-dual": RecConfig(**windowed(48, 1, 44), **RECURRENT, gate="lstm", cell="dual"),
    "feedback": RecConfig(**windowed(60, 1, 48), **RECURRENT, feedback=True),
    "slide": SlideConfig(**windowed(64, 2, 68)),
    "memorizing": MemorizingConfig(**windowed(64, 2, 68), memory_layer=1, memory=256, top_k=8),
    "delta": deltanet(48, keys=1, negative=False),
    "delta-negative": deltanet(48, keys=1, negative=True),
    "delta-two-positive-keys": deltanet(32, keys=2, negative=False),
    "delta-two-keys": deltanet(32, keys=2, negative=True),
    "mamba2": mixers(("mamba2",), mlp_dim=180),
    "mlstm": mixers(("mlstm",), mlp_dim=172),
    "retention": mixers(("retention",), mlp_dim=172, rotary=True),
    "rwkv7": mixers(("rwkv7",), mlp_dim=170),
    "slstm": mixers(("slstm",), mlp_dim=104),
    "rmt": RMTConfig(**windowed(64, 2, 68), memory_tokens=4),
    "armt": ARMTConfig(**windowed(64, 2, 32), memory_tokens=4, memory_dim=4, unit_keys=True),
    "delta-window": mixers(("delta", "window"), mlp_dim=64, negative_eigenvalues=True, decays=False, conv=1),
    "mamba2-window": mixers(("mamba2", "window"), mlp_dim=68),
}
"""Models by name; those of the block-recurrent paper have windows of 8 tokens and, if recurrent, 8 states."""

TWO_KEYS: dict[str, Any] = {"householders": 2, "key_dim": 12, "mlp_dim": 12}
MODELS_FOR_RECALL = MODELS | {
    "delta": mixers(("delta",) * 2, mlp_dim=38),
    "delta-negative": mixers(("delta",) * 2, mlp_dim=38, negative_eigenvalues=True),
    "delta-two-positive-keys": mixers(("delta",) * 2, **TWO_KEYS),
    "delta-two-keys": mixers(("delta",) * 2, **TWO_KEYS, negative_eigenvalues=True),
    "mamba2": mixers(("mamba2",) * 2, mlp_dim=50),
    "mlstm": mixers(("mlstm",) * 2, mlp_dim=40),
    "retention": mixers(("retention",) * 2, mlp_dim=42, rotary=True),
    "rwkv7": mixers(("rwkv7",) * 2, mlp_dim=42),
    "slstm": mixers(("slstm",) * 2, value_dim=24, mlp_dim=22),
    "delta-window": mixers(("delta", "window"), mlp_dim=60),
}
"""Models by name for recall: mixers have two layers, and the gates and convolutions of their papers. A value stands behind its key,
and one layer without a convolution cannot join the two."""
LARGE: dict[str, Any] = {"heads": 1, "key_dim": 64, "value_dim": 64}
LARGE_TWO_KEYS: dict[str, Any] = {"householders": 2, "heads": 1, "key_dim": 48, "value_dim": 48, "mlp_dim": 10}
MODELS_FOR_MANY_PAIRS = MODELS_FOR_RECALL | {
    "transformer-xl": TransformerXLConfig(**CORE, layers=2, mlp_dim=46, span=256, window=8),
    "universal-transformer": UniversalTransformerConfig(**CORE, passes=2, mlp_dim=222, span=256, window=8),
    "delta": mixers(("delta",) * 2, **LARGE, mlp_dim=18),
    "delta-negative": mixers(("delta",) * 2, **LARGE, mlp_dim=18, negative_eigenvalues=True),
    "delta-two-positive-keys": mixers(("delta",) * 2, **LARGE_TWO_KEYS),
    "delta-two-keys": mixers(("delta",) * 2, **LARGE_TWO_KEYS, negative_eigenvalues=True),
    "mamba2": mixers(("mamba2",) * 2, key_dim=64, mlp_dim=16),
    "mlstm": mixers(("mlstm",) * 2, **LARGE, mlp_dim=20),
    "retention": mixers(("retention",) * 2, **LARGE, mlp_dim=20, rotary=True),
    "rwkv7": mixers(("rwkv7",) * 2, **LARGE, mlp_dim=18),
    "delta-window": mixers(("delta", "window"), **LARGE, mlp_dim=30),
    "mamba2-window": mixers(("mamba2", "window"), **LARGE, mlp_dim=30),
}
"""Models by name for recall of 64 pairs. Mixers with a matrix State have 4,096 numbers of it a layer, four times as many as in
`MODELS_FOR_RECALL`, with which delta had 78 % wrong after 3,000 steps; with two keys 2,304, three times as many. Transformer-XL and
the universal transformer see a whole document."""
MODELS_FOR_STEPS = MODELS_FOR_RECALL | {
    "delta": two_deltanets(62, keys=1, negative=False),
    "delta-negative": two_deltanets(62, keys=1, negative=True),
    "delta-two-positive-keys": two_deltanets(28, keys=2, negative=False),
    "delta-two-keys": two_deltanets(28, keys=2, negative=True),
}
"""Models by name for tasks where a step depends on an earlier one, as a walk's cell on its heading. They have two layers of the
bare delta rule: the first follows the heading for the second."""


@dataclass(frozen=True)
class TaskTraining:
    """Settings of a task's trainings."""

    corpus: str
    steps: int
    """Training steps, of 4,096 tokens each."""
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MODELS)
    segment_length: int = 64


TASKS: dict[str, TaskTraining] = {
    "walk": TaskTraining("random-walk", 3000, MODELS_FOR_STEPS),
    "algorithm": TaskTraining("algorithm", 3000, MODELS_FOR_STEPS),
    "arithmetic": TaskTraining("arithmetic", 3000, MODELS_FOR_STEPS),
    "mqar": TaskTraining("mqar", 2000, MODELS_FOR_RECALL),
    "mqar-16": TaskTraining("mqar", 3000, MODELS_FOR_RECALL),
    "mqar-64": TaskTraining("mqar", 3000, MODELS_FOR_MANY_PAIRS, segment_length=256),
    "mqar-rewrites": TaskTraining("mqar", 3000, MODELS_FOR_RECALL),
    "permutation": TaskTraining("permutation", 1000),
    "permutation-longer": TaskTraining("permutation", 1500),
    "permutation-parity": TaskTraining("permutation", 1500),
    "permutation-a5": TaskTraining("permutation", 8000),
    "permutation-s5": TaskTraining("permutation", 8000),
}
"""Tasks by the word for them in a preset's name."""


def tiny(task: str, name: str) -> TrainConfig:
    """The preset of this model on this task.

    A staircase of two passes over chunks of one token learns no programs in as many steps. So on `algorithm` it has chunks of 4 and
    6 passes: of (1, 4), (4, 4), (8, 4), (4, 6) and (4, 8) these have the fewest errors on validation.
    """
    training = TASKS[task]
    model = training.models[name]
    if task == "algorithm" and type(model) is StaircaseConfig:
        model = replace(model, chunk=4, passes=6)
    return TrainConfig(
        model=model,
        data=DataConfig(
            corpus=training.corpus,
            store="runs/state-tracking/store",
            lanes=4096 // training.segment_length,
            segment_length=training.segment_length,
        ),
        optim=OptimConfig(name="adamw", lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=ScheduleConfig(name="cosine", warmup_steps=100),
        root="runs/state-tracking",
        steps=training.steps,
        num_workers=0,
        log_every=50,
        validate_every=500,
        validate_tokens=32_000,
        checkpoint=CheckpointConfig(every=500),
    )


STATE_TRACKING_PRESETS = {f"tiny-{task}-{name}": tiny(task, name) for task in TASKS for name in MODELS}
STATE_TRACKING_GROUPS = {
    "Tasks that need a state (benchmarks/state_tracking.py), for each model with 50,000 parameters": {
        "tiny-walk-*": "where an agent is after each action on a grid",
        "tiny-algorithm-*": "which values a program prints",
        "tiny-arithmetic-*": "sums of products modulo 5",
        "tiny-mqar-*": "associative recall: the value of a key that comes back (also 16, 64, rewrites)",
        "tiny-permutation-*": "products of permutations, in S3 (also longer, parity, a5, s5)",
    }
}
