"""From a run to a folder that transformers opens, and from either to text."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from common.errors import UserError
from common.lock import Locked, file_lock
from data_prep.tokenizers import (
    BytesTokenizer,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerTraining,
    train_sentencepiece,
)
from pipelines import export, generate
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.checkpoints.errors import CheckpointError
from pipelines.generate import GenerateConfig, StopStream, TextStream, choose
from pipelines.inference import to_transformers, trained
from pipelines.prepare import PrepareConfig, prepare
from tests.shared_data import need
from tests.small_corpus import contents, words
from tests.small_tokenizers import MOVES, byte_pairs, moves_tokenizer, with_special_tokens


@pytest.fixture
def run(train: Callable[..., Path]) -> Path:
    return train("--steps", "10", "--validate-every", "0")


def exported(run: Path, name: str = "exported") -> Path:
    folder = run.parent / name
    export.main([str(run), "--output", str(folder)])
    return folder


def text_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command writes to stdout."""
    capsys.readouterr()
    generate.main(list(words))
    out, err = capsys.readouterr()
    assert "continuing" in err and "tokens/s" in err
    return out


def test_an_exported_run_is_an_ordinary_model(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(run)
    assert {name for name in contents(folder) if not name.endswith(".py")} == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "tokenizer/tokenizer.json"),
    }
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ours = trained.load(run)
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], tensor), name
    inputs = tokenizer(["a", "a longer text, é"], return_tensors="pt", padding=True)
    assert inputs["input_ids"][0, -2:].tolist() == [256, ord("a")] and inputs["attention_mask"][0, 0] == 0
    both = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    alone = text_of(capsys, str(run), "--prompt", "a", "--temperature", "0", "--max-new-tokens", "20")
    assert tokenizer.decode(both[0], skip_special_tokens=True) == "a" + alone[:-1]
    card = (folder / "README.md").read_text()
    assert "`rec`" in card and "pip install" in card and "of any length" not in card
    assert "in blocks of 8 tokens" in " ".join(card.split()) and "passes a State of" in card
    monkeypatch.chdir(folder)
    exec(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0], {})  # the card's own code, as a reader runs it
    assert capsys.readouterr().out.startswith("<|begin_of_document|>Once")


