"""Parameters and FLOPs of any config, counted from its sizes: nothing is built or run.

    cost = RecConfig().costs(vocab_size=32_001)
    cost.parameters, cost.flops_per_token, cost.training_flops_per_token

A multiply-add is two FLOPs. Matrix products are counted, logits among them; looking embeddings up, norms, softmax, biases and
elementwise products are not. Attention is counted twice:

- ``flops``, the needed ones: the pairs of query and key that may see each other. A token of a window needs W keys.
- ``computed_flops``, those of our code: W × 2W logits for each block, half of them masked.

Both are the steady state, far from a document's beginning; a kNN memory is full and is searched exactly, by need and by code.
Use ``flops`` to compare models and for MFU. A product's backward pass is two products, one for the gradient of each factor; a
search of a kNN memory has none, and reading its results has a gradient on the queries' side alone. Our code also makes the logits
once more in the backward pass (losses.py), which no count here includes.

A model's costs stand in its own module, beside the computation, as sums of the functions here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Costs:
    """The costs of a model, or of a part of one. FLOPs are those of one block of one lane."""

    parameters: int = 0
    flops: int = 0
    """FLOPs that the forward pass needs."""
    computed_flops: int = 0
    """FLOPs of the forward pass in our code."""
    without_gradient: int = 0
    """FLOPs by which the backward pass falls short of twice the forward pass, needed and as our code does it."""
    embedding_parameters: int = 0
    """The part of `parameters` in the (tied) embeddings."""
    block: int = 1
    """Tokens in a block."""
    segment_flops: int = 0
    """FLOPs of the forward pass in our code, once for each segment, beside those of its blocks."""

    def __add__(self, other: Costs) -> Costs:
        """Adds parameters and FLOPs. ``embedding_parameters``, ``block`` and ``segment_flops`` stay those of the left operand."""
        return replace(
            self,
            parameters=self.parameters + other.parameters,
            flops=self.flops + other.flops,
            computed_flops=self.computed_flops + other.computed_flops,
            without_gradient=self.without_gradient + other.without_gradient,
        )

    def __mul__(self, times: int) -> Costs:
        """Parameters and FLOPs so many times, as of equal layers. The other fields stay."""
        return replace(
            self,
            parameters=self.parameters * times,
            flops=self.flops * times,
            computed_flops=self.computed_flops * times,
            without_gradient=self.without_gradient * times,
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


def product(rows: int, fan_in: int, fan_out: int) -> Costs:
    """Costs of ``rows`` vectors through one matrix."""
    flops = 2 * rows * fan_in * fan_out
    return Costs(fan_in * fan_out, flops, flops)


def tied_logits(block: int, width: int, vocab_size: int) -> Costs:
    """Costs of a block's logits, made by the embedding: a model's first costs, to which those of its other parts are added."""
    return replace(product(block, width, vocab_size), embedding_parameters=width * vocab_size, block=block)


def scales(*sizes: int) -> Costs:
    """Parameters that multiply or add elementwise: free."""
    return Costs(sum(sizes))


def attention(width: int, pairs: int, computed_pairs: int | None = None) -> Costs:
    """q·k and the weighted sum of values for so many pairs of query and key; ``width``: that of all heads together."""
    each = 4 * width
    return Costs(0, each * pairs, each * (pairs if computed_pairs is None else computed_pairs))
