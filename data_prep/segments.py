"""Write one part of a split: an Arrow IPC file of token segments, and what the manifest says of it.

A row is one segment: `document` (int32, index in the split's manifest), `offset` (int64, token offset in the document),
`length` (int32, valid tokens) and `tokens` (fixed_size_list<uint16|uint32>[segment_length]; the last row of a document is
padded with zeros). A corpus that labels its tokens itself has a column more: `targets` (fixed_size_list<int32>[segment_length];
-1 where nothing is predicted, and in the padding). The rows of a document are consecutive and within one record batch, so its
tokens are one contiguous buffer. Small documents share a record batch of about 1 MiB of tokens; a large one has its own.

Documents pass through one at a time, and a record batch is written as soon as it is full: a part costs memory for one record
batch and one document, whatever its size. A part is written under a staged name; its ledger entry commits it (sharding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from data_prep.documents import Corpus, Document, Scanned, reread
from data_prep.lanes import IGNORE
from data_prep.manifest import ChecksummedSink, DocumentEntry, PartEntry, RecordBatchEntry, seal, unseal
from data_prep.places import Place
from data_prep.tokenizers import SymbolsTokenizer, Tokenizer, encode_labelled, folded, token_dtype

BATCH_BYTES = 1 << 20
"""Tokens of small documents are grouped into record batches of about this size."""

SAMPLE_TOKENS = 2048
"""Of some documents so many are decoded, to see whether the tokenizer is lossless."""

MAGIC = b"ARROW1\0\0"
"""How an Arrow IPC file begins; the schema follows."""


@dataclass(frozen=True)
class PartPlan:
    """The documents of one part, made before any part is written."""

    index: int
    first_document: int
    """Index in the split's manifest of the part's first document."""
    documents: tuple[Scanned, ...]
    fingerprint: str
    """Digest of the documents, the tokenizer and the parameters: a committed part with another one is made anew."""
    sample_every: int
    """Of every so-manieth document of the split the first tokens are decoded again."""

    @property
    def name(self) -> str:
        return part_name(self.index)


@dataclass(frozen=True)
class PartResult:
    """What a finished part adds to the manifest: its ledger entry."""

    fingerprint: str
    """That of its plan."""
    part: PartEntry
    documents: tuple[DocumentEntry, ...]
    lossless: bool
    """Whether the sampled documents decode to what they were, and none holds what the tokenizer is seen to fold."""
    labels: int | None = None
    """Tokens with a target, where the corpus labels its tokens itself."""

    def to_json(self) -> bytes:
        documents = [list(asdict(document).values()) for document in self.documents]
        content = {"fingerprint": self.fingerprint, "lossless": self.lossless, "part": asdict(self.part)}
        content |= {} if self.labels is None else {"labels": self.labels}
        return seal({**content, "documents": documents})

    @staticmethod
    def from_json(data: bytes) -> PartResult:
        """Raises ValueError where a byte of it changed, or it was written by other code."""
        entry = unseal(data)
        try:
            documents = tuple(DocumentEntry(*row) for row in entry["documents"])
            part = PartEntry.from_dict(entry["part"])
            return PartResult(entry["fingerprint"], part, documents, entry["lossless"], entry.get("labels"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from None


def part_name(index: int) -> str:
    return f"part-{index:05d}.arrow"


def arrow_schema(dtype: np.dtype, segment_length: int, labelled: bool = False) -> pa.Schema:
    def segments(name: str, dtype: np.dtype) -> pa.Field:
        item = pa.field("item", pa.from_numpy_dtype(dtype), nullable=False)
        return pa.field(name, pa.list_(item, segment_length), nullable=False)

    return pa.schema(
        [
            pa.field("document", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("length", pa.int32(), nullable=False),
            segments("tokens", dtype),
            *([segments("targets", np.dtype(np.int32))] if labelled else []),
        ]
    )


@dataclass(frozen=True)
class Encoded:
    """A document to be written."""

    index: int
    """In the split's manifest."""
    tokens: np.ndarray
    targets: np.ndarray | None = None
    """int32 [tokens], where the corpus labels its tokens itself."""


