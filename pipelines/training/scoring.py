"""Scores of a model on a split: every token of every document once, State carried, nats summed.

    score = score_split(model, store, lanes=8, segment_length=1024, world=World.alone())      # validation inside the loop
    score.bits_per_token, score.bits_per_byte, score.word_perplexity

    scoring = Scoring(checkpoint, model, store, ("nothing", "states"), SEGMENTS, lanes=8, segment_length=1024, shards=2, folder=f)
    scores = scoring.scores(workers=2, progress=print)                                # `pipelines.evaluate`: one for each mode

A position is a place in a document, counted in buckets of one or more blocks (`bucket_of`). Sums per position show how predictions
improve with context.

Letters: B lanes · T tokens · K blocks · P positions, which all documents share · N positions of all documents, one document after
the other (in `add_to`: one for each block that was read) · G groups of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from common.choices import Dtype
from common.errors import UserError
from common.files import digest
from data_prep.corpora import CODE
from data_prep.lanes import EvaluationLanes
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.config.run import ModelSettings, TrainConfig
from pipelines.tracking.chance import edges_of
from pipelines.tracking.score import Score
from pipelines.training.reading import (
    DocumentPass,
    Kept,
    Segment,
    Shard,
    StateMode,
    StateReset,
    read_segments,
)
from pipelines.training.world import World
from recur_models import RECURRENT, ModelConfig, RecurrentModel
from recur_models.protocol import kind_of

LAYOUT = 5
"""Version of the documents' layout on lanes and of the saved sums: a pass begun under another version starts again."""
MAX_POSITIONS = 65_536
"""Buckets of the longest document, at most, so that memory does not grow with it. They take 0.3 kB each."""


