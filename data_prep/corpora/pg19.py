"""PG-19, books from Project Gutenberg, in the layout of its release: `{train,validation,test}/<id>.txt` and `metadata.csv`.

The folders are the splits; beside one of them valid, val or dev is validation too. Other texts in them, in sub-folders or called
`.TXT`, are left out, and counted. `metadata.csv` has no header and the columns id, title, year, url; without it a book's title is
its id. Rae et al. 2019, https://github.com/google-deepmind/pg19.

    python -m pipelines.prepare pg19 --source FOLDER --tokenizer sentencepiece:32000
    python -m pipelines.prepare pg19 --source FOLDER --tokenizer gpt2:gpt2 --books 1250 --validation-tokens 15000

The second command takes the part that *Adding Recurrence to Pretrained Transformers* uses (Yoshida et al. 2020, section 5).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from common.checks import check_options
from common.places import Place
from data_prep.corpora.encodings import read_utf8
from data_prep.corpora.files import check_name, files_in, folder_of, is_hidden, split_folders
from data_prep.corpora.left_out import LeftOut, skipped_of
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, Source


@dataclass(frozen=True)
class Pg19:
    """Books of Project Gutenberg in the layout of the PG-19 release."""

    name: ClassVar[str] = "pg19"

    source: str = ""
    """Folder with train, validation and test, and metadata.csv; also a bucket, s3://…."""
    newline: Literal["keep", "normalize"] = "keep"
    """The release's lines end in CR LF: keep that, or turn each CR LF and each CR into LF."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """A larger book is left out, and counted."""
    books: int = 0
    """Books of train, the first ones by file name, 10.txt before 2.txt; 0 for all."""
    validation_tokens: int = 0
    """Tokens of each validation book, from its beginning; 0 for all. For tokenizers that are not trained on the corpus."""

    def __post_init__(self) -> None:
        check_options(self, books=0, validation_tokens=0, max_document_bytes=1)

    def options(self) -> dict[str, Any]:
        fewer = {"books": self.books, "validation_tokens": self.validation_tokens}
        return {"newline": self.newline, **{name: count for name, count in fewer.items() if count}}

    def first_tokens(self, split: str) -> int:
        return self.validation_tokens if split == "validation" else 0

    def sources(self, split: str) -> list[Source]:
        """One source for each book of the split, in the order of their numbers."""
        root = folder_of(self.name, self.source)
        if not split_folders(root):
            raise CorpusError(
                f"{root} has no folder {', '.join(SPLITS)}: give --source the folder of the PG-19 release"
            )
        folder = self._folder(split)
        if folder is None:
            return []
        found = files_in(folder, recursive=True, follow=True, takes=lambda name: name.lower().endswith(".txt"))
        found = [file for file in found if not is_hidden(file.name)]
        files = [file for file in found if "/" not in file.name and file.name.endswith(".txt")]
        if not files:
            raise CorpusError(f"{folder} holds no *.txt file: put the books of the PG-19 release there")
        left_out = LeftOut()
        left_out.add(f"not {folder.name}/<id>.txt", len(found) - len(files))
        if split == "train" and self.books:
            files = sorted(files, key=lambda file: file.name)[: self.books]
        for file in files:
            check_name(root, f"{folder.name}/{file.name}")
        titles = _titles(root / "metadata.csv")
        sizes = {file.name.removesuffix(".txt"): file.bytes for file in files}
        numeric = sorted(sizes, key=lambda name: (len(name), name))
        books = [Source(name, titles.get(name, name), split, sizes[name]) for name in numeric]
        return books + left_out.sources(folder.name, split)

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each book, titled by the release's metadata."""
        folder = self._folder(sources[0].split) if sources else None
        for source in sources:
            if folder is None:
                raise CorpusError(f"the folder of {source.split} went away while it was being prepared: start again")
            skipped = skipped_of(source)
            if skipped:
                yield skipped
            elif source.bytes > self.max_document_bytes:
                yield Skipped(source.id, "too large")
            else:
                yield Document(source.id, source.title, self._text(folder / f"{source.id}.txt"))

    def _folder(self, split: str) -> Place | None:
        """The folder of a split; None where it is not there. Raises CorpusError where there are several."""
        root = folder_of(self.name, self.source)
        names = [name for name, named in split_folders(root).items() if named == split]
        if len(names) > 1:
            raise CorpusError(f"{root} has the folders {' and '.join(names)}, which are one split: keep one of them")
        return root / names[0] if names else None

    def _text(self, file: Place) -> str:
        text = read_utf8(file)
        return text.replace("\r\n", "\n").replace("\r", "\n") if self.newline == "normalize" else text


def _titles(file: Place) -> dict[str, str]:
    titles: dict[str, str] = {}
    if not file.is_file():
        return titles
    text = read_utf8(file)
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if len(row) < 2:
                raise CorpusError(f"{file.shown} has no title in record {number}: use the release's file, or remove it")
            titles[row[0].strip()] = row[1]
    except csv.Error as error:
        raise CorpusError(f"{file.shown} is not CSV ({error}): use the release's file, or remove it") from None
    return titles
