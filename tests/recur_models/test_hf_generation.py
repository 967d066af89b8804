"""What users of transformers pass to `generate` and to the cache, beside the text."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.configuration_utils import GenerationConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.utils.logging import get_logger, warning_once

from recur_models import GPT2Config, LlamaConfig, Mamba2Config, ModelConfig, VanillaConfig
from recur_models.hf import RecurrentCache, ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from recur_models.sliding_window import SlideConfig
from tests.recur_models.conftest import SIZE
from tests.recur_models.small_exports import BOD, representatives, text, wrap
from tests.recur_models.small_models import VOCAB


@pytest.fixture(params=representatives().items(), ids=lambda item: item[0])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param[1]


@pytest.fixture
def slide() -> Any:
    return wrap(SlideConfig(**SIZE))


@torch.no_grad()
def test_an_end_of_the_users_own_hides_no_begin_of_document(slide: Any) -> None:
    ids = torch.cat([torch.full((2, 1), BOD), text(2, 4)], dim=1)
    asked = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True}
    expected = slide.generate(ids, attention_mask=torch.ones_like(ids), **asked).logits[0]
    for given in ({}, {"eos_token_id": 5}, {"eos_token_id": [5, 6]}):
        assert torch.equal(slide.generate(ids, **given, **asked).logits[0], expected)
    hidden = slide.generate(ids, attention_mask=(ids != BOD).long(), **asked).logits[0]
    assert not torch.equal(hidden, expected)  # a mask of one's own counts


@torch.no_grad()
def test_without_a_prompt_a_text_begins_with_begin_of_document(slide: Any) -> None:
    """Also where transformers takes it for padding, since a text ends at another id."""
    expected = slide.generate(torch.tensor([[BOD]]), eos_token_id=5, max_new_tokens=3)
    assert torch.equal(slide.generate(eos_token_id=5, max_new_tokens=3), expected)


@torch.no_grad()
def test_begin_of_document_is_suppressed_beside_other_tokens(slide: Any) -> None:
    asked = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    for given, suppressed in (({}, [BOD]), ({"suppress_tokens": [1]}, [1, BOD])):
        (scores,) = slide.generate(text(2, 4), **given, **asked).scores
        assert torch.isinf(scores).all(0).nonzero().flatten().tolist() == suppressed


def test_a_config_of_the_users_own_is_taken_without_a_warning(slide: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`pipeline` gives one at each call."""
    given = GenerationConfig(max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
    get_logger("transformers.generation.utils").addHandler(caplog.handler)
    warning_once.cache_clear()
    (scores,) = slide.generate(text(2, 4), given).scores
    get_logger("transformers.generation.utils").removeHandler(caplog.handler)
    assert torch.isinf(scores).all(0).nonzero().flatten().tolist() == [BOD]
    assert given.suppress_tokens is None and "suppress_tokens" not in caplog.text


@pytest.mark.parametrize(("suppressed", "expected"), [(None, [2, BOD]), ([], [2, BOD]), ([1], [1, BOD])])
def test_suppressed_tokens_beside_a_config_keep_begin_of_document(
    slide: Any, suppressed: list[int] | None, expected: list[int]
) -> None:
    given = GenerationConfig(max_new_tokens=1, output_scores=True, return_dict_in_generate=True, suppress_tokens=[2])
    (scores,) = slide.generate(text(2, 4), given, suppress_tokens=suppressed).scores
    assert torch.isinf(scores).all(0).nonzero().flatten().tolist() == expected


def test_arguments_that_change_nothing_are_refused(slide: Any) -> None:
    with pytest.raises(ValueError, match="cache_implementation is given, but these models have a cache of their own"):
        slide.generate(text(1, 4), cache_implementation="static")
    with pytest.raises(ValueError, match="prefill_chunk_size is given, but these models read any prompt in parts"):
        slide.generate(text(1, 4), prefill_chunk_size=8)
    for given in ({"cache_implementation": "static"}, {"prefill_chunk_size": 8}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} is given, but these models"):
            slide.generate(text(1, 4), GenerationConfig(**given))


def test_a_model_of_labels_continues_no_text() -> None:
    model = ThroughlineForCausalLM(ThroughlineConfig.of(SlideConfig(**SIZE), VOCAB, predicts_labels=True))
    with pytest.raises(ValueError, match="predicts a label of each symbol and continues no text"):
        model.generate(text(1, 4), max_new_tokens=2)


def test_a_loop_trains_with_the_state_of_the_last_call(config: ModelConfig) -> None:
    """Without `detach` the second backward pass would run into the first call's graph."""
    model = wrap(config).train()
    first = text(2, 9)
    second = text(2, 7)
    before = model(first, labels=first, use_cache=True)
    before.loss.backward()
    after = model(second, labels=second, use_cache=True, past_key_values=before.past_key_values.detach())
    after.loss.backward()
    assert after.past_key_values.get_seq_length() == 16


@torch.no_grad()
def test_a_saved_cache_continues_like_the_first(config: ModelConfig, tmp_path: Path) -> None:
    model = wrap(config)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, :3] = 0
    cache = model(text(2, 9), attention_mask=mask, use_cache=True).past_key_values
    cache.save(tmp_path / "state.safetensors")
    loaded = RecurrentCache.load(tmp_path / "state.safetensors")
    assert loaded.get_seq_length() == 9
    copied = copy.deepcopy(cache)
    more = text(2, 7)
    mask = torch.cat([mask, torch.ones_like(more)], 1)
    expected, *others = (
        model(more, attention_mask=mask, past_key_values=each, use_cache=True) for each in (cache, loaded, copied)
    )
    for other in others:
        assert torch.equal(other.logits, expected.logits)
        assert other.past_key_values.get_seq_length() == 16


