"""Hidden states of every model in transformers: AutoModel, all layers' states, and gradients with checkpointing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM

from recur_models import ModelConfig
from recur_models.hf import ThroughlineForCausalLM, ThroughlineModel
from recur_models.hidden import in_place_of_logits
from recur_models.losses import hidden_states
from recur_models.protocol import RecurrentModel, State
from recur_models.sliding_window import SlideConfig
from recur_models.vanilla import VanillaConfig, VanillaTransformer
from tests.recur_models.conftest import SIZE
from tests.recur_models.small_exports import representatives, text, wrap
from tests.recur_models.small_models import VOCAB

LENGTH = 15  # three blocks and a part of one
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=representatives().items(), ids=lambda item: item[0])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param[1]


@pytest.fixture
def model(config: ModelConfig) -> Any:
    return wrap(config)


def base_of(model: ThroughlineForCausalLM) -> Any:
    """The same model and weights, without logits."""
    base = ThroughlineModel(model.config).eval()
    base.load_state_dict(model.state_dict())
    return base


def depth(model: RecurrentModel) -> int:
    """Layers that a token passes, those that it passes again among them."""
    config: Any = model.config
    return len(model.layers) * getattr(config, "passes", 1)


def last_states(model: RecurrentModel, ids: Tensor) -> Tensor:
    """What `pipelines.embed` reads."""
    filled = torch.nn.functional.pad(ids, (0, -ids.shape[1] % model.block))
    return hidden_states(model, filled)[0][:, : ids.shape[1]]


@torch.no_grad()
def test_all_layers_states_with_and_without_the_cache(model: Any) -> None:
    ids = text(2, LENGTH)
    expected = model(ids).logits
    whole = model(ids, use_cache=False, output_hidden_states=True)
    torch.testing.assert_close(whole.logits, expected, **CLOSE)
    states = whole.hidden_states
    assert len(states) == depth(model.model) + 1
    assert {state.shape for state in states} == {(2, LENGTH, SIZE["d_model"])}
    embedded = model.model.embedding(ids)
    positions = getattr(model.model, "positions", None)
    if positions is not None:  # GPT-2's, of the first window
        embedded = embedded[:, :4] + positions.weight[:4]
    torch.testing.assert_close(states[0][:, : embedded.shape[1]], embedded, **CLOSE)
    torch.testing.assert_close(states[-1], last_states(model.model, ids), **CLOSE)
    assert all(not torch.allclose(one, next_, atol=1e-2) for one, next_ in pairwise(states))

    parts = []
    cache = None
    for part in ids.split([6, 1, 8], 1):
        made = model(part, past_key_values=cache, use_cache=True, output_hidden_states=True, logits_to_keep=1)
        assert made.logits.shape[1] == 1
        cache = made.past_key_values
        parts.append(made.hidden_states)
    for of_parts, state in zip(zip(*parts, strict=True), states, strict=True):
        torch.testing.assert_close(torch.cat(of_parts, 1), state, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["vanilla", "slide", "xl", "memorizing", "rec-other", "transformer-xl"])
def test_states_are_what_enters_the_layers(name: str) -> None:
    model = wrap(representatives()[name])
    entered = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    states = model(text(2, 12), use_cache=False, output_hidden_states=True).hidden_states
    for inputs, state in zip(entered, states, strict=False):
        torch.testing.assert_close(inputs.flatten(1, -2), state, **CLOSE)
    assert len(entered) == len(states) - 1


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_padding_on_either_side_changes_no_state(model: Any, use_cache: bool) -> None:
    base = base_of(model)
    ids = text(3, 11)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # on the left
    mask[1, 8:] = 0  # on the right
    found = base(ids, attention_mask=mask, use_cache=use_cache, output_hidden_states=True)
    assert (found.past_key_values is not None) == use_cache
    for lane in range(3):
        own = mask[lane].bool()
        alone = base(ids[lane, own][None], use_cache=False, output_hidden_states=True)
        torch.testing.assert_close(found.last_hidden_state[lane, own], alone.last_hidden_state[0], **CLOSE)
        for together, state in zip(found.hidden_states, alone.hidden_states, strict=True):
            torch.testing.assert_close(together[lane, own], state[0], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["slide", "lstm", "llama", "staircase"])
def test_auto_model_opens_a_saved_model_and_back(name: str, tmp_path: Path) -> None:
    model = wrap(representatives()[name])
    ids = text(2, LENGTH)
    model.save_pretrained(tmp_path / "first")
    base = AutoModel.from_pretrained(tmp_path / "first")
    assert type(base) is ThroughlineModel
    torch.testing.assert_close(base(ids).last_hidden_state, last_states(model.model, ids), **CLOSE)
    base.model.embedding.weight.mul_(1.5)
    base.save_pretrained(tmp_path / "tuned")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert type(again) is ThroughlineForCausalLM
    for name, tensor in base.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    torch.testing.assert_close(last_states(again.model, ids), base(ids).last_hidden_state, **CLOSE)


@pytest.fixture
def slide() -> Any:
    return wrap(SlideConfig(**SIZE))


def test_what_transformers_passes_for_hidden_states(slide: Any) -> None:
    ids = text(2, 5)
    plain = slide(ids, output_hidden_states=False)
    assert plain.hidden_states is None
    base = base_of(slide)
    last = base(ids, return_dict=False)[0]
    torch.testing.assert_close(last, base(ids).last_hidden_state)
    assert base(ids).hidden_states is None
    made = slide.generate(
        ids, max_new_tokens=3, do_sample=False, output_hidden_states=True, return_dict_in_generate=True
    )
    assert [states[-1].shape[1] for states in made.hidden_states] == [5, 1, 1]
    labelled = slide(ids, labels=ids, output_hidden_states=True)
    torch.testing.assert_close(labelled.loss, slide(ids, labels=ids).loss)
    slide.config.output_hidden_states = True
    assert len(slide(ids).hidden_states) == SIZE["layers"] + 1
    slide.config.output_attentions = True
    with pytest.raises(ValueError, match=r"config.output_attentions is set, but"):
        slide(ids)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"labels": torch.ones(2, 5)}, TypeError, "unexpected argument 'labels'"),
        ({"logits_to_keep": 1}, TypeError, "unexpected argument 'logits_to_keep'"),
        ({"output_attentions": True}, ValueError, "output_attentions is given"),
        ({"input_ids": None}, ValueError, "give input_ids"),
    ],
)
def test_other_arguments_are_refused_by_name(
    slide: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        base_of(slide)(**{"input_ids": text(2, 5), **arguments})


def test_a_model_that_notes_no_layer_gives_its_last_state_alone() -> None:
    class Silent(VanillaTransformer):
        def stack(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
            return x_BTD, state

    config = VanillaConfig(**SIZE)
    base = base_of(wrap(config))
    base.model = Silent(config, VOCAB)
    assert base(text(2, 5), use_cache=False).last_hidden_state.shape == (2, 5, SIZE["d_model"])
    with pytest.raises(ValueError, match=r"output_hidden_states is given, but a vanilla gives the last .* alone"):
        base(text(2, 5), use_cache=False, output_hidden_states=True)


@torch.no_grad()
def test_a_compiled_model_gives_hidden_states_too(slide: Any) -> None:
    compiled: Any = torch.compile(slide.model, backend="eager")
    ids = text(2, 8)
    logits = compiled(ids)[0]
    expected = slide(ids, use_cache=False, output_hidden_states=True).hidden_states
    with in_place_of_logits(layers=True) as found:
        made = compiled(ids)[0]
    for state, of_model in zip(made.split(found.widths, -1), expected, strict=True):
        torch.testing.assert_close(state, of_model, **CLOSE)
    torch.testing.assert_close(compiled(ids)[0], logits)


def test_another_thread_gets_logits(slide: Any) -> None:
    with in_place_of_logits():
        thread = ThreadPoolExecutor(1)
        assert thread.submit(slide.model, text(1, 4)).result()[0].shape == (1, 4, VOCAB)
        assert slide.model(text(1, 4))[0].shape == (1, 4, SIZE["d_model"])


def gradients(model: nn.Module, ids: Tensor) -> tuple[dict[str, Tensor], int]:
    """The gradients of the loss, and how many numbers the forward pass kept for them."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = model(ids, labels=ids).loss
    loss.backward()
    return {name: torch.as_tensor(parameter.grad) for name, parameter in model.named_parameters()}, kept


def test_gradient_checkpointing_keeps_less_and_changes_no_gradient(model: Any) -> None:
    model.train()
    ids = text(2, 20)
    expected, all_kept = gradients(model, ids)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    found, kept = gradients(model, ids)
    assert kept < 0.7 * all_kept
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, **CLOSE)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing and gradients(model, ids)[1] == all_kept


def test_checkpointing_is_refused_by_name(slide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, name in (
        ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, "use_reentrant is True"),
        ({"activation_checkpointing_kwargs": {"debug": True}}, "debug is given"),
        ({"every_n_layers": 2}, "every_n_layers is 2"),
        ({"offload": True}, "offload is True"),
    ):
        with pytest.raises(ValueError, match=name):
            slide.activation_checkpointing_enable(**options)
    assert not slide.is_activation_checkpointing
    slide.activation_checkpointing_enable({"use_reentrant": False})
    assert slide.is_activation_checkpointing
    slide.activation_checkpointing_disable()
    monkeypatch.setattr(SlideConfig, "recomputes", ("nothing",))
    with pytest.raises(ValueError, match="gradient_checkpointing is given, but a slide recomputes nothing: leave it"):
        slide.gradient_checkpointing_enable()
    assert not slide.is_activation_checkpointing
