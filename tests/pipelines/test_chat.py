"""An Instruct model: from a folder of transformers to a run and an export, with its chat template and the ids that end a reply."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from common.errors import UserError
from data_prep.tokenizers import (
    BytesTokenizer,
    HuggingFaceTokenizer,
    about_chat,
    keep_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_spec,
)
from data_prep.tokenizers.chat import read_chat
from pipelines import export, generate
from pipelines.inference import to_transformers
from pipelines.prepare import PrepareConfig, prepare
from pipelines.train import main as train
from tests.small_corpus import words
from tests.small_tokenizers import with_special_tokens

# Untyped: decorators that no checker follows make some of what transformers' classes have.
THEIRS: Any = import_module("transformers.models.llama.modeling_llama")

TEMPLATE = (
    "{% for message in messages %}{{ bos_token + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant\\n' }}{% endif %}"
)
MESSAGES = [{"role": "user", "content": "once upon"}]
NAMES = "a <|im_start|>b<|im_end|> <|begin_of_document|>"
WORDS = shlex.split("""
    --model.window 96 --model.overlap 0 --data.corpus text --data.lanes 2 --data.segment-length 192 --steps 1 --optim.lr 0
    --optim.weight-decay 0 --schedule.warmup-steps 0 --validate-every 0 --tracking.backend none --num-workers 0 --use-gpu no
