"""The staircase family among itself, and against what the authors' code computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recur_models import (
    CachedStaircaseConfig,
    FeedbackTransformerConfig,
    RecurrentModel,
    StaircaseConfig,
    TransformerXLConfig,
    UniversalTransformerConfig,
)
from recur_models.core import Distances
from recur_models.transformer_sequential import model_from_params
from tests.recur_models.naive import under
from tests.recur_models.small_models import kept, tokens
from tests.shared_data import need

SIZE: dict[str, Any] = {"layers": 2, "d_model": 24, "heads": 2, "head_dim": 12, "mlp_dim": 40}
VOCAB = 31


@pytest.mark.parametrize("window", [1, 2])
def test_in_the_shortest_segment_every_weight_of_a_feedback_transformer_gets_a_gradient(window: int) -> None:
    config = FeedbackTransformerConfig(**SIZE, span=4, window=window)
    model = config.build(VOCAB)
    ids = tokens(2, config.least_blocks * window) % VOCAB
    model(ids, None, None, ids)[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def alike(ours: Any, theirs: Any) -> tuple[RecurrentModel, RecurrentModel]:
    """Two models with the same weights where they have the same names."""
    torch.manual_seed(0)
    one = ours.build(VOCAB).eval()
    other = theirs.build(VOCAB).eval()
    other.load_state_dict(one.state_dict(), strict=False)
    return one, other


@pytest.mark.parametrize("absent", ["zeros", "masked"])
def test_as_many_passes_as_chunks_are_a_staircase(absent: str) -> None:
    sizes: Any = {**SIZE, "absent": absent, "chunk": 4, "passes": 3}
    cached, plain = alike(CachedStaircaseConfig(**sizes, chunks=3), StaircaseConfig(**sizes))
    text = tokens(2, 20)
    assert torch.equal(cached(text)[0], plain(text)[0])


def test_one_chunk_and_one_pass_are_the_core() -> None:
    """Plain causal attention over the chunk, with the distances' embeddings."""
    model = StaircaseConfig(**SIZE, chunk=12, passes=1).build(VOCAB).eval()
    text = tokens(2, 12)
    x = model.embedding(text)
    layers = model.layers
    for layer in layers:
        q, k, v = layer.project(x)
        logits = q @ k.transpose(-1, -2)
        for a in range(12):
            for b in range(a + 1):
                logits[:, :, a, b] += q[:, :, a] @ model.distances_EP[:, 11 - (a - b)]
        weights = torch.softmax(logits.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf), -1)
        x = layer.finish(x, weights @ v)
    torch.testing.assert_close(model(text)[0], model.output(model.final_norm(x)), rtol=1e-5, atol=1e-5)


def test_chunks_of_one_token_cached_after_one_pass_see_what_a_feedback_transformer_sees() -> None:
    """All its weight on the last layer's output; it does not see itself, so it differs in that alone."""
    span = 5
    model = CachedStaircaseConfig(**SIZE, chunk=1, passes=1, chunks=span + 1).build(VOCAB).double().eval()
    feedback = FeedbackTransformerConfig(**SIZE, span=span, window=1).build(VOCAB).double().eval()
    text = tokens(1, 14)

    def reach(one: RecurrentModel) -> torch.Tensor:
        """Which logits each token changes."""
        base = one(text)[0]
        found = []
        for t in range(text.shape[1]):
            changed = text.clone()
            changed[:, t] += 1
            found.append((one(changed % VOCAB)[0] - base).abs().amax((0, 2)) > 0)
        return torch.stack(found)

    assert torch.equal(reach(model), reach(feedback))
    assert reach(model).triu().sum() == reach(model).sum() == 14 * 15 / 2  # everything before it, however far
    # One step, by hand: both see the memories of the span before them, and those alone.
    memories = torch.randn(1, span, SIZE["d_model"], dtype=torch.float64)
    state = {"states": memories, "states_count": torch.tensor([span])}
    staircase = {"states": memories[:, :, None], "states_count": torch.tensor([span])}
    for m in range(span):
        moved = memories.clone()
        moved[:, m] += 1
        ahead = feedback(text[:, :1], {**state, "states": moved})[0] - feedback(text[:, :1], state)[0]
        other = model(text[:, :1], {**staircase, "states": moved[:, :, None]})[0] - model(text[:, :1], staircase)[0]
        assert ahead.abs().max() > 0 and other.abs().max() > 0


