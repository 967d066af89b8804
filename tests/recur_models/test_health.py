"""The metrics on recurrence: against plain recomputation, and that a State that is not used shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recur_models import (
    FeedbackTransformerConfig,
    LSTMConfig,
    MemorizingConfig,
    ModelConfig,
    RecConfig,
    RecurrentModel,
    SlideConfig,
    StaircaseConfig,
)
from recur_models.gates import LSTMGate
from recur_models.health import Health, watch
from recur_models.lstm import LSTMLayer
from recur_models.pretrained_recurrence import Recurrence
from recur_models.protocol import RECURRENT, kind_of
from tests.recur_models.conftest import SIZE
from tests.recur_models.small_models import build, tokens


def metrics(model: RecurrentModel, blocks: int = 3) -> tuple[dict[str, float], str | None]:
    with watch(model) as health:
        model(tokens(2, blocks * model.block))
    return health.metrics(), health.warning()


def test_only_recurrent_models_have_metrics_and_all_are_sound(config: ModelConfig) -> None:
    model = build(config)
    found, warning = metrics(model)
    assert bool(found) == any(kind_of(name) in RECURRENT for name in model.initial_state(1))
    assert warning is None
    assert all(0 < value < (1 if name != "state_change" else 10) for name, value in found.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("cell", ["dual", "single", "skip"])
@pytest.mark.parametrize("gate", ["fixed", "lstm"])
def test_the_change_is_that_of_the_states_over_each_block(gate: str, cell: str) -> None:
    model = build(RecConfig(**SIZE, recurrent_layers=(2,), states=6, gate=gate, cell=cell))  # pyrefly: ignore
    text = tokens(2, 3 * model.block)
    state = model.initial_state(2)
    changes = []
    for block in text.split(model.block, dim=1):
        _, after = model(block, state)
        was = state["layers.1.states"]
        now = after["layers.1.states"]
        changes.append(((now - was).square().mean() / was.square().mean()).sqrt().item())
        state = after
    assert metrics(model)[0]["state_change"] == pytest.approx(sum(changes) / 3, rel=1e-5)


def test_the_openness_of_an_lstm_gate_is_the_share_of_the_candidate_that_is_let_in() -> None:
    model = build(RecConfig(**SIZE, recurrent_layers=(2,), states=6, gate="lstm", cell="skip"))
    gates = [module for module in model.modules() if isinstance(module, LSTMGate)]
    seen: list[float] = []

    def note(gate: LSTMGate, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(float(torch.sigmoid(gate.input(inputs[1]) - 1.0).mean()))  # equation 5

    for gate in gates:
        gate.register_forward_pre_hook(note)
    text = tokens(2, 3 * model.block)
    model(text)
    expected = sum(seen) / len(seen)
    assert 0.2 < expected < 0.35
    for gate in gates:
        gate._forward_pre_hooks.clear()
    assert metrics(model)[0]["gate_openness"] == pytest.approx(expected, rel=1e-5)


def test_states_that_are_not_read_or_not_changed_are_told_of() -> None:
    def model() -> RecurrentModel:
        return build(RecConfig(**SIZE, recurrent_layers=(2,), states=6))

    unread = model()
    frozen = model()
    with torch.no_grad():
        unread.get_parameter("layers.1.tokens.out.weight")[:, 24:] = 0.0  # behind the heads that read states
        frozen.get_parameter("layers.1.states.attention_gate.bias").fill_(30.0)
    found, warning = metrics(unread)
    assert found["state_share"] == 0.0 and warning is not None and "only 0.00% of the attention's output" in warning
    found, warning = metrics(frozen)
    assert found["gate_openness"] == pytest.approx(0, abs=1e-6)
    assert warning is not None and "a block changes it by only 0.00%" in warning


def test_what_clearing_the_state_costs_in_validation_decides_alone() -> None:
    model = build(RecConfig(**SIZE, recurrent_layers=(2,), states=6))
    with watch(model) as health:
        model(tokens(2, 2 * model.block))
    assert health.warning([0.01]) is None and health.warning() is None
    assert "clearing it changes validation by 0.0002 bits per token" in str(health.warning([0.01, -0.0001, 0.0002]))
    assert "another optim.lr, or --model.gate lstm of a rec, may help" in str(health.warning([0.0, 0.0]))
    health.sums["state_share"] *= 0.0
    assert health.warning([0.01]) is None and "only 0.00% of the attention's output" in str(health.warning())


@pytest.mark.parametrize(
    "worths",
    [
        pytest.param([0.0002], id="once"),
        pytest.param([0.0002, 0.004], id="not any more"),
        pytest.param([0.0002, 0.004, 0.0002], id="not in a row"),
        pytest.param([-0.01, -0.004], id="early on, a State that harms"),
    ],
)
def test_what_says_nothing_about_the_end_is_not_warned_of(worths: list[float]) -> None:
    assert Health().warning(worths) is None


def test_watching_changes_nothing() -> None:
    for config in (RecConfig(**SIZE, recurrent_layers=(2,), states=6, feedback=True), SlideConfig(**SIZE)):
        model = build(config)
        with watch(model):
            watched, _ = model(tokens(2, 8))
        assert torch.equal(watched, model(tokens(2, 8))[0])


def test_the_lstms_cell_keeps_small_additions_under_bfloat16_too() -> None:
    layer = LSTMLayer(LSTMConfig(layers=1, d_model=8, window=4, dropout=0.0))
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    input_gate, forget_gate, candidate, _ = dict(layer.lstm.named_parameters())["bias_ih_l0"].data.chunk(4)
    input_gate.fill_(-5.0)
    forget_gate.fill_(20.0)
    candidate.fill_(0.2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, state_B2D = layer(torch.zeros(1, 1024, 8), torch.ones(1, 2, 8))
    added = 1024 * torch.sigmoid(torch.tensor(-5.0)) * torch.tanh(torch.tensor(0.2))
    assert added > 1, "one by one, bfloat16 would add none of it"
    torch.testing.assert_close(state_B2D[:, 1], torch.full((1, 8), 1 + float(added)), rtol=1e-3, atol=0)


def test_the_change_of_an_lstms_states_is_against_those_before() -> None:
    model = LSTMConfig(layers=1, d_model=8, window=4, dropout=0.0).build(7)
    state = {name: torch.full_like(tensor, 10.0) for name, tensor in model.initial_state(1).items()}
    text = tokens(1, 4) % 7
    with torch.no_grad(), watch(model) as health:
        after = model(text, state)[1]
    ((name, before),) = state.items()
    change = (after[name] - before).square().mean().sqrt() / before.square().mean().sqrt()
    assert health.metrics()["state_change"] == pytest.approx(change.item(), rel=1e-5)


def test_a_change_is_that_of_lanes_that_had_a_state() -> None:
    before = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
    after = torch.tensor([[[3.0, 3.0]], [[50.0, 0.0]]])
    assert float(Recurrence.change(before, after)) == pytest.approx(0.2)
    assert float(Recurrence.change(torch.zeros_like(before), after)) == 1


def test_the_openness_of_a_feedback_transformer_is_the_layers_share_of_its_memories() -> None:
    model: Any = FeedbackTransformerConfig(
        layers=3, d_model=24, heads=2, head_dim=12, mlp_dim=40, span=6, window=4
    ).build(31)
    assert metrics(model)[0]["gate_openness"] == pytest.approx(3 / 4)  # the embedding weighs as much as each layer


def test_the_share_of_a_memory_is_its_gate() -> None:
    model: Any = MemorizingConfig(**SIZE, memory=12, memory_layer=2, top_k=5).build(31)
    with torch.no_grad():
        model.layers[1].gate_H.fill_(-2.0)
    assert metrics(model)[0]["state_share"] == pytest.approx(torch.sigmoid(torch.tensor(-2.0)).item())


def test_the_share_of_earlier_chunks_is_what_the_newest_pays_them() -> None:
    model: Any = StaircaseConfig(layers=2, d_model=24, heads=2, head_dim=12, mlp_dim=40, chunk=4, passes=2).build(31)
    with torch.no_grad():
        for layer in model.layers:
            layer.qkv.weight[:24] = 0.0  # queries: all that is seen weighs the same
    share = sum(4 / (5 + place) for place in range(4)) / 4  # four earlier keys, and those of the chunk up to its own
    expected = 4 * share / 5  # the last step drains one chunk alone
    assert metrics(model, blocks=4)[0] == {"state_share": pytest.approx(expected)}