@torch.no_grad()
@pytest.mark.parametrize("first", [True, False])
def test_a_cache_is_continued_with_autocast_off_or_on(config: ModelConfig, first: bool) -> None:
    model = wrap(config)
    ids = text(2, 23)
    with torch.autocast("cpu", torch.bfloat16, enabled=first):
        cache = model(ids[:, :7], use_cache=True).past_key_values
    with torch.autocast("cpu", torch.bfloat16, enabled=not first):
        found = [model(token, past_key_values=cache).logits for token in ids[:, 7:].split(1, 1)]
    expected = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(found, 1).float(), expected[:, 7:], rtol=0, atol=0.15 * float(expected.std()))


@torch.no_grad()
def test_a_cache_is_continued_in_another_dtype(config: ModelConfig) -> None:
    """With 9 columns and blocks of 4, the next calls read in a block that was begun, and then others."""
    model = wrap(config)
    ids = text(2, 23)
    expected = model(ids, use_cache=False).logits[:, 9:]
    cache = model(ids[:, :9], use_cache=True).past_key_values
    model.bfloat16()
    found = [model(part, past_key_values=cache).logits for part in (ids[:, 9:10], ids[:, 10:])]
    torch.testing.assert_close(torch.cat(found, 1).float(), expected, rtol=0, atol=0.15 * float(expected.std()))


@torch.no_grad()
def test_a_cache_that_has_read_the_whole_text_is_refused(slide: Any) -> None:
    """It would read the text twice, or nothing."""
    ids = text(2, 9)
    for given in (ids, ids[:, :4]):
        cache = slide(ids).past_key_values
        with pytest.raises(
            ValueError, match=f"has read 9 columns, and the text has {given.shape[1]}: give the whole text"
        ):
            slide.generate(given, past_key_values=cache, max_new_tokens=3)
    cache = slide(ids[:, :8]).past_key_values
    found = slide.generate(ids, past_key_values=cache, max_new_tokens=3)
    assert torch.equal(found, slide.generate(ids, max_new_tokens=3))