def test_a_universal_transformer_is_one_with_the_same_weights_in_each_layer() -> None:
    universal = UniversalTransformerConfig(**SIZE | {"layers": 1}, passes=3, window=4, span=6).build(VOCAB)
    plain = TransformerXLConfig(**SIZE | {"layers": 3}, window=4, span=6).build(VOCAB)
    weights = universal.state_dict()
    plain.load_state_dict(
        {
            name: weights["layers.0." + name.split(".", 2)[2] if name.startswith("layers.") else name]
            for name in plain.state_dict()
        }
    )
    text = tokens(2, 16)
    assert torch.equal(universal(text)[0], plain(text)[0])


def test_information_passes_any_distance_through_a_staircase_and_not_through_a_stack() -> None:
    """Section 3.2: a stack of L layers reaches L spans back, a staircase as far as the text goes."""
    text = tokens(1, 60)
    changed = text.clone()
    changed[:, 0] += 1
    for config, reaches in (
        (StaircaseConfig(**SIZE, chunk=4, passes=2), True),
        (CachedStaircaseConfig(**SIZE, chunk=4, passes=1, chunks=2), True),
        (FeedbackTransformerConfig(**SIZE, span=8, window=4), True),
        (TransformerXLConfig(**SIZE, span=8, window=4), False),
    ):
        torch.manual_seed(0)
        model = config.build(VOCAB).double()
        difference = (model(text)[0] - model(changed % VOCAB)[0]).abs().sum(-1)[0]
        assert (difference[-1] > 0) == reaches, config.name
        if not reaches:
            assert difference[2 * 8] > 0 and difference[2 * 8 + 1] == 0


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(4, 12), (8, 12), (13, 13), (4, 4), (4, 8), (1, 1), (3, 15), (4, 16)])
def test_distances_moved_row_by_row_are_those_that_are_looked_up(itself: bool, queries: int, keys: int) -> None:
    distances = Distances(torch.randn(6, 13), itself)
    q = torch.randn(2, 3, queries, 6)
    unseen = distances.unseen(queries, keys, q.device)
    column = distances.columns(distances.between(queries, keys, q.device))
    looked_up = distances.at(q, column.expand(2, -1, -1))
    moved = distances.of(q, keys)
    torch.testing.assert_close(moved.masked_fill(unseen, 0.0), looked_up.masked_fill(unseen, 0.0))
    for a in range(queries):
        seen = [keys - queries + a - b for b in range(keys) if not unseen[a, b]]
        assert seen == [
            d for d in range(keys - queries + a, -queries, -1) if (0 if itself else 1) <= d <= (12 if itself else 13)
        ]


