"""The sums of one pass over a split, and the metrics that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipelines.tracking.chance import Difference, paired

MAX_BITS = 1000.0
"""Bits per token from which on a perplexity stays the same: of a model that diverged it would be no number."""


def perplexity(bits_per_token: float) -> float:
    """2 to the bits per token."""
    return 2.0 ** min(bits_per_token, MAX_BITS)


@dataclass(frozen=True)
class Score:
    """Sums over one pass over one split."""

    nats: float
    """Summed over all predicted tokens."""
    tokens: int
    """Those that are predicted: of a labelled store the labelled ones."""
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
    """The same as `bytes`; of a clipped document, as many of its bytes as of its tokens were read."""
    share_beyond: float = 0.0
    """Share of the tokens that lie beyond the first segment of their document, or the first place where State is cleared."""
    errors: int | None = None
    """Labelled tokens of which another than their label was the likeliest; None where the store is not labelled."""
    bucket_errors: tuple[int, ...] = ()
    """The same by position, as `bucket_nats`."""
    group_nats: tuple[float, ...] = ()
    """The nats by group of the text (`chance.edges_of`), by which passes are compared; empty where they were not kept."""
    group_tokens: tuple[int, ...] = ()
    group_errors: tuple[int, ...] = ()
    """Both as `group_nats`; errors of a labelled store."""

    @property
    def bits_per_token(self) -> float:
        return self.nats / math.log(2) / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token."""
        return perplexity(self.bits_per_token)

    @property
    def error_rate(self) -> float:
        """Share of the labelled tokens that were wrong. NaN where the store is not labelled."""
        return math.nan if self.errors is None else self.errors / self.tokens

    @property
    def shows_worth(self) -> bool:
        """Whether it can be seen what clearing the State at each segment costs: not where most tokens are in a first one."""
        return self.share_beyond >= 0.5

    def less_than(self, other: Score, what: Literal["nats", "errors"] = "nats") -> Difference | None:
        """By how much this needs less than another pass over the same documents, per token. None where that cannot be told from
        chance: too little text, or groups that were not kept.
        """
        ours, theirs = (np.array(getattr(score, f"group_{what}"), float) for score in (self, other))
        return paired(ours, theirs, np.array(self.group_tokens, np.int64))

    @property
    def bits_per_byte(self) -> float:
        """NaN when documents were clipped, or are labelled."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def word_perplexity(self) -> float:
        """exp(nats per word): comparable between vocabularies (paper, section 4.5). NaN as for `bits_per_byte`."""
        return math.exp(min(self.nats / self.words, 700.0)) if self.words else math.nan


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
    """Recurrent states cleared at each segment, keys and values kept; None where the model has none."""
    cleared_all: Score | None
    """The whole State cleared at each segment; None where the State is empty."""
    flops_per_token: float | None = None
    """Needed ones of the forward pass (recur_models/costs.py)."""
    windows: Mapping[str, int] = field(default_factory=dict[str, int])
    """`window` and `overlap` of the model, of those that it has."""
    characters: int = 0
    """Characters of the documents' text; 0 if the tokenizer is lossy. Documents read in part count as in `Score.bytes`."""
    seed: int | None = None
    """Seed of the training; None where a report does not name it."""
    config_hash: str = ""
    """The same of trainings and readings that differ in the seed alone."""

    @property
    def alike(self) -> tuple[object, ...]:
        """The same of those that differ in the training's seed alone; empty where it is not known."""
        return (self.config_hash, self.step, self.store_fingerprint, self.carried.bucket) if self.config_hash else ()

    @property
    def bits_per_character(self) -> float:
        """NaN where they are not known."""
        return self.carried.nats / math.log(2) / self.characters if self.characters else math.nan

    @property
    def published_word_perplexity(self) -> float:
        """Word-level perplexity by `published_words`. NaN where there are none."""
        words = self.published_words
        return math.exp(min(self.carried.nats / words, 700.0)) if words else math.nan

    @property
    def published_words(self) -> int:
        """Words of the split as a paper has counted them. 0 where none has, or where not all of its documents were read."""
        documents, words = PUBLISHED_WORDS.get(self.split, (0, 0))
        return words if documents == self.carried.documents and self.carried.bytes else 0


PUBLISHED_WORDS = {"pg19/test": (100, 6_966_499)}
"""Documents and words of a split: Rae et al. 2020, by which the block-recurrent paper reckons (section 4.5)."""


def windows_of(model: Mapping[str, Any]) -> dict[str, int]:
    """`window` and `overlap` of a model's JSON, of those that it has."""
    return {name: model[name] for name in ("window", "overlap") if name in model}
