"""An Instruct model: from a folder of transformers to a run and an export, with its chat template and the ids that end a reply."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
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
from data_prep.corpora import CORPORA
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
from pipelines.prepare import commands, prepare
from pipelines.train import main as train
from tests.small_archives import put
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


@pytest.mark.parametrize("token", [7, {"lstrip": False}])
def test_a_special_token_of_another_form_is_one_sentence(token: object, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x", "bos_token": token}))
    with pytest.raises(UserError, match="has a chat template or special tokens of another form than transformers'"):
        read_chat(tmp_path, {})


@dataclass(frozen=True)
class Chat:
    """A run that began as an Instruct model, and its export."""

    name: str
    original: Any
    instruct: Path
    store: Path
    run: Path
    exported: Path
    shown: str
    """What preparing, training and exporting printed, on one line."""

    def tokenizers(self) -> tuple[Any, Any]:
        """Theirs and ours."""
        return AutoTokenizer.from_pretrained(self.instruct), AutoTokenizer.from_pretrained(self.exported)

    def prompt(self) -> Any:
        theirs, _ = self.tokenizers()
        return theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")

    def replied(self) -> torch.Tensor:
        """MESSAGES and transformers' greedy reply, which ends before it is cut."""
        return self.original.generate(**self.prompt(), max_new_tokens=40, do_sample=False)


@pytest.fixture(scope="module", params=["llama", "llama-rec"])
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chat:
    folder, name = tmp_path_factory.mktemp("chat"), request.param
    original = instruct(folder / "instruct")
    put(folder / "corpus", {f"train/{i}.txt": words(f"train{i}", size) for i, size in enumerate((90, 30, 40, 200))})
    corpus = CORPORA["text"](source=str(folder / "corpus"))
    config = replace(commands()["text"], corpus=corpus, tokenizer=str(folder / "instruct"), splits=("train",))
    sizes = ["layers", "d-model", "heads", "mlp-dim", "positions", "kv-heads"]
    begun = ["--model.pretrained", str(folder / "instruct"), *(f"--model.{size}=0" for size in sizes)]
    where = ["--data.store", str(folder / "store"), "--root", str(folder / "runs"), "--run", name]
    with redirect_stdout(io.StringIO()) as shown:
        prepare(replace(config, store=str(folder / "store"), segment_length=64, num_workers=0))
        train([f"small-{name}", *WORDS, *where, *begun])
        export.main([str(folder / "runs" / name), "--output", str(folder / "exported")])
    places = (folder / "instruct", folder / "store", folder / "runs" / name, folder / "exported")
    return Chat(name, original, *places, " ".join(shown.getvalue().split()))


alone = pytest.mark.xdist_group("chats")
"""Tests that share chats are in one process, which alone trains them."""


@alone
def test_commands_say_what_becomes_of_a_chat_template(chat: Chat) -> None:
    assert "names of its special tokens, such as <|im_end|>, are read as text" in chat.shown
    assert "has a chat template" in chat.shown and "--chat --prompt" in chat.shown
    assert f"ends at id {' or '.join(map(str, chat.original.generation_config.eos_token_id))}" in chat.shown


@alone
def test_the_exported_tokenizer_renders_a_chat_as_the_instruct_models(chat: Chat) -> None:
    theirs, ours = chat.tokenizers()
    assert ours.chat_template == TEMPLATE
    maps = [{**tokenizer.special_tokens_map, "extra_special_tokens": None} for tokenizer in (theirs, ours)]
    assert maps[0] == maps[1]
    ids = chat.prompt()["input_ids"][0].tolist()
    assert ours.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"] == ids
    rendered = ours.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert ours(rendered, add_special_tokens=False)["input_ids"] == ids


@alone
def test_a_chat_ends_where_transformers_ends_it_on_the_same_ids(chat: Chat) -> None:
    opened: Any = AutoModelForCausalLM.from_pretrained(chat.exported)
    ends = chat.original.generation_config.eos_token_id
    assert opened.generation_config.eos_token_id == ends == opened.config.eos_token_id
    assert (opened.config.bos_token_id, opened.config.pad_token_id) == (1, 0)
    prompt, expected = chat.prompt(), chat.replied()
    assert expected.shape[1] < prompt["input_ids"].shape[1] + 11 and expected[0, -1] == ends[1]
    assert torch.equal(opened.generate(**prompt, max_new_tokens=40, do_sample=False), expected)


@alone
@pytest.mark.parametrize("place", ["run", "exported"])
def test_generate_chats_as_transformers_does(chat: Chat, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, _ = chat.tokenizers()
    reply = theirs.decode(chat.replied()[0, chat.prompt()["input_ids"].shape[1] : -1])
    words = ["--chat", "--prompt", "once upon", "--temperature", "0", "--max-new-tokens", "40"]
    generate.main([str(getattr(chat, place)), *words])
    assert capsys.readouterr().out == f"{reply}\n"


@alone
@pytest.mark.parametrize("template", ["{{ raise_exception('begin with the system') }}", "{% if %}", "{{ 1 / 0 }}"])
def test_a_template_that_cannot_write_a_message_is_one_sentence(chat: Chat, template: str, tmp_path: Path) -> None:
    damaged = tmp_path / "exported"
    shutil.copytree(chat.exported, damaged)
    (damaged / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=r"the chat template of .* cannot write the message \("):
        generate.main([str(damaged), "--chat", "--prompt", "once upon"])


@alone
def test_the_cards_own_code_chats(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (chat.exported / "README.md").read_text()
    assert ("never sees more than 96 tokens" in card) == (chat.name == "llama")
    monkeypatch.chdir(chat.exported)
    exec(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0], {})  # as a reader runs it
    assert capsys.readouterr().out.startswith("<|im_start|>user\nHello<|im_end|>")


@alone
def test_training_and_an_export_that_is_asked_for_it_read_names_of_special_tokens_as_text(chat: Chat) -> None:
    theirs, ours = chat.tokenizers()
    runs_own = load_tokenizer(chat.store / "text" / "tokenizer")
    assert ours(NAMES, split_special_tokens=True)["input_ids"] == [len(theirs), *runs_own.encode(NAMES).tolist()]
    name = "<|begin_of_document|>"
    assert ours(name, add_special_tokens=False)["input_ids"] == theirs(name)["input_ids"]


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
