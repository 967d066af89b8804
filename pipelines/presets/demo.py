"""Runs of a size that a CPU trains: the demo's, starting points for one's own data, and two studies of what recurrence is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.config.run import CheckpointConfig, DataConfig, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import (
    ARMTConfig,
    CachedStaircaseConfig,
    GPT2Config,
    GPT2RecConfig,
    LlamaConfig,
    LlamaRecConfig,
    LSTMConfig,
    MemorizingConfig,
    MixersConfig,
    RecConfig,
    RMTConfig,
    SlideConfig,
    StaircaseConfig,
    VanillaConfig,
    XLConfig,
)

# A size that a CPU trains in two hours (in one with bfloat16) and a small GPU in minutes: a starting point for one's own data.
SMALL_SIZE: dict[str, Any] = {
    "d_model": 256,
    "heads": 4,
    "head_dim": 64,
    "mlp_dim": 1024,
    "window": 128,
    "dropout": 0.0,
}
SMALL = TrainConfig(
    model=RecConfig(layers=6, recurrent_layers=(4,), states=128, **SMALL_SIZE),
    data=DataConfig(corpus="text", lanes=8, segment_length=1024),
    optim=OptimConfig(name="adamw", lr=2e-3),
    schedule=ScheduleConfig(name="cosine", warmup_steps=100),
    steps=2000,
    validate_every=200,
    checkpoint=CheckpointConfig(every=200),
)

# The same for GPT-2 and Llama, with or without recurrence: windows of 128 of which 16 overlap.
DECODER_SIZE: dict[str, Any] = {
    **{"layers": 6, "d_model": 256, "heads": 4, "mlp_dim": 1024, "positions": 1024, "dropout": 0.0},
    **{"window": 128, "overlap": 16},
}
SMALL_GPT2 = replace(
    SMALL,
    model=GPT2RecConfig(**DECODER_SIZE),
    data=replace(SMALL.data, segment_length=1120),
    optim=OptimConfig(name="adamw", lr=1e-3),
)

# Whether recurrence helps, at a size where a CPU can show it: bytes of the demo's corpus and a window of 16, so that most of a
# document is out of slide's sight (layers × window, 80 bytes). rec has one layer less: parameters and FLOPs are equal within 2 %.
STUDY_SIZE = {"d_model": 96, "heads": 3, "head_dim": 32, "window": 16, "dropout": 0.0}
STUDY = TrainConfig(
    model=RecConfig(layers=4, recurrent_layers=(3,), states=16, gate="lstm", mlp_dim=376, **STUDY_SIZE),
    data=DataConfig(corpus="python-source", store="runs/study/store", lanes=16, segment_length=256),
    optim=OptimConfig(name="adamw", lr=3e-3),
    schedule=ScheduleConfig(name="cosine", warmup_steps=100),
    root="runs/study",
    steps=1500,
    num_workers=0,
    validate_every=100,
    validate_tokens=40_000,
)
STUDY_SLIDE = SlideConfig(layers=5, mlp_dim=384, **STUDY_SIZE)

# The demo: the same models and text, minutes of them. At this rate recurrence is ahead after 1,000 steps, at the study's own later.
DEMO = replace(
    STUDY,
    data=replace(STUDY.data, store=DataConfig().store),
    optim=replace(STUDY.optim, lr=8e-3),
    root="runs",
    steps=1000,
    validate_every=200,
    checkpoint=CheckpointConfig(every=200),
)

MIXER_SIZE: dict[str, Any] = {"d_model": 256, "window": 128}
# Today's mixers at the same size. States are of equal size, but with two keys (two thirds) and for slstm's vectors; a gated MLP
# makes up the parameters.
MIXERS = {
    "delta": MixersConfig(layers=("delta",) * 6, heads=4, key_dim=48, value_dim=96, mlp_dim=552, **MIXER_SIZE),
    "mamba2": MixersConfig(layers=("mamba2",) * 6, heads=8, key_dim=36, value_dim=64, mlp_dim=528, **MIXER_SIZE),
    "mlstm": MixersConfig(layers=("mlstm",) * 6, heads=4, key_dim=64, value_dim=72, mlp_dim=608, **MIXER_SIZE),
    "retention": MixersConfig(
        layers=("retention",) * 6, rotary=True, heads=4, key_dim=48, value_dim=96, mlp_dim=552, **MIXER_SIZE
    ),
    "rwkv7": MixersConfig(layers=("rwkv7",) * 6, heads=4, key_dim=48, value_dim=96, mlp_dim=592, **MIXER_SIZE),
    "slstm": MixersConfig(layers=("slstm",) * 6, heads=4, value_dim=64, mlp_dim=556, **MIXER_SIZE),
    "delta-two-keys": MixersConfig(
        layers=("delta",) * 6,
        householders=2,
        negative_eigenvalues=True,
        heads=4,
        key_dim=48,
        value_dim=64,
        mlp_dim=528,
        **MIXER_SIZE,
    ),
    "delta-window": MixersConfig(
        layers=("delta", "delta", "window") * 2, heads=4, key_dim=48, value_dim=96, mlp_dim=640, **MIXER_SIZE
    ),
    "mamba2-window": MixersConfig(
        layers=("mamba2", "mamba2", "window") * 2, heads=8, key_dim=36, value_dim=64, mlp_dim=584, **MIXER_SIZE
    ),
}

# Memory tokens, with as many parameters as small-slide. Layers read them too: 192 and 144 tokens for each block of 128.
MEMORY_TOKENS = {
    "rmt": RMTConfig(layers=6, memory_tokens=32, **SMALL_SIZE | {"mlp_dim": 1280}),
    "armt": ARMTConfig(layers=6, memory_tokens=16, memory_dim=12, unit_keys=True, **SMALL_SIZE | {"mlp_dim": 1136}),
}

CORE_SIZE: dict[str, Any] = {"layers": 6, "d_model": 256, "heads": 4, "head_dim": 64, "mlp_dim": 1280, "dropout": 0.0}
# As many parameters without embeddings, and input and output have a matrix each. A step of a staircase holds two or three chunks
# of 64; on the tasks of studies/state_tracking.py a chunk is one token, or four.
TRACKERS = {
    "staircase": StaircaseConfig(**CORE_SIZE, chunk=64, passes=2),
    "cached-staircase": CachedStaircaseConfig(**CORE_SIZE, chunk=64, passes=1, chunks=3),
    "lstm": LSTMConfig(layers=2, d_model=584, window=128, dropout=0.0),
}

DEMO_PRESETS = {
    "demo-rec": DEMO,
    "demo-slide": replace(DEMO, model=STUDY_SLIDE),
    "study-rec": STUDY,
    "study-slide": replace(STUDY, model=STUDY_SLIDE),
    "study-xl": replace(STUDY, model=XLConfig(layers=5, mlp_dim=384, **STUDY_SIZE)),
    "small-rec": SMALL,
    "small-slide": replace(SMALL, model=SlideConfig(layers=7, **SMALL_SIZE)),
    "small-vanilla": replace(SMALL, model=VanillaConfig(layers=7, **SMALL_SIZE)),
    "small-xl": replace(SMALL, model=XLConfig(layers=7, **SMALL_SIZE)),
    "small-memorizing": replace(SMALL, model=MemorizingConfig(layers=7, memory=8192, top_k=32, **SMALL_SIZE)),
    **{f"small-{name}": replace(SMALL, model=mixer) for name, mixer in MIXERS.items()},
    **{f"small-{name}": replace(SMALL, model=model) for name, model in MEMORY_TOKENS.items()},
    **{f"small-{name}": replace(SMALL, model=model) for name, model in TRACKERS.items()},
    "small-gpt2-rec": SMALL_GPT2,
    "small-gpt2": replace(SMALL_GPT2, model=GPT2Config(**DECODER_SIZE)),
    "small-llama-rec": replace(SMALL_GPT2, model=LlamaRecConfig(kv_heads=2, **DECODER_SIZE)),
    "small-llama": replace(SMALL_GPT2, model=LlamaConfig(kv_heads=2, **DECODER_SIZE)),
}

DEMO_GROUPS = {
    "Start here (minutes on a CPU)": {"demo-*": ""},
    "Your own text (5 to 6 million parameters without embeddings)": {
        "small-*": "",
        "small-mamba2*": "Mamba-2, a state-space model, in every layer, or with windows in every third (-window)",
        "small-mlstm": "mLSTM, the matrix memory of xLSTM, in every layer",
        "small-retention": "retention, linear attention with fixed decays, in every layer",
        "small-rwkv7": "RWKV-7's time mixing in every layer",
        "small-slstm": "sLSTM, the scalar memory of xLSTM, in every layer",
        "small-delta*": "the gated delta rule, also with two keys per token (-two-keys) or windows (-window)",
        "small-*rmt*": "memory tokens: the Recurrent Memory Transformer, and the Associative one (-armt)",
        "small-*staircase*": "staircases, which read each token several times, or keep what they have read (-cached-)",
        "small-gpt2*": "GPT-2 over windows that overlap, with recurrence (-rec) and without",
        "small-llama*": "a Llama over windows that overlap, with recurrence (-rec) and without",
    },
    "Studies of what recurrence is for": {
        "study-*": "the demo's models and a Transformer-XL, trained for longer",
    },
}
