"""Tables 1 to 5, section 4.3 and Figures 3 to 7 of "Block-Recurrent Transformers" (Hutchins et al. 2022).

groups.py says which presets belong to which table.

All rows read 131,072 tokens in a step, whatever their segment: as many lanes as that takes (section 4.1); GitHub four times
as many. The vocabulary is that of the store: Table 1 has T5's of 32k for PG-19 and LaMDA's of 32k for the others, Table 4 a
SentencePiece one of 32k trained on PG-19, and Table 1's column of bytes is the pg19 rows on a store prepared with
`--tokenizer bytes`. Settings are those of Appendix C.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.config.run import CheckpointConfig, DataConfig, ModelSettings, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import MemorizingConfig, RecConfig, SlideConfig, XLConfig
from studies.papers.sweeps import over_presets, presets_of, stores
from studies.papers.tables import PARAMETERS, Column, Data, Metric, Row, Run, Table
from studies.papers.tiny import THIRTY_SECOND, tiny_block_recurrent
from tune_spaces import Space

TOKENS_PER_STEP = 32 * 4096


def on_pg19(model: ModelSettings) -> TrainConfig:
    """This model on PG-19, by default 150M parameters: Adafactor, a rate that rises to 0.0316 over 1,000 steps, then 1/√step."""
    # Models that carry keys and values alone have segments of one window.
    segment = model.window if isinstance(model, (XLConfig, MemorizingConfig)) else 4096
    return TrainConfig(
        model=model,
        data=DataConfig(corpus="pg19", lanes=TOKENS_PER_STEP // segment, segment_length=segment),
        optim=OptimConfig(name="adafactor", lr=1.0, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=0.0),
        schedule=ScheduleConfig(name="inverse-sqrt", warmup_steps=1000),
        steps=500_000,
        num_workers=32,
        validate_every=5000,
        validate_tokens=1_000_000,
        checkpoint=CheckpointConfig(every=1000),
    )


def cosine(config: TrainConfig, lr: float) -> TrainConfig:
    """The same run with a cosine schedule, from ``lr`` to a tenth of it."""
    schedule = ScheduleConfig(name="cosine", warmup_steps=1000, min_lr_ratio=0.1)
    return replace(config, optim=replace(config.optim, lr=lr), schedule=schedule)


def on_arxiv(config: TrainConfig) -> TrainConfig:
    """The run on arXiv, at half the rate: longer segments were unstable."""
    return replace(config, data=replace(config.data, corpus="arxiv"), optim=replace(config.optim, lr=0.5))


def on_github(config: TrainConfig) -> TrainConfig:
    """The run on GitHub: four times the lanes against the noise, half the steps, a cosine schedule from 0.005."""
    data = replace(config.data, corpus="github", lanes=4 * config.data.lanes)
    return replace(cosine(config, lr=0.005), data=data, steps=250_000)


NORMALIZED = ("--newline", "normalize")
MATHEMATICS = ("--subject", "math")
"""The paper's arXiv has the articles labelled Mathematics alone (section 4)."""
TINY_TOKENS = "sentencepiece:4000"
DATA = {
    "paper": {
        "PG19 bytes": Data("pg19", "bytes"),
        "PG19 tokens": Data("pg19", "FOLDER/t5.model", vocabulary=32_001),
        "arXiv": Data("arxiv", "sentencepiece:32000", MATHEMATICS),
        "GitHub": Data("github", "sentencepiece:32000"),
    },
    "tiny": {
        "PG19 bytes": Data("pg19", "bytes", NORMALIZED),
        "PG19 tokens": Data("pg19", TINY_TOKENS, NORMALIZED),
        "arXiv": Data("arxiv", TINY_TOKENS, MATHEMATICS),
        "GitHub": Data("python-source", TINY_TOKENS),
    },
}
"""Data by scale and column. The paper has T5's vocabulary for PG-19; SentencePiece's replaces LaMDA's, which is not published."""
OWN = {"paper": Data("pg19", "sentencepiece:32000"), "tiny": DATA["tiny"]["PG19 tokens"]}
"""A vocabulary trained on PG-19: the scaling study's."""
PREFIXES = {"paper": "pg19-", "tiny": "tiny-pg19-"}


