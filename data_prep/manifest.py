"""The manifest of one split of a store: what it was made from, what it holds, and the checksums of its bytes.

`<store>/<corpus>/<split>/manifest.json` is written last: a split without a valid manifest does not exist. Beside it stand the
parts and `documents.arrow`, the table of the documents. All hold no time, no host and no path, so that a store prepared twice is
the same to the byte. JSON files are sealed: their first line is a checksum of every byte after it.

Fingerprints are xxh3-128 digests of canonical JSON, chained: corpus content, tokenizer, parameters → manifest → checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from common.errors import UserError
from common.files import parse_json, seal, unseal

SCHEMA = 2
"""Version of the store's format. Raised by any change that older readers would not understand."""
LABELLED_SCHEMA = 3
"""Version for a split whose corpus labels its tokens itself. Older code can read all other splits, whose bytes stay the same."""

REMEDY = "prepare this split again with --overwrite"


class StoreError(UserError):
    """A store is missing, damaged, or made from other inputs than those that were asked for."""


class MissingSplit(StoreError):
    """There is no such prepared split."""


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer of a split."""

    name: str
    vocab_size: int
    """Ids, the begin-of-document id included."""
    bod_id: int
    """Always the last id, `vocab_size - 1`."""
    fingerprint: str
    lossless: bool
    """Whether decoding gave back the sampled text exactly, and no text holds characters that the tokenizer changes (`folded`)."""


@dataclass(frozen=True)
class Totals:
    """Sums over the documents of a split."""

    documents: int
    skipped: dict[str, int]
    """Counts of skipped items, by reason: `empty` documents hold nothing but whitespace."""
    tokens: int
    words: int
    """Runs of non-whitespace."""
    bytes: int
    """UTF-8 bytes of the text."""
    labels: int | None = None
    """Tokens with a target, if the corpus labels its tokens itself; the JSON of other corpora lacks it."""


@dataclass(frozen=True)
class RecordBatchEntry:
    """A record batch of a part: where its bytes are, and their checksum."""

    rows: int
    offset: int
    """Byte in the part at which the record batch begins."""
    bytes: int
    xxh3: str
    """xxh3-64 of those bytes."""

    @property
    def end(self) -> int:
        """The first byte of the part after the record batch."""
        return self.offset + self.bytes


@dataclass(frozen=True)
class PartEntry:
    """A segment file of a split, with its checksums."""

    name: str
    bytes: int
    rows: int
    xxh3: str
    """xxh3-64 of the whole file."""
    frame_xxh3: str
    """xxh3-64 of the bytes before and after the record batches: the Arrow schema and footer."""
    batches: tuple[RecordBatchEntry, ...]

    @staticmethod
    def from_dict(part: dict[str, Any]) -> PartEntry:
        return PartEntry(**part | {"batches": tuple(RecordBatchEntry(**batch) for batch in part["batches"])})


@dataclass(frozen=True)
class TableEntry:
    """The file with the table of the documents."""

    name: str
    bytes: int
    rows: int
    xxh3: str
    """xxh3-64 of the whole file."""


@dataclass(frozen=True)
class DocumentEntry:
    """One row of the table of the documents."""

    id: str
    title: str
    tokens: int
    words: int
    bytes: int
    xxh3: str
    """xxh3-64 of the text's UTF-8 bytes, and of its targets where it has any."""
    part: int
    batch: int
    """Record batch within the part."""
    row: int
    """The document's first row within the record batch."""


@dataclass(frozen=True)
class Manifest:
    """The content of a split's manifest.json."""

    fingerprint: str
    inputs: dict[str, Any]
    """The values in the fingerprint: corpus, tokenizer, parameters."""
    corpus: str
    split: str
    tokenizer: TokenizerInfo
    segment_length: int
    """Tokens of a row; 1 where ids stand back to back."""
    token_dtype: str
    """uint16 or uint32."""
    totals: Totals
    table: TableEntry
    parts: tuple[PartEntry, ...]
    documents: Sequence[DocumentEntry] = field(default=(), compare=False, repr=False)
    """Rows of the table, read from its file as they are asked for. Not in the JSON."""

    @property
    def labelled(self) -> bool:
        """Whether its tokens have targets of their own, instead of the next token."""
        return self.totals.labels is not None

    @property
    def token_bytes(self) -> int:
        """Bytes of all ids, and of all targets where there are any."""
        return self.totals.tokens * (np.dtype(self.token_dtype).itemsize + 4 * self.labelled)

    @property
    def file_bytes(self) -> int:
        """Bytes of the parts and of the table of the documents."""
        return sum(part.bytes for part in self.parts) + self.table.bytes

    def to_json(self) -> bytes:
        names = ("fingerprint", "inputs", "corpus", "split", "segment_length", "token_dtype")
        content = {name: getattr(self, name) for name in names}
        records = {name: asdict(getattr(self, name)) for name in ("tokenizer", "totals", "table")}
        if not self.labelled:
            del records["totals"]["labels"]
        schema = LABELLED_SCHEMA if self.labelled else SCHEMA
        return seal({"schema": schema, **content, **records, "parts": [asdict(part) for part in self.parts]})

    @staticmethod
    def from_json(data: bytes, path: str) -> Manifest:
        """Raises StoreError naming `path` where the bytes are damaged or of another schema version."""
        try:
            schema = parse_json(data)["schema"]
        except (ValueError, KeyError, TypeError):
            schema = SCHEMA
        if schema not in (SCHEMA, LABELLED_SCHEMA):
            raise StoreError(
                f"{path} has schema version {schema!r} and this code reads version {SCHEMA} and {LABELLED_SCHEMA}: {REMEDY}"
            )
        try:
            content = unseal(data)
        except ValueError as error:
            raise StoreError(f"{path} is damaged ({error}): {REMEDY}") from None
        content.pop("schema")
        content["tokenizer"] = TokenizerInfo(**content["tokenizer"])
        content["totals"] = Totals(**content["totals"])
        content["table"] = TableEntry(**content["table"])
        content["parts"] = tuple(PartEntry.from_dict(part) for part in content["parts"])
        return Manifest(**content)
