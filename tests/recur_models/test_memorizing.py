"""The kNN memory: an exact search in pieces, a ring, no gradient into the past. The whole model is tested in test_models.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from recur_models import memorizing
from recur_models.memorizing import MemorizingConfig, nearest_keys, recall
from tests.recur_models.conftest import SIZE
from tests.recur_models.small_models import build, fresh_at, tokens

CONFIG = MemorizingConfig(**SIZE, memory=12, memory_layer=2, top_k=5)
RING = ("layers.1.memory_keys", "layers.1.memory_values")


def ring(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(3, 2, 40, 6, generator=generator) for _ in range(2))
    return torch.randn(3, 2, 4, 6, generator=generator), keys, values


@pytest.mark.parametrize("chunk", [1, 7 * 24, 1 << 24])  # 24 queries: 8, 8 and all keys at a time
def test_the_search_is_exact_whatever_the_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorizing, "CHUNK_ELEMENTS", chunk)
    q, keys, values = ring()
    count = torch.tensor([0, 5, 4000])  # none, fewer than N, a ring that has turned
    slots = nearest_keys(q, keys, count, 8)
    out = recall(q, keys, values, count, 8)
    assert slots.shape == (3, 2, 4, 8)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    for lane, filled in ((1, 5), (2, 40)):
        logits = q[lane] @ keys[lane, :, :filled].transpose(-1, -2)
        order = logits.argsort(-1, descending=True)[..., :8]
        found = slots[lane][..., :filled].sort(-1).values
        assert torch.equal(found, order.sort(-1).values)
        kept = torch.full_like(logits, -torch.inf).scatter(-1, order, logits.gather(-1, order))
        torch.testing.assert_close(out[lane], torch.softmax(kept, -1) @ values[lane, :, :filled])


def test_no_more_similarities_exist_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorizing, "CHUNK_ELEMENTS", 10 * 24)
    q, keys, _ = ring()
    seen: list[int] = []
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: seen.append((out := matmul(a, b)).numel()) or out)
    nearest_keys(q, keys, torch.tensor([40, 40, 40]), 3)
    assert seen == [240, 240, 240, 240]


def test_the_ring_holds_the_last_keys_of_the_document() -> None:
    model = build(CONFIG)
    text = tokens(2, 5 * 4)
    _, state = model(text, model.initial_state(2), fresh_at(2, 5, (1, 3)))
    assert state["layers.1.memory_count"].tolist() == [20, 8]
    caches = [model(text[:, : 4 * n], model.initial_state(2), fresh_at(2, 5, (1, 3))[:, :n])[1] for n in range(1, 6)]
    for name, cached in zip(RING, ("layers.1.keys", "layers.1.values"), strict=True):
        blocks = [cache[cached] for cache in caches]  # what each block entered: also the window's cache
        turned = torch.cat([blocks[3][0], blocks[4][0], blocks[2][0]], dim=1)  # blocks 3 and 4 over 0 and 1
        torch.testing.assert_close(state[name][0], turned)
        torch.testing.assert_close(state[name][1, :, :8], torch.cat([blocks[3][1], blocks[4][1]], dim=1))
        assert not state[name][1, :, 8:].any()  # nothing is left of the document before


def test_the_state_given_is_not_written_to() -> None:
    model = build(CONFIG)
    _, state = model(tokens(2, 8))
    before = {name: tensor.clone() for name, tensor in state.items()}
    model(tokens(2, 8, seed=3), state, fresh_at(2, 2))
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_the_memory_reaches_beyond_all_windows_and_gives_no_gradient() -> None:
    text = tokens(1, 7 * 4)
    changed = text.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 31
    for memory, reaches in ((24, True), (4, False)):  # three layers' windows reach back 12 tokens
        model = build(replace(CONFIG, memory=memory, top_k=4 if memory == 4 else 24))
        same = torch.equal(model(text)[0][0, -1], model(changed)[0][0, -1])
        assert same != reaches
    _, state = model(text)
    assert not any(state[name].requires_grad for name in RING)


def test_training_under_autocast() -> None:
    model = build(CONFIG).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nats, state = model(tokens(2, 16), None, None, tokens(2, 16, seed=2))
    nats.sum().backward()
    assert nats.isfinite().all() and state[RING[0]].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": 10}, "model.memory is 10, not a multiple of the window of 4 tokens: choose 8"),
        ({"top_k": 13}, "model.top_k is 13: it must be 1 to 12"),
        ({"memory_layer": 4}, "model.memory_layer is 4, but the model has layers 1 to 3: give one of these"),
        ({"memory_layer": 2.5}, "model.memory_layer is 2.5: it must be a whole number"),
        ({"memory_layer": "2"}, "model.memory_layer is '2': it must be a whole number"),
    ],
)
def test_impossible_memories_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_the_memory_is_in_the_fourth_layer_from_the_top() -> None:
    assert MemorizingConfig(layers=12).memory_place == 9
    assert MemorizingConfig(layers=2).memory_place == 1
