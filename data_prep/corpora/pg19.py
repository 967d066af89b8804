"""PG-19, books from Project Gutenberg, in the layout of its release: `{train,validation,test}/<id>.txt` and `metadata.csv`.

The splits are the folders. `metadata.csv` has no header and the columns id, title, year, url; without it a book's title is
its id. Rae et al. 2019, https://github.com/google-deepmind/pg19.

    python -m pipelines.prepare pg19 --source FOLDER --tokenizer sentencepiece:32000
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from data_prep.documents import SPLITS, CorpusError, Document, Source, folder_of, read_utf8


@dataclass(frozen=True)
class Pg19:
    """Books of Project Gutenberg in the layout of the PG-19 release."""

    name: ClassVar[str] = "pg19"

    source: str = ""
    """Folder with train, validation and test, and metadata.csv."""
    newline: Literal["keep", "normalize"] = "keep"
    """The release's line ends are CR LF: keep them, or make them LF."""

    def options(self) -> dict[str, Any]:
        return {"newline": self.newline}

    def sources(self, split: str) -> list[Source]:
        root = folder_of(self.name, self.source)
        if not any((root / name).is_dir() for name in SPLITS):
            raise CorpusError(
                f"{root} has no folder {', '.join(SPLITS)}: give --source the folder of the PG-19 release"
            )
        files = sorted(
            (root / split).glob("*.txt"), key=lambda path: (len(path.stem), path.stem)
        )  # numeric for numbers
        if not files and (root / split).is_dir():
            raise CorpusError(f"{root / split} holds no *.txt file: put the books of the PG-19 release there")
        titles = _titles(root / "metadata.csv")
        return [Source(path.stem, titles.get(path.stem, path.stem), split, path.stat().st_size) for path in files]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        root = folder_of(self.name, self.source)
        for source in sources:
            yield Document(source.id, source.title, self._text(root / source.split / f"{source.id}.txt"))

    def _text(self, path: Path) -> str:
        text = read_utf8(path)
        return text.replace("\r\n", "\n") if self.newline == "normalize" else text


def _titles(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    titles = {}
    for number, row in enumerate(csv.reader(read_utf8(path).splitlines(keepends=True)), 1):
        if len(row) < 2:
            raise CorpusError(f"{path} has no title in record {number}: use the release's file, or remove it")
        titles[row[0].strip()] = row[1]
    return titles
