"""enwik8, the first 10⁸ bytes of a Wikipedia dump: one long text of bytes, cut 90/5/5 million into train, validation and test.

The file is plain, in a zip (`enwik8.zip` as released) or packed with gzip, bzip2, xz or zstd. A shorter prefix is cut in the same
shares, rounded down. A split is one document, but `pieces` cuts the train split into several: a lane reads a document from its
beginning, so several lanes would all read the same. The bytes are never decoded, so the tokenizer is `bytes`. Mahoney 2006, http://mattmahoney.net/dc/textdata.html.

    python -m pipelines.prepare enwik8 --source enwik8.zip
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from common.checks import check_options
from common.places import Place
from data_prep.corpora.encodings import refuse_packed
from data_prep.corpora.files import is_hidden
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, Forward, decompressed, packing_at, reading
from data_prep.corpora.zips import zip_archive, zip_members
from data_prep.documents import CorpusError, Document, Source, check_least
from data_prep.packing import HEAD

SHARES = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
"""Percent of the bytes."""


@dataclass(frozen=True)
class Enwik8:
    """enwik8 or a prefix of it, as bytes."""

    name: ClassVar[str] = "enwik8"

    source: str = ""
    """The file: plain, .zip, .gz, .bz2, .xz or .zst."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A larger split is refused."""
    pieces: int = 1
    """Documents of equal size that the train split is cut into: as many as there will be lanes."""

    def __post_init__(self) -> None:
        check_least(self, pieces=1)
        check_options(self, max_document_bytes=1)

    def options(self) -> dict[str, Any]:
        return {"pieces": self.pieces} if self.pieces > 1 else {}

    def sources(self, split: str) -> list[Source]:
        """One source for each piece of the split's share of the file."""
        if not self.source:
            raise CorpusError(f"corpus {self.name} needs a file: give --source FILE, plain or packed")
        file = Place.parse(self.source)
        if not file.is_file():
            raise CorpusError(f"{file} is not a file: give --source the file enwik8, plain or packed")
        with self._open() as stream:
            total = stream.size or stream.skip_rest()
        if total == 0:
            raise CorpusError(f"{file} is empty: get enwik8 again")
        start, stop = (total * percent // 100 for percent in SHARES[split])
        if stop - start > self.max_document_bytes:
            raise CorpusError(
                f"{file} has {total:,} bytes, too many for one document a split: give a larger --max-document-bytes"
            )
        pieces = self.pieces if split == "train" else 1
        cuts = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
        names = [split] if pieces == 1 else [f"{split}/{i}" for i in range(pieces)]
        return [
            Source(name, f"{self.name} {name}", split, after - before, (before, after))
            for name, (before, after) in zip(names, pairwise(cuts), strict=True)
            if pieces == 1 or after > before
        ]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        """Yield each piece as a document of bytes."""
        with self._open() as stream:
            for source in sources:
                start, stop = source.place
                stream.seek(start)
                data = stream.read(stop - start)
                if len(data) < stop - start:
                    raise CorpusError(f"{Place.parse(self.source)} has become shorter: start again")
                yield Document(source.id, source.title, data)
                del data

    @contextmanager
    def _open(self) -> Iterator[Forward]:
        file = Place.parse(self.source)
        with reading(file.shown):
            if packing_at(file) != "zip":
                with decompressed(file) as stream:
                    yield stream
                return
            with zip_archive(file) as archive:
                names = [name for name in zip_members(archive) if not is_hidden(name.replace("\\", "/"))]
                if len(names) != 1:
                    raise CorpusError(f"{file} holds {len(names):,} files and should hold enwik8 alone")
                with archive.open(names[0]) as stream:
                    inside = Forward(stream)
                    refuse_packed(inside.peek(HEAD), f"{names[0]} in {file}")
                    yield inside
