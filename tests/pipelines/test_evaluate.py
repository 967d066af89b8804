"""The evaluation command: its metrics against a computation of the test's own, its files, and its refusals."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from common.errors import UserError
from common.places import Place
from data_prep.store import SegmentStore
from pipelines import evaluate
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.run import config_hash_without_seed
from pipelines.inference.trained import find_checkpoint
from pipelines.prepare import PrepareConfig, prepare
from pipelines.reports import split_text
from pipelines.reports.evaluation import kept_evaluation
from pipelines.tracking.identity import saved_run
from pipelines.tracking.metrics_file import read_records
from pipelines.tracking.score import Evaluation
from recur_models import model_from_json
from tests.mlflow_server import Server
from tests.small_corpus import contents

pytestmark = pytest.mark.usefixtures("short_documents")
Train = Callable[..., Path]
QUIET = ("--tracking.backend", "none")


@pytest.fixture
def two_runs(train: Train) -> list[str]:
    plain = ("--steps", "5", "--model.gate", "lstm")
    return [str(train("--steps", "10", name="rec")), str(train(*plain, name="other"))]


def naive_bits_per_byte(checkpoint: Checkpoint, store: SegmentStore) -> float:
    """One document after the other, one block at a time, plain cross-entropy of the logits."""
    model = model_from_json(checkpoint.meta["config"]["model"]).build(checkpoint.meta["vocab_size"])
    model.load_state_dict(checkpoint.weights())
    model.eval()
    nats = 0.0
    for document, length in enumerate(store.lengths.tolist()):
        text = torch.from_numpy(store.tokens(document, 0, length).astype("int64"))
        inputs = torch.cat([torch.tensor([store.bod_id]), text[:-1]])
        padded = F.pad(inputs, (0, -length % model.block))
        state = None
        for start in range(0, length, model.block):
            with torch.no_grad():
                logits, state = model(padded[None, start : start + model.block], state)
            target = text[start : start + model.block]
            nats += float(F.cross_entropy(logits[0, : len(target)], target, reduction="sum"))
    return nats / math.log(2) / store.manifest.totals.bytes


@pytest.mark.parametrize("tokenizer", ["bytes", "sentencepiece:300"])
def test_characters_and_unigram_are_the_same_however_much_is_looked_at_together(
    tokenizer: str, make_config: Callable[..., PrepareConfig], text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text_folder / "test" / "signs.txt").write_text("ab" + "你好，世界。😀😀\ufffd\ufffdé" * 30 + "你" * 50, "utf-8")
    config = make_config(tokenizer=tokenizer)
    prepare(config)
    train, test = (SegmentStore.open(config.store, "text", split) for split in ("train", "test"))
    decode = test.tokenizer().decode
    texts = [decode(test.tokens(document, 0, length).tolist()) for document, length in enumerate(test.lengths.tolist())]
    assert any("😀" in text for text in texts)
    whole = split_text.unigram_bits_per_byte(train, test)
    for size in (4, 5, 6, 7, 9, 1_000_000):
        monkeypatch.setattr(split_text, "CHUNK_TOKENS", size)
        assert split_text.characters_of(test) == sum(map(len, texts))
        assert split_text.unigram_bits_per_byte(train, test) == pytest.approx(whole, rel=1e-12)


def test_metrics_table_and_files(
    two_runs: list[str], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "runs" / "reports" / "rec-vs-other" / "errors.png"  # of an evaluation on labels
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    (earlier.parent / "report.json").touch()
    evaluate.main([*two_runs, *QUIET])
    assert not earlier.exists()
    out = capsys.readouterr().out
    assert "unigram" in out and "cumulative.png" in out
    assert out.count("rec: clearing its recurrent states") == out.count("rec: clearing all of its State") == 1
    folder = tmp_path / "runs" / "reports" / "rec-vs-other"
    with open(folder / "table.csv", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"rec", "other", "unigram"}
    test = SegmentStore.open(store, "text", "test")
    for name, run in zip(("rec", "other"), two_runs, strict=True):
        checkpoint = find_checkpoint(Path(run))
        assert float(rows[name]["bits_per_byte"]) == pytest.approx(naive_bits_per_byte(checkpoint, test), rel=1e-5)
        logged = read_records(Path(run) / "metrics.jsonl")[-1]
        assert logged.step == checkpoint.step
        assert logged.metrics["whole_test/bits_per_byte"] == float(rows[name]["bits_per_byte"])
    assert (folder / "cumulative.png").stat().st_size > 10_000
    report = json.loads((folder / "report.json").read_text())
    assert json.dumps(report).count("bucket_nats") >= 6  # two models, carried and cleared twice


def test_runs_that_train_may_remove_the_checkpoints_that_were_found(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is scored, so that the newest now is read; and while the first run is scored."""
    words = ("--steps", "2", "--validate-every", "0", "--checkpoint.every", "1")
    runs = [train(*words, name=name) for name in ("one", "two")]
    find_output = evaluate.output_for
    score = evaluate.evaluate

    def find_while_one_trains(*found: Any) -> Place:
        shutil.rmtree(runs[0] / "checkpoints" / "step-00000002", ignore_errors=True)
        return find_output(*found)

    def score_while_both_train(*given: Any) -> Evaluation:
        for run in runs:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        return score(*given)

    monkeypatch.setattr(evaluate, "output_for", find_while_one_trains)
    monkeypatch.setattr(evaluate, "evaluate", score_while_both_train)
    evaluate.main([*map(str, runs), "--output", str(tmp_path / "report"), "--num-workers", "2", *QUIET])
    with open(tmp_path / "report" / "table.csv", newline="") as file:
        assert {row["name"]: row["steps"] for row in csv.DictReader(file) if row["steps"]} == {"one": "1", "two": "2"}
    assert not (tmp_path / "report" / evaluate.PARTIAL).exists()


