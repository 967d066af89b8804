"""Documents, the corpora that they come from, and what a scan (scanning.py) measures of each before anything is written.

for item in corpus.read(corpus.sources("train")):      # Document or Skipped, in the corpus's order, one in memory at a time
    scan(item)                                         # of a Document: Scanned, or Skipped where it is empty

Source, Document and Scanned are named tuples: one of each is made for every document, and a frozen dataclass takes several times
as long to make.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import xxhash

from common.errors import UserError, nearest

SPLITS = ("train", "validation", "test")


class CorpusError(UserError):
    """A corpus cannot be read: the message names the file, the place in it and the remedy."""


class Source(NamedTuple):
    """A document that has not been read yet."""

    id: str
    """Unique in the corpus."""
    title: str
    split: str
    bytes: int
    """Size on the disk: about the size of the text."""
    place: Any = ""
    """Its location in the corpus, in the corpus's own terms: a member of an archive; a file and an offset. In no fingerprint."""


class Document(NamedTuple):
    """A document that has been read."""

    id: str
    title: str
    text: str | bytes
    """bytes are never decoded: the tokenizer `bytes` alone takes them."""
    targets: str | None = None
    """Labels of a corpus that has its own (`Labelled`), else None. For each symbol of the text: the symbol to predict once it is
    read, or `NOTHING`; separated by blanks, as in the text."""


class naming:
    """Turn a UserError about a document's text into a CorpusError that names the document."""

    def __init__(self, document: Document) -> None:
        self._id = document.id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UserError):
            raise CorpusError(f"document {self._id!r}: {error}") from None


@dataclass(frozen=True)
class Skipped:
    """Something that a corpus holds and that is not a document."""

    id: str
    reason: str
    """As in the summary `3 PDF only`: "PDF only", "empty". A corpus has few different reasons."""
    count: int = 1


class Scanned(NamedTuple):
    """A document as the scan saw it."""

    id: str
    title: str
    bytes: int
    """UTF-8 bytes of the text."""
    words: int
    """Runs of non-whitespace, as `str.split` counts them."""
    xxh3: int
    """xxh3-64 of the text's UTF-8 bytes, and of the targets if there are any (see `tally`)."""
    place: Any = ""
    """Place of its source."""


NOTHING = "_"
"""Stands among a document's targets where nothing is predicted."""


class Corpus(Protocol):
    """A frozen dataclass: its fields are its options, and their docstrings become --help."""

    name: ClassVar[str]

    def sources(self, split: str) -> Sequence[Source]:
        """The documents of a split, in a fixed order. Raises CorpusError where there is nothing to read at all."""
        ...

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Read some sources of one split, given in the order of `sources(split)`, one at a time.

        Each source gives any number of Skipped and then at most one Document, with the source's id. The corpus keeps no document
        that it has yielded. Neighbouring sources are read in one pass: an archive is opened once.

        Raises CorpusError where a document cannot be read.
        """
        ...

    def options(self) -> dict[str, Any]:
        """The options that change the content, for the fingerprint. No paths."""
        ...


def check_split(name: str) -> None:
    """Raises UserError for a name that is no split's."""
    if name not in SPLITS:
        raise UserError(f"unknown split {name!r}: {nearest(name, SPLITS)}")


def check_least(corpus: Corpus, **least: int) -> None:
    """Raises CorpusError if a field of a corpus is smaller than its bound in `least`."""
    for field, bound in least.items():
        value = getattr(corpus, field)
        if value < bound:
            raise CorpusError(f"{field} of corpus {corpus.name} is {value}: give --{field} {bound} or more")


def check_most(corpus: Corpus, **most: int) -> None:
    """Raises CorpusError if a field of a corpus is larger than its bound in `most`."""
    for field, bound in most.items():
        value = getattr(corpus, field)
        if value > bound:
            raise CorpusError(f"{field} of corpus {corpus.name} is {value}: give --{field} {bound} or less")


@runtime_checkable
class Remarks(Protocol):
    """A corpus with remarks on its splits, which `prepare` prints."""

    def remarks(self, split: str, documents: Sequence[Scanned]) -> list[str]: ...


@runtime_checkable
class SplitsByHash(Protocol):
    """A corpus that may have no splits of its own. The split of a document is then `split_of` its id."""

    def splits_by_hash(self) -> bool: ...


@runtime_checkable
class Labelled(Protocol):
    """A corpus that labels its tokens itself: a task. Its documents have targets, and its symbols are its tokens."""

    def symbols(self) -> Sequence[str]:
        """Every word that its texts and targets may hold, without blanks inside; a symbol's place is its token id."""
        ...