def record_batch(documents: Sequence[Encoded], segment_length: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of whole documents."""
    rows = [-(-len(document.tokens) // segment_length) for document in documents]
    total = sum(rows)
    flat = [np.zeros(total * segment_length, dtype=documents[0].tokens.dtype)]
    if "targets" in schema.names:
        flat.append(np.full(total * segment_length, IGNORE, dtype=np.int32))
    offsets = np.empty(total, dtype=np.int64)
    lengths = np.full(total, segment_length, dtype=np.int32)
    row = 0
    for document, count in zip(documents, rows, strict=True):
        length = len(document.tokens)
        # Of an unlabelled document the targets are None, and there is no column for them.
        for column, values in zip(flat, (document.tokens, document.targets), strict=False):
            column[row * segment_length : row * segment_length + length] = values
        offsets[row : row + count] = np.arange(count, dtype=np.int64) * segment_length
        row += count
        if count:
            lengths[row - 1] = length - (count - 1) * segment_length
    indices = np.repeat(np.array([document.index for document in documents], dtype=np.int32), rows)
    columns = [arrow_array(indices), arrow_array(offsets), arrow_array(lengths)]
    for values, name in zip(flat, ("tokens", "targets"), strict=False):
        columns.append(pa.FixedSizeListArray.from_arrays(arrow_array(values), type=schema.field(name).type))
    return pa.record_batch(columns, schema=schema)


def arrow_array(values: np.ndarray) -> pa.Array:
    """The same memory as an Arrow array. `pa.array` would import pandas in every worker, to see whether this is of it."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def write_part(
    folder: Place, plan: PartPlan, corpus: Corpus, split: str, tokenizer: Tokenizer, segment_length: int
) -> tuple[Place, PartResult]:
    """Tokenize the documents of one part and write them under a staged name. Nothing is committed.

    Raises CorpusError where a document is no longer what the scan saw.
    """
    staged = (folder / plan.name).staged()
    documents: list[DocumentEntry] = []
    labelled = isinstance(tokenizer, SymbolsTokenizer)
    lossless, folds, labels = True, [] if labelled else folded(tokenizer), 0
    schema = arrow_schema(token_dtype(tokenizer.vocab_size), segment_length, labelled)
    with staged.open_output() as stream, PartWriter(stream, schema, segment_length) as part:
        for scanned, document in zip(plan.documents, reread(corpus, plan.documents, split), strict=True):
            tokens, targets = _encode(document, tokenizer)
            labels += 0 if targets is None else int(np.count_nonzero(targets != IGNORE))
            index = plan.first_document + len(documents)
            if lossless and index % plan.sample_every == 0:
                lossless = begins_with(document.text, tokenizer, tokens[:SAMPLE_TOKENS], len(tokens))
            lossless = lossless and not any(fold in document.text for fold in folds)  # type: ignore[operator]
            del document  # before the next one is read
            batch, row = part.add(Encoded(index, tokens, targets))
            documents.append(
                DocumentEntry(
                    scanned.id, scanned.title, len(tokens), scanned.words, scanned.bytes, scanned.xxh3, plan.index, batch, row
                )
            )  # fmt: skip
            del tokens, targets
    entry = part.entry(plan.name)
    return staged, PartResult(plan.fingerprint, entry, tuple(documents), lossless, labels if labelled else None)


def _encode(document: Document, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens, and targets where they are not the next token."""
    if isinstance(tokenizer, SymbolsTokenizer):
        return encode_labelled(document, tokenizer)
    return tokenizer.encode(document.text), None


def begins_with(text: str | bytes, tokenizer: Tokenizer, tokens: np.ndarray, total: int) -> bool:
    """Whether a text's first tokens, of `total`, read as its beginning; all of them, as the whole."""
    if isinstance(text, bytes):
        text = text[: 4 * SAMPLE_TOKENS].decode(errors="replace")
    found = tokenizer.decode(tokens)
    if len(tokens) == total:
        return found == text
    # The last token may end within a character, of at most four bytes, which then reads as U+FFFD.
    whole = found.rstrip("\ufffd")
    return text.startswith(found) or (bool(whole) and len(found) - len(whole) < 4 and text.startswith(whole))


class PartWriter:
    """Gathers tokenized documents into record batches, writes each as soon as it is full, and the footer at the end."""

    def __init__(self, stream: pa.NativeFile, schema: pa.Schema, segment_length: int) -> None:
        self._segment_length, self._schema = segment_length, schema
        self._sink = ChecksummedSink(stream, header=len(MAGIC) + self._schema.serialize().size)
        self._file = pa.ipc.new_file(self._sink, self._schema)
        self._pending: list[Encoded] = []
        self._rows = self._bytes = 0
        self._batches: list[RecordBatchEntry] = []

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
            self._file.close()

    def add(self, document: Encoded) -> tuple[int, int]:
        """Add a document. Returns the record batch that it is in, and its first row there."""
        tokens = document.tokens
        if tokens.nbytes >= BATCH_BYTES:
            self._flush()
        place = (len(self._batches), self._rows)
        self._pending.append(document)
        self._rows += -(-len(tokens) // self._segment_length)
        self._bytes += tokens.nbytes
        if self._bytes >= BATCH_BYTES:
            self._flush()
        return place

    def entry(self, name: str) -> PartEntry:
        """What the manifest says of the file, once it is closed."""
        rows = sum(batch.rows for batch in self._batches)
        whole, frame = self._sink.whole.hexdigest(), self._sink.frame.hexdigest()
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