def runs(name: str, *of: str) -> dict[str, dict[str, Run]]:
    """Runs of the preset ``name`` on the corpora ``of``, at both scales."""
    return {
        "paper": {key: Run(f"{DATA['paper'][key].corpus}-{name}", DATA["paper"][key]) for key in of},
        "tiny": {key: Run(f"{PREFIXES['tiny']}{name}", DATA["tiny"][key]) for key in of},
    }


def on(name: str, data: dict[str, Data]) -> dict[str, dict[str, Run]]:
    """Runs of the PG-19 preset ``name`` on ``data``, by scale."""
    return {scale: {"PG19": Run(f"{PREFIXES[scale]}{name}", data[scale])} for scale in data}


FEEDBACK_LSTM = RecConfig(gate="lstm", cell="single", feedback=True)
FEEDBACK_FIXED = RecConfig(gate="fixed", cell="skip", feedback=True)
# By label: the preset's name without the corpus, the model, then relative step time and bits per token by corpus. If the last
# number is missing, the paper has a dash for GitHub. Error bars of PG19 tokens are 0.01 where the paper has them.
MODELS: dict[str, tuple[str, ModelSettings, tuple[float, ...]]] = {
    "XL:512": ("xl-512", XLConfig(window=512), (0.88, 1.01, 3.62, 1.45, 1.21)),
    "XL:1024": ("xl-1024", XLConfig(window=1024), (1.20, 0.997, 3.59, 1.37, 1.08)),
    "XL:2048": ("xl-2048", XLConfig(window=2048), (2.11, 0.990, 3.58, 1.31, 1.01)),
    "Slide:12L": ("slide-12L", SlideConfig(layers=12), (0.93, 0.989, 3.60, 1.43, 1.19)),
    "Slide:13L": ("slide-13L", SlideConfig(layers=13), (1.00, 0.989, 3.58, 1.42, 1.17)),
    "Rec:lstm:dual": ("rec-lstm-dual", RecConfig(gate="lstm", cell="dual"), (1.06, 0.985, 3.54, 1.26, 1.01)),
    "Rec:lstm:single": ("rec-lstm-single", RecConfig(gate="lstm", cell="single"), (1.05, 0.962, 3.54, 1.29, 1.03)),
    "Rec:lstm:skip": ("rec-lstm-skip", RecConfig(gate="lstm", cell="skip"), (1.00, 0.969, 3.56, 1.31, 1.10)),
    "Rec:fixed:dual": ("rec-fixed-dual", RecConfig(gate="fixed", cell="dual"), (1.01, 0.957, 3.52, 1.27, 0.991)),
    "Rec:fixed:single": ("rec-fixed-single", RecConfig(gate="fixed", cell="single"), (1.02, 0.966, 3.58, 1.25, 1.00)),
    "Rec:fixed:skip": ("rec-fixed-skip", RecConfig(gate="fixed", cell="skip"), (0.99, 0.952, 3.53, 1.24, 0.976)),
    "Feedback:lstm:single": ("feedback-lstm-single", FEEDBACK_LSTM, (1.40, 0.977, 3.50, 1.22)),
    "Feedback:fixed:skip": ("feedback-fixed-skip", FEEDBACK_FIXED, (1.35, 0.935, 3.49, 1.24)),
    "Memorizing Trans. 64k": ("memorizing-64k", MemorizingConfig(memory=65_536), (1.94, 0.950, 3.53, 1.22)),
}
CORPORA = ("PG19 bytes", "PG19 tokens", "arXiv", "GitHub")


def row_of_table_1(label: str) -> Row:
    preset, _, numbers = MODELS[label]
    paper = dict(zip(("step time", *CORPORA), numbers, strict=False))
    return Row(label, paper, runs(preset, *(corpus for corpus in CORPORA if corpus in paper)))


def column_of_table_1(corpus: str, metric: Metric, form: str, suffix: str = "") -> Column:
    """A column of Table 1, measured on the split that the paper reports (Appendix C)."""
    split = "validation" if corpus == "GitHub" else "test"
    return Column(f"{corpus}{suffix}", metric, of=corpus, split=split, form=form)


