"""Read one split of a segment store: token ranges of documents, as views into memory-mapped and verified Arrow files.

    store = SegmentStore.open("runs/store", "python-source", "train")
    store.tokens(document=3, start=0, stop=1024)        # uint16 [1024], zero-copy
    store.targets(document=3, start=0, stop=1024)       # int32 [1024], of a labelled store

Every record batch is checked against its checksum when it is first touched. A store is cheap to open: every process opens
its own. It is a local folder or any URI that pyarrow.fs opens (places.py). Files are memory-mapped; those of a bucket are first
fetched into a cache on this machine's disk (cache.py). Without a cache the record batches that were used last are kept in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from common.errors import WITHOUT_LOCKS
from common.places import Place
from data_prep.cache import SegmentCache
from data_prep.document_table import Documents, read_table
from data_prep.documents import SPLITS
from data_prep.manifest import REMEDY, Manifest, MissingSplit, StoreError
from data_prep.segments import arrow_schema
from data_prep.tokenizers import TOKENIZER_FOLDER, Tokenizer, kept_fingerprint, load_tokenizer

REMOTE_BYTES = 512 << 20
"""Without a cache, this many bytes of a remote store's tokens are kept in memory; others are read and checked again."""

NO_CACHE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk that cannot hold a cache."""

VIEWS = 1 << 16
"""Documents of memory-mapped files whose views are kept."""


Columns = tuple[np.ndarray, ...]
"""Arrays of tokens, and in a labelled store of targets."""


class SegmentStore:
    """One split. Documents are numbered as in the manifest.

    Attributes:
        manifest: contents and inputs of the split.
        documents: the table of the documents, and its columns.
        lengths: int64 [documents], tokens per document.
        place: where it was opened; `SegmentStore.open(store.place)` opens it again, in another process for instance.
        cache: as in `open`.
    """

    def __init__(self, place: Place, manifest: Manifest, documents: Documents, cache: str = "") -> None:
        self.place = place
        self.manifest = manifest
        self.cache = cache
        self._cache = None if place.is_local else SegmentCache.of(cache)
        self._copies: dict[int, Path] = {}  # parts that are read from the cache
        self.documents = documents
        self.lengths = documents.tokens
        self._schema = arrow_schema(np.dtype(manifest.token_dtype), manifest.segment_length, manifest.labelled)
        self._part, self._batch, self._row = (documents.column(name) for name in ("part", "batch", "row"))
        self._parts: dict[int, pa.NativeFile] = {}
        self._batches: OrderedDict[tuple[int, int], Columns] = OrderedDict()
        self._documents: dict[int, Columns] = {}

    @classmethod
    def open(
        cls, store: str | Path | Place, corpus: str | None = None, split: str | None = None, *, cache: str = ""
    ) -> SegmentStore:
        """Open `<store>/<corpus>/<split>`, or the folder of a split.

        Args:
            cache: folder for the segment files of a store in a bucket, `none`, or nothing for the user's cache folder.

        Raises:
            MissingSplit: no such split.
            StoreError: a damaged manifest or table, or a part that is missing or of the wrong size.
        """
        folder = Place.parse(store)
        for name in (corpus, split):
            folder = folder / name if name else folder
        try:
            data = (folder / "manifest.json").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise MissingSplit(_missing(folder)) from None
        manifest = Manifest.from_json(data, (folder / "manifest.json").shown)
        documents = read_table(folder, manifest.table)
        check_parts(folder, manifest)
        return cls(folder, dataclasses.replace(manifest, documents=documents), documents, cache)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the place and the cache: another process opens the store again."""
        return partial(SegmentStore.open, cache=self.cache), (self.place,)

    @property
    def folder(self) -> str:
        """The path or URI at which it was opened, without credentials."""
        return self.place.shown

    @property
    def bod_id(self) -> int:
        """The begin-of-document id: the input before a document's first token."""
        return self.manifest.tokenizer.bod_id

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    @property
    def labelled(self) -> bool:
        """Whether the tokens have targets of their own, instead of the next token."""
        return self.manifest.labelled

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the splits. Raises TokenizerError if it is missing or damaged, StoreError if it is another one."""
        tokenizer = load_tokenizer(self.place.parent / TOKENIZER_FOLDER)
        self._check_made_with(tokenizer.fingerprint)
        return tokenizer

    def check_tokenizer(self) -> None:
        """Check that the tokenizer beside the splits is there, without loading it. Raises as `tokenizer` does, but of its files
        only tokenizer.json is checked for damage.
        """
        self._check_made_with(kept_fingerprint(self.place.parent / TOKENIZER_FOLDER))

    def _check_made_with(self, fingerprint: str) -> None:
        if fingerprint != self.manifest.tokenizer.fingerprint:
            raise StoreError(f"{self.folder} was made with another tokenizer than the one beside it: {REMEDY}")

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` (not included) of a document: a read-only view, uint16 or uint32.

        Raises:
            StoreError: the bytes are not those that were written.
            IndexError: the range is not within the document.
        """
        return self._columns(document, start, stop)[0][start:stop]

    def targets(self, document: int, start: int, stop: int) -> np.ndarray:
        """The labels of tokens `start` to `stop` (not included) of a document: a read-only view, int32, -1 for none.

        Raises what `tokens` does. The store must be labelled.
        """
        return self._columns(document, start, stop)[1][start:stop]

    def verify(self) -> None:
        """Read every record batch and check it. Raises StoreError naming the first that is damaged."""
        for part, entry in enumerate(self.manifest.parts):
            for batch in range(len(entry.batches)):
                self._read_batch(part, batch)

    def _columns(self, document: int, start: int, stop: int) -> Columns:
        """The columns of a document. Raises IndexError unless it has tokens `start` to `stop`."""
        columns = self._documents.get(document)
        if columns is None:
            columns = self._read_document(document)
        if not 0 <= start <= stop <= len(columns[0]):
            raise IndexError(f"tokens {start}:{stop} of a document of {len(columns[0])} tokens")
        return columns

    def _read_document(self, document: int) -> Columns:
        """All columns of a document, from a verified record batch."""
        key = (int(self._part[document]), int(self._batch[document]))
        batch = self._batches.get(key)
        if batch is None:
            batch = self._read_batch(*key)
            self._batches[key] = batch
            self._forget()
        first = int(self._row[document]) * self.manifest.segment_length
        columns = tuple(column[first : first + int(self.lengths[document])] for column in batch)
        if self._mapped:  # views of mapped files cost little memory
            if len(self._documents) >= VIEWS:
                self._documents.clear()
            self._documents[document] = columns
        else:
            self._batches.move_to_end(key)
        return columns

    @property
    def _mapped(self) -> bool:
        return self.place.is_local or self._cache is not None

    def _forget(self) -> None:
        """Drop the record batches that were used longest ago, if they take memory."""
        while not self._mapped and len(self._batches) > 1:
            if sum(column.nbytes for batch in self._batches.values() for column in batch) <= REMOTE_BYTES:
                return
            self._batches.popitem(last=False)

    def _read_batch(self, part: int, batch: int) -> Columns:
        """All token slots of a verified record batch, as flat arrays. A file of the cache that is damaged, or was removed before it
        was opened, is fetched once more.
        """
        try:
            return self._read_verified(part, batch)
        except (StoreError, FileNotFoundError) as error:
            copy = self._copies.pop(part, None)
            if copy is None:
                raise
            damaged = isinstance(error, StoreError)
        state = "damaged" if damaged else "gone"
        print(f"warning: {copy} in the cache is {state}: fetching it again", file=sys.stderr, flush=True)
        if damaged:  # otherwise another process may have fetched it by now
            copy.unlink(missing_ok=True)
        self._parts.pop(part, None)
        return self._read_verified(part, batch)

    def _read_verified(self, part: int, batch: int) -> Columns:
        entry = self.manifest.parts[part]
        block = entry.batches[batch]
        data = self._read(self._open_part(part), block.offset, block.bytes)
        if xxhash.xxh3_64_hexdigest(data) != block.xxh3:
            raise StoreError(f"{self.folder}/{entry.name} is damaged in record batch {batch}: {REMEDY}")
        rows = pa.ipc.read_record_batch(data, self._schema)
        names = ("tokens", "targets") if self.labelled else ("tokens",)
        return tuple(np.from_dlpack(rows.column(name).flatten()) for name in names)  # `to_numpy` would import pandas

    def _open_part(self, part: int) -> pa.NativeFile:
        """The open file of a part, whose schema and footer were verified when it was opened."""
        if part not in self._parts:
            entry = self.manifest.parts[part]
            file = self._place_of(part).open_random()
            end = entry.batches[-1].end
            frame = xxhash.xxh3_64(self._read(file, 0, entry.batches[0].offset))
            frame.update(self._read(file, end, entry.bytes - end))
            if frame.hexdigest() != entry.frame_xxh3:
                raise StoreError(f"{self.folder}/{entry.name} is damaged in its Arrow schema or footer: {REMEDY}")
            self._parts[part] = file
        return self._parts[part]

    def _place_of(self, part: int) -> Place:
        """The place to read a part from: its local copy, or its file in the store."""
        entry = self.manifest.parts[part]
        place = self.place / entry.name
        if self._cache:
            try:
                copy = self._cache.file(place, entry)
            except OSError as error:
                if error.errno not in NO_CACHE + WITHOUT_LOCKS:
                    raise
                told = f"{self._cache.folder} ({error.strerror})"
                print(f"warning: no cache in {told}: reading {self.folder} without", file=sys.stderr, flush=True)
                self._cache = copy = None
            if copy:
                self._copies[part] = copy
                return Place.parse(copy)
        return place

    @staticmethod
    def _read(file: pa.NativeFile, offset: int, size: int) -> pa.Buffer:
        """A range of a file: a view where it is memory-mapped, else bytes."""
        file.seek(offset)
        return file.read_buffer(size)


