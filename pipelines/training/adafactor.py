"""Adafactor (Shazeer and Stern 2018) as the block-recurrent paper sets it: decay exponent 0.8, momentum, updates scaled by the size
of their parameter, the learning rate from outside.

    optimizer = Adafactor(model.parameters(), lr=1.0, beta1=0.9, weight_decay=0.0)

Torch's own has neither momentum nor a rate from outside; that of transformers reads a number back from the GPU for each tensor at
each step. This one is equal to the latter to rounding, reads none back, and decays matrices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.start_up import without_compiler

DECAY = 0.8
"""Exponent of the decay rate of the second moments: β₂ of step t is 1 − t^−0.8 (section 7.2)."""
EPSILON_1 = 1e-30
"""ε₁, added to the squared gradient."""
EPSILON_2 = 1e-3
"""ε₂, the least size of a parameter by which its update is scaled."""
CLIP_THRESHOLD = 1.0
"""d, the largest root mean square of an update before the learning rate."""


@without_compiler
class Adafactor(Optimizer):
    """Second moments of a matrix are kept as one number for each row and for each column."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        beta1: float,
        weight_decay: float,
    ):
        super().__init__(parameters, {"lr": lr, "beta1": beta1, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyrefly: ignore
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, self.state[parameter], group["lr"], group["beta1"], group["weight_decay"])


def update(parameter: Tensor, state: dict[str, Any], lr: float, beta1: float, weight_decay: float) -> None:
    """One parameter's step (algorithms 4 to 6 of the paper). Changes ``parameter`` and ``state`` in place.

    For a parameter [..., R, C], ``state`` has the second moments of rows, [..., R], and of columns, [..., C]; for a vector those
    of all its numbers.
    """
    assert parameter.grad is not None
    grad = parameter.grad.float()
    matrix = parameter.dim() >= 2
    if not state:
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(grad)
        if matrix:
            state["exp_avg_sq_row"] = grad.new_zeros(grad.shape[:-1])
            state["exp_avg_sq_col"] = grad.new_zeros(*grad.shape[:-2], grad.shape[-1])
        else:
            state["exp_avg_sq"] = torch.zeros_like(grad)
    state["step"] += 1
    new = state["step"] ** -DECAY  # 1 − β₂
    square = grad.square() + EPSILON_1
    if matrix:
        row = state["exp_avg_sq_row"].lerp_(square.mean(-1), new)
        column = state["exp_avg_sq_col"].lerp_(square.mean(-2), new)
        change = (row / row.mean(-1, keepdim=True)).rsqrt()[..., None] * column.rsqrt()[..., None, :] * grad
    else:
        change = state["exp_avg_sq"].lerp_(square, new).rsqrt() * grad
    rate = lr * rms(parameter).clamp(min=EPSILON_2)
    change *= rate / (rms(change) / CLIP_THRESHOLD).clamp(min=1.0)
    if matrix and weight_decay:
        parameter.mul_(1 - weight_decay * rate)
    parameter.sub_(state["exp_avg"].lerp_(change, 1 - beta1))


def rms(tensor: Tensor) -> Tensor:
    """The root mean square of all numbers, a scalar in float32."""
    return torch.linalg.vector_norm(tensor, dtype=torch.float32) / tensor.numel() ** 0.5
