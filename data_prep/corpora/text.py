"""Any folder of text: a document is a file that matches a pattern, found recursively, named by its path in the folder.

Sub-folders train, validation and test are the splits; a file beside them is left out, and counted. Without them a document's
split follows from a hash of its name.

    python -m pipelines.prepare text --source FOLDER --pattern '*.md'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, LeftOut, check_name, files_in, skipped_of
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, Source, folder_of, read_utf8, split_of


@dataclass(frozen=True)
class Text:
    """A folder of UTF-8 text files."""

    name: ClassVar[str] = "text"

    source: str = ""
    """Folder or bucket to read, with all the folders in it."""
    pattern: str = "*.txt"
    """File names that count as documents."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """Larger files are left out, and counted."""

    def __post_init__(self) -> None:
        if not self.pattern:
            raise CorpusError("pattern is empty: write which file names count as documents, such as *.txt")

    def options(self) -> dict[str, Any]:
        return {}

    def splits_by_hash(self) -> bool:
        return not any((folder_of(self.name, self.source) / name).is_dir() for name in SPLITS)

    def sources(self, split: str) -> list[Source]:
        root = folder_of(self.name, self.source)
        own_splits = not self.splits_by_hash()
        files = [file for file in files_in(root, recursive=True) if PurePosixPath(file.name).match(self.pattern)]
        if not files:
            raise CorpusError(f"{root} holds no file that matches {self.pattern!r}: give another --source or --pattern")
        inside = [name for name in SPLITS if any(file.name.startswith(f"{name}/") for file in files)]
        if own_splits and not inside:
            where = ", ".join(SPLITS)
            raise CorpusError(
                f"{root} holds files that match {self.pattern!r} beside the folders {where} alone: move them there"
            )
        sources, beside = [], LeftOut()
        for file in files:
            check_name(root, file.name)
            top = file.name.split("/")[0]
            if own_splits and top not in SPLITS:
                beside.add(f"not in the folders {', '.join(SPLITS)}")
            elif (top if own_splits else split_of(file.name)) == split:
                sources.append(Source(file.name, file.name, split, file.bytes))
        if inside[:1] == [split]:  # files of no split are counted once
            sources += beside.sources(root.name, split)
        return sources

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        root = folder_of(self.name, self.source)
        for source in sources:
            if skipped := skipped_of(source):
                yield skipped
            elif source.bytes > self.max_document_bytes:
                yield Skipped(source.id, "too large")
            else:
                yield Document(source.id, source.title, read_utf8(root / source.id))
