"""Gates that are nearly closed: in bfloat16 what they let in would round to nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from recur_models.block_recurrent import Cell, RecConfig
from recur_models.gates import FixedGate, LSTMGate

NEARLY_CLOSED = 6.5
"""The bias of a fixed gate whose g is 0.9985, which in bfloat16 would be 1."""


def test_a_nearly_closed_fixed_gate_moves_states_under_autocast() -> None:
    torch.manual_seed(0)
    gate = FixedGate(4, 8, "meliad", False)
    moved = {}
    nn.init.constant_(gate.bias, NEARLY_CLOSED)
    h_BSN = torch.randn(1, 2, 4)
    for enabled in (False, True):
        states_BSD = torch.zeros(1, 2, 8)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(2000):
                states_BSD = gate(states_BSD, h_BSN)
        assert states_BSD.dtype == torch.float32
        moved[enabled] = states_BSD
    torch.testing.assert_close(moved[True], moved[False], rtol=0.02, atol=0.02)
    assert moved[True].abs().max() > 0.1


def test_a_slow_lstm_gate_forgets_and_learns_under_autocast() -> None:
    torch.manual_seed(0)
    gate = LSTMGate(4, 8, "meliad", False)
    nn.init.constant_(gate.forget.bias, 5.5)  # f = 0.9985, which bfloat16 rounds to 1
    h_BSN = torch.zeros(1, 2, 4)
    left = {}
    gradients = {}
    for enabled in (False, True):
        states_BSD = torch.ones(1, 2, 8)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(200):
                states_BSD = gate(states_BSD, h_BSN)
        left[enabled] = states_BSD.detach()
        (gradients[enabled],) = torch.autograd.grad(states_BSD.sum(), [gate.forget.bias])
    torch.testing.assert_close(left[True], left[False], rtol=0.02, atol=0.02)
    assert left[True].max() < 0.9 and gradients[True].min() > 0.5 * gradients[False].min() > 0


@pytest.mark.parametrize("cell", ["skip", "dual", "single"])
def test_a_nearly_closed_gate_moves_states_of_bfloat16_weights(cell: Cell) -> None:
    torch.manual_seed(0)
    size = {"layers": 2, "d_model": 16, "heads": 2, "head_dim": 8, "mlp_dim": 16, "window": 4, "states": 4}
    config = RecConfig(**size, recurrent_layers=(2,), cell=cell, dropout=0.0)
    model = config.build(31).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("gate.bias"):
            nn.init.constant_(parameter, NEARLY_CLOSED)
    text = torch.randint(31, (2, 32 * config.block))
    moved = []
    with torch.no_grad():
        for each in (model, copy.deepcopy(model).bfloat16()):
            before = each.initial_state(2)
            _, after = each(text, before)
            moved.append(after["layers.1.states"] - before["layers.1.states"])
    in_float32, in_bfloat16 = moved
    assert (in_bfloat16 - in_float32).norm() < 0.03 * in_float32.norm()
