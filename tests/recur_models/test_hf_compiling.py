"""An exported model compiled as users of transformers do it: the same numbers, from few graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from recur_models import CachedStaircaseConfig, ModelConfig, RecConfig, StaircaseConfig
from recur_models.hf import ThroughlineConfig, ThroughlineForCausalLM
from tests.recur_models.conftest import SIZE

VOCAB = 11
CORE: Any = {"layers": 3, "d_model": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24}
MODELS: dict[str, ModelConfig] = {
    "staircase": StaircaseConfig(**CORE, chunk=4, passes=2),
    "cached-staircase": CachedStaircaseConfig(**CORE, chunk=4, passes=1, chunks=3),
    "rec": RecConfig(**SIZE | {"layers": 3}, recurrent_layers=(2,), states=6),
}
GRAPHS = 6
"""At the most, of a pass with gradients: for each kind of layer, and for the staircases' steps that cross documents or drain."""


def loss_and_gradients(model: Callable[..., Any], text: Tensor) -> list[Tensor]:
    """The loss, and of each parameter what it has as a gradient."""
    loss = model(input_ids=text, labels=text).loss
    parameters = list(cast(nn.Module, model).parameters())
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_layers_share_graphs_and_nothing_else_is_compiled(name: str) -> None:
    """Also under torch.compile, with the options that the model has been given: that one does not tell its own."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = ThroughlineForCausalLM(ThroughlineConfig.of(MODELS[name], vocab_size=VOCAB))
    blocks = 5
    text = torch.randint(VOCAB - 1, (2, blocks * model.model.block))
    names = list(model.state_dict())
    expected = loss_and_gradients(model, text)
    layers = CompileCounter()
    others = CompileCounter()
    model.compile(backend=layers)
    found = loss_and_gradients(model, text)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    graphs = layers.frame_count
    assert 0 < graphs <= GRAPHS < blocks * len(model.model.layers)
    found = loss_and_gradients(torch.compile(model, backend=others), text)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (layers.frame_count, others.frame_count) == (graphs, 0) and list(model.state_dict()) == names


def test_one_graph_of_the_whole_model_is_refused_by_name() -> None:
    torch.compiler.reset()
    model = ThroughlineForCausalLM(ThroughlineConfig.of(MODELS["staircase"], vocab_size=VOCAB))
    with pytest.raises(RuntimeError, match=r"leave out fullgraph, or call model\.compile"):
        torch.compile(model, backend="eager", fullgraph=True)(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.long
def test_a_compiled_forward_may_take_the_models_place() -> None:
    torch.compiler.reset()
    model: Any = ThroughlineForCausalLM(ThroughlineConfig.of(MODELS["rec"], vocab_size=VOCAB)).eval()
    text = torch.randint(VOCAB - 1, (2, 9))
    expected = model(text).logits
    model.forward = torch.compile(model.forward, backend="eager")
    torch.testing.assert_close(model(text).logits, expected)
