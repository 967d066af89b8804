"""Any folder of text: a document is a file that matches a pattern, found recursively, named by its path in the folder.

Sub-folders train, validation and test are the splits. Without them a document's split follows from a hash of its name.

    python -m pipelines.prepare text --source FOLDER --pattern '*.md'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from data_prep.corpora.streams import check_name, files_in
from data_prep.documents import SPLITS, CorpusError, Document, Source, folder_of, read_utf8, split_of


@dataclass(frozen=True)
class Text:
    """A folder of UTF-8 text files."""

    name: ClassVar[str] = "text"

    source: str = ""
    """Folder or bucket to read, with all the folders in it."""
    pattern: str = "*.txt"
    """File names that count as documents."""

    def options(self) -> dict[str, Any]:
        return {}

    def splits_by_hash(self) -> bool:
        return not any((folder_of(self.name, self.source) / name).is_dir() for name in SPLITS)

    def sources(self, split: str) -> list[Source]:
        root = folder_of(self.name, self.source)
        own_splits = any((root / name).is_dir() for name in SPLITS)
        files = [file for file in files_in(root, recursive=True) if PurePosixPath(file.name).match(self.pattern)]
        if not files:
            raise CorpusError(f"{root} holds no file that matches {self.pattern!r}: give another --source or --pattern")
        sources = []
        for file in files:
            check_name(root, file.name)
            if (file.name.split("/")[0] if own_splits else split_of(file.name)) == split:
                sources.append(Source(file.name, file.name, split, file.bytes))
        return sources

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        root = folder_of(self.name, self.source)
        for source in sources:
            yield Document(source.id, source.title, read_utf8(root / source.id))
