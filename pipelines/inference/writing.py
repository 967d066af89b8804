"""Writes text after a context.

    for token in write(decoder, reading, logits_BTV, bod_id, count=100, choose=torch.argmax): ...

Letters: T tokens read · V vocabulary; one lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from pipelines.inference.trained import weights_damaged
from recur_models.decoding import DecodingState, read
from recur_models.protocol import IncrementalDecoder


def write(
    decoder: IncrementalDecoder,
    reading: DecodingState,
    logits_BTV: Tensor,
    bod_id: int,
    count: int,
    choose: Callable[[Tensor], Tensor],
    eos_ids: Collection[int] = (),
) -> Iterator[int]:
    """Up to ``count`` ids that continue a reading, given its last logits. An id of ``eos_ids`` is the last one. ``choose``: from
    logits [V] to an id."""
    for left in range(count, 0, -1):
        logits_V = logits_BTV[0, -1].float()
        if not logits_V.max().isfinite():  # the maximum of numbers and NaN is NaN
            raise weights_damaged("the model's logits are not numbers")
        logits_V[bod_id] = -torch.inf  # begin-of-document never occurs inside a document
        token = choose(logits_V)
        yield int(token)
        if int(token) in eos_ids:
            return
        if left > 1:
            with torch.no_grad():
                logits_BTV, reading = read(decoder, reading, token.view(1, 1))