PIECES = "Tokens that are not bytes are of 4,000 pieces; GitHub is the standard library's source."
T5 = "PG-19's tokens are of T5's 32,000 pieces, as in the paper."
OWN_PIECES = "Tokens are of SentencePiece's 32,000 pieces, trained on PG-19 as the paper's are."
LAMDA = (
    "arXiv's and GitHub's are of SentencePiece's 32,000, trained on each: the paper has LaMDA's, which is not published, so that "
    "bits per token of these two do not compare with the paper's."
)
EMBEDDINGS = "Our parameters have the embeddings, which the paper's counts leave out."
WORDS = "Words are those of the split that is read; of the whole test split PG-19's 6,966,499."


def notes(paper: str, *both: str, pieces: str = PIECES) -> dict[str, str]:
    """Notes on the paper's scale, and on ``both``; ``pieces`` describes the tiny scale's vocabulary."""
    return {"tiny": " ".join([THIRTY_SECOND, pieces, *both]), "paper": " ".join([paper, *both])}


TABLE_1 = Table(
    "Table 1: bits per token of each model",
    (
        Column("step time", "relative_time", form=".2f"),
        *(column_of_table_1(corpus, "bits_per_token", ".3f") for corpus in CORPORA),
        *(column_of_table_1(corpus, "parameters", ",.0f", ", parameters") for corpus in CORPORA),
        *(column_of_table_1(corpus, "states_cleared", "+.3f", ", states cleared") for corpus in CORPORA),
    ),
    tuple(map(row_of_table_1, MODELS)),
    base="Slide:13L",
    note=notes(
        f"{T5} {LAMDA}",
        "The paper's numbers are of the test split, GitHub's of the validation split.",
        f"{EMBEDDINGS} It has 151 to 164 million, its equations require 169 to 181 million of the dual and single cells.",
    ),
)

# Layers, word-level perplexity, parameters where they are known, and vocabulary; the preset of those that are the paper's own.
PUBLISHED: dict[str, tuple[int, float, float | None, int, str]] = {
    "Compressive Transformer": (36, 33.6, None, 32_000, ""),
    "Routing Transformer": (22, 33.2, 490e6, 98_000, ""),
    "Perceiver AR": (60, 28.9, 974.6e6, 32_000, ""),
    "Block-Recurrent, 650M": (24, 28.46, 650e6, 32_000, "scale-650M-rec"),
    "Block-Recurrent, 1.3B": (24, 26.50, 1.3e9, 32_000, "scale-1.3B-rec"),
}


def row_of_table_2(label: str) -> Row:
    *numbers, preset = PUBLISHED[label]
    known = zip(("layers", "word perplexity", "parameters", "vocabulary"), numbers, strict=True)
    paper = {name: number for name, number in known if number is not None}
    return Row(label, paper, on(preset, OWN) if preset else {})


TABLE_2 = Table(
    "Table 2: word-level perplexity on PG19, and others' published",
    (
        Column("layers", "layers", form=".0f"),
        Column("word perplexity", "word_perplexity", form=".2f"),
        PARAMETERS,
        Column("vocabulary", "vocabulary", form=",.0f"),
    ),
    tuple(map(row_of_table_2, PUBLISHED)),
    note=notes(OWN_PIECES, EMBEDDINGS, WORDS),
)

# Bits per token: by window, of Rec:fixed:skip and Slide:12L; by number of states, of Rec:fixed:skip. There are 512 states where the
# window changes, and a window of 512 where the states do.
WINDOWS = {128: (3.58, 3.69), 256: (3.54, 3.64), 512: (3.53, 3.60)}
STATES = {128: 3.54, 256: 3.535, 512: 3.53, 1024: 3.51, 2048: 3.55}
OF_WINDOWS = {
    **{f"pg19-rec-fixed-skip-window-{window}": on_pg19(RecConfig(window=window)) for window in WINDOWS},
    **{f"pg19-slide-12L-window-{window}": on_pg19(SlideConfig(window=window)) for window in WINDOWS},
}
OF_STATES = {f"pg19-rec-fixed-skip-states-{states}": on_pg19(RecConfig(states=states)) for states in STATES}
PG19 = {scale: DATA[scale]["PG19 tokens"] for scale in ("paper", "tiny")}
BITS = Column("bits per token", "bits_per_token")


