"""One pass of a model over one split: every token of every document once, State carried, nats summed.

    score = score_split(model, store, lanes=8, segment_length=1024, world=World.alone())
    score.bits_per_token, score.bits_per_byte, score.word_perplexity

Validation inside the loop calls it; `pipelines.evaluate` shares a split out among processes, which read it in the same way.

Letters: B lanes · T tokens · K blocks · W tokens of a block · N blocks that were read · P positions, in buckets of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from data_prep.corpora import CODE
from data_prep.lanes import Batch, EvaluationLanes, TokenStore, read_batch
from data_prep.store import SegmentStore
from pipelines.config.run import ModelSettings
from pipelines.tracking.score import Score
from pipelines.training.forward import predict, tensors
from pipelines.training.world import World
from recur_models import RECURRENT, RecurrentModel, State, clear, detach
from recur_models.protocol import kind_of

Clear = Literal["nothing", "states", "everything"]
"""What is put back to its initial value: the study of section 4.6 clears the states."""


@dataclass(frozen=True)
class Clearing:
    """Where State is cleared: at the start of each segment, wherever that falls in a document, or at places in each document."""

    every: int = 0
    """At each multiple of so many blocks."""
    at: int = 0
    """At this token, which begins a block."""

    def mask(self, offset_BK: np.ndarray, block: int) -> np.ndarray:
        """bool [B, K]: on which lane before which block."""
        if self.every:
            return offset_BK % (self.every * block) == 0
        if self.at:
            return offset_BK == self.at
        return np.broadcast_to(np.arange(offset_BK.shape[1]) == 0, offset_BK.shape)

    def first(self, segment_length: int, block: int) -> int:
        """Tokens of a document before its State is cleared; where it is at each segment, at most."""
        return self.every * block or self.at or segment_length


SEGMENTS = Clearing()
MOST_POSITIONS = 65_536
"""Buckets of the longest document, at most, so that memory does not grow with it. They take 0.3 kB each."""


def bucket_of(lengths: np.ndarray, block: int) -> int:
    """Tokens of a position bucket: a block; where the longest document has more than MOST_POSITIONS, two, four, ... blocks."""
    blocks = -(-int(lengths.max(initial=1)) // block)
    return block << ((blocks - 1) // MOST_POSITIONS).bit_length()


def has_states(model: RecurrentModel) -> bool:
    """Whether the State holds recurrent vectors or a memory, as against cached keys and values alone."""
    return any(kind_of(name) in RECURRENT for name in model.initial_state(0))


def carries_states(config: ModelSettings, vocab_size: int) -> bool:
    """The same of a model that is not built."""
    with torch.device("meta"):
        return has_states(config.build(vocab_size))


class Segment(NamedTuple):
    """What a process has read in one step."""

    batch: Batch
    nats_BT: Tensor
    wrong_BT: Tensor | None
    state: State
    """After it."""

    def add_to(self, sums_3P: np.ndarray, bucket: int, starts: np.ndarray | None = None) -> None:
        """Add each block's nats, its targets and how many were wrong to its position, which is of so many tokens.

        ``starts``: where in ``sums_3P`` each document's own positions begin; without it documents share them.
        """
        blocks = self.batch.document_BK.shape[1]
        targets_BT = torch.from_numpy(self.batch.targets_BT >= 0)
        figures = [self.nats_BT, targets_BT, torch.zeros_like(targets_BT) if self.wrong_BT is None else self.wrong_BT]
        sums = [figure_BT.double().unflatten(1, (blocks, -1)).sum(-1).cpu().numpy() for figure_BT in figures]
        used_BK = self.batch.document_BK >= 0
        positions_N = self.batch.offset_BK[used_BK] // bucket
        if starts is not None:
            positions_N += starts[self.batch.document_BK[used_BK]]
        for sums_P, sums_BK in zip(sums_3P, sums, strict=True):
            np.add.at(sums_P, positions_N, sums_BK[used_BK])

    def put(self, nats_T: np.ndarray, before: np.ndarray) -> None:
        """Each target's nats at its place in a split, where so many tokens stand before each document [documents]."""
        batch, block = self.batch, self.nats_BT.shape[1] // self.batch.document_BK.shape[1]
        begin_BK = before[batch.document_BK] + batch.offset_BK
        place_BT = (begin_BK[:, :, None] + np.arange(block)).reshape(batch.targets_BT.shape)
        read_BT = (batch.targets_BT >= 0) & np.repeat(batch.document_BK >= 0, block, 1)
        nats_T[place_BT[read_BT]] = self.nats_BT.float().cpu().numpy()[read_BT]


