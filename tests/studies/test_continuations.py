"""Passages that are continued behind an empty window: what a planted memory is worth there, the report's files, and refusals."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.inference.trained import load
from recur_models import GPT2RecConfig, RecurrentModel, clear
from studies import continuations
from studies.continuations import ContinuationsConfig, choose_places
from studies.continuations_report import Passage, continuations_table, summary
from studies.greedy_continuation import continue_passage, without_window
from tests.mlflow_server import Server

Train = Callable[..., Path]
QUIET = ("--tracking.backend", "none")


def planted(overlap: int) -> RecurrentModel:
    """It writes its input again, but behind a window of the letter l it writes l + 1, as h_prev alone can tell it.

    Dimensions 0 to 10 are letters; h_prev has its letter in 16 to 26, and in 31 a mark that draws all attention; it is read
    one letter on.
    """
    sizes: dict[str, Any] = {"layers": 1, "d_model": 32, "heads": 1, "mlp_dim": 8, "positions": 8, "dropout": 0.0}
    model: Any = GPT2RecConfig(**sizes, window=4 + overlap, overlap=overlap, insert_layer=1, hidden=()).build(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" not in name and "norm" not in name:
                parameter.zero_()
        layer, letters = model.layers[0], torch.arange(11)
        model.embedding.weight[letters, letters] = 1
        model.recurrence.steps[0].weight[16 + letters, letters] = 1
        model.recurrence.steps[0].bias[31] = 5
        _, key, value = layer.attn["c_attn"].weight.split(32, 1)
        layer.attn["c_attn"].bias[0] = 50
        key[31, 0] = 1
        value[16 + letters, (letters + 1) % 11] = 1
        layer.attn["c_proj"].weight += 20 * torch.eye(32)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("overlap", [0, 3])
def test_what_only_the_state_holds_is_written_behind_an_empty_window(overlap: int) -> None:
    model, text = planted(overlap), torch.tensor([0] + [3] * 7 + [7, 2, 9, 5])
    for blocks, first in ((0, 4), (1, 3)):  # the second window has an h_prev, of 3, only where the first was read
        seen, unseen = continue_passage(model, text, start=8, blocks=blocks, count=4)
        assert seen.ids == [first, *[first + 1] * 3] and unseen.ids == [first] * 4
        context = text[None, 0 if blocks == 0 else 4 : 8]
        _, state = model(context)
        for made, before in ((seen, clear(state, model.initial_state(1), ("tokens", "tokens_count"))), (unseen, None)):
            logits, _ = model(text[None, 8:12], before)
            nats = torch.nn.functional.cross_entropy(logits[0, :3], text[9:12])
            assert made.bits_per_token == pytest.approx(float(nats) / math.log(2), rel=1e-5)


def test_no_token_of_the_context_is_left_in_sight(train: Train) -> None:
    model = load(train("--steps", "1")).model
    text = torch.randint(256, (1, 3 * model.block))
    with torch.no_grad():
        _, state = model(text)
    left, initial = without_window(model, state), model.initial_state(1)
    kept = {name for name in left if torch.equal(left[name], state[name])}
    assert {name.rpartition(".")[2] for name in kept} == {"states"}
    cleared = left.keys() - kept
    assert cleared and all(torch.equal(left[name], initial[name]) for name in cleared)


@pytest.mark.parametrize(
    "model", ["gpt2-rec", "llama-rec", "rec lstm:dual", "memorizing", "staircase", "feedback-transformer", "lstm"]
)
def test_every_recurrent_model_continues(model: str, train_model: Callable[..., Path], tmp_path: Path) -> None:
    run = train_model(model, "--steps", "1", "--validate-every", "0")
    continuations.main([str(run), "--places", "2", "--new-tokens", "20", "--blocks", "1", *QUIET])
    folder = run.parent / "reports" / "continuations-run-places-2-new-tokens-20-blocks-1"
    report = json.loads((folder / "continuations.json").read_text())
    assert len(report["passages"]) == 2


@pytest.mark.parametrize("model", ["gpt2-rec", "rec lstm:dual", "memorizing", "staircase", "lstm"])
def test_the_likeliest_tokens_by_a_pass_over_everything_for_each(model: str, train_model: Callable[..., Path]) -> None:
    """Without a decoder: what has been written is read again, whole, for each further token."""
    trained = load(train_model(model, "--steps", "2", "--validate-every", "0")).model
    for parameter in trained.parameters():  # else it writes one token again and again
        parameter.data.mul_(3)
    begin_of_document, start, count = 256, 2 * trained.block, 2 * trained.block + 3
    text = torch.cat([torch.tensor([begin_of_document]), torch.randint(256, (5 * trained.block,))])
    found = continue_passage(trained, text, start, blocks=0, count=count)
    with torch.no_grad():
        logits, state = trained(text[None, :start])
        first = int(logits[0, -1, :begin_of_document].argmax())
        for made, before in zip(found, (without_window(trained, state), trained.initial_state(1)), strict=True):
            ids = [first]
            while len(ids) < count:
                padded = torch.tensor([ids + [0] * (-len(ids) % trained.block)])  # what comes later changes nothing
                logits, _ = trained(padded, before)
                ids.append(int(logits[0, len(ids) - 1, :begin_of_document].argmax()))
            assert made.ids == ids and len(set(ids)) > 1


def test_the_newest_writes_if_the_run_removes_the_one_that_was_found(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("--steps", "2", "--validate-every", "0", "--checkpoint.every", "1")
    find = continuations.open_split

    def find_while_it_trains(checkpoint: Snapshot, split: str, store: str) -> SegmentStore:
        if checkpoint.step == 2:
            shutil.rmtree(checkpoint.folder)
        return find(checkpoint, split, store)

    monkeypatch.setattr(continuations, "open_split", find_while_it_trains)
    continuations.main([str(run), "--places", "1", "--new-tokens", "8", "--output", str(tmp_path / "report"), *QUIET])
    assert "run, step 1, on text/test" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_refused_before_the_model_is_read(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("--steps", "1", "--validate-every", "0")
    monkeypatch.setattr(continuations, "model_of", lambda checkpoint: pytest.fail("the model is read"))
    with pytest.raises(UserError, match=r"the report cannot be written to .*name another folder with --output"):
        continuations.main([str(run), "--output", f"{run}/config.json", *QUIET])


def test_the_report_has_the_texts(
    train: Train, store: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, tracked = train("--steps", "10"), ("--tracking.backend", "mlflow", "--tracking.uri", server.uri)
    words = [str(run), "--places", "3", "--new-tokens", "30"]
    continuations.main([*words, *tracked, "--tracking.experiment", "continuations"])
    out, folder = capsys.readouterr().out, run.parent / "reports" / "continuations-run-places-3-new-tokens-30"
    report, shown = (json.loads((folder / "continuations.json").read_text()), (folder / "continuations.md").read_text())
    split = SegmentStore.open(store, "text", "test")
    documents = {d.title or d.id: i for i, d in enumerate(split.manifest.documents)}
    assert len(report["passages"]) == 3
    for passage in report["passages"]:
        at = passage["token"]
        text = bytes(split.tokens(documents[passage["document"]], 0, at + 30).tolist())
        assert (at + 1) % 8 == 0 and passage["context"] == text[:at].decode(errors="replace")
        assert passage["true"] == text[at:].decode(errors="replace")
        assert passage["seen"][:1] == passage["unseen"][:1]  # which the context's own window writes
        assert all(f"    {line}" in shown for line in passage["true"].splitlines())
    sentence = "bits per token with the recurrent State and"
    assert sentence in out and sentence in shown
    (found,) = server.runs("continuations")
    assert found["info"]["run_name"] == "continuations run"
    files = server.call("artifacts/list", run_id=found["info"]["run_id"])["files"]
    assert {file["path"] for file in files} == {"continuations.md", "continuations.json"}
    continuations.main([*words, "--output", str(tmp_path / "again"), *QUIET])
    assert (tmp_path / "again" / "continuations.md").read_text() == shown


def test_no_text_steers_the_terminal() -> None:
    text = "a\x1b]0;title\x07\x9b2J\nb"
    written = io.StringIO()
    Console(file=written, width=200).print(continuations_table([Passage(text, 1, text, text, text, text, 1.0, 1.0)]))
    shown = written.getvalue()
    assert shown.count(r"a\x1b]0;title\x07\x9b2J") == 4 and not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_places_are_block_starts_with_room_before_and_behind() -> None:
    lengths = np.array([3, 40, 1000, 25])
    config = ContinuationsConfig("run", places=50, new_tokens=10, blocks=2)
    places = choose_places(lengths, 8, config)
    assert {document for document, _ in places} == {1, 2, 3} and places == choose_places(lengths, 8, config)
    for document, start in places:
        assert start % 8 == 0 and 16 <= start <= lengths[document] + 1 - 10
    assert {start for document, start in places if document == 3} == {16}
    assert set(choose_places(lengths, 8, replace(config, places=10**15))) == {
        (document, start) for document, length in enumerate(lengths) for start in range(16, length - 8, 8)
    }
    assert all(len(choose_places(np.array([130]), 8, replace(config, places=8, seed=seed))) == 8 for seed in range(4))


def test_a_single_place_is_counted_as_one() -> None:
    passage = Passage("a", 1, "", "", "same", "same", 1.0, 2.0)
    assert summary([passage]).endswith("in 1 of 1 place the model writes the same with it and without.")
    assert "in 2 of 2 places" in summary([passage, passage])


def test_what_cannot_be_continued_is_refused_in_a_sentence(train: Train, train_model: Callable[..., Path]) -> None:
    run = str(train("--steps", "1"))
    with pytest.raises(UserError, match=r"no document of the split has 2,007 tokens, .* --blocks or --new-tokens"):
        continuations.main([run, "--new-tokens", "2000", *QUIET])
    with pytest.raises(UserError, match="for 1 block of 8 and a continuation of 2000"):
        continuations.main([run, "--new-tokens", "2000", "--blocks", "1", *QUIET])
    with pytest.raises(UserError, match="--new-tokens is 1: it must be at least 2"):
        continuations.main([run, "--new-tokens", "1"])
    slide = train_model("slide", "--steps", "1", "--validate-every", "0", name="slide")
    with pytest.raises(UserError, match="has no recurrent State"):
        continuations.main([str(slide), *QUIET])