@torch.no_grad()
@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_return_sequences": 3, "do_sample": True}])
def test_a_cache_is_repeated_for_beams_and_returned_sequences(slide: Any, options: dict[str, Any]) -> None:
    ids = text(2, 9)
    found = []
    for cache in (None, slide(ids[:, :8]).past_key_values):
        if cache is not None:
            cache.batch_repeat_interleave(3)
        torch.manual_seed(0)
        found.append(slide.generate(ids, past_key_values=cache, max_new_tokens=3, **options))
    assert torch.equal(*found)


@torch.no_grad()
def test_new_tokens_alone_continue_a_cache_with_the_mask_of_the_whole_text(slide: Any) -> None:
    ids = text(2, 9)
    expected = slide.generate(ids, max_new_tokens=3)
    for seen in (3, 6, 8):
        cache = slide(ids[:, :seen]).past_key_values
        whole = torch.ones_like(ids)
        found = slide.generate(ids[:, seen:], attention_mask=whole, past_key_values=cache, max_new_tokens=3)
        assert torch.equal(found, expected[:, seen:])


def test_an_empty_cache_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was read"):
        RecurrentCache().save(tmp_path / "state.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_file_that_holds_no_cache_of_this_model_is_refused(slide: Any, tmp_path: Path) -> None:
    slide.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.safetensors is no saved cache"):
        RecurrentCache.load(tmp_path / "model.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes((tmp_path / "model.safetensors").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"damaged\.safetensors cannot be read .* RecurrentCache\.save has written"):
        RecurrentCache.load(damaged)
    deeper = {**SIZE, "layers": SIZE["layers"] + 1}
    for kind in (SlideConfig, VanillaConfig):  # the State of a vanilla transformer is empty, its block is not
        wrap(kind(**deeper))(text(1, 9), use_cache=True).past_key_values.save(tmp_path / "state.safetensors")
        loaded = RecurrentCache.load(tmp_path / "state.safetensors", torch.device("cpu"))
        with pytest.raises(ValueError, match="was made by another model"):
            wrap(kind(**SIZE))(text(1, 3), past_key_values=loaded)


def test_a_cache_is_true_and_says_how_much_it_has_read(slide: Any) -> None:
    cache = slide(text(2, 5)).past_key_values
    assert cache
    assert repr(cache) == "RecurrentCache(5 columns read)"


def test_the_config_has_the_width_of_hidden_states(config: ModelConfig) -> None:
    model = wrap(config)
    hidden = model(text(1, 5), output_hidden_states=True).hidden_states
    assert model.config.hidden_size == hidden[-1].shape[-1]
    assert "hidden_size" not in model.config.to_dict()


@pytest.mark.parametrize(("config", "width"), [(GPT2Config, 768), (LlamaConfig, 576), (Mamba2Config, 768)])
def test_it_has_the_width_of_a_model_whose_config_leaves_sizes_empty(config: Any, width: int) -> None:
    assert ThroughlineConfig.of(config(pretrained="none"), 257).hidden_size == width


@pytest.mark.parametrize("asked", ["sdpa", "flash_attention_2"])
def test_another_attention_is_refused(slide: Any, asked: str, tmp_path: Path) -> None:
    slide.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"attn_implementation is '{asked}', but these models have an attention of"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=asked)
    with pytest.raises(ValueError, match=f"attn_implementation is '{asked}'"):
        slide.set_attn_implementation(asked)
    slide.set_attn_implementation("eager")
    AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")


def test_a_model_stays_on_one_device(slide: Any, tmp_path: Path) -> None:
    slide.save_pretrained(tmp_path / "export")
    ids = text(1, 5)
    for devices in ("auto", "cpu", {"": "cpu"}):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export", device_map=devices)
        torch.testing.assert_close(loaded(ids).logits, slide(ids).logits)
    with pytest.raises(
        ValueError, match="device_map puts the model on cpu and disk, but these models run on one device"
    ):
        AutoModelForCausalLM.from_pretrained(
            tmp_path / "export",
            device_map={"model.embedding": "cpu", "model.layers": "disk", "model.final_norm": "cpu"},
            offload_folder=str(tmp_path / "offloaded"),
        )
