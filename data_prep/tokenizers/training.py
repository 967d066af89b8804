"""Train a SentencePiece model without loss on a sample of the train split: `--tokenizer sentencepiece:32000`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass

import sentencepiece

from data_prep.tokenizers.base import TokenizerError
from data_prep.tokenizers.sentence_piece import Recipe, SentencePieceTokenizer

MIN_PIECES = 300
"""The least pieces of a model to train: 256 bytes, a newline, and some to learn."""


@dataclass(frozen=True)
class TokenizerTraining:
    """A request to train a SentencePiece model on the corpus, as read from a spec such as `sentencepiece:2048`."""

    spec: str
    model_type: str
    pieces: int


def train_sentencepiece(training: TokenizerTraining, corpus: str, lines: Iterable[str]) -> SentencePieceTokenizer:
    """Train a lossless SentencePiece model: identity normalization, bytes for rare characters, newline a piece of its own.

    Args:
        corpus: digest of the train split; kept beside the model, so that a rerun knows it again.
        lines: the training text, without its newlines. The same lines give the same model.

    Where the text gives fewer pieces than were asked for, the model has fewer: `shortfall` says so.

    Raises TokenizerError where there is no text, or it has more different characters than there would be pieces.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=training.model_type,
            vocab_size=training.pieces,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            user_defined_symbols=["\n"],
            character_coverage=0.9999,
            # Fewer seeds and a faster prune than the defaults: four times faster, and no worse on held-out text.
            seed_sentencepiece_size=max(20_000, 10 * training.pieces),
            shrinking_factor=0.5,
            bos_id=-1,
            eos_id=-1,
            num_threads=4,  # fixed: the order of sums, and so the model, depends on it
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason)
        if needed:
            reason = f"its common characters and the 256 bytes alone take {needed[1]} pieces"
            remedy = f"ask for {needed[1]} or more"
        else:
            remedy = "choose a corpus with more text"
        raise TokenizerError(
            f"tokenizer {training.spec!r} cannot be trained on this corpus ({reason}): {remedy}, or use --tokenizer bytes"
        ) from None
    return SentencePieceTokenizer(model.getvalue(), training.spec, Recipe(training.spec, corpus))


def shortfall(training: TokenizerTraining, trained: SentencePieceTokenizer) -> str:
    """A sentence if the corpus was too small for the requested number of pieces; else an empty string."""
    pieces = trained.vocab_size - 1
    if pieces >= training.pieces:
        return ""
    remedy = "give a larger corpus, or use --tokenizer bytes"
    if pieces >= MIN_PIECES:
        remedy = f"ask for {pieces:,} or fewer, or give a larger corpus"
    return f"tokenizer {training.spec} has {pieces:,} pieces and not {training.pieces:,}: the train split gives no more; {remedy}"
