"""Checks which of transformers' arguments our models take. All others are refused by name: ignoring one could change a result.

    check_arguments(kwargs, READ)
    loss_arguments(kwargs)                                     # those of the loss
    mask_BT = check_mask(attention_mask, input_ids, seen=0)
    check_positions(position_ids, input_ids, attention_mask, seen=0)
    check_generation(config, generation_config, kwargs)        # those of `generate`

Letters: B lanes · T tokens given · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from common.errors import nearest
from recur_models.hf_config import ThroughlineConfig

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
WITHOUT_EFFECT = ("cache_position", "tokenizer", "assistant_tokenizer")
"""Accepted and ignored: the cache counts positions itself, and `generate` passes on the tokenizers of its own arguments."""
PACKED = "one row holds one text: give each text a row, and an attention_mask"
REFUSED = {
    "inputs_embeds": "these models read tokens: give input_ids",
    "output_attentions": "these models do not return attention's weights: leave it out",
    "output_router_logits": "these models have no router: leave it out",
    "token_type_ids": "these models have no token types: leave it out",
    "is_causal": "these models only look back: leave it out",
    **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"), PACKED),
}
"""Arguments of transformers' own models that ours do not take, and why."""
NO_GENERATION = {
    "cache_implementation": "have a cache of their own",
    "prefill_chunk_size": "read any prompt in parts",
}
"""Arguments of `generate` that ours does not take, and what these models do in their place."""


def loss_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the loss among the remaining ones of `forward`. Raises as `check_arguments`."""
    check_arguments(kwargs, (*PREDICT, *LOSS))
    return {name: kwargs[name] for name in LOSS if kwargs.get(name) is not None}


def check_arguments(kwargs: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check the remaining arguments of a `forward` that takes the ``known`` ones. None and False count as not given, and so does
    ``is_causal=True``, which these models are.

    Raises:
        ValueError: an argument of transformers' models is given that these models do not take.
        TypeError: an argument is unknown.
    """
    for name, value in kwargs.items():
        is_given = value is not None and value is not False
        if name == "is_causal":
            is_given = value is False
        if name in REFUSED and is_given:
            raise ValueError(f"{name} is given, but {REFUSED[name]}")
        if value is not None and name not in (*known, *WITHOUT_EFFECT, *REFUSED):
            raise TypeError(f"forward() got an unexpected argument {name!r}: {nearest(name, known)}")


def check_generation(config: ThroughlineConfig, defaults: Any, kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError for a model that continues no text, and for arguments of `generate` that ours does not take.

    Args:
        config: the model's.
        defaults: transformers' GenerationConfig; ``kwargs`` replace its values.
    """
    if config.predicts_labels:
        raise ValueError("this model predicts a label of each symbol and continues no text: take the logits of a call")
    for name, reason in NO_GENERATION.items():
        if kwargs.get(name, getattr(defaults, name, None)) is not None:
            raise ValueError(f"{name} is given, but these models {reason}: leave it out")


def check_attention(implementation: Any) -> None:
    """Raises ValueError for another attention than the model's own, which transformers calls "eager"."""
    if implementation not in (None, "eager"):
        raise ValueError(
            f"attn_implementation is {implementation!r}, but these models have an attention of their own: leave it out"
        )


def check_devices(device_map: Mapping[str, Any] | None) -> None:
    """Raises ValueError where a model's parts are on several devices or on the disk. ``device_map``: accelerate's, by module."""
    devices = sorted({str(device) for device in (device_map or {}).values()})
    if len(devices) > 1 or "disk" in devices or "meta" in devices:
        raise ValueError(
            f"device_map puts the model on {' and '.join(devices)}, but these models run on one device: name it, as in "
            'device_map="cuda:0"'
        )


def check_input_ids(input_ids: Tensor | None) -> Tensor:
    """``input_ids`` [B, T]. Raises ValueError if they are None, of another shape, or empty."""
    if input_ids is None:
        raise ValueError("give input_ids: these models read tokens, not embeddings")
    shape = tuple(input_ids.shape)
    if len(shape) != 2:
        raise ValueError(f"input_ids has shape {shape}: it must be [lanes, tokens]")
    if 0 in shape:
        raise ValueError(f"input_ids has shape {shape}: give at least one token, such as begin-of-document")
    return input_ids


def check_mask(mask: Tensor | None, input_ids: Tensor, seen: int) -> Tensor | None:
    """The mask's last T columns as bool [B, T]; None if nothing in them is masked. Raises ValueError if it has another shape.

    Args:
        mask: [B, T] or [B, seen + T], 0 at padding.
        input_ids: int64 [B, T].
        seen: columns read before.
    """
    if mask is None:
        return None
    lanes, length = input_ids.shape
    shapes = {(lanes, length), (lanes, seen + length)}
    if tuple(mask.shape) not in shapes:
        fitting = " or ".join(map(str, sorted(shapes)))
        is_longer = not seen and mask.shape[-1] > length
        behind = "; a mask of earlier tokens too needs the past_key_values that have read them" if is_longer else ""
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}: for these tokens it must be {fitting}{behind}")
    mask_BT = mask[:, -length:].bool()
    return None if mask_BT.all() else mask_BT


