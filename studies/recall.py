"""Measures recall: the share of names in test documents of the corpus `names` that a model knows at one distance.

    store = SegmentStore.open("runs/store", "names", "test")
    measure_recall(model_of(find_checkpoint("runs/recall-delta")), store, distance=10).names     # 1.0 where it knows all

A model reads line by line, each line a segment of its own, so that State is all that crosses from line to line. Names are read off
under teacher forcing: a name is right when each of its four letters has the highest logit.

Letters: B documents · T tokens · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from common.errors import UserError
from data_prep.corpora.names import ANSWER, LINE
from data_prep.store import SegmentStore
from pipelines.training.scoring import has_states
from recur_models import RECURRENT, RecurrentModel, State, clear


@dataclass(frozen=True)
class Recall:
    """Right answers of one model at one distance, as shares from 0 to 1."""

    names: float
    """Share of documents with all four letters right."""
    letters: float
    names_cleared: float | None = None
    """``names`` with the recurrent states cleared just before the question; None if this was not asked."""
    letters_cleared: float | None = None


@torch.no_grad()
def predicted_names(model: RecurrentModel, inputs_BT: torch.Tensor, clear_states: bool) -> torch.Tensor:
    """The letters that the model would write in the last line, int64 [B, 4]. It reads line by line, and carries the State along.

    Args:
        inputs_BT: int64, whole lines: begin-of-document, then the document without its last token.
        clear_states: whether its recurrent states are cleared just before the last line.
    """
    initial = model.initial_state(len(inputs_BT))
    *lines, last = inputs_BT.split(LINE, dim=1)
    state: State | None = None
    for part in lines:
        _, state = model(part, state)
    if clear_states:
        assert state is not None
        state = clear(state, initial, RECURRENT)
    logits_BTV, _ = model(last, state)
    return logits_BTV[:, ANSWER].argmax(-1)


def measure_recall(model: RecurrentModel, store: SegmentStore, distance: int, cleared: bool = True) -> Recall:
    """Recall over the test documents that ask for their name after this distance.

    Args:
        distance: windows between a name and the question.
        cleared: whether to measure it again without recurrent states, if the model has some.

    Raises UserError for a store without such documents.
    """
    chosen = [i for i, d in enumerate(store.manifest.documents) if d.id.startswith(f"test/{distance}/")]
    if not chosen:
        raise UserError(
            f"{store.folder} has no questions about names {distance} windows back: prepare it with --distances {distance}"
        )
    length = (distance + 1) * LINE
    tokens_BT = torch.from_numpy(np.stack([store.tokens(i, 0, length) for i in chosen]).astype(np.int64))
    inputs_BT = torch.cat([torch.full((len(chosen), 1), store.bod_id), tokens_BT[:, :-1]], 1)
    wanted = tokens_BT[:, -LINE:][:, ANSWER]

    def shares(clear_states: bool) -> tuple[float, float]:
        """Shares of right names and of right letters."""
        right = predicted_names(model, inputs_BT, clear_states) == wanted
        return right.all(1).float().mean().item(), right.float().mean().item()

    names, letters = shares(clear_states=False)
    if not cleared or not has_states(model):
        return Recall(names, letters)
    names_cleared, letters_cleared = shares(clear_states=True)
    return Recall(names, letters, names_cleared, letters_cleared)
