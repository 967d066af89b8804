"""A compiled model gives what an uncompiled one does, in one graph. tests/pipelines/test_train.py has one with State."""

from __future__ import annotations

import pytest
import torch

from recur_models import VanillaConfig
from recur_models.compiling import compile_model, is_compiled
from tests.recur_models.conftest import SIZE

VOCAB = 11


@pytest.mark.slow
def test_compiled_equals_uncompiled() -> None:
    torch.compiler.reset()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(VanillaConfig(**{**SIZE, "layers": 1}).build(VOCAB))
    names = list(models[1].state_dict())
    compile_model(models[1], "model")
    assert is_compiled(models[1]) and not is_compiled(models[0]) and list(models[1].state_dict()) == names
    tokens = torch.randint(VOCAB, (2, 2 * models[0].block))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            ours, theirs = (model(tokens, targets_BT=tokens)[0] for model in models)
            torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
            ours.sum().backward()
            theirs.sum().backward()
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5, msg=name)
