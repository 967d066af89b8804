"""The common part of the models' incremental decoders: each layer's keys and values are kept, and a token is one query.

A layer keeps ``keys`` and ``values`` [B, H, W, E] of the current block, of which the first tokens are there. No weight of attention
is dropped: training reads whole blocks.

Letters: see layers.py; n tokens of one block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .recur_models_layers import MASKED, PositionBias, Projections
from .recur_models_protocol import Places, State


def bias(position_bias: PositionBias | None, scale_H: Tensor, bucket_BnZ: Tensor, unseen_BnZ: Tensor) -> Tensor:
    """bias · |scale| (0 without a bias), MASKED where a token does not see the key: [B, H or 1, n, Z]."""
    if position_bias is None:
        bias_HBnZ = scale_H.new_zeros(1, *bucket_BnZ.shape)
    else:
        bias_HBnZ = (position_bias.table_HN * scale_H.abs()[:, None])[:, bucket_BnZ]
    return bias_HBnZ.masked_fill(unseen_BnZ, MASKED).transpose(0, 1)


def attend_parts(
    q_BHnE: Tensor, parts: Sequence[tuple[Tensor, Tensor]], bias_BHnZ: Tensor, blind_BHn1: Tensor | None = None
) -> Tensor:
    """softmax(q·k + bias)·v over keys and values in several parts, such as the previous block's and the current one's, without
    joining (copying) them.

    ``blind_BHn1``: tokens that see nothing; the authors' phantom logit of −1000 takes all the weight.
    """
    products = [q_BHnE @ keys.to(q_BHnE.dtype).transpose(-1, -2) for keys, _ in parts]
    weights_BHnZ = torch.softmax(torch.cat(products, dim=-1) + bias_BHnZ.to(q_BHnE.dtype), dim=-1)
    if blind_BHn1 is not None:
        weights_BHnZ = weights_BHnZ.masked_fill(blind_BHn1, 0.0)
    shares = weights_BHnZ.to(q_BHnE.dtype).split([keys.shape[-2] for keys, _ in parts], dim=-1)
    found = [share @ values.to(q_BHnE.dtype) for share, (_, values) in zip(shares, parts, strict=True)]
    return sum(found[1:], start=found[0])


def put(places: Places, kept_BHWE: Tensor, new_BHnE: Tensor) -> Tensor:
    """Keys or values of the current block with these tokens' own, as `Places.write` does it."""
    return places.write(kept_BHWE.transpose(1, 2), new_BHnE.transpose(1, 2)).transpose(1, 2)


def append(places: Places, tokens: Projections, block: State) -> tuple[Tensor, Tensor, State]:
    """A layer's keys and values of the block with these tokens' own [B, H, W, E], and the layer's block with them."""
    after = block | {"keys": put(places, block["keys"], tokens.k), "values": put(places, block["values"], tokens.v)}
    return after["keys"].to(tokens.k.dtype), after["values"].to(tokens.v.dtype), after
