"""Today's recurrent models beside those of the three papers, at equal sizes, data and tokens: one table over all of them.

    python -m pipelines.paper today table-1 --source pg19=FOLDER
    python -m pipelines.paper today figure-1                # recall over state tracking, State as the circle's area

At scale tiny all models have 576,000 parameters on text (within 0.3 %, embeddings included) and 50,000 on the tasks (within 4 %,
without them); models that read blocks of other lengths pad the ends of documents a little more or less. At scale paper those that
have 150M parameters read PG-19, as the rows of the block-recurrent paper do. There are no published results for such a table: each
number is ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.config.run import DataConfig, ModelSettings, TrainConfig
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
from studies.papers.block_recurrent import on_pg19
from studies.papers.staircase import TINY_DATA
from studies.papers.tables import PARAMETERS, Column, Data, Row, Run, Table
from studies.papers.tiny import tiny_run

SIZE: dict[str, Any] = {"d_model": 96, "heads": 3, "head_dim": 32, "dropout": 0.0}
WINDOWED: dict[str, Any] = {**SIZE, "window": 16}
CORE: dict[str, Any] = {**SIZE, "layers": 4, "mlp_dim": 484}
REC: dict[str, Any] = {**WINDOWED, "layers": 4, "recurrent_layers": (3,), "states": 16}
MIXERS: dict[str, Any] = {"d_model": 96, "window": 64}
DELTA: dict[str, Any] = {**MIXERS, "heads": 3, "key_dim": 24, "value_dim": 48}
MAMBA2: dict[str, Any] = {**MIXERS, "heads": 6, "key_dim": 18, "value_dim": 32}
ON_BYTES: dict[str, ModelSettings] = {
    "rec-fixed-skip": RecConfig(**REC, mlp_dim=424),
    "rec-lstm-skip": RecConfig(**REC, mlp_dim=376, gate="lstm"),
    "feedback": RecConfig(**REC, mlp_dim=352, feedback=True),
    "slide": SlideConfig(**WINDOWED, layers=5, mlp_dim=380),
    "xl": XLConfig(**SIZE, window=64, layers=5, mlp_dim=380),
    "memorizing": MemorizingConfig(**WINDOWED, layers=5, mlp_dim=380, memory=2048, top_k=32),
    "staircase": StaircaseConfig(**CORE, chunk=32, passes=2),
    "cached-staircase": CachedStaircaseConfig(**CORE, chunk=32, passes=1, chunks=3),
    "feedback-transformer": FeedbackTransformerConfig(**CORE, span=64, window=32),
    "universal-transformer": UniversalTransformerConfig(
        d_model=192, heads=6, head_dim=32, layers=1, mlp_dim=848, passes=4, span=64, window=32, dropout=0.0
    ),
    "lstm": LSTMConfig(layers=2, d_model=174, window=32, dropout=0.0),
    "delta": MixersConfig(**DELTA, layers=("delta",) * 4, mlp_dim=280),
    "delta-negative": MixersConfig(**DELTA, layers=("delta",) * 4, mlp_dim=280, negative_eigenvalues=True),
    "delta-two-keys": MixersConfig(
        **DELTA | {"value_dim": 32}, layers=("delta",) * 4, mlp_dim=268, negative_eigenvalues=True, householders=2
    ),
    "mamba2": MixersConfig(**MAMBA2, layers=("mamba2",) * 4, mlp_dim=268),
    "mlstm": MixersConfig(**DELTA, layers=("mlstm",) * 4, mlp_dim=284),
    "retention": MixersConfig(**DELTA, layers=("retention",) * 4, rotary=True, mlp_dim=286),
    "rwkv7": MixersConfig(**DELTA, layers=("rwkv7",) * 4, mlp_dim=296),
    "slstm": MixersConfig(**MIXERS, layers=("slstm",) * 4, heads=3, value_dim=32, mlp_dim=272),
    "rmt": RMTConfig(**SIZE, layers=4, window=32, mlp_dim=522, memory_tokens=16),
    "armt": ARMTConfig(**SIZE, layers=4, window=32, mlp_dim=468, memory_tokens=8, memory_dim=6, unit_keys=True),
    "delta-window": MixersConfig(**DELTA, layers=("delta", "delta", "window", "delta"), mlp_dim=304),
    "mamba2-window": MixersConfig(**MAMBA2, layers=("mamba2", "mamba2", "window", "mamba2"), mlp_dim=284),
}
"""Models by name, with 576,000 parameters on bytes. Block-recurrent ones are the demo's; the others see 64 bytes directly."""
BYTES = DataConfig(corpus="python-source", lanes=16, segment_length=256)
RATE = 4e-3
"""Learning rate on bytes. `--set optim.lr=8e-3` trains at another one, into runs of other names."""

