"""Adafactor against transformers', and what neither optimizer may do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor as Theirs

from common.errors import UserError
from pipelines.config.run import OptimConfig, ScheduleConfig
from pipelines.presets import PRESETS
from pipelines.training.adafactor import Adafactor
from pipelines.training.optim import build_optimizer, learning_rate
from recur_models import RecConfig, RecurrentModel, SlideConfig
from tests.recur_models.conftest import SIZE

STEPS = 12
MODEL = RecConfig(**SIZE, recurrent_layers=(2,), states=6, gate="lstm")


def optim(name: Any = "adafactor", **fields: Any) -> OptimConfig:
    return OptimConfig(name=name, lr=0.03, betas=(0.9, 0.95), **fields)


def theirs(model: nn.Module, weight_decay: float = 0.0) -> Theirs:
    """As the paper sets it, with matrices alone decayed."""
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() >= 2) == matrices], "weight_decay": decay}
        for matrices, decay in ((True, weight_decay), (False, 0.0))
    ]
    return Theirs(groups if weight_decay else model.parameters(), lr=0.03, beta1=0.9, relative_step=False)


def build(device: str = "cpu") -> RecurrentModel:
    torch.manual_seed(0)
    with torch.device(device):
        return MODEL.build(31)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 10.0 ** (seed % 5 - 3)
    for group in optimizer.param_groups:
        group["lr"] = 0.03 / (1 + seed)
    optimizer.step()


def assert_equal(ours: nn.Module, other: nn.Module) -> None:
    for (name, one), two in zip(ours.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adafactor_is_that_of_transformers(weight_decay: float) -> None:
    models = build(), build()
    optimizers = build_optimizer(models[0], optim(weight_decay=weight_decay)), theirs(models[1], weight_decay)
    for seed in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, seed)
        assert_equal(*models)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_only_matrices_are_decayed(name: str) -> None:
    models = build(), build()
    for model, weight_decay in zip(models, (0.0, 0.5), strict=True):
        step(model, build_optimizer(model, optim(name, weight_decay=weight_decay)), 0)
    for (key, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, two) == (one.dim() < 2), key


def test_adafactor_reads_nothing_back_from_the_device() -> None:
    model = build("meta")  # where a tensor has no value to be read
    optimizer = build_optimizer(model, optim(weight_decay=0.1))
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_what_only_the_recurrence_has_may_have_a_rate_of_its_own(name: str) -> None:
    models = [build() for _ in range(3)]
    before = {key: tensor.clone() for key, tensor in models[0].named_parameters()}
    for model, scale in zip(models, (1.0, 3.0, 0.0), strict=True):
        optimizer = build_optimizer(model, optim(name, weight_decay=0.0, recurrent_lr_scale=scale))
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(held) == sorted(map(id, model.parameters()))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * group.get("lr_scale", 1.0)
        optimizer.step()
    moved = [{key: tensor - before[key] for key, tensor in model.named_parameters()} for model in models]
    own = {key for key in before if ".states." in key}
    assert 5 < len(own) < len(before)
    for key, once in moved[0].items():
        torch.testing.assert_close(moved[1][key], 3 * once if key in own else once, rtol=1e-3, atol=1e-6, msg=key)
        assert torch.equal(moved[2][key], torch.zeros_like(once) if key in own else once), key


def test_a_model_without_recurrence_has_no_rate_for_it() -> None:
    model = SlideConfig(**SIZE).build(31)
    with pytest.raises(UserError, match=r"optim\.recurrent_lr_scale is 2, and the model has no recurrent parameters"):
        build_optimizer(model, optim("adamw", recurrent_lr_scale=2.0))


WITHOUT_COMPILER = """
import sys, torch
from pipelines.config.run import OptimConfig
from pipelines.training.optim import build_optimizer

for name in ("adamw", "adafactor"):
    model = torch.nn.Linear(3, 3)
    optimizer = build_optimizer(model, OptimConfig(name=name, lr=0.1))
    before = model.weight.detach().clone()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert model.weight.grad is None and not torch.equal(model.weight, before)
assert "torch._dynamo" not in sys.modules
"""


def test_no_optimizer_imports_the_compiler() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], check=True)


def test_adamw_is_torchs() -> None:
    """To the bit, and its state is torch's, too."""
    mine, torchs = build(), build()
    ours = build_optimizer(mine, optim("adamw", weight_decay=0.1))
    others = {id(p): q for p, q in zip(mine.parameters(), torchs.parameters(), strict=True)}
    groups = [{**group, "params": [others[id(p)] for p in group["params"]]} for group in ours.param_groups]
    reference = torch.optim.AdamW(groups)
    for step in range(STEPS):
        for model, optimizer in ((mine, ours), (torchs, reference)):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape)
            optimizer.step()
            optimizer.zero_grad()
    for parameter, expected in zip(mine.parameters(), torchs.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    torch.testing.assert_close(ours.state_dict(), reference.state_dict(), rtol=0, atol=0)


def test_the_inverse_square_root_is_warmed_up_as_in_appendix_c() -> None:
    """1,000 warm-up steps to an applied rate of 0.03, which decays to 0.0014 over 500,000."""
    run = PRESETS["pg19-rec-fixed-skip"]

    def applied(step: int) -> float:
        """The rate of a step counted from 1."""
        return learning_rate(step - 1, run.steps, run.optim, run.schedule)

    assert [applied(step) for step in (1, 100, 500)] == pytest.approx([3.16228e-5, 3.16228e-3, 1.58114e-2], rel=1e-5)
    assert [applied(step) for step in (1000, 1001, 4000)] == pytest.approx([0.0316228, 0.0316070, 0.0158114], rel=1e-5)
    assert applied(500_000) == pytest.approx(0.00141421, rel=1e-5)
    rates = [applied(step) for step in range(1, 2001)]
    assert max(rates) == rates[999]


@pytest.mark.parametrize("name", ["cosine", "inverse-sqrt", "constant"])
def test_each_schedule_rises_linearly_while_it_warms_up(name: Any) -> None:
    optimizer, shape = optim(), ScheduleConfig(name=name, warmup_steps=10)
    rates = [learning_rate(step, 100, optimizer, shape) for step in range(10)]
    assert rates == pytest.approx([rates[-1] * (step + 1) / 10 for step in range(10)])
    without = ScheduleConfig(name=name, warmup_steps=0)
    assert learning_rate(0, 100, optimizer, without) == optimizer.lr


def test_the_cosine_is_half_way_down_in_the_middle_and_ends_at_its_least_share() -> None:
    shape = ScheduleConfig(name="cosine", warmup_steps=10, min_lr_ratio=0.1)
    rates = [learning_rate(step, 110, OptimConfig(lr=1.0), shape) for step in (10, 35, 60, 110)]
    assert rates == pytest.approx([1.0, 0.1 + 0.9 * 0.8535534, 0.55, 0.1])


def test_a_parameter_that_begins_at_zero_is_moved() -> None:
    parameter = nn.Parameter(torch.zeros(4, 3))
    parameter.grad = torch.ones(4, 3)
    Adafactor([parameter], lr=1.0, beta1=0.0, weight_decay=0.0).step()
    # ε₂, the least size that scales an update
    torch.testing.assert_close(parameter.detach(), torch.full((4, 3), -1e-3))
