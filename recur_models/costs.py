"""Parameters and FLOPs of any config, counted from its sizes: nothing is built or run.

    cost = costs(RecConfig(), vocab_size=32_001)
    cost.parameters, cost.flops_per_token, cost.training_flops_per_token

A multiply-add is two FLOPs. Matrix products are counted, logits among them; looking embeddings up, norms, softmax, biases and
gates' products are not. Attention is counted twice:

- ``flops``, what is needed: the pairs of query and key that may see each other. A token of a window needs W keys.
- ``computed_flops``, what our code multiplies: W × 2W logits for each block, half of them masked.

Both are the steady state, far from a document's beginning; a kNN memory is full and is searched exactly, by need and by code.
Use ``flops`` to compare models and for MFU. A product's backward pass is two products, one for the gradient of each factor; a
search of a kNN memory has none, and what was found is read with a gradient on the queries' side alone. Ours also makes the logits
once more in the backward pass (losses.py), which no count here includes.

Letters: see layers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recur_models.block_recurrent import RecConfig, SlideConfig, WindowedConfig, XLConfig
from recur_models.layers import PositionBias, StackConfig
from recur_models.memorizing import MemorizingConfig
from recur_models.protocol import ModelConfig
from recur_models.vanilla import VanillaConfig


@dataclass(frozen=True)
class Costs:
    """Of a model, or of a part of one. FLOPs are those of one block of one lane."""

    parameters: int = 0
    flops: int = 0
    """Needed, forward."""
    computed_flops: int = 0
    """As our code does it, forward."""
    without_gradient: int = 0
    """What the backward pass falls short of twice the forward pass, needed and as our code does it."""
    embedding_parameters: int = 0
    """Those of `parameters` that are the (tied) embeddings."""
    block: int = 1
    """Tokens in a block."""

    def __add__(self, other: Costs) -> Costs:
        return replace(
            self,
            parameters=self.parameters + other.parameters,
            flops=self.flops + other.flops,
            computed_flops=self.computed_flops + other.computed_flops,
            without_gradient=self.without_gradient + other.without_gradient,
        )

    @property
    def flops_per_token(self) -> float:
        """Needed FLOPs of the forward pass for one token."""
        return self.flops / self.block

    @property
    def training_flops_per_token(self) -> float:
        """Needed FLOPs of the forward and backward pass for one token."""
        return (3 * self.flops - self.without_gradient) / self.block

    @property
    def computed_flops_per_token(self) -> float:
        """FLOPs of the forward pass as our code does it, for one token."""
        return self.computed_flops / self.block

    @property
    def computed_training_flops_per_token(self) -> float:
        """FLOPs of the forward and backward pass as our code does it, for one token."""
        return (3 * self.computed_flops - self.without_gradient) / self.block

    def segment(self, length: int) -> int:
        """Needed FLOPs of the forward pass over a segment of so many tokens (a multiple of the block) of one lane."""
        return self.flops * length // self.block


def costs(config: ModelConfig, vocab_size: int) -> Costs:
    """The costs of a model of this config. Raises ValueError when nothing here counts its kind."""
    if type(config) not in LAYERS:
        raise ValueError(
            f"the costs of the model {config.name!r} are not counted: add it to LAYERS in recur_models/costs.py"
        )
    assert isinstance(config, StackConfig)
    logits = product(config.window, config.d_model, vocab_size)
    total = sum(LAYERS[type(config)](config), start=replace(logits, block=config.window))
    return replace(total + scales(config.d_model), embedding_parameters=logits.parameters)


def product(rows: int, fan_in: int, fan_out: int) -> Costs:
    """``rows`` vectors through one matrix."""
    flops = 2 * rows * fan_in * fan_out
    return Costs(fan_in * fan_out, flops, flops)


def scales(*sizes: int) -> Costs:
    """Parameters that multiply or add elementwise: free."""
    return Costs(sum(sizes))


def attention(config: StackConfig, pairs: int, computed_pairs: int | None = None) -> Costs:
    """q·k and the weighted sum of values, all heads, for so many pairs of query and key."""
    each = 4 * config.heads * config.head_dim
    return Costs(0, each * pairs, each * (pairs if computed_pairs is None else computed_pairs))


def projector(config: StackConfig, rows: int, cross: bool) -> Costs:
    """Norm, then keys, values and one or two sets of queries, each with its scale per head."""
    parts = 4 if cross else 3
    return product(rows, config.d_model, parts * config.heads * config.head_dim) + scales(
        config.d_model, (parts - 2) * config.heads
    )


def token_layer(config: StackConfig, pairs: int, computed_pairs: int, states: int = 0, position: bool = True) -> Costs:
    """The vertical direction over one block, reading ``states`` state vectors too unless that is 0."""
    d, width, W = config.d_model, config.heads * config.head_dim, config.window
    return (
        projector(config, W, cross=states > 0)
        + scales(PositionBias.BUCKETS * config.heads if position else 0)
        + attention(config, pairs, computed_pairs)
        + attention(config, W * states)
        + product(W, (2 if states else 1) * width, d)
        + scales(d)
        + product(W, d, config.mlp_dim)
        + product(W, config.mlp_dim, d)
    )


def state_direction(config: RecConfig) -> Costs:
    """The horizontal direction: one update of the states, once per block."""
    S, d, F, width = config.states, config.d_model, config.mlp_dim, 2 * config.heads * config.head_dim
    total = scales(2 * S * d) + projector(config, S, cross=True) + attention(config, S * S + S * 2 * config.window)

    def gate(fan_in: int) -> Costs:
        bias = d if config.equations == "paper" else 0
        if config.gate == "fixed":
            return product(S, fan_in, d) + scales(d, bias)
        return product(S, fan_in, 3 * d) + scales(2 * d, bias)

    if config.cell == "skip":
        return total + gate(width)
    if config.cell == "single":
        return total + product(S, width, F) + gate(F)
    return total + gate(width) + scales(d) + product(S, d, F) + gate(F)


def windowed(config: WindowedConfig, states: int = 0, position: bool = True) -> Costs:
    """A token layer with a window: W keys are seen by each token, 2W are multiplied."""
    W = config.window
    return token_layer(config, pairs=W * W, computed_pairs=W * 2 * W, states=states, position=position)


def vanilla_layers(config: VanillaConfig) -> list[Costs]:
    W = config.window
    return [token_layer(config, pairs=W * (W + 1) // 2, computed_pairs=W * W)] * config.layers


def windowed_layers(config: WindowedConfig) -> list[Costs]:
    return [windowed(config)] * config.layers


def recurrent_layers(config: RecConfig) -> list[Costs]:
    recurrent, others = len(config.recurrent_layers), config.layers - len(config.recurrent_layers)
    layers = [windowed(config, config.states) + state_direction(config)] * recurrent
    layers += [windowed(config, config.states if config.feedback else 0)] * others
    return layers


def memorizing_layers(config: MemorizingConfig) -> list[Costs]:
    width, W = config.heads * config.head_dim, config.window
    search, read = 2 * width * W * config.memory, attention(config, W * config.top_k)
    found = Costs(config.heads, search + read.flops, search + read.computed_flops, 2 * search + read.flops)
    return [windowed(config)] * (config.layers - 1) + [windowed(config, position=False) + found]


LAYERS: dict[type[ModelConfig], Callable[[Any], list[Costs]]] = {
    VanillaConfig: vanilla_layers,
    SlideConfig: windowed_layers,
    XLConfig: windowed_layers,
    RecConfig: recurrent_layers,
    MemorizingConfig: memorizing_layers,
}
"""What the layers of each model cost; a new model adds its own."""
