"""Tables 1 to 5, section 4.3 and Figures 3 to 7 of "Block-Recurrent Transformers" (Hutchins et al. 2022)."""

from __future__ import annotations

from dataclasses import replace

from pipelines.presets.block_recurrent import TABLE_3 as X
from studies.papers.sweeps import over_presets, presets_of, stores
from studies.papers.tables import PARAMETERS, Column, Data, Figure, Row, Run, Table
from tune_spaces import Space

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
"""T5's vocabulary is the paper's for PG-19, and LaMDA's for the others, which is not published: SentencePiece's of that size."""
OWN = {"paper": Data("pg19", "sentencepiece:32000"), "tiny": DATA["tiny"]["PG19 tokens"]}
"""A vocabulary trained on PG-19: the scaling study's."""
PREFIXES = {"PG19 bytes": "pg19", "PG19 tokens": "pg19", "arXiv": "arxiv", "GitHub": "github"}


def runs(name: str, *of: str) -> dict[str, dict[str, Run]]:
    """The preset of this name on these corpora, at both scales."""
    return {
        "paper": {key: Run(f"{PREFIXES[key]}-{name}", DATA["paper"][key]) for key in of},
        "tiny": {key: Run(f"tiny-pg19-{name}", DATA["tiny"][key]) for key in of},
    }


def on(name: str, data: dict[str, Data]) -> dict[str, dict[str, Run]]:
    """The PG-19 preset of this name, on this data of each scale."""
    prefixes = {"paper": "pg19", "tiny": "tiny-pg19"}
    return {scale: {"PG19": Run(f"{prefixes[scale]}-{name}", data[scale])} for scale in data}


# Relative step time, then bits per token. Error bars of PG19 tokens are 0.01 where the paper has them.
MODELS: dict[str, tuple[str, float, float, float, float, float | None]] = {
    "XL:512": ("xl-512", 0.88, 1.01, 3.62, 1.45, 1.21),
    "XL:1024": ("xl-1024", 1.20, 0.997, 3.59, 1.37, 1.08),
    "XL:2048": ("xl-2048", 2.11, 0.990, 3.58, 1.31, 1.01),
    "Slide:12L": ("slide-12L", 0.93, 0.989, 3.60, 1.43, 1.19),
    "Slide:13L": ("slide-13L", 1.00, 0.989, 3.58, 1.42, 1.17),
    "Rec:lstm:dual": ("rec-lstm-dual", 1.06, 0.985, 3.54, 1.26, 1.01),
    "Rec:lstm:single": ("rec-lstm-single", 1.05, 0.962, 3.54, 1.29, 1.03),
    "Rec:lstm:skip": ("rec-lstm-skip", 1.00, 0.969, 3.56, 1.31, 1.10),
    "Rec:fixed:dual": ("rec-fixed-dual", 1.01, 0.957, 3.52, 1.27, 0.991),
    "Rec:fixed:single": ("rec-fixed-single", 1.02, 0.966, 3.58, 1.25, 1.00),
    "Rec:fixed:skip": ("rec-fixed-skip", 0.99, 0.952, 3.53, 1.24, 0.976),
    "Feedback:lstm:single": ("feedback-lstm-single", 1.40, 0.977, 3.50, 1.22, None),
    "Feedback:fixed:skip": ("feedback-fixed-skip", 1.35, 0.935, 3.49, 1.24, None),
    "Memorizing Trans. 64k": ("memorizing-64k", 1.94, 0.950, 3.53, 1.22, None),
}
CORPORA = ("PG19 bytes", "PG19 tokens", "arXiv", "GitHub")
SPLITS = {corpus: "validation" if corpus == "GitHub" else "test" for corpus in CORPORA}
"""The split that the paper reports, by corpus (Appendix C)."""


def row_of_table_1(label: str) -> Row:
    preset, time, *bits = MODELS[label]
    known = {corpus: value for corpus, value in zip(CORPORA, bits, strict=True) if value is not None}
    return Row(label, {"step time": time, **known}, runs(preset, *known))


def column_of_table_1(corpus: str, figure: Figure, form: str, suffix: str = "") -> Column:
    return Column(f"{corpus}{suffix}", figure, of=corpus, split=SPLITS[corpus], form=form)


THIRTY_SECOND = (
    "Windows, states and memory are a 32nd of the paper's, which the labels name; 12 layers are 4 and 13 are 5, and widths are "
    "3/32 of the paper's."
)
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
    """What a reader has to know of the paper's scale, and of both; ``pieces`` says which vocabulary the tiny scale has."""
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
    layers, perplexity, parameters, vocabulary, preset = PUBLISHED[label]
    known = {"layers": layers, "word perplexity": perplexity, "parameters": parameters, "vocabulary": vocabulary}
    paper = {name: value for name, value in known.items() if value is not None}
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

