"""The Pareto frontier, and its picture of evaluations, of runs that are compared and of sweeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from pipelines.reports.evaluation import spots_of as evaluation_spots
from pipelines.reports.evaluation import write_report
from pipelines.reports.frontier import Spot, as_plotted, curves_of, label_spots, pareto, plot_frontier, without_beaten
from pipelines.reports.sweep_report import report_sweep, spots_of
from pipelines.reports.sweep_result import read_sweep
from pipelines.tracking.score import architecture_of, windows_of
from tests.small_evaluations import REC, SLIDE
from tests.small_sweep import small_sweep


def spot(flops: float, value: float, **windows: int) -> Spot:
    return Spot(f"{flops}", "gpt2", windows, flops, value)


def test_the_frontier_is_what_nothing_beats(tmp_path: Path) -> None:
    def differ(spots: list[Spot]) -> bool:
        return bool(plot_frontier(spots, "perplexity", "FLOPs", tmp_path / "frontier.png"))

    best = [spot(1, 9), spot(2, 7), spot(5, 6)]
    assert pareto([spot(3, 8), best[2], spot(2, 8), best[1], spot(6, 6), best[0], spot(5, 7)]) == best
    assert not differ([spot(1.186e6, 2), spot(1.192e6, 3)]) and not differ([])
    assert differ([spot(1, 2), spot(1.1, 2)])


def test_a_line_joins_the_best_of_those_that_cost_the_same() -> None:
    """Trials that differ in their rate alone lie above one another, and would make it a zigzag."""
    curve = [spot(1, 2), spot(2, 9), spot(2, 5), spot(2, 7, window=3), spot(4, 1)]
    assert without_beaten(curve) == [curve[0], curve[2], curve[3], curve[4]]


def test_bits_per_token_are_shown_as_perplexity() -> None:
    diverged = 1e6
    perplexities = [8.0, 2.0**1000]
    assert as_plotted("validation/bits_per_token", [3.0, diverged]) == ("validation perplexity per token", perplexities)
    assert as_plotted("validation/error_rate", [0.25]) == ("validation errors per label", [0.25])


def test_stacks_of_other_mixers_have_lines_of_their_own(tmp_path: Path) -> None:
    layers = {"000": ["delta", "window"], "001": ["mamba2"], "003": ["window", *["delta"] * 5]}
    folder = small_sweep(tmp_path / "sweep", 4)
    for trial, mixers in layers.items():
        model = {"name": "mixers", "layers": mixers, "window": 64}
        (folder / "trials" / trial / "config.json").write_text(json.dumps({"model": model}))
    curves = curves_of(spots_of(read_sweep(folder))[1], by_overlap=False)
    assert {label: sorted(spot.name for spot in curve) for label, curve in curves.items()} == {
        "mixers (delta, window)": ["000", "003"],
        "mixers (mamba2)": ["001"],
    }
    assert architecture_of({"name": "rec", "layers": 12}) == "rec" and architecture_of({}) == ""


def test_a_block_that_nothing_attends_to_is_no_window(tmp_path: Path) -> None:
    assert windows_of({"name": "lstm", "window": 16}) == windows_of({"name": "mixers", "layers": ["delta"]}) == {}
    assert windows_of({"name": "mixers", "layers": ["delta", "window"], "window": 64}) == {"window": 64}
    assert windows_of({"name": "gpt2", "window": 300, "overlap": 10}) == {"window": 300, "overlap": 10}
    assert windows_of({"name": "transformer-xl", "window": 16, "span": 100}) == {"window": 100}
    assert windows_of({"name": "a plug-in's", "window": 16}) == windows_of({}) == {}
    axes = Figure().add_subplot()
    spots = [spot(1, 3), spot(2, 2, window=64)]
    assert label_spots(axes, spots) == "name"  # one window alone
    assert label_spots(axes, [*spots, spot(3, 2, window=128)]) == "window"
    assert [text.get_text() for text in axes.texts[2:]] == ["", "64", "128"]
    (path,) = plot_frontier(spots, "perplexity", "FLOPs", tmp_path / "frontier.png")
    assert Image.open(path).width == 1275  # one panel


def test_long_names_stay_within_the_picture() -> None:
    axes = Figure().add_subplot()
    assert label_spots(axes, [spot(1, 3), spot(1.9, 2), spot(2.1, 2), spot(4, 1)]) == "name"
    sides = [text.get_horizontalalignment() for text in axes.texts]
    assert sides == ["left", "left", "right", "right"]  # the middle of 1 and 4 is 2 on a logarithmic axis


@pytest.mark.parametrize("windows", [(300,), (200, 300, 400)])
def test_windows_that_differ_have_a_panel(windows: tuple[int, ...], tmp_path: Path) -> None:
    spots = [spot(1e8 / (1 - o / w), 40 - w / 50 - o / 20, window=w, overlap=o) for w in windows for o in (0, 30)]
    (path,) = plot_frontier(spots, "perplexity", "FLOPs", tmp_path / "frontier.png")
    assert Image.open(path).size == ((1950, 750) if len(windows) > 1 else (1275, 750))


def test_evaluations_that_cost_the_same_or_are_of_different_splits_have_none(tmp_path: Path) -> None:
    rec, slide = replace(REC, flops_per_token=2e6), replace(SLIDE, flops_per_token=1e6)
    for pair in ([REC, SLIDE], [rec, replace(slide, flops_per_token=2e6)], [rec, replace(slide, split="pg19/test")]):
        assert not [path for path in write_report(pair, tmp_path) if path.name == "frontier.png"]
    assert (tmp_path / "frontier.png") in write_report([rec, slide], tmp_path)


def test_seeds_of_one_thing_are_one_spot() -> None:
    cheap = [replace(SLIDE, name=f"slide-s{n}", flops_per_token=1e6, seed=n, config_hash="one") for n in range(2)]
    cheap[1] = replace(cheap[1], carried=REC.carried)
    _, (seeds, other) = evaluation_spots([*cheap, replace(REC, flops_per_token=2e6)])
    assert (seeds.name, seeds.flops, other.name) == ("slide, 2 seeds", 1e6, "demo-rec")
    assert seeds.value == pytest.approx((SLIDE.carried.word_perplexity + REC.carried.word_perplexity) / 2)


def test_of_a_sweep_whose_trials_cost_differently(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "sweep", 4)
    for number, path in enumerate(sorted(folder.glob("trials/*/trial.json"))):
        trial = json.loads(path.read_text())
        path.write_text(json.dumps(trial | {"flops": trial["tokens"] * 1e6 * (1 + number)}))
        model = {"name": "gpt2", "window": 300, "overlap": 10 * number}
        (path.parent / "config.json").write_text(json.dumps({"model": model}))
    assert folder / "report" / "frontier.png" in report_sweep(folder)
    sweep = read_sweep(folder)
    assert [trial.id for trial in sweep.scored if trial.status == "stopped"] == ["002"]
    assert {spot.name for spot in spots_of(sweep)[1]} == {"000", "001", "003"}
