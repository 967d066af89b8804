"""Tables, plots and files of a report, against values computed by hand."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console
from rich.table import Table

from pipelines.reports import evaluation_figures
from pipelines.reports.evaluation import (
    evaluation_rows,
    evaluation_table,
    kept_evaluation,
    read_report,
    seeds_of,
    spots_of,
    write_report,
)
from pipelines.reports.evaluation_figures import by_position, plot_cumulative, plot_worth, worth_of
from pipelines.reports.files import briefly
from pipelines.reports.seeds import groups, members, plot_mean
from pipelines.terminal.cli import file_name
from pipelines.terminal.output import pass_progress
from pipelines.tracking.score import Evaluation, Score
from tests.small_evaluations import BIT, REC, SLIDE, score

UNIGRAM = {REC.store_fingerprint: 5.5}


def printed(table: Table) -> str:
    console = Console(file=StringIO(), width=160, force_terminal=True, color_system="standard", markup=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_word_perplexity_of_millions_is_three_digits() -> None:
    untrained = replace(SLIDE, name="untrained", carried=score(8.3, 8.3, 8.3))  # 166 bits on 5 words: 9.87e9
    shown = printed(evaluation_table([REC, untrained]))
    assert "9.87e+09" in shown and "9,8" not in shown
    seeds = seeds_of([replace(seed, carried=untrained.carried) for seed in SEEDS])
    assert seeds and "9.87e+09 ± 0.00" in printed(seeds)


def test_rows_are_what_the_hand_computes() -> None:
    rec, slide, unigram = evaluation_rows([REC, SLIDE], UNIGRAM)
    assert rec["bits_per_token"] == pytest.approx(88 / 20)
    assert rec["bits_per_byte"] == pytest.approx(88 / 40)
    assert rec["word_perplexity"] == pytest.approx(2 ** (88 / 5))
    assert rec["states_cleared_bits_per_byte"] == pytest.approx(104 / 40)
    assert rec["states_cleared_difference"] == pytest.approx(16 / 40)
    assert rec["all_cleared_difference"] == pytest.approx(32 / 40)
    assert (rec["name"], rec["model"], rec["parameters"], rec["steps"]) == ("demo-rec", "rec", 3_400_000, 180)
    assert slide["states_cleared_bits_per_byte"] is None and slide["all_cleared_difference"] is None
    assert unigram["name"] == "unigram" and unigram["bits_per_byte"] == 5.5 and unigram["bits_per_token"] is None
    assert rec.keys() == slide.keys() == unigram.keys()


def test_the_best_is_bold_and_the_reference_is_there() -> None:
    text = printed(evaluation_table([REC, SLIDE], UNIGRAM))
    assert "\x1b[1m2.2000" in text and "\x1b[1m2.4000" not in text and "2.4000" in text
    assert "2.6000 (+0.4000)" in text and "3.0000 (+0.8000)" in text
    assert "demo-rec (rec)" in text and "unigram" in text and "5.5000" in text
    assert "3.4M" in text and "737k" in text and "python-source/test" in text


def test_names_that_look_like_markup_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = replace(REC, name="run[v2][/s]", split="a[b]/test")
    text = printed(evaluation_table([odd, replace(SLIDE, split=odd.split)]))
    assert "run[v2][/s] (rec)" in text and "a[b]/test" in text and "\x1b[1m2.2000" in text
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pass_progress("{run}[v2][/s]") as progress:
        progress(completed=1, total=2)
    assert "{run}[v2][/s]" in capsys.readouterr().out


def test_what_stands_alone_or_on_other_data_has_no_best() -> None:
    assert "\x1b[1m2.2000" not in printed(evaluation_table([REC]))
    text = printed(evaluation_table([REC, replace(SLIDE, split="pg19/test")]))
    assert "\x1b[1m2.2000" not in text and "pg19/test" in text and "python-source/test" in text
    other_text = replace(SLIDE, carried=replace(SLIDE.carried, bytes=SLIDE.carried.bytes + 1))
    assert "\x1b[1m2.2000" not in printed(evaluation_table([REC, other_text]))


def test_clipped_documents_have_no_bytes() -> None:
    clipped = replace(SLIDE, carried=score(6.0, 4.5, 3.0, byte=0))
    row = evaluation_rows([clipped])[0]
    assert row["bits_per_byte"] is None and row["bits_per_token"] == pytest.approx(96 / 20)
    assert "bits/\nbyte" not in [column.header for column in evaluation_table([clipped]).columns]
    assert "–" in printed(evaluation_table([clipped, SLIDE]))


def test_curves_by_position_are_what_the_hand_computes() -> None:
    positions, bits, documents = by_position(REC.carried)
    assert positions.tolist() == [4, 8, 12]
    assert bits.tolist() == pytest.approx([6.0, 5.0, 4.4])
    assert documents.tolist() == [2, 2, 1]


def colours(path: Path) -> int:
    """Different colours of a picture: one or two in an empty plot."""
    pixels = imread(path)
    assert pixels.shape[0] > 600 and pixels.shape[1] > 1000
    red, green, blue = (pixels[..., i] * 255 for i in range(3))
    return len(np.unique(red.astype(np.uint32) << 16 | green.astype(np.uint32) << 8 | blue.astype(np.uint32)))


def test_long_names_are_cut_where_they_stay_apart() -> None:
    one, two = (f"tiny-pg19-rec-{'x' * 40}-{middle}-{'y' * 40}-seed-0" for middle in "ab")
    assert briefly(["short", one]) == {"short": "short", one: f"{one[:21]}…{one[-22:]}"}
    assert briefly([one, two]) == {one: one, two: two}


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "both"
    write_report([SLIDE], folder)
    paths = write_report([REC, SLIDE], folder, UNIGRAM)  # over the first
    assert sorted(path.name for path in paths) == sorted(path.name for path in folder.iterdir())
    values = json.loads((folder / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert values["table"][2]["bits_per_byte"] == 5.5
    assert values["evaluations"][0]["carried"]["bucket_tokens"] == [8, 8, 4]
    assert values["evaluations"][1]["cleared_states"] is None
    with open(folder / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["demo-rec", "slide", "unigram"]
    assert float(rows[0]["bits_per_byte"]) == pytest.approx(2.2) and rows[1]["states_cleared_difference"] == ""
    assert colours(folder / "cumulative.png") > 50


def test_a_model_with_larger_blocks_ends_at_its_own_total() -> None:
    """One document of 900 tokens, which one model reads in buckets of 16 and the other, 1 % worse everywhere, in one of 512."""

    def evaluated(name: str, bucket: int, share: float) -> Evaluation:
        bits = share * (2 + 2.5 * np.exp(-np.arange(900) / 300))
        starts = np.arange(0, 900, bucket)
        nats = tuple((BIT * np.add.reduceat(bits, starts)).tolist())
        tokens = tuple(np.add.reduceat(np.ones(900, int), starts).tolist())
        carried = Score(sum(nats), 900, 100, 900, 1, bucket, nats, tokens)
        return replace(SLIDE, name=name, model=name, carried=carried)

    ((_, _, _, more_SP),) = worth_of([evaluated("fine", 16, 1.0), evaluated("coarse", 512, 1.01)]).lines
    assert more_SP[0, -1] == pytest.approx(1.0)


def test_each_store_has_its_own_unigram_reference() -> None:
    other = replace(SLIDE, split="other/test", store_fingerprint="e" * 32)
    rows = evaluation_rows([REC, other], {other.store_fingerprint: 4.1, **UNIGRAM})
    assert [(row["name"], row["split"], row["bits_per_byte"]) for row in rows[2:]] == [
        ("unigram (slide's store)", "other/test", 4.1),
        ("unigram (demo-rec's store)", REC.split, 5.5),
    ]


def test_the_picture_of_what_state_is_worth_needs_something_to_set_beside_the_best(tmp_path: Path) -> None:
    path = tmp_path / "worth.png"
    other = replace(SLIDE, store_fingerprint="e" * 32)
    assert plot_worth([SLIDE], path) == [] == plot_worth([REC, other], path) and not path.exists()
    assert plot_worth([SLIDE, REC], path) == [path] and colours(path) > 20


def test_characters_and_the_published_count_of_words() -> None:
    (row,) = evaluation_rows([replace(REC, characters=22)])
    assert row["bits_per_character"] == pytest.approx(88 / 22) and row["published_word_perplexity"] is None
    assert evaluation_rows([REC])[0]["bits_per_character"] is None
    books = replace(REC, split="pg19/test", carried=replace(REC.carried, documents=100, nats=7e6, words=9))
    (row,) = evaluation_rows([books])
    assert row["published_word_perplexity"] == pytest.approx(math.exp(7e6 / 6_966_499))
    assert "by the count" in printed(evaluation_table([books])) and "by the count" not in printed(
        evaluation_table([REC])
    )
    twelve = replace(books, carried=replace(books.carried, documents=12))
    assert evaluation_rows([twelve])[0]["published_word_perplexity"] is None


SEEDS = [
    replace(SLIDE, name=f"slide-seed-{seed}", seed=seed, config_hash="one", carried=score(6.0, bits, 3.0))
    for seed, bits in enumerate((4.0, 4.5, 5.0))
]


def test_other_steps_texts_and_doubles_are_no_seeds_of_one_thing() -> None:
    later = [replace(e, step=900, name=f"late-{e.seed}") for e in SEEDS]
    assert groups([*SEEDS, *later]) == {"slide, 3 seeds": [0, 1, 2], "late, 3 seeds": [3, 4, 5]}
    elsewhere = [SEEDS[0], replace(SEEDS[1], store_fingerprint="e" * 32)]
    assert groups(elsewhere) == {} and groups([*SEEDS, SEEDS[0]]) == {}
    named = [replace(e, name=name) for e, name in zip([*SEEDS[:2], *later[:2]], ("x1", "x2", "x3", "x4"), strict=True)]
    assert groups(named) == {"x1 and others, 2 seeds": [0, 1], "x3 and others, 2 seeds": [2, 3]}
    for names, told in ((("lanes1", "lanes2"), "lanes"), (("s-seed-1", "s-seed-12"), "s"), (("7", "8"), "7")):
        pair = [replace(e, name=name) for e, name in zip(SEEDS, names, strict=False)]
        assert list(groups(pair)) == [f"{told}, 2 seeds"]


def test_metrics_by_token_of_other_tokens_are_not_set_beside_each_other(tmp_path: Path) -> None:
    other = replace(SLIDE, store_fingerprint="e" * 32, flops_per_token=2.0)
    bold = "\x1b[1m"
    alike = replace(SLIDE, flops_per_token=2.0)
    assert (
        printed(evaluation_table([REC, alike])).count(bold) == printed(evaluation_table([REC, other])).count(bold) + 1
    )
    names = {path.name for path in write_report([replace(REC, flops_per_token=1.0), other], tmp_path)}
    assert "cumulative.png" not in names and spots_of([REC, other])[0] == "perplexity per word"
    (spot,) = spots_of([REC, other])[1]
    assert spot.flops == 2.0 * 20 / 40  # per byte
    assert spots_of([REC, alike])[1][0].flops == 2.0
    wordless = [replace(e, flops_per_token=1.0, carried=replace(e.carried, words=0)) for e in (REC, other)]
    assert spots_of(wordless) == ("perplexity per token", [])


def test_an_evaluation_of_another_training_of_the_name_is_not_the_runs(tmp_path: Path) -> None:
    kept = replace(REC, name="mine", config_hash="one", seed=0)
    write_report([kept], tmp_path / "reports" / "mine")
    found = kept_evaluation(tmp_path / "mine", "one", 0)
    assert found is not None and (found.step, found.carried.nats) == (kept.step, kept.carried.nats)
    assert kept_evaluation(tmp_path / "mine", "two", 0) is None and kept_evaluation(tmp_path / "mine", "one", 1) is None
    write_report([replace(kept, step=kept.step - 1)], tmp_path / "reports" / "mine-step-before")
    every = replace(kept, cleared_at="-cleared-every-4")
    write_report([every], tmp_path / "reports" / "mine-cleared-every-4")
    found = kept_evaluation(tmp_path / "mine", "one", 0)
    assert found is not None and (found.step, found.cleared_at) == (kept.step, "")
    assert every.alike != kept.alike
    write_report([replace(every, step=kept.step + 1)], tmp_path / "reports" / "mine-cleared-every-4")
    found = kept_evaluation(tmp_path / "mine", "one", 0)
    assert found is not None and (found.step, found.cleared_at) == (kept.step + 1, "-cleared-every-4")


def test_an_evaluation_is_found_of_a_trial_and_among_many(tmp_path: Path) -> None:
    trial, last = (replace(REC, name=name, config_hash=name, seed=0) for name in ("sweep/trials/003", "last"))
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.json").write_text("{}")
    write_report([trial], tmp_path / "reports" / file_name("sweep/trials/003"))  # where evaluate writes it
    found = kept_evaluation(tmp_path / "sweep/trials/003", "sweep/trials/003", 0)
    assert found is not None and found.name == trial.name
    write_report([REC, last], tmp_path / "reports" / file_name(f"{'long-' * 40}-vs-last"))
    found = kept_evaluation(tmp_path / "last", "last", 0)
    assert found is not None and found.name == "last"


def test_documents_are_counted_in_whole_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        drawn.append(figure)
        return path

    monkeypatch.setattr(evaluation_figures, "save_figure", keep)
    plot_cumulative([REC], tmp_path / "cumulative.png")
    ticks = drawn[0].axes[1].get_yticks()
    assert len(ticks) > 1 and np.array_equal(ticks, np.round(ticks))


def test_seeds_of_one_thing_are_a_mean_and_a_deviation(tmp_path: Path) -> None:
    shown = printed(seeds_of([REC, *SEEDS]) or Table())
    assert "slide, 3 seeds" in shown and "4.8000 ± 0.2000" in shown and "demo-rec" not in shown
    ascii_text = printed(
        seeds_of([replace(seed, characters=40, cleared_states=REC.carried) for seed in SEEDS]) or Table()
    )
    assert "-0.2000 ± 0.1000" in ascii_text and "bits/character" not in ascii_text
    tenth = [replace(seed, name=f"rec-1{number}") for number, seed in enumerate(SEEDS)]
    assert "rec, 3 seeds" in printed(seeds_of(tenth) or Table())  # and not rec-1, which is another run
    assert seeds_of([REC, SLIDE]) is None and seeds_of(SEEDS[:1] * 2) is None
    write_report([REC, *SEEDS], tmp_path)
    (row,) = json.loads((tmp_path / "report.json").read_text())["seeds"]
    assert row["bits_per_byte"] == pytest.approx(96 / 40) and row["bits_per_byte_deviation"] == pytest.approx(4 / 40)
    assert plot_worth([REC, *SEEDS], tmp_path / "worth.png") and colours(tmp_path / "worth.png") > 20
    worth = worth_of([REC, *SEEDS])
    found = {(name, what): more_SP[:, -1].tolist() for name, what, _, more_SP in worth.lines}
    assert found["slide, 3 seeds", "State carried"] == pytest.approx([100 * (bits / 88 - 1) for bits in (92, 96, 100)])
    assert found["demo-rec", "recurrent states cleared"] == pytest.approx([100 * (104 / 88 - 1)])
    assert (worth.best, worth.ends_P.tolist(), worth.bits) == ("demo-rec", [4, 8, 12], pytest.approx(4.4))
    tenth = [
        replace(e, cleared_states=score(6.6, 1.1 * bits, 3.3)) for e, bits in zip(SEEDS, (4.0, 4.5, 5.0), strict=True)
    ]
    ((_, _, _, more_SP),) = worth_of(tenth).lines  # each seed against itself
    assert more_SP == pytest.approx(np.full((3, 3), 10.0))
    assert members([REC, *SEEDS]) == {"slide, 3 seeds": list(SEEDS), "demo-rec": [REC]}
    assert members([REC, REC]) == {"demo-rec (1)": [REC], "demo-rec (2)": [REC]}
    other = replace(SEEDS[1], store_fingerprint="e" * 32)
    assert len(members([SEEDS[0], other])) == 2  # of another text
    assert read_report(tmp_path) == json_of([REC, *SEEDS])


def json_of(evaluations: list[Evaluation]) -> list[Evaluation]:
    """With lists where JSON has no tuples."""

    def lists(score: Score) -> Score:
        return Score(**json.loads(json.dumps(vars(score))))

    passes = ("carried", "cleared_states", "cleared_all")
    made = [{name: lists(score) for name in passes if (score := getattr(e, name))} for e in evaluations]
    return [replace(e, **dict[str, Any](changed)) for e, changed in zip(evaluations, made, strict=True)]


def test_plots_of_one_model_and_of_models_with_different_blocks(tmp_path: Path) -> None:
    other = replace(SLIDE, carried=Score(88 * BIT, 20, 5, 40, 2, 8, (80 * BIT, 8 * BIT), (16, 4)))
    assert colours(plot_cumulative([REC], tmp_path / "one.png")) > 20
    assert colours(plot_cumulative([other, REC], tmp_path / "two.png")) > 20


@pytest.mark.parametrize(("models", "letters", "columns"), [(2, 2, 0), (3, 2, 2), (3, 30, 1)])
def test_a_long_legend_is_below_the_curves(
    models: int, letters: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(evaluation_figures, "save_figure", lambda figure, path: figures.append(figure))
    plot_worth([replace(REC, name=f"{number}" * letters) for number in range(models)], tmp_path / "worth.png")
    (figure,) = figures
    (axes,) = figure.axes
    figure.draw_without_rendering()
    if not columns:  # six entries
        assert axes.get_legend() and not figure.legends
        return
    (legend,) = figure.legends
    assert axes.get_legend() is None and len(legend.get_texts()) == 9
    box, curves = legend.get_window_extent(), axes.get_window_extent()
    assert box.y1 < curves.y0 and box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert curves.height > 250  # of 420
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) == columns


def test_the_best_of_several_seeds_has_a_band_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(evaluation_figures, "save_figure", lambda figure, path: figures.append(figure))
    worst = replace(SLIDE, name="worst", carried=score(8.0, 8.0, 8.0))
    plot_worth([*SEEDS, worst], tmp_path / "worth.png")
    (axes,) = figures[0].axes
    (band,) = axes.collections
    vertices: Any = band.get_paths()[0].vertices
    ends = {round(height, 3) for position, height in vertices.tolist() if position == 12}
    assert ends == {-4.167, 4.167}  # the seeds need 92, 96 and 100 bits
    assert worth_of([*SEEDS, worst]).seeds_SP[:, -1] == pytest.approx([-100 / 24, 0, 100 / 24])


def test_the_band_of_seeds_is_the_deviation_of_the_table() -> None:
    axes = Figure().add_subplot()
    plot_mean(axes, np.array([1.0, 2.0]), np.array([[5.0, 4.0], [6.0, 5.0], [7.0, 6.0]]), "-", color="k")
    (band,) = axes.collections
    vertices: Any = band.get_paths()[0].vertices
    assert sorted(set(vertices[:, 1].tolist())) == [4.0, 5.0, 6.0, 7.0]
