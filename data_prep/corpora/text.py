"""Any folder of text: a document is a file that matches a pattern, found recursively, named by its path in the folder. Links to
files and folders are followed.

Sub-folders train, validation and test are the splits (beside another one training, valid, val and dev too); a file beside them is
left out, and counted. Without them a document's split follows from a hash of its name. Hidden files, and those in hidden folders
such as `.ipynb_checkpoints`, are left out, and counted.

    python -m pipelines.prepare text --source FOLDER --pattern '*.md'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from common.checks import check_options
from data_prep.corpora.encodings import read_utf8
from data_prep.corpora.files import check_name, files_in, folder_of, is_hidden, split_folders
from data_prep.corpora.left_out import LeftOut, skipped_of
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, Source, split_of

ANYWHERE = "**/"
"""At the beginning of a pattern: in any folder, which holds without it too."""


@dataclass(frozen=True)
class Text:
    """A folder of UTF-8 text files."""

    name: ClassVar[str] = "text"

    source: str = ""
    """Folder or bucket to read, with all the folders in it."""
    pattern: str = "*.txt"
    """File names that count as documents, in whatever folder. A pattern without capitals matches names in any case."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """Larger files are left out, and counted."""

    def __post_init__(self) -> None:
        check_options(self, max_document_bytes=1)
        if not PurePosixPath(self.pattern.removeprefix(ANYWHERE)).parts:
            raise CorpusError(
                f"pattern is {self.pattern!r}, which no file matches: write which file names count as documents, such as *.txt"
            )
        if "**" in PurePosixPath(self.pattern.removeprefix(ANYWHERE)).parts[:-1]:
            raise CorpusError(
                f"pattern is {self.pattern!r}, where ** would stand for one folder: leave it out, since names match in any folder"
            )

    def options(self) -> dict[str, Any]:
        return {}

    def takes(self, name: str) -> bool:
        """Whether a file of this name counts as a document."""
        pattern = self.pattern.removeprefix(ANYWHERE)  # which would ask for a folder
        return PurePosixPath(name.lower() if pattern == pattern.lower() else name).match(pattern)

    def splits_by_hash(self) -> bool:
        return not split_folders(folder_of(self.name, self.source))

    def sources(self, split: str) -> list[Source]:
        """One source for each file of the split's folder, or by hash where there are no such folders."""
        root = folder_of(self.name, self.source)
        folders = split_folders(root)
        matching = files_in(root, recursive=True, follow=True, takes=self.takes)
        files = [file for file in matching if not is_hidden(file.name)]
        if not files:
            raise CorpusError(f"{root} holds no file that matches {self.pattern!r}: give another --source or --pattern")
        for file in files:
            check_name(root, file.name)
        where = ", ".join(SPLITS)
        sources = []
        left_out = LeftOut()
        splits = [folders.get(file.name.split("/")[0], "") if folders else split_of(file.name) for file in files]
        if not any(splits):
            raise CorpusError(
                f"{root} holds files that match {self.pattern!r} beside the folders {where} alone: move them there"
            )
        for file, of in zip(files, splits, strict=True):
            if not of:
                left_out.add(f"not in the folders {where}")
            elif of == split:
                sources.append(Source(file.name, file.name, split, file.bytes))
        if len(matching) > len(files):
            left_out.add("hidden", len(matching) - len(files))
        if split == next(name for name in SPLITS if name in splits):  # once for the whole corpus
            sources += left_out.sources(root.name, split)
        return sources

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each file's text as a document."""
        root = folder_of(self.name, self.source)
        for source in sources:
            skipped = skipped_of(source)
            if skipped:
                yield skipped
            elif source.bytes > self.max_document_bytes:
                yield Skipped(source.id, "too large")
            else:
                yield Document(source.id, source.title, read_utf8(root / source.id))
