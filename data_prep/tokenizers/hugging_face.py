"""Any Hugging Face `tokenizer.json`, by the library that reads it; one that is GPT-2's in all but name by tiktoken, 7× faster.

    tokenizer = HuggingFaceTokenizer(Path("tokenizer.json").read_bytes(), "tokenizer.json")

The ids are the file's own, and one more begins a document. The file's settings of truncation, padding and special tokens around
a text do not apply, and a special token's name in a text is ordinary text: a document is encoded whole and as it is.

A vocabulary that has neither an unknown token nor one for each byte must cover the corpus: a text that it does not cover is an
error, also where the library would drop the characters. Control characters, and those of Unicode's empty planes 4 to 13, are
dropped: the tokenizer of SmolLM2, for example, has no token for some of them.

Long texts are cut after two letters and before a space that a letter follows (letters.py lists them), if the pipeline consists of
the parts listed here. These normalizers look at a character and the marks that combine with it. They keep the space, and make no
blank of the letter before it. These pre-tokenizers always end a word there; no added token lies across; and the model sees one word
at a time. A text for any other pipeline is encoded as a whole, which takes some 60 times its bytes in memory.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models

from common.cuts import Cuts
from common.files import digest
from data_prep.tokenizers.base import Ids, TokenizerError, encode_each, encoding_errors, token_dtype
from data_prep.tokenizers.charsmap import kept_before_a_space
from data_prep.tokenizers.chat import CHAT_FILE, Chat
from data_prep.tokenizers.gpt2 import MAX_IDS, GPT2Tokenizer
from data_prep.tokenizers.letters import LETTERS, members, ranges
from data_prep.tokenizers.special_names import pair_of, without_special_names

PIECE_CHARACTERS = 4096
NO_TOKEN = "\U0010ffff"
"""A name that no vocabulary has, since Unicode keeps the character out of texts."""

NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
PRE_TOKENIZERS = {"ByteLevel", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Each ends a word before the space after it; ByteLevel only if it uses its pattern."""

_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {_CL100K % r"\p{N}{1,3}", _CL100K % r"\p{N}"}
"""Split's patterns in Llama 3 and Qwen 2. As in GPT-2's, whitespace stands only at a match's beginning, or throughout."""


