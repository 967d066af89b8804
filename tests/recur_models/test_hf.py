"""Every model as an ordinary transformers model: saved, loaded, generating, with State as its cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from recur_models import GPT2RecConfig, ModelConfig
from recur_models.hf import RecurrentCache, ThroughlineForCausalLM, ThroughlineModel
from recur_models.hf_config import ThroughlineConfig
from recur_models.sliding_window import SlideConfig
from tests.recur_models.conftest import SIZE, small_configs
from tests.recur_models.small_exports import BOD, representatives, text, wrap
from tests.recur_models.small_models import VOCAB


@pytest.fixture(params=representatives().items(), ids=lambda item: item[0])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return request.param[1]


@pytest.fixture
def model(config: ModelConfig) -> Any:
    return wrap(config)


def greedy(model: Any, ids: torch.Tensor, count: int) -> torch.Tensor:
    """The likeliest continuation, by reading the whole text anew for each token."""
    for _ in range(count):
        filled = torch.nn.functional.pad(ids, (0, -ids.shape[1] % model.model.block))
        logits = model.model(filled)[0][:, ids.shape[1] - 1]
        logits[:, BOD] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 4, 11])
def test_logits_of_any_length_are_those_of_the_model(model: Any, length: int) -> None:
    ids = text(2, length)
    expected = model.model(torch.nn.functional.pad(ids, (0, -length % model.model.block)))[0][:, :length]
    for use_cache in (True, False):
        torch.testing.assert_close(model(ids, use_cache=use_cache).logits, expected, rtol=1e-5, atol=1e-5)
        last = model(ids, use_cache=use_cache, logits_to_keep=1).logits
        torch.testing.assert_close(last, expected[:, -1:], rtol=1e-5, atol=1e-5)
    assert model(ids, use_cache=False).past_key_values is None
    assert model(ids, use_cache=False, return_dict=False)[0].shape == expected.shape


def test_saved_and_loaded_equals_itself(model: Any, config: ModelConfig, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    files = {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".py"} == files
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ThroughlineForCausalLM and loaded.model.config == config
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert torch.equal(loaded(text(2, 9)).logits, model(text(2, 9)).logits)
    assert loaded.generation_config.suppress_tokens == [BOD]


@torch.no_grad()
@pytest.mark.parametrize("count", [VOCAB + 3, VOCAB - 2])
def test_embeddings_are_also_the_output_and_can_be_resized(slide: Any, count: int, tmp_path: Path) -> None:
    assert slide.get_input_embeddings() is slide.model.embedding and slide.get_output_embeddings() is None
    ids = text(2, 9) % count
    before = slide(ids).logits
    slide.resize_token_embeddings(count, mean_resizing=False)
    after = slide(ids).logits
    kept = min(count, VOCAB)
    assert after.shape[-1] == count == slide.config.vocab_size == slide.model.vocab_size
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    slide.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, after)


@torch.no_grad()
@pytest.mark.parametrize("count", [VOCAB + 3, VOCAB - 2])
@pytest.mark.parametrize("name", ["lstm", "staircase-zeros"])
def test_an_output_layer_of_its_own_is_resized_with_the_embeddings(name: str, count: int, tmp_path: Path) -> None:
    model = wrap(small_configs()[name])
    ids = text(2, 9) % min(count, VOCAB)
    before = model(ids).logits
    model.resize_token_embeddings(count)
    after = model(ids).logits
    kept = min(count, VOCAB)
    assert after.shape[-1] == count == model.model.vocab_size == model.model.output.out_features
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    expected = before.mean(-1, keepdim=True).expand(-1, -1, count - kept)  # and noise
    torch.testing.assert_close(after[..., kept:], expected, rtol=1e-3, atol=1e-3)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, after)


@torch.no_grad()
def test_generate_continues_as_reading_anew_does(model: Any) -> None:
    ids = text(2, 10)
    for options in ({}, {"use_cache": False}, {"attention_mask": torch.ones_like(ids)}):
        found = model.generate(ids, max_new_tokens=9, do_sample=False, **options)
        assert torch.equal(torch.as_tensor(found), greedy(model, ids, 9))


@torch.no_grad()
@pytest.mark.parametrize("ends", [3, [3, 5]])
def test_a_begin_of_document_in_a_prompt_is_no_padding(ends: int | list[int]) -> None:
    """Without a mask, also where texts end at an id of their own."""
    config = ThroughlineConfig.of(small_configs()["slide-meliad"], VOCAB, eos_token_id=ends)
    model: Any = ThroughlineForCausalLM(config).eval()
    model.generation_config.suppress_tokens = [*range(1, 6), BOD]  # no text ends early
    ids = torch.cat([torch.full((2, 1), BOD), text(2, 4)], dim=1)
    for prompt in (ids, ids[:, :1]):
        options = {"max_new_tokens": 6, "do_sample": False}
        found = model.generate(prompt, **options)
        assert torch.equal(found, model.generate(prompt, attention_mask=torch.ones_like(prompt), **options))
    assert model.config.eos_token_id == ends


@torch.no_grad()
def test_sampling_and_beams_are_the_same_with_and_without_the_cache(model: Any) -> None:
    ids = text(2, 7)
    for options in ({"do_sample": True, "top_k": 5}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}):
        found = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            found.append(model.generate(ids, max_new_tokens=8, use_cache=use_cache, **options))
        assert torch.equal(*found)
        assert not (found[0][:, 1:] == BOD).any()


@torch.no_grad()
def test_a_padded_batch_continues_as_each_text_alone(model: Any) -> None:
    width = 11
    lengths = (1, 6, 11)
    ids = torch.full((3, width), BOD)
    mask = torch.zeros(3, width, dtype=torch.int64)
    for lane, length in enumerate(lengths):
        ids[lane, width - length :] = text(3, length)[lane]
        mask[lane, width - length :] = 1
    for options in ({}, {"num_beams": 2}):
        together = model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, **options)
        for lane, length in enumerate(lengths):
            alone = model.generate(ids[lane : lane + 1, width - length :], max_new_tokens=9, do_sample=False, **options)
            assert torch.equal(together[lane, width:], alone[0, length:])


@torch.no_grad()
def test_the_cache_does_not_grow() -> None:
    model = wrap(representatives()["rec"])

    def contents(cache: RecurrentCache) -> tuple[int, int]:
        assert cache.reading is not None
        tensors = [*cache.reading.state.values(), *cache.reading.block.values(), cache.reading.filled_B]
        return len(tensors), sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    cache = model(text(1, 10)).past_key_values
    after_10 = contents(cache)
    for token in text(1, 291)[0, 1:]:  # seventy blocks
        model(token.view(1, 1), past_key_values=cache)
    assert cache.get_seq_length() == 300 and contents(cache) == after_10


@torch.no_grad()
def test_going_on_with_a_cache(model: Any) -> None:
    ids = text(2, 23)
    whole = model(ids).logits
    first = model(ids[:, :9])
    second = model(ids[:, 9:], past_key_values=first.past_key_values)
    assert second.past_key_values is first.past_key_values
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole, rtol=1e-5, atol=1e-5)
    begun = model.generate(ids[:, :9], max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    further = model.generate(begun.sequences, past_key_values=begun.past_key_values, max_new_tokens=5, do_sample=False)
    assert torch.equal(torch.as_tensor(further), greedy(model, ids[:, :9], 10))


@torch.no_grad()
def test_without_a_new_cache_the_past_is_read_all_the_same(slide: Any) -> None:
    ids = text(2, 12)
    first = slide(ids[:, :8], use_cache=True)
    found = slide(ids[:, 8:], past_key_values=first.past_key_values, use_cache=False)
    assert found.past_key_values is None
    torch.testing.assert_close(found.logits, slide(ids, use_cache=False).logits[:, 8:], rtol=0, atol=1e-5)


def test_loss_is_the_cross_entropy_of_the_next_token(model: Any) -> None:
    ids = text(2, 10)
    labels = ids.clone()
    labels[1, 7:] = -100
    out = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    assert out.past_key_values is None
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [False, True])
def test_padding_on_either_side_changes_no_loss(slide: Any, use_cache: bool) -> None:
    ids = text(2, 10)
    alone = [slide(ids[:1], labels=ids[:1]).loss * 9, slide(ids[1:, :6], labels=ids[1:, :6]).loss * 5]
    for shift in (0, 4):  # of the second text in its row
        mask = torch.ones_like(ids)
        mask[1] = torch.arange(10).sub(shift).ge(0) & torch.arange(10).sub(shift).lt(6)
        labels = ids.roll(shift, 1).masked_fill(mask == 0, -100)
        labels[0] = ids[0]
        rows = torch.where(labels < 0, 0, labels)
        found = slide(rows, attention_mask=mask, labels=labels, use_cache=use_cache).loss
        torch.testing.assert_close(found, sum(alone) / 14)


@torch.no_grad()
def test_the_cache_follows_the_model(model: Any) -> None:
    out = model.to(torch.bfloat16)(text(2, 9))
    assert out.logits.dtype == torch.bfloat16
    for name, tensor in model.model.initial_state(2).items():
        assert out.past_key_values.reading.state[name].dtype == tensor.dtype, name


@pytest.fixture
def slide() -> Any:
    return wrap(SlideConfig(**SIZE))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": None}, "give input_ids"),
        ({"past_key_values": object()}, "past_key_values is a object"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, "attention_mask has shape"),
        ({"attention_mask": torch.ones(2, 3)}, "attention_mask has shape"),
        (
            {"attention_mask": torch.ones(2, 9)},
            r"has shape \(2, 9\): for these tokens it must be \(2, 5\); a mask of earlier tokens too needs the past_key_values",
        ),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]]), "use_cache": False}, "attention_mask has shape"),
        ({"attention_mask": torch.zeros(2, 5)}, "every token is masked"),
    ],
)
def test_bad_arguments_are_refused(slide: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slide(**{"input_ids": text(2, 5), **arguments})


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(
    "kept",
    [
        torch.tensor([4]),
        torch.tensor([0, 3, -1]),
        torch.tensor([[0, 3], [2, 4]]),
        torch.tensor([[True, False, False, True, True], [False, False, True, False, False]]),
    ],
)
def test_logits_to_keep_may_be_columns(slide: Any, kept: torch.Tensor, use_cache: bool) -> None:
    ids = text(2, 5)
    whole = slide(ids, use_cache=use_cache).logits
    found = slide(ids, logits_to_keep=kept, use_cache=use_cache).logits
    if kept.dtype == torch.bool:
        expected = torch.stack([whole[0, 0], whole[0, 3], whole[0, 4], whole[1, 2]])
    elif kept.dim() == 2:
        expected = torch.stack([whole[0, [0, 3]], whole[1, [2, 4]]])
    else:
        expected = whole[:, kept]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@torch.no_grad()
def test_positions_that_the_model_counts_itself_may_be_given(slide: Any) -> None:
    ids = text(2, 5)
    expected = slide(ids).logits
    assert torch.equal(slide(ids, position_ids=torch.arange(5)[None]).logits, expected)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    positions = torch.tensor([[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]])
    padded = slide(ids, attention_mask=mask, position_ids=positions)
    assert torch.equal(padded.logits, slide(ids, attention_mask=mask).logits)
    one = torch.tensor([[BOD], [BOD]])
    mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1)
    slide(one, attention_mask=mask, position_ids=torch.tensor([[3], [5]]), past_key_values=padded.past_key_values)
    for wrong in (torch.arange(1, 6)[None], torch.tensor([[0, 1, 2, 0, 1]]), torch.arange(4)[None]):
        with pytest.raises(ValueError, match=r"position_ids are other than those that the model counts"):
            slide(ids, position_ids=wrong)


@torch.no_grad()
def test_arguments_that_transformers_always_passes_are_taken(slide: Any) -> None:
    ids = text(2, 5)
    expected = slide(ids).logits
    options: dict[str, Any] = {"cache_position": torch.arange(5), "output_attentions": False, "inputs_embeds": None}
    options |= {"output_hidden_states": False, "num_items_in_batch": 3, "token_type_ids": None, "return_dict": True}
    assert torch.equal(slide(ids, **options).logits, expected)
    logits, cache = slide(ids, return_dict=False)
    assert torch.equal(logits, expected) and isinstance(cache, RecurrentCache)
    loss, logits = slide(ids, labels=ids, return_dict=False, num_items_in_batch=torch.tensor(2))
    assert torch.equal(logits, slide(ids, use_cache=False).logits)
    torch.testing.assert_close(loss, slide(ids, labels=ids).loss * 4)  # 8 targets, divided by 2


def test_label_smoothing_shifts_the_labels(slide: Any, tmp_path: Path) -> None:
    """Trainer computes the loss then, and would teach a model that it does not know to repeat its input."""
    ids = text(2, 9)
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, report_to="none", use_cpu=True)
    loss = Trainer(slide, arguments).compute_loss(slide, {"input_ids": ids, "labels": ids.clone()})
    logits = slide(ids).logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def evaluated(model: Any, rows: list[dict[str, Any]], folder: Path) -> torch.Tensor:
    """The loss that Trainer reports of these rows, read as one batch."""
    arguments = TrainingArguments(str(folder), report_to="none", use_cpu=True, disable_tqdm=True)
    return torch.tensor(Trainer(model, arguments, eval_dataset=cast(Any, rows)).evaluate()["eval_loss"])


def test_trainer_means_over_the_labels_that_are_scored(slide: Any, tmp_path: Path) -> None:
    """It counts a first token behind padding, which is not scored."""
    ids = text(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    labels = ids.masked_fill(mask == 0, -100)
    rows = [{"input_ids": ids[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(2)]
    alone = slide(ids[:1], labels=ids[:1]).loss * 8 + slide(ids[1:, 5:], labels=ids[1:, 5:]).loss * 3
    torch.testing.assert_close(evaluated(slide, rows, tmp_path), alone / 11)


def test_trainer_means_over_the_labels_of_all_columns(tmp_path: Path) -> None:
    model = ThroughlineForCausalLM(ThroughlineConfig.of(SlideConfig(**SIZE), VOCAB, predicts_labels=True)).eval()
    ids, labels = text(2, 5), text(2, 5).flip(1)
    expected = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten())
    rows = [{"input_ids": ids[lane], "labels": labels[lane]} for lane in range(2)]
    torch.testing.assert_close(evaluated(model, rows, tmp_path), expected)


@torch.no_grad()
def test_a_text_may_end_at_a_string(slide: Any) -> None:
    vocabulary = {chr(ord("a") + i): i for i in range(VOCAB)}
    letters = Tokenizer(WordLevel(vocabulary, unk_token="a"))
    letters.pre_tokenizer = Split(Regex("."), "isolated")  # type: ignore[assignment]
    letters.decoder = Fuse()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters)
    ids = text(1, 5)
    free = slide.generate(ids, max_new_tokens=12, do_sample=False)[0, 5:]
    stop = tokenizer.decode([int(free[3])])
    made = slide.generate(ids, max_new_tokens=12, do_sample=False, stop_strings=[stop], tokenizer=tokenizer)[0, 5:]
    first = free.tolist().index(int(free[3]))
    assert made.tolist() == free[: first + 1].tolist()


@torch.no_grad()
def test_one_prefix_is_continued_by_a_batch(model: Any) -> None:
    ids = text(1, 9)
    cache = model(ids).past_key_values
    cache.batch_repeat_interleave(3)
    more = text(3, 5) % BOD
    expected = model(torch.cat([ids.expand(3, -1), more], 1)).logits[:, 9:]
    torch.testing.assert_close(model(more, past_key_values=cache).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"atention_mask": torch.ones(2, 5)}, TypeError, r"'atention_mask'.* did you mean 'attention_mask'"),
        ({"head_mask": torch.ones(2)}, TypeError, "'head_mask'"),
        ({"output_attentions": True}, ValueError, "output_attentions"),
        ({"inputs_embeds": torch.ones(2, 5, 8)}, ValueError, "inputs_embeds"),
        ({"is_causal": False}, ValueError, "is_causal"),
        ({"cu_seq_lens_q": torch.ones(2)}, ValueError, "cu_seq_lens_q"),
        ({"token_type_ids": torch.ones(2, 5)}, ValueError, "token_type_ids"),
        ({"logits_to_keep": -1}, ValueError, "logits_to_keep is -1: give 0 for all, or more"),
        ({"logits_to_keep": 2, "labels": torch.ones(2, 5)}, ValueError, "logits_to_keep and labels are both given"),
        (
            {"input_ids": torch.ones(1, 0, dtype=torch.int64)},
            ValueError,
            r"input_ids has shape \(1, 0\): give .* token",
        ),
        (
            {"input_ids": torch.ones(0, 3, dtype=torch.int64)},
            ValueError,
            r"input_ids has shape \(0, 3\): give .* token",
        ),
        (
            {"input_ids": torch.ones(3, dtype=torch.int64)},
            ValueError,
            r"input_ids has shape \(3,\): .* \[lanes, tokens\]",
        ),
    ],
)
def test_arguments_that_change_nothing_are_refused_by_name(
    slide: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        slide(**{"input_ids": text(2, 5), **arguments})


def test_generation_refuses_what_the_model_cannot_return(slide: Any) -> None:
    ids = text(1, 3)
    with pytest.raises(ValueError, match="output_attentions"):
        slide.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"input_ids has shape \(1, 0\)"):
        slide.generate(ids[:, :0], max_new_tokens=2)


def test_a_mask_that_fits_neither_the_tokens_nor_the_whole_text_is_refused(slide: Any) -> None:
    cache = slide(text(2, 3)).past_key_values
    for width in (4, 6, 9):
        with pytest.raises(ValueError, match=r"for these tokens it must be \(2, 5\) or \(2, 8\)$"):
            slide(text(2, 5), past_key_values=cache, attention_mask=torch.ones(2, width))


def test_only_tokens_and_mask_are_given_by_position(slide: Any) -> None:
    """Models of transformers have position_ids third."""
    ids = text(2, 5)
    for model in (slide, ThroughlineModel(slide.config)):
        assert model(ids, torch.ones_like(ids))[0].shape[:2] == (2, 5)
        with pytest.raises(TypeError, match="positional arguments"):
            model(ids, torch.ones_like(ids), torch.arange(5).expand(2, -1))


def test_a_cache_of_other_lanes_or_cropped_is_refused(slide: Any) -> None:
    cache = slide(text(2, 5)).past_key_values
    with pytest.raises(ValueError, match="of 2 lanes, but 3 are given: repeat its lanes with batch_repeat_interleave"):
        slide(text(3, 5), past_key_values=cache)
    with pytest.raises(ValueError, match="cannot be rolled back"):
        cache.crop(1)


def test_weights_that_do_not_fit_are_refused(slide: Any, tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in slide.state_dict().items() if "final_norm" not in name}
    slide.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"missing keys: model\.final_norm\.scale"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match="the model 'no' is unknown: if a plug-in has it, name its module in THROUGHLINE_PLUGINS"
    ):
        ThroughlineForCausalLM(ThroughlineConfig(model={"name": "no"}, vocab_size=5))
    with pytest.raises(ValueError, match="names no model"):
        ThroughlineForCausalLM(ThroughlineConfig())


def test_a_fresh_interpreter_needs_only_the_import(slide: Any, tmp_path: Path) -> None:
    slide.save_pretrained(tmp_path)
    code = f"""
import sys
import pipelines.training.worker
assert "transformers" not in sys.modules  # seconds that training does not need
from transformers import AutoConfig, AutoModelForCausalLM
import recur_models.hf
model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained({str(tmp_path)!r}))
assert type(model) is type(other)
print(type(model).__module__, model.generate(max_new_tokens=3).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[0] == "recur_models.hf_model torch.Size([1, 4])", done.stderr


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_more_logits_to_keep_than_there_are_are_all(slide: Any, masked: bool) -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]]) if masked else None
    kept = [
        slide(text(2, 3), attention_mask=mask, logits_to_keep=5, use_cache=cached).logits for cached in (False, True)
    ]
    assert kept[0].shape == kept[1].shape == (2, 3, VOCAB)
    torch.testing.assert_close(kept[0][1], kept[1][1])


def test_what_is_frozen_is_frozen_when_it_is_opened_again(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"layers": 2, "d_model": 8, "heads": 2, "mlp_dim": 8, "positions": 8, "window": 8}
    wrap(GPT2RecConfig(**sizes, trained="recurrence")).save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    trained = [name for name, parameter in opened.named_parameters() if parameter.requires_grad]
    assert trained and all(name.startswith("model.recurrence.") for name in trained)
