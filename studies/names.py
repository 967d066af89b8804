"""Presets for the corpus `names`, which asks for a name many windows later: `python -m pipelines.train recall-delta`.

There is one for every model of the papers and today's mixers, with about 167,000 parameters, embeddings included, and windows of a
line. studies/recall.py asks them; benchmarks/recall.py compares models over the distance, and `paper today table-1` has all of
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from data_prep.corpora.names import LINE
from pipelines.config.run import DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
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
    UniversalTransformerConfig,
    XLConfig,
)

WIDTH: dict[str, Any] = {"d_model": 64, "heads": 2, "head_dim": 32, "dropout": 0.0}
SIZE: dict[str, Any] = {**WIDTH, "window": LINE}
REC: dict[str, Any] = {**SIZE, "layers": 2, "recurrent_layers": (2,), "states": 8}
MIXER: dict[str, Any] = {"d_model": 64, "window": LINE, "chunk": LINE, "heads": 2, "key_dim": 24, "value_dim": 48}
MAMBA2: dict[str, Any] = {**MIXER, "heads": 4, "key_dim": 18, "value_dim": 32}
TWO_KEYS: dict[str, Any] = {**MIXER, "value_dim": 32, "householders": 2, "negative_eigenvalues": True}
MODELS: dict[str, ModelSettings] = {
    "rec": RecConfig(**REC, gate="lstm", mlp_dim=256),
    "rec-fixed": RecConfig(**REC, mlp_dim=326),
    "feedback": RecConfig(**REC, mlp_dim=294, feedback=True),
    "slide": SlideConfig(layers=3, mlp_dim=264, **SIZE),
    "xl": XLConfig(layers=3, mlp_dim=264, **SIZE),
    "memorizing": MemorizingConfig(layers=3, mlp_dim=264, memory=256, top_k=32, **SIZE),
    "staircase": StaircaseConfig(**WIDTH, layers=3, mlp_dim=214, chunk=LINE, passes=2),
    "cached-staircase": CachedStaircaseConfig(**WIDTH, layers=3, mlp_dim=212, chunk=LINE, passes=1, chunks=3),
    "feedback-transformer": FeedbackTransformerConfig(**WIDTH, layers=3, mlp_dim=214, span=2 * LINE, window=LINE),
    "universal-transformer": UniversalTransformerConfig(
        **WIDTH, layers=1, mlp_dim=900, passes=3, span=2 * LINE, window=LINE
    ),
    "lstm": LSTMConfig(layers=2, d_model=87, window=LINE, dropout=0.0),
    "delta": MixersConfig(layers=("delta",) * 2, mlp_dim=258, **MIXER),
    "delta-negative": MixersConfig(layers=("delta",) * 2, mlp_dim=258, negative_eigenvalues=True, **MIXER),
    "delta-two-keys": MixersConfig(layers=("delta",) * 2, mlp_dim=250, **TWO_KEYS),
    "mamba2": MixersConfig(layers=("mamba2",) * 2, mlp_dim=246, **MAMBA2),
    "mlstm": MixersConfig(layers=("mlstm",) * 2, mlp_dim=262, **MIXER),
    "retention": MixersConfig(layers=("retention",) * 2, rotary=True, mlp_dim=264, **MIXER),
    "rwkv7": MixersConfig(layers=("rwkv7",) * 2, mlp_dim=268, **MIXER),
    "slstm": MixersConfig(layers=("slstm",) * 2, mlp_dim=240, **MIXER | {"value_dim": 32}),
    "rmt": RMTConfig(layers=3, memory_tokens=8, mlp_dim=262, **SIZE),
    "armt": ARMTConfig(layers=3, memory_tokens=4, memory_dim=6, unit_keys=True, mlp_dim=224, **SIZE),
    "delta-window": MixersConfig(layers=("delta", "window"), mlp_dim=292, **MIXER),
    "mamba2-window": MixersConfig(layers=("mamba2", "window"), mlp_dim=270, **MAMBA2),
}
"""Models by name; the mixers have two layers each, and States of equal size, but for slstm's vectors."""
TRAINING = TrainConfig(
    model=MODELS["rec"],
    data=DataConfig(corpus="names", lanes=16, segment_length=256),
    optim=OptimConfig(name="adamw", lr=4e-3),
    schedule=ScheduleConfig(name="cosine", warmup_steps=100),
    steps=1000,
    num_workers=0,
    validate_every=250,
    validate_tokens=20_000,
)
NAMES_PRESETS = {f"recall-{name}": replace(TRAINING, model=model) for name, model in MODELS.items()}
NAMES_GROUPS = {
    "Studies of what recurrence is for": {
        "recall-*": "recall of a name many windows after it was given; models have 167,000 parameters"
    }
}
