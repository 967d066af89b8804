"""The whole pipeline as one command: what is done is skipped, what has changed is done again, what fails stops the rest."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from common.places import Place
from pipelines.prepare import PrepareConfig, prepare
from pipelines.run import PipelineConfig, main, stages
from tests.small_runs import TINY
from tests.waiting import wait_until

# TINY's options as `--set` has them, and none of its preset's name.
PAIRS = [f"{name.removeprefix('--')}={value}" for name, value in zip(TINY[1::2], TINY[2::2], strict=True)]


def words(text_folder: Path, root: Path, *more: str, steps: int = 4) -> list[str]:
    text = ["--corpus", "text", "--source", str(text_folder)]
    where = ["--store", str(root / "store"), "--root", str(root / "runs")]
    pairs = [*PAIRS, f"steps={steps}", "validate_every=0", "checkpoint.every=2"]
    return ["small-rec", *text, *where, "--set", *pairs, *more]


@pytest.mark.long
def test_done_stages_are_skipped_and_changed_ones_done_again(
    text_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words(text_folder, tmp_path)) == 0
    said = capfd.readouterr().out
    assert "[1/3] prepare: python -m pipelines.prepare text" in said and "small-rec: all 3 stages are done" in said
    assert (tmp_path / "runs/reports/small-rec/table.csv").is_file()

    assert main(words(text_folder, tmp_path)) == 0
    said = capfd.readouterr().out
    assert said.count("done before, and nothing has changed since") == 3 and "python -m" not in said

    newest = max((tmp_path / "runs/small-rec/checkpoints").iterdir())
    (newest / "checkpoint.json").unlink()  # damaged: training resumes at an older one, and makes it anew
    assert main(words(text_folder, tmp_path)) == 0
    said = capfd.readouterr().out
    assert "[1/3] prepare: done before" in said and "[2/3] train small-rec: python -m" in said
    assert (newest / "checkpoint.json").is_file()

    (text_folder / "train" / "doc0.txt").write_text("another text, which must not be taken for the first one")
    assert main(words(text_folder, tmp_path)) == 2  # the store says which split was prepared from other text
    streams = capfd.readouterr()
    assert "was prepared with another text" in streams.err
    assert (
        "[1/3] prepare: cannot be done as asked" in streams.err
        and "not begun: train small-rec, evaluate" in streams.err
    )


@pytest.mark.slow
def test_a_signal_stops_the_stage_which_saves_and_the_same_command_goes_on(text_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipelines.run", *words(text_folder, tmp_path, steps=3000)]
    log = tmp_path / "log"
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_until(lambda: process.poll() is not None or "step 10/" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 75, log.read_text()
    said = log.read_text()
    assert "stopped after step" in said and "asked to stop, and saved" in said and "not begun: evaluate" in said
    assert list((tmp_path / "runs/small-rec/checkpoints").glob("step-*"))


SWEPT = PipelineConfig(
    "demo-rec", tune="lr", tune_set=("num_samples=4",), set=("steps=9",), root="/r", name="a"
).located()


def test_the_stages_of_a_comparison() -> None:
    config = PipelineConfig("demo-rec", also=("demo-slide",), tokenizer="bytes").located()
    assert [s.name for s in stages(config)] == ["prepare", "train demo-rec", "train demo-slide", "evaluate", "compare"]


def test_the_stages_of_a_sweep_train_its_winner() -> None:
    planned = stages(SWEPT)
    assert [s.name for s in planned] == ["prepare", "tune a-demo-rec", "train a-demo-rec", "evaluate"]
    tune, train = planned[1].words, planned[2].words
    assert tune[:5] == ("lr", "--preset", "demo-rec", "--run", "a-demo-rec-sweep")
    assert tune[-4:] == ("--steps", "9", "--num_samples", "4")
    assert train[:3] == ("/r/a-demo-rec-sweep/best.json", "--run", "a-demo-rec") and train[-2:] == ("--steps", "9")


def test_the_winner_of_a_short_sweep_trains_as_long_as_the_preset() -> None:
    brief = replace(SWEPT, tune_set=("num_samples=4", "steps=3", "validate-every=2", "optim.lr=1"), set=())
    assert stages(brief)[2].words[-4:] == ("--steps", "1000", "--validate-every", "200")


def test_a_flag_is_passed_on_as_train_has_it() -> None:
    config = PipelineConfig("demo-rec", set=("model.feedback=true", "model.feedback=False")).located()
    assert stages(config)[1].words[-2:] == ("--model.feedback", "--model.no-feedback")


def test_a_value_that_begins_with_a_dash_is_passed_on() -> None:
    config = PipelineConfig("demo-rec", name="-n", source="-s", tokenizer="bytes", set=("tracking.experiment=-x",))
    prepare, train, evaluate = stages(config.located())
    assert "--source=-s" in prepare.words and prepare.reads == (Place.parse("-s"),)
    assert "--run=-n-demo-rec" in train.words and train.words[-1] == evaluate.argv[0] == "--tracking.experiment=-x"


def test_reports_of_two_splits_are_two_folders() -> None:
    config = PipelineConfig("demo-rec").located()
    (tested,), (validated,) = (stages(replace(config, split=split))[2].writes for split in ("test", "validation"))
    assert (tested.name, validated.name) == ("demo-rec", "demo-rec-validation")


def test_a_tracking_address_with_a_password_is_passed_to_the_evaluation() -> None:
    """No checkpoint records it."""
    config = PipelineConfig("demo-rec", set=("tracking.uri=http://me:pw@host:5000",)).located()
    assert stages(config)[2].argv[:2] == ["--tracking.uri", "http://me:pw@host:5000"]


def test_a_pipeline_reads_its_tokenizers_file(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    config = PipelineConfig("demo-rec", corpus="text", source=str(tmp_path / "texts")).located()
    assert len(stages(replace(config, tokenizer=str(tokenizer)))[0].reads) == 2
    assert len(stages(replace(config, tokenizer="sentencepiece:300"))[0].reads) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["demo-recc"], "unknown preset 'demo-recc': did you mean 'demo-rec'"),
        (["demo-rec", "--set", "steps"], "--set steps: write a field and its value"),
        (["demo-rec", "--retries", "-1"], "--retries is -1"),
        (["demo-rec", "--set", "steps=5", "--set", "optim.lr=1"], "--set is given twice, and only the last one counts"),
        (["demo-rec", "--set", "root=x"], "--set root=x: the stages agree on that; see --name, --root"),
        (["demo-rec", "--set", "optim.name=sgd"], "--set optim.name=sgd: invalid choice 'sgd' for argument"),
        (
            ["demo-rec", "--set", "steps=10", "stepss=1"],
            "--set stepss=1: unknown option --stepss: did you mean --steps",
        ),
        (
            ["demo-rec", "--set", "steps=5", "--tune", "lr", "--tune-set", "steps=abc"],
            "--tune-set steps=abc: --steps is 'abc': write a whole number",
        ),
        (["demo-rec", "--set", "steps=many"], "--set steps=many: --steps is 'many': write a whole number in digits"),
        (
            ["demo-rec", "--set", "model.feedback=perhaps"],
            "--set model.feedback=perhaps: unexpected argument 'perhaps'",
        ),
        (
            ["demo-rec", "--set", "seed=-9223372036854775808"],
            "--set seed=-9223372036854775808: --seed is -9223372036854775808: give more than -922337203685",
        ),
        (
            ["demo-rec", "--also", "demo-slide", "--set", "model.statez=4"],
            "--set model.statez=4: unknown option --model.statez: did you mean --model.states",
        ),
        (["demo-rec", "--also", "demo-rec"], "--also demo-rec: each preset is trained once"),
        (["demo-rec", "--split", "tset"], "unknown split 'tset': did you mean 'test'"),
        (["demo-rec", "--corpus", "python-sorce"], "there is no corpus 'python-sorce': did you mean 'python-source'"),
        (["demo-rec", "--name", "../x"], "run is '../x-demo-rec': it must be the name of a folder"),
        (["demo-rec", "--tune-set", "steps=4"], "--tune-set steps=4 is given without --tune: add a space"),
        (["demo-rec", "--tune", "lrr"], "unknown space 'lrr': did you mean 'lr'"),
        (["demo-slide", "--tune", "lr+states"], "varies model.states, which demo-slide does not have"),
        (
            ["demo-rec", "--tune", "lr", "--tune-set", "num_samples"],
            "--tune-set num_samples: write a field and its value",
        ),
        (
            ["demo-rec", "--tune", "lr", "--tune-set", "num_sampels=3"],
            "--tune-set num_sampels=3: unknown option --num_sampels: did you mean --num-samples",
        ),
    ],
)
def test_bad_words_are_sentences(words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.run.run_jobs", lambda *_, **__: pytest.fail("a stage was begun"))
    with pytest.raises(ValueError, match=sentence.replace("(", "\\(")):
        main(words)


def test_a_split_that_was_removed_is_prepared_again(make_config: Callable[..., PrepareConfig]) -> None:
    made = make_config()
    prepare(made)
    config = PipelineConfig("small-rec", corpus="text", source=made.corpus.source, store=made.store).located()
    marks = [stages(config)[0].fingerprint()]
    for split in ("test", "validation"):
        shutil.rmtree(made.folder / split)
        marks.append(stages(config)[0].fingerprint())
    assert all(marks) and len(set(marks)) == 3  # without them, too: a corpus may have no such split
    shutil.rmtree(made.folder / "train")
    assert stages(config)[0].fingerprint() == ""


def test_training_reads_its_sweep_and_evaluation_its_text(tmp_path: Path) -> None:
    config = PipelineConfig("demo-rec", tune="lr", root=str(tmp_path), store=str(tmp_path / "store")).located()
    *_, train, evaluate = stages(config)
    assert Place.parse(tmp_path / "demo-rec-sweep/best.json") in train.reads
    assert Place.parse(tmp_path / "store/python-source/test/manifest.json") in evaluate.reads


def test_a_searched_preset_keeps_its_own_model() -> None:
    given = ("model.dropout=0.5", "steps=3")
    config = PipelineConfig("pg19-rec-fixed-skip", tune="rec-table-3-window", tune_set=given).located()
    again = stages(config)[2].words
    assert "--steps" in again and "--model.dropout" not in again
