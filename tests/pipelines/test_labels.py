"""A corpus that labels its tokens, from preparation to the comparison of runs; and losses that count labels alone."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from benchmarks.killing import Group
from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines import compare, evaluate, export, generate
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.dotted import with_fields
from pipelines.config.run import check_resumable, flatten, to_json
from pipelines.inference.trained import find_checkpoint, model_of
from pipelines.prepare import PrepareConfig, commands, prepare
from pipelines.presets import PRESETS
from pipelines.reports.evaluation_figures import errors_by_position
from pipelines.sweeps.checks import check
from pipelines.sweeps.command import read_command
from pipelines.tracking.metrics_file import read_records
from pipelines.tracking.score import Score
from pipelines.train import main
from pipelines.training.scoring import score_split
from pipelines.training.world import World
from recur_models.losses import labelled_cross_entropy
from tests.small_corpus import contents
from tests.small_runs import TINY, curve, forget, records_with, values_of, without_run_name
from tests.small_task import Task
from tune_spaces import combine

QUIET = ("--tracking.backend", "none")
LEARNS = ("--optim.lr", "1e-2", "--model.dropout", "0", "--steps", "250", "--log-every", "10", "--validate-every", "50")

Train = Callable[..., Path]


@pytest.fixture
def task(make_config: Callable[..., PrepareConfig]) -> PrepareConfig:
    made = make_config(corpus=Task(documents=30), segment_length=16)
    prepare(made)
    return made


@pytest.fixture
def text_store(make_config: Callable[..., PrepareConfig], tmp_path: Path) -> str:
    made = make_config(store=str(tmp_path / "texts"))
    prepare(made)
    return made.store


@pytest.fixture
def train(task: PrepareConfig, tmp_path: Path) -> Train:
    """Train TINY on the task, then these words."""

    def run(*words: str, name: str = "run") -> Path:
        where = ("--data.store", task.store, "--data.corpus", "task", "--root", str(tmp_path / "runs"))
        main([*TINY, *where, "--run", name, *words])
        return tmp_path / "runs" / name

    return run


def naive_errors(checkpoint: Checkpoint, store: SegmentStore) -> tuple[int, int]:
    """Wrong ones and labels, one document after the other at once."""
    model, wrong, labels = model_of(checkpoint), 0, 0
    for document, length in enumerate(store.lengths.tolist()):
        tokens = torch.from_numpy(store.tokens(document, 0, length).astype("int64"))
        targets = torch.from_numpy(store.targets(document, 0, length).astype("int64"))
        with torch.no_grad():
            logits, _ = model(F.pad(tokens, (0, -length % model.block))[None])
        wrong += int((logits[0, :length].argmax(-1) != targets)[targets >= 0].sum())
        labels += int((targets >= 0).sum())
    return wrong, labels


@dataclass(frozen=True)
class Runs:
    """A run that has learned the task, and one that was stopped early."""

    store: str
    learned: Path
    early: Path
    shown: str
    """What the commands printed."""

    def store_of_test(self) -> SegmentStore:
        return SegmentStore.open(self.store, "task", "test")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("labels")
    config = replace(commands()["text"], corpus=Task(documents=30), store=str(folder / "store"))
    prepare(replace(config, segment_length=16, num_workers=0))
    where = ["--data.store", str(folder / "store"), "--data.corpus", "task", "--root", str(folder / "runs")]
    with redirect_stdout(io.StringIO()) as shown:
        main([*TINY, *where, "--run", "learned", *LEARNS])
        main([*TINY, *where, "--run", "early", "--steps", "5"])
    return Runs(str(folder / "store"), folder / "runs/learned", folder / "runs/early", shown.getvalue())


alone = pytest.mark.xdist_group("runs of labels")
"""Tests that share runs are in one process, which alone trains them."""


@alone
@pytest.mark.long
def test_a_task_is_learned(runs: Runs) -> None:
    errors = values_of(runs.learned, "train/error_rate")
    assert errors[0] > 0.2 and errors[-1] == 0
    last = records_with(runs.learned, "validation/error_rate")[-1].metrics
    assert last["validation/error_rate"] == 0 and last["validation/bits_per_token"] < 0.1
    assert not [key for _, metrics in curve(runs.learned) for key in metrics if "byte" in key]
    assert "0.00% errors" in runs.shown


@alone
@pytest.mark.long
def test_an_evaluation_counts_labels_and_those_that_are_wrong(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate.main([str(runs.learned), str(runs.early), "--output", str(tmp_path), *QUIET])
    out = capsys.readouterr().out
    assert "bits/byte" not in out and "perplexity" not in out and "unigram" not in out and "bits per label" in out
    assert "learned is wrong in 0.00% of the labels, early in " in out
    with open(tmp_path / "table.csv", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    test = runs.store_of_test()
    for run in (runs.learned, runs.early):
        wrong, labels = naive_errors(find_checkpoint(run), test)
        assert float(rows[run.name]["error_rate"]) == wrong / labels and labels == test.manifest.totals.labels
        assert read_records(run / "metrics.jsonl")[-1].metrics["whole_test/error_rate"] == wrong / labels
        assert rows[run.name]["bits_per_byte"] == rows[run.name]["word_perplexity"] == ""
    assert float(rows["learned"]["error_rate"]) == 0 < float(rows["early"]["error_rate"])
    carried = json.loads((tmp_path / "report.json").read_text())["evaluations"][1]["carried"]
    assert sum(carried["bucket_errors"]) == carried["errors"] == naive_errors(find_checkpoint(runs.early), test)[0]
    assert (tmp_path / "errors.png").stat().st_size > 10_000


@alone
@pytest.mark.long
def test_runs_of_labels_are_compared_by_their_error_rates(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare.main([str(runs.learned), str(runs.early), "--output", str(tmp_path)])
    assert "errors" in capsys.readouterr().out
    validated = records_with(runs.early, "validation/error_rate")
    fewest = min(validated, key=lambda record: record.metrics["validation/error_rate"])
    with open(tmp_path / "comparison.csv", newline="") as file:
        compared = {row["run"]: row for row in csv.DictReader(file)}
    assert float(compared["learned"]["best_error_rate"]) == 0 and "best_bits_per_byte" not in compared["learned"]
    assert float(compared["early"]["best_error_rate"]) == fewest.metrics["validation/error_rate"]
    assert int(compared["early"]["best_step"]) == fewest.step


@alone
@pytest.mark.long
def test_a_model_of_labels_generates_no_text(runs: Runs) -> None:
    with pytest.raises(UserError, match="predicts labels and not the next token"):
        generate.main([str(runs.learned)])


@alone
@pytest.mark.long
def test_a_model_of_labels_is_exported_to_classify_tokens(runs: Runs, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    export.main([str(runs.learned), "--output", str(exported)])
    model = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    inputs = tokenizer("on on on off on off", return_tensors="pt")
    assert tokenizer.decode(model(input_ids=inputs.input_ids).logits.argmax(-1)[0, 2::3]) == "same other"
    labels = torch.tensor([[-100, -100, 2, -100, -100, 3]])  # each in the column of its symbol
    made = model(input_ids=inputs.input_ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(made.logits[0], labels[0], ignore_index=-100)
    torch.testing.assert_close(made.loss, expected)
    card = (exported / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card and "generation" not in card


def test_resumed_equals_undisturbed_bit_for_bit(train: Train) -> None:
    # 4: the checkpoint of step 10 lies between two points of the curve
    words = ("--log-every", "4", "--validate-every", "6", "--data.order", "sequential")
    undisturbed, resumed = train(*words, name="whole"), train(*words, name="halves")
    forget(resumed, 15, 20)
    train(*words, name="halves")
    last = "checkpoints/step-00000020"
    assert without_run_name(contents(undisturbed / last)) == without_run_name(contents(resumed / last))
    assert curve(undisturbed) == curve(resumed)
    assert any("train/error_rate" in metrics for _, metrics in curve(resumed))


@pytest.mark.long
def test_two_processes_count_what_one_does_and_either_goes_on(
    train: Train, task: PrepareConfig, tmp_path: Path
) -> None:
    words = ("--model.dropout", "0", "--log-every", "4", "--validate-every", "10")
    where = ("--data.store", task.store, "--data.corpus", "task", "--root", str(tmp_path / "runs"))
    alone = train(*words, name="one")
    with Group([*TINY, *where, *words, "--run", "two"], 2, tmp_path / "log") as group:
        assert group.wait() == [0, 0], group.said()
    shutil.copytree(tmp_path / "runs" / "two", tmp_path / "runs" / "resumed")
    forget(tmp_path / "runs" / "resumed", 15, 20)
    resumed = train(
        *words,
        name="resumed",
    )
    for folder in (tmp_path / "runs" / "two", resumed):
        for (step, ours), (other, theirs) in zip(curve(folder), curve(alone), strict=True):
            known = [name for name in theirs if not name.startswith("recurrence/")]  # these are of rank 0's lanes
            assert step == other and ours.keys() == theirs.keys()
            assert [ours[name] for name in known] == pytest.approx([theirs[name] for name in known], rel=1e-4, abs=1e-5)
            for name in ("train/error_rate", "validation/error_rate"):
                assert ours.get(name) == theirs.get(name)


def test_a_step_without_labels_trains_on_nothing(make_config: Callable[..., PrepareConfig], tmp_path: Path) -> None:
    made = make_config(
        corpus=Task(documents=3, length=2), segment_length=16
    )  # the first label would be that of the third
    prepare(made)
    where = ("--data.store", made.store, "--data.corpus", "task", "--root", str(tmp_path / "runs"))
    main([*TINY, *where, "--run", "none", "--validate-every", "0", "--steps", "5", "--optim.weight-decay", "0"])
    records = read_records(tmp_path / "runs" / "none" / "metrics.jsonl")
    assert all(r.metrics["train/gradient_norm"] == 0 and "train/error_rate" not in r.metrics for r in records)
    with pytest.raises(UserError, match="none of the 2 tokens read has a label"):
        main([*TINY, *where, "--run", "some", "--steps", "5"])


def test_a_run_is_resumed_in_the_order_of_its_documents_alone() -> None:
    config = PRESETS["small-rec"]
    before = to_json(config)
    check_resumable(before, config, "there")
    with pytest.raises(UserError, match=r"was trained with data\.order=shuffled, and this command says sequential"):
        check_resumable(before, with_fields(config, {"data.order": "sequential"}), "there")
    with pytest.raises(
        UserError,
        match=r"trained with model\.name=rec, and this command says slide: return to rec or choose another --run$",
    ):
        check_resumable(before, replace(PRESETS["small-slide"], steps=7), "there")
    with pytest.raises(UserError, match=r"add --allow-change model\.layers, which helps where the weights fit$"):
        check_resumable(before, with_fields(config, {"model.layers": 5}), "there")
    several = with_fields(config, {"seed": 1, "steps": 9, "data.segment_length": 512, "allow_change": ["seed"]})
    with pytest.raises(
        UserError,
        match=r"trained with data\.segment_length=1024, steps=2000, and this command says data\.segment_length=512, steps=9: "
        r"return to these values or choose another --run, or add --allow-change seed data\.segment_length steps$",
    ):
        check_resumable(before, several, "there")
    check_resumable(before, with_fields(several, {"allow_change": ["seed", "steps", "data.segment-length"]}), "there")


def test_lanes_labelled_or_not_are_scored_alike_by_any_number_of_lanes(train: Train, task: PrepareConfig) -> None:
    model = model_of(find_checkpoint(train("--steps", "5")))
    store = SegmentStore.open(task.store, "task", "validation")
    scores = [score_split(model, store, lanes=lanes, segment_length=16, world=World.alone()) for lanes in (1, 3)]
    assert scores[0].errors == scores[1].errors and scores[0].bucket_errors == scores[1].bucket_errors
    assert scores[0].nats == pytest.approx(scores[1].nats) and scores[0].tokens == store.manifest.totals.labels


def test_nats_and_errors_are_those_of_the_labelled_positions() -> None:
    logits, targets = torch.randn(2, 6, 5, requires_grad=True), torch.randint(5, (2, 6))
    targets[0, :4] = targets[1, 2] = -1
    nats, wrong = labelled_cross_entropy(logits, targets)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1)
    assert torch.allclose(nats, expected.view(2, 6)) and (nats[targets < 0] == 0).all()
    assert torch.equal(wrong, (logits.argmax(-1) != targets) & (targets >= 0))
    nats.sum().backward()
    assert logits.grad is not None and (logits.grad[targets < 0] == 0).all() and (logits.grad[targets >= 0] != 0).any()


def test_an_error_rate_by_position_is_open_where_nothing_is_labelled() -> None:
    score = Score(1.0, 6, 0, 0, 2, 8, (0.0, 0.5, 0.5), (0, 2, 4), errors=1, bucket_errors=(0, 0, 1))
    ends, rates = errors_by_position(score)
    assert ends.tolist() == [8, 16, 24] and np.isnan(rates[0]) and rates[1:].tolist() == [0, 0.25]
    assert score.error_rate == 1 / 6 and np.isnan(score.bits_per_byte)


@pytest.mark.parametrize("cache", ["none", ""])
def test_a_bucket_holds_the_targets_too(bucket: Callable[[str], str], task: PrepareConfig, cache: str) -> None:
    prepare(replace(task, store=bucket("store")))
    there, here = (
        SegmentStore.open(bucket("store"), "task", "train", cache=cache),
        SegmentStore.open(task.folder / "train"),
    )
    assert there.manifest == here.manifest
    for document, length in enumerate(here.lengths.tolist()):
        assert np.array_equal(there.targets(document, 0, length), here.targets(document, 0, length))
        assert np.array_equal(there.tokens(document, 0, length), here.tokens(document, 0, length))


def test_a_sweep_is_told_at_once_that_a_metric_is_never_logged(task: PrepareConfig, text_store: str) -> None:
    def problem(preset: str, metric: str, store: str, corpus: str) -> str:
        words = ["lr", "--preset", preset, "--metric", f"validation/{metric}", "--data.store", store]
        config = read_command([*words, "--data.corpus", corpus, "--validate-every", "10", "--run", "sweep"])
        try:
            check(config, combine(config.space, {"preset": preset, **flatten(to_json(config.train))}))
        except UserError as error:
            return str(error)
        return ""

    cleared = "bits_per_token_states_cleared"
    never = "so that validation/{} is never logged: choose another --metric"
    assert problem("small-rec", "error_rate", text_store, "text") == (
        "text does not label its tokens, " + never.format("error_rate")
    )
    assert problem("small-rec", "bits_per_byte", task.store, "task") == (
        "task labels its tokens, and labels have no bytes, " + never.format("bits_per_byte")
    )
    assert problem("small-slide", cleared, task.store, "task") == (
        "the model slide has no recurrent states, " + never.format(cleared)
    )
    for preset in ("small-rec", "tiny-walk-lstm", "tiny-walk-staircase", "tiny-walk-memorizing"):
        assert not problem(preset, cleared, task.store, "task") and not problem(preset, cleared, text_store, "text")
    assert not problem("small-slide", "error_rate", task.store, "task")
    assert not problem("small-slide", "bits_per_byte", text_store, "text")
