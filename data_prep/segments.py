"""Write one part of a split: an Arrow IPC file of token segments, committed by a rename and a ledger entry.

A row is one segment: `document` (int32, index in the split's manifest), `offset` (int64, token offset in the document),
`length` (int32, valid tokens) and `tokens` (fixed_size_list<uint16|uint32>[segment_length]; the last row of a document is
padded with zeros). The rows of a document are consecutive and within one record batch, so its tokens are one contiguous
buffer. Small documents share a record batch of about 1 MiB of tokens; a large one has its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from data_prep.documents import Corpus, Scanned, reread
from data_prep.manifest import DocumentEntry, PartEntry, RecordBatchEntry, commit, write_atomically
from data_prep.tokenizers import Tokenizer, token_dtype

BATCH_BYTES = 1 << 20
"""Tokens of small documents are grouped into record batches of about this size."""


@dataclass(frozen=True)
class PartPlan:
    """The documents of one part, made before any part is written."""

    index: int
    first_document: int
    """Index in the split's manifest of the part's first document."""
    documents: tuple[Scanned, ...]
    fingerprint: str
    """Digest of the documents, the tokenizer and the parameters: a committed part with another one is made anew."""

    @property
    def name(self) -> str:
        return f"part-{self.index:05d}.arrow"

    @property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents)


@dataclass(frozen=True)
class PartResult:
    """What a finished part adds to the manifest."""

    part: PartEntry
    documents: tuple[DocumentEntry, ...]


def arrow_schema(dtype: np.dtype, segment_length: int) -> pa.Schema:
    item = pa.field("item", pa.from_numpy_dtype(dtype), nullable=False)
    return pa.schema(
        [
            pa.field("document", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("length", pa.int32(), nullable=False),
            pa.field("tokens", pa.list_(item, segment_length), nullable=False),
        ]
    )


def record_batch(documents: Sequence[tuple[int, np.ndarray]], segment_length: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of whole documents, given as (index in the manifest, tokens)."""
    rows = [-(-len(tokens) // segment_length) for _, tokens in documents]
    total = sum(rows)
    column = schema.field("tokens").type
    flat = np.zeros(total * segment_length, dtype=column.value_type.to_pandas_dtype())
    offsets = np.empty(total, dtype=np.int64)
    lengths = np.full(total, segment_length, dtype=np.int32)
    row = 0
    for (_, tokens), count in zip(documents, rows, strict=True):
        flat[row * segment_length : row * segment_length + len(tokens)] = tokens
        offsets[row : row + count] = np.arange(count, dtype=np.int64) * segment_length
        row += count
        if count:
            lengths[row - 1] = len(tokens) - (count - 1) * segment_length
    indices = np.repeat(np.array([index for index, _ in documents], dtype=np.int32), rows)
    segments = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=column)
    return pa.record_batch([pa.array(indices), pa.array(offsets), pa.array(lengths), segments], schema=schema)


def write_part(
    folder: Path, plan: PartPlan, corpus: Corpus, split: str, tokenizer: Tokenizer, segment_length: int
) -> PartResult:
    """Tokenize the documents of one part and write `<folder>/part-NNNNN.arrow`, then its ledger entry.

    Raises CorpusError where a document is no longer what the scan saw.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    schema = arrow_schema(dtype, segment_length)
    path = folder / plan.name
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    batches: list[RecordBatchEntry] = []
    documents: list[DocumentEntry] = []
    pending: list[tuple[int, np.ndarray]] = []
    start = len(b"ARROW1\0\0") + schema.serialize().size  # Arrow writes the schema with the first record batch

    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:

        def flush() -> None:
            nonlocal start
            batch = record_batch(pending, segment_length, schema)
            writer.write_batch(batch)
            batches.append(RecordBatchEntry(batch.num_rows, start, sink.tell() - start, ""))
            start = sink.tell()
            pending.clear()

        encoded = 0
        texts = (document.text for document in reread(corpus, plan.documents, split))
        for i, (scanned, tokens) in enumerate(zip(plan.documents, map(tokenizer.encode, texts), strict=True)):
            if pending and tokens.nbytes >= BATCH_BYTES:
                flush()
                encoded = 0
            row = sum(-(-len(t) // segment_length) for _, t in pending)
            pending.append((plan.first_document + i, tokens))
            documents.append(
                DocumentEntry(
                    scanned.id, scanned.title, len(tokens), scanned.words, scanned.bytes, scanned.xxh3,
                    plan.index, len(batches), row,
                )
            )  # fmt: skip
            encoded += tokens.nbytes
            if encoded >= BATCH_BYTES:
                flush()
                encoded = 0
        if pending:
            flush()

    part = _checksums(temporary, plan.name, batches)
    commit(temporary, path)
    result = PartResult(part, tuple(documents))
    entry = {"fingerprint": plan.fingerprint, **asdict(result)}
    write_atomically(ledger_path(folder, plan), json.dumps(entry, ensure_ascii=False).encode())
    return result


def _checksums(path: Path, name: str, batches: list[RecordBatchEntry]) -> PartEntry:
    """Checksum the finished file as it stands on the disk."""
    with pa.memory_map(str(path)) as file:
        data = memoryview(file.read_buffer())
        checked = tuple(
            RecordBatchEntry(b.rows, b.offset, b.bytes, xxhash.xxh3_64_hexdigest(data[b.offset : b.offset + b.bytes]))
            for b in batches
        )
        frame = xxhash.xxh3_64(data[: batches[0].offset])
        frame.update(data[batches[-1].offset + batches[-1].bytes :])
        rows = sum(batch.rows for batch in batches)
        return PartEntry(name, len(data), rows, xxhash.xxh3_64_hexdigest(data), frame.hexdigest(), checked)


def ledger_path(folder: Path, plan: PartPlan) -> Path:
    return folder / "ledger" / f"part-{plan.index:05d}.json"