LARGE: dict[str, Any] = {"d_model": 1024, "window": 512}
LARGE_DELTA: dict[str, Any] = {**LARGE, "heads": 8, "key_dim": 96, "value_dim": 192}
LARGE_MAMBA2: dict[str, Any] = {**LARGE, "heads": 32, "key_dim": 72, "value_dim": 64}
ON_PG19: dict[str, ModelSettings] = {
    "delta": MixersConfig(**LARGE_DELTA, layers=("delta",) * 12, mlp_dim=2384),
    "mamba2": MixersConfig(**LARGE_MAMBA2, layers=("mamba2",) * 12, mlp_dim=2320),
    "mlstm": MixersConfig(**LARGE, layers=("mlstm",) * 12, heads=8, key_dim=128, value_dim=144, mlp_dim=2608),
    "retention": MixersConfig(**LARGE_DELTA, layers=("retention",) * 12, rotary=True, mlp_dim=2384),
    "rwkv7": MixersConfig(**LARGE_DELTA, layers=("rwkv7",) * 12, mlp_dim=2536),
    "slstm": MixersConfig(**LARGE, layers=("slstm",) * 12, heads=8, value_dim=128, mlp_dim=2560),
    "delta-window": MixersConfig(**LARGE_DELTA, layers=("delta", "delta", "delta", "window") * 3, mlp_dim=2640),
    "mamba2-window": MixersConfig(**LARGE_MAMBA2, layers=("mamba2", "mamba2", "mamba2", "window") * 3, mlp_dim=2088),
}
"""Models by name, with slide's 164M parameters beside the embeddings, within 0.3 %. States of those without a window are equal
within 7 %, but for slstm's, which are vectors.
"""
WIDER: dict[str, Any] = {"d_model": 1536, "window": 512}
WIDER_DELTA: dict[str, Any] = {**WIDER, "heads": 12, "key_dim": 96, "value_dim": 192}
WIDER_MAMBA2: dict[str, Any] = {**WIDER, "heads": 48, "key_dim": 72, "value_dim": 64}
ON_PG19_400M: dict[str, ModelSettings] = {
    "delta": MixersConfig(**WIDER_DELTA, layers=("delta",) * 16, mlp_dim=2352),
    "mamba2": MixersConfig(**WIDER_MAMBA2, layers=("mamba2",) * 16, mlp_dim=2288),
    "mlstm": MixersConfig(**WIDER, layers=("mlstm",) * 16, heads=12, key_dim=128, value_dim=144, mlp_dim=2672),
    "retention": MixersConfig(**WIDER_DELTA, layers=("retention",) * 16, rotary=True, mlp_dim=2352),
    "rwkv7": MixersConfig(**WIDER_DELTA, layers=("rwkv7",) * 16, mlp_dim=2568),
    "slstm": MixersConfig(**WIDER, layers=("slstm",) * 16, heads=12, value_dim=128, mlp_dim=2688),
    "delta-window": MixersConfig(**WIDER_DELTA, layers=("delta", "delta", "delta", "window") * 4, mlp_dim=2728),
    "mamba2-window": MixersConfig(**WIDER_MAMBA2, layers=("mamba2", "mamba2", "mamba2", "window") * 4, mlp_dim=1920),
}
"""Models by name, with 400M parameters beside the embeddings, within 0.3 %."""
LARGE_HEADS: dict[str, Any] = {**LARGE, "heads": 8, "head_dim": 128, "dropout": 0.0}
WIDER_HEADS: dict[str, Any] = {**WIDER, "heads": 12, "head_dim": 128, "dropout": 0.0}
MEMORY_ON_PG19: dict[str, ModelSettings] = {
    "rmt": RMTConfig(**LARGE_HEADS, layers=12, memory_tokens=128, mlp_dim=4600),
    "armt": ARMTConfig(**LARGE_HEADS, layers=12, memory_tokens=64, memory_dim=48, unit_keys=True, mlp_dim=4048),
    "rmt-400M": RMTConfig(**WIDER_HEADS, layers=14, memory_tokens=128, mlp_dim=6224),
    "armt-400M": ARMTConfig(**WIDER_HEADS, layers=14, memory_tokens=64, memory_dim=64, unit_keys=True, mlp_dim=5392),
}
"""Memory tokens at both sizes: as many as in the small presets for each token of a block."""
PRESETS: dict[str, TrainConfig] = {
    **{f"tiny-bytes-{name}": tiny_run(model, BYTES, lr=RATE) for name, model in ON_BYTES.items()},
    **{f"pg19-mixers-{name}": on_pg19(model) for name, model in ON_PG19.items()},
    **{f"pg19-mixers-{name}-400M": on_pg19(model) for name, model in ON_PG19_400M.items()},
    **{f"pg19-{name}": on_pg19(model) for name, model in MEMORY_ON_PG19.items()},
}

