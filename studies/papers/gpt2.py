"""Tables 1 to 4 and Figures 4 and 5 of "Adding Recurrence to Pretrained Transformers" (Yoshida et al. 2020).

groups.py says which presets belong to which table.

The paper fine-tunes the published GPT-2 small: `--model.pretrained FOLDER` names its weights, and the store is prepared with its
tokenizer, of WikiText-103 in its raw form (`--form raw`). A new run of these rows is refused without that option;
`--model.pretrained none` begins with untrained weights. The tiny rows have sizes of their own, and begin untrained. The paper's
baseline is fine-tuned once and scored over windows of every overlap; with recurrence each overlap is trained (section 5). The
sweeps train both with each overlap.

Settings are those of section 5: windows of 300 tokens, backpropagation through 20 of them, Adam, a warm-up of 100 steps to a
constant rate, 2 epochs (of PG-19's first 1,250 books), validation every 2M tokens. The paper stops early: the checkpoint that is
the best on validation is scored. It mentions no limit on gradients: none is set, except in the tiny rows. It does not give the
learning rate, which it chose on WikiText-103, and the size of a batch: those here are usual for GPT-2 small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from pipelines.config.dotted import changes
from pipelines.config.run import CheckpointConfig, DataConfig, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import GPT2Config, GPT2RecConfig, LlamaConfig, LlamaRecConfig, Mamba2Config, ModelConfig
from recur_models.pretrained_config import DecoderConfig
from studies.papers.sweeps import over_presets
from studies.papers.tables import FLOPS_PER_TOKEN, Column, Data, Row, Run, Table
from studies.papers.tiny import tiny_run

# By corpus, model and overlap: perplexity per word on validation and test. Table 1 is of WikiText-103, Table 2 of PG-19.
PERPLEXITIES: dict[str, dict[str, dict[int, tuple[float, float]]]] = {
    "wikitext": {
        "gpt2": {0: (29.00, 30.47), 5: (27.99, 29.36), 10: (27.58, 28.88), 30: (26.72, 27.96), 50: (26.17, 27.31)},
        "gpt2-rec": {0: (27.70, 29.01), 5: (26.88, 28.12), 10: (26.51, 27.77), 30: (25.90, 27.12), 50: (25.53, 26.73)},
    },
    "pg19": {
        "gpt2": {
            0: (172.25, 147.71), 5: (165.93, 142.30), 10: (162.66, 139.49), 30: (156.21, 134.30), 50: (152.64, 131.25),
            75: (149.54, 128.46), 100: (147.05, 126.51), 150: (143.62, 123.53), 200: (141.14, 121.40),
        },
        "gpt2-rec": {
            0: (155.27, 133.02), 5: (150.00, 128.78), 10: (147.53, 127.05), 30: (142.35, 122.22), 50: (140.10, 119.93),
        },
    },
}  # fmt: skip
FLOPS = {0: 1.75e8, 5: 1.78e8, 10: 1.81e8, 30: 1.94e8, 50: 2.10e8, 75: 2.33e8, 100: 2.62e8, 150: 3.50e8, 200: 5.25e8}
"""FLOPs per token by overlap, for windows of 300: layers and attention, without the output layer."""
KINDS: dict[str, type[DecoderConfig]] = {
    config.name: config for config in (GPT2Config, GPT2RecConfig, LlamaConfig, LlamaRecConfig)
}
SERIES = {"gpt2": "GPT-2", "gpt2-rec": "Recurrent"}
"""Names of the models in the tables."""
RAW = ("--form", "raw")
"""Section 5: the WikiText-103 whose rare words are not replaced."""
FIRST_BOOKS = ("--books", "1250", "--validation-tokens", "15000")
"""Section 5: PG-19's first 1,250 books to train on, and the beginning of each validation book."""
DATA = {
    "paper": {
        "wikitext": Data("wikitext", "gpt2", RAW, vocabulary=50_258, of_pretrained=True),
        "pg19": Data("pg19", "gpt2", FIRST_BOOKS, vocabulary=50_258, of_pretrained=True),
    },
    "tiny": {
        "wikitext": Data("wikitext", "sentencepiece:4000", RAW),
        "pg19": Data("pg19", "sentencepiece:4000", ("--newline", "normalize")),
    },
}


class Epoch(NamedTuple):
    """A pass over the training split."""

    tokens: int
    documents: int


EPOCHS = {"wikitext": Epoch(118_000_000, 28_475), "pg19": Epoch(116_500_000, 1250)}
"""In GPT-2's tokens: WikiText-103, and 1,250 books of PG-19 with 69,000 words each (section 5), at 1.35 tokens a word."""
WINDOWS = 20
LANES = 8
VALIDATED_TOKENS = 2_000_000
"""Tokens between validations (section 5)."""
TINY_TOKENS = 5_000_000
TINY_SHARE = 5
"""Divisor of windows and overlaps."""


