"""Small tokenizers of other kinds than bytes."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from data_prep.tokenizers import GPT2Tokenizer, HuggingFaceTokenizer, Tokenizer
from tests.small_corpus import words

MOVES = ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5"]


def moves_tokenizer() -> RustTokenizer:
    """Chess moves as words, and no unknown token."""
    tokenizer = RustTokenizer(models.WordLevel({move: i for i, move in enumerate(MOVES)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return tokenizer


SPECIAL = ["<pad>", "</s>", "<unk>"]
LETTERS = dict.fromkeys("<>/spadunkxé▁", -5.0) | {"</": -3.0, "▁x": -4.0}


def with_special_tokens(kind: str, decoder: bool = True) -> RustTokenizer:
    """A tokenizer with this kind of model, whose vocabulary holds three special tokens."""
    words = [*SPECIAL, "</", "x", "s", "s>", *LETTERS]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    made = {
        "unigram": lambda: models.Unigram([*((name, 0.0) for name in SPECIAL), *LETTERS.items()], unk_id=2),
        "words": lambda: models.WordLevel(vocab, unk_token="<unk>"),
        "pieces": lambda: models.WordPiece(vocab | {f"##{c}": 90 + i for i, c in enumerate("/s>padunk")}, unk_token="<unk>"),  # type: ignore[call-arg]
        "merges": lambda: models.BPE(vocab, [("<", "/"), ("s", ">"), ("</", "s>")], unk_token="<unk>"),
        "whole words": lambda: models.BPE(vocab, [("<", "/")], unk_token="<unk>", ignore_merges=True),
    }  # fmt: skip
    tokenizer = RustTokenizer(made[kind]())
    blanks = pre_tokenizers.Metaspace() if kind == "unigram" else pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = blanks  # type: ignore[assignment]
    if decoder:
        tokenizer.decoder = {"unigram": decoders.Metaspace(), "pieces": decoders.WordPiece()}.get(kind)  # type: ignore[assignment]
    tokenizer.add_special_tokens(SPECIAL)  # type: ignore[arg-type]
    return tokenizer


def byte_pairs(kind: str) -> Tokenizer:
    """GPT-2's kind of tokenizer, from its two files or from a tokenizer.json with other rules."""
    trained = RustTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "hugging-face")  # type: ignore[assignment]
    trained.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    options: Any = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    special = [AddedToken("<|endoftext|>", special=True)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, **options)
    trained.train_from_iterator(words("train", 3000).splitlines(), trainer)
    if kind == "hugging-face":
        return HuggingFaceTokenizer(trained.to_str().encode())
    model = json.loads(trained.to_str())["model"]
    return GPT2Tokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]])
