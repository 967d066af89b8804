"""What must hold for every model, and the block-recurrent ones against a restatement of the equations that is not ours."""

from __future__ import annotations

import math
import weakref
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from recur_models import IGNORED, ModelConfig, Recompute, clear, detach
from recur_models.block_recurrent import RecConfig
from recur_models.gpt2 import GPT2Config
from recur_models.losses import hidden_states
from recur_models.mamba2_model import Mamba2Config
from recur_models.memory_tokens import ARMTConfig
from recur_models.mixers import MixersConfig
from recur_models.sliding_window import SlideConfig, XLConfig
from tests.recur_models.conftest import SIZE, small_configs
from tests.recur_models.naive import Masks
from tests.recur_models.small_models import RESTATEMENTS, VOCAB, build, fresh_at, gradients, kept, tokens


@pytest.mark.parametrize("config", small_configs().values(), ids=small_configs())
def test_equals_the_naive_restatement(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(1, 5 * model.block)
    logits, _ = model(text)
    torch.testing.assert_close(logits[0], RESTATEMENTS[config.name](model).logits(text[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("places", ["meliad", "usual"])
@pytest.mark.parametrize(
    "name", ["vanilla", "xl-paper", "memorizing-meliad", "rec-lstm-dual-meliad", "feedback-two-layers-paper"]
)
def test_dropout_is_where_the_restatement_has_it(name: str, places: str) -> None:
    config: Any = replace(small_configs()[name], dropout=0.3, dropout_places=places)  # pyrefly: ignore
    model = build(config)
    text = tokens(1, 3 * config.block)
    without = model(text)[0]
    torch.manual_seed(5)
    logits = model.train()(text)[0]
    masks = Masks(config, blocks=3, seed=5)
    torch.testing.assert_close(logits[0], RESTATEMENTS[config.name](model, masks).logits(text[0]), rtol=1e-4, atol=1e-5)
    assert (logits - without).abs().max() > 0.1
    assert {place for place, *_ in masks.of} == (
        {"normed", "weights", "mlp", "final"} if places == "meliad" else {"embedding", "attention", "hidden", "mlp"}
    )


def test_a_model_of_float16_weights_is_near_one_of_float32(config: ModelConfig) -> None:
    text = tokens(2, 5 * config.block)
    fresh = fresh_at(2, 5, (1, 3))
    whole = build(config)
    half = build(config).half()
    for kind in (whole, half):
        nats, _ = kind(text, kind.initial_state(2), fresh, text)
        nats.mean().backward()
    logits, state = half(text, half.initial_state(2), fresh)
    for name, tensor in state.items():
        adds_up = isinstance(config, (MixersConfig, Mamba2Config, RecConfig, ARMTConfig))
        wide = adds_up and name.endswith((".states", ".log_scale"))
        assert tensor.dtype in ((torch.float32,) if wide else (torch.float16, torch.bool, torch.int64)), name
    torch.testing.assert_close(logits.float(), whole(text, whole.initial_state(2), fresh)[0], rtol=0, atol=0.03)
    for (name, ours), theirs in zip(half.named_parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None and ours.grad.isfinite().all(), name
        assert theirs.grad is not None and (ours.grad - theirs.grad).norm() < 0.2 * theirs.grad.norm() + 1e-3, name


def test_training_in_bfloat16_gives_no_warning(config: ModelConfig, recwarn: pytest.WarningsRecorder) -> None:
    model = build(config).train()
    given = tokens(2, 3 * config.block)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nats, _ = model(given, model.initial_state(2), fresh_at(2, 3), given)
        nats.sum().backward()
    finally:
        torch.set_warn_always(always)
    assert not [str(warning.message) for warning in recwarn]


@pytest.mark.parametrize("name", ["rec-fixed-skip-meliad", "rec-lstm-dual-paper", "feedback-two-layers-meliad"])
def test_states_are_read_by_a_fused_kernel(name: str) -> None:
    model = build(small_configs()[name])
    text = tokens(2, 3 * model.block)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where it cannot be used
        model(text, None, None, text)[0].sum().backward()


@torch.no_grad()
def test_a_layer_in_the_place_of_the_sharing_one_is_read_whole() -> None:
    """As an adapter puts a trained copy there."""
    model, expected = (build(small_configs()["feedback-two-layers-paper"]) for _ in range(2))
    text = tokens(2, 3 * model.block)
    layer = deepcopy(model.layers[2])
    for parameter in layer.parameters():
        parameter.add_(0.1)
    model.layers[2] = layer
    expected.layers[2].load_state_dict(layer.state_dict())
    assert torch.equal(model(text)[0], expected(text)[0])


@torch.no_grad()
def test_a_pass_without_gradients_keeps_the_hidden_states_below_the_sharing_layer_of_one_block() -> None:
    model: Any = build(small_configs()["feedback-two-layers-paper"])
    made: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def note_what_is_alive(*_: object) -> None:
        alive.extend(output() is not None for output in made)

    model.layers[0].register_forward_hook(lambda _, __, output: made.append(weakref.ref(output[0])))
    model.at_once.register_forward_pre_hook(note_what_is_alive)
    model(tokens(2, 5 * model.block))
    assert len(made) == len(alive) == 5 and sum(alive) <= 1


def test_a_token_does_not_change_earlier_logits(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, 4 * model.block)
    logits, _ = model(text)
    for position in (0, model.block - 1, 2 * model.block + 1, 4 * model.block - 1):
        changed = text.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCAB
        again, _ = model(changed)
        assert torch.equal(again[:, :position], logits[:, :position])
        assert not torch.equal(again[:, position], logits[:, position])


def test_any_split_into_segments_equals_one_pass(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, 6 * model.block)
    fresh = fresh_at(2, 6, (0, 2), (1, 5))
    whole, end = model(text, model.initial_state(2), fresh)
    for split in ((1, 1, 1, 1, 1, 1), (3, 3), (1, 4, 1), (5, 1)):
        state = model.initial_state(2)
        parts = []
        segments = text.split([blocks * model.block for blocks in split], 1)
        for piece, begins in zip(segments, fresh.split(split, 1), strict=True):
            logits, state = model(piece, detach(state), begins)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5, msg=lambda m, s=split: f"{s}: {m}")
        for name in end:
            torch.testing.assert_close(state[name], end[name], rtol=1e-5, atol=1e-5)


def test_fresh_in_the_middle_equals_starting_anew(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, 6 * model.block)
    logits, state = model(text, model.initial_state(2), fresh_at(2, 6, (1, 3)))
    alone, alone_state = model(text[1:, 3 * model.block :])
    torch.testing.assert_close(logits[1, 3 * model.block :], alone[0], rtol=1e-5, atol=1e-5)
    for name in state:
        torch.testing.assert_close(state[name][1], alone_state[name][0], rtol=1e-5, atol=1e-5)
    undisturbed, _ = model(text)
    assert torch.equal(logits[0], undisturbed[0])


def test_a_document_that_begins_a_segment_is_not_reached_by_a_state_of_nan(config: ModelConfig) -> None:
    """Within a segment, NaN reaches a later document of its lane in models that multiply State by 0."""
    model = build(config)
    text = tokens(2, 3 * model.block)
    with torch.no_grad():
        _, state = model(text)
    cleared = clear(state, model.initial_state(2), lanes_B=torch.tensor([False, True]))
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor[1] = math.nan
    fresh = torch.tensor([[False, False, False], [True, False, True]])
    logits, after = model(text, state, fresh)
    anew, after_anew = model(text, cleared, fresh)
    assert torch.equal(logits, anew)
    for name in after:
        assert torch.equal(after[name], after_anew[name]), name


def test_the_initial_state_is_that_of_a_fresh_document(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, 3 * model.block)
    unmarked = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(model(text, model.initial_state(2), unmarked)[0], model(text)[0])


def test_lanes_do_not_see_each_other(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(3, 3 * model.block)
    together, _ = model(text)
    for lane in range(3):
        torch.testing.assert_close(model(text[lane : lane + 1])[0][0], together[lane], rtol=1e-5, atol=1e-5)


def test_nats_are_the_cross_entropy_of_the_logits(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, 2 * model.block)
    targets = tokens(2, 2 * model.block, seed=2)
    targets[1, 3:] = IGNORED
    nats, _ = model(text, None, None, targets)
    expected = F.cross_entropy(model(text)[0].flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(nats.flatten(), expected, rtol=1e-5, atol=1e-5)


def test_hidden_states_are_what_the_logits_are_made_of(config: ModelConfig) -> None:
    model: Any = build(config)
    text = tokens(2, 3 * model.block)
    fresh = fresh_at(2, 3, (1, 2))
    with torch.no_grad():
        hidden, state = hidden_states(model, text, model.initial_state(2), fresh)
        logits, after = model(text, model.initial_state(2), fresh)
        output = getattr(model, "output", None)  # None where the embedding is it
        made = hidden @ model.embedding.weight.T if output is None else output(hidden)
    assert hidden.shape == (*text.shape, model.embedding.embedding_dim)
    torch.testing.assert_close(made, logits, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(state[name], after[name]) for name in after)


@pytest.mark.parametrize("recompute", ["layer", "block"])
def test_recomputing_changes_no_result(config: ModelConfig, recompute: Recompute) -> None:
    if recompute not in config.recomputes:
        pytest.skip("this model does not offer it")
    text = tokens(2, 5 * config.block)
    fresh = fresh_at(2, 5, (1, 3))
    changed: Any = replace(config, **dict[str, Any](dropout=0.1 if recompute == "layer" else 0.0))
    models = [build(changed).train() for _ in range(2)]
    models[1].recompute = recompute
    results = []
    for model in models:
        torch.manual_seed(3)  # the same dropout; by blocks, its draws come in another order
        nats, state = model(text, model.initial_state(2), fresh, text)
        nats.sum().backward()
        results.append((nats, state, {name: p.grad for name, p in model.named_parameters()}))
    (nats, state, grads), (nats_again, state_again, grads_again) = results
    torch.testing.assert_close(nats_again, nats, rtol=1e-5, atol=1e-5)
    for name in state:
        torch.testing.assert_close(state_again[name], state[name], rtol=1e-5, atol=1e-5)
    for name in grads:
        torch.testing.assert_close(grads_again[name], grads[name], rtol=1e-4, atol=1e-5)


def test_the_attention_window_is_no_block_that_nothing_attends_to() -> None:
    windows = {name: config.attention_window for name, config in small_configs().items()}
    assert {name for name, window in windows.items() if not window} == {
        *("lstm", "mamba2-tied", "mamba2-groups"),
        *("mixers-delta", "mixers-state-tracker", "mixers-mlstm", "mixers-rwkv7-negative"),
    }
    assert windows["slide-meliad"] == windows["rmt"] == windows["mixers-slstm"] == 4
    assert windows["transformer_xl-zeros"] == windows["feedback_transformer-zeros"] == 6
    assert windows["staircase-zeros"] == 12 and windows["cached_staircase-zeros"] == 16
    assert GPT2Config(window=20, overlap=4).attention_window == 20


@pytest.mark.parametrize("recompute", ["nothing", "layer", "block"])
def test_memory_is_linear_in_the_segment_and_smaller_when_recomputed(recompute: Recompute) -> None:
    model = RecConfig(**SIZE | {"window": 16}, recurrent_layers=(2,), states=16).build(VOCAB)
    model.recompute = recompute
    few = kept(model, 4)
    some = kept(model, 8)
    many = kept(model, 16)
    assert (many - some) / (some - few) == pytest.approx(2, rel=0.01)
    model.recompute = "nothing"
    assert recompute == "nothing" or many < kept(model, 16) / 4


def test_state_holds_no_more_memory_than_it_shows(config: ModelConfig) -> None:
    model = build(config)
    _, state = model(tokens(2, 6 * model.block))
    for tensor in state.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_xl_is_step_by_step_whatever_the_segment() -> None:
    text = tokens(2, 4 * SIZE["window"])
    whole = gradients(build(XLConfig(**SIZE)), text, 4)
    stepped = gradients(build(XLConfig(**SIZE)), text, 1)
    uncut = gradients(build(XLConfig(**SIZE)), text, 1, cut=False)
    slide = gradients(build(SlideConfig(**SIZE)), text, 4)
    slide_stepped = gradients(build(SlideConfig(**SIZE)), text, 1)
    for name in whole:
        torch.testing.assert_close(whole[name], stepped[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(uncut[name], stepped[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(slide_stepped[name], stepped[name], rtol=1e-4, atol=1e-5)
    assert max(float((slide[name] - whole[name]).abs().max()) for name in whole) > 0.1  # slide's reach further back


def test_state_follows_the_model(config: ModelConfig) -> None:
    model = build(config).double()
    _, state = model(tokens(2, model.block))
    initial = model.initial_state(2)
    assert state.keys() == initial.keys()
    for name, tensor in state.items():
        assert tensor.shape == initial[name].shape and tensor.dtype == initial[name].dtype and tensor.shape[0] == 2
        assert tensor.dtype in (torch.float64, torch.bool, torch.int64)


def test_restored_from_its_weights_it_is_the_same(config: ModelConfig) -> None:
    model = build(config)
    torch.manual_seed(7)
    drawn = torch.get_rng_state()
    again = config.restore(VOCAB, model.state_dict()).eval()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]
    text = tokens(2, 3 * model.block)
    assert torch.equal(again(text)[0], model(text)[0])


def test_bad_input_is_refused_in_a_sentence(config: ModelConfig) -> None:
    model = build(config)
    with pytest.raises(ValueError, match=r"tokens have shape \(4,\): give \[lanes, tokens\]"):
        model(tokens(1, model.block)[0])
    with pytest.raises(ValueError, match="not a multiple of the block of 4"):
        model(tokens(2, 2 * model.block + 1))
    with pytest.raises(ValueError, match="fresh has shape"):
        model(tokens(2, 2 * model.block), None, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"fresh has shape .* of int64"):
        model(tokens(2, 2 * model.block), None, torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="nothing to read"):
        model(tokens(2, 0), None, torch.zeros(2, 0, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"targets have shape \(1, 4\), but tokens \(2, 4\)"):
        model(tokens(2, model.block), targets_BT=tokens(1, model.block))
    with pytest.raises(ValueError, match="State is of another model"):
        model(tokens(2, model.block), {**model.initial_state(2), "layers.7.keys": torch.zeros(2)})
    if model.initial_state(1):
        with pytest.raises(ValueError, match="for 3 lanes"):
            model(tokens(3, model.block), model.initial_state(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "model.layers is 0"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"dropout": -0.1}, "model.dropout is -0.1: it must be at least 0"),
        ({"states": 0}, "model.states is 0"),
        ({"layers": 12.5}, "model.layers is 12.5: it must be a whole number"),
        ({"layers": "4"}, "model.layers is '4'"),
        ({"dropout": None}, "model.dropout is None: it must be a number"),
        ({"dropout": math.nan}, "model.dropout is nan"),
        ({"cell": "tripple"}, "model.cell is 'tripple': it must be one of dual, single, skip"),
        ({"gate": "gru"}, "model.gate is 'gru'"),
        ({"recurrent_layers": 2}, "model.recurrent_layers is 2: it must be a list"),
        ({"recurrent_layers": (4,)}, "names layer 4"),
        ({"recurrent_layers": ()}, "one or more different layers"),
        ({"recurrent_layers": (2, 2)}, "one or more different layers"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, Any] = {**SIZE, "recurrent_layers": (2,), **change}
    with pytest.raises(ValueError, match=message):
        RecConfig(**fields)


def test_in_the_shortest_segment_every_parameter_gets_a_gradient(config: ModelConfig) -> None:
    model = build(config)
    text = tokens(2, config.least_blocks * model.block)
    model(text, None, None, text)[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