def predicted_labels(labels: Tensor, mask: Tensor | None, ignore_index: int) -> Tensor:
    """The labels without that of each lane's first token where padding stands before it: no column predicts it. int64 [B, T].

    Args:
        labels: int64 [B, T], of which the column before predicts each.
        mask: [B, T or more], 0 at padding; one that `check_mask` has taken. None without padding.
        ignore_index: the label that is not scored.
    """
    if mask is None:
        return labels
    is_unread_BT = mask[:, -labels.shape[1] :].bool().to(labels.device).cumsum(1) == 0
    return labels.masked_fill(F.pad(is_unread_BT[:, :-1], (1, 0)), ignore_index)


def share_scored(labels: Tensor, scored: Tensor, ignore_index: int) -> Tensor:
    """Share of the labels behind the first column, which Trainer counts, that are left in ``scored``. Both int64 [B, T]."""
    counted, left = ((each[:, 1:] != ignore_index).sum().clamp(min=1) for each in (labels, scored))
    return left / counted


def check_positions(position_ids: Tensor | None, input_ids: Tensor, mask: Tensor | None, seen: int) -> None:
    """Raises ValueError if ``position_ids`` differ from those that a model counts itself, from a text's first token.

    Args:
        position_ids: int64 [B or 1, T].
        input_ids: int64 [B, T].
        mask: [B, T or more], 0 at padding.
        seen: columns read before.
    """
    if position_ids is None:
        return
    lanes, length = input_ids.shape
    if mask is None or mask.shape[1] < seen + length:  # then no earlier column is masked
        mask = torch.ones(lanes, seen + length, dtype=torch.bool, device=position_ids.device)
    mask = mask.to(position_ids.device).bool()
    counted_BT = (mask.long().cumsum(1) - 1)[:, -length:]
    fits = position_ids.shape in ((length,), (1, length), (lanes, length))
    if not fits or not ((position_ids == counted_BT) | ~mask[:, -length:]).all():
        raise ValueError(
            "position_ids are other than those that the model counts itself, from each text's first token: leave them out"
        )


def kept_columns(logits_BTV: Tensor, kept: int | Tensor) -> Tensor:
    """Logits of some columns, as transformers slices them.

    ``kept``: how many of the last columns, 0 for all; or int64 indices, [n] for all lanes or [B, n] for each; or a bool mask
    [B, T], whose logits are [n, V].
    """
    if not isinstance(kept, Tensor):
        return logits_BTV[:, -kept:]
    kept = kept.to(logits_BTV.device)
    if kept.dim() == 1:
        return logits_BTV[:, kept]
    if kept.dtype == torch.bool:
        return logits_BTV[kept]
    return torch.take_along_dim(logits_BTV, (kept % logits_BTV.shape[1])[..., None], dim=1)
