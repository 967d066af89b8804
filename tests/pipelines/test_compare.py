"""Comparing runs, and a sweep's report, from folders: invented curves, so that every value is known."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from PIL import Image
from rich.text import Text

from common.errors import UserError
from common.places import Place
from pipelines import compare as compare_script
from pipelines.compare import main, tracking_for
from pipelines.config.run import TrackingConfig
from pipelines.reports import comparison as comparison_report
from pipelines.reports import finished_runs
from pipelines.reports.comparison import (
    Comparison,
    compare,
    comparison_table,
    curves_of,
    rows,
    seeds_of,
    spots_of,
    title_of,
    write_comparison,
)
from pipelines.reports.finished_runs import BYTE, CLEARED, ERROR, TOKEN, TRAIN, FinishedRun, collect, run_of_folder
from pipelines.reports.importance import explained, importances
from pipelines.reports.sweep_figures import plot_importance
from pipelines.reports.sweep_findings import print_trials
from pipelines.reports.sweep_report import report_sweep, trial_rows
from pipelines.reports.sweep_result import MetricPoint, Point, SweepResult, TrialResult, points_of, read_sweep, spans
from pipelines.tracking import StoredRun
from pipelines.tracking.metrics_file import Record
from tests.small_sweep import FIELDS, small_sweep


def run(
    name: str = "a", tokenizer: str = "one", *, text: str = "books", store: str = "one", **curves: list[float]
) -> FinishedRun:
    """A run with a point every 100 steps, a second for each step, 10 tokens a step."""
    keys = {"token": TOKEN, "byte": BYTE, "train": TRAIN}
    records = []
    for i in range(max((len(values) for values in curves.values()), default=0)):
        metrics = {keys[key]: values[i] for key, values in curves.items()}
        records.append(Record(100 * (i + 1), 100_000 * i, {**metrics, "train/tokens": 1000.0 * (i + 1)}))
    return FinishedRun(name, "rec", 1_000_000, 6e6, tokenizer, text, store, tuple(records))


def test_the_table_has_best_and_last_and_what_they_cost() -> None:
    comparison = compare([run(token=[5.0, 4.0, 4.5], byte=[2.0, 1.6, 1.8]), run("b", token=[6.0], byte=[3.0])])
    first, second = rows(comparison)
    assert comparison.metric == TOKEN and comparison.notes == ()
    assert (first["best_bits_per_token"], first["final_bits_per_token"], first["best_step"]) == (4.0, 4.5, 200)
    assert (first["best_bits_per_byte"], first["final_bits_per_byte"]) == (1.6, 1.8)
    assert (first["tokens"], first["flops"], first["seconds"]) == (3000, 1.8e10, 200.0)
    assert second["seconds"] == 0.0 and second["worth_of_states_bits_per_token"] is None


def test_a_value_that_is_no_number_is_neither_the_best_nor_the_last() -> None:
    comparison = compare([run(token=[5.0, math.nan, 4.5, math.inf]), run("b", token=[6.0])])
    assert [point.value for point in comparison.runs[0].curve(TOKEN)] == [5.0, 4.5]
    told = [(row["best_bits_per_token"], row["final_bits_per_token"]) for row in rows(comparison)]
    assert told == [(4.5, 4.5), (6.0, 6.0)]
    with pytest.raises(UserError, match="b has no"):
        compare([run(token=[5.0]), run("b", token=[math.nan])])


def with_cleared(record: Record, more: float) -> Record:
    """The same with a value for cleared states."""
    return replace(record, metrics={**record.metrics, CLEARED: record.metrics[TOKEN] + more})


def test_seeds_of_one_thing_are_one_curve_with_a_band(tmp_path: Path) -> None:
    seeds = [replace(run(f"a-s{n}", token=[5.0 + n, 4.0 + n]), seed=n, config_hash="one") for n in range(3)]
    comparison = compare([*seeds, run("b", token=[6.0])])
    drawn = curves_of(comparison, TOKEN)
    assert len(drawn) == 2 and drawn["a, 3 seeds"].values_SP.tolist() == [[5.0, 4.0], [6.0, 5.0], [7.0, 6.0]]
    assert drawn["b"].values_SP.tolist() == [[6.0]]
    assert curves_of(comparison, CLEARED) == {}  # none has it
    cleared = [replace(seed, records=tuple(with_cleared(record, 0.5) for record in seed.records)) for seed in seeds]
    without = curves_of(compare([*cleared, run("b", token=[6.0])]), CLEARED)["a, 3 seeds"]
    assert without.values_SP.mean(0).tolist() == [6.5, 5.5]
    table = seeds_of(comparison)
    assert table is not None and list(table.columns[1].cells) == ["5.0000 ± 1.0000"]
    assert seeds_of(compare([seeds[0], run("b", token=[6.0])])) is None
    flops = [replace(each, forward_flops_per_token=2e6) for each in comparison.runs]
    spots = [(spot.name, spot.value) for spot in spots_of(compare(flops))[1]]
    assert spots == [("a, 3 seeds", 2**5.0), ("b", 2**6.0)]  # as perplexity
    longer = replace(run("a-s3", token=[5.0, 4.0, 3.0]), seed=3, config_hash="one")
    unlike = compare([*seeds, longer])  # one has come further than the others
    assert list(curves_of(unlike, TOKEN)) == ["a, 3 seeds", "a-s3"]
    other = seeds_of(unlike)
    assert other is not None and list(other.columns[1].cells) == ["5.0000 ± 1.0000"]
    assert write_comparison(comparison, tmp_path)[1].stat().st_size > 10_000


def test_different_tokenizers_compare_in_bits_per_byte_alone() -> None:
    comparison = compare([run(token=[5.0], byte=[2.0]), run("b", "two", token=[3.0], byte=[2.5])])
    assert comparison.metric == BYTE and "only bits per byte" in comparison.notes[0]
    assert "best_bits_per_token" not in rows(comparison)[0] and len(comparison.notes) == 1
    known = [replace(each, forward_flops_per_token=1e6, store=each.name) for each in comparison.runs]
    assert [spot.flops for spot in spots_of(compare(known))[1]] == pytest.approx([4e5, 1e6 * 2.5 / 3])  # per byte
    assert [spot.flops for spot in spots_of(compare(known[:1]))[1]] == [1e6]
    with pytest.raises(ValueError, match=r"b has no validation/bits_per_byte"):
        compare([run(token=[5.0], byte=[2.0]), run("b", "two", token=[3.0])])


def test_without_a_common_metric_there_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"no metric in common: .* and no train/bits_per_token; b has no validation/bits_per_token"
    ):
        compare([run(token=[5.0]), run("b", train=[5.0])])
    with pytest.raises(ValueError, match="b has no metric to compare"):
        compare([run(token=[5.0]), run("b")])
    assert compare([run(train=[5.0], token=[4.0]), run("b", train=[5.0])]).metric == TRAIN
    assert "different text" in compare([run(token=[5.0]), run("b", text="code", token=[5.0])]).notes[0]


def test_runs_of_two_stores_are_told_apart_though_their_corpora_have_one_name() -> None:
    two = [
        replace(run(name, store=name, token=[5.0]), seed=number, config_hash="one") for number, name in enumerate("ab")
    ]
    comparison = compare(two)
    assert comparison.notes == ("they were trained on different stores, so their text may differ: a on a; b on b",)
    assert seeds_of(comparison) is None and len(curves_of(comparison, TOKEN)) == 2
    assert compare([run(token=[5.0]), run("b", store="", token=[5.0])]).notes == ()
    tokenizers = {"a": "one", "b": "one", "c": "two"}
    three = compare([run(name, it, store=name, token=[5.0], byte=[2.0]) for name, it in tokenizers.items()])
    assert "only bits per byte" in three.notes[0] and not three.of_one_text
    assert three.notes[1].endswith("different stores, so their text may differ: a on a; b on b; c on c")


def bold(comparison: Comparison) -> list[str]:
    """The cells of the table that stand out."""
    cells = [cell for column in comparison_table(comparison).columns for cell in column.cells]
    return [cell.plain for cell in cells if isinstance(cell, Text) and cell.style]


def test_no_run_is_the_best_where_the_text_differs(tmp_path: Path) -> None:
    good, bad = run(token=[4.0]), replace(run("b", token=[5.0]), forward_flops_per_token=4e6)
    good = replace(good, forward_flops_per_token=2e6)
    alike = compare([good, bad])
    assert "4.0000" in bold(alike) and title_of(alike).endswith("lower is better")
    assert tmp_path / "frontier.png" in write_comparison(alike, tmp_path)
    assert "4.0000" in bold(compare([good, replace(bad, store="")]))  # one that is not known
    for other in (replace(bad, text="code"), replace(bad, store="two")):
        comparison = compare([good, other])
        assert bold(comparison) == []
        assert "lower is better" not in title_of(comparison) and comparison.notes[0] in title_of(comparison)
        assert tmp_path / "frontier.png" not in write_comparison(comparison, tmp_path)


@pytest.mark.parametrize(
    ("runs", "below"), [(3, False), (4, True)]
)  # with the curves of cleared states 6 and 8 entries
def test_a_legend_of_many_entries_is_below_the_curves(
    runs: int, below: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(comparison_report, "save_figure", lambda figure, path: figures.append(figure) or path)
    made = [run(f"run-{n}", token=[5.0 + n, 4.0 + n]) for n in range(runs)]
    made = [replace(each, records=tuple(with_cleared(record, 0.5) for record in each.records)) for each in made]
    comparison_report.plot_comparison(compare(made), tmp_path / "comparison.png")
    (figure,) = figures
    inside = figure.axes[0].get_legend()
    assert (inside is None, len(figure.legends)) == (below, int(below))
    legend = figure.legends[0] if below else inside
    assert legend is not None and len(legend.get_texts()) == 2 * runs
    figure.draw_without_rendering()
    assert not below or legend.get_window_extent().y1 < figure.axes[0].get_window_extent().y0


def test_training_curves_are_drawn_where_nobody_validated(tmp_path: Path) -> None:
    curve = [4 + 100 / step for step in range(10, 510, 10)]
    table, picture = write_comparison(compare([run(train=curve), run("again", train=curve[:40])]), tmp_path / "out")
    pixels = np.asarray(Image.open(picture).convert("RGBA"))  # four bytes a pixel, of which the last is the same
    assert pixels.shape[1] > 1000 and len(np.unique(pixels.view(np.uint32))) > 20
    assert [row["best_train_bits_per_token"] for row in csv.DictReader(table.open())] == ["4.2", "4.25"]


def test_a_pause_is_no_wall_time() -> None:
    times = [*range(0, 100, 10), *range(5000, 5050, 10)]
    records = timed(*enumerate(times))
    assert spans(records) == ((0.0, 90.0), (5000.0, 5040.0)) and spans([]) == ()
    assert seconds_of(records) == 130.0


def timed(*points: tuple[int, int]) -> tuple[Record, ...]:
    """Records at these steps and seconds."""
    return tuple(Record(step, 1000 * time, {TOKEN: 5.0, "train/tokens": float(step)}) for step, time in points)


def seconds_of(records: tuple[Record, ...]) -> float:
    """The wall time of a run with these records."""
    (row,) = rows(compare([FinishedRun("a", "rec", 1, 1.0, "t", "x", "s", records)]))
    return row["seconds"]


def test_a_long_validation_is_wall_time() -> None:
    """Both records of the last step of five: after training, and after a validation of 90 s."""
    points = [(step, step) for step in range(100)]
    validated = timed(*points, (99, 189), *((step, step + 90) for step in range(100, 110)))
    assert seconds_of(validated) == 199.0 and spans(validated) == ((0.0, 199.0),)
    assert spans(timed(*enumerate([0, 100, 200, 700, 800]))) == ((0.0, 800.0),)  # not 20 times as long as is usual


def test_a_clock_that_is_set_back_takes_no_wall_time() -> None:
    assert seconds_of(timed(*enumerate([0, 10, 20, 5, 15]))) == 30.0


def test_tokens_and_wall_time_are_those_of_one_step() -> None:
    training = tuple(Record(step, 1000 * step, {"train/tokens": 100.0 * step}) for step in range(101, 491))
    one = replace(run(), records=(*timed(*((step, step) for step in range(101))), *training))
    (row,) = rows(compare([one]))
    assert (row["tokens"], row["seconds"]) == (49_000, 490.0)


def test_each_metric_has_its_own_best() -> None:
    values = [(0.5, 0.02), (0.9, 0.01), (0.3, 0.01)]
    records = tuple(
        Record(step, 1000 * step, {TOKEN: bits, ERROR: wrong, "train/tokens": float(step)})
        for step, (bits, wrong) in enumerate(values)
    )
    (row,) = rows(compare([replace(run(), records=records)]))
    assert (row["best_bits_per_token"], row["best_error_rate"], row["best_step"]) == (0.3, 0.01, 1)


def test_an_evaluation_that_came_later_is_no_training_time(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", 2)
    trial = folder / "trials/000"
    write_config(trial, "sweep/trials/000")
    before = read_sweep(folder).trials[0].spans, run_of_folder(trial).curve(TOKEN)
    last = json.loads((trial / "metrics.jsonl").read_text().splitlines()[-1])
    for seconds in (30, 86_400):
        late = {**last, "time": last["time"] + 1000 * seconds, "metrics": {"whole_test/bits_per_byte": 1.0}}
        with (trial / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(late) + "\n")
        assert (read_sweep(folder).trials[0].spans, run_of_folder(trial).curve(TOKEN)) == before


def test_trials_that_failed_are_compared_neither_by_folder_nor_by_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(_config: object, _root: object, run_id: str, _keys: object) -> StoredRun:
        if run_id == "0" * 32:
            return StoredRun(run_id, "sweep", {"metric": TOKEN}, {}, (), ("good", "failed"))
        record = Record(1, 0, {TOKEN: {"good": 5.0, "failed": 4.0}[run_id], "train/tokens": 1.0})
        tags = {"trial.status": {"good": "finished"}.get(run_id, run_id)}
        return StoredRun(run_id, run_id, {"model.name": "rec"}, tags, (record,), ())

    monkeypatch.setattr(finished_runs, "read_run", stored)
    found = collect(["0" * 32], TrackingConfig(), Path("runs"), every_trial=True)
    assert [run.name for run in found] == ["good"]


def test_the_best_value_of_the_table_is_no_failed_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path / "sweep", 8)  # the last one failed
    path = folder / "trials/007/trial.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "best": {"step": 100, TOKEN: 1.5}}))
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "160")):
        monkeypatch.setenv(name, value)
    sweep = read_sweep(folder)
    print_trials(sweep)
    out = capsys.readouterr().out
    assert f"\x1b[1m{sweep.scored[0].best_value:.4f}" in out and "1.5000" in out and "\x1b[1m1.5000" not in out


def test_a_copy_of_a_trials_folder_is_no_trial(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", 4)
    shutil.copytree(folder / "trials/003", folder / "trials/003-copy")
    assert [trial.id for trial in read_sweep(folder).trials] == ["000", "001", "002", "003"]


def test_steps_that_are_swept_stand_beside_those_that_were_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path / "sweep", 2)
    for path in [folder / "sweep.json", *folder.glob("trials/*/trial.json")]:
        values = json.loads(path.read_text())
        changed = {"fields": ["steps"]} if "fields" in values else {"values": {"steps": 90_000}}
        path.write_text(json.dumps({**values, **changed}))
    sweep = read_sweep(folder)
    assert [(row["steps"], row["steps_asked"]) for row in trial_rows(sweep)] == [(600, 90_000)] * 2
    print_trials(sweep)
    out = capsys.readouterr().out
    assert "90000" in out and "600" in out


def test_a_sweep_that_cannot_be_written_to_is_compared_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path / "sweep", 2)
    for trial in (folder / "trials").iterdir():
        write_config(trial, trial.name)

    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(folder / "report"))

    monkeypatch.setattr(compare_script, "report_sweep", refuse)
    main([str(folder), "--output", str(tmp_path / "out"), "--tracking.backend", "none"])
    out, error = capsys.readouterr()
    assert "sweep/000" in out and f"warning: no report of the sweep sweep: {folder}/report: Permission denied" in error


def write_config(folder: Path, run: str) -> None:
    """The config.json of a run, as far as it is read to compare it."""
    config = {"run": run, "model": {"name": "rec"}, "data": {"store": "nowhere", "corpus": "text"}}
    (folder / "config.json").write_text(json.dumps(config))


def named_run(folder: Path, name: str) -> None:
    """A run's folder as `pipelines.train` leaves it, as far as it is compared: a point of its curve."""
    (folder / name).mkdir(parents=True)
    write_config(folder / name, name)
    line = {"step": 10, "time": 1, "metrics": {"train/tokens": 100.0, TOKEN: 4.0}}
    (folder / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("names", "words", "expected"),
    [
        (["mine/a", "yours/b"], [], "mine/reports/compare-a-vs-b-????????"),
        (["mine/sweep/trials/003"], [], "mine/reports/compare-sweep-trials-003"),
        (["mine/a"], ["--trials", "best"], "mine/reports/compare-a-best"),
        (["mine/a"], ["--root", "other"], "other/reports/compare-a-????????"),
        (["mine/a"], ["--output", "other"], "other"),
    ],
)
def test_a_report_is_beside_the_first_run(
    names: list[str], words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        root, _, run_name = name.partition("/")
        named_run(tmp_path / "all" / root, run_name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folders = [f"../all/{name}" for name in names]
    main([*folders, *words, "--tracking.backend", "none"])
    above = tmp_path / ("here" if {"--root", "--output"} & set(words) else "all")
    assert len(list(above.glob(f"{expected}/comparison.csv"))) == 1
    assert not (tmp_path / "here/runs").exists()


def test_two_comparisons_with_runs_of_one_name_elsewhere_have_a_report_each(tmp_path: Path) -> None:
    for name in ("a/x", "b/x", "c/x"):
        named_run(tmp_path / name.partition("/")[0], "x")
    for other in ("b", "c"):
        main([str(tmp_path / "a/x"), str(tmp_path / other / "x"), "--tracking.backend", "none"])
    assert len(list(tmp_path.glob("a/reports/compare-x-vs-x-*/comparison.csv"))) == 2


def test_a_comparison_is_recorded_where_the_first_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the command line says otherwise."""
    monkeypatch.chdir(tmp_path)
    named_run(tmp_path / "runs", "a")
    path = tmp_path / "runs/a/config.json"
    server = f"sqlite:///{tmp_path / 'server.db'}"
    tracking = {"uri": server, "backend": "mlflow", "experiment": "books"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "tracking": tracking}))
    main(["runs/a"])
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("books")
    assert experiment is not None
    assert [run.info.run_name for run in client.search_runs([experiment.experiment_id])] == ["compare a"]
    assert not (tmp_path / "runs/mlflow.db").exists()
    assert tracking_for(TrackingConfig(backend="none"), [Place.parse("runs/a")]).uri == ""
    named_run(tmp_path / "runs/sweep/trials", "000")
    (tmp_path / "runs/sweep/sweep.json").write_text("{}")
    trial = tmp_path / "runs/sweep/trials/000/config.json"
    trial.write_text(json.dumps({**json.loads(trial.read_text()), "tracking": tracking}))
    assert tracking_for(TrackingConfig(), [Place.parse("runs/sweep")]).uri == server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:1")
    assert tracking_for(TrackingConfig(), [Place.parse("runs/a")]).uri == server
    asked = TrackingConfig(uri="http://other:5000")
    assert tracking_for(asked, [Place.parse("runs/a")]) == asked


@pytest.mark.slow
def test_runs_of_two_vocabularies_by_the_command(
    train: Callable[..., Path], make_config: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelines.prepare import prepare

    config = make_config(tokenizer="sentencepiece:300", store=str(tmp_path / "pieces"))
    prepare(config)
    bytes_run, again = train(name="bytes"), train("--optim.lr", "1e-2", name="again")
    pieces = train("--data.store", str(tmp_path / "pieces"), name="pieces")
    capsys.readouterr()
    words = ["--root", str(tmp_path / "runs"), "--tracking.backend", "none"]
    main([str(bytes_run), str(again), *words])
    told = capsys.readouterr().out
    assert "bits/token" in told and "note" not in told
    main([str(bytes_run), str(pieces), *words, "--output", str(tmp_path / "out")])
    told = capsys.readouterr().out
    assert "bits/token" not in told and "only bits per byte" in told
    table = list(csv.DictReader((tmp_path / "out/comparison.csv").read_text().splitlines()))
    assert [row["run"] for row in table] == ["bytes", "pieces"] and float(table[0]["worth_of_states_bits_per_token"])
    lines = [json.loads(line)["metrics"] for line in (bytes_run / "metrics.jsonl").read_text().splitlines()]
    validated = [line for line in lines if TOKEN in line]
    # A byte is a token of the first run, so that its two values are one
    assert all(line[TOKEN] == pytest.approx(line[BYTE], rel=1e-9) for line in validated)
    assert float(table[0]["best_bits_per_byte"]) == min(line[BYTE] for line in validated)
    assert Image.open(tmp_path / "out/comparison.png").width > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere is neither the folder of a run or a sweep nor the id"),
        (["0" * 32], "holds no mlflow.db to look the run"),
        ([], "name at least one run or sweep"),
        (["."], "is not the folder of a run or a sweep, since it has no config.json: name a folder that"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        main([*words, "--tracking.backend", "none"])
    assert list(tmp_path.iterdir()) == []


def test_the_folder_above_a_run_names_the_run(train: Callable[..., Path]) -> None:
    folder = train("--steps", "2")
    with pytest.raises(ValueError, match=rf"is not the folder of a run .*: did you mean {folder}\?"):
        main([str(folder.parent), "--tracking.backend", "none"])


def test_a_damaged_config_is_read_from_the_checkpoint_and_lost_metrics_are_named(train: Callable[..., Path]) -> None:
    folder = train("--steps", "4", "--checkpoint.every", "2")
    before = finished_runs.run_of_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text('{"model":')
    assert finished_runs.run_of_folder(folder) == before
    (folder / "metrics.jsonl").write_text("")  # stopped before its first record
    assert finished_runs.run_of_folder(folder).name == before.name
    for odd in (
        {"model": 7},
        {"model": {"name": []}},
        {"data": None},
        {"data": {"store": "x"}},
        {"validate_tokens": "x"},
    ):
        (folder / "config.json").write_text(json.dumps(config | odd))
        assert finished_runs.run_of_folder(folder).name == before.name, "the checkpoint's config counts"
    (folder / "metrics.jsonl").write_text("garbage")
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl is missing or damaged: restore it, or name the run by its id"
    ):
        finished_runs.run_of_folder(folder)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(ValueError, match=r"config\.json is damaged, or not that of a run: repeat the training command"):
        finished_runs.run_of_folder(folder)
    for kind in ("throughline", "llama"):
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ValueError, match="is a saved model, which has no curve: name the folder of its run"):
            finished_runs.run_of_folder(folder)


@pytest.mark.slow
def test_a_sweep_is_reported_from_its_folder(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep")
    names = {path.name for path in report_sweep(folder)}
    assert names == {path.name for path in (folder / "report").iterdir()}
    pictures = {f"{name}.png" for name in ("parallel", "fields", "importance", "curves", "timeline")}
    assert names == {"trials.csv", "winner.txt", *pictures}
    table = list(csv.DictReader((folder / "report/trials.csv").read_text().splitlines()))
    assert len(table) == 12 and [row["rank"] for row in table] == [*map(str, range(1, 12)), ""]
    best = [float(row["best"]) for row in table[:-1]]
    assert best == sorted(best) and table[-1]["status"] == "failed" and "nan" in table[-1]["reason"]
    assert (folder / "report/winner.txt").read_text().startswith("python -m pipelines.train small-rec --optim.lr")
    assert set(table[0]) >= {*FIELDS, "tokens", "flops", "seconds", "last"}
    assert report_sweep(folder, final=False) == []  # the last one is younger than a minute


@pytest.mark.slow
@pytest.mark.parametrize("trials", [1, 2, 30])
def test_any_number_of_trials_is_drawn(trials: int, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", trials, fields=FIELDS[: 1 + trials % 4])
    for path in report_sweep(folder):
        if path.suffix == ".png":
            pixels = np.asarray(Image.open(path).convert("L"))
            assert pixels.shape[0] > 250 and 0.001 < (pixels < 200).mean() < 0.6


@pytest.mark.parametrize(
    "damaged",
    ["[" * 100_000, '{"tracking": "x"}', '{"tracking": null}', '{"tracking": {"uri": 5, "backend": "mlflow"}}'],
)
def test_a_damaged_config_does_not_say_where_to_track(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(damaged)
    asked = TrackingConfig(uri="", backend="mlflow")
    assert tracking_for(asked, [Place.parse(tmp_path)]) == asked.located()


def test_trials_that_have_no_value_yet_are_drawn_too(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", 3)
    for path in folder.glob("trials/*/trial.json"):
        trial = json.loads(path.read_text()) | {"best": None, "last": None, "status": "running"}
        path.write_text(json.dumps(trial))
    (folder / "best.json").unlink()
    assert {path.name for path in report_sweep(folder)} == {"trials.csv", "timeline.png"}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("sweep.json", "{", r"sweep\.json is damaged"),
        ("sweep.json", "[" * 100_000, r"sweep\.json is damaged: it is nested too deeply"),
        ("sweep.json", "{}", "lacks 'metric'"),
        ("sweep.json", None, "is not the folder of a sweep"),
        ("trials/001/trial.json", "[1]", "holds no JSON object"),
    ],
)
def test_a_damaged_sweep_is_one_sentence(name: str, content: str | None, sentence: str, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", 2)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=sentence):
        report_sweep(folder)


def test_importance_sees_values_that_differ_in_a_fourth_digit() -> None:
    reached = np.tile([1.0, 2.0], 8)
    assert explained([0.9990, 0.9994] * 8, reached) == explained([0.1, 0.2] * 8, reached)


def test_a_trial_stopped_before_anothers_first_value_is_compared_there() -> None:
    def trial(name: str, *points: tuple[int, float]) -> TrialResult:
        made = tuple(Point(step, 10.0 * step, 0.0, value) for step, value in points)
        return TrialResult(name, {"optim.lr": float(name)}, "stopped", best=MetricPoint(1, 1.0), points=made)

    trials = (trial("1", (1, 5.0)), trial("2", (4, 4.0)), trial("3", (2, 3.0), (4, 2.0)))
    _, count, tokens = importances(SweepResult("s", "p", "m", ("optim.lr",), trials, None))
    assert (count, tokens) == (3, 40.0)


def test_the_first_value_of_a_step_counts() -> None:
    records = [Record(10, time, {TOKEN: value, "train/tokens": 1.0}) for time, value in ((1, 5.0), (2, 4.0))]
    assert [point.value for point in points_of(records, TOKEN)] == [5.0]


def test_importance_finds_the_field_that_matters_and_not_the_others(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    lr = 10 ** generator.uniform(-4, -1, 60)
    scores = 5 + (np.log10(lr) + 2.5) ** 2 + 0.02 * generator.standard_normal(60)  # best in the middle
    share, chance = explained(lr.tolist(), scores) or (0.0, 1.0)
    assert share > 0.8 > 0.3 > chance
    noise = [explained([("a", "b", "c")[i] for i in generator.integers(0, 3, 60)], scores) for _ in range(100)]
    assert 0.86 < np.mean([share < chance for share, chance in filter(None, noise)]) <= 1
    assert explained(["a"] * 60, scores) is None and explained([1.0, 2.0], scores[:2]) is None
    assert explained([1.0, 2.0, 3.0], scores[:3]) is None and explained(["a", "b", "c", "d"], scores[:4]) is None
    shares, count, tokens = importances(read_sweep(small_sweep(tmp_path / "sweep", 24)))
    assert max(shares, key=lambda name: (shares[name] or (0, 0))[0]) == "optim.lr" and count == 23
    assert tokens == 200 * 1024  # which those stopped early have reached too
    assert plot_importance(read_sweep(tmp_path / "sweep"), tmp_path / "x.png").exists()
