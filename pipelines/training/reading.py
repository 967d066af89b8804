"""One pass of a model over whole documents, State carried from their first token to their last; sinks keep its outputs.

    shard = Shard("all", store, store.lengths, lanes=8, segment_length=1024)
    DocumentPass(load_model, [shard], sink, folder).read(workers=2, progress=print)

One process reads a shard over its lanes, the longest documents first. Its sink gets the model's output of each step: losses, or
hidden states. The sink's data is saved every few seconds with the State, and a rerun of the command resumes there. If State is
cleared, documents begin with a segment, so that it is cleared at the same tokens whatever the lanes.

    <folder>/<name of a shard>     checksum, then safetensors

In float32, a document's outputs do not depend on the documents on the other lanes, as long as the matrix products have four rows or
more. Products of fewer rows are rounded otherwise in the last bit.

Letters: B lanes · T tokens · K blocks · D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import heapreplace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
import xxhash
from safetensors.torch import load, save
from torch import Tensor

from common.choices import Dtype
from common.files import write_atomically
from data_prep.lanes import Batch, EvaluationLanes, TokenStore, read_batch
from pipelines.training.forward import predict, tensors
from pipelines.training.precision import autocast_to
from pipelines.training.processes import over_processes
from recur_models import RECURRENT, RecurrentModel, State, clear, detach
from recur_models.losses import hidden_states

SAVE_SECONDS = 5.0
SAVE_SHARE = 0.05
"""A shard is saved every `SAVE_SECONDS`, or less often if saving would take more than `SAVE_SHARE` of the time."""
KEPT = "="
"""Prefix of the names of a sink's arrays in the file, which State's names do not have."""
MAX_WORKERS = 8
WORTH_A_WORKER = 3e11
"""By default there is one process for this number of FLOPs, and at most `MAX_WORKERS`. It is a few seconds of work, in which
another process would hardly have started."""

StateMode = Literal["nothing", "states", "everything"]
"""The part of the State that is set back to its initial value. Hutchins et al. 2022, section 4.6, clear the states."""


@dataclass(frozen=True)
class StateReset:
    """Where State is cleared: at the start of each segment, wherever that falls in a document, or at places in each document."""

    every: int = 0
    """At each multiple of this number of blocks."""
    at: int = 0
    """At this token, which begins a block."""

    def mask(self, offset_BK: np.ndarray, block: int) -> np.ndarray:
        """bool [B, K]: whether State is cleared on a lane before a block."""
        if self.every:
            return offset_BK % (self.every * block) == 0
        if self.at:
            return offset_BK == self.at
        return np.broadcast_to(np.arange(offset_BK.shape[1]) == 0, offset_BK.shape)

    def first(self, segment_length: int, block: int) -> int:
        """Tokens of a document before its State is first cleared. If that happens at each segment, an upper bound: a document may
        begin in the middle of one.
        """
        return self.every * block or self.at or segment_length


SEGMENTS = StateReset()


class Segment(NamedTuple):
    """The tokens that a process has read in one step."""

    step: int
    schedule: EvaluationLanes
    batch: Batch
    output: Tensor
    """Nats [B, T] of the targets, or the last hidden states [B, T, D]."""
    wrong_BT: Tensor | None
    """Which labels were wrong, of a store that labels its tokens."""
    state: State
    """State after the step."""


def read_segments(
    model: RecurrentModel,
    store: TokenStore,
    schedule: EvaluationLanes,
    lanes: tuple[int, int],
    device: torch.device,
    *,
    clearing: StateMode = "nothing",
    reset: StateReset = SEGMENTS,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    begin: int = 0,
    state: State | None = None,
    hidden: bool = False,
) -> Iterator[Segment]:
    """Read these lanes of a schedule, step by step; from step ``begin`` on with the State that was there. The caller disables
    gradients and sets the model's mode.

    ``clearing`` says which part of the State is reset, ``reset`` at which blocks. They change nothing else, since a segment may be
    read in parts. ``hidden`` asks the model for its hidden states in place of losses.
    """
    initial = model.initial_state(lanes[1] - lanes[0])
    kinds = {"nothing": (), "states": RECURRENT, "everything": None}[clearing]
    state = initial if state is None else state
    for step in range(begin, schedule.steps):
        batch = read_batch(store, schedule, step, *lanes)
        tokens_BT, targets_BT, fresh_BK = tensors(batch, device)
        cleared_BK = reset.mask(batch.offset_BK, model.block) & (clearing != "nothing")
        changes = (np.flatnonzero(cleared_BK[:, 1:].any(0)) + 1).tolist()
        outputs = list[Tensor]()
        wrongs = list[Tensor]()  # of labels alone
        for first, last in pairwise([0, *changes, cleared_BK.shape[1]]):  # State is cleared only where a part begins
            state = clear(state, initial, kinds, torch.from_numpy(cleared_BK[:, first]).to(device))
            tokens = slice(first * model.block, last * model.block)
            read = (tokens_BT[:, tokens], state, fresh_BK[:, first:last])
            wrong = None
            with autocast():
                if hidden:
                    output, state = hidden_states(model, *read)
                else:
                    output, wrong, state = predict(model, *read, targets_BT[:, tokens], store.labelled)
            outputs.append(output)
            if wrong is not None:
                wrongs.append(wrong)
            state = detach(state)
        wrong_BT = torch.cat(wrongs, 1) if wrongs else None
        yield Segment(step, schedule, batch, torch.cat(outputs, 1), wrong_BT, state)


class Shard(NamedTuple):
    """Documents that one process reads in one way."""

    name: str
    store: TokenStore
    lengths: np.ndarray
    """int64 [documents]. Tokens of each document of the store; 0 of those in other shards."""
    lanes: int
    segment_length: int
    clearing: StateMode = "nothing"
    reset: StateReset = SEGMENTS

    def split(self, count: int, block: int) -> list[Self]:
        """Divide the documents among ``count`` shards (`shares_of`). ``block``: tokens of the model's block.

        A shard has no more lanes than can be kept busy while its longest document is read.
        """
        aligned = self.clearing != "nothing"
        every = self.reset.every * block
        segment_length = self.segment_length
        if aligned and 0 < every <= segment_length:  # then State is cleared on all lanes at once
            segment_length = segment_length // every * every
        found = []
        for number, own in enumerate(shares_of(self.lengths, count)):
            taken = -(-own // (segment_length if aligned else block))
            lanes = min(self.lanes, int(-(-taken.sum() // taken.max())))
            length = segment_length
            if not aligned:  # else State may be cleared at each segment
                # With fewer lanes, longer segments keep a step as large, as far as there are documents to fill them.
                fullest = EvaluationLanes(own, lanes=lanes, segment_length=block, block=block).steps * block
                length = min(segment_length * (self.lanes // lanes), fullest)
            found.append(self._replace(name=f"{self.name}-{number}", lengths=own, lanes=lanes, segment_length=length))
        return found


def shares_of(lengths: np.ndarray, count: int) -> np.ndarray:
    """Divide documents among ``count`` shares: the longest first, each to the share that has least.

    Args:
        lengths: int64 [documents], in tokens.

    Returns int64 [shares, documents]: the lengths, with 0 for documents of other shares. Shares without documents are left out.
    """
    shares = np.zeros((count, len(lengths)), dtype=np.int64)
    filled = [(0, number) for number in range(count)]  # a heap: the tokens of each share
    for document in np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]:
        tokens, number = filled[0]
        shares[number, document] = lengths[document]
        heapreplace(filled, (tokens + int(lengths[document]), number))
    return shares[shares.any(1)]


Kept = dict[str, np.ndarray]
"""A sink's arrays by name, saved with the State. A mapped file is flushed then, before anything else is saved."""
Sink = Callable[[Shard, Kept], AbstractContextManager[Callable[[Segment], None]]]
"""A process opens a sink for each shard: it gets the kept arrays, and gives a function that takes each segment."""


