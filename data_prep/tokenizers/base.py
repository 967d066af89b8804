"""The interface of tokenizers, and the encoding of long texts piece by piece, in memory for the ids alone.

Ids [tokens] are uint16 or uint32, by the size of the vocabulary. The last id is ours, begin-of-document: `vocab_size - 1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from common.errors import UserError


class TokenizerError(UserError):
    """A tokenizer cannot be made or read, or not used on a text: the message names it, or its file, and the remedy."""


class Tokenizer(Protocol):
    """Turns text into ids and back."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int:
        """Ids, the begin-of-document id included."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides the ids."""
        ...

    @property
    def takes_bytes(self) -> bool:
        """Whether `encode` takes bytes as well as text."""
        ...

    def encode(self, text: Any) -> np.ndarray:
        """Token ids [tokens], of the type `token_dtype(vocab_size)`. Begin-of-document is not among them, whatever the text.

        Args:
            text: str; or bytes, where `takes_bytes`.

        Raises TokenizerError for a text that the tokenizer cannot encode.
        """
        ...

    def decode(self, ids: np.ndarray | list[int]) -> str:
        """The text of some ids; begin-of-document reads as nothing, incomplete UTF-8 as U+FFFD."""
        ...

    def details(self) -> dict[str, Any]:
        """The contents of `tokenizer.json`: `kind` and whatever `load_tokenizer` needs."""
        ...

    def files(self) -> dict[str, bytes]:
        """Files to be kept beside `tokenizer.json`."""
        ...


@runtime_checkable
class BatchTokenizer(Protocol):
    """A tokenizer that encodes many short texts faster together than one by one."""

    def encode_batch(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Encode some texts, at least one, to the ids that `encode` gives for each.

        Returns:
            The ids of all texts, one text after the other [tokens of all], and the number of ids of each (int64 [texts]).

        Raises TokenizerError where a text cannot be encoded; the message does not say which.
        """
        ...


def encode_each(tokenizer: Tokenizer, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Ids [tokens of all] and lengths (int64 [texts]), as `BatchTokenizer.encode_batch` gives them, one text at a time."""
    return concatenate([tokenizer.encode(text) for text in texts])


def concatenate(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of some texts, at least one, in one array, and the number of ids of each (int64); one alone is not copied."""
    lengths_N = np.array([len(part) for part in parts], np.int64)
    return np.concatenate(parts) if len(parts) > 1 else parts[0], lengths_N


def bod_id(tokenizer: Tokenizer) -> int:
    """The id of begin-of-document: the last one of the vocabulary."""
    return tokenizer.vocab_size - 1


def token_dtype(vocab_size: int) -> np.dtype:
    """The type in which ids below ``vocab_size`` are stored: uint16 where they fit, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def is_lossless(tokenizer: Tokenizer, texts: Iterable[str | bytes]) -> bool:
    """Whether encoding and decoding gives every text back; for bytes, their text as UTF-8."""
    return all(as_text(text) == tokenizer.decode(tokenizer.encode(text)) for text in texts)


@contextmanager
def encoding_errors(name: str) -> Iterator[None]:
    """Raise TokenizerError, naming the tokenizer, for whatever its library raises on a text; its panics included."""
    try:
        yield
    except (TokenizerError, MemoryError):
        raise
    except BaseException as error:
        panics = type(error).__name__ == "PanicException"  # a Rust library's: no Exception, and importable from nowhere
        if not (panics or isinstance(error, Exception)):
            raise
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(
            f"tokenizer {name} cannot encode the text ({reason}): choose another tokenizer, or leave the text out"
        ) from None


FOLDS = (
    "\u2581", "\t", "\n", "\r", "\0", "\x7f", "  ", "A", "é", "\u00a0", "\u00ad", "\u2009", "\u200b", "\u200d", "\u2028", "\u3000",
    "\ufeff", "²", "½", "…", "™", "ﬁ", "Ａ", "\u212b", "漢", "😀",
)  # fmt: skip
"""Characters that tokenizers are known to change: SentencePiece's own sign for a space, white space, signs that cannot be seen,
capitals, accents, what NFKC writes otherwise, and letters that a vocabulary may lack."""


def folded(tokenizer: Tokenizer) -> list[str] | None:
    """The FOLDS that encoding and decoding does not give back: a text that holds one is not given back either.

    None if "ab" is not given back, or a fold cannot be encoded. The vocabulary then covers only certain texts, and only decoding a
    text shows whether it is given back.
    """
    try:
        if not is_lossless(tokenizer, ["ab"]):
            return None
        return [fold for fold in FOLDS if not is_lossless(tokenizer, [f"a{fold}b"])]
    except TokenizerError:
        return None


def as_text(text: str | bytes) -> str:
    """A text, or bytes read as UTF-8; U+FFFD stands for what is not UTF-8."""
    return text if isinstance(text, str) else text.decode(errors="replace")


class Ids:
    """A growing array of ids. A list of arrays would need twice the memory when it is joined."""

    def __init__(self, vocab_size: int) -> None:
        self._values = np.empty(1024, token_dtype(vocab_size))
        self._filled = 0

    def append(self, ids: np.ndarray) -> None:
        end = self._filled + len(ids)
        if end > len(self._values):
            self._values.resize(max(end, len(self._values) * 5 // 4), refcheck=False)
        self._values[self._filled : end] = ids
        self._filled = end

    def take(self) -> np.ndarray:
        """All ids; nothing may be appended after that."""
        self._values.resize(self._filled, refcheck=False)
        return self._values
