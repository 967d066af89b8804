"""The manifest of one split of a store: what it was made from, what it holds, and the checksums of its bytes.

`<store>/<corpus>/<split>/manifest.json` is written last: a split without a valid manifest does not exist. The file is JSON
with one line per part and per document, carries its own checksum, and holds no time, no host and no path, so that a store
prepared twice is the same to the byte.

Fingerprints are xxh3-128 digests of canonical JSON, chained: corpus content, tokenizer, parameters → manifest → checkpoint.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

SCHEMA = 2
"""Version of the store's format. Raised by any change that older readers would not understand."""


class StoreError(ValueError):
    """A store is missing, damaged, or made from something else than what was asked for."""


class MissingSplit(StoreError):
    """There is no such prepared split."""


@dataclass(frozen=True)
class TokenizerInfo:
    name: str
    vocab_size: int
    """Ids, the begin-of-document id included."""
    bod_id: int
    """Always the last id, `vocab_size - 1`."""
    fingerprint: str
    lossless: bool
    """Whether decoding gave back the sampled text exactly."""


@dataclass(frozen=True)
class Totals:
    documents: int
    skipped: dict[str, int]
    """What was left out, by reason: `empty` documents hold nothing but whitespace."""
    tokens: int
    words: int
    """Runs of non-whitespace."""
    bytes: int
    """UTF-8 bytes of the text."""


@dataclass(frozen=True)
class RecordBatchEntry:
    rows: int
    offset: int
    """Byte in the part at which the record batch begins."""
    bytes: int
    xxh3: str
    """xxh3-64 of those bytes."""


@dataclass(frozen=True)
class PartEntry:
    name: str
    bytes: int
    rows: int
    xxh3: str
    """xxh3-64 of the whole file."""
    frame_xxh3: str
    """xxh3-64 of what lies before and after the record batches: the Arrow schema and footer."""
    batches: tuple[RecordBatchEntry, ...]


@dataclass(frozen=True)
class DocumentEntry:
    id: str
    title: str
    tokens: int
    words: int
    bytes: int
    xxh3: str
    """xxh3-64 of the text's UTF-8 bytes."""
    part: int
    batch: int
    """Record batch within the part."""
    row: int
    """The document's first row within the record batch."""


@dataclass(frozen=True)
class Manifest:
    fingerprint: str
    inputs: dict[str, Any]
    """What the fingerprint digests: corpus, tokenizer, parameters."""
    corpus: str
    split: str
    tokenizer: TokenizerInfo
    segment_length: int
    """Tokens of a row."""
    token_dtype: str
    """uint16 or uint32."""
    totals: Totals
    parts: tuple[PartEntry, ...]
    documents: tuple[DocumentEntry, ...]

    def to_json(self) -> str:
        content = {"schema": SCHEMA, **asdict(self)}
        lines = []
        for key, value in {"checksum": digest(content), **content}.items():
            if isinstance(value, (list, tuple)):
                text = "[\n" + ",\n".join("  " + _line(item) for item in value) + "\n ]"
            else:
                text = json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")
            lines.append(f" {json.dumps(key)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def from_json(text: str, path: str) -> Manifest:
        """Raises StoreError naming `path` where the text is damaged or of another schema version."""
        try:
            content = json.loads(text)
            checksum, schema = content.pop("checksum"), content["schema"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path} is damaged ({error}): prepare this split again with --overwrite") from None
        if schema != SCHEMA:
            raise StoreError(
                f"{path} has schema version {schema!r} and this code reads version {SCHEMA}: "
                "prepare this split again with --overwrite"
            )
        if digest(content) != checksum:
            raise StoreError(f"{path} is damaged (its checksum does not match): prepare it again with --overwrite")
        content.pop("schema")
        content["tokenizer"] = TokenizerInfo(**content["tokenizer"])
        content["totals"] = Totals(**content["totals"])
        content["parts"] = tuple(part_from_dict(part) for part in content["parts"])
        content["documents"] = tuple(DocumentEntry(**document) for document in content["documents"])
        return Manifest(**content)


def part_from_dict(part: dict[str, Any]) -> PartEntry:
    return PartEntry(**{**part, "batches": tuple(RecordBatchEntry(**batch) for batch in part["batches"])})


def digest(value: Any) -> str:
    """xxh3-128 (hex) of the canonical JSON of a value."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file such that it is either there, whole and on the disk, or not there at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
    commit(temporary, path)


def commit(temporary: Path, path: Path) -> None:
    """fsync a finished temporary file, give it its name, and make the name durable."""
    _fsync(temporary)
    os.replace(temporary, path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