SMALL = 1000
"""A corpus with this many sources is taken to have documents in each split, whatever their names."""


def sources_of(corpus: Corpus, splits: Sequence[str]) -> dict[str, Sequence[Source]]:
    """The documents of some splits of a corpus.

    If a small corpus of at least three sources with bytes splits by hash, each split gets one: an empty split takes the source with
    the smallest hash from the largest split, in whatever order they are listed. One that is skipped later leaves its split empty.
    """
    found = {split: corpus.sources(split) for split in splits}
    if any(len(listed) >= SMALL for listed in found.values()):
        return found
    if not (isinstance(corpus, SplitsByHash) and corpus.splits_by_hash()):
        return found
    every = {split: list(found[split] if split in found else corpus.sources(split)) for split in SPLITS}
    # A source without bytes is empty, or stands for items that were left out.
    documents = {split: sorted((s for s in every[split] if s.bytes), key=_hash_of) for split in SPLITS}
    if sum(map(len, every.values())) < SMALL and sum(map(len, documents.values())) >= 3:
        for split in [split for split in SPLITS if not documents[split]]:
            giver = max(SPLITS, key=lambda name: len(documents[name]))
            moved = documents[giver].pop(0)
            every[giver].remove(moved)
            documents[split].append(moved)
            every[split].append(moved._replace(split=split))
    return {split: every[split] for split in splits}


def _hash_of(source: Source) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(source.id.encode()), source.id


def split_of(name: str) -> str:
    """The split of a document in a corpus that has none of its own: 86 % train, 7 % validation, 7 % test, by its name."""
    share = xxhash.xxh3_64_intdigest(name.encode()) % 100
    if share < 86:
        return "train"
    return "validation" if share < 93 else "test"


def scan(document: Document) -> Scanned | Skipped:
    """Size, words and digest of a document, without its place; Skipped where it holds nothing but whitespace."""
    size, words, checksum = tally(document.text, document.targets)
    if not words:
        return Skipped(document.id, "empty")
    return Scanned(document.id, document.title, size, words, checksum)


PIECE = 1 << 18
"""Characters of a text that are processed at a time, so that a long text needs little extra memory and fits the CPU's cache."""


SHORT_TEXT = 4096
"""The most characters of a text that is processed as a whole, which is faster than in pieces."""


def tally(text: str | bytes, targets: str | None = None) -> tuple[int, int, int]:
    """Number of UTF-8 bytes and of words of a text, and the xxh3-64 of its bytes, followed by a 0 and the targets if there are any.

    Words are counted as in ``text.split()``, but a long text makes no list of them. In bytes, ASCII white space separates words.
    """
    if isinstance(text, str) and len(text) <= SHORT_TEXT and targets is None:
        data = text.encode()
        return len(data), len(text.split()), xxhash.xxh3_64_intdigest(data)
    size = words = 0
    found = xxhash.xxh3_64()
    inside = False  # whether the piece before ended within a word
    for piece, data in _pieces(text):
        size += len(data)
        found.update(data)
        spaced = data
        if isinstance(piece, str) and not piece.isascii() and _WIDE_SPACE.search(piece):
            spaced = _WIDE_SPACE.sub(" ", piece).encode()
        letters = np.frombuffer(spaced, dtype=np.uint8)
        space = (letters - 9 <= 4) | (letters - 28 <= 4)  # \t to \r, \x1c to the space: differences wrap around
        words += int(np.count_nonzero(space[:-1] > space[1:])) + int(not space[0] and not inside)
        inside = not space[-1]
    if targets is not None:
        found.update(b"\0" + targets.encode())
    return size, words, found.intdigest()


def checksum(text: str | bytes, targets: str | None = None) -> int:
    """The same digest as `tally`'s."""
    if isinstance(text, str) and len(text) <= SHORT_TEXT and targets is None:
        return xxhash.xxh3_64_intdigest(text.encode())
    found = xxhash.xxh3_64()
    for _, data in _pieces(text):
        found.update(data)
    if targets is not None:
        found.update(b"\0" + targets.encode())
    return found.intdigest()


def _pieces(text: str | bytes) -> Iterator[tuple[str | bytes, bytes]]:
    """The pieces of a text, each as it is and in UTF-8."""
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        yield piece, piece if isinstance(piece, bytes) else piece.encode()


_WIDE_SPACE = re.compile("[" + "".join(c for c in map(chr, range(128, 0x3001)) if c.isspace()) + "]")
