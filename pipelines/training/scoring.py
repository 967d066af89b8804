"""One pass of a model over one split: every token of every document once, State carried, nats summed.

    score = score_split(model, store, lanes=8, segment_length=1024, world=World.alone())
    score.bits_per_token, score.bits_per_byte, score.word_perplexity

Validation inside the loop and `pipelines.evaluate` both call it. Letters: B lanes · T tokens · K blocks · W tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from data_prep.errors import UserError
from data_prep.lanes import Batch, EvaluationLanes, read_batch
from data_prep.store import SegmentStore
from pipelines.tracking.score import Score
from pipelines.training.world import World
from recur_models import RECURRENT, RecurrentModel, State, clear, detach
from recur_models.losses import labelled_cross_entropy
from recur_models.protocol import kind_of

Clear = Literal["nothing", "states", "everything"]
"""What is put back to its initial value at the start of each segment: the study of section 4.6 clears the states."""


def has_states(model: RecurrentModel) -> bool:
    """Whether the State holds recurrent vectors or a memory, as against cached keys and values alone."""
    return any(kind_of(name) in RECURRENT for name in model.initial_state(0))


def tensors(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [B, T], targets [B, T] and fresh [B, K] on the device."""
    read = [torch.from_numpy(array) for array in (batch.tokens_BT, batch.targets_BT, batch.fresh_BK)]
    if (
        device.type == "cuda"
    ):  # from memory that the system may move, a copy waits for all that the GPU was given before
        read = [tensor.pin_memory() for tensor in read]
    tokens_BT, targets_BT, fresh_BK = (tensor.to(device, non_blocking=True) for tensor in read)
    return tokens_BT, targets_BT, fresh_BK


def predict(
    model: Callable[..., tuple[Tensor, State]],
    tokens_BT: Tensor,
    state: State,
    fresh_BK: Tensor,
    targets_BT: Tensor,
    labelled: bool,
) -> tuple[Tensor, Tensor | None, State]:
    """Nats [B, T] of the targets, and the State after them; of labels, which are few, also which of them were wrong [B, T]."""
    if not labelled:
        nats_BT, state = model(tokens_BT, state, fresh_BK, targets_BT)
        return nats_BT, None, state
    logits_BTV, state = model(tokens_BT, state, fresh_BK)
    return *labelled_cross_entropy(logits_BTV, targets_BT), state


@torch.no_grad()
def score_split(
    model: RecurrentModel,
    store: SegmentStore,
    *,
    lanes: int,
    segment_length: int,
    world: World,
    clearing: Clear = "nothing",
    limit_tokens: int | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Callable[[int, int], None] | None = None,
    each: Callable[[Batch, np.ndarray], None] | None = None,
) -> Score:
    """Score the split over all processes of ``world``; each reads its own range of lanes, and all get the same sums.

    ``limit_tokens`` reads about so many, of some documents, each for long. ``progress(step, steps)`` is called after each step, and
    ``each(batch, nats_BT)`` with what this process has read in it, float32 [B, T].
    Raises UserError where not one label is among what was read of a labelled store.
    """
    sizes = {"segment_length": segment_length, "block": model.block}
    schedule = EvaluationLanes(store.lengths, lanes=lanes, limit_tokens=limit_tokens, **sizes)
    chosen = int(np.count_nonzero(schedule.lengths))
    # Idle lanes cost as much as others; a process has one at least.
    if chosen < min(lanes, np.count_nonzero(store.lengths)):
        schedule = EvaluationLanes(schedule.lengths, lanes=min(lanes, max(chosen, world.size)), **sizes)
    start, stop = world.lanes(schedule.lanes)
    initial = model.initial_state(stop - start)
    kinds = {"nothing": (), "states": RECURRENT, "everything": None}[clearing]
    state, was_training = initial, model.training
    buckets = -(-int(schedule.lengths.max()) // model.block)
    nats_P, tokens_P, wrong_P = (np.zeros(buckets) for _ in range(3))
    model.eval()
    for step in range(schedule.steps):
        batch = read_batch(store, schedule, step, start, stop)
        tokens_BT, targets_BT, fresh_BK = tensors(batch, world.device)
        state = clear(state, initial, kinds)
        with autocast():
            nats_BT, wrong_BT, state = predict(model, tokens_BT, state, fresh_BK, targets_BT, store.labelled)
        state = detach(state)
        if each:
            each(batch, nats_BT.float().cpu().numpy())
        nats_BK = nats_BT.double().unflatten(1, (-1, model.block)).sum(-1).cpu().numpy()
        valid_BK = (batch.targets_BT >= 0).reshape(*nats_BK.shape, model.block).sum(-1)
        used_BK = batch.document_BK >= 0
        positions = batch.offset_BK[used_BK] // model.block
        np.add.at(nats_P, positions, nats_BK[used_BK])
        np.add.at(tokens_P, positions, valid_BK[used_BK])
        if wrong_BT is not None:
            wrong_BK = wrong_BT.unflatten(1, (-1, model.block)).sum(-1).cpu().numpy()
            np.add.at(wrong_P, positions, wrong_BK[used_BK])
        if progress:
            progress(step + 1, schedule.steps)
    model.train(was_training)
    sums = torch.from_numpy(np.stack([nats_P, tokens_P, wrong_P])).to(world.device)
    nats_P, tokens_P, wrong_P = world.sum(sums).cpu().numpy()
    if not tokens_P.any():
        raise UserError(
            f"{store.folder}: none of the {schedule.tokens:,} tokens read has a label, so there is nothing to score: raise "
            "validate_tokens (0 reads all), or prepare a corpus that labels some"
        )
    read = schedule.lengths > 0
    # A task's labels are no text: figures by word and byte would say nothing of it.
    whole = bool((schedule.lengths == store.lengths).all()) and not store.labelled
    documents = store.manifest.documents
    return Score(
        nats=float(nats_P.sum()),
        tokens=int(tokens_P.sum()),
        words=sum(document.words for document in documents) if whole else 0,
        bytes=sum(document.bytes for document in documents) if whole else 0,
        documents=int(read.sum()),
        bucket=model.block,
        bucket_nats=tuple(nats_P.tolist()),
        bucket_tokens=tuple(tokens_P.astype(np.int64).tolist()),
        bytes_in_proportion=sum(
            document.bytes * length / document.tokens
            for document, length in zip(documents, schedule.lengths.tolist(), strict=True)
            if length and not store.labelled
        ),
        share_beyond=float(np.maximum(schedule.lengths - segment_length, 0).sum() / schedule.tokens),
        errors=int(wrong_P.sum()) if store.labelled else None,
        bucket_errors=tuple(wrong_P.astype(np.int64).tolist()) if store.labelled else (),
    )
