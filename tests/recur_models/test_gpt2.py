"""GPT-2 against transformers' own, windows that overlap, what a window leaves to the next, and weights out of folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from common.choices import Recompute
from recur_models import GPT2Config, GPT2RecConfig, LlamaRecConfig, RecurrentModel, model_from_json
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.pretrained_weights import eos_ids_of
from tests.recur_models.small_models import VOCAB, kept, tokens
from tests.recur_models.small_pretrained import refused, rewritten

# Untyped: decorators that no checker follows make some of what transformers' classes have.
THEIRS: Any = import_module("transformers.models.gpt2.modeling_gpt2")
GPT2LMHeadModel = THEIRS.GPT2LMHeadModel
TheirConfig = THEIRS.GPT2Config

SMALL: dict[str, Any] = {"layers": 3, "d_model": 24, "heads": 2, "mlp_dim": 40, "positions": 32, "dropout": 0.0}


def saved(folder: Path, **options: Any) -> Any:
    """A tiny GPT-2 of transformers' that has been saved there, its weights large enough for logits that differ."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 3, "n_embd": 24, "n_head": 2, "n_positions": 32, "initializer_range": 0.2}
    theirs: Any = GPT2LMHeadModel(
        TheirConfig(vocab_size=VOCAB, eos_token_id=VOCAB - 1, bos_token_id=VOCAB - 1, **sizes)
    )
    theirs.eval().save_pretrained(folder, **options)
    return theirs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights") / "gpt2"
    saved(place)
    return place


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return GPT2LMHeadModel.from_pretrained(folder).eval()