WINDOWS = {128: (3.58, 3.69), 256: (3.54, 3.64), 512: (3.53, 3.60)}
STATES = {128: 3.54, 256: 3.535, 512: 3.53, 1024: 3.51, 2048: 3.55}
PG19 = {scale: DATA[scale]["PG19 tokens"] for scale in ("paper", "tiny")}
BITS = Column("bits per token", "bits_per_token")


def window_row(series: str, preset: str, window: int, bits: float) -> Row:
    fields = on(f"{preset}-window-{window}" if window != 512 else preset, PG19)
    return Row(f"{series}, window {window}", {"bits per token": bits}, fields, f"{series}, windows", window)


def states_row(states: int, bits: float) -> Row:
    name = "rec-fixed-skip" if states == 512 else f"rec-fixed-skip-states-{states}"
    series = "Rec:fixed:skip, states"
    return Row(f"Rec:fixed:skip, {states} states", {"bits per token": bits}, on(name, PG19), series, states)


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

TWO_LAYERS = {
    "Rec:fixed:skip": "rec-fixed-skip",
    "Rec:fixed:skip, a layer more": "rec-fixed-skip-13L",
    "Rec:fixed:skip, layers 9 and 10": "rec-fixed-skip-layers-9-10",
    "Rec:fixed:skip, layers 4 and 10": "rec-fixed-skip-layers-4-10",
}
IN_WORDS = (
    "The paper gives no number here: two recurrent layers next to each other (9 and 10) did not improve perplexity, and two that "
    "are far apart (4 and 10) did, but by no more than another layer without recurrence. It names neither gate nor corpus: "
    "fixed:skip and PG-19 are ours."
)
SECTION_4_3 = Table(
    "Section 4.3: two recurrent layers on PG19",
    (BITS, PARAMETERS, Column("states cleared", "states_cleared", form="+.3f")),
    tuple(Row(label, {}, on(preset, PG19)) for label, preset in TWO_LAYERS.items()),
    note=notes(T5, IN_WORDS, EMBEDDINGS),
)

SCALES = {
    "40M": (40.6e6, 3.96, 4.03), "80M": (81.2e6, 3.79, 3.86), "150M": (162e6, 3.59, 3.67),
    "325M": (325e6, 3.44, 3.51), "650M": (650e6, 3.29, 3.39), "1.3B": (1.3e9, 3.22, 3.31),
}  # fmt: skip


def scale_row(series: str, name: str, scale: str, parameters: float, bits: float) -> Row:
    figures = {"parameters": parameters, "bits per token": bits}
    return Row(f"{series}, {scale}", figures, on(f"scale-{scale}-{name}", OWN), series)


TABLE_4 = Table(
    "Table 4: bits per token on PG19 at various scales",
    (PARAMETERS, BITS),
    (
        *(scale_row("Rec:fixed:skip", "rec", name, size, bits) for name, (size, bits, _) in SCALES.items()),
        *(scale_row("XL:512:13-layer", "xl", name, size, bits) for name, (size, _, bits) in SCALES.items()),
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
    tokenizer, figures = VOCABULARIES[label]
    known = 32_001 if tokenizer.startswith("FOLDER") else 0
    trained = {"paper": Data("pg19", tokenizer, vocabulary=known)} if tokenizer else {}
    trained |= {"tiny": Data("pg19", tokenizer, NORMALIZED)} if label in TINY_VOCABULARIES else {}
    paper = {column.name: figure for column, figure in zip(VOCABULARY_COLUMNS, figures, strict=True)}
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

PAIR = (
    Row("XL:512:13-layer", {}, on("scale-150M-xl", OWN)),
    Row("Rec:fixed:skip", {}, on("scale-150M-rec", OWN)),
)
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

OF_WINDOWS = [f"pg19-{name}" for name in X if "window" in name]
OF_STATES = [f"pg19-{name}" for name in X if "states" in name]
SPACES = {
    "rec-table-1": over_presets("block-recurrent, Table 1: the models", presets_of(TABLE_1), "pg19"),
    "rec-table-3-window": over_presets("block-recurrent, Table 3a: windows", OF_WINDOWS, "pg19"),
    "rec-table-3-states": over_presets("block-recurrent, Table 3b: states", OF_STATES, "pg19"),
    "rec-section-4.3": over_presets(
        "block-recurrent, section 4.3: two recurrent layers", presets_of(SECTION_4_3), "pg19"
    ),
    "rec-table-4": over_presets("block-recurrent, Table 4: scales", presets_of(TABLE_4), "pg19"),
    "rec-table-5": Space("block-recurrent, Table 5: vocabularies, a store each", (), stores),
}
