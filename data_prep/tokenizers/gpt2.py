"""GPT-2's byte-level BPE from its vocabulary and merges, run by tiktoken, with the ids that Hugging Face's gives.

    tokenizer = GPT2Tokenizer.from_folder(Path("gpt2"))      # vocab.json and merges.txt, or encoder.json and vocab.bpe

The ids are those of the vocabulary file, and one more begins a document. `<|endoftext|>` in a text is ordinary text: it is
never the special id.

The two libraries do not read merges alike. Hugging Face's merges the adjacent pair that stands first in the list of merges;
tiktoken the adjacent pair whose *concatenation* has the lowest rank, from wherever it came. We give tiktoken the place in the
list as rank, and look up the id of each rank. The two then agree on every text if each merge (l, r) is how its own concatenation t
comes about: if the merges before it turn the bytes of t into exactly [l, r]. For suppose that tiktoken merges l', r' with
l'r' = t, where they stand in some text. Both were made by merges inside t, in the order in which t alone is merged, none across
its ends; so [l', r'] is a state of merging t alone, which has one state of two tokens: (l', r') = (l, r), a merge of the list.
`_improper` checks it for all merges; a list that fails (none that was learned by BPE does) is refused.

Long texts are cut between a character that is not whitespace and a space or newline. The pattern that splits text into words

    '(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

has whitespace only at a match's beginning or throughout, so no match runs over such a place. A match before it ends where it
would in the whole: its class of characters ends at whitespace as it ends at the end of the piece; and the one look-ahead is at
the end of a run of whitespace, which in a piece is followed by a character of the same piece. Nothing looks back.

tiktoken gives up on a run of about a million blanks before a word, since the look-ahead makes it backtrack. A piece that it
refuses is divided at its long runs of whitespace. The pattern makes one match of such a run without its last character, which
belongs to what follows; at the end of the text, one match of the whole run. That match is encoded as the one word that it is.

Short texts are encoded together, because a call of tiktoken costs as much time as the ids of a line. The name of a special token
stands between them. tiktoken splits the text there before it applies the pattern, so the pattern sees each text alone. No proper
prefix of that name is also a suffix, so the name cannot arise where a text meets it; texts that contain it are encoded one by one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import xxhash

from common.cuts import Cuts
from common.files import digest, parse_json
from common.places import Place
from data_prep.tokenizers.base import Ids, TokenizerError, encode_each, encoding_errors, token_dtype

PATTERN = r"(?:'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)|\s++$|\s+(?!\S)|\s"
"""GPT-2's pattern, with the alternatives that need no look-ahead in one group. The regular-expression library matches that at once:
with the pattern as tiktoken writes it, a text takes a third more time."""

# Python's \s has all characters of Unicode's White_Space, and a few more.
CUTS = Cuts(r"\S(?=[ \n])", characters=1 << 16)

WHITE_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space, as a class of characters: tiktoken's meaning of \\s."""

SEPARATOR = "<|endoftext|>"
"""Stands between texts that are encoded together."""

LONG_RUN = re.compile(f"(?<![{WHITE_SPACE}])[{WHITE_SPACE}]{{1000,}}")

RELEASED = ("b8ee17fb74d600977c022969928ab805", "cade03f6c6d086cfff69203fc1b82e47", 50_257)
"""GPT-2's own files: checksum of their bytes, fingerprint, and ids. They are not checked here: a test checks them."""

FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""Names of the two files: Hugging Face's, and OpenAI's."""


def byte_letters() -> dict[int, str]:
    """The letter by which GPT-2's files write each byte: itself where it is printable, else a letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class GPT2Tokenizer:
    """A byte-level BPE with GPT-2's pattern. See the module's docstring."""

    takes_bytes = False

    def __init__(
        self,
        vocab: dict[str, int] | None,
        merges: list[tuple[str, str]] | None,
        name: str = "gpt2",
        *,
        check: bool = True,
        files: tuple[bytes, bytes] | None = None,
    ) -> None:
        """
        Args:
            vocab: id of each token, in the letters of `byte_letters`; None where it is to be read from `files` when it is needed.
            merges: pairs of tokens, the first to be merged first; likewise.
            check: whether to prove that the ids are Hugging Face's (a second for 50,000 merges).
            files: bytes of the two files from which `vocab` and `merges` were read, if any.

        Raises TokenizerError where the two do not make a byte-level BPE.
        """
        self.name = name
        self._files = files
        if vocab is not None and merges is not None:
            self.vocab = vocab
            self.merges = merges
        if files and is_released(files):
            _, self.fingerprint, self._pieces = RELEASED
        else:
            self.fingerprint = digest({"kind": "gpt2", "vocab": digest(self.vocab), "merges": digest(self.merges)})
            self._pieces = max(self.vocab.values(), default=-1) + 1
            self._check(check and self.fingerprint != RELEASED[1])
        self.vocab_size = self._pieces + 1

    def _check(self, prove: bool) -> None:
        name = self.name
        vocab = self.vocab
        merges = self.merges
        letters = byte_letters()
        lacking = next((f"the byte 0x{b:02x} ({letter})" for b, letter in letters.items() if letter not in vocab), "")
        for left, right in merges:
            if left not in vocab or right not in vocab or left + right not in vocab:
                lacking = lacking or f"{left!r}, {right!r} or {left + right!r}, which its merges name"
        if lacking:
            raise TokenizerError(f"{name} is not a byte-level BPE: its vocabulary lacks {lacking}")
        tokens = self._tokens
        if len(set(tokens)) < len(tokens):
            twice = Counter(tokens).most_common(1)[0][0]
            raise TokenizerError(f"{name} makes the token {twice!r} twice: give the merges that its training wrote")
        if prove and (improper := _improper(merges)):
            raise TokenizerError(
                f"{name} has the merge {' '.join(improper)!r}, which the merges before it make impossible: give the merges that "
                "its training wrote"
            )

    @classmethod
    def from_folder(cls, folder: Path) -> GPT2Tokenizer:
        """Raises TokenizerError where the folder has no such two files, or they are malformed."""
        for names in FILES:
            paths = [folder / name for name in names]
            if all(path.is_file() for path in paths):
                return cls.from_files(paths[0], paths[1], folder.name or "gpt2")
        remedy = "give the folder that has the files of GPT-2's tokenizer"
        if (folder / "tokenizer.json").is_file():
            remedy = f"give {folder} without gpt2: in front, which reads its tokenizer.json"
        wanted = " nor ".join(" and ".join(names) for names in FILES)
        raise TokenizerError(f"{folder} has neither {wanted}: {remedy}")

    @classmethod
    def from_files(cls, vocab: Path | Place, merges: Path | Place, name: str, *, check: bool = True) -> GPT2Tokenizer:
        """Raises TokenizerError where one is malformed, or the two do not belong together."""
        files = (vocab.read_bytes(), merges.read_bytes())
        if is_released(files):
            return cls(None, None, name, files=files)
        return cls(read_vocab(files[0], vocab), read_merges(files[1], merges), name, check=check, files=files)

    @cached_property
    def vocab(self) -> dict[str, int]:
        assert self._files
        return read_vocab(self._files[0], Path(FILES[0][0]))

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        assert self._files
        return read_merges(self._files[1], Path(FILES[0][1]))

    @property
    def _tokens(self) -> list[str]:
        """The tokens that merging can make, in the order of their ranks."""
        return [*byte_letters().values(), *(left + right for left, right in self.merges)]

    @cached_property
    def _table(self) -> np.ndarray:
        """The id of each rank."""
        return np.array([self.vocab[token] for token in self._tokens], dtype=token_dtype(self.vocab_size))

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        return self._encoding_by(PATTERN)

    @cached_property
    def _one_word(self) -> tiktoken.Encoding:
        """An encoding that takes a whole text as one word."""
        return self._encoding_by(r"(?s:.+)")

    def _encoding_by(self, pattern: str) -> tiktoken.Encoding:
        bytes_of = {letter: byte for byte, letter in byte_letters().items()}
        ranks = {bytes(map(bytes_of.__getitem__, token)): rank for rank, token in enumerate(self._tokens)}
        # Without a special token, tiktoken looks for the empty one at every character. `encode` allows none.
        special = {SEPARATOR: len(ranks)}
        return tiktoken.Encoding(self.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(self, text: str) -> np.ndarray:
        """Ids [n] of a text. Names of special tokens are ordinary text."""
        with encoding_errors(self.name):
            if len(text) <= CUTS.characters:  # most of the time of a short one would be spent on the loop
                return self._ids(self._encoding, text)
            ids = Ids(self.vocab_size)
            for piece in CUTS.pieces(text):
                try:
                    ids.append(self._ids(self._encoding, piece))
                except ValueError:  # the pattern's backtracking has a limit
                    for encoding, part in self._at_long_runs(piece):
                        ids.append(self._ids(encoding, part))
            return ids.take()

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of several texts, in their order."""
        joined = SEPARATOR.join(texts)
        if joined.count(SEPARATOR) >= len(texts):
            return encode_each(self, texts)
        with encoding_errors(self.name):
            ranks = self._encoding.encode_to_numpy(joined, allowed_special={SEPARATOR}, disallowed_special=())
        separators = np.flatnonzero(ranks == len(self._table))
        lengths_N = np.diff(separators, prepend=-1, append=len(ranks)) - 1
        return self._table[np.delete(ranks, separators)], lengths_N

    def _ids(self, encoding: tiktoken.Encoding, text: str) -> np.ndarray:
        return self._table[encoding.encode_to_numpy(text, disallowed_special=())]

    def _at_long_runs(self, piece: str) -> Iterator[tuple[tiktoken.Encoding, str]]:
        """The parts of a piece, each with what encodes it, as the module's docstring explains."""
        start = 0
        for run in LONG_RUN.finditer(piece):
            end = run.end() if run.end() == len(piece) else run.end() - 1
            yield self._encoding, piece[start : run.start()]
            yield self._one_word, piece[run.start() : end]
            start = end
        yield self._encoding, piece[start:]

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The text of each id; empty if the vocabulary has no token of that id."""
        letters = {letter: byte for byte, letter in byte_letters().items()}
        table = [b""] * self.vocab_size
        for token, index in self.vocab.items():
            known = all(letter in letters for letter in token)
            table[index] = bytes(map(letters.__getitem__, token)) if known else token.encode()
        return table

    def decode(self, ids: np.ndarray | list[int]) -> str:
        table = self._bytes
        return b"".join([table[i] for i in np.asarray(ids, dtype=np.int64).tolist()]).decode(errors="replace")

    def details(self) -> dict[str, Any]:
        return {"kind": "gpt2", "name": self.name}

    def files(self) -> dict[str, bytes]:
        """The two files as they were read, or written anew."""
        if self._files:
            return dict(zip(FILES[0], self._files, strict=True))
        lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self.merges), ""]
        vocab = dict(sorted(self.vocab.items(), key=lambda item: item[1]))
        return {
            "vocab.json": json.dumps(vocab, ensure_ascii=False, indent=0).encode(),
            "merges.txt": "\n".join(lines).encode(),
        }


def is_released(files: tuple[bytes, bytes]) -> bool:
    """Whether these are GPT-2's own two files."""
    return xxhash.xxh3_128_hexdigest(b"".join(files)) == RELEASED[0]


def _improper(merges: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The first merge whose concatenation the merges before it do not turn into its pair; None if there is none."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for rank, pair in enumerate(merges):
        parts = list("".join(pair))
        while len(parts) > 2:
            found = [ranks.get(two, rank) for two in pairwise(parts)]
            lowest = min(found)
            if lowest >= rank:
                break
            left, right = merges[lowest]
            merged = []
            i = 0
            while i < len(parts):
                both = parts[i] == left and i + 1 < len(parts) and parts[i + 1] == right
                merged.append(left + right if both else parts[i])
                i += 2 if both else 1
            parts = merged
        if tuple(parts) != pair:
            return pair
    return None


def read_vocab(data: bytes, path: Path | Place) -> dict[str, int]:
    """Token → id. Raises TokenizerError naming the file where it is not such a table."""
    try:
        vocab = parse_json(data.decode())
    except ValueError as error:  # not UTF-8, or not JSON
        raise TokenizerError(f"{path} is not a vocabulary in JSON ({error}): {REMEDY}") from None
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{path} is not a table of tokens and ids: {REMEDY}")
    taken: dict[int, str] = {}
    for token, index in vocab.items():
        if type(index) is not int or not 0 <= index < MAX_IDS:
            raise TokenizerError(f"{path} gives the token {token!r} the id {index!r}: {REMEDY}")
        if index in taken:
            raise TokenizerError(f"{path} gives the id {index} to {taken[index]!r} and to {token!r}: {REMEDY}")
        taken[index] = token
    return vocab


def read_merges(data: bytes, path: Path | Place) -> list[tuple[str, str]]:
    """Pairs of tokens. Raises TokenizerError naming the file and the line without a pair."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): {REMEDY}") from None
    merges = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise TokenizerError(f"{path} has no pair of tokens in line {number} ({line[:40]!r}): {REMEDY}")
        merges.append((pair[0], pair[1]))
    return merges


REMEDY = "give the file as it was released"

MAX_IDS = 1 << 24
"""A larger id than this is no id of a token."""
