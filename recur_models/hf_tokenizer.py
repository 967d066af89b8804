"""The tokenizers of exported models, for transformers' AutoTokenizer, with exactly the ids that the models were trained on.

For SentencePiece models, SentencePiece itself does the work. A conversion to another library would not give the same ids on
every text: where two segmentations score almost alike, the sums' rounding decides. The others are what transformers calls fast.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.tokenization_python import PreTrainedTokenizer

from common.cuts import Cuts
from recur_models.bundle import write_tokenizer

BEGIN_OF_DOCUMENT = "<|begin_of_document|>"
"""The one special token: its id is the last one, and it stands before every text. It plays all parts, as GPT-2's does (see
hf_config.py)."""

HIDDEN = "\U0010ffff"
"""A character that Unicode keeps out of texts."""

PARTS = ("bos_token", "eos_token", "pad_token")


def begin_of_document_name(vocabulary: Container[str]) -> str:
    """BEGIN_OF_DOCUMENT, or the same with a number where another token has that name, as in the tokenizer.json of an export."""
    names = (f"<|begin_of_document_{number}|>" for number in count(2))
    return next(name for name in chain([BEGIN_OF_DOCUMENT], names) if name not in vocabulary)


class ThroughlineTokenizer(PreTrainedTokenizer):
    """The pieces of a SentencePiece model, and begin-of-document after them."""

    vocab_files_names = {"vocab_file": "tokenizer.model"}  # noqa: RUF012  (read by transformers as it stands)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str,
        piece_characters: int = 0,
        piece_end: str = "\n",
        piece_skip: int = 0,
        piece_fallback: str = "",
        piece_fallback_characters: int = 1 << 16,
        **kwargs: Any,
    ) -> None:
        """A long text is encoded in pieces by the `Cuts` in the arguments; without ``piece_characters``, as a whole."""
        self.processor = sentencepiece.SentencePieceProcessor(model_file=vocab_file)  # type: ignore[call-arg]
        self.vocab_file = vocab_file
        self._cuts = None
        if piece_characters:
            self._cuts = Cuts(piece_end, piece_characters, piece_skip, piece_fallback, piece_fallback_characters)
        # The name of begin-of-document in a text is ordinary text, as in the corpus.
        pieces = {self.processor.id_to_piece(i) for i in range(self.processor.get_piece_size())}
        special = dict.fromkeys(PARTS, begin_of_document_name(pieces))
        kwargs = {**special, "padding_side": "left", "split_special_tokens": True, **kwargs}
        kwargs |= {"special_tokens_pattern": "bos", "clean_up_tokenization_spaces": False}
        cuts = {"piece_characters": piece_characters, "piece_end": piece_end, "piece_skip": piece_skip}
        cuts |= {"piece_fallback": piece_fallback, "piece_fallback_characters": piece_fallback_characters}
        super().__init__(**cuts, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """The tokenizer's files, and the modules that open it (bundle.py)."""
        files = super().save_pretrained(save_directory, *args, **kwargs)
        write_tokenizer(Path(save_directory))
        return files

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoTokenizer") -> None:
        """Does nothing: see hf_config.py."""

    @property
    def vocab_size(self) -> int:
        """Pieces; `len(tokenizer)` counts begin-of-document too."""
        return self.processor.get_piece_size()

    def get_vocab(self) -> dict[str, int]:
        return {self.processor.id_to_piece(i): i for i in range(self.vocab_size)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        pieces = []
        for part in self._cuts.pieces(text) if self._cuts else [text]:
            # The pieces of these ids: text that no piece covers may be the name of a control piece.
            pieces += map(self.processor.id_to_piece, self.processor.encode(part))
        return pieces

    def _convert_token_to_id(self, token: str) -> int:
        return self.processor.piece_to_id(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.processor.id_to_piece(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.processor.decode(tokens)

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> str:
        text = ""
        ids = []
        for index in [token_ids] if isinstance(token_ids, int) else token_ids:
            if index < self.vocab_size:
                ids.append(int(index))
            elif not skip_special_tokens:
                added = self.added_tokens_decoder.get(int(index))  # None for an id that only a resized model has
                text = text + self.processor.decode(ids) + (added.content if added else "")
                ids = []
        return text + self.processor.decode(ids)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        target = Path(save_directory) / (prefix + self.vocab_files_names["vocab_file"])
        if not target.exists() or not target.samefile(self.vocab_file):
            shutil.copyfile(self.vocab_file, target)
        return (str(target),)


def byte_tokenizer() -> RustTokenizer:
    """UTF-8 bytes as ids 0 to 255, 256 before every text: byte-pair encoding with no pairs."""
    vocabulary = {letter: byte for byte, letter in bytes_to_unicode().items()}
    return byte_pair_tokenizer(vocabulary, [], words=False)


def byte_pair_tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], words: bool = True) -> RustTokenizer:
    """GPT-2's byte-level BPE, of its vocabulary and merges. ``words``: whether GPT-2's pattern splits a text before the merges."""
    tokenizer = RustTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return with_begin(tokenizer)


def tokenizer_of_file(data: str, hidden: bool = False) -> RustTokenizer:
    """The tokenizer of a tokenizer.json, for whole texts, with only our special token around them; ``hidden``: see `with_begin`."""
    tokenizer = RustTokenizer.from_str(data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return with_begin(tokenizer, hidden)


def symbol_tokenizer(symbols: Sequence[str]) -> RustTokenizer:
    """The symbols of a task, with blanks between them; any other is an error. Nothing is put before a text: such a model reads no
    begin-of-document.
    """
    tokenizer = RustTokenizer(models.WordLevel(vocab={symbol: i for i, symbol in enumerate(symbols)}, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    name = begin_of_document_name(set(symbols))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    return tokenizer


def with_begin(tokenizer: RustTokenizer, hidden: bool = False) -> RustTokenizer:
    """The tokenizer with begin-of-document as its last id, put before every text. ``hidden``: under a name that no text holds,
    for a tokenizer that looks for the names of special tokens in a text."""
    name = begin_of_document_name(tokenizer.get_vocab(with_added_tokens=True)) + HIDDEN * hidden
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    begin = f"{name}:0 $A:0"
    pair = f"{name}:0 $A:0 {name}:1 $B:1"
    special = [(name, tokenizer.token_to_id(name))]
    tokenizer.post_processor = processors.TemplateProcessing(single=begin, pair=pair, special_tokens=special)  # type: ignore
    return tokenizer