def test_an_evaluation_that_ends_early_keeps_no_weights(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the next one keep those that a killed one has left."""
    run = train("--steps", "1", "--validate-every", "0")
    weights = next(run.rglob("model.safetensors"))
    partial = tmp_path / "report" / evaluate.PARTIAL
    left = partial / "weights" / "0badc0de"
    left.mkdir(parents=True)
    os.link(weights, left / weights.name)

    def interrupt(*_: Any) -> Evaluation:
        assert not left.exists() and weights.stat().st_nlink == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "evaluate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate.main([str(run), "--output", str(tmp_path / "report"), *QUIET])
    assert weights.stat().st_nlink == 1


def test_mlflow_has_the_runs_that_an_evaluation_is_of(server: Server, train: Train, tmp_path: Path) -> None:
    words = ("--tracking.uri", server.uri, "--tracking.system-metrics", "off", "--tracking.experiment", "evaluated")
    logged = ("--tracking.backend", "mlflow", "--tracking.models", "none", *words, "--steps", "2")
    runs = [train(*logged, name="one"), train(*logged, name="two"), train("--steps", "2", name="untracked")]
    ids = [saved_run(run)["run_id"] for run in runs[:2]]
    report = str(tmp_path / "report")

    def tags(*evaluated: Path) -> dict[str, str]:
        evaluate.main([*map(str, evaluated), "--clear", "--output", report, *words])
        found = server.run(saved_run(tmp_path / "report")["run_id"])
        (read,) = found["inputs"]["dataset_inputs"]
        assert json.loads(read["dataset"]["source"]) == {"uri": str(tmp_path / "store/text/test")}
        return {tag["key"]: tag["value"] for tag in found["data"]["tags"] if tag["key"].startswith("evaluated.")}

    first = {f"evaluated.{i}.checkpoint": str(run / "checkpoints/step-00000002") for i, run in enumerate(runs)}
    first |= {"evaluated.0": "one", "evaluated.1": "two", "evaluated.2": "untracked"}
    first |= {f"evaluated.{i}.run_id": run_id for i, run_id in enumerate(ids)}
    assert tags(*runs) == first
    again = tags(runs[1])
    assert (again["evaluated.0"], again["evaluated.0.run_id"], len(again)) == ("two", ids[1], 3)
    (parameters,) = (tag["value"] for tag in server.run(ids[0])["data"]["tags"] if tag["key"] == "parameters")
    assert int(parameters) == sum(tensor.numel() for tensor in find_checkpoint(runs[0]).weights().values())


def test_fewer_passes_have_a_report_of_their_own(two_runs: list[str], tmp_path: Path) -> None:
    """They would take the worth of states out of the report that has it."""
    reports = tmp_path / "runs" / "reports"
    evaluate.main([two_runs[0], *QUIET])
    full = contents(reports / "rec")
    for words, name in ((["--clear"], "rec-passes-carried"), (["--clear", "states"], "rec-passes-carried-states")):
        evaluate.main([two_runs[0], *words, *QUIET])
        (kept,) = json.loads((reports / name / "report.json").read_text())["evaluations"]
        assert kept["cleared_all"] is None and bool(kept["cleared_states"]) == (len(words) > 1)
    assert contents(reports / "rec") == full


def test_a_state_that_is_recurrent_alone_is_cleared_in_one_pass(
    train_model: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_model("lstm", "--steps", "2")
    evaluate.main([str(run), *QUIET])
    assert "all State cleared, " not in capsys.readouterr().err
    (kept,) = json.loads((run.parent / "reports" / run.name / "report.json").read_text())["evaluations"]
    assert kept["cleared_all"] == kept["cleared_states"] != kept["carried"]


def test_the_worth_of_all_state_alone(two_runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([two_runs[0], "--clear", "everything", *QUIET])
    out = capsys.readouterr().out
    assert "rec: clearing all of its State" in out and "its recurrent states" not in out


def test_a_named_checkpoint_and_another_split(two_runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main([f"{two_runs[0]}/checkpoints/step-00000005", "--split", "validation", *QUIET])
    assert "step 5" in capsys.readouterr().out
    assert Path(two_runs[0]).parent.joinpath("reports/rec-step-00000005-validation/report.json").exists()


def test_bfloat16_is_near_float32_and_has_a_report_and_metrics_of_its_own(
    two_runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(two_runs[0])
    found = {}
    for precision in ("float32", "bfloat16"):
        evaluate.main([str(run), "--precision", precision, *QUIET])
        logged = read_records(run / "metrics.jsonl")[-1].metrics
        found |= {name: value for name, value in logged.items() if name.endswith("/bits_per_byte")}
    assert "step 10, in bfloat16, on" in capsys.readouterr().out
    single = found["whole_test/bits_per_byte"]
    half = found["whole_test_precision_bfloat16/bits_per_byte"]
    assert half != single and half == pytest.approx(single, rel=1e-2)
    assert (tmp_path / "runs/reports/rec-bfloat16/report.json").exists()
    config = json.loads((run / "config.json").read_text())
    kept = kept_evaluation(run, config_hash_without_seed(config), config["seed"])
    assert kept is not None and kept.carried.bits_per_byte == single  # not the newest report's, which is in bfloat16


@pytest.mark.parametrize("folder", ["checkpoints/copy", "step-00000005"])
def test_a_lone_copy_of_a_checkpoint_writes_nothing_around_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    copy = tmp_path / "models/kept" / folder
    shutil.copytree(train("--steps", "5") / "checkpoints/step-00000005", copy)
    before = contents(tmp_path / "models")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    evaluate.main([str(copy), "--tracking.system-metrics", "off"])
    assert "report    runs/reports/run-" in capsys.readouterr().out
    assert contents(tmp_path / "models") == before and os.listdir(here) == ["runs"]
    marked = f"run-{Checkpoint.open(copy).digest[:8]}"  # a run of the name has a report of its own
    assert (here / "runs/reports" / marked / "table.csv").is_file()


@pytest.fixture
def read_only_run(train: Train, tmp_path: Path) -> Iterator[Path]:
    """A run on a disk that cannot be written to."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place]).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        trained = train("--steps", "5")
        shutil.copytree(trained, place / "runs/run")
        shutil.copytree(trained, place / "others/run")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        yield place / "runs/run"
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_run_that_cannot_be_written_to_is_scored_all_the_same(
    read_only_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"disk/there: name another folder with --output"):
        evaluate.main([str(read_only_run), "--output", str(read_only_run.parents[1] / "there")])
    assert "evaluating" not in capsys.readouterr().out  # it has said so before scoring
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    evaluate.main([str(read_only_run), *QUIET])
    out = capsys.readouterr().out
    assert "unigram" in out and "report    runs/reports/run-" in out and out.count("cannot be written") == 2
    evaluate.main([str(read_only_run.parents[1] / "others/run"), *QUIET])  # another run of this name
    assert len(list((here / "runs/reports").glob("run-*/table.csv"))) == 2


def test_many_names_make_a_folder_that_the_disk_takes(train: Train, tmp_path: Path) -> None:
    run = str(train("--steps", "5", name="long-" * 24))
    evaluate.main([run, run, run, *QUIET])
    folders = [path for path in (tmp_path / "runs/reports").iterdir() if path.is_dir()]
    assert (tmp_path / "runs/reports/index.html").is_file()
    assert len(folders) == 1 and len(folders[0].name) <= 150
    with open(folders[0] / "table.csv", newline="") as file:
        names = {row["name"] for row in csv.DictReader(file)}
    assert names == {"unigram", *(f"{'long-' * 24}@5.{i}" for i in (1, 2, 3))}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        ([], "name at least one run"),
        (["RUN", "--split", "tests"], "unknown split 'tests'"),
        (["RUN", "--corpus", "tex"], "tex"),
        (["RUN", "--stroe", "x"], r"did you mean --store\?"),
        (["EMPTY"], "holds no checkpoint"),
        (["SWEEP"], "is a sweep: name the folder of one of its trials"),
        (["FILE"], "is no folder: name the folder of a run"),
        (["RUN", "--output", "FILE"], "the report cannot be written to .*: name another folder with --output"),
        (["RUN", "--output", "FILE/x"], "the report cannot be written to .*: name another folder with --output"),
    ],
)
def test_refusals(train: Train, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "sweep").mkdir()
    file = tmp_path / "sweep" / "sweep.json"
    file.write_text("{}")
    names = {"EMPTY": str(tmp_path / "empty"), "SWEEP": str(file.parent), "FILE": str(file), "FILE/x": f"{file}/x"}
    if "RUN" in words:
        names["RUN"] = str(train("--steps", "5"))
    with pytest.raises(ValueError, match=message):
        evaluate.main([names.get(word, word) for word in words])