def bucket_of(lengths: np.ndarray, block: int) -> int:
    """Tokens of a position bucket: a block; where the longest document has more than MAX_POSITIONS, two, four, ... blocks."""
    blocks = -(-int(lengths.max(initial=1)) // block)
    return block << ((blocks - 1) // MAX_POSITIONS).bit_length()


def has_states(model: RecurrentModel) -> bool:
    """Whether the State holds recurrent vectors or a memory, as against cached keys and values alone.

    A staircase of one pass has none: its State is a tensor without elements, and a count.
    """
    recurrent = (tensor for name, tensor in model.initial_state(0).items() if kind_of(name) in RECURRENT)
    return any(tensor.is_floating_point() and tensor.shape[1:].numel() > 0 for tensor in recurrent)


def carries_states(config: ModelSettings, vocab_size: int) -> bool:
    """`has_states` for a model's config, without memory for the model."""
    with torch.device("meta"):
        return has_states(config.build(vocab_size))


def check_logged(option: str, metric: str, run: TrainConfig, store: SegmentStore) -> None:
    """Raise UserError if ``option`` names a ``metric`` that a run on this store never logs."""
    corpus = run.data.corpus
    why = ""
    if metric.endswith("error_rate") and not store.labelled:
        why = f"{corpus} does not label its tokens"
    if metric.endswith("bits_per_byte") and store.labelled:
        why = f"{corpus} labels its tokens, and labels have no bytes"
    if metric.endswith("states_cleared") and not carries_states(run.model, store.vocab_size):
        why = f"the model {run.model.name} has no recurrent states"
    if why:
        raise UserError(f"{why}, so that {metric} is never logged: choose another {option}")


def starts_of(lengths: np.ndarray, bucket: int) -> np.ndarray:
    """int64 [documents + 1]. Where the positions of each document begin in one row of those of all; last, their number.

    Args:
        lengths: int64 [documents], in tokens.
        bucket: tokens of a position.
    """
    return np.concatenate([[0], np.cumsum(-(-lengths // bucket))])


def whole_numbers(sums: np.ndarray) -> tuple[int, ...]:
    """Sums of counts, which float64 holds exactly, as whole numbers."""
    return tuple(sums.astype(np.int64).tolist())


def add_to(sums_3P: np.ndarray, segment: Segment, bucket: int, starts: np.ndarray | None = None) -> None:
    """Add each block's nats, number of targets and number of errors to the sums of its position.

    Args:
        sums_3P: float64, changed in place.
        bucket: tokens of a position.
        starts: int64 [documents], where each document's own positions begin in ``sums_3P``; without it all documents share them.
    """
    batch = segment.batch
    targets_BT = torch.from_numpy(batch.targets_BT >= 0)
    wrong_BT = torch.zeros_like(targets_BT) if segment.wrong_BT is None else segment.wrong_BT
    used_BK = batch.document_BK >= 0
    positions_N = batch.offset_BK[used_BK] // bucket
    if starts is not None:
        positions_N += starts[batch.document_BK[used_BK]]
    for sums_P, counted_BT in zip(sums_3P, (segment.output, targets_BT, wrong_BT), strict=True):
        sums_BK = counted_BT.double().unflatten(1, (used_BK.shape[1], -1)).sum(-1).cpu().numpy()
        np.add.at(sums_P, positions_N, sums_BK[used_BK])


@dataclass(frozen=True)
class Scoring:
    """A checkpoint that is scored on all of a split, whose documents several processes divide among them.

    Sums are kept for each position bucket of each document, and added in float64 in the documents' order. So it does not matter
    which process read a document.
    """

    checkpoint: Snapshot
    model: ModelConfig
    """Config of the checkpoint's model, or another one that its weights are read with."""
    store: SegmentStore
    state_modes: tuple[StateMode, ...]
    """The first mode reads all documents. The others skip documents that are too short for any clearing."""
    reset: StateReset
    lanes: int
    """Documents that a process reads side by side."""
    segment_length: int
    shards: int
    folder: Path
    """Folder for the sums of what has been read."""
    precision: Dtype = "float32"
    """Precision of the products."""

    @property
    def beyond(self) -> int:
        """Tokens of a document before its State is first cleared: only tokens beyond these show an effect."""
        return self.reset.first(self.segment_length, self.model.block)

    @cached_property
    def bucket(self) -> int:
        """Tokens of a position bucket."""
        return bucket_of(self.store.lengths, self.model.block)

    @cached_property
    def reading(self) -> DocumentPass:
        """All shards of all state_modes, those of the first mode first, with a sink of sums.

        Raises UserError where the split has no token.
        """
        lengths = self.store.lengths
        if not lengths.any():
            raise UserError(f"{self.store.folder} has no document with any token: choose another --split")
        model = [self.checkpoint.digest, self.model.to_json(), self.store.manifest.fingerprint]
        sizes = [self.lanes, self.segment_length, self.shards, self.bucket]
        key = digest([*model, asdict(self.reset), *sizes, self.precision, LAYOUT])
        self.folder.mkdir(parents=True, exist_ok=True)
        found = list[Shard]()
        for mode in self.state_modes:
            read = lengths if mode == self.state_modes[0] else np.where(lengths > self.beyond, lengths, 0)
            whole = Shard(f"{key}-{mode}", self.store, read, self.lanes, self.segment_length, mode, self.reset)
            found += whole.split(self.shards, self.model.block)
        return DocumentPass(self.load, found, self.sums, self.folder, precision=self.precision)

    @contextmanager
    def sums(self, shard: Shard, kept: Kept) -> Iterator[Callable[[Segment], None]]:
        """A sink of sums [3, N], over N positions of its documents, document after document."""
        starts = starts_of(shard.lengths, self.bucket)
        sums_3N = kept.setdefault("sums", np.zeros((3, int(starts[-1]))))
        yield partial(add_to, sums_3N, bucket=self.bucket, starts=starts[:-1])

    def load(self) -> RecurrentModel:
        """The model, in evaluation mode."""
        return self.model.restore(self.checkpoint.meta["vocab_size"], self.checkpoint.weights()).eval()

    def scores(self, workers: int, progress: Callable[[int], None]) -> list[Score]:
        """Read all; one score for each mode. Raises UserError where the split has no token, or is labelled and has no label."""
        self.reading.read(workers, progress)
        starts = starts_of(self.store.lengths, self.bucket)
        sums_3N = np.zeros((3, int(starts[-1])))  # documents that a cleared mode skips keep the first mode's sums
        found = []
        for mode in self.state_modes:
            for shard in self.reading.shards:
                if shard.clearing == mode:
                    step, kept, _ = self.reading.saved(shard)
                    assert step, f"{self.folder / shard.name} is not what was written"
                    sums_3N[:, np.repeat(shard.lengths > 0, np.diff(starts))] = kept["sums"]
            found.append(self._score(sums_3N, starts))
        return found

    def _score(self, sums_3N: np.ndarray, starts: np.ndarray) -> Score:
        """The score of one mode, from its sums over the positions of all documents, which begin at ``starts``."""
        sums_3P = np.zeros((3, int(np.diff(starts).max())))
        for start, stop in pairwise(starts):
            sums_3P[:, : stop - start] += sums_3N[:, start:stop]
        score = score_of(self.store, self.store.lengths, sums_3P, bucket=self.bucket, beyond=self.beyond)
        nats_G, tokens_G, errors_G = np.add.reduceat(sums_3N, edges_of(starts)[:-1], axis=1)
        return replace(
            score,
            group_nats=tuple(nats_G.tolist()),
            group_tokens=whole_numbers(tokens_G),
            group_errors=whole_numbers(errors_G) if self.store.labelled else (),
        )


@torch.no_grad()
def score_split(
    model: RecurrentModel,
    store: SegmentStore,
    *,
    lanes: int,
    segment_length: int,
    world: World,
    clearing: StateMode = "nothing",
    limit_tokens: int | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Callable[[], object] = lambda: None,
) -> Score:
    """Score the split over all processes of ``world``. Each reads its own range of lanes, and all return the same score.

    Args:
        clearing: the part of the State that is cleared at the start of each segment.
        limit_tokens: read only about this many tokens, the long beginnings of a few documents (`EvaluationLanes`).
        progress: called after each step.

    Raises UserError if a store is labelled and the tokens read have no label.
    """
    block = model.block
    schedule = EvaluationLanes(
        store.lengths, lanes=lanes, segment_length=segment_length, block=block, limit_tokens=limit_tokens
    )
    chosen = int(np.count_nonzero(schedule.lengths))
    # Idle lanes cost as much as others; each process has one at least.
    if chosen < lanes:
        fewer = min(lanes, max(chosen, world.size))
        schedule = EvaluationLanes(schedule.lengths, lanes=fewer, segment_length=segment_length, block=block)
    was_training = model.training
    bucket = bucket_of(schedule.lengths, model.block)
    sums_3P = np.zeros((3, -(-int(schedule.lengths.max()) // bucket)))
    model.eval()
    own = world.lanes(schedule.lanes)
    for segment in read_segments(model, store, schedule, own, world.device, clearing=clearing, autocast=autocast):
        add_to(sums_3P, segment, bucket)
        progress()
    model.train(was_training)
    sums_3P = world.sum(torch.from_numpy(sums_3P).to(world.device)).cpu().numpy()
    return score_of(store, schedule.lengths, sums_3P, bucket=bucket, beyond=segment_length)


def score_of(store: SegmentStore, lengths: np.ndarray, sums_3P: np.ndarray, *, bucket: int, beyond: int) -> Score:
    """The metrics of a pass. ``lengths`` [documents]: tokens read of each document. ``sums_3P``: nats, targets and errors of each
    position. ``bucket``: tokens of a position bucket. ``beyond``: tokens of a document before its State is cleared.

    Raises UserError if a store is labelled and the tokens read have no label.
    """
    nats_P, tokens_P, wrong_P = sums_3P
    if not tokens_P.any():
        raise UserError(
            f"{store.folder}: none of the {lengths.sum():,} tokens read has a label, so there is nothing to score: raise "
            "validate_tokens (0 reads all), or prepare a corpus that labels some"
        )
    # A task's labels are no text: metrics by word and byte would say nothing of it.
    whole = bool((lengths == store.lengths).all()) and not store.labelled
    documents = store.documents
    read = store.lengths > 0  # nothing is predicted in the others
    return Score(
        nats=float(nats_P.sum()),
        tokens=int(tokens_P.sum()),
        words=int(documents.column("words")[read].sum()) if whole and store.manifest.corpus not in CODE else 0,
        bytes=int(documents.column("bytes")[read].sum()) if whole else 0,
        documents=int(np.count_nonzero(lengths)),
        bucket=bucket,
        bucket_nats=tuple(nats_P.tolist()),
        bucket_tokens=whole_numbers(tokens_P),
        bytes_in_proportion=sum(
            size * length / tokens
            for size, tokens, length in zip(
                documents.column("bytes").tolist(), documents.tokens.tolist(), lengths.tolist(), strict=True
            )
            if length and not store.labelled
        ),
        share_beyond=float(np.maximum(lengths - beyond, 0).sum() / lengths.sum()),
        errors=int(wrong_P.sum()) if store.labelled else None,
        bucket_errors=whole_numbers(wrong_P) if store.labelled else (),
    )
