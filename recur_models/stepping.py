"""Code that incremental decoders share: attention of new tokens to the keys and values that each layer keeps.

A layer keeps ``keys`` and ``values`` [B, H, W, E] of the current block; only those of the tokens so far are filled. There is no
dropout, because training reads whole blocks.

Letters: see layers.py; n tokens of one block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recur_models.layers import MASKED, PositionBias, weighted_values
from recur_models.protocol import Places, State


def logit_bias(position_bias: PositionBias | None, scale_H: Tensor, bucket_BnZ: Tensor, unseen_BnZ: Tensor) -> Tensor:
    """The bias of attention's logits [B, H or 1, n, Z]: position bias · |scale|, or 0 without one; MASKED at unseen keys.

    ``bucket_BnZ``: int64, buckets of the distances. ``unseen_BnZ``: bool, True where a token does not see a key.
    """
    if position_bias is None:
        bias_HBnZ = scale_H.new_zeros(1, *bucket_BnZ.shape)
    else:
        bias_HBnZ = (position_bias.table_HN * scale_H.abs()[:, None])[:, bucket_BnZ]
    return bias_HBnZ.masked_fill(unseen_BnZ, MASKED).transpose(0, 1)


def attend_parts(
    q_BHnE: Tensor, parts: Sequence[tuple[Tensor, Tensor]], bias_BHnZ: Tensor, blind_BHn1: Tensor | None = None
) -> Tensor:
    """softmax(q·k + bias)·v [B, H, n, E] over ``parts`` of keys and values, such as those of two blocks, without joining them.

    ``blind_BHn1``: bool, True for tokens that see nothing: the authors' phantom logit of −1000 takes all their weight.
    """
    parts = [(k.to(q_BHnE.dtype), v.to(q_BHnE.dtype)) for k, v in parts]
    logits = [q_BHnE @ k.transpose(-1, -2) for k, _ in parts]
    weights_BHnZ = torch.softmax(torch.cat(logits, dim=-1) + bias_BHnZ.to(q_BHnE.dtype), dim=-1)
    if blind_BHn1 is not None:
        weights_BHnZ = weights_BHnZ.masked_fill(blind_BHn1, 0.0)
    return weighted_values(weights_BHnZ.to(q_BHnE.dtype), parts)


def put(places: Places, kept_BHWE: Tensor, new_BHnE: Tensor) -> Tensor:
    """Write the keys or values of new tokens into those of the block (`Places.write`): [B, H, W, E]."""
    return places.write(kept_BHWE.transpose(1, 2), new_BHnE.transpose(1, 2)).transpose(1, 2)


def open_block(k: Tensor, v: Tensor, tokens: int) -> State:
    """A layer's empty block of this many tokens, behind keys and values [B, H, m, E] of earlier ones."""
    own = (*k.shape[:-2], tokens, k.shape[-1])
    return {"earlier_keys": k, "earlier_values": v, "keys": k.new_zeros(own), "values": v.new_zeros(own)}


def append(places: Places, k: Tensor, v: Tensor, block: State) -> State:
    """A layer's block with the keys and values of new tokens."""
    return block | {"keys": put(places, block["keys"], k), "values": put(places, block["values"], v)}


def kept_parts(block: State) -> list[tuple[Tensor, Tensor]]:
    """The keys and values of earlier tokens and those of the block's own, for a block of `open_block`."""
    return [(block["earlier_keys"], block["earlier_values"]), (block["keys"], block["values"])]