SMALL = "--validation 500 --test 500 --segment-length 64"
HARD = "--length 32 --curriculum 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 4 4 4 4 4 4 4 4 8 8 8 8 16 16 32 --train 500000"
LONGER = f"--length 128 --curriculum {' '.join(map(str, range(3, 25)))} --train 100000"
MANY_PAIRS = (
    "--vocabulary 256 --pairs 64 --length 256 --proportional --train 330000 "
    "--curriculum 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 8 8 8 8 8 8 8 8 16 16 16 16 32 32 64"
)
"""As many pairs in documents of each size. With an equal number of documents, each as long as the longest, and 512 symbols, no
model was more than a point ahead of a guess after 12M tokens."""
EXPRESSIONS = f"--length 64 --curriculum {' '.join(map(str, range(2, 21)))} --train 200000"


def recall(options: str) -> Data:
    """A task of associative recall."""
    return Data("mqar", options=tuple(f"{options} {SMALL}".split()))


TASK_DATA = {
    "walk": TINY_DATA["Random Walk"],
    "algorithm": TINY_DATA["Algorithm"],
    "arithmetic": Data("arithmetic", options=tuple(f"{EXPRESSIONS} {SMALL}".split())),
    "mqar": recall("--vocabulary 64 --pairs 4 --length 32 --train 200000"),
    "mqar-16": recall("--vocabulary 128 --pairs 16 --length 64 --curriculum 1 2 4 8 16 --train 200000"),
    "mqar-64": recall(MANY_PAIRS),
    "mqar-rewrites": recall("--vocabulary 64 --pairs 4 --rewrites 4 --length 32 --train 200000"),
    "permutation": Data("permutation", options=tuple(f"--group S3 --length 32 --train 100000 {SMALL}".split())),
    "permutation-longer": Data("permutation", options=tuple(f"--group S3 {LONGER} {SMALL}".split())),
    "permutation-parity": Data("permutation", options=tuple(f"--group S2 {LONGER} {SMALL}".split())),
    "permutation-a5": Data("permutation", options=tuple(f"--group A5 {HARD} {SMALL}".split())),
    "permutation-s5": Data("permutation", options=tuple(f"--group S5 {HARD} {SMALL}".split())),
}
"""Data of each task at tiny scale, by its word in a preset's name."""

