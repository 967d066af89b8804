"""Mamba-2 against transformers' own, and what its folders may say. What holds of every model: test_models.py."""

from __future__ import annotations

import json
import math
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recur_models import MODELS, LlamaConfig, Mamba2Config, model_from_json
from recur_models.decoding import begin, read
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.pretrained_weights import theirs_of
from tests.recur_models.small_models import VOCAB, tokens
from tests.recur_models.small_pretrained import refused, rewritten

# Untyped: decorators that no checker follows make some of what transformers' classes have.
THEIRS: Any = import_module("transformers.models.mamba2.modeling_mamba2")

LENGTH = 24
"""No multiple of transformers' chunks, which are of 10 tokens, and one of our blocks, which are of 8."""
KINDS: dict[str, dict[str, Any]] = {
    "own": {},
    "tied": {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-2, "residual_in_fp32": False},
    "groups": {"n_groups": 2, "use_bias": True, "conv_kernel": 3},
    "limited": {"n_groups": 4, "use_conv_bias": False, "time_step_limit": (0.02, 0.5), "tie_word_embeddings": True},
}


def saved(folder: Path, **sizes: Any) -> Any:
    """A tiny Mamba-2 of transformers' that has been saved there, all of its weights random."""
    torch.manual_seed(0)
    ours = {"hidden_size": 24, "num_hidden_layers": 3, "num_heads": 4, "head_dim": 12, "state_size": 6, "n_groups": 1}
    ours |= {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "chunk_size": 10}
    config = THEIRS.Mamba2Config(**ours | sizes)
    theirs: Any = THEIRS.Mamba2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.add_((1.5 if name.endswith("dt_bias") else 0.2) * torch.randn_like(parameter))
    theirs.eval().save_pretrained(folder)
    return theirs


def opened(folder: Path, vocab_size: int = VOCAB, **fields: Any) -> Any:
    config: Any = MODELS["mamba2"]
    return config(pretrained=str(folder), **{"window": 8, "chunk": 4, **fields}).build(vocab_size).eval()


