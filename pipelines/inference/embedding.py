"""Contextual embeddings of whole documents, State carried from their first token to their last, as Arrow files.

    texts = texts_of_store(SegmentStore.open("runs/store", "pg19", "test"), ids=())
    embeddings = Embeddings(Place.parse("embedded"), texts, width_of(model), model="1f0a...", every=1, dtype="float32")
    shards = [Shard(*part, ...) for part in embeddings.missing()]
    DocumentPass(..., shards, embeddings.sink, hidden=True).read(workers=1, progress=print)
    embeddings.finish()

    embedded/part-00000.arrow …    rows `document` (its id), `offset` (of its token, or of the first of them, in the document) and
                                   `embedding` (fixed_size_list [D]); those of a document are in order and in one part
    embedded/_embeddings.json      what they were made of; written last: without it the folder is not finished

A token's embedding is the last hidden state after the token was read, as the output layer reads it (`losses.hidden_states`). A part
gets its name when it is complete, and its schema holds a fingerprint of its inputs. The same command again makes the missing parts.
Memory is that of one segment of all lanes, however long a document is.

Letters: B lanes · T tokens of a segment · K blocks · n tokens, m rows of one document · D width.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from common.errors import UserError
from common.files import digest
from common.lock import LOCK
from common.places import Place, staged_for
from data_prep.arrow_files import arrow_array
from data_prep.sources import group_by_bytes
from data_prep.store import SegmentStore
from pipelines.inference.trained import weights_damaged
from recur_models import RecurrentModel
from recur_models.losses import hidden_states

PART_TOKENS = 1 << 19
"""Tokens of documents at which a part is closed. A killed command may have to read as many again."""
MADE_OF = b"throughline"
"""Key of the fingerprint in a part's schema."""
LAST = "_embeddings.json"
"""The file that is written last. Readers of a folder of Arrow files pass over names that begin with an underscore."""
PART = re.compile(r"part-\d{5}\.arrow")
"""Names of parts."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents as a model reads them, for `read_batch`: their first token is begin-of-document."""

    ids: Sequence[str]
    lengths: np.ndarray
    """int64 [documents]. Tokens of each, without begin-of-document."""
    numbers: np.ndarray
    """int64 [documents]. The number by which ``read`` knows each document."""
    read: Callable[[int, int, int], np.ndarray]
    """Tokens start to stop (not included) of a document."""
    bod_id: int
    before: int
    """Tokens before a document's own: 1 (begin-of-document), or 0 for a labelled store, whose models read none."""
    fingerprint: str
    """Fingerprint of the split or the text that they are from."""
    labelled: bool = True
    """Whether inputs are the tokens themselves, and not those before them."""

    def tokens(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop (not included) of what the model reads of a document, begin-of-document included: [stop − start]."""
        own = self.read(int(self.numbers[document]), max(start - self.before, 0), stop - self.before)
        return np.concatenate([[self.bod_id], own]) if start < self.before else own

    def targets(self, document: int, start: int, stop: int) -> np.ndarray:
        """int64 [stop − start], all 0: embeddings need no targets."""
        return np.zeros(stop - start, dtype=np.int64)

    def part(self, indices: range) -> Texts:
        """The documents of a range of indices."""
        chosen = slice(indices.start, indices.stop)
        return replace(self, ids=self.ids[chosen], lengths=self.lengths[chosen], numbers=self.numbers[chosen])

    def spans(self, segment: Any) -> Iterator[tuple[int, int, np.ndarray]]:
        """The spans of documents in a segment: document, offset of the first token, hidden states [n, D] in float32."""
        schedule = segment.schedule
        for lane, hidden_TD in enumerate(segment.output.float().cpu().numpy()):
            for column, document, offset, length in schedule.spans(segment.step, lane):
                first = column * schedule.block
                skipped = max(self.before - offset, 0)
                yield document, offset + skipped - self.before, hidden_TD[first + skipped : first + length]


def texts_of_store(store: SegmentStore, ids: Sequence[str]) -> Texts:
    """A split's documents; with ``ids``, those alone. Raises UserError for an unknown id, and where documents have no tokens."""
    names = store.documents.texts("id")
    numbers = {name: i for i, name in enumerate(names) if store.lengths[i]}
    odd = [name for name in ids if name not in numbers]
    if odd:
        near = difflib.get_close_matches(odd[0], numbers, n=1, cutoff=0.0)
        raise UserError(f"{store.folder} has no document {odd[0]!r} with tokens: its ids are such as {', '.join(near)}")
    chosen = sorted({numbers[name] for name in ids} if ids else numbers.values())
    if not chosen:
        raise UserError(f"{store.folder} has no document with any token: choose another --split")
    numbers_n = np.asarray(chosen)
    return Texts(
        ids=[names[i] for i in chosen],
        lengths=store.lengths[numbers_n],
        numbers=numbers_n,
        read=store.tokens,
        bod_id=store.bod_id,
        before=0 if store.labelled else 1,
        fingerprint=store.manifest.fingerprint,
    )


def texts_of_ids(name: str, ids_n: np.ndarray, bod_id: int, labels: bool) -> Texts:
    """One text, of these token ids int64 [n]. ``labels``: whether its model predicts labels, and so reads no begin-of-document.
    Raises UserError where there are no ids.
    """
    if not len(ids_n):
        raise UserError(f"{name} holds no text: choose another --file")
    return Texts(
        ids=[name],
        lengths=np.array([len(ids_n)]),
        numbers=np.zeros(1, dtype=np.int64),
        read=lambda _, start, stop: ids_n[start:stop],
        bod_id=bod_id,
        before=0 if labels else 1,
        fingerprint=digest(ids_n.tolist()),
    )


@torch.no_grad()
def width_of(model: RecurrentModel) -> int:
    """Width D of the hidden states. It may differ from the width of the input embeddings."""
    block_1W = torch.zeros(1, model.block, dtype=torch.int64, device=model.embedding.weight.device)
    return hidden_states(model, block_1W)[0].shape[-1]


@dataclass(frozen=True)
class Embeddings:
    """A folder of embeddings, made from the hidden states of texts. Lanes and segments change the last bits of a value at most."""

    output: Place
    texts: Texts
    width: int
    model: str
    """Digest of the weights."""
    every: int
    """Tokens per row, which holds their mean."""
    dtype: Literal["float32", "float16"]

    @cached_property
    def fingerprint(self) -> str:
        return digest([self.model, self.every, self.dtype, self.texts.fingerprint, list(self.texts.ids)])

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the Arrow files: document, offset of the token, embedding [width]."""
        item = pa.field("item", pa.float32() if self.dtype == "float32" else pa.float16(), nullable=False)
        return pa.schema(
            [
                pa.field("document", pa.dictionary(pa.int32(), pa.string()), nullable=False),
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("embedding", pa.list_(item, self.width), nullable=False),
            ],
            metadata={MADE_OF: self.fingerprint.encode()},
        )

    @cached_property
    def parts(self) -> list[tuple[str, Texts]]:
        """The name of each part, and its documents."""
        ranges = group_by_bytes(self.texts.lengths, PART_TOKENS)  # here of tokens
        return [(f"part-{number:05d}.arrow", self.texts.part(indices)) for number, indices in enumerate(ranges)]

    def missing(self) -> list[tuple[str, Texts]]:
        """The parts that have yet to be made. Removes files that a killed command left unfinished.

        Raises UserError where the folder holds other files, or parts with another fingerprint.
        """
        complete = set[str]()
        staged = []
        for file in self.output.list():
            becomes = staged_for(file.name)
            if PART.fullmatch(becomes) or becomes == LAST:
                staged.append(file.place)
            elif PART.fullmatch(file.name):
                self._check_is_ours(file.place)
                complete.add(file.name)
            elif file.name not in (LAST, LOCK):
                raise UserError(
                    f"{self.output} holds other files ({file.name}): name a folder of its own with --output"
                )
        for place in staged:  # not before the whole folder is known to be ours
            place.delete()
        return [part for part in self.parts if part[0] not in complete]

    def _check_is_ours(self, part: Place) -> None:
        try:
            with pa.ipc.open_file(part.open_random()) as file:
                found = (file.schema.metadata or {}).get(MADE_OF, b"").decode()
        except pa.ArrowInvalid:
            found = ""
        if found != self.fingerprint:
            raise UserError(
                f"{part} is of another model, text or option: remove {part.parent}, or choose another --output"
            )

    @contextmanager
    def sink(self, shard: Any, _: object) -> Iterator[Callable[[Any], None]]:
        """A sink for `training.reading` that writes a record batch for each step; the file gets its name when it is complete."""
        means = Means(self.every, shard.store.lengths)
        with (self.output / shard.name).writing() as stream, pa.ipc.new_file(stream, self.schema) as file:
            yield lambda segment: file.write_batch(self._batch(shard.store, means, segment))

    def _batch(self, texts: Texts, means: Means, segment: Any) -> pa.RecordBatch:
        spans = texts.spans(segment)
        documents: list[int] = []
        offsets: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for document, offset, hidden_nD in spans:
            offset_m, mean_mD = means.add(document, offset, hidden_nD)
            documents.append(document)
            offsets.append(offset_m)
            values.append(mean_mD)
        document_m = np.repeat(np.array(documents, dtype=np.int32), list(map(len, offsets)))
        wide = np.concatenate(values)
        if not np.isfinite(wide).all():
            raise weights_damaged("the model's embeddings are not numbers")
        value = wide.astype(self.dtype).reshape(-1)
        if not np.isfinite(value).all():
            raise UserError(
                f"an embedding is too large for {self.dtype}: repeat with --dtype float32 and another --output"
            )
        columns = [
            pa.DictionaryArray.from_arrays(arrow_array(document_m), pa.array(texts.ids, pa.string())),
            arrow_array(np.concatenate(offsets)),
            pa.FixedSizeListArray.from_arrays(arrow_array(value), type=self.schema.field("embedding").type),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def finish(self) -> int:
        """Record that all parts are complete. Returns the number of their rows."""
        rows = int(np.sum(-(-self.texts.lengths // self.every)))
        about = {"fingerprint": self.fingerprint, "model": self.model, "text": self.texts.fingerprint}
        about |= {"every": self.every, "documents": len(self.texts.ids), "tokens": int(self.texts.lengths.sum())}
        about |= {"rows": rows, "parts": len(self.parts)}
        (self.output / LAST).write_atomically(json.dumps(about, indent=1).encode())
        return rows


class Means:
    """Means of hidden states over each ``every`` tokens of a document. The hidden states come in pieces."""

    def __init__(self, every: int, lengths: np.ndarray) -> None:
        """``lengths``: tokens of each document, at which its last group ends."""
        self._every = every
        self._lengths = lengths
        self._begun: dict[int, tuple[Any, int]] = {}

    def add(self, document: int, offset: int, hidden_nD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add a piece, which begins where the document's last one ended. Returns offsets [m] and means [m, D] of the groups that it
        completes."""
        end = offset + len(hidden_nD)
        bounds = np.unique([offset, *range(-(-offset // self._every) * self._every, end, self._every), end])
        if len(bounds) < 2:  # begin-of-document alone
            return np.empty(0, np.int64), hidden_nD
        sums_mD = np.add.reduceat(hidden_nD, bounds[:-1] - offset, axis=0)
        counts_m = np.diff(bounds)
        begun, count = self._begun.pop(document, (0.0, 0))
        sums_mD[0] += begun
        counts_m[0] += count
        offsets_m = bounds[:-1] // self._every * self._every
        if end % self._every and end < self._lengths[document]:
            self._begun[document] = sums_mD[-1], int(counts_m[-1])
            sums_mD = sums_mD[:-1]
            counts_m = counts_m[:-1]
            offsets_m = offsets_m[:-1]
        return offsets_m, sums_mD / counts_m[:, None]
