"""Fine-tuning weights from a folder: the run resumes bit for bit, and is exported, when the folder is gone. And scoring with other
windows than those of training."""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines import evaluate
from pipelines.export import main as export
from pipelines.inference.trained import config_of, find_checkpoint, load
from pipelines.reports.sweep_report import report_sweep
from pipelines.tracking.metrics_file import read_records
from pipelines.train import main
from tests.ray_sweeps import Here
from tests.small_corpus import contents

# Untyped: decorators that no checker follows make some of what transformers' classes have.
THEIRS: Any = import_module("transformers.models.gpt2.modeling_gpt2")
GPT2LMHeadModel, GPT2Config = THEIRS.GPT2LMHeadModel, THEIRS.GPT2Config

WORDS = shlex.split("""
    pg19-gpt2-rec-overlap-5 --model.window 13 --data.corpus text --data.lanes 4 --data.segment-length 32 --steps 6
    --schedule.warmup-steps 2 --log-every 1 --validate-every 6 --validate-tokens 200 --checkpoint.every 3
    --tracking.backend none --num-workers 0 --use-gpu no
""")


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A tiny GPT-2 of bytes."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=256, **sizes)).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name.endswith(".safetensors")}


def test_a_run_goes_on_when_its_pretrained_weights_are_gone(pretrained: Path, store: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", "mine"]
    words += ["--model.pretrained", str(pretrained)]
    main(words)
    run = tmp_path / "runs" / "mine"
    last = run / "checkpoints" / "step-00000006"
    expected = weights(last)
    shutil.rmtree(last)
    shutil.rmtree(pretrained)
    with pytest.raises(UserError, match=r"neither a folder here.* resumes without it from its config.json"):
        main(words)
    main([str(run / "config.json")])
    assert weights(last) == expected
    export([str(run), "--output", str(tmp_path / "exported")])
    ours, theirs = (load(place).model for place in (run, tmp_path / "exported"))
    written = json.loads((tmp_path / "exported" / "config.json").read_text())["model"]
    assert written["pretrained"] == "" and written["d_model"] == 16 and str(tmp_path) not in json.dumps(written)
    text = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(text)[0], theirs(text)[0])


