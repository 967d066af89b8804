"""Llama against transformers' own, and what its folders may say. What holds of every pretrained decoder: test_gpt2.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from recur_models import GPT2Config, LlamaConfig, LlamaRecConfig
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.pretrained_layers import attention_weights, masked_logits
from tests.recur_models.small_models import VOCAB, tokens
from tests.recur_models.small_pretrained import refused, rewritten

# Untyped: decorators that no checker follows make some of what transformers' classes have.
THEIRS: Any = import_module("transformers.models.llama.modeling_llama")

SIZES: dict[str, Any] = {"layers": 3, "d_model": 24, "heads": 4, "mlp_dim": 40, "positions": 32}


def saved(folder: Path, **sizes: Any) -> Any:
    """A tiny Llama of transformers' that has been saved there, its weights large enough for logits that differ."""
    torch.manual_seed(0)
    ours = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
    sizes = {**ours, "max_position_embeddings": 32, "num_key_value_heads": 2, "initializer_range": 0.2, **sizes}
    theirs: Any = THEIRS.LlamaForCausalLM(THEIRS.LlamaConfig(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, **sizes))
    for name, parameter in theirs.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    theirs.eval().save_pretrained(folder)
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("vocab_size", [VOCAB, VOCAB + 1])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"tie_word_embeddings": True, "rms_norm_eps": 1e-2},
        {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
        {"num_key_value_heads": 1},
    ],
)
@pytest.mark.parametrize("kind", [LlamaConfig, LlamaRecConfig])
def test_a_first_window_has_the_logits_of_transformers(
    kind: type[LlamaConfig], sizes: dict[str, Any], vocab_size: int, tmp_path: Path
) -> None:
    theirs = saved(tmp_path, **sizes)
    ids = tokens(2, 32)
    model = kind(pretrained=str(tmp_path), window=32).build(vocab_size).eval()
    logits = model(ids)[0]
    expected = theirs(ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(logits[..., :VOCAB], expected, rtol=0, atol=1e-5)
    if vocab_size > VOCAB:  # begin-of-document begins as what the folder's documents begin with
        assert torch.equal(logits[..., VOCAB], logits[..., 1])
        assert torch.equal(model.embedding.weight[VOCAB], model.embedding.weight[1])


@torch.no_grad()
def test_every_token_is_predicted_from_its_window(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    ids = tokens(2, 20)
    logits, _ = LlamaConfig(pretrained=str(tmp_path), window=7, overlap=3).build(VOCAB).eval()(ids)
    for place in range(20):
        first = max(place // 4 * 4 - 3, 0)
        expected = theirs(ids[:, first : place + 1]).logits[:, -1]
        torch.testing.assert_close(logits[:, place], expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_all_layers_states_are_those_of_transformers(use_cache: bool, tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    ids = tokens(2, 20)
    config = LlamaConfig(pretrained=str(tmp_path), window=7, overlap=3)
    ours = ThroughlineForCausalLM(ThroughlineConfig.of(config, VOCAB)).eval()
    found = ours(ids, use_cache=use_cache, output_hidden_states=True).hidden_states
    for place in (0, 6, 13, 19):
        first = max(place // 4 * 4 - 3, 0)
        expected = theirs(ids[:, first : place + 1], output_hidden_states=True).hidden_states
        for state, their_state in zip(found, expected, strict=True):
            torch.testing.assert_close(state[:, place], their_state[:, -1], rtol=0, atol=1e-5)


@torch.no_grad()
def test_what_the_window_before_left_is_seen_as_if_it_stood_right_before_the_first_token() -> None:
    """h_prev at −1: a layer that is given it as a token, and all others one place on, adds the same."""
    torch.manual_seed(0)
    config = LlamaRecConfig(**SIZES, window=6, kv_heads=2)
    layer: Any = config.build(VOCAB).layers[0]
    x = torch.randn(2, 6, 24)
    prev = torch.randn(2, 1, 24)
    place = torch.arange(7).expand(2, -1)
    seen = torch.ones(7, 7).tril().bool().expand(2, -1, -1)
    found = layer(x, place[:, :6], seen[:, 1:], prev, None)
    expected = layer(torch.cat([prev, x], 1), place, seen, None, None)[:, 1:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("config", [LlamaConfig, LlamaRecConfig, partial(LlamaRecConfig, source="layer", hidden=(8,))])
def test_in_bfloat16_on_a_cpu_it_attends_as_in_float32_without_the_slow_kernel(
    config: Callable[..., LlamaConfig], overlap: int
) -> None:
    torch.manual_seed(0)
    model = config(pretrained="none", kv_heads=2, window=8, overlap=overlap, **SIZES).build(VOCAB)
    ids = tokens(2, 4 * (8 - overlap))
    exact, _ = model(ids, None, None, ids)
    wanted = torch.autograd.grad(exact.mean(), list(model.parameters()))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = model(ids, None, None, ids)
        found.mean().backward()
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0.01)
    for (name, parameter), expected in zip(model.named_parameters(), wanted, strict=True):
        assert parameter.grad is not None, name
        assert (parameter.grad - expected).norm() <= 0.05 * expected.norm() + 1e-5, name
    assert not [event.key for event in profile.key_averages() if "scaled_dot_product" in event.key]


@pytest.mark.parametrize("trained", ["all", "recurrence"])
def test_a_projection_is_cast_once_for_all_windows(trained: Literal["all", "recurrence"]) -> None:
    """Compiled layers would cast it in each window."""
    model = LlamaRecConfig(pretrained="none", kv_heads=2, window=8, trained=trained, **SIZES).build(VOCAB)
    layer: Any = model.layers[1]
    read: list[torch.Tensor] = []
    layer.mlp["down_proj"].register_forward_pre_hook(lambda module, _: read.append(module.weight))
    calls: list[Any] = []
    model.register_forward_pre_hook(lambda *given: calls.append(given))
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = model(tokens(2, 32), None, None, tokens(2, 32))
    found.mean().backward()
    assert [each.dtype for each in read] == [torch.bfloat16] * 4 and len({each.data_ptr() for each in read}) == 1
    assert len(calls) == 1
    weight = layer.mlp["down_proj"].weight
    assert weight.dtype == torch.float32 and (weight.grad is None) == (trained == "recurrence")


def test_smollm_has_its_parameters() -> None:
    assert LlamaConfig().costs(49_152).parameters == 134_515_008
    untied = LlamaConfig(output="own").costs(49_152)
    assert untied.parameters - untied.embedding_parameters == 134_515_008


def test_older_folders_and_exports_are_read(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "new", num_key_value_heads=4)
    ids = tokens(2, 16)
    expected = theirs(ids).logits
    unsaid = ("rope_parameters", "num_key_value_heads", "head_dim", "tie_word_embeddings")
    for name, values in {"llama-1": {}, "llama-2": {"rope_theta": 10_000.0, "rope_scaling": None}}.items():
        place = rewritten(tmp_path / "new", tmp_path / name, leave_out=unsaid, **values)
        model = LlamaConfig(pretrained=str(place), window=16).build(VOCAB).eval()
        torch.testing.assert_close(model(ids)[0], expected, rtol=0, atol=1e-5)
    exported: Any = ThroughlineForCausalLM(
        ThroughlineConfig.of(LlamaConfig(**SIZES, kv_heads=2, window=16, output="own"), VOCAB)
    ).eval()
    exported.save_pretrained(tmp_path / "exported")
    model = LlamaRecConfig(pretrained=str(tmp_path / "exported"), window=16).build(VOCAB).eval()
    torch.testing.assert_close(model(ids)[0], exported.model(ids)[0], rtol=0, atol=1e-6)


def test_swish_is_another_name_of_silu(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "new")
    place = rewritten(tmp_path / "new", tmp_path / "swish", hidden_act="swish")
    ids = tokens(2, 16)
    model = LlamaConfig(pretrained=str(place), window=16).build(VOCAB).eval()
    torch.testing.assert_close(model(ids)[0], theirs(ids).logits, rtol=0, atol=1e-5)


def test_folders_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path) -> None:
    saved(tmp_path / "own")

    def of(name: str, **values: Any) -> Callable[[], object]:
        place = rewritten(tmp_path / "own", tmp_path / name, **values)
        return lambda: LlamaConfig(pretrained=str(place), window=8).build(VOCAB)

    scaled = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0}
    assert "rope_type=llama3, and only rope_type=default is computed here: name another model" in refused(
        of("scaled", rope_parameters=scaled)
    )
    assert "head_dim=8, and only head_dim=hidden_size / num_attention_heads is" in refused(of("wide", head_dim=8))
    assert "attention_bias=True" in refused(of("biased", attention_bias=True))
    assert "rope_type=linear" in refused(of("worded", rope_parameters="linear"))
    assert "rms_norm_eps=small" in refused(of("unsized", rms_norm_eps="small"))
    assert "'mistral', not of a Llama: name a folder that transformers' LlamaForCausalLM" in refused(
        of("m", model_type="mistral")
    )
    assert "'llama', not of a GPT-2" in refused(lambda: GPT2Config(pretrained=str(tmp_path / "own"), window=8))
    assert "give --model.kv-heads 2; 0 takes the folder's number" in refused(
        lambda: LlamaConfig(pretrained=str(tmp_path / "own"), window=8, kv_heads=4).build(VOCAB)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "model.kv_heads is 3: it must divide model.heads, 4"),
        ({"heads": 8}, "a head's size must be even"),
        ({"rope_base": -1.0}, "model.rope_base is -1.0: it must be above 0"),
        ({"rope_base": math.nan}, "model.rope_base is nan: it must be a number"),
        ({"norm_eps": math.inf}, "model.norm_eps is inf: it must be a number"),
        ({"window": 33}, "has only 32 positions"),
        ({"insert_layer": 4}, "there are 3 layers"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LlamaRecConfig(**SIZES, kv_heads=2, window=8), **change)


def test_a_product_that_masks_gives_the_weights_of_separate_passes() -> None:
    """In float32 `attention_weights` scales and masks after the product, in bfloat16 `masked_logits` does so within it."""
    torch.manual_seed(0)
    q = torch.randn(2, 3, 5, 4)
    k = torch.randn(2, 3, 7, 4)
    seen_Bnm = torch.rand(2, 5, 7) < 0.5
    seen_Bnm[..., 2] = True
    weights = torch.softmax(masked_logits(q, k, seen_Bnm), -1)
    torch.testing.assert_close(weights, attention_weights(q, k, seen_Bnm, 0.0))
    narrow = attention_weights(q.bfloat16(), k.bfloat16(), seen_Bnm, 0.0)
    torch.testing.assert_close(narrow.float(), weights, rtol=0.03, atol=0.01)
    hidden = ~seen_Bnm[:, None].expand_as(weights)
    assert not weights[hidden].any() and not narrow[hidden].any()