def window_row(series: str, preset: str, window: int, bits: float) -> Row:
    fields = on(f"{preset}-window-{window}" if window != 512 else preset, PG19)
    return Row(f"{series}, window {window}", {"bits per token": bits}, fields, f"{series}, windows", window)


def states_row(states: int, bits: float) -> Row:
    name = "rec-fixed-skip" if states == 512 else f"rec-fixed-skip-states-{states}"
    return Row(f"Rec:fixed:skip, {states} states", {BITS.name: bits}, on(name, PG19), "Rec:fixed:skip, states", states)


TABLE_3 = Table(
    "Table 3: window size (a) and number of states (b) on PG19",
    (BITS, PARAMETERS, Column("states cleared", "states_cleared", form="+.3f")),
    (
        *(window_row("Rec:fixed:skip", "rec-fixed-skip", window, bits[0]) for window, bits in WINDOWS.items()),
        *(window_row("Slide:12L", "slide-12L", window, bits[1]) for window, bits in WINDOWS.items()),
        *(states_row(states, bits) for states, bits in STATES.items()),
    ),
    x="window or states",
    note=notes(
        T5, "There are 512 states where the window changes, and a window of 512 where the states do.", EMBEDDINGS
    ),
)

# By label: the preset's name without the corpus, and the model.
TWO_LAYERS = {
    "Rec:fixed:skip": ("rec-fixed-skip", RecConfig()),
    "Rec:fixed:skip, a layer more": ("rec-fixed-skip-13L", RecConfig(layers=13)),
    "Rec:fixed:skip, layers 9 and 10": ("rec-fixed-skip-layers-9-10", RecConfig(recurrent_layers=(9, 10))),
    "Rec:fixed:skip, layers 4 and 10": ("rec-fixed-skip-layers-4-10", RecConfig(recurrent_layers=(4, 10))),
}
IN_WORDS = (
    "The paper gives no number here: two recurrent layers next to each other (9 and 10) did not improve perplexity, and two that "
    "are far apart (4 and 10) did, but by no more than another layer without recurrence. It names neither gate nor corpus: "
    "fixed:skip and PG-19 are ours."
)
SECTION_4_3 = Table(
    "Section 4.3: two recurrent layers on PG19",
    (BITS, PARAMETERS, Column("states cleared", "states_cleared", form="+.3f")),
    tuple(Row(label, {}, on(preset, PG19)) for label, (preset, _) in TWO_LAYERS.items()),
    note=notes(T5, IN_WORDS, EMBEDDINGS),
)

# Layers, d, heads, head size and MLP; parameters, and bits per token of Rec:fixed:skip and XL:512:13-layer.
SCALES = {
    "40M": ((12, 512, 8, 64, 2048), (40.6e6, 3.96, 4.03)),
    "80M": ((12, 512, 8, 128, 4096), (81.2e6, 3.79, 3.86)),
    "150M": ((12, 1024, 8, 128, 4096), (162e6, 3.59, 3.67)),
    "325M": ((12, 1024, 16, 128, 8192), (325e6, 3.44, 3.51)),
    "650M": ((24, 1024, 16, 128, 8192), (650e6, 3.29, 3.39)),
    "1.3B": ((24, 2048, 16, 128, 8192), (1.3e9, 3.22, 3.31)),
}


