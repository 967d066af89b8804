"""Writes one part of a split: a segment file, which is an Arrow IPC file of rows of tokens, and its entry for the manifest.

A row holds a fixed number of one document's tokens (it is not the segment of a training step, which may have another length). Its
columns: `document` (int32, index in the split's manifest), `offset` (int64, token offset in the document),
`length` (int32, valid tokens) and `tokens` (fixed_size_list<uint16|uint32>[segment_length]; the last row of a document is
padded with zeros). A corpus that labels its tokens itself has a column more: `targets` (fixed_size_list<int32>[segment_length];
-1 where nothing is predicted, and in the padding). The rows of a document are consecutive and within one record batch, so its
tokens are one contiguous buffer. Small documents share a record batch of about 1 MiB of tokens; a large one has its own.

In rows of one token (`segment_length` 1) the columns `document`, `offset` and `length` would take eight times the tokens' space,
and say nothing: they are left out, and ids stand back to back. That is how a split of short documents is stored.

Documents pass through one at a time, short ones in groups, and a record batch is written as soon as it is full: a part costs
memory for one record batch and one document, whatever its size. A part is written under a staged name; its ledger entry commits
it (committing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from common.choices import IGNORED
from common.files import seal, unseal
from common.places import Place
from data_prep.arrow_files import ChecksummedSink, arrow_array
from data_prep.documents import SHORT_TEXT, Corpus, Document, Source, naming
from data_prep.manifest import PartEntry, RecordBatchEntry
from data_prep.sources import reread
from data_prep.tokenizers import (
    BatchTokenizer,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    concatenate,
    encode_labelled,
    folded,
    token_dtype,
)

BATCH_BYTES = 1 << 20
"""Tokens of small documents are grouped into record batches of about this size."""

SAMPLE_TOKENS = 2048
"""Tokens of a sampled document that are decoded again, to see whether the tokenizer is lossless."""

TOGETHER = 1 << 16
"""Characters of short documents that are encoded together."""

MAGIC = b"ARROW1\0\0"
"""The first bytes of an Arrow IPC file; the schema follows."""


@dataclass(frozen=True, eq=False)
class PartPlan:
    """The documents of one part, made before any part is written."""

    index: int
    first_document: int
    """Index in the split's manifest of the part's first document."""
    sources: Sequence[Source]
    xxh3: np.ndarray
    """uint64 [documents]. Digests of the texts, as the scan saw them."""
    fingerprint: str
    """Digest of the documents, the tokenizer and the parameters: a committed part with another one is made anew."""
    sample_every: int
    """Sampling interval: the first tokens of one document in this many are decoded again."""

    @property
    def name(self) -> str:
        return part_name(self.index)


@dataclass(frozen=True, eq=False)
class PartResult:
    """The ledger entry of a finished part, which goes into the manifest and the table of documents."""

    fingerprint: str
    """Fingerprint of its plan."""
    part: PartEntry
    tokens: np.ndarray
    """int64 [documents]. Tokens of each."""
    batches: np.ndarray
    """int64 [documents]. Record batch that each is in."""
    rows: np.ndarray
    """int64 [documents]. First row of each in its record batch."""
    lossless: bool
    """Whether the sampled documents decode to their text, and no document holds characters that it changes (`folded`)."""
    labels: int | None = None
    """Tokens with a target, where the corpus labels its tokens itself."""

    def to_json(self) -> bytes:
        content = {"fingerprint": self.fingerprint, "lossless": self.lossless, "part": asdict(self.part)}
        content |= {} if self.labels is None else {"labels": self.labels}
        return seal({**content, "documents": [column.tolist() for column in (self.tokens, self.batches, self.rows)]})

    @staticmethod
    def from_json(data: bytes) -> PartResult:
        """Raises ValueError where a byte of it changed, or it was written by other code."""
        entry = unseal(data)
        try:
            tokens, batches, rows = (np.array(column, np.int64) for column in entry["documents"])
            part = PartEntry.from_dict(entry["part"])
            return PartResult(entry["fingerprint"], part, tokens, batches, rows, entry["lossless"], entry.get("labels"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from None


def part_name(index: int) -> str:
    return f"part-{index:05d}.arrow"


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
    total = int(rows_N.sum())
    flat = [np.zeros(total * segment_length, dtype=blocks[0].tokens.dtype)]
    if "targets" in schema.names:
        flat.append(np.full(total * segment_length, IGNORED, dtype=np.int32))
    start = 0
    for block in blocks:
        places = _places(block.lengths, segment_length, start)
        # Unlabelled documents have no targets (None), and no column for them.
        for column, values in zip(flat, (block.tokens, block.targets), strict=False):
            column[places] = values
        start += int((-(-block.lengths // segment_length)).sum()) * segment_length
    columns = []
    if segment_length > 1:
        first_row_N = np.cumsum(rows_N) - rows_N
        indices_N = np.concatenate([block.first + np.arange(len(block.lengths)) for block in blocks])
        offsets = (np.arange(total) - np.repeat(first_row_N, rows_N)) * segment_length
        lengths = np.minimum(np.repeat(lengths_N, rows_N) - offsets, segment_length)
        columns.append(arrow_array(np.repeat(indices_N, rows_N).astype(np.int32)))
        columns.append(arrow_array(offsets.astype(np.int64)))
        columns.append(arrow_array(lengths.astype(np.int32)))
    for values, name in zip(flat, ("tokens", "targets"), strict=False):
        columns.append(pa.FixedSizeListArray.from_arrays(arrow_array(values), type=schema.field(name).type))
    return pa.record_batch(columns, schema=schema)


def _places(lengths_N: np.ndarray, segment_length: int, start: int) -> slice | np.ndarray:
    """Slots of a column for the tokens of some documents, each of which begins a row. The first slot is `start`."""
    if segment_length == 1 or len(lengths_N) == 1:
        return slice(start, start + int(lengths_N.sum()))
    slots_N = -(-lengths_N // segment_length) * segment_length
    shift_N = np.cumsum(slots_N) - slots_N - (np.cumsum(lengths_N) - lengths_N)
    return start + np.arange(int(lengths_N.sum())) + np.repeat(shift_N, lengths_N)


def write_part(
    folder: Place, plan: PartPlan, corpus: Corpus, tokenizer: Tokenizer, segment_length: int
) -> tuple[Place, PartResult]:
    """Tokenize the documents of one part and write them under a staged name. Nothing is committed.

    Raises CorpusError where a document is no longer what the scan saw, or the tokenizer cannot encode it.
    """
    staged = (folder / plan.name).staged()
    labelled = isinstance(tokenizer, SymbolsTokenizer)
    folds = [] if labelled else folded(tokenizer)
    lossless = True
    labels = 0
    index = plan.first_document
    schema = arrow_schema(token_dtype(tokenizer.vocab_size), segment_length, labelled)
    with staged.open_output() as stream, PartWriter(stream, schema, segment_length) as part:
        for documents in _together(reread(corpus, plan.sources, plan.xxh3.tolist())):
            encoded = _encode_all(documents, index, tokenizer)
            labels += 0 if encoded.targets is None else int(np.count_nonzero(encoded.targets != IGNORED))
            samples = range(-index % plan.sample_every, len(documents), plan.sample_every)
            lossless = lossless and _are_kept(documents, encoded, tokenizer, folds, samples)
            index += len(documents)
            del documents  # before the next ones are read
            part.add(encoded)
            del encoded
    tokens_N, batches_N, rows_N = part.documents()
    entry = part.entry(plan.name)
    result = PartResult(plan.fingerprint, entry, tokens_N, batches_N, rows_N, lossless, labels if labelled else None)
    return staged, result


def _together(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in groups: short ones together, each longer one alone."""
    some: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.text)
        if some and length > SHORT_TEXT:
            yield some
            some = []
            size = 0
        some.append(document)
        del document  # else this name would hold it while the next one is read
        size += length
        if size > TOGETHER or length > SHORT_TEXT:
            yield some
            some = []
            size = 0
    if some:
        yield some


