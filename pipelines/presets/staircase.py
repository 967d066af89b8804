"""The staircase paper's tasks and tables as runs: `python -m pipelines.train algorithm-staircase`.

    algorithm-…   walk-…   enwik8-…     Table 1 and Figure 2, on three of its tasks
    reddit-…                            Tables 2 and 3
    tiny-enwik8-…                       enwik8, and Reddit's rows on its bytes, at a size that a CPU trains, with slide and rec

Within a task all have the same data, optimizer and steps, and parameters within 3 %, except those named as larger (…-2x) or smaller
(…-small), and Reddit's feedback transformer, whose keys are shared. `staircase` has 2 passes; `staircase-4` and
`staircase-8` have more, of shorter chunks in the same step.

The appendix with the settings is not in the text that we have. Of Algorithm they are known: 4 layers, d 256, 4 heads, MLP 1,024,
dropout 0.2, Adam at 1e-4 after 1,000 steps, clip 0.1, C 64 of a step of 128, spans of 100; its Transformer-XL has 8 layers
(`algorithm-xl-2x`). Reddit's sizes follow from Table 2, all of whose counts they give: 8 layers of d 1,024 and 8,000 symbols.
What is ours: the widths of LSTM and universal transformer, which come to the parameters of the others; lanes, segments and steps;
Random Walk, which has Algorithm's sizes and shorter chunks; enwik8, at the sizes of a 12-layer Transformer-XL (Dai et al. 2019).

    python -m pipelines.prepare random-walk --train 1000000 --segment-length 64 --curriculum 8 16 32 64 128 256 400
    python -m pipelines.prepare enwik8 --source enwik8.zip --pieces 32
    python -m pipelines.prepare jsonl --source threads.jsonl --thread-field link_id --tokenizer sentencepiece:8000
"""

from __future__ import annotations

from typing import Any

from pipelines.config.run import CheckpointConfig, DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import (
    CachedStaircaseConfig,
    FeedbackTransformerConfig,
    LSTMConfig,
    RecConfig,
    SlideConfig,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalTransformerConfig,
)

Models = dict[str, ModelSettings]