def check_parts(folder: Place, manifest: Manifest) -> None:
    """Raises StoreError naming the first part that is missing or has another size than in the manifest."""
    sizes = {file.name: file.bytes for file in folder.list() if not file.is_dir}
    for entry in manifest.parts:
        if entry.name not in sizes:
            raise StoreError(f"{folder}/{entry.name} is missing: {REMEDY}")
        if sizes[entry.name] != entry.bytes:
            size = sizes[entry.name]
            raise StoreError(f"{folder}/{entry.name} has {size} bytes and should have {entry.bytes}: {REMEDY}")


def splits_of(corpus: Place) -> list[str]:
    """The names of a corpus's finished splits."""
    return [split for split in SPLITS if (corpus / split / "manifest.json").is_file()]


def _missing(folder: Place) -> str:
    """The error message for a folder without a manifest: it is unfinished, or a folder of a near name exists."""
    if (folder / "ledger").is_dir():
        return f"{folder} was not finished: run the same prepare command again, which resumes where it stopped"
    below = [file.place for file in folder.list() if file.is_dir]
    for place in list(below):
        with contextlib.suppress(OSError):  # a folder that this user cannot read
            below += [file.place for file in place.list() if file.is_dir]
    splits = [place for place in below if (place / "manifest.json").is_file()]
    if splits:
        return f"{folder} is not a split but contains splits: name one, such as {splits[0]}"
    wrong = folder if folder.parent.is_dir() else folder.parent  # the corpus's name may be the wrong one
    if wrong != folder:
        for given in (wrong.parent, wrong.parent.parent):
            if splits_of(given):
                return f"{given} is a corpus, and not the store that it lies in: give {given.parent} as the store"
    else:
        others = ", ".join(splits_of(folder.parent))
        if others:
            remedy = "name one of them" + (", or prepare more documents" if folder.name in SPLITS else "")
            return f"{folder.parent} has no split {folder.name}, only {others}: {remedy}"
    own = (TOKENIZER_FOLDER, wrong.name)  # which may be an empty folder
    beside = [file for file in wrong.parent.list() if file.is_dir and file.name not in own]
    near = difflib.get_close_matches(wrong.name, [file.name for file in beside], n=1)
    hint = "prepare it first (python -m pipelines.prepare --help lists the corpora)"
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif wrong != folder:
        corpora = [file.name for file in beside if splits_of(file.place)]
        if corpora:
            hint = f"the store has {', '.join(corpora)}: name a corpus of it, or prepare {wrong.name} first"
    return f"there is no prepared split in {folder}: {hint}"
