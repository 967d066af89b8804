"""Compare tokenizers on the same text: how many tokens they make of its words and bytes (block-recurrent paper, Table 5).

rows = study([BytesTokenizer(), gpt2], documents)
rows[1].tokens_per_word                     # the paper's "scale factor": word-level perplexity = 2^(bits per token · it)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from data_prep.documents import Document, naming, tally
from data_prep.tokenizers import Tokenizer, TokenizerError, as_text


@dataclass
class VocabularyRow:
    """Statistics of a tokenizer on a text."""

    name: str
    size: int
    """Ids, without begin-of-document."""
    documents: int = 0
    words: int = 0
    bytes: int = 0
    tokens: int = 0
    lossless: bool = True
    """Whether every document came back from its tokens."""
    seconds: float = 0.0
    """Seconds of encoding, in one process."""

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(self.words, 1)

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(self.tokens, 1)

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / 1e6 / max(self.seconds, 1e-9)


def study(
    tokenizers: Sequence[Tokenizer], documents: Iterable[Document], done: Callable[[int], None] = lambda size: None
) -> list[VocabularyRow]:
    """A row for each tokenizer. Each document is read once; documents without words are skipped, as in a store.

    Args:
        done: called with the bytes of each finished document.

    Raises TokenizerError if a document is bytes and a tokenizer reads text; CorpusError if a document cannot be encoded.
    """
    rows = [VocabularyRow(tokenizer.name, tokenizer.vocab_size - 1) for tokenizer in tokenizers]
    for document in documents:
        size, words, _ = tally(document.text)
        if not words:
            done(size)
            continue
        text = as_text(document.text)
        for tokenizer, row in zip(tokenizers, rows, strict=True):
            if isinstance(document.text, bytes) and not tokenizer.takes_bytes:
                raise TokenizerError(
                    f"the corpus is of bytes, which tokenizer {tokenizer.name} cannot cut: leave it out of --tokenizers"
                )
            start = time.perf_counter()
            with naming(document):
                ids = tokenizer.encode(document.text)
            row.seconds += time.perf_counter() - start
            row.documents += 1
            row.tokens += len(ids)
            row.words += words
            row.bytes += size
            row.lossless = row.lossless and tokenizer.decode(ids) == text
        done(size)
    return rows