def _encode_all(documents: Sequence[Document], first: int, tokenizer: Tokenizer) -> Encoded:
    """Encode some documents. ``first``: index of the first one in the split's manifest."""
    if len(documents) > 1 and isinstance(tokenizer, BatchTokenizer):
        # If one cannot be encoded, all are encoded one by one below, so that the error names it.
        with suppress(TokenizerError):
            tokens, lengths_N = tokenizer.encode_batch([document.text for document in documents])
            return Encoded(first, lengths_N, tokens)
    pairs = [_encode(document, tokenizer) for document in documents]
    targets = [targets for _, targets in pairs if targets is not None]
    tokens, lengths_N = concatenate([tokens for tokens, _ in pairs])
    return Encoded(first, lengths_N, tokens, concatenate(targets)[0] if targets else None)


def _encode(document: Document, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens, and targets where they are not the next token. Raises CorpusError naming a document that cannot be encoded."""
    if isinstance(tokenizer, SymbolsTokenizer):
        return encode_labelled(document, tokenizer)
    with naming(document):
        return tokenizer.encode(document.text), None


def _are_kept(
    documents: Sequence[Document], encoded: Encoded, tokenizer: Tokenizer, folds: list[str] | None, samples: range
) -> bool:
    """Whether documents come back from their tokens.

    Args:
        encoded: the tokens of these documents.
        folds: texts that the tokenizer does not give back (`folded`), which are looked for in every document. None: the
            tokenizer may cover only certain texts, so every document is decoded as a whole.
        samples: if ``folds`` are known, the documents whose first tokens are decoded too.
    """
    for i in range(len(documents)) if folds is None else samples:
        tokens = encoded.document(i).tokens
        first = tokens if folds is None else tokens[:SAMPLE_TOKENS]
        if not begins_with(documents[i].text, tokenizer, first, len(tokens)):
            return False
    return not any(fold in document.text for fold in folds or () for document in documents)  # type: ignore[operator]


def begins_with(text: str | bytes, tokenizer: Tokenizer, tokens: np.ndarray, total: int) -> bool:
    """Whether a text's first tokens decode to its beginning, or to the whole text if there are `total` of them."""
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
