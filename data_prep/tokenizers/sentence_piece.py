"""SentencePiece models, unigram or BPE: loaded as they are, or trained here without loss.

    tokenizer = SentencePieceTokenizer(Path("pg19.model").read_bytes(), "pg19.model")

The ids are the model's own (a T5 model keeps pad 0, eos 1, unk 2), and one more begins a document.

Long documents are encoded a few thousand characters at a time, where the model proves that this cannot change the ids. It needs
two things of a cut: normalizing the pieces gives the whole normalized, and no vocabulary piece can lie across it. Then the best
segmentation of the whole is that of each piece. (For unigram models in floating point it is even better: SentencePiece sums
scores in 32 bits, which over a whole book are too coarse to tell segmentations apart. Where two have the same score, as five
spaces that are cut into four and one or one and four, either may be taken.)

- After a newline: the model's normalization is the identity, it adds no prefix, and its only piece with a newline is the newline
  itself. Models trained here are such.
- Between c and a space that a letter or a printable ASCII character follows, c being another such: no rule of the model's
  normalization reads or changes either (`charsmap.kept_before_a_space`), and no piece has a space (U+2581) after another
  character. A model that puts a space before every text puts one before the piece that follows, so the cut's own is left out,
  unless the model strips it anyway. A unigram model, for which another cut may choose another of two equal segmentations, is cut
  between printable ASCII characters as long as there is such a place within 65,536.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import sentencepiece
import xxhash
from sentencepiece import sentencepiece_model_pb2

from common.cuts import Cuts
from common.files import digest
from data_prep.tokenizers.base import Ids, TokenizerError, concatenate, encode_each, encoding_errors, token_dtype
from data_prep.tokenizers.charsmap import PRINTABLE, kept_before_a_space
from data_prep.tokenizers.letters import OTHER_LETTERS, members, ranges

PIECE_CHARACTERS = 4096
PIECES_AT_ONCE = 64
SPACE = "\u2581"
UNIGRAM = 1
BPE = 2
NORMAL = 1
USER_DEFINED = 4


@dataclass(frozen=True)
class Recipe:
    """Provenance of a model that was trained here: lets a rerun reuse it."""

    spec: str
    corpus: str
    """Digest of the train split that it was trained on."""


class SentencePieceTokenizer:
    """A SentencePiece model. See the module's docstring.

    Attributes:
        cuts: where long texts may be cut; None where nothing is proved, and texts are encoded as a whole.
    """

    takes_bytes = False

    def __init__(self, model: bytes, name: str = "sentencepiece", recipe: Recipe | None = None) -> None:
        """Raises TokenizerError where `model` is not a SentencePiece model."""
        self._processor = sentencepiece.SentencePieceProcessor()
        proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        try:
            loaded = bool(model) and self._processor.load_from_serialized_proto(model)
            proto.ParseFromString(model)
        except Exception:  # SentencePiece and protobuf raise types of their own
            loaded = False
        if not loaded or not proto.pieces:
            raise TokenizerError(f"{name} is not a SentencePiece model: give a .model file that SentencePiece wrote")
        self._model = model
        self.name = name
        self.recipe = recipe
        self._pieces = self._processor.get_piece_size()
        self.vocab_size = self._pieces + 1
        self.fingerprint = digest({"kind": "sentencepiece", "model": xxhash.xxh3_128_hexdigest(model)})
        self.cuts = find_cuts(proto)

    def encode(self, text: str) -> np.ndarray:
        """Ids [n] of a text. A long one is encoded in pieces, cut where that gives the same ids."""
        with encoding_errors(self.name):
            if self.cuts is None or len(text) <= self.cuts.characters:
                return self._processor.encode_as_numpy(text).astype(token_dtype(self.vocab_size))
            pieces = self.cuts.pieces(text)
            ids = Ids(self.vocab_size)
            while some := list(islice(pieces, PIECES_AT_ONCE)):
                for part in self._processor.encode_as_numpy(some, num_threads=1):
                    ids.append(part)
            return ids.take()

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.cuts is None or max(map(len, texts)) > self.cuts.characters:
            return encode_each(self, texts)
        with encoding_errors(self.name):
            ids, lengths_N = concatenate(self._processor.encode_as_numpy(list(texts), num_threads=1))
        return ids.astype(token_dtype(self.vocab_size)), lengths_N

    def decode(self, ids: np.ndarray | list[int]) -> str:
        ids = np.asarray(ids, dtype=np.int64)
        return self._processor.decode(ids[ids < self._pieces].tolist())

    def details(self) -> dict[str, Any]:
        trained = {"spec": self.recipe.spec, "corpus": self.recipe.corpus} if self.recipe else None
        return {"kind": "sentencepiece", "name": self.name, "trained": trained}

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.model": self._model}


def find_cuts(proto: Any) -> Cuts | None:
    """Where texts may be cut for the model in a ModelProto, as the module's docstring explains; None where nothing is proved."""
    rules = proto.normalizer_spec
    trainer = proto.trainer_spec
    prefix = rules.add_dummy_prefix
    strips = rules.remove_extra_whitespaces
    pieces = [piece.piece for piece in proto.pieces]
    keeps_lines = not (rules.precompiled_charsmap or prefix or strips) and [p for p in pieces if "\n" in p] == ["\n"]
    usual = (
        trainer.model_type in (UNIGRAM, BPE)
        and rules.escape_whitespaces
        and not trainer.treat_whitespace_as_suffix
        and (prefix or not strips)  # else the space of the cut would be stripped from the next piece and not put back
        and not any(" " in piece or re.search(f"[^{SPACE}]{SPACE}", piece) for piece in pieces)
        # Else the space might be unknown, and unknown pieces in a row become one:
        and any(piece.piece == SPACE and piece.type in (NORMAL, USER_DEFINED) for piece in proto.pieces)
    )
    kept = _kept(rules.precompiled_charsmap) if usual else ""
    printable = "".join(c for c in kept if c in PRINTABLE)
    letters = "".join(c for c in kept if c not in PRINTABLE)
    before = "!-~" if printable == PRINTABLE else re.escape(printable)
    narrow = ["\n"] if keeps_lines else []
    wide = ["\n"] if keeps_lines else []
    if printable:
        narrow.append(f"[{before}](?= [!-~])")
    if kept:
        wide.append(f"[{before}{ranges(letters)}](?= [!-~{OTHER_LETTERS}])")
    if not wide:
        return None
    exact = trainer.model_type == BPE or not narrow
    pattern, fallback = (wide, []) if exact else (narrow, wide)
    return Cuts("|".join(pattern), PIECE_CHARACTERS, int(prefix and not strips), "|".join(fallback))


def _kept(charsmap: bytes) -> str:
    """The printable characters and letters that may stand before the space of a cut, with any of them after it."""
    return kept_before_a_space(charsmap, PRINTABLE + members(OTHER_LETTERS)) or kept_before_a_space(charsmap)
