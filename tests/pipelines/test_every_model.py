"""Every model resumes bit for bit, learns in bfloat16, is exported, generates, is evaluated and swept."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from benchmarks.killing import CORE, MODELS, TINY
from data_prep.store import SegmentStore
from pipelines import evaluate, export, generate
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.inference.trained import find_checkpoint
from pipelines.reports.sweep_report import report_sweep
from tests.pipelines.test_processes import FAMILY
from tests.ray_sweeps import Here
from tests.small_corpus import contents
from tests.small_runs import curve, forget, values_of, without_run_name

Train = Callable[..., Path]
every_model = pytest.mark.parametrize("model", MODELS)
CACHES_ALONE = {"slide", "xl", "transformer-xl", "universal-transformer", "gpt2", "llama"}
"""Models whose State is cached keys and values: there is nothing whose worth a validation could show."""


def test_every_model_is_here() -> None:
    from recur_models import MODELS as KNOWN

    made = {"vanilla"}  # without State
    for name in MODELS:
        made.add(name.partition(" ")[0])
    assert made == set(KNOWN)


@every_model
def test_killed_and_begun_again_it_is_the_same_bit_for_bit(model: str, train_model: Train) -> None:
    short = ("--steps", "6", "--validate-every", "3", "--checkpoint.every", "3")
    words = (*short, "--log-every", "2")  # the checkpoint of step 3 lies between two points of the curve
    run = train_model(model, *words)
    last = run / "checkpoints" / "step-00000006"
    files, metrics = without_run_name(contents(last)), curve(run)
    lanes, _ = Checkpoint.open(last).lanes(0, 4)
    carried = [name for name in lanes if name.startswith("state/")]
    assert carried and any(lanes[name].any() for name in carried)
    assert bool(values_of(run, "validation/worth_of_states_bits")) == (model not in CACHES_ALONE)
    forget(run, 6)
    train_model(model, *words)
    assert without_run_name(contents(last)) == files and curve(run) == metrics


@every_model
def test_a_step_in_bfloat16(model: str, train_model: Train) -> None:
    run = train_model(model, "--precision", "bfloat16", "--steps", "1", "--validate-every", "1")
    checkpoint = find_checkpoint(run)
    assert checkpoint.meta["validation"]["bits_per_token"] < 12
    assert all(tensor.isfinite().all() for tensor in checkpoint.weights().values())


@pytest.mark.usefixtures("short_documents")
@pytest.mark.parametrize("model", ["rec fixed:skip", *FAMILY])
def test_exported_it_generates_and_scores_the_same(
    model: str, train_model: Train, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_model(
        model, "--steps", "6", "--validate-every", "0", "--optim.lr", "0.01", "--schedule.warmup-steps", "1"
    )
    export.main([str(run), "--output", str(tmp_path / "exported")])
    exported: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    prompt = [256, *b"Far past a segment of 32 tokens, "]
    with torch.no_grad():
        found = exported.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0]
    capsys.readouterr()
    words = ["--prompt", bytes(prompt[1:]).decode(), "--temperature", "0", "--max-new-tokens", "40"]
    generate.main([str(tmp_path / "exported"), *words])
    assert capsys.readouterr().out[:-1] == bytes(found[len(prompt) :].tolist()).decode(errors="replace")

    evaluate.main([str(run), "--tracking.backend", "none", "--output", str(tmp_path / "report")])
    text = SegmentStore.open(store, "text", "test")
    ids = torch.tensor([[text.bod_id, *text.tokens(0, 0, int(text.lengths[0])).tolist()]])
    with torch.no_grad():
        bits = float(exported(ids, labels=ids).loss) / math.log(2)
    table = next(csv.DictReader((tmp_path / "report" / "table.csv").open()))
    assert float(table["bits_per_token"]) == pytest.approx(bits, rel=1e-5)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_sweep_of_passes_and_chunks(store: Path, tmp_path: Path) -> None:
    where = ["--data.store", str(store), "--root", str(tmp_path), "--run", "sweep", "--tracking.backend", "none"]
    words = [*CORE.split(), *TINY, "--steps", "2", "--validate-every", "2", "--model.chunk", "8", *where]
    space = ["staircase-passes", "--preset", "algorithm-staircase", "--search", "grid", "--scheduler", "none"]
    sweep = Here([*space, *words, "--baseline", "no"]).run()
    tried = {(trial.values["model.passes"], trial.values["model.chunk"]) for trial in sweep.trials.values()}
    assert tried == {(passes, chunk) for passes in (1, 2, 4, 8) for chunk in (4, 8, 16)}
    assert {trial.status for trial in sweep.trials.values()} == {"finished"}
    report_sweep(sweep.folder)
    rows = list(csv.DictReader((sweep.folder / "report" / "trials.csv").open()))
    cost = {(int(row["model.passes"]), int(row["model.chunk"])): float(row["training_flops_per_token"]) for row in rows}
    for chunk in (4, 8, 16):
        assert cost[1, chunk] < cost[2, chunk] < cost[4, chunk] < cost[8, chunk]
    assert json.loads((sweep.folder / "sweep.json").read_text())["fields"] == ["model.passes", "model.chunk"]
