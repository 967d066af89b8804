"""Which arguments of transformers' models ours take: all others are refused by name, because ignoring one changes a result unseen.

    check_arguments(kwargs, READ)
    loss_arguments(kwargs)                                     # those that belong to the loss
    check_positions(position_ids, input_ids, attention_mask, seen=0)

Letters: B lanes · T tokens given · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .common_errors import nearest

READ = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "past_key_values",
    "use_cache",
    "output_hidden_states",
    "return_dict",
)
"""Arguments of every model."""
PREDICT = (*READ, "labels", "logits_to_keep")
"""Arguments of a model that predicts the next token."""
LOSS = ("num_items_in_batch", "ignore_index", "shift_labels")
"""Arguments of transformers' loss, as Trainer passes them."""
WITHOUT_EFFECT = ("cache_position",)
"""The cache counts for itself."""
PACKED = "one row holds one text: give each text a row, and an attention_mask"
REFUSED = {
    "inputs_embeds": "these models read tokens: give input_ids",
    "output_attentions": "these models do not return attention's weights: leave it out",
    "output_router_logits": "these models have no router: leave it out",
    "token_type_ids": "these models have no token types: leave it out",
    "is_causal": "these models only look back: leave it out",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"), PACKED),
}
"""Arguments of transformers' own models, and why ours do not take them."""


def loss_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss's of the remaining arguments of `forward`, after `check_arguments`."""
    check_arguments(kwargs, (*PREDICT, *LOSS))
    return {name: kwargs[name] for name in LOSS if kwargs.get(name) is not None}


def check_arguments(kwargs: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check the remaining arguments of a `forward` that takes those that are ``known``; None and False are as if an argument was
    not there.

    Raises:
        ValueError: one is given that transformers' models have and these cannot have.
        TypeError: one is given that nobody knows.
    """
    for name, value in kwargs.items():
        asked = value is False if name == "is_causal" else value is not None and value is not False
        if name in REFUSED and asked:
            raise ValueError(f"{name} is given, but {REFUSED[name]}")
        if name in (*known, *WITHOUT_EFFECT, *REFUSED) or value is None:
            continue
        raise TypeError(f"forward() got an unexpected argument {name!r}: {nearest(name, known)}")


def check_input_ids(input_ids: Tensor | None) -> Tensor:
    """Raises ValueError where there are none, or they are not [B, T] with a token each."""
    if input_ids is None:
        raise ValueError("give input_ids: these models read tokens, not embeddings")
    shape = tuple(input_ids.shape)
    if len(shape) != 2:
        raise ValueError(f"input_ids has shape {shape}: it must be [lanes, tokens]")
    if 0 in shape:
        raise ValueError(f"input_ids has shape {shape}: give at least one token, such as begin-of-document")
    return input_ids


def check_positions(position_ids: Tensor | None, input_ids: Tensor, mask: Tensor | None, seen: int) -> None:
    """Positions are not read: a model counts from a text's first token. Raises ValueError where others are given.

    Args:
        position_ids: int64 [B or 1, T].
        input_ids: int64 [B, T].
        mask: [B, T or more], 0 where a lane has no token.
        seen: columns read before.
    """
    if position_ids is None:
        return
    lanes, length = input_ids.shape
    if mask is None or mask.shape[1] < seen + length:  # the columns before are not masked
        mask = torch.ones(lanes, seen + length, dtype=torch.bool, device=position_ids.device)
    mask = mask.to(position_ids.device).bool()
    counted_BT = (mask.long().cumsum(1) - 1)[:, -length:]
    same_BT = (position_ids == counted_BT) | ~mask[:, -length:]
    if position_ids.shape[-1] != length or not same_BT.all():
        raise ValueError(
            "position_ids are other than those that the model counts itself, from each text's first token: leave them out"
        )


def kept_columns(logits_BTV: Tensor, kept: int | Tensor) -> Tensor:
    """Logits of some columns, as transformers slices them: the last ones, 0 for all; or the columns [n] of all lanes, [B, n] of
    each; or those that are True in a mask [B, T], which makes [n, V].
    """
    if not isinstance(kept, Tensor):
        return logits_BTV[:, -kept:]
    kept = kept.to(logits_BTV.device)
    if kept.dtype == torch.bool or kept.dim() == 1:
        return logits_BTV[kept] if kept.dim() == 2 else logits_BTV[:, kept]
    return torch.take_along_dim(logits_BTV, (kept % logits_BTV.shape[1])[..., None], dim=1)
