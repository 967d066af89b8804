"""Tables 1 to 3 and Figures 2 and 3 of "Staircase Attention for Recurrent Processing of Sequences" (Ju et al. 2021).

groups.py says which presets belong to which table.

Within a task all have the same data, optimizer and steps, and parameters within 3 %, except those named as larger (…-2x) or smaller
(…-small), and Reddit's feedback transformer, whose keys are shared. `staircase` has 2 passes; `staircase-4` and
`staircase-8` have more, of shorter chunks in the same step.

The appendix with the settings is not in the text that we have. Algorithm's settings are known: 4 layers, d 256, 4 heads, MLP 1,024,
dropout 0.2, Adam at 1e-4 after 1,000 steps, clip 0.1, C 64 of a step of 128, spans of 100; its Transformer-XL has 8 layers
(`algorithm-xl-2x`). Reddit's sizes follow from Table 2: 8 layers of d 1,024 and 8,000 symbols give all its parameter counts. These
are ours: the widths of LSTM and universal transformer, chosen to match the parameters of the others; lanes, segments and steps;
Random Walk, which has Algorithm's sizes and shorter chunks; enwik8, at the sizes of a 12-layer Transformer-XL (Dai et al. 2019).

    python -m pipelines.prepare random-walk --train 1000000 --segment-length 64 --curriculum 8 16 32 64 128 256 400
    python -m pipelines.prepare enwik8 --source enwik8.zip --pieces 32
    python -m pipelines.prepare jsonl --source threads.jsonl --thread-field link_id --tokenizer sentencepiece:8000
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
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
from studies.papers.sweeps import over_presets, presets_of
from studies.papers.tables import FLOPS_PER_TOKEN, PARAMETERS, Column, Data, Row, Run, Table
from studies.papers.tiny import tiny_run
from studies.state_tracking import STATE_TRACKING_PRESETS

Models = dict[str, ModelSettings]


def family(size: dict[str, Any], step: int, span: int, lstm: int, universal: dict[str, Any]) -> Models:
    """Each model in this size of core, by the name of its row.

    Args:
        step: tokens of a staircase's step. A cached staircase sees as many beside the chunk that joins (as Table 3 counts).
        span: tokens that the others see.
        lstm: width of the LSTM's two layers.
        universal: sizes of the universal transformer's one layer, where they differ from ``size``.
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