def family(size: dict[str, Any], step: int, span: int, lstm: int, universal: dict[str, Any]) -> Models:
    """Each model in this size of core, by the name of its row.

    Args:
        step: tokens of a staircase's step. A cached staircase looks at so many beside the chunk that joins (as Table 3 counts).
        span: tokens that the others see.
        lstm: width of its two layers.
        universal: sizes of its one layer, where they differ.
    """
    chunk = step // 2
    sight: dict[str, Any] = {"span": span, "window": chunk}
    return {
        "staircase": StaircaseConfig(**size, chunk=chunk, passes=2),
        **{f"staircase-{passes}": StaircaseConfig(**size, chunk=step // passes, passes=passes) for passes in (4, 8)},
        "cached-staircase": CachedStaircaseConfig(**size, chunk=chunk, passes=1, chunks=3),
        "feedback": FeedbackTransformerConfig(**size, **sight),
        "xl": TransformerXLConfig(**size, **sight),
        "xl-2x": TransformerXLConfig(**size | {"layers": 2 * size["layers"]}, **sight),
        "universal": UniversalTransformerConfig(**size | {"layers": 1} | universal, **sight, passes=8),
        "lstm": LSTMConfig(layers=2, d_model=lstm, window=chunk, dropout=size["dropout"]),
    }


def in_detail(size: dict[str, Any], sight: dict[str, Any], step: int) -> Models:
    """What Tables 2 and 3 have beside these: universal transformers of the same layers; half the step, or a forward size that the
    ``step`` tokens that are looked at are beside. Names have the forward sizes of a step of 256.
    """
    small = UniversalTransformerConfig
    return {
        **{f"universal-{n}-small": small(**size | {"layers": 1}, **sight, passes=n) for n in (2, 4, 8, 16)},
        **{f"staircase-{n}-chunk-{128 // n}": StaircaseConfig(**size, chunk=step // 2 // n, passes=n) for n in (2, 4)},
        **{
            f"cached-staircase-chunk-{256 // n}": CachedStaircaseConfig(**size, chunk=step // n, passes=1, chunks=n + 1)
            for n in (8, 4)
        },
    }


TASK_SIZE = {"layers": 4, "d_model": 256, "heads": 4, "head_dim": 64, "mlp_dim": 1024, "dropout": 0.2}
WIDE = {"d_model": 512, "heads": 8, "mlp_dim": 1984}


def on_task(model: ModelSettings, data: DataConfig) -> TrainConfig:
    """Algorithm's settings."""
    return TrainConfig(
        model=model,
        data=data,
        optim=OptimConfig(name="adamw", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0, clip=0.1),
        schedule=ScheduleConfig(name="constant", warmup=1000),
        steps=50_000,
        validate_every=1000,
        validate_tokens=0,
        checkpoint=CheckpointConfig(every=500),
    )


def on_text(model: ModelSettings, data: DataConfig) -> TrainConfig:
    """Adam and cosine, as Transformer-XL on enwik8."""
    return TrainConfig(
        model=model,
        data=data,
        optim=OptimConfig(name="adamw", lr=2.5e-4, betas=(0.9, 0.999), weight_decay=0.0, clip=0.25),
        schedule=ScheduleConfig(name="cosine", warmup=1000, final=0.0),
        steps=400_000,
        num_workers=8,
        validate_every=4000,
        validate_tokens=1_000_000,
        checkpoint=CheckpointConfig(every=1000),
    )


ENWIK8_SIZE = {"layers": 12, "d_model": 512, "heads": 8, "head_dim": 64, "mlp_dim": 2048, "dropout": 0.1}
ENWIK8_WIDE = {"d_model": 1792, "heads": 28, "mlp_dim": 6784}
REDDIT_SIZE: dict[str, Any] = {
    "layers": 8,
    "d_model": 1024,
    "heads": 16,
    "head_dim": 64,
    "mlp_dim": 4096,
    "dropout": 0.1,
}
REDDIT_WIDE = {"d_model": 2560, "heads": 40, "mlp_dim": 10_240}
REDDIT_SIGHT: dict[str, Any] = {"span": 512, "window": 128}
REDDIT_MODELS: Models = {
    **family(REDDIT_SIZE, step=256, span=512, lstm=2250, universal=REDDIT_WIDE),
    "feedback": FeedbackTransformerConfig(**REDDIT_SIZE, **REDDIT_SIGHT, keys="shared"),
    **in_detail(REDDIT_SIZE, REDDIT_SIGHT, step=256),
}

# A size that a CPU trains, parameters within 3 %: what each sees directly is 64 bytes, in slide and rec 32 to 63 a layer.
TINY_SIZE: dict[str, Any] = {"layers": 4, "d_model": 96, "heads": 3, "head_dim": 32, "mlp_dim": 384, "dropout": 0.0}
TINY_MODELS: Models = {
    **family(TINY_SIZE, step=64, span=64, lstm=162, universal={"d_model": 192, "heads": 6, "mlp_dim": 672}),
    **in_detail(TINY_SIZE, {"span": 64, "window": 32}, step=64),
    "slide": SlideConfig(**TINY_SIZE | {"mlp_dim": 416}, window=32),
    "rec": RecConfig(
        **TINY_SIZE | {"layers": 3, "mlp_dim": 416}, window=32, recurrent_layers=(2,), states=32, gate="lstm"
    ),
}


def tiny(model: ModelSettings) -> TrainConfig:
    """1,000 steps of 4,096 bytes."""
    return TrainConfig(
        model=model,
        data=DataConfig(corpus="enwik8", store="runs/enwik8/store", lanes=16, segment_length=256),
        optim=OptimConfig(name="adamw", lr=3e-3),
        schedule=ScheduleConfig(name="cosine", warmup=100),
        root="runs/enwik8",
        steps=1000,
        num_workers=0,
        validate_every=250,
        validate_tokens=40_000,
        checkpoint=CheckpointConfig(every=250),
    )


# A program has about 431 tokens, a walk 400.
PROGRAMS = DataConfig(corpus="algorithm", lanes=64, segment_length=512)
WALKS = DataConfig(corpus="random-walk", order="listed", lanes=64, segment_length=400)
BYTES = DataConfig(corpus="enwik8", lanes=32, segment_length=1024)
THREADS = DataConfig(corpus="jsonl", lanes=64, segment_length=512)

STAIRCASE_PRESETS = {
    f"{task}-{name}": run(model, data)
    for task, run, data, models in (
        ("algorithm", on_task, PROGRAMS, family(TASK_SIZE, step=128, span=100, lstm=440, universal=WIDE)),
        ("walk", on_task, WALKS, family(TASK_SIZE, step=32, span=100, lstm=440, universal=WIDE)),
        ("enwik8", on_text, BYTES, family(ENWIK8_SIZE, step=512, span=512, lstm=1528, universal=ENWIK8_WIDE)),
        ("reddit", on_text, THREADS, REDDIT_MODELS),
    )
    for name, model in models.items()
} | {f"tiny-enwik8-{name}": tiny(model) for name, model in TINY_MODELS.items()}
