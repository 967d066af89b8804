"""The rows of the block-recurrent paper's tables as runs: `python -m pipelines.train pg19-rec-fixed-skip`.

    pg19-…      Table 1, Table 3 (…-window-256, …-states-1024), section 4.3 (…-layers-4-10) and Table 4 (scale-650M-rec,
                scale-650M-xl)
    arxiv-…     Table 1's arXiv column          github-…     Table 1's GitHub column
    tiny-pg19-…     the pg19 rows at a size that a CPU trains in minutes

All rows read 131,072 tokens in a step, whatever their segment: as many lanes as that takes (section 4.1); GitHub four times
as many. The vocabulary is that of the store: Table 1 has T5's of 32k for PG-19 and LaMDA's of 32k for the others, Table 4 a
SentencePiece one of 32k trained on PG-19, and Table 1's column of bytes is the pg19 rows on a store prepared with
`--tokenizer bytes`. Settings are those of Appendix C.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

from pipelines.config.run import CheckpointConfig, DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import MemorizingConfig, RecConfig, SlideConfig, XLConfig
from recur_models.block_recurrent import Cell
from recur_models.gates import Gate

TOKENS_PER_STEP = 32 * 4096


def row(model: ModelSettings, segment_length: int = 4096) -> TrainConfig:
    """This model on PG-19, by default 150M parameters: Adafactor, a rate that rises to 0.0316 over 1,000 steps, then 1/√step."""
    return TrainConfig(
        model=model,
        data=DataConfig(corpus="pg19", lanes=TOKENS_PER_STEP // segment_length, segment_length=segment_length),
        optim=OptimConfig(name="adafactor", lr=1.0, betas=(0.9, 0.999), weight_decay=0.0, clip=0.0),
        schedule=ScheduleConfig(name="inverse-sqrt", warmup=1000),
        steps=500_000,
        num_workers=32,
        validate_every=5000,
        validate_tokens=1_000_000,
        checkpoint=CheckpointConfig(every=1000),
    )


def cosine(config: TrainConfig, lr: float) -> TrainConfig:
    """The same run with a cosine schedule, from ``lr`` to a tenth of it."""
    schedule = ScheduleConfig(name="cosine", warmup=1000, final=0.1)
    return replace(config, optim=replace(config.optim, lr=lr), schedule=schedule)


TABLE_1 = {
    **{f"xl-{window}": row(XLConfig(window=window), segment_length=window) for window in (512, 1024, 2048)},
    **{f"slide-{layers}L": row(SlideConfig(layers=layers)) for layers in (12, 13)},
    **{
        f"rec-{gate}-{cell}": row(RecConfig(gate=gate, cell=cell))
        for gate, cell in product(get_args(Gate), get_args(Cell))
    },
    "feedback-lstm-single": row(RecConfig(gate="lstm", cell="single", feedback=True)),
    "feedback-fixed-skip": row(RecConfig(gate="fixed", cell="skip", feedback=True)),
    "memorizing-64k": row(MemorizingConfig(memory=65_536), segment_length=512),
}

# The states stay at 512 where the window changes, and the window where the states do.
TABLE_3 = {
    **{f"rec-fixed-skip-window-{window}": row(RecConfig(window=window)) for window in (128, 256, 512)},
    **{f"slide-12L-window-{window}": row(SlideConfig(window=window)) for window in (128, 256, 512)},
    **{f"rec-fixed-skip-states-{states}": row(RecConfig(states=states)) for states in (128, 256, 512, 1024, 2048)},
}

# Two recurrent layers, next to each other or far apart, and as many layers with the same one; the paper gives no numbers.
SECTION_4_3 = {
    "rec-fixed-skip-13L": row(RecConfig(layers=13)),
    **{
        f"rec-fixed-skip-layers-{lower}-{upper}": row(RecConfig(recurrent_layers=(lower, upper)))
        for lower, upper in ((9, 10), (4, 10))
    },
}

# Layers, d, heads, head size, MLP. The paper calls them 40.6M, 81.2M, 162M, 325M, 650M and 1.3B.
SCALES = {
    "40M": (12, 512, 8, 64, 2048),
    "80M": (12, 512, 8, 128, 4096),
    "150M": (12, 1024, 8, 128, 4096),
    "325M": (12, 1024, 16, 128, 8192),
    "650M": (24, 1024, 16, 128, 8192),
    "1.3B": (24, 2048, 16, 128, 8192),
}


def scaled(layers: int, d_model: int, heads: int, head_dim: int, mlp_dim: int) -> dict[str, TrainConfig]:
    """The two rows of Table 4 at one size: recurrence on every tenth layer, and xl with one layer more in twelve."""
    size: dict[str, Any] = {"d_model": d_model, "heads": heads, "head_dim": head_dim, "mlp_dim": mlp_dim}
    rec = RecConfig(layers=layers, recurrent_layers=tuple(range(10, layers, 10)), **size)
    xl = XLConfig(layers=layers * 13 // 12, **size)
    return {"rec": cosine(row(rec), lr=0.01), "xl": cosine(row(xl, segment_length=512), lr=0.01)}


TABLE_4 = {f"scale-{scale}-{name}": run for scale, size in SCALES.items() for name, run in scaled(*size).items()}


def on_arxiv(config: TrainConfig) -> TrainConfig:
    """Half the rate: longer segments were unstable."""
    return replace(config, data=replace(config.data, corpus="arxiv"), optim=replace(config.optim, lr=0.5))


def on_github(config: TrainConfig) -> TrainConfig:
    """Four times the lanes against the noise, half the steps, cosine from 0.005."""
    data = replace(config.data, corpus="github", lanes=4 * config.data.lanes)
    return replace(cosine(config, lr=0.005), data=data, steps=250_000)


# A size that a CPU trains: a third of the layers, 3/32 of the widths, and a 32nd of windows, states and memories.
TINY_SIZES = {
    "d_model": 3 / 32,
    "heads": 3 / 8,
    "mlp_dim": 3 / 32,
    "window": 1 / 32,
    "states": 1 / 32,
    "memory": 1 / 32,
}


def tiny_layers(recurrent: tuple[int, ...]) -> tuple[int, ...]:
    """A third of each place; the lower one of two that would be the same moves down, so that 9 and 10 become 2 and 3."""
    places = list[int]()
    for layer in reversed(recurrent):
        place = min(layer // 3, places[0] - 1) if places else layer // 3
        places.insert(0, place)
    return tuple(places)


def tiny(config: TrainConfig) -> TrainConfig:
    """The same row: 12 layers become 4, 13 become 5; all read 16 lanes × 256 tokens in a step, whatever their segment was."""
    model: Any = config.model
    layers = model.layers // 12 * 4 + model.layers % 12
    sizes = {name: round(getattr(model, name) * share) for name, share in TINY_SIZES.items() if hasattr(model, name)}
    sizes |= {"layers": layers, "head_dim": model.head_dim // 4, "dropout": 0.0}
    if isinstance(model, RecConfig):
        sizes["recurrent_layers"] = tiny_layers(model.recurrent_layers)
    if isinstance(model, MemorizingConfig):
        sizes |= {"memory_layer": model.memory_place // 3, "top_k": 32}
    return TrainConfig(
        model=replace(model, **sizes),
        data=DataConfig(corpus="pg19", lanes=16, segment_length=256),
        optim=OptimConfig(name="adamw", lr=8e-3),
        schedule=ScheduleConfig(name="cosine", warmup=100),
        steps=1000,
        num_workers=0,
        validate_every=250,
        validate_tokens=40_000,
        checkpoint=CheckpointConfig(every=250),
    )


NOT_ON_GITHUB = ("feedback", "memorizing")  # the paper's table has a dash there

PAPER_PRESETS = {
    **{f"pg19-{name}": run for name, run in {**TABLE_1, **TABLE_3, **SECTION_4_3, **TABLE_4}.items()},
    **{f"arxiv-{name}": on_arxiv(run) for name, run in TABLE_1.items()},
    **{f"github-{name}": on_github(run) for name, run in TABLE_1.items() if not name.startswith(NOT_ON_GITHUB)},
}
TINY_PRESETS = {f"tiny-{name}": tiny(run) for name, run in PAPER_PRESETS.items() if run.data.corpus == "pg19"}
