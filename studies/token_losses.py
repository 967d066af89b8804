"""A model's loss at each token of a split, in an Arrow file: document, offset, token, nats.

    with TokenLosses.make(path, store, key) as nats:          # a file for the nats of each token of the split
        DocumentPass(..., sink=partial(token_nats, nats, store.lengths), folder=nats.parent).read(workers=2, progress=print)
    losses = TokenLosses.open(path, key)                      # None where there is no whole file of this key
    losses.column("nats", document=3)                         # float32 [tokens], of one document

Memory does not grow with a document: each token's loss has its place in a memory-mapped file. The Arrow file gets its name once it
is complete, and its checksum stands beside it. Damaged files, and those made from something else, count as missing. Unfinished work
stays in a folder named by its key, and the next command resumes it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from common.files import digest, parse_json, write_atomically
from common.places import Place
from data_prep.arrow_files import arrow_array
from data_prep.store import SegmentStore
from pipelines.inference.report_folder import UNFINISHED_LOSSES

if TYPE_CHECKING:  # torch: seconds
    from pipelines.training.reading import Kept, Segment, Shard

ROWS = 65_536
"""Rows of a record batch, at most; each batch is of one document."""
SCHEMA = pa.schema(
    [("document", pa.int32()), ("offset", pa.int64()), ("token", pa.int32()), ("nats", pa.float32())],
)


@dataclass(frozen=True)
class TokenLosses:
    """One pass of one model over one split, token by token."""

    path: Path
    ranges: Mapping[int, tuple[int, int]]
    """Record batches of each document: the first one, and the one after its last."""

    @classmethod
    def open(cls, path: Path, key: Mapping[str, Any]) -> TokenLosses | None:
        """The file's losses if it is whole and has this key; else None."""
        try:
            record = parse_json(cls._record(path).read_text("utf-8"))
            if record["key"] != dict(key) or record["xxh3"] != Place.parse(path).xxh3():
                return None
            return cls(path, {int(document): (first, stop) for document, (first, stop) in record["ranges"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    @contextmanager
    def make(cls, path: Path, store: SegmentStore, key: Mapping[str, Any]) -> Iterator[Path]:
        """Yield a file for the nats of each token, float32 [tokens of the split]. When the block ends without an error, the Arrow
        file is written. Other files that a resume needs may stand beside the yielded one.

        Args:
            key: JSON values that identify the losses: with another key the file is made anew.
        """
        folder = path.parent / (UNFINISHED_LOSSES + digest(dict(key)))
        nats = folder / "nats"
        tokens = int(store.lengths.sum())
        if not (nats.exists() and nats.stat().st_size == tokens * np.dtype(np.float32).itemsize):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            np.memmap(nats, np.float32, "w+", shape=(tokens,))[:] = np.nan
        yield nats
        whole = folder / "losses.arrow"
        ranges = write_losses(whole, store, np.memmap(nats, np.float32, "r"))
        record = {"key": dict(key), "xxh3": Place.parse(whole).xxh3(), "ranges": ranges}
        cls._record(path).unlink(missing_ok=True)
        os.replace(whole, path)
        write_atomically(cls._record(path), json.dumps(record).encode())
        shutil.rmtree(folder)

    @staticmethod
    def _record(path: Path) -> Path:
        return path.with_suffix(".json")

    def column(self, name: str, document: int) -> np.ndarray:
        """A column of one document: `token`, `nats` or `offset`."""
        first, stop = self.ranges[document]
        with pa.memory_map(str(self.path)) as file:
            reader = pa.ipc.open_file(file)
            parts = [reader.get_batch(number).column(name).to_numpy() for number in range(first, stop)]
            return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def write_losses(path: Path, store: SegmentStore, nats_T: np.ndarray) -> dict[int, tuple[int, int]]:
    """Write the Arrow file of a split's tokens and their nats, float32 [tokens of the split]. Returns the record batches of each
    document, as `TokenLosses.ranges` has them.
    """
    ranges: dict[int, tuple[int, int]] = {}
    begin = 0
    batches = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for document, length in enumerate(store.lengths.tolist()):
            first = batches
            for at in range(0, length, ROWS):
                stop = min(at + ROWS, length)
                columns = [
                    np.full(stop - at, document, np.int32),
                    np.arange(at, stop),
                    store.tokens(document, at, stop).astype(np.int32),
                    np.asarray(nats_T[begin + at : begin + stop]),
                ]
                writer.write_batch(pa.record_batch(list(map(arrow_array, columns)), schema=SCHEMA))
                batches += 1
            ranges[document] = (first, batches)
            begin += length
    return ranges


@contextmanager
def token_nats(file: Path, lengths: np.ndarray, shard: Shard, kept: Kept) -> Iterator[Callable[[Segment], None]]:
    """A sink that writes the nats of each token to its place in a file, float32 [tokens of the split].

    ``lengths``: int64, the tokens of each document of the split.
    """
    before = np.cumsum(lengths) - lengths
    nats_T = np.memmap(file, np.float32, "r+")
    kept["nats"] = nats_T

    def put(segment: Segment) -> None:
        batch = segment.batch
        block = segment.schedule.block
        begin_BK = before[batch.document_BK] + batch.offset_BK
        place_BT = (begin_BK[:, :, None] + np.arange(block)).reshape(batch.targets_BT.shape)
        read_BT = (batch.targets_BT >= 0) & np.repeat(batch.document_BK >= 0, block, 1)
        nats_T[place_BT[read_BT]] = segment.output.float().cpu().numpy()[read_BT]

    yield put
