"""A compiled model gives what an uncompiled one does, in one graph, also where it is watched. tests/pipelines/test_train.py has one
with State."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from common.choices import Compile, Recompute
from recur_models import (
    CachedStaircaseConfig,
    GPT2RecConfig,
    LlamaRecConfig,
    LSTMConfig,
    Mamba2Config,
    MemorizingConfig,
    ModelConfig,
    RecConfig,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalTransformerConfig,
    VanillaConfig,
    detach,
)
from recur_models.compiling import compile_model, is_compiled
from recur_models.core import Distances
from recur_models.health import watch
from recur_models.hidden import in_place_of_logits
from recur_models.layers import scores
from tests.recur_models.conftest import SIZE

VOCAB = 11


@pytest.mark.long
def test_compiled_equals_uncompiled() -> None:
    torch.compiler.reset()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(VanillaConfig(**SIZE | {"layers": 1}).build(VOCAB))
    names = list(models[1].state_dict())
    compile_model(models[1], "model")
    assert is_compiled(models[1]) and not is_compiled(models[0]) and list(models[1].state_dict()) == names
    tokens = torch.randint(VOCAB, (2, 2 * models[0].block))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            ours, theirs = (model(tokens, targets_BT=tokens)[0] for model in models)
            torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
            ours.sum().backward()
            theirs.sum().backward()
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_watching_changes_nothing_that_is_computed_nor_what_is_recomputed() -> None:
    torch.compiler.reset()
    model = RecConfig(**SIZE | {"layers": 1, "dropout": 0.1}, recurrent_layers=(1,), states=6).build(VOCAB)
    text = torch.randint(VOCAB, (2, 2 * model.block))
    given = text, None, None, text
    with watch(model.eval()) as uncompiled:
        model(*given)
    for layer in model.train().layers:
        layer.compile(backend="aot_eager")  # cuts the graph as the default does, and is quicker to start
    model.recompute = "layer"
    results = []
    for watched in (None, model):
        torch.manual_seed(3)
        with watch(watched, *given) as health:
            nats, _ = model(*given)
        nats.sum().backward()
        results.append([nats, *(p.grad for p in model.parameters())])
        model.zero_grad()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert model.training and health.metrics() == pytest.approx(uncompiled.metrics(), rel=1e-5)


CORE: Any = {"layers": 1, "d_model": 16, "heads": 2, "head_dim": 8, "mlp_dim": 24}
FAMILY: dict[str, ModelConfig] = {
    "staircase": StaircaseConfig(**CORE, chunk=4, passes=2),
    "cached-staircase": CachedStaircaseConfig(**CORE, chunk=4, passes=1, chunks=3),
    "transformer-xl": TransformerXLConfig(**CORE, window=4, span=6),
    "universal-transformer": UniversalTransformerConfig(**CORE, window=4, span=6, passes=2),
    "lstm": LSTMConfig(layers=1, d_model=16, window=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_layers_of_the_staircase_family_are_compiled_whole_and_once(name: str) -> None:
    """As dynamo sees them: it is what breaks graphs, and what compiles again for another shape. Documents begin in every second
    step: what a step compiles, the step after the next finds."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = FAMILY[name].build(VOCAB)
    text = torch.randint(VOCAB, (2, 3 * model.block))

    def steps() -> tuple[list[Tensor | None], list[int]]:
        """What comes of six, and how many graphs there are after each."""
        state = model.initial_state(2)
        tensors = []
        graphs = []
        for step in range(6):
            fresh = torch.zeros(2, 3, dtype=torch.bool)
            fresh[0, 1] = step % 2 == 1
            fresh[:, 0] = step == 0
            nats, state = model(text, state, fresh, text)
            nats.sum().backward()
            state = detach(state)
            tensors += [nats, *state.values()]
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        tensors += [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return tensors, graphs

    expected, none = steps()
    for layer in model.layers:
        layer.compile(backend="eager", fullgraph=name != "lstm")  # that one's kernel is behind a break
    found, graphs = steps()
    assert none[-1] == 0 < graphs[0] and graphs[3] == graphs[5] < 16
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


COMPILE: tuple[Compile, ...] = ("no", "layer")
REC: dict[str, Any] = {**SIZE, "layers": 1, "recurrent_layers": (1,), "states": 6, "dropout": 0.1}
DECODER: dict[str, Any] = {"layers": 1, "d_model": 16, "heads": 2, "mlp_dim": 24, "positions": 16, "dropout": 0.1}
WHOLE: dict[str, ModelConfig] = {
    "rec": RecConfig(**REC),
    "feedback": RecConfig(**REC | {"layers": 3, "recurrent_layers": (2,)}, feedback=True),
    "gpt2-rec": GPT2RecConfig(**DECODER, window=6, overlap=2, insert_layer=1, hidden=(8,)),
    "llama-rec": LlamaRecConfig(**DECODER, window=6, overlap=2, insert_layer=1, hidden=(8,), kv_heads=1),
    "layers": LlamaRecConfig(**DECODER, window=6, insert_layer=1, hidden=(8,), kv_heads=1, source="layer"),
    "mamba2": Mamba2Config(layers=1, d_model=16, heads=2, value_dim=16, key_dim=4, window=4, dropout=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("rec", "layer"),
        ("rec", "model"),
        ("feedback", "layer"),
        ("gpt2-rec", "model"),
        ("llama-rec", "layer"),
        ("layers", "model"),
        ("mamba2", "model"),
    ],
)
def test_after_the_second_segment_nothing_compiles_again(name: str, unit: Compile) -> None:
    """Whatever documents begin where, as training reads them: with gradients, State carried. Another number of lanes is a version
    more."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = WHOLE[name].build(VOCAB)
    compile_model(model, unit, "eager")  # as above: dynamo's part
    state = model.initial_state(2)
    graphs = []
    for segment in range(5):
        fresh = torch.zeros(2, 3, dtype=torch.bool)
        fresh[0, segment % 3] = True
        fresh[:, 0] = segment == 0
        text = torch.randint(VOCAB, (2, 3 * model.block))
        with torch._dynamo.config.patch(error_on_recompile=segment > 1):
            nats, state = model(text, state, fresh, text)
        nats.sum().backward()
        state = detach(state)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0 and graphs[1:] == [graphs[1]] * 4
    assert not torch._dynamo.utils.counters["graph_break"]
    with pytest.raises(RuntimeError), torch._dynamo.config.patch(error_on_recompile=True):
        model(text[:1], model.initial_state(1), fresh[:1], text[:1])  # no size is a variable


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["nothing", "layer"])
def test_a_compiled_model_with_feedback_reads_block_by_block_as_before(recompute: Recompute) -> None:
    """Loss, gradients and the hidden states of all layers, which compiled code cannot note."""
    torch.compiler.reset()
    text_BT = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    found: list[list[Tensor | None]] = []
    for unit in COMPILE:
        torch.manual_seed(0)
        model = RecConfig(**SIZE, recurrent_layers=(2,), states=6, feedback=True).build(VOCAB)
        model.recompute = recompute
        compile_model(model, unit, backend="aot_eager")
        assert is_compiled(model) == (unit != "no")
        nats_BT, _ = model(text_BT, targets_BT=text_BT)
        nats_BT.sum().backward()
        with torch.no_grad(), in_place_of_logits(layers=True) as hidden:
            states_BTX, _ = model(text_BT)
        assert hidden.widths == [SIZE["d_model"]] * 4
        found.append([nats_BT, states_BTX, *(parameter.grad for parameter in model.parameters())])
    plain, compiled = found
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_what_asks_a_tensor_for_a_value_says_so() -> None:
    """A break there is no error, and its sizes may be variables."""
    model = MemorizingConfig(**SIZE | {"layers": 2}, memory=8, top_k=2, memory_layer=1).build(VOCAB)
    assert not model.one_graph and [layer.one_graph for layer in model.layers] == [False, True]
    assert not FAMILY["staircase"].build(VOCAB).one_graph


def test_a_memory_that_fills_up_compiles_nothing_anew() -> None:
    """Else a run that resumes with a full memory would have other code than the one that filled it."""
    torch.compiler.reset()
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    model = MemorizingConfig(**SIZE | {"layers": 2}, memory=24, top_k=2, memory_layer=1).build(VOCAB)
    compile_model(model, "layer", backend=backend)
    text_BT = torch.randint(VOCAB, (2, 2 * model.block), generator=torch.Generator().manual_seed(0))
    state = None
    counts = []
    for _ in range(5):
        nats_BT, state = model(text_BT, state, None, text_BT)
        nats_BT.sum().backward()
        state = detach(state)
        counts.append(len(compiled))
    assert counts[0] > 0
    assert len(set(counts[1:])) == 1, counts  # the second segment's State has other strides


@pytest.mark.parametrize("recompute", ["nothing", "layer", "block"])
def test_compiled_layers_of_a_decoder_are_recomputed_under_autocast(recompute: Recompute) -> None:
    """The backward pass recomputes with the weights that the forward pass read."""
    torch.compiler.reset()
    gradients = []
    ids_BT = torch.randint(VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))
    units: tuple[Compile, ...] = ("no", "layer")
    for unit in units:
        torch.manual_seed(0)
        model = LlamaRecConfig(
            layers=2, d_model=24, heads=4, mlp_dim=32, positions=16, kv_heads=2, window=8, pretrained="none"
        ).build(VOCAB)
        model.recompute = recompute
        compile_model(model, unit, backend="aot_eager")
        with torch.autocast("cpu", torch.bfloat16):
            nats_BT, _ = model(ids_BT, None, None, ids_BT)
        nats_BT.mean().backward()
        gradients.append(model.layers[0].mlp["down_proj"].weight.grad)
    plain, compiled = gradients
    assert (plain - compiled).norm() <= 0.02 * plain.norm()


@pytest.mark.long
def test_gradients_of_a_compiled_staircases_values_are_right() -> None:
    """The backward pass wrote over the weights of attention, and then read a view of them."""
    torch.compiler.reset()
    x_BnD, factor_BnD = torch.randn(2, 2, 128, 64, generator=torch.Generator().manual_seed(0))
    gradients = []
    for unit in COMPILE:
        torch.manual_seed(0)
        config = StaircaseConfig(1, d_model=64, heads=2, head_dim=32, mlp_dim=320, dropout=0.0, chunk=64, passes=2)
        model = config.build(VOCAB)
        compile_model(model, unit)
        distances = Distances(model.distances_EP, itself=True)  # pyrefly: ignore
        y_BnD = model.layers[0](x_BnD, None, distances, distances.unseen(128, 128, x_BnD.device), None)
        gradients.append(torch.autograd.grad((y_BnD * factor_BnD).sum(), list(model.layers.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_gradients_of_the_keys_of_many_blocks_are_right_in_bfloat16() -> None:
    """inductor's transposed copies, several in one kernel, had other numbers in them."""
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    q_BHWE, k_BKHWE, weight_BKHWE = (
        torch.randn(2, *blocks, 4, 64, 64, generator=generator).bfloat16() for blocks in ((), (8,), (8,))
    )

    def score(q_BHWE: Tensor, k_BKHWE: Tensor) -> Tensor:
        return torch.stack([scores(q_BHWE, k_BHWE) for k_BHWE in k_BKHWE.unbind(1)], 1)

    inputs = [q_BHWE.requires_grad_(), k_BKHWE.requires_grad_()]
    gradients = [
        torch.autograd.grad((way(*inputs) * weight_BKHWE).sum(), inputs)
        for way in (score, torch.compile(score, fullgraph=True, dynamic=False))
    ]
    for one, other in zip(*gradients, strict=True):
        assert (other - one).norm() < 0.02 * one.norm()