@torch.no_grad()
@pytest.mark.parametrize("vocab_size", [VOCAB, VOCAB + 1])
@pytest.mark.parametrize("kind", [GPT2Config, GPT2RecConfig])
def test_a_first_window_has_the_logits_of_transformers(
    kind: type[GPT2Config], vocab_size: int, folder: Path, theirs: Any
) -> None:
    model = kind(pretrained=str(folder), window=32).build(vocab_size).eval()
    ids = tokens(2, 32)
    logits = model(ids)[0]
    expected = theirs(ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(logits[..., :VOCAB], expected, rtol=0, atol=1e-6 * expected.abs().max().item())
    if vocab_size > VOCAB:  # begin-of-document begins as the folder's mark between documents
        assert torch.equal(logits[..., VOCAB], logits[..., VOCAB - 1])


@torch.no_grad()
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_token_is_predicted_once_from_its_window(data: st.DataObject, folder: Path, theirs: Any) -> None:
    window = data.draw(st.integers(1, 12), "window")
    overlap = data.draw(st.integers(0, window - 1) | st.just(window - 1), "overlap")
    ids = tokens(2, data.draw(st.integers(1, 30), "length"))
    model = GPT2Config(pretrained=str(folder), window=window, overlap=overlap).build(VOCAB).eval()
    stride = window - overlap
    filled = torch.nn.functional.pad(ids, (0, -ids.shape[1] % stride))
    logits, _ = model(filled)
    assert logits.shape[1] == filled.shape[1]
    for place in range(ids.shape[1]):  # token by token
        first = max(place // stride * stride - overlap, 0)
        assert place - first < window
        if overlap == window - 1:
            assert first == max(place - window + 1, 0)
        expected = theirs(ids[:, first : place + 1]).logits[:, -1]
        torch.testing.assert_close(logits[:, place], expected, rtol=0, atol=1e-5)


def recurrent(**fields: Any) -> RecurrentModel:
    torch.manual_seed(0)
    return GPT2RecConfig(**SMALL | {"window": 8, "overlap": 3} | fields).build(VOCAB)


@pytest.mark.parametrize("recompute", ["nothing", "block"])
def test_what_a_window_leaves_gets_gradients_through_20_windows(recompute: Any) -> None:
    model: Any = recurrent().double()
    model.recompute = recompute
    ids = tokens(2, 20 * model.block)
    left = []
    model.recurrence.register_forward_hook(lambda *given: left.append(given[2]))
    state = model.initial_state(2)
    before = state["states"].requires_grad_()
    state["states_count"] += 1
    nats, _ = model(ids, state, torch.zeros(2, 20, dtype=torch.bool), ids)
    assert len(left) == 20
    (gradient,) = torch.autograd.grad(nats[:, -1].sum(), before, retain_graph=True)
    assert gradient.abs().amax() > 0 and gradient.isfinite().all()
    if recompute == "nothing":
        for state in torch.autograd.grad(nats[:, -1].sum(), left[:-1]):
            assert state.abs().amax() > 0


@pytest.mark.parametrize("d_model", [24, 96])
def test_between_windows_little_is_kept(d_model: int) -> None:
    model = recurrent(window=24, overlap=8, d_model=d_model)
    lanes = 2
    block = 16
    model.recompute = "block"
    few, some, many = (kept(model, blocks) for blocks in (5, 20, 60))
    drawn = torch.get_rng_state().nbytes  # for dropout, once a window
    returned = block * (8 + 4)  # ids and nats
    for more, blocks in ((some - few, 15), (many - some, 40)):
        assert (
            4 * d_model <= (more / blocks - drawn) / lanes - returned <= 4 * d_model + 64
        )  # h_prev; the paper counts z too
    model.recompute = "nothing"
    assert kept(model, 20) > 30 * some


@pytest.mark.parametrize(("recompute", "times"), [("nothing", 1), ("layer", 1), ("block", 5)])
def test_embeddings_and_losses_are_made_once_a_segment(recompute: Recompute, times: int) -> None:
    model = recurrent(window=24, overlap=8)
    model.recompute = recompute
    ids = tokens(2, 5 * model.block)
    made: list[str] = []
    for name in ("embedding", "final_norm"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: made.append(name))
    model(ids, None, None, ids)
    assert sorted(made) == ["embedding"] * times + ["final_norm"] * times


PAPERS = {0: 1.75e8, 5: 1.78e8, 10: 1.81e8, 30: 1.94e8, 50: 2.10e8, 75: 2.33e8, 100: 2.62e8, 150: 3.50e8, 200: 5.25e8}
"""FLOPs per token by overlap, windows of 300 (Table 2)."""


def paper_flops_per_token(config: GPT2Config) -> float:
    """FLOPs per token as Tables 1 and 2 of the paper print them.

    Those of disjoint windows are the layers' matrix products and attention over the causal half, without output layer and
    recurrence: 1.754e8 for GPT-2 small and windows of 300. All nine rows are this number as printed, to three digits, times
    window / (window − overlap): the cost of all tokens of a window, over the tokens that it
    predicts. The exact numbers are 0.2 % more.
    """
    c = config.sized()
    layer = 8 * c.d_model**2 + 4 * c.d_model * c.mlp_dim + 4 * c.d_model * c.window / 2
    disjoint = float(f"{c.layers * layer:.2e}")
    return disjoint * c.window / c.block


@pytest.mark.parametrize(("overlap", "flops"), PAPERS.items())
def test_flops_per_token_are_the_papers(overlap: int, flops: float) -> None:
    for kind in (GPT2Config, GPT2RecConfig):
        config = kind(window=300, overlap=overlap)
        assert f"{paper_flops_per_token(config):.2e}" == f"{flops:.2e}"
        exact = config.costs(50_257).flops_per_token - 2 * 768 * 50_257
        assert exact == pytest.approx(flops, rel=0.005)  # recurrence included: it costs next to nothing


def test_gpt2_small_has_its_parameters() -> None:
    assert GPT2Config().costs(50_257).parameters == 124_439_808


class Casts(TorchDispatchMode):
    """Counts the casts of some tensors to bfloat16."""

    def __init__(self, tensors: Iterable[Tensor]):
        super().__init__()
        self.counts = dict.fromkeys((tensor.data_ptr() for tensor in tensors), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cast = func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") == torch.bfloat16
        if cast and args[0].data_ptr() in self.counts:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("trained", ["all", "recurrence"])
@pytest.mark.parametrize("config", [GPT2RecConfig, LlamaRecConfig])
def test_a_projection_is_cast_once_for_all_windows(config: Any, trained: str) -> None:
    heads = {"heads": 2, "kv_heads": 1} if config is LlamaRecConfig else {"heads": 2}
    sizes = {**heads, "layers": 2, "d_model": 16, "mlp_dim": 32, "positions": 32, "dropout": 0.0}
    model = config(**sizes, window=8, trained=trained).build(VOCAB)
    projections = [each for each in model.layers.parameters() if each.dim() > 1]
    expected, _ = model(tokens(2, 32))
    with torch.autocast("cpu", torch.bfloat16), Casts(projections) as casts:
        found, _ = model(tokens(2, 32))
    assert list(casts.counts.values()) == [1] * len(projections)
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


def test_frozen_weights_stay_as_they_are() -> None:
    model = recurrent(trained="recurrence")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("recurrence.")}
    ids = tokens(2, 20)
    model(ids, None, None, ids)[0].sum().backward()
    assert all((parameter.grad is not None) == (name in trained) for name, parameter in model.named_parameters())


def test_pooling_leaves_out_what_is_not_there() -> None:
    for pooling in ("mean", "max", "attention"):
        model: Any = recurrent(pooling=pooling)
        x = torch.randn(1, 6, 24)
        there = torch.tensor([[False, False, True, True, True, True]])
        other = torch.cat([torch.randn(1, 2, 24), x[:, 2:]], 1)
        assert torch.equal(model.recurrence.pool(x, there), model.recurrence.pool(other, there))


def test_a_folder_is_named_for_workers_elsewhere_with_sizes_and_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    unsized = GPT2Config(pretrained=folder.name, window=8)
    sizes: dict[str, Any] = {name: getattr(unsized, name) for name in SMALL if name != "dropout"}
    assert GPT2Config(pretrained=folder.name, window=8, **sizes) == unsized
    assert unsized.pretrained == str(folder.absolute())


def test_a_run_that_goes_on_needs_its_json_and_its_weights_alone(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "gpt2"
    shutil.copytree(folder, place)
    config = GPT2RecConfig(pretrained=str(place), window=8)
    model = config.build(VOCAB).eval()
    assert (config.layers, config.d_model, config.mlp_dim, config.positions) == (3, 24, 96, 32)
    values = json.loads(json.dumps(config.to_json()))
    weights = model.state_dict()
    shutil.rmtree(place)
    again = model_from_json(values)
    assert again == config
    assert torch.equal(again.restore(VOCAB, weights).eval()(tokens(2, 16))[0], model(tokens(2, 16))[0])
    with pytest.raises(ValueError, match="neither a folder here"):
        again.build(VOCAB)


def test_an_exported_model_is_pretrained_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(**SMALL, window=16)
    ids = tokens(2, 16)
    exported: Any = ThroughlineForCausalLM(ThroughlineConfig.of(config, VOCAB)).eval()
    exported.save_pretrained(tmp_path / "exported")
    for kind in (GPT2Config, GPT2RecConfig):
        model = kind(pretrained=str(tmp_path / "exported"), window=16, dropout=0.0).build(VOCAB).eval()
        torch.testing.assert_close(model(ids)[0], exported.model(ids)[0], rtol=0, atol=1e-6)


def test_an_exported_recurrence_is_taken_over_as_it_was_or_not_at_all(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2RecConfig(**SMALL, window=16, source="layer", insert_layer=2, hidden=(5,))
    exported: Any = ThroughlineForCausalLM(ThroughlineConfig.of(config, VOCAB)).eval()
    for parameter in exported.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    exported.save_pretrained(tmp_path / "exported")
    fields: dict[str, Any] = {"pretrained": str(tmp_path / "exported"), "window": 16, "dropout": 0.0}
    same = GPT2RecConfig(**fields, source="layer", insert_layer=2, hidden=(5,)).build(VOCAB).eval()
    ids = tokens(2, 32)
    torch.testing.assert_close(same(ids)[0], exported.model(ids)[0], rtol=0, atol=1e-6)
    assert "give --model.source layer --model.hidden 5" in refused(lambda: GPT2RecConfig(**fields).build(VOCAB))
    moved = GPT2RecConfig(**fields, source="layer", insert_layer=1, hidden=(5,))
    message = "another recurrence than the model: give --model.insert-layer 2"
    assert message in refused(lambda: moved.build(VOCAB))
    GPT2Config(**fields).build(VOCAB)  # without recurrence the decoder alone is taken over


def test_a_model_of_the_hubs_cache_ends_texts_as_its_folder_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    cached = tmp_path / "hub/models--someone--small"
    shutil.copytree(folder, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    config = GPT2Config(pretrained="someone/small", window=8)
    assert config.eos_token_ids == (VOCAB - 1,) and config.layers == 3 and config.pretrained == "someone/small"


def test_parts_of_weights_and_older_names_are_read(theirs: Any, tmp_path: Path) -> None:
    saved(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    saved(tmp_path / "bare")
    theirs.transformer.save_pretrained(
        tmp_path / "bare"
    )  # as the published files: without "transformer." and the output layer
    saved(tmp_path / "again", max_shard_size="20KB")
    saved(tmp_path / "again")  # leaves the index of parts that are gone
    for name in ("parts", "bare", "again"):
        model = GPT2Config(pretrained=str(tmp_path / name), window=16).build(VOCAB).eval()
        torch.testing.assert_close(model(tokens(1, 16))[0], theirs(tokens(1, 16)).logits, rtol=0, atol=1e-5)


def test_an_activation_may_have_its_other_name(folder: Path, tmp_path: Path) -> None:
    place = rewritten(folder, tmp_path / "tanh", activation_function="gelu_pytorch_tanh")
    expected = GPT2LMHeadModel.from_pretrained(place).eval()(tokens(1, 16)).logits
    model = GPT2Config(pretrained=str(place), window=16).build(VOCAB).eval()
    torch.testing.assert_close(model(tokens(1, 16))[0], expected, rtol=0, atol=1e-5)


def test_folders_that_do_not_fit_are_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    def changed(name: str, **values: Any) -> Path:
        return rewritten(folder, tmp_path / name, **values)

    def of(place: object, vocab_size: int = VOCAB, **fields: Any) -> Callable[[], object]:
        return lambda: GPT2Config(pretrained=str(place), window=8, **fields).build(vocab_size)

    assert "neither a folder here" in refused(of(tmp_path / "nowhere"))
    assert "neither a folder here" in refused(of("~nobody-here/gpt2"))
    assert "hf download gpt2-no-such --local-dir FOLDER" in refused(of("gpt2-no-such"))
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(of(tmp_path / "empty"))
    adapter = changed("adapter")
    (adapter / "config.json").rename(adapter / "adapter_config.json")
    assert "holds an adapter and no model: merge it first" in refused(of(adapter))
    run = changed("run", model_type=None)
    (run / "checkpoints").mkdir()
    assert f"{run} is a run: export it first" in refused(of(run))
    assert "name the folder that holds this file" in refused(of(folder / "model.safetensors"))
    assert "'llama', not of a GPT-2: give a preset of a llama" in refused(of(changed("llama", model_type="llama")))
    assert "activation_function=relu" in refused(of(changed("relu", activation_function="relu")))
    assert "n_layer=None" in refused(of(changed("unsized", n_layer=None)))
    assert "lacks the weight 'layers.3." in refused(of(changed("more", n_layer=4)))
    assert "of shape (72,), and this model of (144,)" in refused(of(changed("wide", n_embd=48)))
    assert "embeddings of 31: prepare the store" in refused(of(folder, 40))
    assert "cut them with model.resize_token_embeddings(29) and save" in refused(of(folder, 30))
    own_begin = changed("own-begin", begin_of_document_id=VOCAB - 1)
    of(own_begin)()
    assert "has embeddings of 31: prepare the store" in refused(of(own_begin, VOCAB + 1))  # it would get another row
    assert "31: prepare the store with --tokenizer" in refused(of(folder, 12))
    assert "cut them" not in refused(of(folder, 12))  # so many rows are no padding
    assert "n_embd=0, which is no size" in refused(of(changed("narrow", n_embd=0)))
    assert "give --model.layers 3; 0 takes the folder's number" in refused(of(folder, layers=2))
    unsafe = changed("unsafe")
    (unsafe / "model.safetensors").rename(unsafe / "pytorch_model.bin")
    assert "has pytorch_model.bin, which may run code" in refused(of(unsafe))
    saved(tmp_path / "parts-fetched", max_shard_size="20KB")
    lost = sorted((tmp_path / "parts-fetched").glob("*.safetensors"))[1]
    lost.unlink()
    assert f"has no {lost.name}: fetch it again" in refused(of(tmp_path / "parts-fetched"))
    (tmp_path / "parts-fetched/model.safetensors.index.json").write_text('{"weight_map": ["../other"]}')
    assert "names no weights" in refused(of(tmp_path / "parts-fetched"))
    for model in ("x", [1]):
        assert "of a model None" in refused(of(changed(f"ours-{model}", model_type="throughline", model=model)))
    weights = load_file(folder / "model.safetensors")
    name = "transformer.wte.weight"
    for kind, odd, message in (
        ("scalar", torch.tensor(1.0), "embeddings of 1: prepare the store"),
        ("infinite", weights[name] * torch.inf, "has values in embedding.weight that are not numbers"),
    ):
        save_file({**weights, name: odd}, changed(kind) / "model.safetensors", metadata={"format": "pt"})
        assert message in refused(of(tmp_path / kind))
    torn = changed("torn")
    (torn / "model.safetensors").write_bytes(b"nothing")
    assert refused(of(torn)).endswith(": fetch it again") and "model.safetensors cannot be read" in refused(of(torn))
    (torn / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "is a pointer of Git LFS, so run git lfs pull" in refused(of(torn))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlap": 8}, "a window has 8 tokens"),
        ({"overlap": -1}, "model.overlap is -1"),
        ({"window": 33}, "has only 32 positions"),
        ({"heads": 5}, "must divide model.d_model, 24"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"insert_layer": 4}, "there are 3 layers"),
        ({"embeddings": 0}, "model.embeddings is 0"),
        ({"source": "layer", "embeddings": 2}, "model.embeddings is 2, but with model.source layer it must be 1"),
        ({"source": "layer", "pooling": "max"}, "model.pooling is max, but with model.source layer it must be mean"),
        ({"hidden": (200, 0)}, "each size must be"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GPT2RecConfig(**SMALL, window=8), **change)


def test_begin_of_document_ends_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2, 10], "begin_of_document_id": 10}))
    assert eos_ids_of(tmp_path) == (2,)
