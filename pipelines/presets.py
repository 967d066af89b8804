"""What we run: every run is a named value here or in paper_presets.py.

`python -m pipelines.train NAME --optim.lr 3e-4` overrides any field of it.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.config import DataConfig, OptimConfig, ScheduleConfig, TrainConfig
from pipelines.paper_presets import PAPER_PRESETS
from pipelines.saving import CheckpointConfig
from recur_models import MemorizingConfig, RecConfig, SlideConfig, VanillaConfig, XLConfig

# The demo: minutes on two cores. rec has one layer less, and one of them recurrent, which comes to the parameters of slide.
DEMO_SIZE = {"d_model": 192, "heads": 3, "head_dim": 64, "mlp_dim": 768, "window": 64, "dropout": 0.0}
DEMO = TrainConfig(
    model=RecConfig(layers=4, recurrent_layers=(3,), states=64, **DEMO_SIZE),
    data=DataConfig(corpus="python-source", lanes=4, segment_length=256),
    optim=OptimConfig(name="adamw", lr=6e-3, weight_decay=0.1),
    schedule=ScheduleConfig(name="cosine", warmup=50),
    steps=600,
    num_workers=2,
    validate_every=150,
    validate_tokens=50_000,
    checkpoint=CheckpointConfig(every=150),
)

# A size that a CPU trains in an hour or a small GPU in minutes: a starting point for one's own data.
SMALL_SIZE = {"d_model": 256, "heads": 4, "head_dim": 64, "mlp_dim": 1024, "window": 128, "dropout": 0.0}
SMALL = TrainConfig(
    model=RecConfig(layers=6, recurrent_layers=(4,), states=128, **SMALL_SIZE),
    data=DataConfig(corpus="text", lanes=8, segment_length=1024),
    optim=OptimConfig(name="adamw", lr=2e-3),
    schedule=ScheduleConfig(name="cosine", warmup=100),
    steps=2000,
    validate_every=200,
    checkpoint=CheckpointConfig(every=200),
)

PRESETS: dict[str, TrainConfig] = {
    "demo-rec": DEMO,
    "demo-slide": replace(DEMO, model=SlideConfig(layers=5, **DEMO_SIZE)),
    "small-rec": SMALL,
    "small-slide": replace(SMALL, model=SlideConfig(layers=7, **SMALL_SIZE)),
    "small-vanilla": replace(SMALL, model=VanillaConfig(layers=7, **SMALL_SIZE)),
    "small-xl": replace(SMALL, model=XLConfig(layers=7, **SMALL_SIZE)),
    "small-memorizing": replace(SMALL, model=MemorizingConfig(layers=7, memory=8192, top_k=32, **SMALL_SIZE)),
    **PAPER_PRESETS,
}
PRESETS = {name: replace(config, run=name) for name, config in PRESETS.items()}
