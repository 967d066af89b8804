"""The sums of one pass over a split, and the metrics that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipelines.tracking.chance import FEW_DOCUMENTS, Difference, paired

MAX_BITS = 1000.0
MAX_NATS = 700.0
"""Bits per token, and nats per word, from which on perplexity stays the same: it would overflow for a model that diverged."""


def perplexity(bits_per_token: float) -> float:
    """2 to the bits per token."""
    return 2.0 ** min(bits_per_token, MAX_BITS)


def word_perplexity(nats: float, words: int) -> float:
    """exp(nats per word), with a bound as for `perplexity`. NaN without words."""
    return math.exp(min(nats / words, MAX_NATS)) if words else math.nan


@dataclass(frozen=True)
class Score:
    """Sums over one pass over one split."""

    nats: float
    """Nats, summed over all predicted tokens."""
    tokens: int
    """Predicted tokens; for a labelled store, the labelled ones."""
    words: int
    """Whitespace-separated words of the documents read; 0 when documents were clipped, are labelled, or are program code."""
    bytes: int
    """UTF-8 bytes of the documents read; 0 when documents were clipped, or are labelled."""
    documents: int
    bucket: int
    """Tokens in a position bucket."""
    bucket_nats: tuple[float, ...]
    """Nats of the tokens at position p of their document, summed in bucket p // bucket."""
    bucket_tokens: tuple[int, ...]
    bytes_in_proportion: float = 0.0
    """Like `bytes`, but a clipped document counts with the same share of its bytes as of its tokens."""
    share_beyond: float = 0.0
    """Share of the tokens that lie beyond the first segment of their document, or the first place where State is cleared."""
    errors: int | None = None
    """Labelled tokens whose likeliest prediction was not their label; None where the store is not labelled."""
    bucket_errors: tuple[int, ...] = ()
    """The errors by position, in the buckets of `bucket_nats`."""
    group_nats: tuple[float, ...] = ()
    """The nats by group of the text (`chance.edges_of`), by which passes are compared; empty where they were not kept."""
    group_tokens: tuple[int, ...] = ()
    group_errors: tuple[int, ...] = ()
    """Tokens and errors by the groups of `group_nats`; errors for a labelled store alone."""

    @property
    def bits_per_token(self) -> float:
        return self.nats / math.log(2) / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return perplexity(self.bits_per_token)

    @property
    def error_rate(self) -> float:
        """Share of the labelled tokens that were wrong. NaN where the store is not labelled."""
        return math.nan if self.errors is None else self.errors / self.tokens

    @property
    def shows_worth(self) -> bool:
        """Whether the cost of clearing the State at each segment can be seen: not if most tokens are in a first segment."""
        return self.share_beyond >= 0.5

    def less_than(self, other: Score, what: Literal["nats", "errors"] = "nats") -> Difference | None:
        """By how much this pass needs less than another one over the same documents, per token. None if chance cannot be estimated:
        too little text, groups that were not kept, or parts of documents that two models cut at different places.
        """
        if self.documents < FEW_DOCUMENTS and (self.bucket, self.group_tokens) != (other.bucket, other.group_tokens):
            return None
        ours, theirs = (np.array(getattr(score, f"group_{what}"), float) for score in (self, other))
        return paired(ours, theirs, np.array(self.group_tokens, np.int64))

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte. NaN when documents were clipped, or are labelled."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def word_perplexity(self) -> float:
        """exp(nats per word): comparable between vocabularies (paper, section 4.5). NaN as for `bits_per_byte`."""
        return word_perplexity(self.nats, self.words)


@dataclass(frozen=True)
class Evaluation:
    """One checkpoint on one split."""

    name: str
    model: str
    parameters: int
    step: int
    train_tokens: int
    checkpoint: str
    split: str
    store_fingerprint: str
    carried: Score
    """State carried over the whole document."""
    cleared_states: Score | None
    """Recurrent states cleared at each segment, keys and values kept; None if the model has none, or `--clear` leaves this out."""
    cleared_all: Score | None
    """The whole State cleared at each segment; None if the State is empty, or `--clear` leaves this out."""
    flops_per_token: float | None = None
    """FLOPs per token that the forward pass needs (recur_models/costs.py)."""
    windows: Mapping[str, int] = field(default_factory=dict[str, int])
    """The `window` that the model's attention sees, and its `overlap`, if it has them."""
    characters: int = 0
    """Characters of the documents' text; 0 if the tokenizer is lossy. Documents read in part count as in `Score.bytes`."""
    seed: int | None = None
    """Seed of the training; None where a report does not name it."""
    config_hash: str = ""
    """Hash of the training's config and the reading's options, without the seed."""
    cleared_at: str = ""
    """Where State was cleared in the passes with State cleared, if not at each segment's start."""

    @property
    def text(self) -> tuple[object, ...]:
        """A key that is equal for evaluations on the same text, also with different tokenizers."""
        labelled = self.carried.errors is not None
        return (self.split, self.carried.documents, self.store_fingerprint if labelled else self.carried.bytes)

    @property
    def alike(self) -> tuple[object, ...]:
        """A key that is equal for evaluations that differ in the training's seed alone; empty where it is not known."""
        read = (self.store_fingerprint, self.carried.bucket, self.cleared_at)
        return (self.config_hash, self.step, *read) if self.config_hash else ()

    @property
    def bits_per_character(self) -> float:
        """Bits per character of the text. NaN where its characters are not known."""
        return self.carried.nats / math.log(2) / self.characters if self.characters else math.nan

    @property
    def published_word_perplexity(self) -> float:
        """Word-level perplexity by `published_words`. NaN where there are none."""
        return word_perplexity(self.carried.nats, self.published_words)

    @property
    def published_words(self) -> int:
        """Words of the split as a paper has counted them. 0 where none has, or where not all of its documents were read."""
        documents, words = PUBLISHED_WORDS.get(self.split, (0, 0))
        return words if documents == self.carried.documents and self.carried.bytes else 0


PUBLISHED_WORDS = {"pg19/test": (100, 6_966_499)}
"""Documents and words of a split, as counted by Rae et al. 2020. The block-recurrent paper uses this count (section 4.5)."""


def architecture_of(model: Mapping[str, Any]) -> str:
    """The name in a model's JSON; for a stack of mixers with their kinds, whatever their number: "mixers (delta, window)"."""
    name = str(model.get("name", ""))
    layers = model.get("layers")
    return f"{name} ({', '.join(sorted({*layers}))})" if isinstance(layers, list | tuple) else name


def windows_of(model: Mapping[str, Any]) -> dict[str, int]:
    """`window`, the tokens that attention sees, and `overlap` from a model's JSON, if it has them. A block that no layer attends to
    is no window, so the config is asked. Empty for a model that this version does not know.
    """
    from recur_models import model_from_json  # torch: seconds

    try:
        window = model_from_json(model).attention_window
    except ValueError:
        return {}
    overlap = {"overlap": model["overlap"]} if "overlap" in model else {}
    return {"window": window, **overlap} if window else {}
