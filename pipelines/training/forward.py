"""A model reads a batch: in training, in validation and in evaluation alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from data_prep.lanes import Batch
from recur_models import State
from recur_models.losses import labelled_cross_entropy


def tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, T], targets [B, T] and fresh [B, K] on the device."""
    read = [torch.from_numpy(array) for array in (batch.tokens_BT, batch.targets_BT, batch.fresh_BK)]
    # A copy from pageable memory would wait for all earlier work of the GPU.
    if device.type == "cuda":
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
    nats_BT, wrong_BT = labelled_cross_entropy(logits_BTV, targets_BT)
    return nats_BT, wrong_BT, state
