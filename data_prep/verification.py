"""Checks every byte of prepared splits, and that their contents fit together. Finds all faults, not only the first.

    for folder in find_splits("runs/store"):
        faults = verify_split(folder, done=lambda size: None)       # sentences; none where all is well

A split's manifest is read first, and vouches for the rest: the table of the documents, each part as a whole, its record batches
and frame, and the rows in it, which must be the documents of the table in their order. The tokenizer beside the splits must be
the manifest's. Nothing else may be there: no ledger, no temporary file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from common.choices import IGNORED
from common.files import digest
from common.places import TEMPORARY, Place
from data_prep.document_table import Documents, read_table
from data_prep.manifest import Manifest, MissingSplit, PartEntry, StoreError
from data_prep.segments import arrow_schema
from data_prep.tokenizers import TOKENIZER_FOLDER, TokenizerError, load_tokenizer

Done = Callable[[int], None]
"""Called with the number of bytes that were checked."""


def find_splits(store: str | Path | Place) -> list[Place]:
    """The splits in a store, a corpus's folder or a split's, finished or not. Raises MissingSplit where there is none."""
    place = Place.parse(store)
    if _is_split(place):
        return [place]
    below = [file.place for file in place.list() if file.is_dir]
    found = [folder for folder in below if _is_split(folder)]
    found += [file.place for folder in below for file in folder.list() if file.is_dir and _is_split(file.place)]
    if not found:
        hint = "it holds no prepared split" if place.is_dir() else "there is no such folder"
        raise MissingSplit(f"{place}: {hint}; give a store, the folder of a corpus in it, or of a split")
    return found


def _is_split(folder: Place) -> bool:
    """Whether a folder holds a split, finished or not. A folder of embeddings only has parts of the same names."""
    return any(file.name in ("manifest.json", "ledger", "documents.arrow") for file in folder.list())


def split_bytes(folder: Place) -> int:
    """Bytes of all files of a split."""
    return sum(file.bytes for file in folder.list(recursive=True) if not file.is_dir)


def verify_split(folder: Place, done: Done) -> list[str]:
    """The faults of a split, each a sentence that says where."""
    return list(_faults(folder, done))


def _faults(folder: Place, done: Done) -> Iterator[str]:
    try:
        data = (folder / "manifest.json").read_bytes()
        manifest = Manifest.from_json(data, (folder / "manifest.json").shown)
    except FileNotFoundError:
        if (folder / "ledger").is_dir():
            yield f"{folder} was not finished: run the same prepare command again"
        else:
            yield f"{folder}/manifest.json is missing: nothing vouches for the other files, prepare this split again"
        return
    except StoreError as error:
        yield f"{error} (the other files cannot be checked without it)"
        return
    except OSError as error:
        yield f"{_unreadable(folder / 'manifest.json', error)}: the other files cannot be checked without it"
        return
    done(len(data))
    yield from _manifest_faults(folder, manifest)
    yield from _leftovers(folder, manifest)
    try:
        documents = read_table(folder, manifest.table)
        done(manifest.table.bytes)
    except StoreError as error:
        documents = None
        yield str(error)
    except OSError as error:
        documents = None
        yield _unreadable(folder / manifest.table.name, error)
    if documents is not None:
        yield from _table_faults(folder, manifest, documents)
    yield from _tokenizer_faults(folder, manifest)
    own = None if documents is None else ByBatch(documents)
    labels: list[int | None] = []
    for index, part in enumerate(manifest.parts):
        labels.append((yield from _part_faults(folder, manifest, index, part, own)))
        done(part.bytes)
    found = [count for count in labels if count is not None]
    if manifest.labelled and len(found) == len(labels) and sum(found) != manifest.totals.labels:
        yield f"{folder} holds {sum(found):,} targets and the manifest says {manifest.totals.labels:,}"


def _unreadable(file: Place, error: OSError) -> str:
    return f"{file} cannot be read ({error.strerror or error})"


class ByBatch:
    """The documents of a table by the record batch that they stand in, sorted once: a split has many of both."""

    def __init__(self, documents: Documents) -> None:
        self.lengths = documents.tokens
        key = (documents.column("part").astype(np.int64) << 32) + documents.column("batch")
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def of(self, part: int, batch: int) -> np.ndarray:
        """int64. The documents of a record batch, in order."""
        key = (part << 32) + batch
        first, end = np.searchsorted(self._keys, [key, key + 1])
        return self._order[first:end]


def _manifest_faults(folder: Place, manifest: Manifest) -> Iterator[str]:
    where = f"{folder}/manifest.json"
    if digest(manifest.inputs) != manifest.fingerprint:
        yield f"{where}: its fingerprint is not that of its inputs"
    if manifest.split != folder.name:
        yield f"{where} is that of the split {manifest.split!r}"
    if manifest.tokenizer.bod_id != manifest.tokenizer.vocab_size - 1:
        yield f"{where}: begin-of-document is id {manifest.tokenizer.bod_id} of {manifest.tokenizer.vocab_size}"
    if manifest.inputs["tokenizer"]["fingerprint"] != manifest.tokenizer.fingerprint:
        yield f"{where}: its tokenizer is not the one of its inputs"
    for part in manifest.parts:
        end = part.batches[0].offset if part.batches else 0
        for i, batch in enumerate(part.batches):
            if batch.offset != end:
                yield f"{where}: record batch {i} of {part.name} begins at byte {batch.offset} and not at {end}"
            end = batch.end
        if end > part.bytes or sum(batch.rows for batch in part.batches) != part.rows:
            yield f"{where}: the record batches of {part.name} are not those of its {part.rows} rows"


def _leftovers(folder: Place, manifest: Manifest) -> Iterator[str]:
    own = {"manifest.json", manifest.table.name, *(part.name for part in manifest.parts)}
    for file in folder.list():
        if file.name == "ledger" or file.name.endswith(TEMPORARY):
            yield f"{folder}/{file.name} was left by a preparation that was stopped: run the same prepare command again"
        elif file.name not in own:
            yield f"{folder}/{file.name} is no file of this split: remove it"


def _table_faults(folder: Place, manifest: Manifest, documents: Documents) -> Iterator[str]:
    where = f"{folder}/{manifest.table.name}"
    totals = manifest.totals
    if len(documents) != totals.documents or len(documents) != manifest.table.rows:
        yield f"{where} has {len(documents):,} documents and the manifest {totals.documents:,}"
    for name in ("tokens", "words", "bytes"):
        total = int(documents.column(name).sum())
        if total != getattr(totals, name):
            yield f"{where} sums to {total:,} {name} and the manifest says {getattr(totals, name):,}"
    if len(documents) == 0:
        return
    part, batch, row = (documents.column(name).astype(np.int64) for name in ("part", "batch", "row"))
    outside = (part < 0) | (part >= len(manifest.parts)) | (batch < 0)
    batches = np.array([len(entry.batches) for entry in manifest.parts])
    outside |= batch >= batches[np.where(outside, 0, part)]
    if outside.any():
        yield f"{where}: document {int(np.argmax(outside))} stands in a part or record batch that is not there"
    rows = -(-documents.tokens // manifest.segment_length)
    begins = np.concatenate([[True], (part[1:] != part[:-1]) | (batch[1:] != batch[:-1])])
    before = np.cumsum(rows) - rows
    expected = before - np.maximum.accumulate(np.where(begins, before, 0))
    later = np.concatenate([[True], (part[1:] > part[:-1]) | ((part[1:] == part[:-1]) & (batch[1:] >= batch[:-1]))])
    wrong = (row != expected) | ~later
    if wrong.any():
        i = int(np.argmax(wrong))
        yield f"{where}: document {i} should begin in row {int(expected[i])} of its record batch and not in {int(row[i])}"


def _tokenizer_faults(folder: Place, manifest: Manifest) -> Iterator[str]:
    try:
        tokenizer = load_tokenizer(folder.parent / TOKENIZER_FOLDER)
    except TokenizerError as error:
        yield str(error)
        return
    except OSError as error:
        yield _unreadable(folder.parent / TOKENIZER_FOLDER, error)
        return
    if (tokenizer.fingerprint, tokenizer.vocab_size) != (manifest.tokenizer.fingerprint, manifest.tokenizer.vocab_size):
        yield f"{folder.parent}/tokenizer is not the tokenizer that {folder} was made with ({manifest.tokenizer.name})"


def _part_faults(
    folder: Place, manifest: Manifest, index: int, part: PartEntry, documents: ByBatch | None
) -> Generator[str, None, int | None]:
    """The faults of a part. Returns how many tokens have a target of their own; None if that is not known."""
    where = f"{folder}/{part.name}"
    try:
        with (folder / part.name).open_random() as file:
            data = file.read_buffer()
    except FileNotFoundError:
        yield f"{where} is missing"
        return None
    except OSError as error:
        yield _unreadable(folder / part.name, error)
        return None
    if data.size != part.bytes:
        yield f"{where} has {data.size} bytes and should have {part.bytes}"
    whole = xxhash.xxh3_64_hexdigest(data) == part.xxh3
    named = False
    labels = 0
    schema = arrow_schema(np.dtype(manifest.token_dtype), manifest.segment_length, manifest.labelled)
    for i, entry in enumerate(part.batches):
        block = data[entry.offset : entry.end]
        if block.size != entry.bytes:
            named = True
            yield f"{where} ends within or before record batch {i} (byte {entry.offset} to {entry.end})"
        elif xxhash.xxh3_64_hexdigest(block) != entry.xxh3:
            named = True
            yield f"{where} is damaged in record batch {i} (byte {entry.offset} to {entry.end})"
        else:
            labels += yield from _row_faults(f"{where}, record batch {i}", manifest, index, i, block, schema, documents)
    begin = part.batches[0].offset if part.batches else 0
    end = part.batches[-1].end if part.batches else 0
    frame = xxhash.xxh3_64(data[:begin])
    frame.update(data[end:])
    if frame.hexdigest() != part.frame_xxh3:
        named = True
        yield f"{where} is damaged in its Arrow schema or footer (before byte {begin} or from byte {end} on)"
    if not whole and not named:
        yield f"{where} is not the file whose checksum the manifest has"
    return None if named else labels


def _row_faults(
    where: str,
    manifest: Manifest,
    part: int,
    batch: int,
    block: pa.Buffer,
    schema: pa.Schema,
    documents: ByBatch | None,
) -> Generator[str, None, int]:
    """The faults of a record batch: its rows must be those of the table's documents, in order, with ids of the vocabulary. Returns
    how many tokens have a target of their own."""
    try:
        rows = pa.ipc.read_record_batch(block, schema)
    except pa.ArrowInvalid as error:
        yield f"{where} is no record batch of segments ({error})"
        return 0
    entry = manifest.parts[part].batches[batch]
    if rows.num_rows != entry.rows:
        yield f"{where} has {rows.num_rows} rows and should have {entry.rows}"
    tokens = rows.column("tokens").flatten().to_numpy()
    if len(tokens) and int(tokens.max()) >= manifest.tokenizer.bod_id:
        yield f"{where} holds the token {int(tokens.max())}, which no document can have"
    labels = (yield from _target_faults(where, manifest, rows)) if manifest.labelled else 0
    if documents is not None:
        own = documents.of(part, batch)
        yield from _place_faults(where, rows, own, documents.lengths[own], manifest.segment_length)
    return labels


def _target_faults(where: str, manifest: Manifest, rows: pa.RecordBatch) -> Generator[str, None, int]:
    """The faults of a labelled record batch's targets. Returns how many tokens have one."""
    targets = rows.column("targets").flatten().to_numpy()
    if len(targets) and not IGNORED <= int(targets.min()) <= int(targets.max()) < manifest.tokenizer.bod_id:
        yield f"{where} holds a target from {int(targets.min())} to {int(targets.max())}, which no document can have"
    if manifest.segment_length > 1:
        padding = np.arange(manifest.segment_length) >= rows.column("length").to_numpy()[:, None]
        if (targets.reshape(padding.shape)[padding] != IGNORED).any():
            yield f"{where} has a target in the padding after a document"
    return int(np.count_nonzero(targets != IGNORED))


def _place_faults(where: str, rows: pa.RecordBatch, own: np.ndarray, lengths: np.ndarray, T: int) -> Iterator[str]:
    """The faults of the columns that say which tokens of which document a row holds.

    Args:
        own: int64 [documents]. The documents that the table has in this record batch.
        lengths: int64 [documents]. Their tokens.
        T: tokens of a row.
    """
    count = -(-lengths // T)
    if rows.num_rows != count.sum():
        yield f"{where} has {rows.num_rows} rows and its documents in the table have {count.sum()}"
        return
    if T == 1:
        return  # ids back to back: the table alone says whose they are
    document = np.repeat(own, count)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * T
    length = np.minimum(np.repeat(lengths, count) - offset, T)
    for name, expected in (("document", document), ("offset", offset), ("length", length)):
        found = rows.column(name).to_numpy()
        if not np.array_equal(found, expected):
            i = int(np.argmax(found != expected))
            yield f"{where}: row {i} has {name} {int(found[i])} and should have {int(expected[i])}"