class HuggingFaceTokenizer:
    """A `tokenizer.json`. See the module's docstring."""

    takes_bytes = False

    def __init__(self, data: bytes, name: str = "tokenizer.json", engine: str = "", chat: Chat | None = None) -> None:
        """
        Args:
            chat: prompt format of its model, for an export; it changes no id.
            engine: library to encode with, "tiktoken" or "tokenizers", as an earlier check of the file found; "" checks it.

        Raises TokenizerError where `data` is not such a file, or its ids are random.
        """
        try:
            spec = json.loads(data.decode())
            self._tokenizer = RustTokenizer.from_str(data.decode())  # before the file is changed: for its error message
            kind = type(self._tokenizer.model).__name__  # older files leave it to the library
            typed = {**spec, "model": {"type": kind, **spec["model"]}}
            run = without_special_names(typed)
            self._renamed = "" if run is typed else json.dumps(run)
            if self._renamed:
                self._tokenizer = RustTokenizer.from_str(self._renamed)
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises Exception itself, and panics as a BaseException
            reason = " ".join(str(error).split())[:200]
            raise TokenizerError(
                f"{name} is not a tokenizer.json that Hugging Face's library can read ({reason}): give the file as it was released"
            ) from None
        if not vocabulary:
            raise TokenizerError(f"{name} has no tokens: give the file as it was released")
        if spec["model"].get("dropout"):
            raise TokenizerError(
                f"{name} drops merges at random (dropout {spec['model']['dropout']}): set its dropout to null"
            )
        # BPE without an unknown token drops characters that have none, but raises where the vocabulary lacks the unknown token.
        self._drops = kind == "BPE" and self._tokenizer.model.unk_token is None
        if self._drops:
            self._tokenizer.model.unk_token = NO_TOKEN
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # as ordinary text
        self.data = data
        self.name = name
        self.chat = chat
        self.added_ids: dict[str, int] = {token["content"]: token["id"] for token in spec.get("added_tokens", ())}
        self._pieces = max(vocabulary.values()) + 1
        if self._pieces > MAX_IDS:
            raise TokenizerError(
                f"{name} has the id {self._pieces - 1:,}, and ids below {MAX_IDS:,} can be used: give the file as it was released"
            )
        self.vocab_size = self._pieces + 1
        self.fingerprint = digest({"kind": "hugging-face", "file": spec})
        self._gpt2 = None if engine == "tokenizers" else _as_gpt2(run, name, check=not engine)
        self.cuts = find_cuts(run, self._tokenizer.normalizer)

    @property
    def library_file(self) -> str:
        """The library's input: the file, with the names of special tokens as ordinary text (special_names.py)."""
        return self._renamed or self.data.decode()

    def encode(self, text: str) -> np.ndarray:
        if self._gpt2 is not None:
            return self._gpt2.encode(text).astype(token_dtype(self.vocab_size), copy=False)
        ids = Ids(self.vocab_size)
        for piece in self.cuts.pieces(text) if self.cuts else [text]:
            ids.append(self._ids(piece))
        return ids.take()

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._gpt2 is None:  # the library's own batches run in threads
            return encode_each(self, texts)
        ids, lengths_N = self._gpt2.encode_batch(texts)
        return ids.astype(token_dtype(self.vocab_size), copy=False), lengths_N

    def _ids(self, piece: str) -> np.ndarray:
        try:
            return self._library_ids(piece)
        except TokenizerError as error:
            refusal = error
        text = "".join(character for character in piece if not _is_no_text(character))
        if self._drops and text != piece and self._encodes(text):
            return self._with_dropping(piece)
        uncovered = self._characters_without_token(text) or self._unknown_word(piece)
        if uncovered is None:
            raise refusal
        raise TokenizerError(
            f"tokenizer {self.name} has no token for {uncovered[:40]!r}, and none for unknown text: choose a tokenizer with byte "
            "fallback or an unknown token, or leave the text out"
        )

    def _library_ids(self, piece: str) -> np.ndarray:
        with encoding_errors(self.name):
            return np.array(self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)[0].ids, np.int64)

    def _with_dropping(self, piece: str) -> np.ndarray:
        """The library's own ids of a piece: it drops characters without a token."""
        self._tokenizer.model.unk_token = None
        try:
            return self._library_ids(piece)
        finally:
            self._tokenizer.model.unk_token = NO_TOKEN

    def _characters_without_token(self, text: str) -> str:
        """The first characters of a text that have no token; empty where the model's tokens are words, or depend on a character's
        place in a word.
        """
        model = self._tokenizer.model
        affixes = isinstance(model, models.BPE) and (model.continuing_subword_prefix or model.end_of_word_suffix)
        if affixes or not isinstance(model, models.BPE | models.Unigram):
            return ""
        normalizer = self._tokenizer.normalizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        lacking = {character for character in set(normalized) if not self._encodes(character)}
        runs = groupby(normalized, lacking.__contains__)
        return next(("".join(run) for is_lacking, run in runs if is_lacking), "")

    def _encodes(self, text: str) -> bool:
        try:
            self._library_ids(text)
        except TokenizerError:
            return False
        return True

    def _unknown_word(self, piece: str) -> str | None:
        """The first word of a piece that the model itself refuses; None if it takes them all."""
        normalizer = self._tokenizer.normalizer
        pre_tokenizer = self._tokenizer.pre_tokenizer
        text = normalizer.normalize_str(piece) if normalizer else piece
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]
        for word in words:
            try:
                self._tokenizer.model.tokenize(word)
            except Exception:  # the library raises no other type
                return word
        return None

    def decode(self, ids: np.ndarray | list[int]) -> str:
        ids = np.asarray(ids, dtype=np.int64)
        return self._tokenizer.decode(ids[ids < self._pieces].tolist(), skip_special_tokens=False)

    def details(self) -> dict[str, Any]:
        return {"kind": "hugging-face", "name": self.name, "engine": "tiktoken" if self._gpt2 else "tokenizers"}

    def files(self) -> dict[str, bytes]:
        chat = {CHAT_FILE: self.chat.to_json()} if self.chat else {}
        return {"hugging-face.json": self.data, **chat}


