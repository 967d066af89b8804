"""Memory tokens: gradients against the restatement, and through a State that is not cut from the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from recur_models import ARMTConfig, RMTConfig
from recur_models.association import Association
from tests.recur_models.conftest import small_configs
from tests.recur_models.small_models import RESTATEMENTS, build, fresh_at, gradients, tokens

NAMES = ("rmt", "armt")


def spread(model: Any) -> Any:
    """The model with all its weights somewhat away from where they begin: some are zeros."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", [*NAMES, "armt, unit keys"])
def test_outputs_and_gradients_are_those_of_the_restatement(name: str) -> None:
    config: Any = small_configs()[name.partition(",")[0]]
    if name not in NAMES:
        config = replace(config, unit_keys=True)
    model = spread(build(config))
    text = tokens(1, 4 * model.block)
    targets = tokens(1, 4 * model.block, seed=2)
    nats, _ = model(text, None, None, targets)
    ours = torch.autograd.grad(nats.mean(), list(model.parameters()))
    logits = RESTATEMENTS[config.name](model).logits(text[0])
    torch.testing.assert_close(model(text)[0][0], logits, rtol=1e-5, atol=1e-5)
    theirs = torch.autograd.grad(F.cross_entropy(logits, targets[0]), list(model.parameters()))
    for (key, _), mine, other in zip(model.named_parameters(), ours, theirs, strict=True):
        assert other.abs().max() > 1e-5, key
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


CARRYING = [
    "mixers-delta", "mixers-householders", "mixers-mamba2", "mixers-mlstm", "mixers-rotary", "mixers-rwkv7",
    "mixers-slstm", "rec-lstm-dual-paper", "feedback-two-layers-meliad", "lstm", "staircase-masked",
    "cached_staircase-masked", "feedback_transformer-zeros", "gpt2_rec-overlap-2", "llama_rec-layers",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, *CARRYING])
def test_gradients_through_the_state_of_20_segments_are_those_of_one_pass(name: str) -> None:
    config = small_configs()[name]
    text = tokens(2, 20 * config.block)
    whole = gradients(spread(build(config)).double(), text, 20)
    segments = gradients(spread(build(config)).double(), text, 1, cut=False)
    cut = gradients(spread(build(config)).double(), text, 1)
    for key in whole:
        torch.testing.assert_close(segments[key], whole[key], rtol=1e-5, atol=1e-5)
    assert max(float((cut[key] - whole[key]).abs().max()) for key in cut) > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_a_blocks_tokens_see_earlier_blocks_through_the_memory_alone(name: str) -> None:
    model: Any = build(small_configs()[name])
    text = tokens(1, 3 * model.block)
    state = model(text[:, : 2 * model.block])[1]
    other = model((text[:, : 2 * model.block] + 1) % 31)[1]
    last = text[:, 2 * model.block :]
    unmarked = torch.zeros(1, 1, dtype=torch.bool)
    assert (model(last, state, unmarked)[0] - model(last, other, unmarked)[0]).abs().max() > 1e-3
    anew = model(last, state, ~unmarked)[0]
    assert torch.equal(anew, model(last, other, ~unmarked)[0]) and torch.equal(anew, model(last)[0])