def read_segments(
    model: RecurrentModel,
    store: TokenStore,
    schedule: EvaluationLanes,
    lanes: tuple[int, int],
    device: torch.device,
    *,
    clearing: Clear = "nothing",
    where: Clearing = SEGMENTS,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    begin: int = 0,
    state: State | None = None,
) -> Iterator[Segment]:
    """Read these lanes of a schedule, step by step; from step ``begin`` on with the State that was there. Gradients are the
    caller's to turn off, and the mode of the model is too.

    ``where`` says at which places what is cleared is; it changes nothing else, as a segment may be read in parts.
    """
    initial = model.initial_state(lanes[1] - lanes[0])
    kinds = {"nothing": (), "states": RECURRENT, "everything": None}[clearing]
    state = initial if state is None else state
    for step in range(begin, schedule.steps):
        batch = read_batch(store, schedule, step, *lanes)
        tokens_BT, targets_BT, fresh_BK = tensors(batch, device)
        cleared_BK = where.mask(batch.offset_BK, model.block) & (clearing != "nothing")
        changes = (np.flatnonzero(cleared_BK[:, 1:].any(0)) + 1).tolist()
        parts: list[list[Tensor]] = []
        for first, last in pairwise([0, *changes, cleared_BK.shape[1]]):  # nothing is cleared within
            state = clear(state, initial, kinds, torch.from_numpy(cleared_BK[:, first]).to(device))
            tokens = slice(first * model.block, last * model.block)
            read = tokens_BT[:, tokens], state, fresh_BK[:, first:last], targets_BT[:, tokens]
            with autocast():
                nats, wrong, state = predict(model, *read, store.labelled)
            parts.append([nats] if wrong is None else [nats, wrong])
            state = detach(state)
        nats_BT, *wrong_BT = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        yield Segment(batch, nats_BT, wrong_BT[0] if wrong_BT else None, state)


@torch.no_grad()
def score_split(
    model: RecurrentModel,
    store: SegmentStore,
    *,
    lanes: int,
    segment_length: int,
    world: World,
    clearing: Clear = "nothing",
    where: Clearing = SEGMENTS,
    limit_tokens: int | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Score the split over all processes of ``world``; each reads its own range of lanes, and all get the same sums.

    ``limit_tokens`` reads about so many, of some documents, each for long. ``progress(step, steps)`` is called after each step.
    Raises UserError where not one label is among what was read of a labelled store.
    """
    sizes: dict[str, Any] = {"segment_length": segment_length, "block": model.block}
    schedule = EvaluationLanes(store.lengths, lanes=lanes, limit_tokens=limit_tokens, **sizes)
    chosen = int(np.count_nonzero(schedule.lengths))
    # Idle lanes cost as much as others; a process has one at least.
    if chosen < min(lanes, np.count_nonzero(store.lengths)):
        schedule = EvaluationLanes(schedule.lengths, lanes=min(lanes, max(chosen, world.size)), **sizes)
    was_training = model.training
    bucket = bucket_of(schedule.lengths, model.block)
    sums_3P = np.zeros((3, -(-int(schedule.lengths.max()) // bucket)))
    model.eval()
    own = world.lanes(schedule.lanes)
    how: dict[str, Any] = {"clearing": clearing, "where": where, "autocast": autocast}
    for step, segment in enumerate(read_segments(model, store, schedule, own, world.device, **how)):
        segment.add_to(sums_3P, bucket)
        if progress:
            progress(step + 1, schedule.steps)
    model.train(was_training)
    sums_3P = world.sum(torch.from_numpy(sums_3P).to(world.device)).cpu().numpy()
    beyond = where.first(segment_length, model.block)
    return score_of(store, schedule.lengths, sums_3P, bucket=bucket, beyond=beyond)


def score_of(store: SegmentStore, lengths: np.ndarray, sums_3P: np.ndarray, *, bucket: int, beyond: int) -> Score:
    """The figures of a pass that read so many tokens of each document (``lengths`` [documents]). ``sums_3P``: of each position the
    nats, the targets and how many of them were wrong. ``bucket``: tokens of a position. ``beyond``: tokens of a document before its
    State is cleared.

    Raises UserError where not one label is among what was read of a labelled store.
    """
    nats_P, tokens_P, wrong_P = sums_3P
    if not tokens_P.any():
        raise UserError(
            f"{store.folder}: none of the {lengths.sum():,} tokens read has a label, so there is nothing to score: raise "
            "validate_tokens (0 reads all), or prepare a corpus that labels some"
        )
    # A task's labels are no text: figures by word and byte would say nothing of it.
    whole = bool((lengths == store.lengths).all()) and not store.labelled
    documents = store.documents
    read = store.lengths > 0  # of the others nothing is predicted
    return Score(
        nats=float(nats_P.sum()),
        tokens=int(tokens_P.sum()),
        words=int(documents.column("words")[read].sum()) if whole and store.manifest.corpus not in CODE else 0,
        bytes=int(documents.column("bytes")[read].sum()) if whole else 0,
        documents=int(np.count_nonzero(lengths)),
        bucket=bucket,
        bucket_nats=tuple(nats_P.tolist()),
        bucket_tokens=tuple(tokens_P.astype(np.int64).tolist()),
        bytes_in_proportion=sum(
            size * length / tokens
            for size, tokens, length in zip(
                documents.column("bytes").tolist(), documents.tokens.tolist(), lengths.tolist(), strict=True
            )
            if length and not store.labelled
        ),
        share_beyond=float(np.maximum(lengths - beyond, 0).sum() / lengths.sum()),
        errors=int(wrong_P.sum()) if store.labelled else None,
        bucket_errors=tuple(wrong_P.astype(np.int64).tolist()) if store.labelled else (),
    )