def scaled(scale: str) -> dict[str, TrainConfig]:
    """The two rows of Table 4 at one size: recurrence on every tenth layer, and xl with one layer more in twelve."""
    (layers, d_model, heads, head_dim, mlp_dim), _ = SCALES[scale]
    size: dict[str, Any] = {"d_model": d_model, "heads": heads, "head_dim": head_dim, "mlp_dim": mlp_dim}
    rec = RecConfig(layers=layers, recurrent_layers=tuple(range(10, layers, 10)), **size)
    xl = XLConfig(layers=layers * 13 // 12, **size)
    return {
        f"pg19-scale-{scale}-rec": cosine(on_pg19(rec), lr=0.01),
        f"pg19-scale-{scale}-xl": cosine(on_pg19(xl), lr=0.01),
    }


def scale_row(series: str, name: str, scale: str, parameters: float, bits: float) -> Row:
    paper = {PARAMETERS.name: parameters, BITS.name: bits}
    return Row(f"{series}, {scale}", paper, on(f"scale-{scale}-{name}", OWN), series)


TABLE_4 = Table(
    "Table 4: bits per token on PG19 at various scales",
    (PARAMETERS, BITS),
    (
        *(scale_row("Rec:fixed:skip", "rec", name, size, bits) for name, (_, (size, bits, _)) in SCALES.items()),
        *(scale_row("XL:512:13-layer", "xl", name, size, bits) for name, (_, (size, _, bits)) in SCALES.items()),
    ),
    x="parameters",
    note=notes(
        f"{OWN_PIECES} The embeddings are 16.4 million at the two smallest scales, 65.5 million at the largest, else 32.8 million.",
        EMBEDDINGS,
    ),
)

# Tokens of the test split, tokens per word, bits per token, word-level perplexity. SPM is of SentencePiece, trained on PG19.
VOCABULARIES: dict[str, tuple[str, tuple[int, float, float, float]]] = {
    "T5 32k": ("FOLDER/t5.model", (10_523_460, 1.5106, 3.525, 40.08)),
    "LaMDA 32k": ("", (12_053_681, 1.7302, 3.121, 42.23)),
    "PG19 STE 32k": ("", (11_097_364, 1.5930, 3.352, 40.49)),
    "SPM 128k": ("sentencepiece:128000", (9_638_472, 1.3835, 3.830, 39.37)),
    "SPM 96k": ("sentencepiece:96000", (9_711_259, 1.3940, 3.801, 39.36)),
    "SPM 64k": ("sentencepiece:64000", (9_856_687, 1.4149, 3.766, 40.18)),
    "SPM 32k": ("sentencepiece:32000", (10_229_476, 1.4684, 3.647, 40.93)),
    "SPM 8k": ("sentencepiece:8000", (11_559_455, 1.6593, 3.289, 43.94)),
    "SPM 4k": ("sentencepiece:4000", (12_622_101, 1.8118, 3.021, 44.43)),
    "SPM 1k": ("sentencepiece:1000", (15_865_499, 2.2774, 2.477, 49.91)),
    "SPM 512": ("sentencepiece:512", (18_124_332, 2.6016, 2.125, 46.16)),
    "bytes": ("bytes", (41_288_269, 5.9267, 0.960, 51.61)),
}
TINY_VOCABULARIES = ("SPM 8k", "SPM 4k", "SPM 1k", "SPM 512", "bytes")
VOCABULARY_COLUMNS = (
    Column("token count", "tokens", form=",.0f"),
    Column("scale factor", "tokens_per_word", form=".4f"),
    BITS,
    Column("WLP", "word_perplexity", form=".2f"),
)


def vocabulary_row(label: str) -> Row:
    tokenizer, numbers = VOCABULARIES[label]
    known = 32_001 if tokenizer.startswith("FOLDER") else 0
    trained = {"paper": Data("pg19", tokenizer, vocabulary=known)} if tokenizer else {}
    trained |= {"tiny": Data("pg19", tokenizer, NORMALIZED)} if label in TINY_VOCABULARIES else {}
    paper = {column.name: number for column, number in zip(VOCABULARY_COLUMNS, numbers, strict=True)}
    series = label.partition(" ")[0] if label.startswith("SPM") else label
    return Row(label, paper, on("rec-fixed-skip", trained), series)


TABLE_5 = Table(
    "Table 5: Rec:fixed:skip with other vocabularies on PG19",
    VOCABULARY_COLUMNS,
    tuple(map(vocabulary_row, VOCABULARIES)),
    note=notes(
        "T5's pieces are the published ones; SPM's are trained on PG-19. The LaMDA vocabulary and STE are not to be had: "
        "their rows stay the paper's.",
        WORDS,
        pieces="Each row has the pieces that it names.",
    ),
)

PAIR = (Row("XL:512:13-layer", {}, on("scale-150M-xl", OWN)), Row("Rec:fixed:skip", {}, on("scale-150M-rec", OWN)))
UNSIZED = (
    "The paper gives no number for this figure, and names its models without a size: these are Table 4's of 162 million "
    "parameters, where XL:512:13-layer has 3.67 bits per token and Rec:fixed:skip 3.59."
)
TOKEN_BY_TOKEN = Table("", (BITS,), PAIR, note=notes(OWN_PIECES, UNSIZED))
FIVE_BOOKS = ("--documents", "5", "--per-document", "4", "--by", "token")
"""Appendix G: five books at random, and of each the four tokens that the recurrent model predicts better by most."""
TABLES = {
    **{f"table-{number}": table for number, table in enumerate((TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5), 1)},
    "section-4.3": SECTION_4_3,
    "figure-3": replace(TABLE_4, about="Figure 3: bits per token over parameters, Table 4's"),
    "figure-4": replace(
        TOKEN_BY_TOKEN,
        about="Figure 4: per-token loss of the recurrent model against Transformer-XL",
        tokens=("XL:512:13-layer", "Rec:fixed:skip"),
        token_words=FIVE_BOOKS,
    ),
    "figure-5": replace(
        TOKEN_BY_TOKEN,
        about="Figure 5: per-token loss with the states cleared at each segment",
        rows=PAIR[1:],
        tokens=("Rec:fixed:skip",),
        token_words=FIVE_BOOKS,
    ),
    "figure-6": replace(TOKEN_BY_TOKEN, about="Figure 6: cumulative cross-entropy", cumulative=True),
    "figure-7": replace(
        TABLE_5,
        about="Figure 7: scale factor and bits per token over the vocabulary, Table 5's",
        columns=(BITS, VOCABULARY_COLUMNS[1]),
        x="scale factor",
        rows=tuple(row for row in TABLE_5.rows if row.series == "SPM"),
    ),
}

OF_TABLE_1 = {preset: on_pg19(model) for preset, model, _ in MODELS.values()}
ON_GITHUB = [preset for preset, _, numbers in MODELS.values() if len(numbers) > len(CORPORA)]
ON_PG19 = {
    **{f"pg19-{preset}": run for preset, run in OF_TABLE_1.items()},
    **OF_WINDOWS,
    **OF_STATES,
    **{f"pg19-{preset}": on_pg19(model) for preset, model in TWO_LAYERS.values()},
    **{name: run for scale in SCALES for name, run in scaled(scale).items()},
}
PAPER_PRESETS = {
    **ON_PG19,
    **{f"arxiv-{preset}": on_arxiv(run) for preset, run in OF_TABLE_1.items()},
    **{f"github-{preset}": on_github(OF_TABLE_1[preset]) for preset in ON_GITHUB},
}
PRESETS = {**PAPER_PRESETS, **{f"tiny-{name}": tiny_block_recurrent(run.model) for name, run in ON_PG19.items()}}

DEFAULTS = {"preset": "pg19-rec-fixed-skip", "search": "grid"}  # of a sweep over a table
PER_BYTE = "validation/bits_per_byte"
SPACES = {
    "rec-table-1": over_presets("block-recurrent, Table 1: the models", presets_of(TABLE_1), **DEFAULTS),
    "rec-table-3-window": over_presets("block-recurrent, Table 3a: windows", OF_WINDOWS, **DEFAULTS),
    "rec-table-3-states": over_presets("block-recurrent, Table 3b: states", OF_STATES, **DEFAULTS),
    "rec-section-4.3": over_presets("block-recurrent, section 4.3: two recurrent layers", presets_of(SECTION_4_3)),
    "rec-table-4": over_presets("block-recurrent, Table 4: scales", presets_of(TABLE_4), **DEFAULTS),
    "rec-table-5": Space(
        "block-recurrent, Table 5: vocabularies, a store each", (), stores, **DEFAULTS, metric=PER_BYTE
    ),
}
