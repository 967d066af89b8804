"""What each token of a split cost a model, in an Arrow file: document, offset, token, nats.

    with TokenLosses.make(path, store, key) as losses:        # at nats[0] at first
        score_split(..., each=losses.add)
    losses = TokenLosses.open(path, key)                      # None where there is no whole file of this key
    losses.nats(document=3)                                   # float32 [tokens], of one document

Memory does not grow with a document: tokens are kept where they stand in the split, in a file that is mapped. The Arrow file gets
its name once all is in it, and beside it stands its checksum. What is damaged, or was made of something else, counts as not there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.lanes import Batch
from data_prep.manifest import write_atomically
from data_prep.places import Place
from data_prep.segments import arrow_array
from data_prep.store import SegmentStore

WORKING = ".token-losses-"
"""How the name begins of a folder in which a file is made."""
ROWS = 65_536
"""Of a record batch, at most; each is of one document."""
SCHEMA = pa.schema(
    [("document", pa.int32()), ("offset", pa.int64()), ("token", pa.int32()), ("nats", pa.float32())],
)


@dataclass(frozen=True)
class Sink:
    """Where the losses of a pass are put, whatever the order in which its lanes reach the documents."""

    nats_T: np.ndarray
    """float32 [tokens of the split]: the documents behind each other."""
    starts: np.ndarray
    """int64 [documents]: where each begins in it."""

    def add(self, batch: Batch, nats_BT: np.ndarray) -> None:
        """`each` of `score_split`."""
        blocks = batch.document_BK.shape[1]
        size = nats_BT.shape[1] // blocks
        for lane, block in np.argwhere(batch.document_BK >= 0).tolist():
            here = slice(block * size, (block + 1) * size)
            read = batch.targets_BT[lane, here] >= 0
            at = int(self.starts[batch.document_BK[lane, block]] + batch.offset_BK[lane, block])
            self.nats_T[at + np.flatnonzero(read)] = nats_BT[lane, here][read]


@dataclass(frozen=True)
class TokenLosses:
    """One pass of one model over one split, token by token."""

    path: Path
    ranges: Mapping[int, tuple[int, int]]
    """Record batches, first and last and one, of each document."""

    @classmethod
    def open(cls, path: Path, key: Mapping[str, Any]) -> TokenLosses | None:
        """What is there, if it is whole and was made of this; else None."""
        try:
            record = json.loads(cls._record(path).read_text("utf-8"))
            if record["key"] != dict(key) or record["xxh3"] != Place.parse(path).xxh3():
                return None
            return cls(path, {int(document): (first, stop) for document, (first, stop) in record["ranges"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    @contextmanager
    def make(cls, path: Path, store: SegmentStore, key: Mapping[str, Any]) -> Iterator[Sink]:
        """What `score_split` adds to; written where the block ends without an error.

        Args:
            key: what it is made of, in JSON's values: of another key it is made anew.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        starts = np.concatenate([[0], np.cumsum(store.lengths)])
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=WORKING) as folder:
            mapped = np.memmap(Path(folder) / "nats", np.float32, "w+", shape=(max(int(starts[-1]), 1),))
            mapped[:] = np.nan
            yield Sink(mapped, starts[:-1])
            ranges: dict[int, tuple[int, int]] = {}
            whole, batches = Path(folder) / "losses.arrow", 0
            with pa.OSFile(str(whole), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
                for document, length in enumerate(store.lengths.tolist()):
                    first = batches
                    for at in range(0, length, ROWS):
                        stop = min(at + ROWS, length)
                        nats = np.asarray(mapped[starts[document] + at : starts[document] + stop])
                        columns = [
                            np.full(stop - at, document, np.int32),
                            np.arange(at, stop),
                            store.tokens(document, at, stop).astype(np.int32),
                            nats,
                        ]
                        writer.write_batch(pa.record_batch(list(map(arrow_array, columns)), schema=SCHEMA))
                        batches += 1
                    ranges[document] = (first, batches)
            record = {"key": dict(key), "xxh3": Place.parse(whole).xxh3(), "ranges": ranges}
            cls._record(path).unlink(missing_ok=True)
            os.replace(whole, path)
            write_atomically(cls._record(path), json.dumps(record).encode())

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