@dataclass(frozen=True)
class DocumentPass:
    """A pass of a model over shards. With several workers, all fields must be picklable."""

    model: Callable[[], RecurrentModel]
    """Returns the model, in evaluation mode."""
    shards: Sequence[Shard]
    sink: Sink
    folder: Path | None = None
    """Where shards are saved, by their names; without it those that are not finished are read anew."""
    hidden: bool = False
    """Sinks get hidden states in the place of losses."""
    precision: Dtype = "float32"
    """Precision of the products."""

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(int(shard.lengths.sum()) for shard in self.shards)

    def read(self, workers: int, progress: Callable[[int], None]) -> None:
        """Read what is not read yet. ``progress(tokens)`` is called with the number of further tokens read.

        Raises what `over_processes` does.
        """
        over_processes(self._open, len(self.shards), workers, progress)

    def saved(self, shard: Shard) -> tuple[int, Kept, State]:
        """Number of steps read, the sink's arrays, and the State; 0 steps if nothing is saved, or it is damaged."""
        path = self.folder / shard.name if self.folder else None
        data = path.read_bytes() if path and path.exists() else b""
        if xxhash.xxh3_64_digest(memoryview(data)[8:]) != data[:8]:
            return 0, {}, {}
        found = load(data[8:])
        kept = {name[1:]: found.pop(name).numpy() for name in list(found) if name.startswith(KEPT)}
        return int(found.pop("step")), kept, found

    def _save(self, path: Path, step: int, kept: Kept, state: State) -> None:
        # Copies, as safetensors takes no tensors that share memory.
        here = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in state.items()}
        for name, array in kept.items():
            if isinstance(array, np.memmap):
                array.flush()
            else:
                here[KEPT + name] = torch.from_numpy(array)
        data = save({**here, "step": torch.tensor(step)})
        write_atomically(path, xxhash.xxh3_64_digest(data) + data)

    def _open(self, device: torch.device) -> Callable[[int], Iterator[int]]:
        model = self.model().to(device)
        return lambda number: self._read(model, self.shards[number], device)

    @torch.inference_mode()
    def _read(self, model: RecurrentModel, shard: Shard, device: torch.device) -> Iterator[int]:
        """Read a shard from where it was saved. Yields the tokens that were read before, then those of each step."""
        schedule = EvaluationLanes(
            shard.lengths,
            lanes=shard.lanes,
            segment_length=shard.segment_length,
            block=model.block,
            aligned=shard.clearing != "nothing",
        )
        first, kept, state = self.saved(shard)
        yield sum(schedule.valid_tokens(step) for step in range(first))
        saved = time.monotonic()
        pause = SAVE_SECONDS
        with self.sink(shard, kept) as add:
            segments = read_segments(
                model,
                shard.store,
                schedule,
                (0, schedule.lanes),
                device,
                clearing=shard.clearing,
                reset=shard.reset,
                autocast=autocast_to(self.precision, device),
                begin=first,
                state={name: tensor.to(device) for name, tensor in state.items()} if first else None,
                hidden=self.hidden,
            )
            for step, segment in enumerate(segments, first + 1):
                add(segment)
                over = step == schedule.steps
                if self.folder and (over or time.monotonic() - saved > pause):
                    began = time.monotonic()
                    self._save(self.folder / shard.name, step, kept, {} if over else segment.state)
                    saved = time.monotonic()
                    pause = max(SAVE_SECONDS, (saved - began) / SAVE_SHARE)
                yield schedule.valid_tokens(step - 1)


def workers_for(asked: int | None, flops: float) -> int:
    """Processes for a pass: as asked, else one for each `WORTH_A_WORKER` FLOPs; at most `MAX_WORKERS`, and one for each GPU or,
    without GPUs, each CPU thread."""
    if asked is not None:
        return asked
    return int(min(flops // WORTH_A_WORKER, torch.cuda.device_count() or torch.get_num_threads(), MAX_WORKERS))
