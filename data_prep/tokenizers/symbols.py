"""The symbols of a corpus that labels its tokens itself (data_prep.documents.Labelled), as ids.

tokenizer = SymbolsTokenizer(corpus.symbols())
tokens, targets = encode_labelled(document, tokenizer)          # one target for each token, -1 where nothing is predicted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.choices import IGNORED
from common.files import digest
from data_prep.documents import NOTHING, CorpusError, Document, naming
from data_prep.tokenizers.base import TokenizerError, token_dtype


class SymbolsTokenizer:
    """A symbol's id is its place in the list; the id after the last begins a document. Texts are symbols with blanks between.

    Raises TokenizerError for symbols that are not all different, that hold blanks, or that equal `NOTHING`.
    """

    name = "symbols"
    takes_bytes = False

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = tuple(symbols)
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        self._target_ids = {**self._ids, NOTHING: IGNORED}
        wrong = next((symbol for symbol in self.symbols if symbol.split() != [symbol] or symbol == NOTHING), None)
        if wrong is not None:
            raise TokenizerError(
                f"{wrong!r} cannot be a symbol: write one without blanks, and not {NOTHING!r}, which is nothing to predict"
            )
        if len(self._ids) != len(self.symbols) or not self.symbols:
            raise TokenizerError(
                f"of {len(self.symbols)} symbols {len(self._ids)} differ: give each once, and one at least"
            )
        self.vocab_size = len(self.symbols) + 1
        self.fingerprint = digest({"kind": "symbols", "symbols": self.symbols})

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text. Raises TokenizerError naming a word that is no symbol."""
        return _look_up(self._ids, text, token_dtype(self.vocab_size))

    def encode_targets(self, targets: str) -> np.ndarray:
        """int32 [tokens]. -1 where nothing is predicted. Raises TokenizerError naming a word that is no symbol."""
        return _look_up(self._target_ids, targets, np.dtype(np.int32))

    def decode(self, ids: np.ndarray | list[int]) -> str:
        return " ".join(self.symbols[i] for i in np.asarray(ids, dtype=np.int64).tolist() if i < len(self.symbols))

    def details(self) -> dict[str, Any]:
        return {"kind": "symbols", "symbols": list(self.symbols)}

    def files(self) -> dict[str, bytes]:
        return {}


def _look_up(ids: Mapping[str, int], text: str, dtype: np.dtype) -> np.ndarray:
    words = text.split()
    try:
        return np.fromiter(map(ids.__getitem__, words), dtype, len(words))
    except KeyError as error:
        some = ", ".join(list(ids)[:8])
        raise TokenizerError(
            f"{str(error.args[0])[:40]!r} is no symbol of the corpus: write its symbols ({some}{', …' * (len(ids) > 8)}) with "
            "blanks between them"
        ) from None


def encode_labelled(document: Document, tokenizer: SymbolsTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets (int32) of a document, as many of each.

    Raises CorpusError naming a document that does not label its tokens, or holds a word that is no symbol.
    """
    if document.targets is None or isinstance(document.text, bytes):
        raise CorpusError(
            f"document {document.id!r} has no targets: a corpus with symbols gives each of its documents some"
        )
    with naming(document):
        tokens = tokenizer.encode(document.text)
        targets = tokenizer.encode_targets(document.targets)
    if len(tokens) != len(targets):
        raise CorpusError(
            f"document {document.id!r} has {len(tokens):,} symbols and {len(targets):,} targets: give each symbol one, "
            f"{NOTHING!r} where nothing is predicted"
        )
    return tokens, targets
