"""gpt2, llama and mamba2 as transformers' own classes: opened without a warning, by a GGUF converter's rules too, and read back."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.utils.logging import get_logger

from common.errors import UserError
from data_prep.tokenizers import TokenizerTraining, bod_id, train_sentencepiece
from pipelines import export
from pipelines.inference.card import card_of
from pipelines.inference.plain_export import plain
from pipelines.inference.to_transformers import save_tokenizer
from pipelines.inference.trained import config_of, find_checkpoint, model_of
from pipelines.train import main as train_main
from recur_models import LlamaConfig, model_from_json
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from tests.recur_models.test_bundle import elsewhere
from tests.small_corpus import words

pytestmark = pytest.mark.usefixtures("short_documents")

Train = Callable[..., Path]
SHORT = ("--steps", "2", "--validate-every", "0")
CLASSES = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}
plain_models = pytest.mark.parametrize("name", CLASSES)


def plain_of(run: Path, folder: Path) -> Path:
    export.main([str(run), "--output", str(folder), "--format", "transformers"])
    return folder


@contextmanager
def no_warning() -> Iterator[None]:
    """Nothing of transformers' is logged as a warning."""
    seen = list[str]()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Seen(logging.WARNING)
    logger = get_logger("transformers")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert seen == []


OWN = ("--model.output", "own", "--model.rope-base", "500.0", "--model.kv-heads", "2")
"""A Llama of other kinds: its output layer has a matrix of its own."""


@pytest.mark.parametrize(("name", "options"), [("llama", ()), ("llama", OWN), ("gpt2", ())])
@pytest.mark.filterwarnings("error")
def test_transformers_own_class_opens_it_with_our_logits(
    name: str,
    options: tuple[str, ...],
    train_model: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = train_model(name, *SHORT, "--optim.lr", "0.05", *options)
    folder = plain_of(run, tmp_path / "plain")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)[0], {})  # the card's own code
    assert capsys.readouterr().out.startswith("<|begin_of_document|>Once")
    kind: Any = getattr(import_module("transformers"), CLASSES[name])
    with no_warning():
        theirs = kind.from_pretrained(folder).eval()
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert not theirs.generation_config.validate() and theirs.dtype == torch.float32
    assert (theirs.config.architectures, theirs.config.bos_token_id) == ([CLASSES[name]], 256)
    assert theirs.generation_config.eos_token_id == 256 and tokenizer("a")["input_ids"] == [256, ord("a")]
    tied = theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
    assert tied == (not options)

    config: Any = config_of(find_checkpoint(run))
    window = replace(config, overlap=0).restore(257, find_checkpoint(run).weights()).eval()
    ids = torch.randint(256, (2, config.window), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = window(ids)[0]
        assert expected.std() > 0.1
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=0, atol=1e-5)
        before = [256, *b"Once upon"]
        found = theirs.generate(torch.tensor([before]), max_new_tokens=2, do_sample=False)[0, len(before) :]
        assert len(found) == 2
    card = (folder / "README.md").read_text()
    assert f"windows of {config.window} tokens" in card and CLASSES[name] in card
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.glob("*.json")) + card


