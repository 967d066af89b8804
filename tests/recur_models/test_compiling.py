"""Compiled models give what uncompiled ones do, in one graph. Seconds of a compiler each: two models stand for all here."""

from __future__ import annotations

import pytest
import torch

from recur_models import ModelConfig, RecConfig, VanillaConfig, detach
from recur_models.compiling import Compile, compile_model, is_compiled
from tests.recur_models.conftest import SIZE

VOCAB = 11
SMALL = {**SIZE, "layers": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "unit"),
    [(VanillaConfig(**SMALL), "model"), (RecConfig(**SMALL, recurrent_layers=(1,), states=6), "layer")],
    ids=["vanilla-model", "rec-layer"],
)
def test_compiled_equals_uncompiled(config: ModelConfig, unit: Compile) -> None:
    torch.compiler.reset()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(config.build(VOCAB))
    names = list(models[1].state_dict())
    compile_model(models[1], unit)
    assert is_compiled(models[1]) and not is_compiled(models[0]) and list(models[1].state_dict()) == names
    tokens = torch.randint(VOCAB, (2, 2 * config.block))
    fresh = torch.tensor([[False, True], [False, False]])
    states = [model.initial_state(2) for model in models]
    for step in range(
        3
    ):  # the first State lies otherwise in memory than the later ones: it is compiled for twice, not more
        with torch._dynamo.config.patch(error_on_recompile=step == 2):
            out = [model(tokens, state, fresh, tokens) for model, state in zip(models, states, strict=True)]
        for nats, _ in out:
            nats.sum().backward()
        states = [detach(state) for _, state in out]
        torch.testing.assert_close(out[1][0], out[0][0], rtol=1e-5, atol=1e-5)
        for name, tensor in states[0].items():
            torch.testing.assert_close(states[1][name], tensor, rtol=1e-5, atol=1e-5)
    for (name, ours), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-4, atol=1e-5, msg=name)
