"""The papers' rows at a size that a CPU trains in minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.config.run import CheckpointConfig, DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import MemorizingConfig, RecConfig


def tiny_run(model: ModelSettings, data: DataConfig, lr: float, steps: int = 1000, root: str = "runs") -> TrainConfig:
    """A run in one process. Its learning rate rises to ``lr`` in 100 steps, and then falls as a cosine."""
    return TrainConfig(
        model=model,
        data=data,
        optim=OptimConfig(name="adamw", lr=lr),
        schedule=ScheduleConfig(name="cosine", warmup_steps=100),
        root=root,
        steps=steps,
        num_workers=0,
        validate_every=250,
        validate_tokens=40_000,
        checkpoint=CheckpointConfig(every=250),
    )


THIRTY_SECOND = (
    "Windows, states and memory are a 32nd of the paper's, which the labels name; 12 layers are 4 and 13 are 5, and widths are "
    "3/32 of the paper's."
)
# A third of the layers, 3/32 of the widths, and a 32nd of windows, states and memories.
TINY_SIZES = {
    "d_model": 3 / 32,
    "heads": 3 / 8,
    "mlp_dim": 3 / 32,
    "window": 1 / 32,
    "states": 1 / 32,
    "memory": 1 / 32,
}


def tiny_layers(recurrent: tuple[int, ...]) -> tuple[int, ...]:
    """A third of each recurrent layer's place. If two would be equal, the lower one moves down: 9 and 10 become 2 and 3."""
    places = list[int]()
    for layer in reversed(recurrent):
        place = min(layer // 3, places[0] - 1) if places else layer // 3
        places.insert(0, place)
    return tuple(places)


def tiny_block_recurrent(model: Any) -> TrainConfig:
    """A row of the block-recurrent paper on PG-19: 12 layers become 4, 13 become 5; all read 16 lanes × 256 tokens a step."""
    layers = model.layers // 12 * 4 + model.layers % 12
    sizes = {name: round(getattr(model, name) * share) for name, share in TINY_SIZES.items() if hasattr(model, name)}
    sizes |= {"layers": layers, "head_dim": model.head_dim // 4, "dropout": 0.0}
    if isinstance(model, RecConfig):
        sizes["recurrent_layers"] = tiny_layers(model.recurrent_layers)
    if isinstance(model, MemorizingConfig):
        sizes |= {"memory_layer": model.memory_place // 3, "top_k": 32}
    data = DataConfig(corpus="pg19", lanes=16, segment_length=256)
    return tiny_run(replace(model, **sizes), data, lr=8e-3)