def test_a_run_and_its_export_write_the_same(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, story = exported(run), tmp_path / "story.txt"
    story.write_bytes(words("story", 200).encode())
    options = ["--file", str(story), "--seed", "3", "--max-new-tokens", "40", "--top-k", "50", "--top-p", "0.9"]
    first = text_of(capsys, str(run), *options)
    assert len(first) > 10
    for place in (run, folder, max((run / "checkpoints").iterdir())):
        assert text_of(capsys, str(place), *options) == first
    assert text_of(capsys, str(run), *options, "--seed", "4") != first


def test_the_newest_is_read_if_the_run_removes_the_one_that_was_found(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `--checkpoint.keep 1`, while the reader looks for the tokenizer and imports torch."""
    run = train("--steps", "2", "--validate-every", "0", "--checkpoint.every", "1")
    found: list[int] = []
    find = trained.tokenizer_of

    def find_while_it_trains(checkpoint: Snapshot, store: str, corpus: str) -> Tokenizer:
        found.append(checkpoint.step)
        if len(found) == 1:
            shutil.rmtree(checkpoint.folder)
        return find(checkpoint, store, corpus)

    monkeypatch.setattr(trained, "tokenizer_of", find_while_it_trains)
    used = trained.load(run).checkpoint
    assert used and [*found, used.step] == [2, 1, 1]


def test_the_newest_is_exported_if_the_run_removes_the_one_that_was_found(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("--steps", "2", "--validate-every", "0", "--checkpoint.every", "1")
    find = to_transformers.tokenizer_of

    def find_while_it_trains(checkpoint: Snapshot, store: str) -> Tokenizer:
        if checkpoint.step == 2:
            shutil.rmtree(checkpoint.folder)
        return find(checkpoint, store)

    monkeypatch.setattr(to_transformers, "tokenizer_of", find_while_it_trains)
    export.main([str(run), "--output", str(tmp_path / "exported")])
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["trained"]["step"] == 1
    assert f"exported {run / 'checkpoints' / 'step-00000001'} to" in capsys.readouterr().out


def test_a_command_of_its_own_opens_an_export_without_a_question(run: Path) -> None:
    """transformers asks whether to run a folder's modules, unless ours are known to it."""
    folder = str(exported(run))
    command = [sys.executable, "-m", "pipelines.generate", folder, "--prompt", "a", "--max-new-tokens", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "custom code" not in done.stdout + done.stderr, done.stderr


def test_a_seed_is_printed_where_it_has_an_effect(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for temperature, told in (("0", "continuing 1 token\n"), ("1", "continuing 1 token, seed 3\n")):
        generate.main([str(run), "--prompt", "a", "--seed", "3", "--max-new-tokens", "1", "--temperature", temperature])
        err = capsys.readouterr().err
        assert told in err and "tokens/s" not in err  # a single token has no rate


def test_generation_is_the_model_read_anew_each_time(run: Path) -> None:
    ours = trained.load(run)
    config = GenerateConfig(str(run), max_new_tokens=25, temperature=0)
    prompt = list(b"Once upon a time")
    found = list(generate.generate(ours, prompt, config, seed=0))
    ids = [ours.bod_id, *prompt]
    for token in found:
        filled = torch.tensor([ids + [0] * (-len(ids) % ours.model.block)])
        with torch.no_grad():
            logits = ours.model(filled)[0][0, len(ids) - 1]
        logits[ours.bod_id] = -torch.inf
        assert token == int(logits.argmax())
        ids.append(token)


def sentencepiece(folder: Path, kind: str) -> Tokenizer:
    """A trained tokenizer, or one of a model with other rules: it changes the text, and has control pieces."""
    lines = words("train", 3000).splitlines()
    if kind != "other":
        return train_sentencepiece(
            TokenizerTraining(f"{kind}:400", "bpe" if "bpe" in kind else "unigram", 400), "corpus", lines
        )
    import sentencepiece

    prefix = str(folder / "other")
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=300, minloglevel=2, hard_vocab_limit=False
    )
    return SentencePieceTokenizer(Path(prefix + ".model").read_bytes(), "other.model")


def made(kind: str, folder: Path) -> Tokenizer:
    if kind == "bytes":
        return BytesTokenizer()
    return byte_pairs(kind) if kind in ("gpt2", "hugging-face") else sentencepiece(folder, kind)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece-bpe", "other", "gpt2", "hugging-face"])
def test_exported_tokenizers_give_the_same_ids_and_text(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind, tmp_path)
    folder = tmp_path / "exported"
    folder.mkdir()
    to_transformers.save_tokenizer(tokenizer, folder)
    texts = [*to_transformers.SAMPLES, words("other", 4000), "word " * 3000, words("é", 50) * 40, "привет мир " * 7000]
    to_transformers.check_tokenizer(folder, tokenizer, texts)
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    assert len(theirs) == tokenizer.vocab_size and theirs.bos_token_id == tokenizer.vocab_size - 1
    ids = tokenizer.encode(texts[2]).tolist()
    for stop in range(len(ids)):  # also within characters
        assert theirs.decode(ids[:stop]) == tokenizer.decode(ids[:stop])
    assert theirs.decode([theirs.bos_token_id, *ids], skip_special_tokens=True) == tokenizer.decode(ids)
    assert theirs.decode([len(theirs) + 5]) == ""  # an id that a model with resized embeddings may write
    theirs.save_pretrained(tmp_path / "again")
    to_transformers.check_tokenizer(tmp_path / "again", tokenizer, texts)


def test_a_vocabulary_that_covers_certain_texts_alone_is_exported(tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(moves_tokenizer().to_str().encode())
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    to_transformers.check_tokenizer(tmp_path, tokenizer, [*to_transformers.SAMPLES, " ".join(MOVES)])
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(" ".join(MOVES))["input_ids"] == [5, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["unigram", "words", "merges"])
def test_the_names_of_special_tokens_are_exported_as_ordinary_text(kind: str, tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(with_special_tokens(kind).to_str().encode())
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    to_transformers.check_tokenizer(tmp_path, tokenizer, [*to_transformers.SAMPLES, "x </s> x <pad> <unk>"])


SPECIAL_NAMES = (
    "<|begin_of_document|>",
    "a<|begin_of_document|>b <|begin_of_document|>\n",
    "<s>a</s><unk><pad>[PAD][UNK]<mask><|im_start|> <|im_end|><|endoftext|>",
)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece-bpe", "other", "gpt2", "hugging-face"])
def test_names_of_special_tokens_in_a_text_are_ordinary_text(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind, tmp_path)
    bod = tokenizer.vocab_size - 1
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    ids = [tokenizer.encode(text).tolist() for text in SPECIAL_NAMES]
    assert theirs(list(SPECIAL_NAMES))["input_ids"] == [[bod, *own] for own in ids]
    assert theirs(*SPECIAL_NAMES[:2])["input_ids"] == [bod, *ids[0], bod, *ids[1]]


@pytest.mark.parametrize("kind", ["sentencepiece", "gpt2", "hugging-face", "unigram"])
def test_a_vocabulary_that_has_the_name_of_begin_of_document_is_exported(kind: str, tmp_path: Path) -> None:
    name = "<|begin_of_document|>"
    if kind == "sentencepiece":
        trainer: Any = import_module("sentencepiece").SentencePieceTrainer
        lines, model = iter(words("train", 3000).splitlines()), io.BytesIO()
        options = {"user_defined_symbols": [name], "hard_vocab_limit": False, "minloglevel": 2}
        trainer.train(sentence_iterator=lines, model_writer=model, vocab_size=300, **options)
        tokenizer: Tokenizer = SentencePieceTokenizer(model.getvalue())
    elif kind == "unigram":
        model = with_special_tokens(kind)
        model.add_special_tokens([name])
        tokenizer = HuggingFaceTokenizer(model.to_str().encode())
    else:  # the tokenizer.json of an export, which ends with begin-of-document, for another run
        to_transformers.save_tokenizer(made(kind, tmp_path), tmp_path)
        tokenizer = HuggingFaceTokenizer((tmp_path / "tokenizer.json").read_bytes())
    folder = tmp_path / "exported"
    folder.mkdir()
    to_transformers.save_tokenizer(tokenizer, folder)
    to_transformers.check_tokenizer(folder, tokenizer, [*to_transformers.SAMPLES, *SPECIAL_NAMES])
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    assert theirs.bos_token_id == tokenizer.vocab_size - 1 == len(theirs) - 1
    assert theirs.decode(theirs("x")["input_ids"]).startswith("<|begin_of_document_2|>")


@pytest.mark.parametrize("name", ["<|begin_of_document|>", "<|endoftext|>"])
def test_the_check_at_export_covers_the_names_of_special_tokens(name: str, tmp_path: Path) -> None:
    tokenizer = byte_pairs("hugging-face")
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "split_special_tokens": False}))
    assert name in to_transformers.SAMPLES[3]
    with pytest.raises(UserError, match="AutoTokenizer gives other ids"):
        to_transformers.check_tokenizer(tmp_path, tokenizer, [f"x {name}"])


@pytest.mark.real_data
def test_a_published_model_is_exported_with_the_same_ids(tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(
        need("tokenizers", "sentencepiece_pg19", "pg19train_bpe_4000.model").read_bytes()
    )
    book = min(need("pg19", "validation").glob("*.txt"), key=lambda path: path.stat().st_size)
    to_transformers.save_tokenizer(tokenizer, tmp_path)
    to_transformers.check_tokenizer(tmp_path, tokenizer, [*to_transformers.SAMPLES, book.read_bytes().decode()])


class Other(BytesTokenizer):
    """Not what it says it is."""

    def encode(self, text: str | bytes) -> np.ndarray:
        return super().encode(text)[::-1]


class Unknown(BytesTokenizer):
    def details(self) -> dict[str, Any]:
        return {"kind": "words"}


def test_a_tokenizer_that_would_change_the_ids_is_not_exported(tmp_path: Path) -> None:
    to_transformers.save_tokenizer(Other(), tmp_path)
    with pytest.raises(ValueError, match="other ids from token 0 of the text that begins 'def f"):
        to_transformers.check_tokenizer(tmp_path, Other(), ["def f"])
    with pytest.raises(ValueError, match="kind 'words' cannot be exported"):
        to_transformers.save_tokenizer(Unknown(), tmp_path)


def test_export_refuses_and_leaves_nothing_behind(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    for taken in (there, link):
        with pytest.raises(UserError, match="exists already: name a new folder with --output"):
            export.main([str(run), "--output", str(taken)])
    with pytest.raises(UserError, match="cannot be written: choose another --output"):
        export.main([str(run), "--output", str(run / "config.json" / "inside")])
    monkeypatch.setattr(to_transformers, "check_model", lambda *_: (_ for _ in ()).throw(ValueError("not the same")))
    with pytest.raises(ValueError, match="not the same"):
        export.main([str(run), "--output", str(tmp_path / "new")])
    with (
        file_lock(tmp_path / ".new.tmp", "a test"),
        pytest.raises(Locked, match=r"another pipelines\.export is writing"),
    ):
        export.main([str(run), "--output", str(tmp_path / "new")])
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


def test_the_store_may_move_but_not_change(
    run: Path,
    store: Path,
    tmp_path: Path,
    make_config: Callable[..., PrepareConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.move(store, tmp_path / "moved")
    with pytest.raises(ValueError, match=r"holds no tokenizer: name the store .* with --store"):
        generate.main([str(run), "--prompt", "a"])
    assert text_of(capsys, str(run), "--store", str(tmp_path / "moved"), "--max-new-tokens", "5", "--seed", "0")
    other = replace(make_config(), store=str(tmp_path / "other"), tokenizer="sentencepiece:400")
    prepare(other)
    with pytest.raises(ValueError, match=r"is not the one that .* was trained with"):
        export.main([str(run), "--store", other.store, "--output", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-new-tokens 0", "--max-new-tokens is 0: it must be at least 1"),
        ("--temperature -1", "--temperature is -1.0: it must be 0 or more"),
        ("--temperature inf", "--temperature is inf: it must be 0 or more"),
        ("--top-k -1", "--top-k is -1: it must be at least 0"),
        ("--top-p 0", "--top-p is 0.0: it must be above 0"),
        ("--stop=", "--stop has an empty string"),
        ("--prompt a --file b", "--file and --prompt are both given"),
        ("--file nowhere.txt", "No such file"),
        ("--file {latin}", "is not UTF-8 text .byte 1."),
        ("--file {utf16}", "is not UTF-16-LE text .byte 4.: convert it first"),
        ("--prompt caf\udce9", "--prompt is not UTF-8 text .character 3.: convert it first"),
        ("--prompt a", "does not exist: name the folder of a run"),
    ],
)
def test_wrong_words_are_refused(options: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"h\xe9!")
    (tmp_path / "utf16.txt").write_bytes(codecs.BOM_UTF16_LE + b"a\0\0\xd8")
    files = {name: tmp_path / f"{name}.txt" for name in ("latin", "utf16")}
    argv = [str(tmp_path / "run"), *options.format(**files).split()]
    with pytest.raises((ValueError, OSError), match=message):
        generate.main(argv)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_byte_order_mark_is_no_text(encoding: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    marks = {"utf-8": codecs.BOM_UTF8, "utf-16": b""}  # Python's utf-16 writes its own
    (tmp_path / "story.txt").write_bytes(marks[encoding] + "naïve".encode(encoding))
    generate.main([str(run), "--file", str(tmp_path / "story.txt"), "--max-new-tokens", "1"])
    assert f"continuing {len('naïve'.encode())} tokens" in capsys.readouterr().err


def test_a_damaged_export_is_refused(run: Path) -> None:
    folder = exported(run)
    config = json.loads((folder / "config.json").read_text())
    config["model"]["layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"are not those of the model in its config\.json"):
        generate.main([str(folder), "--prompt", "a"])
    config["model"]["layers"] -= 1
    messages = {
        300: r"are not those of the model in its config\.json .* and merge adapters",
        -5: "has vocab_size=-5: export",
    }
    for size, message in messages.items():
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
        with pytest.raises(UserError, match=message):
            generate.main([str(folder), "--prompt", "a"])
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = folder / "tokenizer_config.json"
    whole = tokenizer.read_bytes()
    for damaged in (b"[]", whole[: len(whole) // 2]):
        tokenizer.write_bytes(damaged)
        with pytest.raises(UserError, match=r"the tokenizer in .* cannot be read \(.*: export the checkpoint again"):
            generate.main([str(folder), "--prompt", "a"])
    tokenizer.write_bytes(whole)
    generate.main([f"file://{folder}", "--prompt", "a", "--max-new-tokens", "1"])
    generate.main(
        [f"file://{run}/checkpoints/{max(os.listdir(run / 'checkpoints'))}", "--prompt", "a", "--max-new-tokens", "1"]
    )
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json names no model: export the checkpoint again"):
        generate.main([str(folder), "--prompt", "a"])


def test_choose() -> None:
    logits, generator = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25])), torch.Generator().manual_seed(0)

    def chosen(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> set[int]:
        return {int(choose(logits, temperature, top_k, top_p, generator)) for _ in range(300)}

    assert chosen(temperature=0) == {1}
    assert chosen() == {0, 1, 2, 3}
    assert chosen(top_k=2) == {1, 3} and chosen(top_k=9) == {0, 1, 2, 3}
    assert (
        chosen(top_p=0.7) == {1, 3}
        and chosen(top_p=0.01) == chosen(top_p=1e-300) == {1}
        and chosen(top_p=0.8) == {1, 2, 3}
    )
    assert chosen(temperature=0.01) == {1}


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "other", "gpt2"])
def test_text_is_shown_as_soon_as_it_is_certain(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind, tmp_path)
    texts = ["é漢🙂 plain 👩‍👩‍👧", words("stream", 60)]
    sequences = [tokenizer.encode(text).tolist() for text in texts]
    if kind == "bytes":
        sequences += np.random.default_rng(0).integers(0, 256, (50, 40)).tolist()  # mostly no text at all
    for ids in sequences:
        for start in (0, 1, len(ids) // 2):
            before, stream = tokenizer.decode(ids[:start]), TextStream(tokenizer, ids[:start])
            parts = [stream.put(token) for token in ids[start:]]
            if "\ufffd" not in before:
                assert before + "".join(parts) + stream.end() == tokenizer.decode(ids)
    assert TextStream(tokenizer, []).put(tokenizer.encode("a").tolist()[-1]) == "a"


def test_a_text_ends_before_a_string(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(run), "--prompt", "def", "--max-new-tokens", "60", "--seed", "1"]
    generate.main(argv)
    whole = capsys.readouterr().out.removesuffix("\n")
    for stop in (whole[20:23], whole[:1], whole[30:50], whole[-2:]):
        generate.main([*argv, "--stop", "no such text", stop])
        assert capsys.readouterr().out == whole[: whole.index(stop)] + "\n"
    generate.main([*argv, "--stop", whole[-3:] + "!"])  # begun, but not written to its end
    assert capsys.readouterr().out == whole + "\n"


def test_what_may_begin_a_stop_is_held_back() -> None:
    stream = StopStream(("\n\n", "end."))
    parts = [stream.put(part) for part in ("a\nb", "e", "n", "d!", "\n", "c.\n")]
    assert parts == ["a\nb", "", "", "end!", "", "\nc."] and not stream.stopped
    assert stream.put("\nd") == "" and stream.stopped and stream.end() == ""
    assert StopStream(()).put("text") == "text"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Child processes get Ctrl-C's signal also where this one was begun in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_text_from_the_standard_input_and_until_it_is_stopped(run: Path) -> None:
    words = ("--file", "-", "--max-new-tokens", "1000000", "--seed", "1")
    command = [sys.executable, "-m", "pipelines.generate", str(run), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("twelve bytes")
        process.stdin.close()
        assert process.stdout.read(100)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith("\n")
        told = process.stderr.read()
    assert process.returncode == 130
    assert "continuing 12 tokens" in told and told.endswith("tokens/s\n")
