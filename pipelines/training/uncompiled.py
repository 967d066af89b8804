"""Optimizers that begin without torch's compiler."""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Uncompiled(Optimizer):
    """Base of optimizers that nobody compiles. Torch keeps these methods out of what is compiled, and imports its compiler for that
    whether anything is: a third of a small run's processor time (5.1 to 3.4 s without).
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """Torch's own."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
