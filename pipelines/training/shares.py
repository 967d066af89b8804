"""Score whole documents in several processes, each of which reads a share of them over its lanes, and goes on where it was killed.

    reading = Reading(checkpoint, model, store, ("nothing", "states"), SEGMENTS, lanes=8, segment_length=1024, shares=2, folder=f)
    scores = reading.scores(workers=2, progress=print)            # one for each way

A piece of work is one share read in one way: State carried, its recurrent states cleared at each segment, all of it. Shares have
similar numbers of tokens. Each is read with the longest documents first; where something is cleared, documents begin with a
segment, so that it is cleared at the same tokens whatever the lanes, and those that end before it would be are not read again.

Sums are kept for each bucket of positions of each document, and added in float64 in the documents' order: whoever read them
changes nothing. The model's own float32 is the same for a document whatever stands on the other lanes, as long as its products
have four rows or more; products of fewer rows are rounded in another way, in the last bit.

    <folder>/<fingerprint>-<way>-<share>     the sums so far, and the State behind them, every few seconds: checksum, safetensors

With ``losses`` each token's own nats are put where it stands in the split, in a file that is mapped and whose pages are on disk
before a share says that it has read so far.

Letters: B lanes · N buckets of a share, document after document · P positions, in buckets of a document.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from heapq import heapreplace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors.torch import load, save

from common.errors import UserError
from common.files import digest, write_atomically
from data_prep.lanes import EvaluationLanes
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.tracking.chance import edges_of
from pipelines.tracking.score import Score
from pipelines.training.processes import over_processes
from pipelines.training.scoring import Clear, Clearing, bucket_of, read_segments, score_of
from recur_models import ModelConfig, RecurrentModel, State

SAVE_SECONDS, SAVE_SHARE = 5.0, 0.05
"""A share is saved every so many seconds, or so seldom that saving takes so much of the time."""
LAYOUT = 2
"""Of documents on lanes, as `Share.lanes` makes it: what was saved under another one is not gone on with."""
MOST_WORKERS, WORTH_A_WORKER = 8, 3e11
"""Where nobody says how many: so many processes at most, and one for so many FLOPs: seconds, in which another one would hardly
stand."""


@dataclass(frozen=True, eq=False)
class Share:
    """Documents that one process reads in one way."""

    way: Clear
    lengths: np.ndarray
    """int64 [documents]. Tokens of each document of the split; 0 of those in other shares."""
    block: int
    bucket: int
    """Tokens of a position."""
    path: Path
    """Where it is saved."""

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [documents + 1]. Where the buckets of each document begin among those of the share."""
        return np.concatenate([[0], np.cumsum(-(-self.lengths // self.bucket))])

    def lanes(self, most: int, segment_length: int, where: Clearing) -> EvaluationLanes:
        """The schedule. It has no more lanes than the longest document leaves something to do for."""
        aligned, every = self.way != "nothing", where.every * self.block
        if aligned and 0 < every <= segment_length:  # it is cleared on all lanes at once
            segment_length = segment_length // every * every
        taken = -(-self.lengths // (segment_length if aligned else self.block))
        lanes = min(most, int(-(-taken.sum() // taken.max())))
        # Longer segments keep a step as large where there are fewer lanes; but at each segment something may be cleared.
        length = segment_length * (1 if aligned else most // lanes)
        return EvaluationLanes(self.lengths, lanes=lanes, segment_length=length, block=self.block, aligned=aligned)

    def saved(self) -> tuple[int, np.ndarray, State] | None:
        """Steps, sums [3, N] and State; None where nothing is there, or what is there is damaged."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return None
        if xxhash.xxh3_64_digest(memoryview(data)[8:]) != data[:8]:
            return None
        state = load(data[8:])
        return int(state.pop("step")), state.pop("sums").numpy(), state

    def save(self, step: int, sums_3N: np.ndarray, state: State) -> None:
        # A copy: safetensors takes none that share memory.
        here = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}
        data = save({**here, "step": torch.tensor(step), "sums": torch.from_numpy(sums_3N)})
        write_atomically(self.path, xxhash.xxh3_64_digest(data) + data)


@dataclass(frozen=True)
class Reading:
    """A checkpoint that is scored on all of a split."""

    checkpoint: Checkpoint
    model: ModelConfig
    """The checkpoint's, or another one that its weights are read with."""
    store: SegmentStore
    ways: tuple[Clear, ...]
    """The first reads all. What the others clear, a document may be too short for: it is not read again."""
    where: Clearing
    lanes: int
    """Documents that a process reads side by side."""
    segment_length: int
    shares: int
    folder: Path
    """Where shares are saved."""
    losses: Path | None = None
    """A file, float32 [tokens of the split, document after document], that gets the nats of each token in the first way."""

    @property
    def beyond(self) -> int:
        """Tokens of a document before its State is cleared."""
        return self.where.first(self.segment_length, self.model.block)

    @cached_property
    def bucket(self) -> int:
        """Tokens of a position."""
        return bucket_of(self.store.lengths, self.model.block)

    @cached_property
    def pieces(self) -> list[Share]:
        """All shares of all ways, those of the first way first."""
        lengths, key = self.store.lengths, [self.checkpoint.meta["digest"], self.model.to_json(), self.lanes]
        key += [
            self.store.manifest.fingerprint,
            asdict(self.where),
            self.segment_length,
            self.shares,
            self.bucket,
            LAYOUT,
        ]
        found = []
        for way in self.ways:
            read = lengths if way == self.ways[0] else np.where(lengths > self.beyond, lengths, 0)
            for number, share in enumerate(shared_out(read, self.shares)):
                path = self.folder / f"{digest(key)}-{way}-{number}"
                found.append(Share(way, share, self.model.block, self.bucket, path))
        return found

    @property
    def tokens(self) -> int:
        """Of all pieces."""
        return sum(int(piece.lengths.sum()) for piece in self.pieces)

    def read(self, workers: int, progress: Callable[[int], None]) -> None:
        """Read what is not read yet. ``progress(tokens)`` is told how many more of `tokens` have been.

        Raises UserError where the split has no token, and what `over_processes` does.
        """
        if not self.pieces:
            raise UserError(f"{self.store.folder} has no document with any token: choose another --split")
        self.folder.mkdir(parents=True, exist_ok=True)
        over_processes(self, len(self.pieces), workers, progress)

    def scores(self, workers: int, progress: Callable[[int], None]) -> list[Score]:
        """`read`, and one for each way. Raises UserError where a labelled split has no label, too."""
        self.read(workers, progress)
        lengths, bucket = self.store.lengths, self.bucket
        whole = Share("nothing", lengths, self.model.block, bucket, self.folder)
        sums_3N, found = np.zeros((3, int(whole.starts[-1]))), []
        for way in self.ways:
            sums_3N = sums_3N.copy()  # of documents that a cleared way need not read, those of the first way
            for piece in self.pieces:
                if piece.way == way:
                    saved = piece.saved()
                    assert saved is not None, f"{piece.path} is not what was written"
                    for document in np.flatnonzero(piece.lengths):
                        ours, theirs = (slice(*share.starts[document : document + 2]) for share in (whole, piece))
                        sums_3N[:, ours] = saved[1][:, theirs]
            sums_3P = np.zeros((3, int(np.diff(whole.starts).max(initial=0))))
            for start, stop in zip(whole.starts[:-1], whole.starts[1:], strict=True):
                sums_3P[:, : stop - start] += sums_3N[:, start:stop]
            score = score_of(self.store, lengths, sums_3P, bucket=bucket, beyond=self.beyond)
            found.append(self.with_groups(score, sums_3N, whole.starts))
        return found

    def with_groups(self, score: Score, sums_3N: np.ndarray, starts: np.ndarray) -> Score:
        """The score with its sums by group of the text; ``starts``: where the positions of each document begin."""
        nats_G, *counts = np.add.reduceat(sums_3N, edges_of(starts)[:-1], axis=1)
        tokens, errors = (tuple(count_G.astype(np.int64).tolist()) for count_G in counts)
        labelled = self.store.labelled
        return replace(
            score, group_nats=tuple(nats_G.tolist()), group_tokens=tokens, group_errors=errors if labelled else ()
        )

    def open(self, device: torch.device) -> Callable[[int], Iterator[int]]:
        """`processes.Work`."""
        model = self.model.restore(self.checkpoint.meta["vocab_size"], self.checkpoint.weights()).eval().to(device)
        return lambda piece: self._read(model, self.pieces[piece], device)

    @torch.inference_mode()
    def _read(self, model: RecurrentModel, piece: Share, device: torch.device) -> Iterator[int]:
        """Read a piece, from where it was saved; tokens, step by step."""
        schedule = piece.lanes(self.lanes, self.segment_length, self.where)
        first, sums_3N, state = piece.saved() or (0, np.zeros((3, int(piece.starts[-1]))), {})
        state = {name: tensor.to(device) for name, tensor in state.items()} if first else None
        losses_T = np.memmap(self.losses, np.float32, "r+") if self.losses and piece.way == self.ways[0] else None
        before = np.cumsum(self.store.lengths) - self.store.lengths  # tokens of the split before each document
        yield sum(schedule.valid_tokens(step) for step in range(first))
        saved, pause = time.monotonic(), SAVE_SECONDS
        how: dict[str, Any] = {"clearing": piece.way, "where": self.where, "begin": first, "state": state}
        segments = read_segments(model, self.store, schedule, (0, schedule.lanes), device, **how)
        for step, segment in enumerate(segments, first + 1):
            segment.add_to(sums_3N, piece.bucket, piece.starts)
            if losses_T is not None:
                segment.put(losses_T, before)
            over = step == schedule.steps
            if over or time.monotonic() - saved > pause:
                began = time.monotonic()
                if losses_T is not None:
                    losses_T.flush()
                piece.save(step, sums_3N, {} if over else segment.state)
                saved = time.monotonic()
                pause = max(SAVE_SECONDS, (saved - began) / SAVE_SHARE)
            yield schedule.valid_tokens(step - 1)


def workers_for(asked: int | None, flops: float) -> int:
    """Processes for a pass: those asked for, else as many as so many FLOPs are worth."""
    if asked is not None:
        return asked
    return int(min(flops // WORTH_A_WORKER, torch.cuda.device_count() or torch.get_num_threads(), MOST_WORKERS))


def shared_out(lengths: np.ndarray, shares: int) -> list[np.ndarray]:
    """The lengths of each share's documents, 0 of all others [documents]: the longest first, each to the share that has least.
    Shares without documents are left out.
    """
    found, filled = np.zeros((shares, len(lengths)), dtype=np.int64), [(0, share) for share in range(shares)]
    for document in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]:
        tokens, share = filled[0]
        found[share, document] = lengths[document]
        heapreplace(filled, (tokens + int(lengths[document]), share))
    return [share for share in found if share.any()]
