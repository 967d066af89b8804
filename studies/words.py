"""The words of a split with their cost for each model: at which of them is a model better that looks further back?

    words = words_of(writing_of(tokenizer), tokens, [nats_a, nats_b])     # of one document
    best = top(words, count=20)                                           # the largest gains of b over a

A word is a run of letters, digits and underscores, with all tokens that end in it; its cost is their sum. A character of several
tokens is written by the last of them. A name begins with a capital letter, and its small form is less frequent in the document
(block-recurrent paper, section 4.6: what long context is used for). Letters: T tokens · N words · M models.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from pipelines.reports.characters import BYTES

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Text of a token that holds only a part of a letter's bytes."""
WORD = re.compile(r"\w+")
AROUND = 80
"""Characters of text that are shown on each side of a word."""


@dataclass(frozen=True)
class Words:
    """The words of one document, or of several behind each other."""

    text_N: np.ndarray
    """object: the words as written."""
    document_N: np.ndarray
    """int32: number of the document."""
    offset_N: np.ndarray
    """int64: position of the first token in the document."""
    tokens_N: np.ndarray
    """int32: number of tokens."""
    before_N: np.ndarray
    """int64: distance in tokens to the first token of the word's last occurrence in the document, 1 if both share a token; 0 if
    there is none."""
    name_N: np.ndarray
    """bool: whether the word is a name."""
    nats_MN: np.ndarray
    """float64: cost of the word for each model."""

    @classmethod
    def join(cls, parts: Sequence[Words]) -> Words:
        """Join the words of documents, one document after another."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts], axis=-1) for field in fields(cls)))

    def at(self, chosen: np.ndarray) -> Words:
        """The chosen words, by index or mask [N]."""
        return Words(*(getattr(self, field.name)[..., chosen] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.text_N)


def pieces_of(write: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> list[str | None]:
    """The text of each token; None for a token with a part of a character, which the next token with text includes."""
    text_of = cache(write)
    pieces = list[str | None]()
    held: tuple[int, ...] = ()

    def ends_a_character(cut: int) -> bool:
        return text_of(held[:cut]) + text_of(held[cut:]) == text_of(held)

    for token in tokens:
        held = (*held, token)
        pieces.append(None)
        while held and (UNKNOWN not in text_of(held) or len(held) == BYTES):
            # Bytes that are no character are written as UNKNOWN, and a character may begin behind them.
            cut = next(filter(ends_a_character, range(1, len(held))), len(held))
            pieces[cut - len(held) - 1] = text_of(held[:cut])
            held = held[cut:]
    if held:
        pieces[-1] = text_of(held)
    return pieces


def words_of(
    write: Callable[[Sequence[int]], str], tokens_T: np.ndarray, nats_MT: Sequence[np.ndarray], document: int = 0
) -> Words:
    """The words of a document, with the losses of some models in it.

    Args:
        write: `writing_of` its tokenizer.
        nats_MT: losses of each model, float [T].
    """
    pieces = pieces_of(write, tokens_T.tolist())
    ends_T = np.cumsum([len(text or "") for text in pieces])
    for number in range(len(pieces) - 2, -1, -1):
        if pieces[number] is None:
            ends_T[number] = ends_T[number + 1]
    found = list(WORD.finditer("".join(text or "" for text in pieces)))
    texts = [match.group() for match in found]
    starts_N = np.array([match.start() for match in found], np.int64)
    stops_N = np.array([match.end() for match in found], np.int64)
    # The tokens whose last character lies in the word: a blank before it belongs to its first token.
    first_N = np.searchsorted(ends_T, starts_N, "right")
    last_N = np.searchsorted(ends_T, stops_N, "right")
    before = list[int]()
    seen = dict[str, int]()
    for text, offset in zip(texts, first_N.tolist(), strict=True):
        before.append(max(offset - seen[text], 1) if text in seen else 0)
        seen[text] = offset
    sums_MT = np.concatenate([np.zeros((len(nats_MT), 1)), np.cumsum(np.asarray(nats_MT, np.float64), axis=1)], axis=1)
    counts = Counter(texts)
    names = [text[0].isupper() and counts[text] > counts[text.lower()] for text in texts]
    words = Words(
        np.array(texts, object),
        np.full(len(texts), document, np.int32),
        first_N.astype(np.int64),
        (last_N - first_N).astype(np.int32),
        np.array(before, np.int64),
        np.array(names, bool),
        sums_MT[:, last_N] - sums_MT[:, first_N],
    )
    return words.at(last_N > first_N)  # words in which no token ends are dropped last, since they count as occurrences


def tokens_of(words: Words, nats_MT: Sequence[np.ndarray]) -> Words:
    """Each token of one document's words as a word of its own. Offset and losses (``nats_MT``: float [T] of each model) are the
    token's; text, name and distance are its word's."""
    word_N = np.repeat(np.arange(len(words)), words.tokens_N)
    first_N = np.cumsum(words.tokens_N) - words.tokens_N
    offset_N = words.offset_N[word_N] + np.arange(len(word_N)) - first_N[word_N]
    nats_MN = np.asarray(nats_MT, np.float64)[:, offset_N]
    return replace(words.at(word_N), offset_N=offset_N, tokens_N=np.ones(len(word_N), np.int32), nats_MN=nats_MN)


def rare(words: Words, common: int) -> np.ndarray:
    """bool [N]: whether a word is not among the ``common`` most frequent of ``words``."""
    frequent = {text for text, _ in Counter(words.text_N.tolist()).most_common(common)}
    return np.array([text not in frequent for text in words.text_N.tolist()], bool)


def top(words: Words, count: int) -> Words:
    """The ``count`` words on which the last model is furthest below the first in nats, the largest gain first; only gains."""
    gains = words.nats_MN[0] - words.nats_MN[-1]
    best = np.argsort(-gains, kind="stable")[:count]
    return words.at(best[gains[best] > 0])


def where(before: int, window: int, begins: int, offset: int) -> str:
    """In words, how far back the last occurrence of a word lies: `begins` is the first token of its segment."""
    if not before:
        return "not before"
    if before <= window:
        return "in the window"
    return "in the segment" if offset - before >= begins else "in an earlier segment"


def by_distance(words: Words, least: int = 5) -> list[dict[str, Any]]:
    """The cost of repeated words for each model, by the distance to their last occurrence: powers of two with ``least`` words each.

    Returns rows of `from`, `to` (tokens), `words`, and lists over the models: `nats`, the means, and `errors`, their standard
    errors; and `difference`, the first model's mean less the last one's, and `difference_error`, the standard error of that over
    the same words. The first row is of words that did not stand before: from 0 to 0.
    """
    bins_N = np.where(words.before_N > 0, np.floor(np.log2(np.maximum(words.before_N, 1))).astype(int), -1)
    rows = []
    for number in np.unique(bins_N).tolist():
        chosen = words.nats_MN[:, bins_N == number]
        count = chosen.shape[1]
        if count >= max(least, 2):
            bounds = (0, 0) if number < 0 else (2**number, 2 ** (number + 1) - 1)
            errors = chosen.std(axis=1, ddof=1) / np.sqrt(count)
            differences = chosen[0] - chosen[-1]
            rows.append(
                {
                    "from": bounds[0],
                    "to": bounds[1],
                    "words": count,
                    "nats": chosen.mean(1).tolist(),
                    "errors": errors.tolist(),
                    "difference": float(differences.mean()),
                    "difference_error": float(differences.std(ddof=1) / np.sqrt(count)),
                }
            )
    return rows


def around(
    write: Callable[[Sequence[int]], str], tokens_T: np.ndarray, offset: int, count: int
) -> tuple[str, str, str]:
    """Text before a word, the word's tokens as text, and text after it, on one line each, with single blanks."""
    reach = AROUND  # a token has a character at least, or nearly
    parts = (
        tokens_T[max(offset - reach, 0) : offset],
        tokens_T[offset : offset + count],
        tokens_T[offset + count : offset + count + reach],
    )
    left, word, right = (re.sub(r"\s+", " ", write(part.tolist())) for part in parts)
    return left[-AROUND:], word, right[:AROUND]