CODE = "code, bits per byte"
BOOKS = "PG-19, bits per byte"
TEXT = {CODE: Data("python-source", "bytes"), BOOKS: Data("pg19", "bytes", ("--newline", "normalize"))}
WALKS = "walks, % wrong"
PROGRAMS = "programs, % wrong"
S3 = "S3, % wrong"
A5 = "A5, % wrong"
S5 = "S5, % wrong"
PARITY = "parity, % wrong"
ARITHMETIC = "arithmetic, % wrong"
RECALL = "MQAR 16, % wrong"
TASKS = {
    WALKS: "walk",
    PROGRAMS: "algorithm",
    S3: "permutation-longer",
    A5: "permutation-a5",
    S5: "permutation-s5",
    PARITY: "permutation-parity",
    ARITHMETIC: "arithmetic",
    "MQAR 4, % wrong": "mqar",
    RECALL: "mqar-16",
    "MQAR 64, % wrong": "mqar-64",
    "rewriting, % wrong": "mqar-rewrites",
}
NAMES = "names"
"""The run behind the columns of names."""
STATE = Column("State, bytes a lane", "state_bytes", of=CODE, form=",.0f")
COLUMNS = (
    Column(CODE, "bits_per_byte", of=CODE),
    Column(BOOKS, "bits_per_byte", of=BOOKS),
    Column("code, worth of states", "states_cleared", of=CODE),
    Column("PG-19, worth of states", "states_cleared", of=BOOKS),
    *(Column(name, "error_percent", of=name, form=".1f") for name in TASKS),
    *(
        Column(f"names after {windows} windows, % wrong", "names_wrong", of=NAMES, windows=windows, form=".0f")
        for windows in (10, 24)
    ),
    Column("tokens/s in training", "tokens_per_second", of=CODE, form=",.0f"),
    STATE,
    Column("tokens/s written", "written_per_second", of=CODE, form=",.0f"),
    replace(PARAMETERS, of=CODE),
)
LABELS = {
    "rec-fixed-skip": "rec, fixed:skip",
    "rec-lstm-skip": "rec, lstm:skip",
    "feedback": "rec, feedback",
    "cached-staircase": "cached staircase",
    "feedback-transformer": "feedback transformer",
    "universal-transformer": "universal transformer",
    "delta-negative": "delta, negative eigenvalues",
    "delta-two-keys": "delta, two keys",
    "delta-window": "delta + window",
    "mamba2-window": "mamba2 + window",
}
"""Labels of rows by their presets' names, where they differ from them."""
AS_ON_TASKS = {"rec-lstm-skip": "rec-lstm-dual", "xl": "transformer-xl"}
"""Rows whose model on the tasks is the nearest one that was tuned there."""
AS_ON_NAMES = {"rec-fixed-skip": "rec-fixed", "rec-lstm-skip": "rec"}
"""Rows whose model on names has another name."""
AT_150M = {"rec-fixed-skip": "rec-fixed-skip", "rec-lstm-skip": "rec-lstm-skip", "feedback": "feedback-fixed-skip"}
AT_150M |= {"slide": "slide-13L", "xl": "xl-2048", "memorizing": "memorizing-64k", "rmt": "rmt", "armt": "armt"}
AT_150M |= {name: f"mixers-{name}" for name in ON_PG19}


def row(name: str) -> Row:
    """A model on text, on the tasks and on names; on PG-19 at the paper's scale where there is a preset."""
    tiny = {column: Run(f"tiny-bytes-{name}", data) for column, data in TEXT.items()}
    model = AS_ON_TASKS.get(name, name)
    tiny |= {column: Run(f"tiny-{task}-{model}", TASK_DATA[task]) for column, task in TASKS.items()}
    tiny[NAMES] = Run(f"recall-{AS_ON_NAMES.get(name, name)}", Data("names", "bytes"))
    runs = {"tiny": tiny}
    if name in AT_150M:
        runs["paper"] = {BOOKS: Run(f"pg19-{AT_150M[name]}", TEXT[BOOKS])}
    label = LABELS.get(name, name)
    return Row(label, {}, runs, label)


NOTE = {
    "tiny": "On text, models of 576,000 parameters, embeddings included, read 4.1 million bytes, at a learning rate of 0.004 "
    "where no others were tried. On the tasks, models of 50,000 parameters beside embeddings read as many tokens as their "
    "presets say; rec, lstm:skip is there the cell `dual`, and xl a Transformer-XL. Names are asked of models of 167,000 "
    "parameters, embeddings included, which read windows of 16 bytes. The worth of states is what clearing the recurrent "
    "states, or the memory, at each segment costs, in bits per byte; models that carry keys and values alone have none. "
    "State is that of the models on text, in float32. Speeds are those of one thread. Empty cells were not run.",
    "paper": "150M parameters beside the embeddings, on PG-19 in bytes. Empty cells were not run.",
}
ROWS = tuple(map(row, ON_BYTES))
DRAWN = (RECALL, S3, STATE.name)


def drawn(whole: Row) -> Row:
    """A row of the figure: only the runs behind its three columns, the tiny ones at both scales."""
    runs = {key: run for key, run in whole.runs["tiny"].items() if key in (RECALL, S3, STATE.of)}
    return replace(whole, runs={"tiny": runs, "paper": runs})


TABLES = {
    "table-1": Table("Table 1: today's recurrent models beside the papers'", COLUMNS, ROWS, note=NOTE),
    "figure-1": Table(
        "Figure 1: recall over state tracking",
        tuple(column for column in COLUMNS if column.name in DRAWN),
        tuple(map(drawn, ROWS)),
        x=S3,
        size=STATE.name,
        sized="area",
        note={scale: f"{NOTE['tiny']} The figure is the same at either scale." for scale in NOTE},
    ),
}