def table_of(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "table.csv", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@pytest.mark.usefixtures("short_documents")
def test_the_baseline_is_scored_at_any_overlap(train_model: Callable[..., Path], store: Path, tmp_path: Path) -> None:
    run = train_model("gpt2")
    quiet = ("--tracking.backend", "none", "--output", str(tmp_path / "report"))
    evaluate.main([str(run), *quiet])
    as_trained = table_of(tmp_path / "report")["run"]
    assert not (tmp_path / "report" / "frontier.png").exists()
    evaluate.main([str(run), "--overlap", "0", "4", "8", *quiet])
    rows = table_of(tmp_path / "report")
    assert Image.open(tmp_path / "report" / "frontier.png").width > 1000
    text, checkpoint = SegmentStore.open(store, "text", "test"), find_checkpoint(run)
    ids = text.tokens(0, 0, int(text.lengths[0])).astype("int64")
    tokens, targets = torch.tensor([256, *ids[:-1], *[0] * 24]), torch.tensor([*ids, *[-1] * 24])
    trained: Any = config_of(checkpoint)
    for overlap in (0, 4, 8):
        row, config = rows[f"run-overlap-{overlap}"], replace(trained, overlap=overlap)
        model, length = config.restore(257, checkpoint.weights()).eval(), -(-len(ids) // config.block) * config.block
        with torch.no_grad():
            nats = float(model(tokens[None, :length], None, None, targets[None, :length])[0].sum())
        assert float(row["bits_per_token"]) == pytest.approx(nats / math.log(2) / len(ids), rel=1e-5)
        assert float(row["word_perplexity"]) == pytest.approx(math.exp(nats / text.manifest.totals.words), rel=1e-4)
        assert float(row["forward_flops_per_token"]) == config.costs(257).flops_per_token
    assert {**rows["run-overlap-4"], "name": "run"} == as_trained  # what it was trained with
    logged = {name: value for record in read_records(run / "metrics.jsonl") for name, value in record.metrics.items()}
    for key, row in (("", rows["run-overlap-4"]), ("_overlap_0", rows["run-overlap-0"])):
        for metric in ("bits_per_token", "forward_flops_per_token"):
            assert logged[f"whole_test{key}/{metric}"] == float(row[metric])


@pytest.mark.usefixtures("short_documents")
def test_recurrence_is_scored_at_its_own_overlap_unless_asked(train_model: Callable[..., Path], tmp_path: Path) -> None:
    run, quiet = train_model("gpt2-rec"), ("--tracking.backend", "none", "--output", str(tmp_path / "report"))
    evaluate.main([str(run), "--overlap", "4", *quiet])
    assert float(table_of(tmp_path / "report")["run-overlap-4"]["word_perplexity"]) > 1
    with pytest.raises(UserError, match=r"trained with model.overlap 4 and not 0.* or add --allow-other-windows"):
        evaluate.main([str(run), "--overlap", "4", "0", *quiet])
    evaluate.main([str(run), "--overlap", "0", "--allow-other-windows", *quiet])
    assert next(iter(table_of(tmp_path / "report"))) == "run-overlap-0"
    with pytest.raises(UserError, match=r"model.overlap is 12, but a window has 12 tokens: it must be less"):
        evaluate.main([str(run), "--overlap", "12", "--allow-other-windows", *quiet])
    with pytest.raises(UserError, match="is a slide, whose overlap cannot change: leave out --overlap"):
        evaluate.main([str(train_model("slide", name="slide")), "--overlap", "0", *quiet])


def test_weights_of_another_vocabulary_are_a_users_error(pretrained: Path, store: Path, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, **sizes)).save_pretrained(pretrained)
    where = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--model.pretrained", str(pretrained)]
    with pytest.raises(UserError, match=r"has 257 ids, and .* of 300: prepare the store"):
        main([*WORDS, *where])


def test_a_store_of_another_tokenizer_than_the_weights_is_named(
    pretrained: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many ids as the bytes of the store, which stand for other bytes."""
    alphabet = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters = Tokenizer(models.BPE(alphabet, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    letters.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    letters.save(str(pretrained / "tokenizer.json"))
    where = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--model.pretrained", str(pretrained)]
    main([*WORDS, *where])
    assert f"prepare the store with --tokenizer {pretrained}" in capsys.readouterr().out
    main([*WORDS, *where])  # it has begun: its weights are those of its checkpoint
    assert "another tokenizer" not in capsys.readouterr().out
    Tokenizer(models.WordLevel({"once": 0})).save(
        str(pretrained / "tokenizer.json")
    )  # cannot encode the text that is compared
    main([*WORDS, *where, "--run", "next"])
    assert "another tokenizer" not in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_sweep_of_windows_overlaps_and_the_layer_that_reads(pretrained: Path, store: Path, tmp_path: Path) -> None:
    where = ["--data.store", str(store), "--root", str(tmp_path), "--run", "sweep"]
    space = "model.window=12,16+model.overlap=4,8+model.insert_layer=0,1,2"
    words = ["--preset", *WORDS, "--model.pretrained", str(pretrained)]
    words += ["--search", "grid", "--scheduler", "none", "--baseline", "no"]
    sweep = Here([space, *words, *where, "--data.segment-length", "24", "--num-workers", "1"]).run()
    fields = ["model.window", "model.overlap", "model.insert_layer"]
    tried = {tuple(trial.values[field] for field in fields) for trial in sweep.trials.values()}
    assert tried == {(window, overlap, layer) for window in (12, 16) for overlap in (4, 8) for layer in (0, 1, 2)}
    assert {trial.status for trial in sweep.trials.values()} == {"finished"}
    report_sweep(sweep.folder)
    cost = {
        tuple(int(row[field]) for field in fields): float(row["training_flops_per_token"])
        for row in csv.DictReader((sweep.folder / "report" / "trials.csv").open())
    }
    for window in (12, 16):
        assert cost[window, 4, 2] < cost[window, 8, 2] < cost[window, 8, 0]  # read again; by every layer
