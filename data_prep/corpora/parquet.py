"""Parquet files: one, or a folder of shards such as a data set of a hub once downloaded.

A document is a row, its text in the column `--text-column`. Files whose names say train, validation or test (also valid, val,
dev, eval) are of that split. Where no name says a split, that of a document follows from a hash of its id, which is the file's
name and the row's number unless `--id-column` names one. A row group is read in batches of about a MiB of text.

    python -m pipelines.prepare parquet --source FOLDER --text-column text --tokenizer sentencepiece:32000
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.checks import check_options
from common.places import Listed, Place
from data_prep.corpora.encodings import refuse_packed, text_of_cell
from data_prep.corpora.files import shards, splits_named
from data_prep.corpora.streams import MAX_DOCUMENT_BYTES, open_seekable, reading
from data_prep.corpora.wikitext_lines import refuse_lines
from data_prep.documents import CorpusError, Document, Skipped, Source, split_of
from data_prep.packing import HEAD
from data_prep.sources import NumberedFile, NumberedSources, in_split_by_hash

ENDING = ".parquet"
BATCH_BYTES = 1 << 20
MAX_ROWS = 1 << 26
"""A file that claims to have more rows is taken for damaged."""


_TEXT = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
)  # fmt: skip
"""The types of a column of text. Bytes are among them, since many programs do not mark their texts as UTF-8."""


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold text; a column of nulls can."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_null(kind) or any(is_kind(kind) for is_kind in _TEXT)


@dataclass(frozen=True)
class Parquet:
    """Parquet files, one document per row."""

    name: ClassVar[str] = "parquet"

    source: str = ""
    """Folder or bucket of .parquet files; or one such file."""
    text_column: str = "text"
    """Column that holds the text."""
    id_column: str = ""
    """Column that holds a document's id, a string or an integer; without it, the file and the row."""
    title_column: str = ""
    """Column that holds a document's title; without it, its id."""
    split_by: Literal["file", "hash"] = "file"
    """Take the split from the names of the files where they say one, or always from a hash of the id."""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    """Longer texts are left out, and counted."""

    def __post_init__(self) -> None:
        check_options(self, max_document_bytes=1)

    def options(self) -> dict[str, Any]:
        return {"text_column": self.text_column}

    def splits_by_hash(self) -> bool:
        return not any(splits_named((file.name for file in self._files()), self.split_by).values())

    def sources(self, split: str) -> Sequence[Source]:
        """One source for each row."""
        found: list[Source] = []
        numbered: list[NumberedFile] = []
        seen: set[str] = set()
        files = self._files()
        splits = splits_named((file.name for file in files), self.split_by)
        for file in files:
            named = splits[file.name]
            if named not in (None, split):
                continue
            if self.id_column or self.title_column:
                found += self._listed(file, split, named is not None, seen)
            else:
                numbered.append(self._numbered(file, split, named is not None))
        return NumberedSources.join(split, numbered) if numbered else found

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each row's text as a document. Raises CorpusError where a file or column cannot be read."""
        files = {file.name: file.place for file in self._files()} if sources else {}
        for name, in_file in groupby(sources, key=lambda source: source.place[0]):
            if name not in files:
                raise CorpusError(f"{name} went away while it was being prepared: start again")
            where = files[name].shown
            with reading(where), open_parquet(files[name]) as parquet:
                for group, in_group in groupby(in_file, key=lambda source: source.place[1]):
                    yield from self._texts(parquet, group, list(in_group), where)

    def _texts(
        self, parquet: pq.ParquetFile, group: int, sources: list[Source], where: str
    ) -> Iterator[Document | Skipped]:
        """The documents of some rows of a row group, which are in order."""
        size = max(1, BATCH_BYTES // max(1, sources[0].bytes))
        rows = [source.place[2] for source in sources]
        done = 0
        start = 0
        for batch in parquet.iter_batches(min(size, 1024), row_groups=[group], columns=[self.text_column]):
            end = bisect_left(rows, start + batch.num_rows)
            for source, row in zip(sources[done:end], rows[done:end], strict=True):
                cell = batch.column(0)[row - start].as_py()
                if cell is None:
                    yield Skipped(source.id, "without text")
                elif len(cell if isinstance(cell, bytes) else cell.encode()) > self.max_document_bytes:
                    yield Skipped(source.id, "too large")
                else:
                    yield Document(source.id, source.title, text_of_cell(cell, f"{where} row {source.id}"))
                del cell
            done = end
            start += batch.num_rows
            if done == len(sources):
                return
        raise CorpusError(f"{where} has {start:,} rows in row group {group} and says that it has more: it is damaged")

    def _files(self) -> list[Listed]:
        return shards(self.name, self.source, (ENDING,), lambda name: name.lower().endswith(ENDING))

    def _numbered(self, file: Listed, split: str, named: bool) -> NumberedFile:
        """The rows of a file, named by their numbers."""
        found: list[np.ndarray] = [np.empty((4, 0), np.int64)]
        number = 1
        with reading(file.place.shown), open_parquet(file.place) as parquet:
            self._check(parquet, file.place.shown)
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                size = self._text_bytes(parquet, group) // max(1, count)
                numbers = np.arange(number, number + count)
                number += count
                own = np.ones(count, bool) if named else in_split_by_hash(file.name, numbers, split)
                columns = [numbers, np.full(count, size), np.full(count, group), np.arange(count)]
                found.append(np.stack(columns)[:, own])
        numbers, sizes, groups, rows = np.concatenate(found, axis=1)
        return NumberedFile(file.name, numbers, sizes, (groups, rows))

    def _listed(self, file: Listed, split: str, named: bool, seen: set[str]) -> Iterator[Source]:
        with reading(file.place.shown), open_parquet(file.place) as parquet:
            self._check(parquet, file.place.shown)
            number = 0
            for group in range(parquet.num_row_groups):
                metadata = parquet.metadata.row_group(group)
                size = self._text_bytes(parquet, group) // max(1, metadata.num_rows)
                names = self._names(parquet, group, file.place.shown)
                for row in range(metadata.num_rows):
                    number += 1
                    id, title = next(names, (None, None))
                    if self.id_column:
                        if not id or id in seen:
                            what = f"has the id {id!r} of an earlier row" if id else "has no id"
                            raise CorpusError(f"{file.place} row {number} {what}: give another --id-column")
                        seen.add(id)
                    id = id or f"{file.name}:{number}"
                    if named or split_of(id) == split:
                        yield Source(id, title or id, split, size, (file.name, group, row))

    def _check(self, parquet: pq.ParquetFile, where: str) -> None:
        """Raises CorpusError where the columns that the options name are not there, or if rows are lines of WikiText."""
        schema = parquet.schema_arrow
        for name in ("text_column", "id_column", "title_column"):
            column = getattr(self, name)
            if not column:
                continue
            if column not in schema.names:
                names = ", ".join(schema.names[:20])
                raise CorpusError(
                    f"{where} has no column {column!r}: name one with --{name.replace('_', '-')} ({names})"
                )
            count = schema.names.count(column)
            if count > 1:
                raise CorpusError(
                    f"{where} has {count} columns {column!r}: rename them, so that each has a name of its own"
                )
        kind = schema.field(self.text_column).type
        if not is_text(kind):
            raise CorpusError(
                f"{where} has no text in column {self.text_column!r} but {kind}: name another with --text-column"
            )
        if not 0 <= parquet.metadata.num_rows <= MAX_ROWS:
            raise CorpusError(
                f"{where} says that it has {parquet.metadata.num_rows:,} rows: it is damaged, or cut it up"
            )
        if parquet.num_row_groups:
            first = next(parquet.iter_batches(3, row_groups=[0], columns=[self.text_column]), None)
            refuse_lines(first.column(0).to_pylist() if first else (), where)

    def _text_bytes(self, parquet: pq.ParquetFile, group: int) -> int:
        """Size of a row group's texts, uncompressed."""
        metadata = parquet.metadata.row_group(group)
        schema = parquet.schema
        paths = [schema.column(i).path for i in range(len(schema))]
        if self.text_column not in paths:
            return metadata.total_byte_size
        # Reads first: with a damaged footer, pyarrow raises when it reads a column, but crashes when it describes one.
        next(parquet.iter_batches(1, row_groups=[group], columns=[self.text_column]), None)
        return metadata.column(paths.index(self.text_column)).total_uncompressed_size

    def _names(self, parquet: pq.ParquetFile, group: int, where: str) -> Iterator[tuple[str | None, str | None]]:
        """The ids and titles of a row group's rows, where there are columns for them."""
        columns = [column for column in (self.id_column, self.title_column) if column]
        for batch in parquet.iter_batches(1024, row_groups=[group], columns=columns):
            for row in batch.to_pylist():
                id = _plain(row.get(self.id_column), where)
                title = _plain(row.get(self.title_column), where)
                if id is not None and (isinstance(id, bool) or not isinstance(id, (str, int))):
                    raise CorpusError(
                        f"{where} has no strings or integers in column {self.id_column!r}: name another with --id-column"
                    )
                id = None if id is None else str(id)
                yield id, title if isinstance(title, str) else None


def _plain(cell: Any, where: str) -> Any:
    """A cell with an id or a title; bytes are decoded."""
    return text_of_cell(cell, where) if isinstance(cell, bytes) else cell


@contextmanager
def open_parquet(file: Place) -> Iterator[pq.ParquetFile]:
    """A Parquet file, of which a few pages at a time are in memory. Raises CorpusError where it is packed."""
    with open_seekable(file) as raw:
        refuse_packed(raw.read(HEAD), file.shown)
        raw.seek(0)
        with pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True) as parquet:
            yield parquet
