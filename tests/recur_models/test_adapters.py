"""Adapters of PEFT on every projection of every model, and dynamic quantisation: what is put in a layer's place must act."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic
from transformers.pytorch_utils import Conv1D

from recur_models import MODELS
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.mixers import MIXERS, MixerName, MixersConfig
from tests.recur_models.conftest import small_configs
from tests.recur_models.small_exports import text, wrap

LENGTH = 15  # three blocks and a part of one

# The checker cannot follow the decorators of these classes.
THEIRS: Any = import_module("transformers")

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:fan_in_fan_out is set"
    ),  # one adapter for Linear and Conv1D: PEFT sets it for each
    pytest.mark.filterwarnings("ignore:Could not find a config file"),  # the base models here are in no folder
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning"),
]


def projections(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]


@cache
def bare(name: str) -> Any:
    """The model as it is exported. Do not change it."""
    return wrap(small_configs()[name])


@cache
def adapted(name: str) -> Any:
    """The same under a random adapter. Do not change it."""
    model = deepcopy(bare(name))
    torch.manual_seed(3)
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=projections(model), init_lora_weights=False)
    return get_peft_model(model, lora).eval()


def whole(model: Any, ids: Tensor) -> Tensor:
    """Logits of one pass, as in training."""
    return model(input_ids=ids, use_cache=False).logits


def continued(model: Any, ids: Tensor, lengths: list[int]) -> Tensor:
    """Logits of passes over parts of these lengths, each of which resumes where the one before it ended."""
    state = None
    logits = []
    for part in ids.split(lengths, 1):
        made = model(input_ids=part, past_key_values=state, use_cache=True)
        state = made.past_key_values
        logits.append(made.logits)
    return torch.cat(logits, 1)


NAMES = (
    *("vanilla", "slide-paper", "xl-meliad", "memorizing-meliad", "lstm"),
    *("rec-fixed-skip-meliad", "rec-lstm-single-meliad", "feedback-two-layers-paper"),
    *(
        "staircase-zeros",
        "cached_staircase-zeros",
        "cached_staircase-masked",
        "transformer_xl-zeros",
        "universal-masked",
    ),
    *("feedback_transformer-zeros", "feedback_transformer-masked"),
    *("mixers-householders", "mixers-mamba2", "mixers-mlstm", "mixers-slstm"),
    *("rmt", "armt"),
    *("gpt2-overlap-2", "gpt2_rec-overlap-2"),
    *("llama-overlap-2", "llama_rec-overlap-2"),
    *("mamba2-tied", "mamba2-groups"),
)
"""All models, and among their variants each that has projections of its own, or calls them elsewhere."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_adapter_acts_in_every_pass_as_its_merged_weights_do(name: str) -> None:
    ids = text(2, LENGTH)
    model = adapted(name)
    expected = whole(model, ids)
    assert (expected - whole(bare(name), ids)).abs().max() > 0.01
    assert_near(continued(model, ids, [1] * LENGTH), expected)
    assert_near(continued(model, ids, [6, 9]), expected)
    merged = deepcopy(model).merge_and_unload()
    assert projections(merged) == projections(bare(name))
    assert_near(whole(merged, ids), expected)
    assert_near(continued(merged, ids, [6] + [1] * 9), expected)


def gradients(model: Any, run: Callable[[], Tensor]) -> dict[str, Tensor]:
    """The gradient of each tensor of the adapter, by its name."""
    model.zero_grad()
    run().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if "lora_" in name}


def test_every_tensor_of_an_adapter_is_trained(name: str) -> None:
    """By a loss of transformers' and by one of ours, whatever is recomputed."""
    model = deepcopy(adapted(name)).train()
    inner = model.get_base_model().model
    ids = text(2, 4 * inner.block)
    expected = gradients(model, lambda: model(input_ids=ids, labels=ids).loss)
    assert len(expected) == 2 * len(projections(bare(name)))
    for key, gradient in expected.items():
        assert gradient.abs().max() > 0, key
    targets = torch.cat([ids[:, 1:], torch.full((2, 1), -1)], 1)
    for recompute in inner.config.recomputes:
        inner.recompute = recompute
        found = gradients(model, lambda: inner(ids, None, None, targets)[0].sum() / (targets >= 0).sum())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_a_saved_adapter_is_loaded(name: str, tmp_path: Path) -> None:
    adapted(name).save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(deepcopy(bare(name)), tmp_path)
    ids = text(2, LENGTH)
    assert torch.equal(whole(loaded, ids), whole(adapted(name), ids))


@torch.no_grad()
def test_a_saved_dora_is_loaded_by_peft_alone(tmp_path: Path) -> None:
    """transformers leaves its magnitudes out, which is an error here."""
    bare("slide-paper").save_pretrained(tmp_path / "model")
    theirs: Any = THEIRS.AutoModelForCausalLM
    model: Any = get_peft_model(
        theirs.from_pretrained(tmp_path / "model"),
        LoraConfig(r=2, target_modules="all-linear", use_dora=True, init_lora_weights=False),
    )
    for key, parameter in model.named_parameters():
        if "magnitude" in key:
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path / "dora")
    ids = text(2, LENGTH)
    loaded = PeftModel.from_pretrained(theirs.from_pretrained(tmp_path / "model"), tmp_path / "dora")
    assert torch.equal(whole(loaded, ids), whole(model.eval(), ids))
    with pytest.raises(ValueError, match=r"magnitude.* or open an adapter with PeftModel\.from_pretrained"):
        theirs.from_pretrained(tmp_path / "dora")


