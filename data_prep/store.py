"""Read one split of a segment store: token ranges of documents, as views into memory-mapped and verified Arrow files.

    store = SegmentStore.open("runs/store", "python-source", "train")
    store.tokens(document=3, start=0, stop=1024)        # uint16 [1024], zero-copy

Every record batch is checked against its checksum when it is first touched. A store is cheap to open: every process opens
its own. It is a local folder or any URI that pyarrow.fs opens; local files are memory-mapped, others are read by range.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import xxhash

from data_prep.manifest import Manifest, MissingSplit, StoreError
from data_prep.segments import arrow_schema
from data_prep.tokenizers import Tokenizer, load_tokenizer

REMEDY = "prepare this split again with --overwrite"


class SegmentStore:
    """One split. Documents are numbered as in the manifest.

    Attributes:
        manifest: what the split holds and was made from.
        lengths: int64 [documents], tokens per document.
        folder: where it was opened; `SegmentStore.open(store.folder)` opens it again, in another process for instance.
    """

    def __init__(self, folder: str, filesystem: pyarrow.fs.FileSystem, root: str, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._filesystem, self._root = filesystem, root
        self.lengths = np.array([document.tokens for document in manifest.documents], dtype=np.int64)
        self._schema = arrow_schema(np.dtype(manifest.token_dtype), manifest.segment_length)
        self._parts: dict[int, pa.NativeFile] = {}
        self._batches: dict[tuple[int, int], np.ndarray] = {}

    @classmethod
    def open(cls, store: str | Path, corpus: str | None = None, split: str | None = None) -> SegmentStore:
        """Open `<store>/<corpus>/<split>`, or the folder of a split.

        Raises:
            MissingSplit: no such split.
            StoreError: a damaged manifest, or a part that is missing or of the wrong size.
        """
        folder = "/".join([str(store).rstrip("/"), *(name for name in (corpus, split) if name)])
        if "://" in folder:
            filesystem, root = pyarrow.fs.FileSystem.from_uri(folder)
        else:
            filesystem, root = pyarrow.fs.LocalFileSystem(), str(Path(folder).expanduser().resolve())
        path = f"{root}/manifest.json"
        try:
            with filesystem.open_input_stream(path) as file:
                text = file.read()
        except FileNotFoundError:
            raise MissingSplit(_missing(filesystem, root, folder)) from None
        try:
            manifest = Manifest.from_json(text.decode(), f"{folder}/manifest.json")
        except UnicodeDecodeError as error:
            raise StoreError(f"{folder}/manifest.json is damaged ({error}): {REMEDY}") from None
        check_parts(filesystem, root, folder, manifest)
        return cls(folder, filesystem, root, manifest)

    @property
    def bod_id(self) -> int:
        """The begin-of-document id: the input before a document's first token."""
        return self.manifest.tokenizer.bod_id

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the store keeps beside its splits. Raises TokenizerError or StoreError where it is not this one."""
        if not isinstance(self._filesystem, pyarrow.fs.LocalFileSystem):
            raise StoreError(
                f"the tokenizer of {self.folder} cannot be read from there: copy the store to a local folder"
            )
        tokenizer = load_tokenizer(Path(self._root).parent / "tokenizer")
        if tokenizer.fingerprint != self.manifest.tokenizer.fingerprint:
            raise StoreError(f"{self.folder} was made with another tokenizer than the one beside it: {REMEDY}")
        return tokenizer

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` (not included) of a document: a read-only view, uint16 or uint32.

        Raises:
            StoreError: the bytes are not those that were written.
            IndexError: the range is not within the document.
        """
        entry = self.manifest.documents[document]
        if not 0 <= start <= stop <= entry.tokens:
            raise IndexError(f"tokens {start}:{stop} of a document of {entry.tokens} tokens")
        values = self._batches.get((entry.part, entry.batch))
        if values is None:
            values = self._read_batch(entry.part, entry.batch)
        first = entry.row * self.manifest.segment_length
        return values[first + start : first + stop]

    def verify(self) -> None:
        """Read every record batch and check it. Raises StoreError naming the first that is damaged."""
        for part, entry in enumerate(self.manifest.parts):
            for batch in range(len(entry.batches)):
                self._read_batch(part, batch)

    def _read_batch(self, part: int, batch: int) -> np.ndarray:
        """All token slots of a verified record batch, as one flat array."""
        entry = self.manifest.parts[part]
        block = entry.batches[batch]
        data = self._read(self._part(part), block.offset, block.bytes)
        if xxhash.xxh3_64_hexdigest(data) != block.xxh3:
            raise StoreError(f"{self.folder}/{entry.name} is damaged in record batch {batch}: {REMEDY}")
        rows = pa.ipc.read_record_batch(data, self._schema)
        values = rows.column("tokens").flatten().to_numpy(zero_copy_only=True)
        self._batches[part, batch] = values
        return values

    def _part(self, part: int) -> pa.NativeFile:
        """The open file of a part, whose schema and footer were verified when it was opened."""
        if part not in self._parts:
            entry = self.manifest.parts[part]
            path = f"{self._root}/{entry.name}"
            local = isinstance(self._filesystem, pyarrow.fs.LocalFileSystem)
            file = pa.memory_map(path) if local else self._filesystem.open_input_file(path)
            end = entry.batches[-1].offset + entry.batches[-1].bytes
            frame = xxhash.xxh3_64(self._read(file, 0, entry.batches[0].offset))
            frame.update(self._read(file, end, entry.bytes - end))
            if frame.hexdigest() != entry.frame_xxh3:
                raise StoreError(f"{self.folder}/{entry.name} is damaged in its Arrow schema or footer: {REMEDY}")
            self._parts[part] = file
        return self._parts[part]

    @staticmethod
    def _read(file: pa.NativeFile, offset: int, size: int) -> pa.Buffer:
        """A range of a file: a view where it is memory-mapped, else bytes."""
        file.seek(offset)
        return file.read_buffer(size)


def check_parts(filesystem: pyarrow.fs.FileSystem, root: str, folder: str, manifest: Manifest) -> None:
    """Raises StoreError naming the first part that is not there or has not the size that the manifest says."""
    for entry, info in zip(
        manifest.parts, filesystem.get_file_info([f"{root}/{part.name}" for part in manifest.parts]), strict=True
    ):
        if info.type != pyarrow.fs.FileType.File:
            raise StoreError(f"{folder}/{entry.name} is missing: {REMEDY}")
        if info.size != entry.bytes:
            raise StoreError(f"{folder}/{entry.name} has {info.size} bytes and should have {entry.bytes}: {REMEDY}")


def _missing(filesystem: pyarrow.fs.FileSystem, root: str, folder: str) -> str:
    """The sentence for a folder without a manifest: unfinished, or a near name that does exist."""
    if filesystem.get_file_info(f"{root}/ledger").type == pyarrow.fs.FileType.Directory:
        return f"{folder} was not finished: run the same prepare command again, it goes on where it stopped"
    parent, name = root.rsplit("/", 1)
    selector = pyarrow.fs.FileSelector(parent, allow_not_found=True)
    names = [info.base_name for info in filesystem.get_file_info(selector) if info.base_name != "tokenizer"]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "prepare it first with python -m pipelines.prepare"
    return f"there is no prepared split in {folder}: {hint}"
