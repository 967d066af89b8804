"""Reading a part of a block without reading the block again: each layer's keys and values are kept, and a token is one query.

A stack keeps ``layers.i.keys`` and ``layers.i.values`` [B, H, W, E] of the current block, of which the first tokens are there,
and ``layers.i.read_keys``, ``layers.i.read_values`` [B, H, S, E], what the layer's tokens read of recurrent states: those
of the block's start, so they are made once per block. Where W tokens are there, they are the next State's previous block. No weight
of attention is dropped: training reads whole blocks.

Letters: see layers.py; n tokens of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recur_models.block_recurrent import BlockRecurrentTransformer, Projections
from recur_models.decoding import Places, Rereader, Stepper
from recur_models.layers import MASKED, PositionBias, attend
from recur_models.memorizing import MemorizingLayer, emptied, recall
from recur_models.protocol import RecurrentModel, State, kind_of
from recur_models.vanilla import VanillaTransformer

STACK_KINDS = {"keys", "values", "states", "present", "memory_keys", "memory_values", "memory_count"}
"""The kinds of State that `StackStepper` carries over a block's end."""


def stepper_for(model: RecurrentModel) -> Stepper:
    """The fastest way to read a part of a block with this model."""
    if type(model) is VanillaTransformer:
        return VanillaStepper(model)
    if type(model) is BlockRecurrentTransformer and {kind_of(name) for name in model.initial_state(1)} <= STACK_KINDS:
        return StackStepper(model)
    return Rereader(model)


class VanillaStepper(Stepper):
    """A token sees itself and the earlier tokens of its block."""

    model: VanillaTransformer

    def open(self, state: State, lanes: int) -> State:
        config, like = self.model.config, self.model.embedding.weight
        shape = (lanes, config.heads, config.window, config.head_dim)
        return {
            f"layers.{i}.{kind}": like.new_zeros(shape) for i in range(config.layers) for kind in ("keys", "values")
        }

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        distance_BnW = places.of_tokens_Bn[..., None] - torch.arange(self.model.block, device=tokens_Bn.device)
        bucket_BnW, unseen_BnW = PositionBias.bucket(distance_BnW.clamp(min=0)), distance_BnW < 0
        x_BnD, after = self.model.dropout(self.model.embedding(tokens_Bn)), {}
        layers: Any = self.model.layers
        for i, layer in enumerate(layers):
            tokens = layer.project(x_BnD)
            keys, values = append(places, tokens, block, after, i)
            bias_BHnW = bias(layer.position_bias, layer.project.scale_H, bucket_BnW, unseen_BnW)
            logits_BHnW = tokens.q_self @ keys.transpose(-1, -2) + bias_BHnW.to(keys.dtype)
            heads_BHnE = torch.softmax(logits_BHnW, dim=-1).to(values.dtype) @ values
            x_BnD = layer.combine(x_BnD, heads_BHnE)
        return logits(self.model, x_BnD), after

    def close(self, state: State, block: State) -> State:
        return {}


