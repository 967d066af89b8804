"""Modules that make h_prev from a window's hidden states.

    recurrence = StackRecurrence((1,), 12, "mean", (768, 200, 200, 200, 768), 1)        # the paper's
    gathered = []
    for layer in range(12):
        ...
        gathered = recurrence.gather(gathered, layer, before_BTD, after_BTD)
    states_BND = recurrence(states_BND, torch.cat(gathered, -1), valid_BT)

Letters: B lanes · T tokens of a window · N vectors of h_prev, of which a layer reads P · D width · L layers · R layers that read
h_prev · X width of what is gathered of a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.layers import MASKED

Pooling = Literal["mean", "max", "attention"]


class Recurrence(nn.Module, ABC):
    """Makes h_prev, of which each layer that reads it sees some vectors."""

    def __init__(self, reading: Sequence[int], per_layer: int, vectors: int, width: int):
        """``reading``: the R layers that read h_prev, counted from 0. ``per_layer``: P. ``vectors``: N. ``width``: X."""
        super().__init__()
        self.reading_layers = tuple(reading)
        self.per_layer = per_layer
        self.vectors = vectors
        self.width = width

    @abstractmethod
    def gather(self, gathered: list[Tensor], layer: int, before_BnD: Tensor, after_BnD: Tensor) -> list[Tensor]:
        """``gathered`` with this layer's part. After the last layer its tensors, side by side, are [B, n, X].

        ``before_BnD``, ``after_BnD``: the residual stream before the layer and after it.
        """

    @abstractmethod
    def by_layer(self, states_BND: Tensor) -> dict[int, Tensor]:
        """The vectors [B, P, D] that each of the reading layers reads."""

    @abstractmethod
    def forward(self, prev_BND: Tensor, gathered_BTX: Tensor, valid_BT: Tensor) -> Tensor:
        """h_prev for the next window [B, N, D].

        ``prev_BND``: this window's h_prev, which only a probe reads. ``valid_BT``: bool, True where the window has a token.
        """

    @staticmethod
    def change(before_BND: Tensor, after_BND: Tensor) -> Tensor:
        """rms of h_prev's change over its rms before, on the lanes that had one; 1 if none had."""
        had_B11 = (before_BND != 0).flatten(1).any(1)[:, None, None]
        energy = before_BND.float().square().sum()
        change = ((after_BND.float() - before_BND.float()) * had_B11).square().sum()
        return torch.where(energy > 0, (change / energy.clamp(min=1e-30)).sqrt(), 1.0)


class StackRecurrence(Recurrence):
    """One h_prev from the hidden states of all layers (Yoshida et al. 2020, section 3.1).

    Equation 1 prints a sum over positions, but the text says mean-pooled. Here z is the mean: the two differ by the number of
    tokens, of which a document's last window has fewer.
    """

    def __init__(self, reading: Sequence[int], layers: int, pooling: Pooling, sizes: Sequence[int], embeddings: int):
        """``sizes``: those of the feed-forward's layers, from D through the hidden ones to N · D. ``embeddings``: N, and P."""
        super().__init__(reading, embeddings, embeddings, sizes[0])
        self.pooling: Pooling = pooling
        self.layer_weights_L = nn.Parameter(torch.zeros(layers))  # α
        self.key_D = nn.Parameter(torch.zeros(sizes[0])) if pooling == "attention" else None
        self.steps = feed_forward(sizes)

    def gather(self, gathered: list[Tensor], layer: int, before_BnD: Tensor, after_BnD: Tensor) -> list[Tensor]:
        """Σ w_ℓ h^(ℓ) [B, n, D] (equation 1)."""
        weighted_BnD = torch.softmax(self.layer_weights_L, 0)[layer] * after_BnD
        return [gathered[0] + weighted_BnD if gathered else weighted_BnD]

    def by_layer(self, states_BND: Tensor) -> dict[int, Tensor]:
        return dict.fromkeys(self.reading_layers, states_BND)

    def forward(self, prev_BND: Tensor, gathered_BTX: Tensor, valid_BT: Tensor) -> Tensor:
        z_BD = self.pool(gathered_BTX, valid_BT)
        return apply_steps(self.steps, z_BD).unflatten(-1, (self.vectors, -1))

    def pool(self, sum_BTD: Tensor, valid_BT: Tensor) -> Tensor:
        """z [B, D]."""
        if self.pooling == "max":
            return sum_BTD.masked_fill(~valid_BT[..., None], MASKED).amax(1)
        if self.key_D is None:
            return mean(sum_BTD, valid_BT)
        valid_BT1 = valid_BT[..., None]
        logits_BT = (sum_BTD * self.key_D).sum(-1) / len(self.key_D) ** 0.5
        weights_BT = torch.softmax(logits_BT.masked_fill(~valid_BT, MASKED), 1)
        return (weights_BT[..., None] * sum_BTD.masked_fill(~valid_BT1, 0.0)).sum(1)


class LayerRecurrence(Recurrence):
    """A vector of h_prev for each layer that reads it: the mean of that layer's normed inputs, and what a feed-forward adds.

    The feed-forward's output begins at 0. So a pretrained layer first reads a mean of vectors that it knows; the paper's h_prev
    is noise at first. Each position is normed before the mean: in a pretrained model the first one would outweigh all others.
    """

    def __init__(self, reading: Sequence[int], sizes: Sequence[int]):
        """``sizes``: those of each feed-forward's layers, from D through the hidden ones to D."""
        super().__init__(reading, 1, len(reading), sizes[0] * len(reading))
        self.steps = nn.ModuleList()
        for _ in reading:
            steps: Any = feed_forward(sizes)
            nn.init.zeros_(steps[-1].weight)
            nn.init.zeros_(steps[-1].bias)
            self.steps.append(steps)

    def gather(self, gathered: list[Tensor], layer: int, before_BnD: Tensor, after_BnD: Tensor) -> list[Tensor]:
        """Normed inputs of the reading layers."""
        return [*gathered, normed(before_BnD)] if layer in self.reading_layers else gathered

    def by_layer(self, states_BND: Tensor) -> dict[int, Tensor]:
        return dict(zip(self.reading_layers, states_BND.split(1, 1), strict=True))

    def forward(self, prev_BND: Tensor, gathered_BTX: Tensor, valid_BT: Tensor) -> Tensor:
        mean_BRD = mean(gathered_BTX, valid_BT).unflatten(-1, (len(self.reading_layers), -1))
        vectors = []
        for steps, mean_BD in zip(self.steps, mean_BRD.unbind(1), strict=True):
            vectors.append(mean_BD + apply_steps(steps, normed(mean_BD)))  # pyrefly: ignore
        return torch.stack(vectors, 1)


def feed_forward(sizes: Sequence[int]) -> nn.ModuleList:
    """Linear layers from size to size."""
    return nn.ModuleList(nn.Linear(size, to) for size, to in pairwise(sizes))


def apply_steps(steps: nn.ModuleList, x: Tensor) -> Tensor:
    """A feed-forward's output, with GELU between its layers."""
    for step in steps[:-1]:
        x = F.gelu(step(x), approximate="tanh")
    return steps[-1](x)


def mean(x_BTX: Tensor, valid_BT: Tensor) -> Tensor:
    """Mean over the valid positions [B, X]."""
    valid_BT1 = valid_BT[..., None]
    return x_BTX.masked_fill(~valid_BT1, 0.0).sum(1) / valid_BT1.sum(1)


def normed(x: Tensor) -> Tensor:
    """The last dimension divided by its root mean square."""
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)