def near(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, **KINDS[kind])
    ids = tokens(2, LENGTH + 1)
    model = opened(tmp_path)
    expected = theirs(ids[:, :-1]).logits
    assert expected.std() > 0.5
    near(model(ids[:, :-1])[0], expected)

    F.cross_entropy(expected.flatten(0, 1), ids[:, 1:].flatten()).backward()
    model(ids[:, :-1], targets_BT=ids[:, 1:])[0].mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = theirs_of(Mamba2Config.family, gradients)
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 1e-4, name
        near(found[name], gradient, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_state_is_transformers_cache(kind: str, tmp_path: Path) -> None:
    """Two calls with a cache are two segments with State carried, and token by token gives the same."""
    theirs = saved(tmp_path, **KINDS[kind])
    ids = tokens(2, 2 * LENGTH)
    model = opened(tmp_path)
    first = theirs(ids[:, :LENGTH], use_cache=True)
    second = theirs(ids[:, LENGTH:], cache_params=first.cache_params, use_cache=True)
    logits, state = model(ids[:, :LENGTH])
    near(logits, first.logits)
    logits, state = model(ids[:, LENGTH:], state)
    near(logits, second.logits)
    for i in range(3):
        cached = (
            second.cache_params.get_recurrent_state(i, state_idx=0),
            second.cache_params.get_conv_state(i, state_idx=0)[..., 1 - model.layers[i].mixer.sizes.conv :],
        )
        for name, expected in zip(("states", "inputs"), cached, strict=True):
            near(state[f"layers.{i}.{name}"].transpose(-1, -2), expected)

    whole = torch.cat([first.logits, second.logits], 1)
    decoder = model.incremental_decoder()
    reading = begin(decoder, 2)
    for place in range(LENGTH):
        logits, reading = read(decoder, reading, ids[:, place : place + 1])
        near(logits[:, 0], whole[:, place])


@torch.no_grad()
def test_all_layers_states_are_those_of_transformers(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    ids = tokens(2, LENGTH)
    config = Mamba2Config(pretrained=str(tmp_path), window=8, chunk=8)
    ours = ThroughlineForCausalLM(ThroughlineConfig.of(config, VOCAB)).eval()
    found = ours(ids, output_hidden_states=True).hidden_states
    layers = theirs(ids, output_hidden_states=True).hidden_states
    expected = (theirs.backbone.embeddings(ids), *layers[:-2], layers[-1])
    for state, their_state in zip(found, expected, strict=True):
        near(state, their_state)


@torch.no_grad()
def test_a_document_that_starts_inside_a_segment_sees_nothing_before_it(tmp_path: Path) -> None:
    theirs = saved(tmp_path)
    ids = tokens(1, LENGTH)
    logits, _ = opened(tmp_path)(ids, None, torch.tensor([[True, True, False]]))
    near(logits, torch.cat([theirs(ids[:, :8]).logits, theirs(ids[:, 8:]).logits], 1))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", "tied"])
def test_begin_of_document_is_one_id_more_than_the_folder_has(kind: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, **KINDS[kind])
    ids = tokens(2, LENGTH)
    model = opened(tmp_path, VOCAB + 1)
    logits, _ = model(ids)
    near(logits[..., :VOCAB], theirs(ids).logits)
    assert torch.equal(logits[..., VOCAB], logits[..., 1])
    assert torch.equal(model.embedding.weight[VOCAB], model.embedding.weight[1])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", "tied"])
def test_rows_that_were_padded_go(kind: str, tmp_path: Path) -> None:
    """A tokenizer of 25 ids, whose embeddings have 32 rows: begin-of-document is the twenty-sixth."""
    theirs = saved(tmp_path, vocab_size=32, **KINDS[kind])
    ids = tokens(2, LENGTH) % 25
    logits, _ = opened(tmp_path, 26)(ids)
    near(logits[..., :25], theirs(ids).logits[..., :25])
    assert torch.equal(logits[..., 25], logits[..., 1])
    all_rows, _ = opened(tmp_path, 32)(ids)
    near(all_rows, theirs(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_what_it_is_given_back(kind: str, tmp_path: Path) -> None:
    ids = tokens(2, LENGTH)
    expected = saved(tmp_path, **KINDS[kind])(ids).logits
    config = Mamba2Config(pretrained=str(tmp_path), window=8, chunk=8)
    again: Any = THEIRS.Mamba2ForCausalLM(THEIRS.Mamba2Config(vocab_size=VOCAB, chunk_size=10, **config.plain_values()))
    weights = theirs_of(Mamba2Config.family, config.build(VOCAB).state_dict())
    lacking, left_over = again.load_state_dict(weights, strict=False)
    again.tie_weights()
    assert not left_over and set(lacking) <= {"lm_head.weight"}
    assert torch.equal(again.eval()(ids).logits, expected)


@torch.no_grad()
def test_older_folders_and_exports_are_read(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "new")
    ids = tokens(2, LENGTH)
    expected = theirs(ids).logits
    for name, limit in {"infinity": [0.0, math.inf], "unsaid": None}.items():
        values = {} if limit is None else {"time_step_limit": limit}
        near(opened(rewritten(tmp_path / "new", tmp_path / name, ("time_step_limit",), **values))(ids)[0], expected)
    exported: Any = ThroughlineForCausalLM(ThroughlineConfig.of(Mamba2Config(pretrained=str(tmp_path / "new")), VOCAB))
    exported.save_pretrained(tmp_path / "exported")
    near(opened(tmp_path / "exported")(ids)[0], expected)


def test_a_config_that_is_read_back_needs_no_folder(tmp_path: Path) -> None:
    saved(tmp_path / "folder", **KINDS["groups"])
    config = Mamba2Config(pretrained=str(tmp_path / "folder"), window=8, chunk=8)
    model = config.build(VOCAB).eval()
    ids = tokens(2, LENGTH)
    values = json.loads(json.dumps(config.to_json()))
    shutil.rmtree(tmp_path / "folder")
    again = model_from_json(values)
    assert again == config
    assert torch.equal(again.restore(VOCAB, model.state_dict()).eval()(ids)[0], model(ids)[0])


def test_mamba2_130m_has_its_parameters() -> None:
    assert Mamba2Config().costs(50_288).parameters == 128_989_632


def test_untrained_weights_begin_as_mamba2_begins_them() -> None:
    torch.manual_seed(0)
    model: Any = Mamba2Config(layers=4, d_model=64, heads=2).build(VOCAB)
    mixer = model.layers[1].mixer
    step = F.softplus(mixer.step_bias_H)
    assert ((step >= 1e-3 - 1e-6) & (step <= 0.1 + 1e-6)).all()
    assert ((mixer.log_rate_H.exp() >= 1) & (mixer.log_rate_H.exp() <= 16)).all()
    assert (mixer.skip_H == 1).all()
    assert 0.12 < mixer.inward.weight.abs().max() <= 64**-0.5
    assert 0.04 < mixer.out.weight.abs().max() <= 128**-0.5 / 2
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_folders_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path) -> None:
    own = tmp_path / "own"
    saved(own)
    remedy = "name a folder that transformers' Mamba2ForCausalLM.save_pretrained or pipelines.export has written"

    def of(name: str, **values: Any) -> str:
        place = rewritten(own, tmp_path / name, ("time_step_limit",), **values)
        return refused(lambda: opened(place))

    assert "hidden_act=gelu, and only hidden_act=silu is computed here: name another model" in of(
        "gelu", hidden_act="gelu"
    )
    assert "step_limit=[0, {}], which is no size" in of("end", time_step_limit=[0, {}])
    assert "model.step_limit is (0.5, 0.1)" in of("turned", time_step_limit=[0.5, 0.1])
    assert f"step_limit=short, which is no size: {remedy}" in of("limit", time_step_limit="short")
    assert "'mamba', not of a Mamba-2" in of("mamba", model_type="mamba")
    assert "num_heads=None" in of("unsized", num_heads=None)
    assert "lacks the weight 'layers.3." in of("more", num_hidden_layers=4)
    assert "lacks the weight 'layers.0.mixer.inward.bias'" in of("biased", use_bias=True)
    assert "embeddings of 31: prepare the store" in refused(lambda: opened(own, 40))
    assert "embeddings of 31: prepare the store" in refused(lambda: opened(own, 30))
    assert "give --model.key-dim 6; 0 takes the folder's number" in refused(lambda: opened(own, key_dim=8))
    with pytest.raises(ValueError, match="'mamba2', not of a Llama"):
        LlamaConfig(pretrained=str(own), window=8)


def test_a_window_that_chunks_do_not_divide_changes_no_result(tmp_path: Path) -> None:
    """Trained weights are scored with any window."""
    saved(tmp_path)
    ids = tokens(2, 24)
    expected = opened(tmp_path)(ids)[0]
    for window in (6, 12):
        assert opened(tmp_path, window=window).config.sizes.chunk == {6: 2, 12: 4}[window]
        torch.testing.assert_close(opened(tmp_path, window=window)(ids)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 2, "chunk": 2}, "model.window is 2, and model.conv 4 sees 3 earlier tokens: give --model.window 3"),
        ({"groups": 3}, "model.groups is 3: it must divide model.heads, 4"),
        ({"value_dim": 5}, "is 20: it must be a multiple of model.d_model, 24"),
        ({"norm_eps": -1.0}, "model.norm_eps is -1.0: it must be above 0"),
        ({"step_limit": (0.5, 0.1)}, "give the least step"),
        ({"step_limit": (0.1, math.inf)}, "give the least step"),
        ({"layers": -1}, "model.layers is -1"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"layers": 2, "d_model": 24, "heads": 4, "key_dim": 6, "value_dim": 12, "window": 8}
    with pytest.raises(ValueError, match=re.escape(message)):
        Mamba2Config(**sizes | {"chunk": 8} | change)
