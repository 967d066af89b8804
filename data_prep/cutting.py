"""Cuts documents to their first tokens, for corpora with an option that counts tokens.

    Cut(Pg19(validation_tokens=15_000), tokenizer)         # a corpus like any other, in place of the one that it wraps

A document's words and bytes are counted in the kept text: metrics by word and by byte stay right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from data_prep.documents import Corpus, CorpusError, Document, Skipped, Source, naming
from data_prep.tokenizers import Tokenizer, TokenizerTraining


@runtime_checkable
class CutsByTokens(Protocol):
    """A corpus with an option that counts tokens."""

    def first_tokens(self, split: str) -> int:
        """How many tokens are kept of each document of a split; 0 for all."""
        ...


@dataclass(frozen=True)
class Cut:
    """A corpus whose documents end after their first tokens."""

    corpus: Any
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        return self.corpus.name

    def sources(self, split: str) -> Sequence[Source]:
        return self.corpus.sources(split)

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield the corpus's documents, each cut to its first tokens where the split has a limit."""
        limit = self.corpus.first_tokens(sources[0].split) if sources else 0
        for item in self.corpus.read(sources):
            if limit and isinstance(item, Document) and isinstance(item.text, str):
                with naming(item):
                    text = beginning(item.text, limit, self.tokenizer)
                yield item._replace(text=text)
            else:
                yield item

    def options(self) -> dict[str, Any]:
        return self.corpus.options()


def cut(corpus: Corpus, splits: Sequence[str], tokenizer: Tokenizer | TokenizerTraining) -> Corpus:
    """The corpus, cut if its options ask for it. Raises CorpusError if the tokenizer is still to be trained on it."""
    if not isinstance(corpus, CutsByTokens) or not any(corpus.first_tokens(split) for split in splits):
        return corpus
    if isinstance(tokenizer, TokenizerTraining):
        raise CorpusError(
            f"corpus {corpus.name} is cut by tokens, and tokenizer {tokenizer.spec} is not there before it is trained on the "
            "corpus: train it first without the cut, and give its file with --tokenizer"
        )
    made: Any = Cut(corpus, tokenizer)
    return made


def beginning(text: str, limit: int, tokenizer: Tokenizer) -> str:
    """The longest beginning of a text that has at most ``limit`` tokens."""

    def fits(characters: int) -> bool:
        return len(tokenizer.encode(text[:characters])) <= limit

    low = 0
    high = min(limit, len(text))
    while fits(high):  # a token is at least a character, or a part of one
        if high == len(text):
            return text
        low = high
        high = min(2 * high, len(text))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return text[:low]
