"""The sources of a split with very many small documents, as arrays: a list of objects would take ten times their memory and time.

    sources = NumberedSources.join("train", [NumberedFile("a.jsonl", numbers, sizes, (offsets,))])
    sources[3]                                  # Source("a.jsonl:4", "a.jsonl:4", "train", 160, ("a.jsonl", 640))
    names_of(sources), sizes_of(sources)        # of these or of any other sequence of sources

A corpus may list its documents in either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from data_prep.documents import Corpus, CorpusError, Document, Skipped, Source, checksum, split_of


@dataclass(frozen=True, eq=False)
class NumberedFile:
    """Documents of one file that have a number each, and no other name."""

    name: str
    numbers: np.ndarray
    """int64 [documents]. `NAME:NUMBER` is a document's id and its title."""
    sizes: np.ndarray
    """int64 [documents]. Bytes of each, as `Source.bytes`."""
    places: tuple[np.ndarray, ...]
    """int64 [documents] each. A document's place is a tuple of the file's name and its number in each of these."""


@dataclass(frozen=True, eq=False)
class NumberedSources(Sequence[Source]):
    """The sources of numbered documents, made into objects as they are asked for, followed by some other sources."""

    split: str
    files: tuple[str, ...]
    """Names of the files."""
    file: np.ndarray
    """int32 [documents]. Index of each document's file."""
    numbers: np.ndarray
    """int64 [documents]."""
    sizes: np.ndarray
    """int64 [documents]."""
    places: np.ndarray
    """int64 [documents, columns]."""
    others: tuple[Source, ...] = ()

    @staticmethod
    def join(split: str, files: Sequence[NumberedFile], others: Sequence[Source] = ()) -> NumberedSources:
        """All documents of some files, of which there must be at least one."""
        return NumberedSources(
            split,
            tuple(file.name for file in files),
            np.repeat(np.arange(len(files), dtype=np.int32), [len(file.numbers) for file in files]),
            np.concatenate([file.numbers for file in files]),
            np.concatenate([file.sizes for file in files]),
            np.concatenate([np.stack(file.places, 1) for file in files]),
            tuple(others),
        )

    def __len__(self) -> int:
        return len(self.numbers) + len(self.others)

    @overload
    def __getitem__(self, index: int) -> Source: ...
    @overload
    def __getitem__(self, index: slice) -> NumberedSources: ...
    def __getitem__(self, index: int | slice) -> Source | NumberedSources:
        places = range(len(self))[index]
        if isinstance(places, range):
            return self.take(np.array(places, dtype=np.int64))
        return next(iter(self.take(np.array([places]))))

    def __iter__(self) -> Iterator[Source]:
        files = [self.files[file] for file in self.file.tolist()]
        places = zip(files, *self.places.T.tolist(), strict=True)
        for name, number, size, place in zip(files, self.numbers.tolist(), self.sizes.tolist(), places, strict=True):
            id = f"{name}:{number}"
            yield Source(id, id, self.split, size, place)
        yield from self.others

    def take(self, indices: np.ndarray) -> NumberedSources:
        """The sources at some indices (int64, in ascending order)."""
        own = indices[indices < len(self.numbers)]
        count = len(self.numbers)
        others = tuple(self.others[i - count] for i in indices[len(own) :].tolist())
        return NumberedSources(
            self.split, self.files, self.file[own], self.numbers[own], self.sizes[own], self.places[own], others
        )

    def names(self) -> list[str]:
        """The name of each numbered document, which is its id and its title. The other sources are left out."""
        named = zip(self.file.tolist(), self.numbers.tolist(), strict=True)
        return [f"{self.files[file]}:{number}" for file, number in named]


def in_split_by_hash(name: str, numbers: np.ndarray, split: str) -> np.ndarray:
    """bool [documents]. Which numbered documents of a file are in a split, by the hash of their ids."""
    return np.array([split_of(f"{name}:{number}") == split for number in numbers.tolist()], bool)


def take(sources: Sequence[Source], indices: np.ndarray) -> Sequence[Source]:
    """The sources at some indices (int64, in ascending order)."""
    if isinstance(sources, NumberedSources):
        return sources.take(indices)
    return [sources[i] for i in indices.tolist()]


def names_of(sources: Sequence[Source]) -> tuple[list[str], list[str]]:
    """Ids and titles of some sources."""
    if isinstance(sources, NumberedSources):
        names = sources.names()
        return names + [s.id for s in sources.others], names + [s.title for s in sources.others]
    return [source.id for source in sources], [source.title for source in sources]


def sizes_of(sources: Sequence[Source]) -> np.ndarray:
    """int64 [sources]. Bytes of each."""
    if isinstance(sources, NumberedSources):
        return np.concatenate([sources.sizes, [source.bytes for source in sources.others]]).astype(np.int64)
    return np.array([source.bytes for source in sources], np.int64)


def group_by_bytes(sizes: np.ndarray, limit: int) -> list[range]:
    """Consecutive runs of items, each closed as soon as its sizes sum to `limit`."""
    ends = np.cumsum(sizes)
    groups = []
    start = 0
    while start < len(sizes):
        filled = ends[start] - sizes[start]
        stop = min(int(np.searchsorted(ends, filled + limit)) + 1, len(sizes))
        groups.append(range(start, stop))
        start = stop
    return groups


def read_sources(corpus: Corpus, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
    """Read some sources of one split, as `Corpus.read`. Raises CorpusError also for a file that is gone since it was listed."""
    try:
        yield from corpus.read(sources)
    except FileNotFoundError as error:
        raise CorpusError(f"{error.filename or error} went away while it was being prepared: start again") from None


def reread(corpus: Corpus, sources: Sequence[Source], checksums: Iterable[int]) -> Iterator[Document]:
    """Read the documents that a scan saw once more, in the order of the scan.

    Args:
        sources: sources of these documents alone.
        checksums: xxh3-64 of each document.

    Raises CorpusError if a document has changed since the scan.
    """
    ids, _ = names_of(sources)
    expected = zip(ids, checksums, strict=True)
    for item in read_sources(corpus, sources):
        if isinstance(item, Skipped):
            continue
        id, digest = next(expected, (None, 0))
        if item.id != id or checksum(item.text, item.targets) != digest:
            raise CorpusError(f"document {item.id!r} changed while it was being prepared: start again")
        yield item
        del item  # before the next one is read
    for id, _ in expected:
        raise CorpusError(f"document {id!r} went away while it was being prepared: start again")