def test_a_documents_start_puts_the_learned_memory_back() -> None:
    model: Any = build(small_configs()["rmt"])
    initial = model.initial_state(2)["states"]
    assert torch.equal(initial[0], model.initial_SD) and not initial.requires_grad
    text = tokens(2, 2 * model.block)
    nats, state = model(text, {"states": initial + 1.0}, fresh_at(2, 2, (1, 1)), text)
    alone = model(text[1:, model.block :])[1]
    torch.testing.assert_close(state["states"][1], alone["states"][0], rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(nats.sum(), model.initial_SD)[0].abs().max() > 0


def test_an_association_replaces_what_a_key_held_and_forgets_no_other() -> None:
    """Two keys that share no feature: the second value of one is found, and the other is as it was."""
    torch.manual_seed(0)
    model: Any = ARMTConfig(layers=1, d_model=8, heads=1, head_dim=8, mlp_dim=8, window=4, memory_dim=4).build(7)
    association = model.layers[0].association
    with torch.no_grad():
        association.query.weight.copy_(torch.eye(8)[:4])
        association.key_strength.weight.zero_()
        association.key_strength.weight[:4] = torch.eye(8)[:4]
        association.value.weight.copy_(torch.eye(8))
        association.strength_bias.fill_(30.0)
    x = torch.tensor([[1.0, 1, 0, 0, 1, 2, 3, 4], [-1.0, -1, 0, 0, 5, 6, 7, 8], [1.0, 1, 0, 0, -4, -3, -2, -1]])
    states = torch.zeros(1, *association.shape)
    for row in x:
        states = association.write(row[None, None], states)
    torch.testing.assert_close(association.read(x[None, 1:], states)[0], x[1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(association.read(x[None, :1], states)[0, 0], x[2], rtol=1e-4, atol=1e-4)


def test_unit_keys_keep_a_memory_small() -> None:
    """Without them, a memory that has little under a key makes much of it, and the next write takes that over."""
    largest = {}
    for unit_keys in (True, False):
        reached = []
        for seed in range(5):
            torch.manual_seed(seed)
            association = Association(64, 6, unit_keys).requires_grad_(False)
            torch.nn.init.normal_(association.value.weight, std=0.125)
            states = torch.zeros(16, *association.shape)
            for _ in range(16):
                states = association.write(3 * torch.randn(16, 1, 64), states)
            reached.append(float(states.abs().max()))
        largest[unit_keys] = max(reached)
    assert largest[False] > 5 * largest[True]


def test_memory_stays_of_one_size_over_many_blocks() -> None:
    """The final norm makes it, so that what a block adds counts as much in a book's last block as in its first."""
    model = RMTConfig(layers=1, d_model=16, heads=2, head_dim=8, mlp_dim=16, window=4, memory_tokens=2).build(31).eval()
    _, state = model(tokens(1, 400))
    torch.testing.assert_close(state["states"].square().mean(-1), torch.ones(1, 2), rtol=1e-3, atol=1e-3)


def test_autocast_changes_nothing_within_an_association() -> None:
    """Its products are of integers, which bfloat16 has exactly: all that differs then is what it computes of them."""
    torch.manual_seed(0)
    association = Association(4, 6)
    with torch.no_grad():
        for parameter in association.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    x_BnD = torch.randint(-1, 2, (2, 5, 4)).float()
    states_BPZ = torch.randn(2, *association.shape).abs()
    expected = association.read(x_BnD, states_BPZ), association.write(x_BnD, states_BPZ)
    with torch.autocast("cpu", torch.bfloat16):
        found = association.read(x_BnD, states_BPZ), association.write(x_BnD, states_BPZ)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_an_association_of_bfloat16_weights_adds_up_in_float32() -> None:
    model: Any = spread(build(small_configs()["armt"])).bfloat16()
    text = tokens(2, 64 * model.block)
    _, state = model(text)
    stored = model.initial_state(2)
    for segment in text.split(model.block, 1):
        _, stored = model(segment, stored, torch.zeros(2, 1, dtype=torch.bool))
    whole, parts = (each["layers.0.states"] for each in (state, stored))
    assert whole.dtype == torch.float32
    assert (parts - whole).norm() < 1e-5 * whole.norm()


def test_the_memory_tokens_are_the_recurrences_own_parameters() -> None:
    with torch.device("meta"):
        model = RMTConfig(layers=1, d_model=8, heads=2, head_dim=4, mlp_dim=8, window=4, memory_tokens=2).build(11)
    assert [id(each) for each in model.recurrent_parameters()] == [id(model.initial_SD)]
