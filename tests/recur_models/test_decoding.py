"""DecodingState token by token, from any place in a block, equals the model's pass over whole blocks."""

from __future__ import annotations

import pytest
import torch

from recur_models import ModelConfig
from recur_models.decoding import DecodingState, IncrementalDecoder, RecomputeDecoder, begin, compact, read
from tests.recur_models.small_models import build, tokens


@pytest.fixture(params=["fastest", "rereading"])
def decoder(request: pytest.FixtureRequest, config: ModelConfig) -> IncrementalDecoder:
    model = build(config)
    return model.incremental_decoder() if request.param == "fastest" else RecomputeDecoder(model)


def parallel(decoder: IncrementalDecoder, text_BT: torch.Tensor) -> torch.Tensor:
    """The logits of the model's own pass over the text, filled up to whole blocks."""
    length = text_BT.shape[1]
    filled = torch.nn.functional.pad(text_BT, (0, -length % decoder.model.block))
    return decoder.model(filled)[0][:, :length]


def size(reading: DecodingState) -> list[tuple[str, torch.Size, torch.dtype]]:
    tensors = {**{f"state {k}": v for k, v in reading.state.items()}, **reading.block, "filled": reading.filled_B}
    return [(name, tensor.shape, tensor.dtype) for name, tensor in sorted(tensors.items())]


@torch.no_grad()
def test_token_by_token_equals_the_parallel_pass(decoder: IncrementalDecoder) -> None:
    text = tokens(2, 5 * decoder.model.block + 3)
    reading = begin(decoder, 2)
    parts = []
    sizes = set()
    for step in range(text.shape[1]):
        logits, reading = read(decoder, reading, text[:, step : step + 1])
        parts.append(logits)
        sizes.add(str(size(reading)))
    torch.testing.assert_close(torch.cat(parts, 1), parallel(decoder, text), rtol=1e-5, atol=1e-5)
    assert len(sizes) == 1  # nothing grows


@torch.no_grad()
def test_any_split_equals_the_parallel_pass(decoder: IncrementalDecoder) -> None:
    text = tokens(3, 23)
    whole = parallel(decoder, text)
    for split in ((1, 22), (3, 1, 9, 10), (11, 12), (4, 4, 15), (23,)):
        reading = begin(decoder, 3)
        parts = []
        for piece in text.split(split, 1):
            logits, reading = read(decoder, reading, piece)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5, msg=lambda m, s=split: f"{s}: {m}")


@torch.no_grad()
def test_padded_lanes_equal_lanes_read_alone(decoder: IncrementalDecoder) -> None:
    lengths = (1, 7, 13, 24)
    width = 24
    text = tokens(4, width)
    more = tokens(4, 6, seed=3)
    masks = {side: torch.zeros(4, width, dtype=torch.int64) for side in ("left", "right")}
    for lane, length in enumerate(lengths):
        masks["left"][lane, width - length :] = 1
        masks["right"][lane, :length] = 1
    for side, mask in masks.items():
        logits, reading = read(decoder, begin(decoder, 4), text, mask)
        last, _ = read(decoder, begin(decoder, 4), text, mask, keep=1)
        torch.testing.assert_close(last[:, 0], logits[:, -1])
        after = []
        for step in range(6):  # each lane at its own place of its block
            logit, reading = read(decoder, reading, more[:, step : step + 1])
            after.append(logit)
        for lane, length in enumerate(lengths):
            own = mask[lane].bool()
            alone = parallel(decoder, torch.cat([text[lane][own], more[lane]])[None])[0]
            found = torch.cat([logits[lane][own], torch.cat(after, 1)[lane]])
            torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5, msg=lambda m, s=side: f"{s}: {m}")
            torch.testing.assert_close(logits[lane, -1], alone[length - 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_lanes_can_be_reordered(decoder: IncrementalDecoder) -> None:
    text = tokens(3, 9)
    more = tokens(3, 5, seed=3)
    _, reading = read(decoder, begin(decoder, 3), text)
    order = torch.tensor([2, 0, 2])
    logits, _ = read(decoder, reading.select(order), more)
    whole = parallel(decoder, torch.cat([text[order], more], 1))
    torch.testing.assert_close(logits, whole[:, 9:], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_long_prompt_is_read_a_few_blocks_at_a_time(
    decoder: IncrementalDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recur_models.decoding.TOKENS_AT_ONCE", 8)
    widths: list[int] = []
    decoder.model.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    text = tokens(1, 10 * decoder.model.block + 1)
    logits, _ = read(decoder, begin(decoder, 1), text, keep=1)
    assert max(widths) <= 8
    torch.testing.assert_close(logits[:, 0], parallel(decoder, text)[:, -1], rtol=1e-5, atol=1e-5)


def test_gradients_pass_through_a_reading(decoder: IncrementalDecoder) -> None:
    text = tokens(2, 11)
    parallel(decoder, text)[:, -1].sum().backward()
    whole = {name: p.grad for name, p in decoder.model.named_parameters()}
    decoder.model.zero_grad()
    reading = begin(decoder, 2)
    for piece in text[:, :-1].split(5, 1):
        _, reading = read(decoder, reading, piece)
    read(decoder, reading, text[:, -1:])[0].sum().backward()
    for name, parameter in decoder.model.named_parameters():
        if whole[name] is not None and not name.endswith("initial_SD"):
            torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_reading_follows_the_model(decoder: IncrementalDecoder) -> None:
    decoder.model.double()
    logits, reading = read(decoder, begin(decoder, 2), tokens(2, 7))
    assert logits.dtype == torch.float64
    for name, _, dtype in size(reading):
        assert dtype in (torch.float64, torch.bool, torch.int64), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_on_a_gpu_as_on_the_cpu(decoder: IncrementalDecoder) -> None:
    text = tokens(3, 13)
    mask = torch.ones(3, 13, dtype=torch.int64)
    mask[0, :4] = 0
    pieces = text.split([9, 1, 1, 1, 1], 1)
    found = {}
    for device in ("cpu", "cuda"):
        decoder.model.to(device)
        logits, reading = read(decoder, begin(decoder, 3), pieces[0].to(device), mask[:, :9].to(device))
        parts = [logits]
        for piece in pieces[1:]:
            logits, reading = read(decoder, reading.select(torch.arange(3, device=device)), piece.to(device))
            parts.append(logits)
        assert all(tensor.device.type == device for tensor in (*reading.state.values(), *reading.block.values()))
        found[device] = torch.cat(parts, 1).cpu()
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-3, atol=1e-3)


def test_nothing_to_read_is_refused(decoder: IncrementalDecoder) -> None:
    with pytest.raises(ValueError, match="every token is masked"):
        read(decoder, begin(decoder, 1), tokens(1, 3), torch.zeros(1, 3))


def test_compact() -> None:
    text = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]])
    moved, source = compact(text, torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]]))
    assert moved.tolist() == [[6, 8, 0, 0], [5, 6, 0, 0]]
    assert source.tolist() == [[-1, 0, 0, 1], [0, 1, 1, 1]]
