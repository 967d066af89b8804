"""The table of a split's documents: an Arrow IPC file with a row for each document, read without an object for each row.

    documents = read_table(folder, manifest.table)
    documents[3].title, documents.tokens[3]

So a store with a million documents opens at once, and costs every process little more than the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import xxhash

from common.places import Place
from data_prep.arrow_files import ChecksummedSink, arrow_array
from data_prep.manifest import REMEDY, DocumentEntry, StoreError, TableEntry

NAME = "documents.arrow"

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("words", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("xxh3", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("batch", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)
"""The fields of DocumentEntry."""

assert SCHEMA.names == [field.name for field in fields(DocumentEntry)]


class Documents(Sequence[DocumentEntry]):
    """The rows of the table as DocumentEntry, and its numbers as arrays."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> DocumentEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[DocumentEntry]: ...
    def __getitem__(self, index: int | slice) -> DocumentEntry | list[DocumentEntry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        row = int(index) % len(self)
        return DocumentEntry(*(column[row].as_py() for column in self._table.columns))

    def __iter__(self) -> Iterator[DocumentEntry]:
        for batch in self._table.to_batches(max_chunksize=1024):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield DocumentEntry(*row)

    def column(self, name: str) -> np.ndarray:
        """A column of numbers [documents]."""
        return np.from_dlpack(self._table[name].combine_chunks())  # `to_numpy` would import pandas

    def texts(self, name: str) -> list[str]:
        """A column of strings [documents]."""
        return self._table[name].to_pylist()

    @cached_property
    def tokens(self) -> np.ndarray:
        """int64 [documents]. Tokens of each document."""
        return self.column("tokens")


def write_table(folder: Place, groups: Iterable[Mapping[str, Any]]) -> TableEntry:
    """Write the table, a record batch for each group of documents.

    Args:
        groups: for each group, a column [documents] of numbers or strings for each field.
    """
    place = folder / NAME
    rows = 0
    with place.writing() as stream:
        sink = ChecksummedSink(stream)
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            for group in groups:
                arrays = [_column(group[field.name], field.type) for field in SCHEMA]
                writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
                rows += len(arrays[0])
        return TableEntry(NAME, sink.position, rows, sink.whole.hexdigest())


def _column(values: Any, type: pa.DataType) -> pa.Array:
    """Numbers or strings as an Arrow array, without `pa.array` (see `arrow_array`)."""
    if type != pa.string():
        return arrow_array(np.array(values, np.int64 if type == pa.int64() else np.int32))
    whole = "".join(values)
    if not whole.isascii():
        values = [value.encode() for value in values]
    ends = np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(whole.encode()))


def read_table(folder: Place, entry: TableEntry) -> Documents:
    """The verified table of a split. Raises StoreError where it is missing or not what was written."""
    place = folder / entry.name
    try:
        with place.open_random() as file:
            data = file.read_buffer()
    except FileNotFoundError:
        raise StoreError(f"{place.shown} is missing: {REMEDY}") from None
    if data.size != entry.bytes:
        raise StoreError(f"{place.shown} has {data.size} bytes and should have {entry.bytes}: {REMEDY}")
    if xxhash.xxh3_64_hexdigest(data) != entry.xxh3:
        raise StoreError(f"{place.shown} is damaged: {REMEDY}")
    return Documents(pa.ipc.open_file(data).read_all())
