"""What each release has written is read, continued and opened: the same bits, and the same losses and logits.

Losses in float32 are compared as golden losses are, since another CPU adds in another order; logits in float64.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.places import Place
from data_prep.tokenizers import load_tokenizer, tokenizer_from_spec
from data_prep.verification import find_splits, verify_split
from pipelines import train
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_file import presets_with
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import read_sweep
from pipelines.tracking.identity import begin_run, saved_run
from tests.releases import making

RELEASES = sorted(path.name for path in making.HERE.glob("v*"))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a release's data, as a user has it who moves folders to another machine."""
    return Path(shutil.copytree(making.HERE / request.param, tmp_path / request.param))


def expected(release: Path) -> Any:
    return json.loads((release / "expected.json").read_text())


def test_every_document_of_the_stores_is_read_token_for_token(release: Path) -> None:
    assert making.documents(release / "store") == expected(release)["documents"]
    assert [verify_split(folder, lambda size: None) for folder in find_splits(release / "store")] == [[]] * 6


def test_the_run_is_read_bit_for_bit_and_scores_the_same(release: Path) -> None:
    run = release / "run"
    assert making.checkpoints(run) == expected(release)["checkpoints"]
    assert making.metrics(run) == expected(release)["metrics"]
    score = making.score(run, release / "store", release / "score")
    assert score == pytest.approx(expected(release)["score"], rel=1e-5)


def test_the_run_in_mlflow_is_known_again(release: Path) -> None:
    run = release / "run"
    before = saved_run(run)
    assert before["run_id"] and before["place"] == f"{making.HOME}/run"
    assert begin_run(run, Place.parse(run), 4) == "", "a folder that was moved is no copy"
    assert {**saved_run(run), "place": before["place"], "starts": before["starts"]} == before


def test_the_run_is_resumed_from_its_first_checkpoint(release: Path) -> None:
    run = release / "run"
    last = Checkpoint.open(run / "checkpoints" / "step-00000004")
    shutil.rmtree(last.folder)
    train.main([str(run / "config.json"), "--data.store", str(release / "store"), "--tracking.backend", "none"])
    again = Checkpoint.open(last.folder)
    assert [again.meta[key] for key in ("cursor", "tokens")] == [last.meta[key] for key in ("cursor", "tokens")]
    for made, recorded in zip(making.metrics(run), expected(release)["metrics"], strict=True):
        assert made == pytest.approx(recorded, rel=1e-5, abs=1e-5)  # what State is worth is a small difference


def test_the_sweep_is_known_with_every_decision_and_its_winner_is_a_preset(release: Path) -> None:
    store = release / "store"
    trials = making.trials(store, release)
    assert trials == expected(release)["trials"]
    assert {trial["status"] for trial in trials.values()} == {"finished", "stopped"}
    found = read_sweep(release / "sweep")
    assert {trial.id: trial.status for trial in found.trials} == {
        name: trial["status"] for name, trial in trials.items()
    }
    best = json.loads((release / "sweep" / "best.json").read_text())
    path = str(release / "sweep" / "best.json")
    assert presets_with(PRESETS, [path])[path].optim.lr == best["values"]["optim.lr"]


def test_text_is_prepared_with_the_tokenizer_of_the_export(release: Path) -> None:
    own: Any = tokenizer_from_spec(str(release / "export"))
    assert own.fingerprint == load_tokenizer(release / "store/text/tokenizer").fingerprint


def test_the_export_gives_the_same_ids_and_logits(release: Path) -> None:
    ids, logits = making.logits(release / "export")
    assert ids == expected(release)["ids"]
    torch.testing.assert_close(logits, load_file(release / "logits.safetensors")["logits"], rtol=1e-9, atol=1e-9)
