"""Where the report of a command that reads held-out text goes, on disk and in MLflow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from common.errors import UserError
from pipelines import compare, evaluate
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.run import TrackingConfig
from pipelines.inference.targets import suffix_of
from pipelines.tracking import Tracker
from studies import continuations, tokens
from tests.small_corpus import contents

Train = Callable[..., Path]
QUIET = ("--tracking.backend", "none")
COMMANDS = (
    (evaluate, "{}", ()),
    (tokens, "tokens-{0}-cleared-vs-{0}", ()),
    (continuations, "continuations-{}-places-1-new-tokens-8", ("--places", "1", "--new-tokens", "8")),
)
"""Commands, what their reports are called, and words that make them quick."""


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrackingConfig, Path]]:
    """The config and the folder of each run that is begun in MLflow, where it is not."""
    begun, real = list[tuple[TrackingConfig, Path]](), Tracker.start

    def start(config: TrackingConfig, root: Path, *args: Any, **options: Any) -> Tracker:
        begun.append((config, root))
        return real(replace(config, backend="none"), root, *args, **options)

    monkeypatch.setattr(Tracker, "start", start)
    return begun


@pytest.mark.parametrize(("command", "name", "words"), COMMANDS)
def test_a_report_is_tracked_where_its_run_is(
    train: Train, tracked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: ModuleType, name: str,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    run = train("--steps", "2", "--tracking.backend", "mlflow", name="sweep/trials/000")
    ((trained, root),) = tracked
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:1")
    for output in ((), ("--output", str(tmp_path / "out/x"))):
        command.main([str(run), *words, *output])
        config, home = tracked[-1]
        assert (config.backend, config.uri, config.experiment, home) == (
            "mlflow",
            trained.uri,
            trained.experiment,
            root,
        )
        assert root == tmp_path / "runs"


@pytest.mark.parametrize(("command", "name", "words"), COMMANDS)
def test_a_lone_copy_of_a_checkpoint_is_reported_in_the_working_folder(
    train: Train, tracked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: ModuleType, name: str,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    (checkpoint,) = (train("--steps", "2") / "checkpoints").iterdir()
    copy = tmp_path / "models/kept" / checkpoint.name
    shutil.copytree(checkpoint, copy)
    before, here = contents(tmp_path / "models"), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    command.main([str(copy), *words])
    assert contents(tmp_path / "models") == before and os.listdir(tmp_path / "models") == ["kept"]
    marked = f"{name.format('run')}-{Checkpoint.open(copy).digest[:8]}"
    assert (here / "runs/reports" / marked).is_dir() and tracked[-1][1] == here / "runs"


@pytest.mark.parametrize(("command", "name", "words"), COMMANDS)
def test_each_split_has_a_report_of_its_own(
    train: Train, tmp_path: Path, command: ModuleType, name: str, words: tuple[str, ...]
) -> None:
    run = train("--steps", "2")
    for split in ("test", "validation"):
        command.main([str(run), "--split", split, *words, *QUIET])
    folders = [path.name for path in (tmp_path / "runs/reports").iterdir() if path.is_dir()]
    assert sorted(folders) == [name.format("run"), f"{name.format('run')}-validation"]
    with pytest.raises(UserError, match="unknown split 'test/': did you mean 'test'"):
        command.main([str(run), "--split", "test/", *words, *QUIET])


def test_a_renamed_run_has_a_report_of_its_own(train: Train, tmp_path: Path) -> None:
    """Another run may have its old name since."""
    run = train("--steps", "2")
    evaluate.main([str(run), *QUIET])
    run.rename(run.with_name("baseline"))
    evaluate.main([str(run.with_name("baseline")), *QUIET])
    folders = [path.name for path in (tmp_path / "runs/reports").iterdir() if path.is_dir()]
    assert sorted(folders) == ["run", "run-baseline"]


def test_the_report_of_a_trial_stands_beside_its_sweep(train: Train, tmp_path: Path) -> None:
    run = train("--steps", "2", name="sweep/trials/000")
    (tmp_path / "runs/sweep/sweep.json").write_text("{}")
    evaluate.main([str(run), *QUIET])
    assert (tmp_path / "runs/reports/sweep-trials-000/report.json").exists()
    assert not (tmp_path / "runs/sweep/trials/reports").exists()


def test_the_name_of_a_report_says_whose_checkpoint_was_read() -> None:
    config: Any = SimpleNamespace(chosen="", checkpoint="newest")

    def suffix(*marks: str) -> str:
        targets: list[Any] = [SimpleNamespace(mark=mark, differences=()) for mark in marks]
        return suffix_of(targets, config)

    assert (suffix("step-1"), suffix(""), suffix("", "")) == ("-step-1", "", "")
    assert suffix("step-1", "") != suffix("", "step-1")


@pytest.mark.parametrize("command", [evaluate, tokens, continuations, compare])
def test_no_report_takes_the_place_of_a_run(train: Train, tmp_path: Path, command: ModuleType) -> None:
    run, sweep, own = train("--steps", "2"), tmp_path / "runs/sweep", tmp_path / "runs/own"
    embedded = tmp_path / "runs/embedded"
    own_files = (own / "table.csv", own / "documents.png", own / "metrics.jsonl")
    for file in (embedded / "part-00000.arrow", sweep / "sweep.json", *own_files):
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    (checkpoint,) = (run / "checkpoints").iterdir()
    split = Path(json.loads((run / "config.json").read_bytes())["data"]["store"]) / "text/test"
    before = contents(tmp_path / "runs"), contents(split)
    for folder, what in (
        (run, r"config\.json belongs to a run"),
        (sweep, r"sweep\.json belongs to a sweep"),
        (checkpoint, r"checkpoint\.json belongs to a checkpoint"),
        (split, r"manifest\.json belongs to a split"),
        (own, r"has files of its own, such as documents\.png"),
        (embedded, r"has files of its own, such as part-00000\.arrow"),
    ):
        with pytest.raises(UserError, match=rf"{what}.*: name .* folder with --output"):
            command.main([str(run), "--output", str(folder), *QUIET])
    assert (contents(tmp_path / "runs"), contents(split)) == before


@pytest.mark.parametrize(("command", "name", "words"), [*COMMANDS, (compare, "", ())])
def test_a_report_takes_the_place_of_an_earlier_one(
    train: Train, tmp_path: Path, command: ModuleType, name: str, words: tuple[str, ...]
) -> None:
    run, output = (
        train("--steps", "2", name="checkpoint"),
        tmp_path / "out",
    )  # whose losses have a checkpoint.json beside them
    output.mkdir()
    (output / ".hidden").touch()
    arguments = [str(run), "--output", str(output), *words, *QUIET]
    command.main(arguments)
    written = sorted(contents(output))
    (output / "of-the-users.txt").touch()
    command.main(arguments)
    assert sorted(contents(output)) == sorted([*written, "of-the-users.txt"])
