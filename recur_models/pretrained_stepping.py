"""How a pretrained decoder reads a part of a block: each layer's keys and values of the window are kept, the overlap's among them.

Letters: see pretrained_layers.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recur_models.protocol import Places, State, Stepper
from recur_models.stepping import put

if TYPE_CHECKING:
    from recur_models.pretrained import Decoder


class DecoderStepper(Stepper):
    """Of layer i the block has ``i.keys`` and ``i.values`` [B, G, W, E], and those of the overlap's tokens, ``i.earlier_keys`` and
    ``i.earlier_values`` [B, G, O, E]; its ``tokens`` [B, W]; with recurrence the layers' weighted sums, ``sums`` [B, W, D] and
    ``earlier_sums`` [B, O, D]."""

    model: Decoder

    def count(self, state: State, lanes: int) -> Tensor:
        """Tokens that each lane's block has before it."""
        like = self.model.embedding.weight
        return state["tokens_count"] if "tokens_count" in state else like.new_zeros(lanes, dtype=torch.int64)

    def open(self, state: State, lanes: int) -> State:
        model, overlap, W = self.model, self.model.config.overlap, self.model.block
        like, count_B = model.embedding.weight, self.count(state, lanes)
        block: State = {"tokens": count_B.new_zeros(lanes, W)}
        for i, layer in enumerate(model.layers):
            empty = like.new_zeros(lanes, layer.kv_heads, 0, layer.head_dim)
            for kind in ("keys", "values"):
                block |= {
                    f"{i}.earlier_{kind}": empty,
                    f"{i}.{kind}": like.new_zeros(*empty.shape[:2], W, empty.shape[3]),
                }
        sum_BOD = like.new_zeros(lanes, 0, like.shape[1])
        if overlap:

            def keep(i: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                block.update({f"{i}.earlier_keys": k.contiguous(), f"{i}.earlier_values": v.contiguous()})
                return k, v

            slot_BO = torch.arange(overlap, device=like.device).expand(lanes, -1)
            caches = [partial(keep, i) for i in range(len(model.layers))]
            _, sum_BOD = model.stack(state["tokens"], slot_BO, overlap, count_B, model.prev_of(state), caches)
        if model.recurrence is not None:
            block |= {"earlier_sums": sum_BOD, "sums": like.new_zeros(lanes, W, like.shape[1])}
        return block

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        model, overlap = self.model, self.model.config.overlap
        after = {**block, "tokens": places.write(block["tokens"], tokens_Bn)}

        def append(i: int, *pair: Tensor) -> tuple[Tensor, Tensor]:
            for kind, new in zip(("keys", "values"), pair, strict=True):
                after[f"{i}.{kind}"] = put(places, block[f"{i}.{kind}"], new)
            k, v = (
                torch.cat([block[f"{i}.earlier_{kind}"], after[f"{i}.{kind}"]], 2).to(pair[0].dtype)
                for kind in ("keys", "values")
            )
            return k, v

        caches = [partial(append, i) for i in range(len(model.layers))]
        count_B = self.count(state, len(tokens_Bn))
        slot_Bn = overlap + places.of_tokens_Bn
        x_BnD, sum_BnD = model.stack(tokens_Bn, slot_Bn, overlap + model.block, count_B, model.prev_of(state), caches)
        if model.recurrence is not None:
            after["sums"] = places.write(block["sums"], sum_BnD)
        return model.made(x_BnD, None), after

    def close(self, state: State, block: State) -> State:
        model, overlap, lanes = self.model, self.model.config.overlap, len(block["tokens"])
        count_B, prev, after = self.count(state, lanes), model.prev_of(state), {}
        if overlap:
            after = model.kept_tokens(torch.cat([state["tokens"], block["tokens"]], 1), count_B)
        if model.recurrence is not None and prev is not None:
            sum_BTD = torch.cat([block["earlier_sums"], block["sums"]], 1)
            there_BT = torch.arange(overlap + model.block, device=count_B.device) >= overlap - count_B[:, None]
            made_BND = model.recurrence(prev.states_BND, sum_BTD, there_BT)
            after |= {
                "states": made_BND.to(prev.states_BND.dtype),
                "states_count": torch.ones_like(state["states_count"]),
            }
        return after
