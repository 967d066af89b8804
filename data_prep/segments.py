"""Segment files: Arrow IPC files of rows of tokens.

    with PartWriter(stream, arrow_schema(dtype, segment_length), segment_length) as part:
        part.add(Encoded(first, lengths, tokens))

A row holds a fixed number of one document's tokens (it is not the segment of a training step, which may have another length). Its
columns: `document` (int32, index in the split's manifest), `offset` (int64, token offset in the document),
`length` (int32, valid tokens) and `tokens` (fixed_size_list<uint16|uint32>[segment_length]; the last row of a document is
padded with zeros). A corpus that labels its tokens itself has a column more: `targets` (fixed_size_list<int32>[segment_length];
-1 where nothing is predicted, and in the padding). The rows of a document are consecutive and within one record batch, so its
tokens are one contiguous buffer. Small documents share a record batch of about 1 MiB of tokens; a large one has its own.

In rows of one token (`segment_length` 1) the columns `document`, `offset` and `length` would take eight times the tokens' space,
and say nothing: they are left out, and ids stand back to back. That is how a split of short documents is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.choices import IGNORED
from data_prep.arrow_files import ChecksummedSink, arrow_array
from data_prep.manifest import PartEntry, RecordBatchEntry
from data_prep.tokenizers import concatenate

BATCH_BYTES = 1 << 20
"""Tokens of small documents are grouped into record batches of about this size."""

MAGIC = b"ARROW1\0\0"
"""The first bytes of an Arrow IPC file; the schema follows."""


def rows_of(segment_length: int) -> str:
    """How tokens are stored, in words."""
    return "ids back to back" if segment_length == 1 else f"rows of {segment_length:,} tokens"


def arrow_schema(dtype: np.dtype, segment_length: int, labelled: bool = False) -> pa.Schema:
    """Columns of a segment file: rows of ``segment_length`` tokens with their document and offset; for 1, the ids alone."""

    def segments(name: str, dtype: np.dtype) -> pa.Field:
        item = pa.field("item", pa.from_numpy_dtype(dtype), nullable=False)
        return pa.field(name, pa.list_(item, segment_length), nullable=False)

    places = [
        pa.field("document", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
    return pa.schema(
        [
            *(places if segment_length > 1 else []),
            segments("tokens", dtype),
            *([segments("targets", np.dtype(np.int32))] if labelled else []),
        ]
    )


@dataclass(frozen=True, eq=False)
class Encoded:
    """The tokens of consecutive documents, to be written."""

    first: int
    """Index of the first document in the split's manifest."""
    lengths: np.ndarray
    """int64 [documents]. Tokens of each."""
    tokens: np.ndarray
    """[tokens of all documents], one document after the other."""
    targets: np.ndarray | None = None
    """int32 [tokens of all], where the corpus labels its tokens itself."""

    def document(self, i: int) -> Encoded:
        """One of these documents alone."""
        stop = int(self.lengths[: i + 1].sum())
        own = slice(stop - int(self.lengths[i]), stop)
        targets = None if self.targets is None else self.targets[own]
        return Encoded(self.first + i, self.lengths[i : i + 1], self.tokens[own], targets)


def record_batch(blocks: Sequence[Encoded], segment_length: int, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch with the rows of whole documents."""
    lengths_N = np.concatenate([block.lengths for block in blocks])
    rows_N = -(-lengths_N // segment_length)
    first_row_N = np.cumsum(rows_N) - rows_N
    total = int(rows_N.sum())
    columns = []
    if segment_length > 1:
        indices_N = np.concatenate([block.first + np.arange(len(block.lengths)) for block in blocks])
        offsets = (np.arange(total) - np.repeat(first_row_N, rows_N)) * segment_length
        lengths = np.minimum(np.repeat(lengths_N, rows_N) - offsets, segment_length)
        columns.append(arrow_array(np.repeat(indices_N, rows_N).astype(np.int32)))
        columns.append(arrow_array(offsets.astype(np.int64)))
        columns.append(arrow_array(lengths.astype(np.int32)))
    slots = _slots(lengths_N, first_row_N * segment_length)

    def in_rows(values: Sequence[np.ndarray], name: str, padding: int) -> pa.Array:
        column = np.full(total * segment_length, padding, dtype=values[0].dtype)
        column[slots] = concatenate(values)[0]
        return pa.FixedSizeListArray.from_arrays(arrow_array(column), type=schema.field(name).type)

    columns.append(in_rows([block.tokens for block in blocks], "tokens", 0))
    targets = [block.targets for block in blocks if block.targets is not None]
    if targets:
        columns.append(in_rows(targets, "targets", IGNORED))
    return pa.record_batch(columns, schema=schema)


def _slots(lengths_N: np.ndarray, first_slot_N: np.ndarray) -> slice | np.ndarray:
    """Slots of a column for the tokens of some documents, of which each begins at its first slot."""
    before_N = np.cumsum(lengths_N) - lengths_N
    total = int(lengths_N.sum())
    if np.array_equal(before_N, first_slot_N):  # ids back to back, or one document
        return slice(0, total)
    return np.arange(total) + np.repeat(first_slot_N - before_N, lengths_N)


class PartWriter:
    """Gathers tokenized documents into record batches, writes each as soon as it is full, and the footer at the end."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, segment_length: int) -> None:
        self._segment_length = segment_length
        self._schema = schema
        self._sink = ChecksummedSink(stream, header=len(MAGIC) + self._schema.serialize().size)
        self._file = pa.ipc.new_file(self._sink, self._schema)
        self._pending: list[Encoded] = []
        self._rows = self._bytes = 0
        self._batches: list[RecordBatchEntry] = []
        self._documents: list[np.ndarray] = [np.empty((3, 0), np.int64)]

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
            self._file.close()

    def add(self, block: Encoded) -> None:
        """Add some documents. A record batch is closed as soon as its tokens have BATCH_BYTES."""
        if len(block.lengths) > 1 and self._bytes + block.tokens.nbytes >= BATCH_BYTES:
            for i in range(len(block.lengths)):
                self.add(block.document(i))
            return
        if block.tokens.nbytes >= BATCH_BYTES:
            self._flush()
        rows_N = -(-block.lengths // self._segment_length)
        first_row_N = self._rows + np.cumsum(rows_N) - rows_N
        batch_N = np.full(len(rows_N), len(self._batches))
        self._documents.append(np.stack([block.lengths, batch_N, first_row_N]))
        self._pending.append(block)
        self._rows += int(rows_N.sum())
        self._bytes += block.tokens.nbytes
        if self._bytes >= BATCH_BYTES:
            self._flush()

    def documents(self) -> np.ndarray:
        """int64 [3, documents]. For each document that was added: its tokens, its record batch, and its first row there."""
        return np.concatenate(self._documents, axis=1)

    def entry(self, name: str) -> PartEntry:
        """The manifest's entry for the file, once it is closed."""
        rows = sum(batch.rows for batch in self._batches)
        whole = self._sink.whole.hexdigest()
        frame = self._sink.frame.hexdigest()
        return PartEntry(name, self._sink.position, rows, whole, frame, tuple(self._batches))

    def _flush(self) -> None:
        if not self._pending:
            return
        batch = record_batch(self._pending, self._segment_length, self._schema)
        self._pending.clear()
        # Arrow writes the schema with the first record batch.
        start = self._sink.position if self._batches else len(MAGIC) + self._schema.serialize().size
        with self._sink.section() as checksum:
            self._file.write_batch(batch)
        size = self._sink.position - start
        self._batches.append(RecordBatchEntry(batch.num_rows, start, size, checksum.hexdigest()))
        self._rows = self._bytes = 0