def two_epochs(corpus: str, block: int) -> int:
    """Steps for two passes over the corpus. A document's last block is padded, by half a block on average."""
    epoch = EPOCHS[corpus]
    padded = epoch.tokens + epoch.documents * block // 2
    return round(2 * padded / (LANES * WINDOWS * block))


def fine_tuned(model: ModelConfig, corpus: str) -> TrainConfig:
    """This model, fine-tuned on the corpus."""
    segment = WINDOWS * model.block
    every = VALIDATED_TOKENS // (LANES * segment)
    return TrainConfig(
        model=model,
        data=DataConfig(corpus=corpus, lanes=LANES, segment_length=segment),
        optim=OptimConfig(name="adamw", lr=5e-5, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=0.0),
        schedule=ScheduleConfig(name="constant", warmup_steps=100),
        steps=two_epochs(corpus, model.block),
        num_workers=1,
        recompute="block",
        validate_every=every,
        validate_tokens=0,
        checkpoint=CheckpointConfig(every=every),
    )


def tiny(config: TrainConfig) -> TrainConfig:
    """The row at the tiny scale: 4 layers, windows and overlaps a fifth as long, and as many windows in a segment."""
    model: Any = config.model
    sizes: dict[str, Any] = {"layers": 4, "d_model": 96, "heads": 3, "mlp_dim": 384, "positions": 205, "dropout": 0.0}
    if isinstance(model, GPT2RecConfig):
        sizes["hidden"] = (64, 64, 64)
    model = replace(model, window=model.window // TINY_SHARE, overlap=model.overlap // TINY_SHARE, **sizes)
    segment = WINDOWS * model.block
    data = replace(config.data, lanes=4, segment_length=segment)
    return tiny_run(model, data, lr=4e-3, steps=TINY_TOKENS // (4 * segment))


def config_of(corpus: str, name: str, overlap: int, window: int = 300) -> TrainConfig:
    """A model fine-tuned with this overlap and window, at the paper's scale."""
    return fine_tuned(KINDS[name](window=window, overlap=overlap), corpus)


ROWS = {
    f"{corpus}-{name}-overlap-{overlap}": config_of(corpus, name, overlap)
    for corpus, models in PERPLEXITIES.items()
    for name, overlaps in models.items()
    for overlap in overlaps
}
LLAMAS = {f"pg19-{name}-overlap-50": config_of("pg19", name, 50) for name in ("llama", "llama-rec")}
MAMBA2 = replace(fine_tuned(Mamba2Config(window=128), "pg19"), recompute="layer")
"""A pretrained Mamba-2 on the same books, over segments of 2,560 tokens with its State carried: the paper has none."""
SMOLLM2_TOKENS = 2_000_000
OF_EACH_LAYER: dict[str, Any] = {"source": "layer", "insert_layer": 5, "hidden": (200,)}
"""An h_prev for each layer from the fifth on, which the paper does not have. Beginning at layer 2 or 3 raises the untrained
SmolLM2's loss (results/pretrained)."""


def on_two_cores(config: TrainConfig) -> TrainConfig:
    """The row with SmolLM2-135M at a size that two cores train in hours: two lanes of ten windows each.

    3e-5 was the best of three rates for SmolLM2 over windows of 300, and was not searched for elsewhere. The recurrence, whose
    parameters are new, has 30 times that.
    """
    segment = 10 * config.model.block
    steps = SMOLLM2_TOKENS // (2 * segment)
    every = steps // 40
    return replace(
        config,
        data=replace(config.data, lanes=2, segment_length=segment),
        optim=replace(
            config.optim,
            lr=3e-5,
            recurrent_lr_scale=30.0 if isinstance(config.model, LlamaRecConfig) else 1.0,
            max_grad_norm=1.0,
        ),
        steps=steps,
        num_workers=0,
        recompute="nothing",
        validate_every=4 * every,  # so that each validated step has a checkpoint
        validate_tokens=20_000,
        checkpoint=CheckpointConfig(every=every),
    )


SMOLLM2 = {
    "smollm2": on_two_cores(config_of("pg19", "llama", 0, window=100)),
    "smollm2-rec": on_two_cores(config_of("pg19", "llama-rec", 0, window=100)),
    "smollm2-rec-layers": on_two_cores(fine_tuned(LlamaRecConfig(window=100, **OF_EACH_LAYER), "pg19")),
}
PRESETS = {
    **ROWS,
    **LLAMAS,
    **SMOLLM2,
    "pg19-mamba2": MAMBA2,
    **{f"tiny-{name}": tiny(run) for name, run in ROWS.items()},
}


def run_of(preset: str, config: TrainConfig, data: Data, scored: int) -> Run:
    """The run of ``config`` as its differences from a preset. ``scored``: overlap in scoring; 0 for that of training."""
    read = {"overlap": scored} if scored else {}
    return Run(preset, data, changes(config, PRESETS[preset]), read, checkpoint="best")


def trained(corpus: str, name: str, overlap: int = 0, scored: int = 0, window: int = 300) -> dict[str, dict[str, Run]]:
    """Runs of a model, fine-tuned with this overlap and window. ``scored``: as for `run_of`."""
    preset = f"{corpus}-{name}-overlap-{overlap}"
    config = config_of(corpus, name, overlap, window)
    return {
        "paper": {"": run_of(preset, config, DATA["paper"][corpus], scored)},
        "tiny": {"": run_of(f"tiny-{preset}", tiny(config), DATA["tiny"][corpus], scored // TINY_SHARE)},
    }


VALIDATION = "validation perplexity"
TEST = "test perplexity"
COLUMNS = (
    Column(VALIDATION, "word_perplexity", split="validation", form=".2f"),
    Column(TEST, "word_perplexity", form=".2f"),
    FLOPS_PER_TOKEN,
)


def row_of(corpus: str, name: str, overlap: int) -> Row:
    """The row of Table 1 or 2: the baseline scored with this overlap, the recurrent model trained with it."""
    validation, test = PERPLEXITIES[corpus][name][overlap]
    paper = {VALIDATION: validation, TEST: test, FLOPS_PER_TOKEN.name: FLOPS[overlap]}
    runs = trained(corpus, name, scored=overlap) if name == "gpt2" else trained(corpus, name, overlap)
    return Row(f"{SERIES[name]}, overlap {overlap}", paper, runs, SERIES[name])


def rows(corpus: str) -> tuple[Row, ...]:
    """Rows of Table 1 or 2: GPT-2's by overlap, then those with recurrence."""
    return tuple(
        row_of(corpus, name, overlap) for name in PERPLEXITIES[corpus] for overlap in PERPLEXITIES[corpus][name]
    )


FIFTH = (
    "Windows and overlaps are a fifth of the paper's, which the labels name, of 4 layers and d 96; the weights begin untrained, "
    "and the vocabulary has 4,000 pieces. Perplexity is per word."
)
COUNTED = "FLOPs are those of layers and attention, without the output layer."
ROUNDED = (
    "Our FLOPs are counted exactly; the paper's are a rounded 1.75e8 times window / (window − overlap), 0.2 % less."
)
NOTE = {
    "tiny": f"{FIFTH} {COUNTED}",
    "paper": "Tokens are GPT-2's 50,257 and begin-of-document. Perplexity is per word. The paper does not say its rates and "
    f"batches: these are ours. {COUNTED} {ROUNDED}",
}


def continuations(about: str, seed: int) -> Table:
    """Passages of PG-19's validation split that Table 2's recurrent model without overlap continues; ``seed`` draws them."""
    row = Row("Recurrent, overlap 0", {}, trained("pg19", "gpt2-rec"), "Recurrent")
    words = ("--places", "4", "--blocks", "1", "--seed", str(seed))
    note = {scale: f"{known} {CHOSEN}" for scale, known in NOTE.items()}
    return Table(about, COLUMNS[:1], (row,), continued=words, note=note)


def sized(series: str, name: str, window: int, scored: int = 0) -> Row:
    """The row of a model trained on PG-19 with this window. ``scored``: overlap in scoring, of the baseline."""
    runs = trained("pg19", name, scored=scored, window=window)
    return Row(f"{series}, window {window}", {}, runs, series, window)


SIZES = (200, 300, 400, 500, 600)
BY_WINDOW = (
    *(sized("GPT-2", "gpt2", window) for window in SIZES),
    *(sized("Recurrent", "gpt2-rec", window) for window in SIZES),
)
CURVES = "The paper has this as curves alone, without numbers."
WIDER = (5, 10, 30, 50)
"""Overlaps of Figure 5's further baseline curves: Table 1's, since that of 50 has the figure's lowest perplexity (section 5.2)."""
OVERLAPPED = (
    "The paper's text mentions the baseline's overlaps 30 and 50; 5 and 10 are the others of Table 1. The recurrent models have no "
    "overlap here."
)
CHOSEN = (
    "The paper gives no number here; its model is Table 2's recurrent one without overlap, which has a validation perplexity of "
    "155.27 there. The paper's passages are samples that show what the recurrence passes on, and it does not say where they are "
    "from. Ours are drawn at random. As in the paper, one window is read before each, and the likeliest token is written each time."
)
SMOLLM2_DATA = Data(
    "pg19",
    "smollm2",
    ("--newline", "normalize", "--validation-tokens", "15000"),
    vocabulary=49_153,
    of_pretrained=True,
)
SMOLLM2_WINDOWS = (100, 200, 300)
SMOLLM2_OVERLAPS = (0, *WIDER)


def of_smollm2(window: int, overlap: int = 0, recurrent: bool = False, variant: str = "", **model: Any) -> Row:
    """SmolLM2 with this window: the baseline trained without overlap and scored with it, the recurrent model trained with it.

    ``model``: fields that differ from the paper's; ``variant``: their description in the label.
    """
    kind = "llama-rec" if recurrent else "llama"
    trained_overlap = overlap if recurrent else 0
    scored = 0 if recurrent else overlap
    config = fine_tuned(KINDS[kind](window=window, overlap=trained_overlap, **model), "pg19")
    tiny_preset = "smollm2-rec" if recurrent else "smollm2"
    if "source" in model:
        tiny_preset = "smollm2-rec-layers"
    runs = {
        "paper": {"": run_of(f"pg19-{kind}-overlap-50", config, SMOLLM2_DATA, scored)},
        "tiny": {"": run_of(tiny_preset, on_two_cores(config), SMOLLM2_DATA, scored)},
    }
    name = "Recurrent" if recurrent else "SmolLM2"
    series = ", ".join(filter(None, (name, variant, f"window {window}")))
    return Row(f"{series}, overlap {overlap}", {}, runs, series)


SMOLLM2_ROWS = (
    *(of_smollm2(window, overlap) for window in SMOLLM2_WINDOWS for overlap in SMOLLM2_OVERLAPS),
    *(of_smollm2(window, overlap, recurrent=True) for window in SMOLLM2_WINDOWS for overlap in SMOLLM2_OVERLAPS),
    *(
        of_smollm2(window, recurrent=True, variant="pretrained weights frozen", trained="recurrence")
        for window in SMOLLM2_WINDOWS
    ),
    *(
        of_smollm2(window, overlap, recurrent=True, variant="h_prev of each layer", **OF_EACH_LAYER)
        for window in SMOLLM2_WINDOWS
        for overlap in SMOLLM2_OVERLAPS
    ),
    *(
        of_smollm2(
            window,
            recurrent=True,
            variant="h_prev of each layer, pretrained weights frozen",
            trained="recurrence",
            **OF_EACH_LAYER,
        )
        for window in SMOLLM2_WINDOWS
    ),
)
SMOLLM2_NOTE = (
    "`--set model.pretrained=smollm2` names SmolLM2-135M's folder (docs/guide-pretrained.md); the store has its 49,152 pieces. "
    "Perplexity is per word. On validation, the paper's GPT-2 small has 172.25 without recurrence and 155.27 with it, over windows "
    "of 300 without overlap."
)
TABLES = {
    "table-1": Table("Table 1: WikiText-103, windows of 300 tokens", COLUMNS, rows("wikitext"), note=NOTE),
    "table-2": Table("Table 2: PG-19, windows of 300 tokens", COLUMNS, rows("pg19"), note=NOTE),
    "table-3": continuations(
        "Table 3: continuations of PG-19 validation passages (the paper's keep the topic)", seed=0
    ),
    "table-4": continuations(
        "Table 4: continuations of PG-19 validation passages (the paper's keep the characters)", seed=1
    ),
    "figure-4": Table(
        "Figure 4: perplexity over the window's size, PG-19 validation",
        COLUMNS[:1],
        BY_WINDOW,
        x="window",
        note={scale: f"{note} {CURVES}" for scale, note in NOTE.items()},
    ),
    "figure-5": Table(
        "Figure 5: perplexity over FLOPs, PG-19 validation, windows of 200 to 600",
        (COLUMNS[0], COLUMNS[2]),
        (
            *BY_WINDOW,
            *(sized(f"GPT-2 overlap {overlap}", "gpt2", window, overlap) for overlap in WIDER for window in SIZES),
        ),
        x="FLOPs/token",
        note={scale: f"{note} {CURVES} {OVERLAPPED}" for scale, note in NOTE.items()},
    ),
    "smollm2": Table(
        "SmolLM2-135M over FLOPs, PG-19, windows of 100 to 300",
        COLUMNS,
        SMOLLM2_ROWS,
        x=FLOPS_PER_TOKEN.name,
        note={
            "tiny": f"{SMOLLM2_NOTE} By its preset each run reads 2 million tokens. {COUNTED}",
            "paper": f"{SMOLLM2_NOTE} {COUNTED}",
        },
    ),
}

# Each row trained with its own overlap, the baseline's too.
SPACES = {
    "gpt2-table-1": over_presets(
        "GPT-2 with recurrence, Table 1: overlaps, WikiText-103", [name for name in ROWS if name.startswith("wikitext")]
    ),
    "gpt2-table-2": over_presets(
        "GPT-2 with recurrence, Table 2: overlaps, PG-19", [name for name in ROWS if name.startswith("pg19")]
    ),
}
