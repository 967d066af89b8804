"""The gates of the recurrent cell, which replace the residual connection in the horizontal direction (section 3.3).

    c' = gate(c, h)      c_BSD the states, h_BSN the concatenated attention or the MLP's hidden layer

``equations="meliad"`` follows the authors' code (no b_z; tanh on z in the ``single`` configuration only).
``"paper"`` follows the paper (b_z; tanh on z in every LSTM gate and in no fixed one).

Arguments of a gate: ``fan_in`` is N, ``width`` is D, and ``squash`` says whether the cell is ``single``. A call takes c [B, S, D]
and h [B, S, N], and returns c' [B, S, D] in the dtype of c.

Letters: B lanes · S states · D width · N width of the gate's input.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales
from recur_models.layers import linear
from recur_models.protocol import Probe

Equations = Literal["meliad", "paper"]
Gate = Literal["fixed", "lstm"]


def candidate_costs(equations: Equations, rows: int, fan_in: int, width: int) -> Costs:
    """Costs of z over ``rows`` states: a projection, with a bias in the paper's equations."""
    return product(rows, fan_in, width) + scales(width if equations == "paper" else 0)


class FixedGate(nn.Module):
    """c' = c·g + z·(1 − g), g = σ(b): an exponential moving average over blocks (equations 1–3)."""

    def __init__(self, fan_in: int, width: int, equations: Equations, squash: bool):
        super().__init__()
        self.candidate = linear(fan_in, width, bias_std=0.1 if equations == "paper" else None)
        self.bias = nn.Parameter(torch.empty(width).normal_(std=0.1))
        self.squash = squash and equations == "meliad"

    def forward(self, c_BSD: Tensor, h_BSN: Tensor) -> Tensor:
        z_BSD = self.candidate(h_BSN)  # (1)
        z_BSD = torch.tanh(z_BSD) if self.squash else z_BSD
        # In the states' own dtype, not that of autocast or of the weights: in bfloat16 a g near 1 would be 1, and let nothing in.
        return torch.lerp(z_BSD.to(c_BSD.dtype), c_BSD, torch.sigmoid(self.bias.to(c_BSD.dtype)))  # (2), (3)

    def probe(self) -> Probe:
        """The share of the candidate that the gate lets in."""
        return Probe("gate_openness", self, lambda *_: 1 - torch.sigmoid(self.bias).mean())

    @staticmethod
    def costs(equations: Equations, rows: int, fan_in: int, width: int) -> Costs:
        """Costs over ``rows`` states."""
        return candidate_costs(equations, rows, fan_in, width) + scales(width)


class LSTMGate(nn.Module):
    """c' = c·f + z·i, with f and i of each state vector depending on h (equations 4–7)."""

    def __init__(self, fan_in: int, width: int, equations: Equations, squash: bool):
        super().__init__()
        self.candidate = linear(fan_in, width, bias_std=0.1 if equations == "paper" else None)
        self.input = linear(fan_in, width, scale=0.1, bias_std=0.1)
        self.forget = linear(fan_in, width, scale=0.1, bias_std=0.1)
        self.squash = squash or equations == "paper"

    def forward(self, c_BSD: Tensor, h_BSN: Tensor) -> Tensor:
        z_BSD = self.candidate(h_BSN)
        z_BSD = torch.tanh(z_BSD) if self.squash else z_BSD  # (4)
        # In the states' own dtype, as in FixedGate: in bfloat16 an f near 1 would be 1, and its gradient 0.
        i_BSD = torch.sigmoid(self.input(h_BSN).to(c_BSD.dtype) - 1.0)  # (5)
        f_BSD = torch.sigmoid(self.forget(h_BSN).to(c_BSD.dtype) + 1.0)  # (6)
        return c_BSD * f_BSD + z_BSD * i_BSD  # (7)

    def probe(self) -> Probe:
        """The share of the candidate that the gate lets in."""
        return Probe("gate_openness", self.input, lambda _, input_BSD: torch.sigmoid(input_BSD - 1.0).mean())

    @staticmethod
    def costs(equations: Equations, rows: int, fan_in: int, width: int) -> Costs:
        """Costs over ``rows`` states."""
        return candidate_costs(equations, rows, fan_in, width) + product(rows, fan_in, 2 * width) + scales(2 * width)


GATES: dict[Gate, type[FixedGate] | type[LSTMGate]] = {"fixed": FixedGate, "lstm": LSTMGate}