def in_detail(size: dict[str, Any], step: int, span: int) -> Models:
    """Further models of Tables 2 and 3: universal transformers with one layer; staircases with half the step; and cached staircases
    with other forward sizes, which see ``step`` tokens beside them. Names have the forward sizes of a step of 256."""
    small = partial(UniversalTransformerConfig, **size | {"layers": 1}, span=span, window=step // 2)
    return {
        **{f"universal-{n}-small": small(passes=n) for n in (2, 4, 8, 16)},
        **{f"staircase-{n}-chunk-{128 // n}": StaircaseConfig(**size, chunk=step // 2 // n, passes=n) for n in (2, 4)},
        **{
            f"cached-staircase-chunk-{256 // n}": CachedStaircaseConfig(**size, chunk=step // n, passes=1, chunks=n + 1)
            for n in (8, 4)
        },
    }


def core(layers: int, d_model: int, heads: int, mlp_dim: int, dropout: float) -> dict[str, Any]:
    """The fields that all models of the paper share."""
    sizes = {"layers": layers, "d_model": d_model, "heads": heads, "head_dim": d_model // heads, "mlp_dim": mlp_dim}
    return sizes | {"dropout": dropout}


TASK_SIZE = core(layers=4, d_model=256, heads=4, mlp_dim=1024, dropout=0.2)
WIDE = {"d_model": 512, "heads": 8, "mlp_dim": 1984}
ON_TASK: dict[str, Any] = {
    "optim": OptimConfig(name="adamw", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=0.1),
    "schedule": ScheduleConfig(name="constant", warmup_steps=1000),
    "steps": 50_000,
    "validate_every": 1000,
    "validate_tokens": 0,
    "checkpoint": CheckpointConfig(every=500),
}
"""Algorithm's settings."""

ENWIK8_SIZE = core(layers=12, d_model=512, heads=8, mlp_dim=2048, dropout=0.1)
ENWIK8_WIDE = {"d_model": 1792, "heads": 28, "mlp_dim": 6784}
REDDIT_SIZE = core(layers=8, d_model=1024, heads=16, mlp_dim=4096, dropout=0.1)
REDDIT_WIDE = {"d_model": 2560, "heads": 40, "mlp_dim": 10_240}
ON_TEXT: dict[str, Any] = {
    "optim": OptimConfig(name="adamw", lr=2.5e-4, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=0.25),
    "schedule": ScheduleConfig(name="cosine", warmup_steps=1000, min_lr_ratio=0.0),
    "steps": 400_000,
    "num_workers": 8,
    "validate_every": 4000,
    "validate_tokens": 1_000_000,
    "checkpoint": CheckpointConfig(every=1000),
}
"""Adam and cosine, as Transformer-XL on enwik8."""

# A size that a CPU trains, parameters within 3 %. Each model sees 64 bytes directly, slide and rec 32 to 63 in each layer.
TINY_SIZE = core(layers=4, d_model=96, heads=3, mlp_dim=384, dropout=0.0)
TINY_MODELS: Models = {
    **family(TINY_SIZE, step=64, span=64, lstm=162, universal={"d_model": 192, "heads": 6, "mlp_dim": 672}),
    **in_detail(TINY_SIZE, step=64, span=64),
    "slide": SlideConfig(**TINY_SIZE | {"mlp_dim": 416}, window=32),
    "rec": RecConfig(
        **TINY_SIZE | {"layers": 3, "mlp_dim": 416}, window=32, recurrent_layers=(2,), states=32, gate="lstm"
    ),
}
TINY_BYTES = DataConfig(corpus="enwik8", store="runs/enwik8/store", lanes=16, segment_length=256)


@dataclass(frozen=True)
class Task:
    """A task of the paper, at the paper's scale."""

    prefix: str
    """Prefix of its presets' names."""
    prepared: Data
    read: DataConfig
    settings: dict[str, Any]
    """Further fields of its runs."""
    models: Models
    """Models by the name of their row."""


CURRICULUM = "--train 1000000 --segment-length 64 --curriculum 8 16 32 64 128 256 400"
"""A training reads these walks ten times, the shortest first. It would read 10,000, as Algorithm has, a thousand times."""
TASKS = {
    "Random Walk": Task(
        "walk",
        Data("random-walk", options=tuple(CURRICULUM.split())),
        DataConfig(corpus="random-walk", order="sequential", lanes=64, segment_length=400),  # a walk's steps
        ON_TASK,
        family(TASK_SIZE, step=32, span=100, lstm=440, universal=WIDE),
    ),
    "Algorithm": Task(
        "algorithm",
        Data("algorithm"),
        DataConfig(corpus="algorithm", lanes=64, segment_length=512),  # a program has about 431 tokens
        ON_TASK,
        family(TASK_SIZE, step=128, span=100, lstm=440, universal=WIDE),
    ),
    "Enwik8": Task(
        "enwik8",
        Data("enwik8", "bytes", ("--pieces", "32")),
        DataConfig(corpus="enwik8", lanes=32, segment_length=1024),
        ON_TEXT,
        family(ENWIK8_SIZE, step=512, span=512, lstm=1528, universal=ENWIK8_WIDE),
    ),
    "Reddit": Task(
        "reddit",
        Data("jsonl", "sentencepiece:8000", ("--thread-field", "link_id")),
        DataConfig(corpus="jsonl", lanes=64, segment_length=512),
        ON_TEXT,
        {
            **family(REDDIT_SIZE, step=256, span=512, lstm=2250, universal=REDDIT_WIDE),
            "feedback": FeedbackTransformerConfig(**REDDIT_SIZE, span=512, window=128, keys="shared"),
            **in_detail(REDDIT_SIZE, step=256, span=512),
        },
    ),
}
PRESETS = {
    **{
        f"{task.prefix}-{name}": TrainConfig(model=model, data=task.read, **task.settings)
        for task in TASKS.values()
        for name, model in task.models.items()
    },
    **{
        f"tiny-enwik8-{name}": tiny_run(model, TINY_BYTES, lr=3e-3, root="runs/enwik8")
        for name, model in TINY_MODELS.items()
    },
}

WALKS = "--grid 3 --length 128 --curriculum 8 8 8 8 8 8 8 8 16 16 16 16 32 32 64 128"
PROGRAMS = "--variables 1 --statements 100 --curriculum 5 5 5 5 5 5 5 5 10 10 10 10 20 20 40 100"
SMALL = "--train 200000 --validation 500 --test 500 --segment-length 64"
TINY_DATA = {
    "Random Walk": Data("random-walk", options=tuple(f"{WALKS} {SMALL}".split())),
    "Algorithm": Data("algorithm", options=tuple(f"{PROGRAMS} {SMALL}".split())),
    "Enwik8": Data("enwik8", "bytes", ("--pieces", "16")),
}
SYNTHETIC = ("Random Walk", "Algorithm")
TINY_NAMES = {"xl": "transformer-xl", "feedback": "feedback-transformer"}
"""Name of a model in the presets of the tiny tasks."""


def on_tasks(name: str, tasks: Iterable[str], passes: int = 0) -> dict[str, dict[str, Run]]:
    """Runs of the preset ``name`` on these tasks. ``passes``: of a staircase; 0 for those of Table 1."""
    paper = {task: Run(f"{TASKS[task].prefix}-{name}", TASKS[task].prepared) for task in tasks}
    tiny: dict[str, Run] = {}
    for task in SYNTHETIC:
        model = name.removesuffix(f"-{passes}")
        preset = f"tiny-{TASKS[task].prefix}-{TINY_NAMES.get(model, model)}"
        other = passes > 1 and getattr(STATE_TRACKING_PRESETS[preset].model, "passes", passes) != passes
        tiny[task] = Run(preset, TINY_DATA[task], {"model.passes": passes} if other else {})
    tiny["Enwik8"] = Run(f"tiny-enwik8-{name}", TINY_DATA["Enwik8"])
    return {"paper": paper, "tiny": {task: run for task, run in tiny.items() if task in paper}}


COUNTED = "FLOPs are those of the forward pass, without the output layer."
TINY = (
    "Walks of 128 actions on 3 × 3 cells (the paper: 400) and programs of one variable (3), models of 50,000 parameters beside "
    f"embeddings; Enwik8, in bytes, with 4 layers of d 96. {COUNTED}"
)
PIECES = (
    "Reddit's tokens are of SentencePiece's 8,000 pieces, with which Table 2's parameters come out; the paper's text does not "
    "name its vocabulary."
)
PAPER = (
    f"Enwik8 is in bytes. {PIECES} {COUNTED} "
    "BASE Data is not published: its column stays the paper's. Algorithm's Transformer-XL has the 4 layers of the other models, as "
    "the paper says of all; in the published settings it has 8 (algorithm-xl-2x)."
)
COLUMNS = (
    Column("Random Walk", "error_percent", of="Random Walk", form=".1f"),
    Column("Algorithm", "error_percent", of="Algorithm", form=".1f"),
    Column("Enwik8", "bits_per_token", of="Enwik8", form=".2f"),
    Column("Reddit", "perplexity", of="Reddit", form=".1f"),
    Column("BASE Data", "perplexity", of="BASE Data", split="validation", form=".1f"),
)
COMPUTE = tuple(replace(FLOPS_PER_TOKEN, name=f"{task}, {FLOPS_PER_TOKEN.name}", of=task) for task in TASKS)
# By label: the preset's name without the task, and the paper's numbers by column.
RESULTS: dict[str, tuple[str, tuple[float, ...]]] = {
    "LSTM": ("lstm", (0.6, 1.0, 1.38)),
    "Transformer-XL": ("xl", (84.1, 48.7, 1.15, 26.2, 28.0)),
    "Feedback Transformer": ("feedback", (0.1, 0.2, 1.12, 25.5, 26.6)),
    "Staircase": ("staircase", (0.1, 0.2, 1.14, 22.6, 23.0)),
    "Cached Staircase": ("cached-staircase", (0.1, 1.2, 1.13, 26.1, 27.8)),
}


def row_of_table_1(label: str) -> Row:
    """A row of Table 1. Its Staircase on Reddit is the one of 8 steps, as Table 2 shows."""
    name, numbers = RESULTS[label]
    paper = {column.name: number for column, number in zip(COLUMNS, numbers, strict=False)}
    runs = on_tasks(name, [task for task in TASKS if task in paper])
    if name == "staircase":
        runs["paper"]["Reddit"] = Run("reddit-staircase-8", TASKS["Reddit"].prepared)
    return Row(label, paper, runs)


TABLE_1 = Table(
    "Table 1: all models on all tasks",
    (*(replace(column, best=column.name in SYNTHETIC) for column in COLUMNS), *COMPUTE),
    tuple(map(row_of_table_1, RESULTS)),
    note={"tiny": TINY, "paper": PAPER},
)

# Parameters in millions, perplexity on validation and test, ms of a batch; the preset after `reddit-`.
REDDIT_ROWS: dict[str, tuple[str, tuple[float, float, float, float]]] = {
    "Transformer-XL": ("xl", (117, 26.5, 26.2, 178)),
    "Transformer-XL 2x deep": ("xl-2x", (218, 23.7, 23.4, 359)),
    "Feedback Transformer": ("feedback", (102, 25.8, 25.5, 3260)),
    "Cached Staircase": ("cached-staircase", (117, 26.4, 26.1, 246)),
    "Staircase, 2 steps": ("staircase", (117, 25.0, 24.8, 297)),
    "Universal, 2 steps": ("universal-2-small", (29, 39.9, 39.5, 51)),
    "Staircase, 4 steps": ("staircase-4", (117, 23.7, 23.4, 580)),
    "Universal, 4 steps": ("universal-4-small", (29, 34.9, 34.5, 88)),
    "Staircase, 8 steps": ("staircase-8", (117, 22.9, 22.6, 1147)),
    "Universal, 8 steps": ("universal-8-small", (29, 32.3, 32.0, 163)),
    "Universal, 8 steps, wide": ("universal", (120, 25.9, 25.6, 766)),
    "Universal, 16 steps": ("universal-16-small", (29, 31.5, 31.1, 328)),
}
STEPS = {
    "Transformer-XL": 0,
    "Feedback Transformer": 1,
    "Cached Staircase": 1,
    "Staircase, 2 steps": 2,
    "Staircase, 4 steps": 4,
    "Staircase, 8 steps": 8,
}
"""Recurrent steps of the rows of Table 2 that Figure 2 has on all tasks."""


def row_of_figure_2(label: str, steps: int) -> Row:
    """A model of REDDIT_ROWS on each task, with its place on the figure's axis of steps."""
    name, numbers = REDDIT_ROWS[label]
    return Row(label, {"Reddit": numbers[2]}, on_tasks(name, TASKS, steps), label.partition(",")[0], steps)


CURVES = "For tasks other than Reddit the paper has curves alone, without numbers."

VALIDATION = "validation ppl"
TEST = "test ppl"
TIME = "batch time, ms"
FORWARD_ROWS: dict[str, tuple[str, tuple[float, float]]] = {
    "Cached Staircase, forward size 32": ("cached-staircase-chunk-32", (26.4, 489)),
    "Cached Staircase, forward size 64": ("cached-staircase-chunk-64", (26.4, 318)),
    "Cached Staircase, forward size 128": ("cached-staircase", (26.4, 246)),
    "Staircase 2, forward size 64": ("staircase-2-chunk-64", (25.2, 310)),
    "Staircase 2, forward size 128": ("staircase", (25.0, 297)),
    "Staircase 4, forward size 32": ("staircase-4-chunk-32", (23.8, 605)),
    "Staircase 4, forward size 64": ("staircase-4", (23.7, 580)),
}


def on_reddit(model: str) -> dict[str, dict[str, Run]]:
    """A model's training at each scale: on Reddit, and at the tiny one on enwik8."""
    return {
        "paper": {"": Run(f"reddit-{model}", TASKS["Reddit"].prepared)},
        "tiny": {"": Run(f"tiny-enwik8-{model}", TINY_DATA["Enwik8"])},
    }


PARAMETERS_WITH = "Parameters have the embeddings and the output layer, the paper's too."
BYTES = (
    "enwik8's bytes in place of Reddit, 4 layers of d 96, steps and forward sizes a quarter of those that are named."
)
ON_REDDIT = {"tiny": f"{BYTES} {PARAMETERS_WITH} {COUNTED}", "paper": f"{PIECES} {PARAMETERS_WITH} {COUNTED}"}
TABLE_2 = Table(
    "Table 2: Reddit",
    (
        PARAMETERS,
        Column(VALIDATION, "perplexity", split="validation", form=".2f"),
        Column(TEST, "perplexity", form=".2f"),
        Column(TIME, "ms_per_step", form=",.0f"),
        FLOPS_PER_TOKEN,
    ),
    tuple(
        Row(
            label,
            {"parameters": millions * 1e6, VALIDATION: validation, TEST: test, TIME: time},
            on_reddit(model),
            label.partition(",")[0] + (", wide" if label.endswith("wide") else ""),
        )
        for label, (model, (millions, validation, test, time)) in REDDIT_ROWS.items()
    ),
    note=ON_REDDIT,
)
TABLE_3 = Table(
    "Table 3: Reddit, forward sizes",
    (TABLE_2.columns[1], *TABLE_2.columns[3:]),
    tuple(
        Row(label, {VALIDATION: validation, TIME: time}, on_reddit(model), label.partition(",")[0])
        for label, (model, (validation, time)) in FORWARD_ROWS.items()
    ),
    note=ON_REDDIT,
)
TABLES = {
    "table-1": TABLE_1,
    "table-2": TABLE_2,
    "table-3": TABLE_3,
    "figure-2": Table(
        "Figure 2: recurrent steps on the four tasks",
        (*COLUMNS[:4], *COMPUTE),
        tuple(row_of_figure_2(label, steps) for label, steps in STEPS.items()),
        x="recurrent steps",
        note={"tiny": f"{TINY} {CURVES}", "paper": f"Enwik8 is in bytes. {PIECES} {COUNTED} {CURVES}"},
    ),
    "figure-3": replace(
        TABLE_2, about="Figure 3: perplexity over training time, Table 2's", x=TIME, size=PARAMETERS.name
    ),
}

SPACES = {
    "staircase-figure-2": over_presets(
        "staircase, Figure 2: recurrent steps, on the preset's task", presets_of(TABLES["figure-2"]), "reddit"
    ),
    "staircase-table-2": over_presets("staircase, Table 2: recurrent steps", presets_of(TABLE_2)),
    "staircase-table-3": over_presets("staircase, Table 3: forward sizes", presets_of(TABLE_3)),
}