""")


def instruct(folder: Path) -> Any:
    """A tiny Llama with a tokenizer and a chat template, whose greedy reply to MESSAGES ends at its tenth token or before."""
    trained = RustTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    trained.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    options: Any = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, **options)
    trained.train_from_iterator(words("train", 2000).splitlines(), trainer)
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=trained, chat_template=TEMPLATE, **named)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 40, "num_key_value_heads": 2, "initializer_range": 0.5}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = THEIRS.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **ids, **sizes)
    model: Any = THEIRS.LlamaForCausalLM(config).eval()
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")
    free = model.generate(**prompt, max_new_tokens=10, do_sample=False, eos_token_id=None)
    reply = free[0, prompt["input_ids"].shape[1] :].tolist()
    end = next(token for token in reply[4:] if token not in reply[:4])
    model.generation_config.eos_token_id = [2, end]
    model.save_pretrained(folder)
    return model


def prepared(folder: Path, make_config: Callable[..., PrepareConfig]) -> str:
    config = replace(make_config(), tokenizer=str(folder), splits=("train",))
    prepare(config)
    return config.store


@pytest.mark.parametrize("token", [7, {"lstrip": False}])
def test_a_special_token_of_another_form_is_one_sentence(token: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x", "bos_token": token}))
    with pytest.raises(UserError, match="has a chat template or special tokens of another form than transformers'"):
        read_chat(tmp_path, {})


@pytest.mark.parametrize("model", ["llama", "llama-rec"])
def test_a_chat_ends_where_transformers_ends_it_on_the_same_ids(
    model: str,
    tmp_path: Path,
    make_config: Callable[..., PrepareConfig],
    short_documents: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = instruct(tmp_path / "instruct")
    store = prepared(tmp_path / "instruct", make_config)
    told = "names of its special tokens, such as <|im_end|>, are read as text"
    assert told in " ".join(capsys.readouterr().out.split())
    sizes = ["layers", "d-model", "heads", "mlp-dim", "positions", "kv-heads"]
    begun = ["--model.pretrained", str(tmp_path / "instruct"), *(f"--model.{name}=0" for name in sizes)]
    where = ["--data.store", store, "--root", str(tmp_path / "runs"), "--run", model]
    train([f"small-{model}", *WORDS, *where, *begun])
    assert "has a chat template" in capsys.readouterr().out
    run = tmp_path / "runs" / model
    export.main([str(run), "--output", str(tmp_path / "exported")])
    out = capsys.readouterr().out
    assert (
        "--chat --prompt" in out
        and f"ends at id {' or '.join(map(str, original.generation_config.eos_token_id))}" in out
    )

    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "instruct")
    ours: Any = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert ours.chat_template == TEMPLATE
    assert {**theirs.special_tokens_map, "extra_special_tokens": None} == {
        **ours.special_tokens_map,
        "extra_special_tokens": None,
    }
    prompt = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")
    rendered = ours.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert (
        ours.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"] == prompt["input_ids"][0].tolist()
    )
    assert ours(rendered, add_special_tokens=False)["input_ids"] == prompt["input_ids"][0].tolist()

    opened: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert (
        opened.generation_config.eos_token_id == original.generation_config.eos_token_id == opened.config.eos_token_id
    )
    assert (opened.config.bos_token_id, opened.config.pad_token_id) == (1, 0)
    expected = original.generate(**prompt, max_new_tokens=40, do_sample=False)
    assert (
        expected.shape[1] < prompt["input_ids"].shape[1] + 11
        and expected[0, -1] == original.generation_config.eos_token_id[1]
    )
    assert torch.equal(opened.generate(**prompt, max_new_tokens=40, do_sample=False), expected)

    reply = theirs.decode(expected[0, prompt["input_ids"].shape[1] : -1])
    for place in (run, tmp_path / "exported"):
        generate.main([str(place), "--chat", "--prompt", "once upon", "--temperature", "0", "--max-new-tokens", "40"])
        assert capsys.readouterr().out == f"{reply}\n"

    template = tmp_path / "exported" / "chat_template.jinja"
    whole = template.read_text()
    for damaged in ("{{ raise_exception('begin with the system') }}", "{% if %}", "{{ 1 / 0 }}"):
        template.write_text(damaged)
        with pytest.raises(UserError, match=r"the chat template of .* cannot write the message \("):
            generate.main([str(tmp_path / "exported"), "--chat", "--prompt", "once upon"])
    template.write_text(whole)

    card = (tmp_path / "exported" / "README.md").read_text()
    assert ("never sees more than 96 tokens" in card) == (model == "llama")
    monkeypatch.chdir(tmp_path / "exported")
    exec(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0], {})  # the card's own code, as a reader runs it
    assert capsys.readouterr().out.startswith("<|im_start|>user\nHello<|im_end|>")

    # Training reads the names of special tokens as text, and so does an export that is asked for it.
    runs_own = load_tokenizer(Path(store) / "text" / "tokenizer")
    assert ours(NAMES, split_special_tokens=True)["input_ids"] == [len(theirs), *runs_own.encode(NAMES).tolist()]
    assert (
        ours("<|begin_of_document|>", add_special_tokens=False)["input_ids"]
        == theirs("<|begin_of_document|>")["input_ids"]
    )


def chat_folder(folder: Path, tokenizer: RustTokenizer, **config: Any) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    template = "{% for message in messages %}{{ message.content + ' </s> ' }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return folder


@pytest.mark.parametrize("kind", ["unigram", "words", "merges"])
def test_a_chat_gets_the_ids_of_special_tokens_that_documents_never_get(kind: str, tmp_path: Path) -> None:
    """The model of these tokenizers finds the names of special tokens in ordinary text."""
    folder = chat_folder(
        tmp_path / "theirs", with_special_tokens(kind), eos_token={"content": "</s>"}, pad_token="<no>"
    )
    tokenizer = tokenizer_from_spec(str(folder))
    assert isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.chat is not None
    end = tokenizer.added_ids["</s>"]
    assert tokenizer.chat.special_tokens == {"eos_token": "</s>"} and tokenizer.chat.eos_token_ids == (end,)
    assert end not in tokenizer.encode("x </s> x").tolist()
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    to_transformers.check_tokenizer(tmp_path, tokenizer, [*to_transformers.SAMPLES, "x </s> x"])
    exported: Any = AutoTokenizer.from_pretrained(tmp_path)
    chat = exported.apply_chat_template([{"role": "user", "content": "x"}])["input_ids"]
    assert chat.count(end) == 1 and exported.bos_token is None


def test_templates_by_name_and_the_ends_of_a_text_are_read_from_all_their_files(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "theirs", with_special_tokens("words"), eos_token="</s>")
    (folder / "chat_template.jinja").write_text("default")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 3]}')
    tokenizer = tokenizer_from_spec(str(folder / "tokenizer.json"))
    assert isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.chat is not None
    assert tokenizer.chat.template == {"default": "default", "tool_use": "tools"}
    assert tokenizer.chat.eos_token_ids == (5, 3)
    save_tokenizer(tokenizer, tmp_path / "store")
    kept = load_tokenizer(tmp_path / "store")
    assert isinstance(kept, HuggingFaceTokenizer) and kept.chat == tokenizer.chat
    assert kept.fingerprint == tokenizer.fingerprint
    for text, message in (
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"eos_token_id": "a"}', "are not token ids"),
    ):
        (folder / "generation_config.json").write_text(text)
        with pytest.raises(UserError, match=rf"generation_config\.json .*{message}"):
            tokenizer_from_spec(str(folder))


def test_a_template_that_comes_later_is_kept_too(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "theirs", with_special_tokens("words"))
    data = (folder / "tokenizer.json").read_bytes()
    for tokenizer in (HuggingFaceTokenizer(data), tokenizer_from_spec(str(folder)), HuggingFaceTokenizer(data)):
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        keep_tokenizer(tokenizer, tmp_path / "store")
        kept = load_tokenizer(tmp_path / "store")
        assert isinstance(kept, HuggingFaceTokenizer)
        assert tokenizer.chat is None or kept.chat == tokenizer.chat
    assert kept.chat is not None


def test_a_template_without_a_tokenizer_json_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (tmp_path / "tokenizer.model").touch()
    tokenizer = BytesTokenizer()
    assert about_chat(tokenizer, "bytes") == []
    for spec in (str(tmp_path), str(tmp_path / "tokenizer.model"), f"gpt2:{tmp_path}"):
        assert ["is left out, because it needs a tokenizer.json" in told for told in about_chat(tokenizer, spec)] == [
            True
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chat"], "--chat is given without a message: add --prompt or --file"),
        (["--chat", "--prompt", "a"], "has a tokenizer without a chat template: leave out --chat"),
    ],
)
def test_a_chat_without_a_template_or_a_message_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate.main([str(Path(__file__).parents[1] / "releases" / "v0.1.0" / "export"), *options])


def test_tokenizer_config_goes_before_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x", "eos_token": "<|im_end|>"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))
    chat = read_chat(tmp_path, {"<|im_end|>": 2, "</s>": 1, "<pad>": 0})
    assert chat and chat.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<pad>"}
    assert chat.eos_token_ids == (2,)