def _is_no_text(character: str) -> bool:
    """Whether a character is a control character that breaks no line, or in a plane that Unicode has assigned nothing in."""
    is_control = unicodedata.category(character) == "Cc" and character not in "\t\n\v\f\r\x85"
    return is_control or 0x40000 <= ord(character) < 0xE0000


def _as_gpt2(spec: dict[str, Any], name: str, check: bool) -> GPT2Tokenizer | None:
    """The same tokenizer for tiktoken, where the file's pipeline is GPT-2's; else None."""
    model = spec["model"]
    words = spec.get("pre_tokenizer") or {}
    same = (
        model.get("type") == "BPE"
        and not any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"))
        and spec.get("normalizer") is None
        and words.get("type") == "ByteLevel"
        and words.get("add_prefix_space") is False
        and words.get("use_regex", True)
        and all(token["special"] for token in spec.get("added_tokens", ()))
    )
    if not same:
        return None
    merges = [tuple(pair_of(merge)) for merge in model["merges"]]
    try:
        return GPT2Tokenizer(model["vocab"], merges, name, check=check)  # type: ignore[arg-type]
    except TokenizerError:
        return None


def find_cuts(spec: dict[str, Any], normalizer: Any = None) -> Cuts | None:
    """Where texts may be cut, as the module's docstring explains; None where nothing is proved.

    Args:
        normalizer: the library's normalizer of the same file.
    """
    kept = set(members(LETTERS))
    for part in _parts(spec.get("normalizer"), "normalizers"):
        if part["type"] == "Precompiled":
            charsmap = base64.b64decode(part["precompiled_charsmap"] or "")
            kept &= set(kept_before_a_space(charsmap, members(LETTERS)))
        elif part["type"] not in NORMALIZERS:
            return None
    for token in spec.get("added_tokens", ()):
        if not token["special"] and (token["lstrip"] or token["rstrip"] or _may_lie_across(token, normalizer)):
            return None
    words = _parts(spec.get("pre_tokenizer"), "pretokenizers")
    if not kept or not words or not _parts_words(words[0]):
        return None
    return Cuts(f"(?<=[{LETTERS}])[{ranges(kept)}](?= [{LETTERS}])", PIECE_CHARACTERS)


def _may_lie_across(token: dict[str, Any], normalizer: Any) -> bool:
    """Whether a text may hold an added token across a cut, as it is written or as the normalizer writes it."""
    content = token["content"]
    written = {content, normalizer.normalize_str(content)} if normalizer and token["normalized"] else {content}
    # A token of several blanks cannot: a single space stands between the words of a cut.
    return any(" " in text and not (len(text) > 1 and text.isspace()) for text in written)


def _parts(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The parts of a step of the pipeline, sequences unrolled."""
    if step is None:
        return []
    return [part for one in step[key] for part in _parts(one, key)] if step["type"] == "Sequence" else [step]


def _parts_words(first: dict[str, Any]) -> bool:
    """Whether the first pre-tokenizer always ends a part before a space that follows a letter: the others only split it further."""
    if first["type"] == "Split":
        return first["pattern"].get("Regex") in PATTERNS and first["behavior"] == "Isolated" and not first["invert"]
    if first["type"] == "Metaspace":  # a space before every word: a piece that begins with one gets no second
        return first.get("split", True) and first.get("prepend_scheme", "always") == "always"
    return first["type"] in PRE_TOKENIZERS and bool(first.get("use_regex", True))