class StackStepper(Stepper):
    """A token sees the W tokens before it, of its own block and the previous one, and the states of its block's start."""

    model: BlockRecurrentTransformer

    def open(self, state: State, lanes: int) -> State:
        block: State = {}
        reads = {i: self.model.layers[i].states.read(state[f"layers.{i}.states"]) for i in self.model.recurrent}
        for i in range(len(self.model.layers)):
            for kind in ("keys", "values"):
                block[f"layers.{i}.{kind}"] = torch.zeros_like(state[f"layers.{i}.{kind}"])
            read = reads.get(i) or (reads[max(reads)] if self.model.feedback else None)
            if read is not None:
                block |= {f"layers.{i}.read_keys": read.k, f"layers.{i}.read_values": read.v}
        return block

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        window, place_Bn1 = self.model.block, places.of_tokens_Bn[..., None]
        distance_BnZ = place_Bn1 + window - torch.arange(2 * window, device=tokens_Bn.device)
        bucket_BnZ = PositionBias.bucket(distance_BnZ.clamp(min=0))
        unseen_BnZ, blind_BHn1 = (distance_BnZ < 1) | (distance_BnZ > window), None
        if "present" in state:
            absent_B11 = ~state["present"][:, None, None]
            unseen_BnZ = unseen_BnZ | (absent_B11 & (distance_BnZ > place_Bn1))
            blind_BHn1 = (absent_B11 & (place_Bn1 == 0))[:, None]
        x_BnD, after = self.model.dropout(self.model.embedding(tokens_Bn)), dict(block)
        for i, layer in enumerate(self.model.layers):
            tokens = layer.tokens.project(x_BnD)
            keys, values = append(places, tokens, block, after, i)
            bias_BHnZ = bias(layer.tokens.position_bias, layer.tokens.project.scale_H, bucket_BnZ, unseen_BnZ)
            previous = state[f"layers.{i}.keys"], state[f"layers.{i}.values"]
            heads_BHnE = attend_halves(tokens.q_self, previous, (keys, values), bias_BHnZ, blind_BHn1)
            if isinstance(layer, MemorizingLayer):
                keys, values, count = (state[f"layers.{i}.memory_{kind}"] for kind in ("keys", "values", "count"))
                remembered_BHnE = recall(tokens.q_self, keys, values, count, layer.config.top_k)
                heads_BHnE = layer.join(heads_BHnE, remembered_BHnE)
            cross = None
            if tokens.q_cross is not None:
                cross_BHnE = attend(tokens.q_cross, block[f"layers.{i}.read_keys"], block[f"layers.{i}.read_values"])
                cross = cross_BHnE[:, None]
            x_BnD = layer.tokens.combine(x_BnD[:, None], heads_BHnE[:, None], cross)[:, 0]
        return logits(self.model, x_BnD), after

    def close(self, state: State, block: State) -> State:
        after: State = {name: block[name] for name in block if kind_of(name) in ("keys", "values")}
        absent_B = None
        if "present" in state:
            absent_B, after["present"] = ~state["present"], torch.ones_like(state["present"])
        for i, layer in enumerate(self.model.layers):
            if isinstance(layer, MemorizingLayer):
                keys, values, count = (state[f"layers.{i}.memory_{kind}"] for kind in ("keys", "values", "count"))
                keys, values = keys.clone(), values.clone()  # written to
                count = layer.enter(keys, values, count, block[f"layers.{i}.keys"], block[f"layers.{i}.values"])
                after |= {f"layers.{i}.{name}": tensor for name, tensor in emptied(keys, values, count).items()}
            elif layer.detached:
                after |= {f"layers.{i}.{kind}": after[f"layers.{i}.{kind}"].detach() for kind in ("keys", "values")}
        for i in self.model.recurrent:
            cell, c_BSD = self.model.layers[i].states, state[f"layers.{i}.states"]
            kz, vz = (
                torch.cat([state[name], block[name]], dim=2) for name in (f"layers.{i}.keys", f"layers.{i}.values")
            )
            after[f"layers.{i}.states"] = cell.update(c_BSD, cell.read(c_BSD), kz, vz, absent_B)
        return after


def bias(position_bias: PositionBias | None, scale_H: Tensor, bucket_BnZ: Tensor, unseen_BnZ: Tensor) -> Tensor:
    """bias · |scale| (0 without a bias), MASKED where a token does not see the key: [B, H or 1, n, Z]."""
    if position_bias is None:
        bias_HBnZ = scale_H.new_zeros(1, *bucket_BnZ.shape)
    else:
        bias_HBnZ = (position_bias.table_HN * scale_H.abs()[:, None])[:, bucket_BnZ]
    return bias_HBnZ.masked_fill(unseen_BnZ, MASKED).transpose(0, 1)


def attend_halves(
    q_BHnE: Tensor,
    previous: tuple[Tensor, Tensor],
    current: tuple[Tensor, Tensor],
    bias_BHnZ: Tensor,
    blind_BHn1: Tensor | None,
) -> Tensor:
    """softmax(q·k + bias)·v over the previous block's keys and values and the current one's, without joining (copying) them.

    ``blind_BHn1``: tokens that see nothing; the authors' phantom logit of −1000 takes all the weight.
    """
    products = [q_BHnE @ keys.to(q_BHnE.dtype).transpose(-1, -2) for keys, _ in (previous, current)]
    weights_BHnZ = torch.softmax(torch.cat(products, dim=-1) + bias_BHnZ.to(q_BHnE.dtype), dim=-1)
    if blind_BHn1 is not None:
        weights_BHnZ = weights_BHnZ.masked_fill(blind_BHn1, 0.0)
    halves = zip(weights_BHnZ.chunk(2, dim=-1), (previous, current), strict=True)
    before, now = (weights.to(q_BHnE.dtype) @ values.to(q_BHnE.dtype) for weights, (_, values) in halves)
    return before + now


def append(places: Places, tokens: Projections, block: State, after: State, layer: int) -> tuple[Tensor, Tensor]:
    """A layer's keys and values of the block with these tokens' own, also put into ``after``: [B, H, W, E] each."""
    out = []
    for kind, new_BHnE in (("keys", tokens.k), ("values", tokens.v)):
        name = f"layers.{layer}.{kind}"
        after[name] = places.write(block[name].transpose(1, 2), new_BHnE.transpose(1, 2)).transpose(1, 2)
        out.append(after[name].to(new_BHnE.dtype))
    return out[0], out[1]


def logits(model: VanillaTransformer | BlockRecurrentTransformer, x_BnD: Tensor) -> Tensor:
    """Tied embeddings; logits are divided by √d."""
    hidden_BnD = model.final_dropout(model.final_norm(x_BnD)) / model.config.d_model**0.5
    return hidden_BnD @ model.embedding.weight.to(hidden_BnD.dtype).T
