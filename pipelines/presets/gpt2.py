"""The rows of the GPT-2 paper's tables as runs, and small ones: `python -m pipelines.train pg19-gpt2-rec-overlap-50`.

    wikitext-gpt2-overlap-…, wikitext-gpt2-rec-overlap-…      Table 1
    pg19-gpt2-overlap-…, pg19-gpt2-rec-overlap-…              Table 2
    pg19-llama-overlap-50, pg19-llama-rec-overlap-50          the same of a Llama
    tiny-wikitext-…, tiny-pg19-…        the same rows at a size that a CPU trains, from weights of no training

The paper fine-tunes the published GPT-2 small: `--model.pretrained FOLDER` names its weights, and the store is prepared with its
tokenizer, of WikiText-103 in its raw form (`--form raw`). A new run of these rows is refused without that option;
`--model.pretrained none` begins with untrained weights. The tiny rows have sizes of their own, and begin untrained.

Settings are those of section 5: windows of 300 tokens, backpropagation through 20 of them, Adam, a warm-up of 100 steps to a
constant rate, 2 epochs (of PG-19's first 1,250 books), validation every 2M tokens. The paper stops early: score the checkpoint that
is the best on validation (`pipelines.evaluate --checkpoint best`). It mentions no limit on gradients: none is set, except in the
tiny rows. It does not give the learning rate, which it chose on WikiText-103, and the size of a batch: those here are usual for
GPT-2 small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from pipelines.config.run import CheckpointConfig, DataConfig, OptimConfig, ScheduleConfig, TrainConfig
from recur_models import GPT2Config, GPT2RecConfig, LlamaConfig, LlamaRecConfig
from recur_models.pretrained_config import DecoderConfig

WINDOWS, LANES = 20, 8


class Epoch(NamedTuple):
    """A pass over the training split."""

    tokens: int
    documents: int


EPOCHS = {"wikitext": Epoch(118_000_000, 28_475), "pg19": Epoch(116_500_000, 1250)}
"""In GPT-2's tokens: WikiText-103; of PG-19 1,250 books of 69,000 words each (section 5), at 1.35 tokens a word."""
OVERLAPS = {
    "wikitext": {"gpt2": (0, 5, 10, 30, 50), "gpt2-rec": (0, 5, 10, 30, 50)},
    "pg19": {
        "gpt2": (0, 5, 10, 30, 50, 75, 100, 150, 200),
        "gpt2-rec": (0, 5, 10, 30, 50),
        "llama": (50,),
        "llama-rec": (50,),
    },
}
"""Of Tables 1 and 2; a Llama's are ours."""


VALIDATED_TOKENS = 2_000_000
"""Tokens between validations (section 5)."""


def two_epochs(corpus: str, block: int) -> int:
    """Steps for two passes over the corpus. A document's last block is padded, by half a block on average."""
    epoch = EPOCHS[corpus]
    padded = epoch.tokens + epoch.documents * block // 2
    return round(2 * padded / (LANES * WINDOWS * block))


def row(model: DecoderConfig, corpus: str) -> TrainConfig:
    """This model, fine-tuned on the corpus."""
    segment = WINDOWS * model.block
    every = VALIDATED_TOKENS // (LANES * segment)
    return TrainConfig(
        model=model,
        data=DataConfig(corpus=corpus, lanes=LANES, segment_length=segment),
        optim=OptimConfig(name="adamw", lr=5e-5, betas=(0.9, 0.999), weight_decay=0.0, clip=0.0),
        schedule=ScheduleConfig(name="constant", warmup=100),
        steps=two_epochs(corpus, model.block),
        num_workers=1,
        recompute="block",
        validate_every=every,
        validate_tokens=0,
        checkpoint=CheckpointConfig(every=every),
    )


KINDS: dict[str, type[DecoderConfig]] = {
    config.name: config for config in (GPT2Config, GPT2RecConfig, LlamaConfig, LlamaRecConfig)
}
ROWS = {
    f"{corpus}-{name}-overlap-{overlap}": row(KINDS[name](window=300, overlap=overlap), corpus)
    for corpus, models in OVERLAPS.items()
    for name, overlaps in models.items()
    for overlap in overlaps
}

TINY_TOKENS = 5_000_000


def tiny(config: TrainConfig) -> TrainConfig:
    """The same row with windows and overlaps of a fifth, and as many of them in a segment, of 4 layers."""
    model: Any = config.model
    sizes: dict[str, Any] = {"layers": 4, "d_model": 96, "heads": 3, "mlp_dim": 384, "positions": 205, "dropout": 0.0}
    if isinstance(model, GPT2RecConfig):
        sizes["hidden"] = (64, 64, 64)
    model = replace(model, window=model.window // 5, overlap=model.overlap // 5, **sizes)
    segment = WINDOWS * model.block
    return replace(
        config,
        model=model,
        data=replace(config.data, lanes=4, segment_length=segment),
        optim=OptimConfig(name="adamw", lr=4e-3),
        schedule=ScheduleConfig(name="cosine", warmup=100),
        steps=TINY_TOKENS // (4 * segment),
        num_workers=0,
        recompute="nothing",
        validate_every=250,
        validate_tokens=40_000,
        checkpoint=CheckpointConfig(every=250),
    )


# A size that a CPU trains: with the other small presets' layers, and windows of 128 of which 16 overlap.
SIZE: dict[str, Any] = {"layers": 6, "d_model": 256, "heads": 4, "mlp_dim": 1024, "positions": 1024, "dropout": 0.0}
SMALL = TrainConfig(
    model=GPT2RecConfig(window=128, overlap=16, **SIZE),
    data=DataConfig(corpus="text", lanes=8, segment_length=1120),
    optim=OptimConfig(name="adamw", lr=1e-3),
    schedule=ScheduleConfig(name="cosine", warmup=100),
    steps=2000,
    validate_every=200,
    checkpoint=CheckpointConfig(every=200),
)

GPT2_PRESETS = {
    "small-gpt2-rec": SMALL,
    "small-gpt2": replace(SMALL, model=GPT2Config(window=128, overlap=16, **SIZE)),
    "small-llama-rec": replace(SMALL, model=LlamaRecConfig(window=128, overlap=16, kv_heads=2, **SIZE)),
    "small-llama": replace(SMALL, model=LlamaConfig(window=128, overlap=16, kv_heads=2, **SIZE)),
    **ROWS,
    **{f"tiny-{name}": tiny(run) for name, run in ROWS.items() if "llama" not in name},
}