@pytest.mark.parametrize(
    "config",
    [
        StaircaseConfig(**SIZE, chunk=8, passes=2),
        CachedStaircaseConfig(**SIZE, chunk=8, passes=1, chunks=3),
        TransformerXLConfig(**SIZE, window=8, span=16),
        FeedbackTransformerConfig(**SIZE, window=8, span=16),
    ],
    ids=lambda config: config.name,
)
def test_memory_is_linear_in_the_segment(config: Any) -> None:
    torch.manual_seed(0)
    model = config.build(VOCAB)
    few, some, many = (kept(model, blocks) for blocks in (6, 12, 24))
    assert (many - some) / (some - few) == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"chunk": 0}, "model.chunk is 0: it must be at least 1"),
        ({"passes": 5, "chunks": 4}, "model.passes is 5 and model.chunks 4"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CachedStaircaseConfig(**sizes)


@pytest.mark.real_data
def test_the_first_segment_equals_the_authors_code() -> None:
    arrays = dict(np.load(need("..", "oracles", "oracle_staircase_N2.npz"), allow_pickle=False))
    model = model_from_params(under(arrays, "params/"), "staircase", chunk=16, passes=2).eval()
    logits, _ = model(torch.from_numpy(arrays["seg0/tokens"]))
    torch.testing.assert_close(logits.log_softmax(-1), torch.from_numpy(arrays["seg0/logprobs"]), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="have 32 distances"):
        model_from_params(under(arrays, "params/"), "staircase", chunk=16, passes=3)


OUTSIDE = {"in_emb": "embedding", "out.out_emb": "output", "out_norm": "final_norm"}
INSIDE = {"attn.proj_out": "out", "norm1": "norm", "norm2": "mlp_norm", "ff.fc1": "hidden", "ff.fc2": "mlp_out"}


def theirs(model: Any) -> dict[str, np.ndarray]:
    """Our weights under the names of the authors' code."""
    w = model.config.width
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    names = dict(OUTSIDE)
    found: dict[str, np.ndarray] = {}
    for i in range(len(model.layers)):
        prefix = f"transformer.layers.{i}."
        names |= {prefix + name: f"layers.{i}.{ours}" for name, ours in INSIDE.items()}
        found[f"{prefix}attn.attn.key_pe"] = weights["distances_EP"][None]
        for kind, value in zip(
            ("query", "key", "val"), np.split(weights[f"layers.{i}.qkv.weight"], range(w, 3 * w, w)), strict=False
        ):
            if len(value):
                found[f"{prefix}attn.proj_{kind}.weight"] = value
    for name, ours in names.items():
        found |= {
            f"{name}.{kind}": weights[f"{ours}.{kind}"] for kind in ("weight", "bias") if f"{ours}.{kind}" in weights
        }
    if "memory_weights_L" in weights:  # and, as their state_dict has it, what they come to
        found["single_memory_attn_params"] = weights["memory_weights_L"][None]
        found["single_memory_attn_buf"] = torch.softmax(model.memory_weights_L.detach(), 0)[None].numpy()
    return found


@pytest.mark.parametrize(
    "config",
    [
        StaircaseConfig(**SIZE, chunk=4, passes=3),
        TransformerXLConfig(**SIZE, window=1, span=6),
        FeedbackTransformerConfig(**SIZE, window=1, span=6),
        FeedbackTransformerConfig(**SIZE, window=1, span=6, keys="shared"),
    ],
    ids=["staircase", "transformer-xl", "feedback", "feedback-shared"],
)
def test_weights_under_the_authors_names_are_read(config: Any) -> None:
    torch.manual_seed(0)
    model = config.build(VOCAB).eval()
    if config.name == "feedback-transformer":
        torch.nn.init.normal_(model.memory_weights_L)
    sizes = {"chunk": 4, "passes": 3} if config.name == "staircase" else {}
    params = theirs(model)
    read = model_from_params(params, config.name, **sizes).eval()
    text = tokens(2, 12)
    assert torch.equal(read(text)[0], model(text)[0])
    unknown = {"pos_emb.weight": np.zeros((6, 8)), "transformer.layers.0.attn.attn.val_pe": np.zeros((1, 4, 6))}
    for name, value in unknown.items():
        with pytest.raises(ValueError, match=rf"hold '.*{name.rpartition('.')[2]}'"):
            model_from_params({**params, name: value}, config.name, **sizes)
    key_pe = "transformer.layers.1.attn.attn.key_pe"
    with pytest.raises(ValueError, match="layer 1 has other embeddings of distances"):
        model_from_params({**params, key_pe: params[key_pe] + 1}, config.name, **sizes)
    del params["out_norm.bias"]
    with pytest.raises(ValueError, match=r"they lack 'final_norm.bias'"):
        model_from_params(params, config.name, **sizes)
    with pytest.raises(ValueError, match="not a transformer-sequential model"):
        model_from_params({"a": np.zeros(1)}, config.name)


def test_keys_that_all_layers_share_may_be_named_in_each_layer_or_in_the_first() -> None:
    """As a state_dict of the authors' code has them, and as `named_parameters`."""
    torch.manual_seed(0)
    model = FeedbackTransformerConfig(**SIZE, window=1, span=6).build(VOCAB).eval()
    first = theirs(model)
    text = tokens(2, 12)
    again = ("attn.proj_key", "attn.proj_val", "norm1", "attn.attn.key_pe")
    each = {
        n: first[n.replace("layers.1", "layers.0")] if any(part in n for part in again) else v for n, v in first.items()
    }
    once = {n: v for n, v in each.items() if not ("layers.1" in n and any(part in n for part in again))}
    assert len(once) < len(each)
    own, shared = (model_from_params(params, "feedback-transformer").eval() for params in (each, once))
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in own.parameters())
    assert torch.allclose(own(text)[0], shared(text)[0], atol=1e-6)