def test_a_report_without_a_picture_is_one(
    train: Train, make_config: Callable[..., PrepareConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train("--steps", "2", name="first")
    (tmp_path / "corpus" / "test" / "new.txt").write_text("one more document\n")
    prepare(make_config(store=str(tmp_path / "other")))
    second = train("--steps", "2", "--data.store", str(tmp_path / "other"), name="second")
    evaluate.main([str(first), str(second), *QUIET])
    out = capsys.readouterr().out
    assert "look      runs/reports/first-vs-second/table.csv\n" in out.replace(f"{tmp_path}/", "")
    assert "pipelines.ui" not in out  # MLflow has neither run


def test_where_mlflow_shows_an_evaluation_is_said(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("--steps", "2", "--tracking.backend", "mlflow", name="group/run")
    capsys.readouterr()
    evaluate.main([str(run)])
    assert f"or python -m pipelines.ui --root {tmp_path}/runs\n" in capsys.readouterr().out


def test_segments_far_longer_than_every_document_take_no_more_memory(train: Train, store: Path) -> None:
    run = train("--steps", "2")
    longest = int(SegmentStore.open(store, "text", "test").lengths.max())
    enough = -(-longest // 8) * 8
    assert enough > 32  # as in training
    for length in (enough, 10**12):
        evaluate.main([str(run), "--segment-length", str(length), *QUIET])
    one, other = (list(record.metrics.values()) for record in read_records(run / "metrics.jsonl")[-2:])
    assert one == other


def test_another_store_needs_the_override(train: Train, make_config: Callable[..., object], tmp_path: Path) -> None:
    from pipelines.prepare import prepare

    run = str(train("--steps", "5"))
    (tmp_path / "corpus" / "train" / "new.txt").write_text("one more document\n")
    other = str(tmp_path / "other")
    prepare(make_config(store=other))  # pyrefly: ignore
    with pytest.raises(ValueError, match=r"made from another store .*--allow-other-store"):
        evaluate.main([run, "--store", other, *QUIET])
    evaluate.main([run, "--store", other, "--allow-other-store", *QUIET])
    evaluate.main([run, "--segment-length", "16", *QUIET])
    evaluate.main([run, "--segment-length", "32", *QUIET])  # as in training
    fingerprint = SegmentStore.open(other, "text", "test").manifest.fingerprint
    names = [name.partition("/")[0] for record in read_records(Path(run) / "metrics.jsonl") for name in record.metrics]
    wholes = list(dict.fromkeys(name for name in names if name.startswith("whole")))
    assert wholes == [f"whole_test_text_{fingerprint[:8]}", "whole_test_segment_length_16", "whole_test"]
    reports = {path.parent.name for path in Path(run).parent.glob("reports/*/report.json")}  # none replaces another
    assert reports == {"run", f"run-text_{fingerprint[:8]}", "run-segment_length_16"}
    with pytest.raises(UserError, match=r"--segment-length is 20, and run has blocks of \d+: give a multiple"):
        evaluate.main([run, "--segment-length", "20", *QUIET])
    shutil.rmtree(Path(other) / "text/train")
    with pytest.raises(UserError, match=r"has no train split, .*: give --allow-other-store"):
        evaluate.main([run, "--store", other, *QUIET])
    different = str(tmp_path / "different")
    prepare(make_config(store=different, tokenizer="sentencepiece:300"))  # pyrefly: ignore
    with pytest.raises(ValueError, match="was trained with another tokenizer"):
        evaluate.main([run, "--store", different, "--allow-other-store", *QUIET])


def test_a_store_without_its_tokenizer_is_refused(train: Train, store: Path, tmp_path: Path) -> None:
    run = str(train("--steps", "2"))
    shutil.rmtree(store / "text" / "tokenizer")
    with pytest.raises(UserError, match=r"text/tokenizer/tokenizer\.json is missing: run the same prepare command"):
        evaluate.main([run, *QUIET])
    assert not (tmp_path / "runs" / "reports").exists()


def test_another_test_split_beside_the_same_training_text_is_named(
    train: Train, make_config: Callable[..., PrepareConfig], tmp_path: Path
) -> None:
    run = str(train("--steps", "2"))
    (tmp_path / "corpus" / "test" / "new.txt").write_text("one more document\n")
    other = str(tmp_path / "other")
    prepare(make_config(store=other))
    evaluate.main([run, *QUIET])
    evaluate.main([run, "--store", other, *QUIET])
    mark = f"text_{SegmentStore.open(other, 'text', 'test').manifest.fingerprint[:8]}"
    assert {path.parent.name for path in Path(run).parent.glob("reports/*/report.json")} == {"run", f"run-{mark}"}


def test_a_model_is_held_against_the_unigram_of_its_own_tokens(
    train: Train,
    store: Path,
    make_config: Callable[..., PrepareConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = tmp_path / "pieces"
    prepare(make_config(store=str(pieces), tokenizer="sentencepiece:300"))
    of_bytes = train("--steps", "2", name="of-bytes")
    of_pieces = train("--steps", "2", "--data.store", str(pieces), name="of-pieces")
    held: dict[str, float | None] = {}

    def remarks(evaluation: Evaluation, unigram: float | None) -> list[str]:
        held[evaluation.name] = unigram
        return []

    monkeypatch.setattr(evaluate, "remarks", remarks)
    evaluate.main([str(of_bytes), str(of_pieces), *QUIET])
    for name, folder in (("of-bytes", store), ("of-pieces", pieces)):
        splits = (SegmentStore.open(str(folder), "text", split) for split in ("train", "test"))
        assert held[name] == split_text.unigram_bits_per_byte(*splits)
    assert len({*held.values()}) == 2


def test_the_unigram_reference_counts_every_document(make_config: Callable[..., PrepareConfig]) -> None:
    config = make_config()
    prepare(config)
    train, test = (SegmentStore.open(config.store, "text", split) for split in ("train", "test"))

    def ids(store: SegmentStore) -> np.ndarray:
        return np.concatenate([store.tokens(i, 0, n) for i, n in enumerate(store.lengths.tolist())])

    counts = 1 + np.bincount(ids(train), minlength=257)
    bits = -np.log2(counts / counts.sum())[ids(test)].sum()
    assert len(train.lengths) > 1
    assert split_text.unigram_bits_per_byte(train, test) == pytest.approx(bits / test.manifest.totals.bytes)
