"""Where every model drops numbers in training, and that it drops none in evaluation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from recur_models import ModelConfig, protocol
from recur_models.core import CoreConfig
from recur_models.gpt2 import GPT2Config
from recur_models.llama import LlamaConfig
from recur_models.mamba2_model import Mamba2Config
from recur_models.mixers import MixersConfig
from tests.recur_models.conftest import small_configs
from tests.recur_models.small_models import build, fresh_at, tokens


def dropping(config: ModelConfig, rate: float = 0.3) -> ModelConfig:
    return replace(config, **dict[str, Any](dropout=rate))


def test_evaluation_drops_nothing(config: ModelConfig) -> None:
    text = tokens(2, 3 * config.block)
    model = build(dropping(config))
    expected = build(config)(text)[0]
    assert torch.equal(model(text)[0], expected)
    assert torch.equal(model(text)[0], expected)
    assert not torch.equal(model.train()(text)[0], expected)


OF_LAYERS: dict[type, tuple[str, int]] = {
    CoreConfig: (".mlp_out", 3),
    GPT2Config: ("", 2),
    LlamaConfig: ("", 2),
    MixersConfig: ("", 2),
    Mamba2Config: ("", 1),
}
"""What is called each time that a layer reads tokens, the layer or a module of it, and how often its dropout is drawn then."""


def test_dropout_is_drawn_where_the_docstrings_say(config: ModelConfig) -> None:
    """Embeddings are dropped once, in pretrained decoders where the first layer reads them, and h_prev never."""
    model = build(dropping(config)).train()
    calls = Counter[str]()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    model(tokens(2, 3 * config.block))
    first = "layers.0" if isinstance(config, (GPT2Config, LlamaConfig)) else "embedding"
    assert calls["dropout"] == calls[first] > 0
    for kind, (part, each) in OF_LAYERS.items():
        if isinstance(config, kind):
            drawn = 1 if isinstance(config, MixersConfig) and not config.mlp_dim else each
            for name in (f"layers.{layer}" for layer in range(len(model.layers))):
                assert calls[f"{name}.dropout"] == drawn * calls[name + part] > 0, (name, calls)


@pytest.mark.parametrize("name", ["gpt2-overlap-2", "gpt2_rec-overlap-2", "llama-overlap-2", "llama_rec-overlap-2"])
def test_pretrained_decoders_drop_attention_weights(name: str) -> None:
    config = small_configs()[name]
    text = tokens(2, 3 * config.block)
    model = build(dropping(config))
    expected = model(text)[0]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert (model.train()(text)[0] - expected).abs().max() > 1e-3


def test_recomputed_blocks_draw_the_same_dropout_again(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    if "block" not in config.recomputes:
        pytest.skip("this model does not offer it")
    text = tokens(2, 3 * config.block)
    fresh = fresh_at(2, 3, (1, 1))
    gradients = []
    for recomputes in (True, False):
        model = build(dropping(config)).double().train()
        model.recompute = "block"
        if not recomputes:
            monkeypatch.setattr(protocol, "checkpoint", lambda function, *given, use_reentrant: function(*given))
        torch.manual_seed(3)
        nats, _ = model(text, model.initial_state(2), fresh, text)
        nats.sum().backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    again, once = gradients
    for key, gradient in once.items():
        torch.testing.assert_close(again[key], gradient, rtol=1e-8, atol=1e-10)