@plain_models
def test_it_comes_back_bit_for_bit(name: str, train_model: Train, store: Path, tmp_path: Path) -> None:
    run = train_model(name, *SHORT)
    folder = plain_of(run, tmp_path / "plain")
    ours = model_of(find_checkpoint(run))
    window = {"window": 12, "overlap": 4}
    again = model_from_json({"name": name, "pretrained": str(folder), **window}).build(257)
    for key, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    config: Any = again.config
    trained: Any = config_of(find_checkpoint(run))
    assert replace(config, pretrained="", dropout=0.0) == replace(trained.sized(), pretrained="", dropout=0.0)
    words = [f"small-{name}", "--model.pretrained", str(folder), "--data.corpus", "text", "--data.store", str(store)]
    sizes = ["--model.window", "12", "--model.overlap", "4", "--data.segment-length", "32", "--data.lanes", "4"]
    unsized = [f"--model.{size}=0" for size in ("layers", "d-model", "heads", "mlp-dim", "positions")]
    unsized += ["--model.kv-heads=0"] if name == "llama" else []
    here = ["--num-workers", "0", "--use-gpu", "no", "--tracking.backend", "none", "--root", str(tmp_path / "runs")]
    train_main(
        [*words, *sizes, *unsized, *here, "--run", "again", *SHORT, "--optim.lr", "0", "--optim.weight-decay", "0"]
    )
    second = plain_of(tmp_path / "runs" / "again", tmp_path / "second")
    assert (second / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_mamba2_opens_in_transformers_with_our_logits_and_comes_back(train_model: Train, tmp_path: Path) -> None:
    run = train_model("mamba2", *SHORT, "--optim.lr", "0.05", "--model.output", "own")
    folder = plain_of(run, tmp_path / "plain")
    theirs = import_module("transformers").Mamba2ForCausalLM.from_pretrained(folder).eval()
    ours = model_of(find_checkpoint(run)).eval()
    ids = torch.randint(257, (2, 3 * ours.block), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = ours(ids)[0]
        assert expected.std() > 0.1
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=0, atol=1e-5)
    again = model_from_json({"name": "mamba2", "pretrained": str(folder), "window": 8, "chunk": 8}).build(257)
    for key, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    card = (folder / "README.md").read_text()
    assert "Mamba2ForCausalLM" in card and "windows of" not in card and str(tmp_path) not in card


@plain_models
def test_a_gguf_converter_finds_names_shapes_and_values(name: str, train_model: Train, tmp_path: Path) -> None:
    gguf: Any = import_module("gguf")
    folder = plain_of(train_model(name, *SHORT), tmp_path / "plain")
    config = json.loads((folder / "config.json").read_text())
    numbers = {
        "llama": "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
        "max_position_embeddings rms_norm_eps rope_theta head_dim",
        "gpt2": "n_embd n_layer n_head n_ctx layer_norm_epsilon",
    }[name].split()
    values = {key: config[key] for key in [*numbers, "vocab_size"]}
    assert all(isinstance(value, int | float) for value in values.values()) and values["vocab_size"] == 257
    arch = gguf.MODEL_ARCH.LLAMA if name == "llama" else gguf.MODEL_ARCH.GPT2
    names = gguf.get_tensor_name_map(arch, 2)
    with gguf.utility.SafetensorsLocal(folder / "model.safetensors") as tensors:
        mapped = {names.get_name(key, (".weight", ".bias")): tensor.shape for key, tensor in tensors.items()}
    assert None not in mapped and mapped["token_embd.weight"] == (257, 16)
    query = "blk.1.attn_q.weight" if name == "llama" else "blk.1.attn_qkv.weight"
    assert mapped[query] == ((16, 16) if name == "llama" else (16, 48))
    special = gguf.SpecialVocab(folder, load_merges=True)
    assert special.special_token_ids["bos"] == special.special_token_ids["eos"] == 256
    assert special.add_special_token["bos"] is True


ELSEWHERE = """
import contextlib, json, os, re, sys
sys.path += json.loads(sys.argv[1])
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2], trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(sys.argv[2])
found = {"class": type(model).__name__, "ids": tokenizer("hello world")["input_ids"]}
os.chdir(sys.argv[2])
with contextlib.redirect_stdout(sys.stderr):
    exec(re.findall(r"```python\\n(.*?)```", open("README.md").read(), re.DOTALL)[0], {})  # the card's own code
assert not {"recur_models", "common", "pipelines", "data_prep"} & sys.modules.keys()
print(json.dumps(found))
"""


def test_a_sentencepiece_tokenizer_opens_where_throughline_is_not_installed(tmp_path: Path) -> None:
    training = TokenizerTraining("sentencepiece:400", "unigram", 400)
    tokenizer = train_sentencepiece(training, "corpus", words("train", 3000).splitlines())
    sizes: dict[str, Any] = {
        "layers": 1,
        "d_model": 8,
        "heads": 2,
        "kv_heads": 2,
        "mlp_dim": 8,
        "positions": 8,
        "window": 8,
    }
    config = LlamaConfig(**sizes)
    ids = bod_id(tokenizer) + 1
    folder = tmp_path / "plain"
    plain(ThroughlineForCausalLM(ThroughlineConfig.of(config, ids)), config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    checkpoint: Any = SimpleNamespace(
        step=2, meta={"config": {"run": "a", "data": {"corpus": "text"}}, "tokens": 8}, folder=tmp_path
    )
    card = card_of(checkpoint, config.build(ids), tokenizer, config)
    assert "llama.cpp" not in card  # whose converter needs no change for this tokenizer
    (folder / "README.md").write_text(card)
    expected = [ids - 1, *tokenizer.encode("hello world").tolist()]
    assert elsewhere([folder], tmp_path, ELSEWHERE) == {"class": "LlamaForCausalLM", "ids": expected}


def test_models_without_such_a_form_are_refused(train_model: Train, tmp_path: Path) -> None:
    for name in ("slide", "llama-rec"):
        run = train_model(name, *SHORT, name=name)
        with pytest.raises(
            UserError, match=rf"is a {name}, which no model of transformers' own computes: leave out --form"
        ):
            plain_of(run, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()
