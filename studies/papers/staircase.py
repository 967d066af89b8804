"""Tables 1 to 3 and Figures 2 and 3 of "Staircase Attention for Recurrent Processing of Sequences" (Ju et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

from pipelines.presets import PRESETS
from studies.papers.sweeps import over_presets, presets_of
from studies.papers.tables import FLOPS_PER_TOKEN, PARAMETERS, Column, Data, Row, Run, Table

TASKS = ("Random Walk", "Algorithm", "Enwik8", "Reddit")
PREFIXES = dict(zip(TASKS, ("walk", "algorithm", "enwik8", "reddit"), strict=True))
CURRICULUM = "--train 1000000 --segment-length 64 --curriculum 8 16 32 64 128 256 400"
"""A training reads so many walks ten times. Algorithm's 10,000 it would read a thousand times, from the shortest on each time."""
REDDIT = Data("jsonl", "sentencepiece:8000", ("--thread-field", "link_id"))
PAPER_DATA = {
    "Random Walk": Data("random-walk", options=tuple(CURRICULUM.split())),
    "Algorithm": Data("algorithm"),
    "Enwik8": Data("enwik8", "bytes", ("--pieces", "32")),
    "Reddit": REDDIT,
}
WALKS = "--grid 3 --length 128 --curriculum 8 8 8 8 8 8 8 8 16 16 16 16 32 32 64 128"
PROGRAMS = "--variables 1 --statements 100 --curriculum 5 5 5 5 5 5 5 5 10 10 10 10 20 20 40 100"
SMALL = "--train 200000 --validation 500 --test 500 --segment-length 64"
TINY_DATA = {
    "Random Walk": Data("random-walk", options=tuple(f"{WALKS} {SMALL}".split())),
    "Algorithm": Data("algorithm", options=tuple(f"{PROGRAMS} {SMALL}".split())),
    "Enwik8": Data("enwik8", "bytes", ("--pieces", "16")),
}
TINY_NAMES = {"xl": "transformer-xl", "feedback": "feedback-transformer"}
"""What the presets of the tiny tasks call a model."""


def on_tasks(model: str, *tasks: str, passes: int = 0) -> dict[str, dict[str, Run]]:
    """The presets of a model on these tasks. ``passes``: of a staircase; 0 for what Table 1 has."""
    name = f"{model}-{passes}" if passes > 2 else model
    tiny: dict[str, Run] = {}
    for task in TASKS[:2]:
        preset = f"tiny-{PREFIXES[task]}-{TINY_NAMES.get(model, model)}"
        other = passes > 1 and getattr(PRESETS[preset].model, "passes", passes) != passes
        tiny[task] = Run(preset, TINY_DATA[task], {"model.passes": passes} if other else {})
    tiny["Enwik8"] = Run(f"tiny-enwik8-{name}", TINY_DATA["Enwik8"])
    paper = {task: Run(f"{PREFIXES[task]}-{name}", PAPER_DATA[task]) for task in TASKS}
    return {
        scale: {task: found[task] for task in tasks if task in found}
        for scale, found in (("paper", paper), ("tiny", tiny))
    }


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
RESULTS: dict[str, tuple[str, dict[str, float]]] = {
    "LSTM": ("lstm", {"Random Walk": 0.6, "Algorithm": 1.0, "Enwik8": 1.38}),
    "Transformer-XL": (
        "xl",
        {"Random Walk": 84.1, "Algorithm": 48.7, "Enwik8": 1.15, "Reddit": 26.2, "BASE Data": 28.0},
    ),
    "Feedback Transformer": (
        "feedback",
        {"Random Walk": 0.1, "Algorithm": 0.2, "Enwik8": 1.12, "Reddit": 25.5, "BASE Data": 26.6},
    ),
    "Staircase": (
        "staircase",
        {"Random Walk": 0.1, "Algorithm": 0.2, "Enwik8": 1.14, "Reddit": 22.6, "BASE Data": 23.0},
    ),
    "Cached Staircase": (
        "cached-staircase",
        {"Random Walk": 0.1, "Algorithm": 1.2, "Enwik8": 1.13, "Reddit": 26.1, "BASE Data": 27.8},
    ),
}


def runs_of(label: str) -> dict[str, dict[str, Run]]:
    """Table 1's; its Staircase is on Reddit that of 8 steps, by Table 2."""
    model, paper = RESULTS[label]
    runs = on_tasks(model, *(task for task in TASKS if task in paper))
    if model == "staircase":
        runs["paper"]["Reddit"] = Run("reddit-staircase-8", REDDIT)
    return runs


TABLE_1 = Table(
    "Table 1: all models on all tasks",
    (*(replace(column, best=column.name in TASKS[:2]) for column in COLUMNS), *COMPUTE),
    tuple(Row(label, paper, runs_of(label)) for label, (_, paper) in RESULTS.items()),
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
STEPS = tuple(
    Row(label, {"Reddit": REDDIT_ROWS[label][1][2]}, on_tasks(model, *TASKS, passes=n), label.partition(",")[0], n)
    for label, model, n in (
        ("Transformer-XL", "xl", 0),
        ("Feedback Transformer", "feedback", 1),
        ("Cached Staircase", "cached-staircase", 1),
        *((f"Staircase, {n} steps", "staircase", n) for n in (2, 4, 8)),
    )
)
CURVES = "Of the other tasks than Reddit the paper has curves alone, without figures."

VALIDATION, TEST, TIME = "validation ppl", "test ppl", "batch time, ms"
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
    return {
        "paper": {"": Run(f"reddit-{model}", REDDIT)},
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
        STEPS,
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
    "staircase-table-2": over_presets("staircase, Table 2: recurrent steps", presets_of(TABLE_2), "reddit"),
    "staircase-table-3": over_presets("staircase, Table 3: forward sizes", presets_of(TABLE_3), "reddit"),
}