@torch.no_grad()
def test_quantised_layers_are_used(name: str) -> None:
    model = bare(name)
    quantised: Any = quantize_dynamic(model, {nn.Linear})
    ids = text(2, LENGTH)
    linear = any(isinstance(module, nn.Linear) for module in model.modules())  # a plain GPT-2 has none
    for run in (whole, lambda model, ids: continued(model, ids, [1] * LENGTH)):
        before = run(model, ids)
        after = run(quantised, ids)
        assert torch.equal(after, before) != linear
        assert (after - before).std() < 0.2 * before.std()


@torch.no_grad()
@pytest.mark.parametrize("targets", [None, "all-linear"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_adapter_acts_as_on_the_model_of_transformers(kind: str, targets: str | None, tmp_path: Path) -> None:
    """PEFT's default targets, and all: from the same adapter follow the same logits."""
    torch.manual_seed(0)
    made_of: dict[str, Any] = {"vocab_size": 31, "initializer_range": 0.2}
    if kind == "llama":
        made_of |= {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
        made_of |= {"num_attention_heads": 4, "num_key_value_heads": 2}
        theirs = THEIRS.LlamaForCausalLM(THEIRS.LlamaConfig(**made_of)).eval()
    else:
        made_of |= {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 32}
        theirs = THEIRS.GPT2LMHeadModel(THEIRS.GPT2Config(**made_of)).eval()
    theirs.save_pretrained(tmp_path)
    config: Any = MODELS[kind]
    ours = ThroughlineForCausalLM(ThroughlineConfig.of(config(pretrained=str(tmp_path), window=16), 31)).eval()
    ids = text(2, 16)
    before = theirs(ids).logits
    assert_near(whole(ours, ids), before)
    lora = LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    expected_model = get_peft_model(theirs, deepcopy(lora)).eval()
    model = get_peft_model(ours, deepcopy(lora)).eval()
    adapter = {
        key.replace(".transformer.h.", ".model.layers."): tensor
        for key, tensor in expected_model.state_dict().items()
        if "lora_" in key
    }
    assert adapter.keys() == {key for key in model.state_dict() if "lora_" in key}
    model.load_state_dict(adapter, strict=False)
    expected = expected_model(input_ids=ids).logits
    assert (expected - before).abs().max() > 0.1
    assert_near(whole(model, ids), expected)
    assert_near(continued(model, ids, [5] + [1] * 11), expected)


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_default_adapter_acts_on_every_mixer(mixer: MixerName) -> None:
    config = MixersConfig(layers=(mixer, mixer), d_model=8, heads=2, key_dim=4, value_dim=4, window=8, chunk=8)
    model = get_peft_model(ThroughlineForCausalLM(ThroughlineConfig.of(config, 31)), LoraConfig(r=2))
    adapted = {name.partition(".layers.")[2][0] for name, _ in model.named_parameters() if "lora_A" in name}
    assert adapted == {"0", "1"}


def test_all_models_are_among_those_tested() -> None:
    configs = small_configs()
    assert {configs[name].name for name in NAMES} == {config.name for config in configs.values()}


@torch.no_grad()
@pytest.mark.parametrize("trained", [{"modules_to_save": ["embedding"]}, {"trainable_token_indices": [3, 4]}])
@pytest.mark.parametrize("name", ["slide-paper", "llama_rec-overlap-2", "mamba2-tied"])
def test_trained_embeddings_make_the_logits_too(name: str, trained: dict[str, Any]) -> None:
    ids = text(2, LENGTH)
    model: Any = get_peft_model(deepcopy(bare(name)), LoraConfig(r=2, target_modules="all-linear", **trained)).eval()
    torch.manual_seed(3)
    for key, parameter in model.named_parameters():
        if "modules_to_save" in key or "trainable_tokens_delta" in key:
            parameter.add_(torch.randn_like(parameter))
    expected = whole(model, ids)
    assert (expected - whole(bare(name), ids)).abs().max() > 0.1
    assert_near(continued(model, ids, [6, 9]), expected)
    assert_near(whole(model.merge_and_unload(), ids), expected)


def test_an_output_layer_is_no_target_of_all_linear() -> None:
    for name in ("lstm", "staircase-zeros", "llama_rec-overlap-2"):
        model = deepcopy(bare(name))
        output = model.get_output_embeddings()
        assert output is model.model.output
        if name != "lstm":  # it has no other
            wrapped: Any = get_peft_model(model, LoraConfig(target_modules="all-linear"))
            assert wrapped.get_base_model().get_output_embeddings() is output
