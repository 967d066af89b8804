"""Spaces around presets: what they draw, what fits, and what they refuse in a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from ray import tune
from ray.tune.experiment import Trial

from pipelines.config.dotted import with_fields
from pipelines.config.run import flatten, to_json
from pipelines.presets import PRESETS
from recur_models.block_recurrent import Cell
from recur_models.gates import Gate
from tune_spaces import SPACES, Space, combine, fields
from tune_spaces.drawing import Draw, Searcher, draw, grid
from tune_spaces.spaces import parts_of
from tune_spaces.stopping import scheduler


def values(preset: str, **changed: Any) -> dict[str, Any]:
    return {"preset": preset, **flatten(to_json(PRESETS[preset])), **changed}


TOGETHER = "lr+states+window+gate"


@pytest.mark.parametrize(
    "space", ["lr", "states", "window", "gate", "optimizer", "schedule", "segment", "size", TOGETHER]
)
def test_every_draw_is_a_run_and_depends_on_seed_and_number_alone(space: str) -> None:
    base = PRESETS["small-rec"]
    domains = combine(space, values("small-rec"))
    drawn = [draw(domains, seed=0, index=i) for i in range(30)]
    assert drawn == [draw(domains, seed=0, index=i) for i in reversed(range(30))][::-1]
    assert drawn != [draw(domains, seed=1, index=i) for i in range(30)]
    for some in drawn:
        assert list(some) == fields(domains)
        run = with_fields(base, some)  # checks that the window divides the segment, and so on
        assert flatten(to_json(run)) == flatten(to_json(base)) | some


def test_any_window_of_a_combination_divides_any_segment() -> None:
    domains = combine("window+segment+states", values("small-rec"))
    whole = grid(domains, points=3)
    assert len(whole) >= 16 and len({str(some) for some in whole}) == len(whole)
    for some in whole:
        with_fields(PRESETS["small-rec"], some)


@pytest.mark.parametrize(
    ("domain", "points", "expected"),
    [
        (tune.randint(1, 1001), 4, [1, 334, 667, 1000]),
        (tune.lograndint(1, 1001), 4, [1, 10, 100, 1000]),
        (tune.randint(7, 62), 2, [7, 61]),
        (tune.uniform(0.1, 0.9), 3, [0.1, 0.5, 0.9]),
        (tune.loguniform(0.1, 0.9), 3, [0.1, 0.3, 0.9]),
        (tune.uniform(0.9, 0.9999), 2, [0.9, 0.9999]),  # and not 1.0, which is outside
        (tune.uniform(-1.0, 1.0), 1, [0.0]),
    ],
)
def test_a_grid_goes_from_end_to_end_as_the_range_is_drawn(domain: Any, points: int, expected: list[float]) -> None:
    assert [some["x"] for some in grid({"x": domain}, points)] == expected


def test_a_grid_of_multiples_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no quantized ranges: list the values"):
        grid({"x": tune.qrandint(8, 64, 8)}, 3)


def test_values_that_are_tuples_are_found_again_in_a_sweeps_files() -> None:
    domains = {
        "model.layers": tune.choice([("delta", "window"), ("window",)]),
        "a,b": tune.choice([["x", 1], ["y", 2]]),
    }
    whole = grid(domains, points=1)
    assert whole[0] == {"model.layers": ["delta", "window"], "a": "x", "b": 1} and len(whole) == 4
    before = Searcher("optuna", domains, seed=0)
    drawn = before.suggest("000")
    assert drawn in whole
    after = Searcher("optuna", domains, seed=0, drawn=[Draw("000", "000", json.loads(json.dumps(drawn)))])
    after.recall("000")
    assert after.suggest("001") in whole


def test_the_gate_space_has_the_six_cells_of_the_paper() -> None:
    found = {(some["model.gate"], some["model.cell"]) for some in grid(combine("gate", values("demo-rec")), points=1)}
    assert found == {(gate, cell) for gate in get_args(Gate) for cell in get_args(Cell)}


def test_spaces_of_mixers_give_runs_whose_states_or_transitions_differ() -> None:
    base = PRESETS["small-delta"]
    whole = grid(combine("matrix-states+delta", values("small-delta")), points=1)
    models = [with_fields(base, some).model for some in whole]
    assert len(whole) == 3 * 3 and base.model in models
    assert {(some["model.key_dim"], some["model.value_dim"]) for some in whole} == {(24, 48), (48, 96), (96, 192)}
    signed_and_keys = {(some["model.negative_eigenvalues"], some["model.householders"]) for some in whole}
    assert signed_and_keys == {(False, 1), (True, 1), (True, 2)}
    least = grid(combine("matrix-states", values("small-delta", **{"model.key_dim": 1})), points=1)
    assert [(some["model.key_dim"], some["model.value_dim"]) for some in least] == [(1, 48), (1, 96), (2, 192)]


def test_a_range_becomes_points_on_a_logarithmic_scale() -> None:
    found = grid(combine("optim.lr=1e-4..1e-2+optim.max_grad_norm=0.5,1", values("demo-rec")), points=3)
    assert [some["optim.lr"] for some in found] == [1e-4, 1e-4, 1e-3, 1e-3, 1e-2, 1e-2]
    assert [some["optim.max_grad_norm"] for some in found] == [0.5, 1.0] * 3


def test_a_field_that_is_true_or_false_may_be_varied() -> None:
    found = grid(combine("model.feedback=true,false", values("demo-rec")), points=3)
    assert [some["model.feedback"] for some in found] == [True, False]


@pytest.mark.parametrize(
    ("space", "preset", "sentence"),
    [
        ("model.feedback=yes", "small-rec", "write model.feedback=true,false"),
        (
            "model.recurrent_layers=0,1",
            "small-rec",
            "this form takes numbers, names, true and false: a plug-in's Space",
        ),
        ("stats", "small-rec", "unknown space 'stats': did you mean 'states'"),
        ("optim.lr", "small-rec", "optim.lr is a field: give its values too, as in optim.lr=a,b,c"),
        ("states", "small-slide", "varies model.states, which small-slide does not have"),
        ("gate", "small-xl", "varies model.gate, which small-xl does not have"),
        ("staircase-passes", "algorithm-universal", "varies model.chunk, which algorithm-universal does not have"),
        ("model.stats=4,8", "small-rec", "has no field 'model.stats'.*did you mean 'model.states'"),
        ("states=4,8", "small-rec", "has no field 'states'.*did you mean 'model.states'"),
        ("lr=1e-3,3e-3", "small-rec", "did you mean 'optim.lr'"),
        ("model.states=4..8", "small-rec", "does not give values of model.states"),
        ("model.states=four", "small-rec", "does not give values of model.states"),
        ("optim.lr=1e-2..1e-4", "small-rec", "does not give values of optim.lr.*low..high with 0 < low < high"),
        ("optim.lr=1e-4...1e-2", "small-rec", "write optim.lr=a,b,c, or optim.lr=low..high"),
        ("lr+optimizer", "small-rec", "varies optim.lr twice"),
        (
            "size",
            "pg19-llama-overlap-50",
            "'size' has no value that fits pg19-llama-overlap-50",
        ),  # a file has the sizes
        ("delta", "small-mamba2", "'delta' has no value that fits small-mamba2"),
        ("matrix-states", "small-rec", "varies model.key_dim, which small-rec does not have"),
        ("rec-table-5", "small-rec", "holds 0 stores"),
        ("staircase-figure-2", "tiny-walk-staircase", "of the papers' sizes, and tiny-walk-staircase is none"),
    ],
)
def test_what_does_not_fit_is_refused(space: str, preset: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        combine(space, values(preset))


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [
        ({"optim.lr": [1e-3]}, r"the space 'own' has \[0.001\] for optim.lr: it must be a domain such as"),
        ({"optim.lrr": tune.choice([1e-3])}, "the space 'own' varies optim.lrr, which small-rec does not have"),
        (
            {"optim.lr,optim.max_grad_norm": tune.choice([(1, 2), (3,)])},
            r"has \(3,\) for optim.lr,optim.max_grad_norm: give 2 values",
        ),
        ({"optim.lr,optim.max_grad_norm": tune.uniform(0, 1)}, "has a range for optim.lr,optim.max_grad_norm"),
    ],
)
def test_a_plugins_space_that_is_none_is_refused(
    domains: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SPACES, "own", Space("one's own", (), lambda values: domains))
    with pytest.raises(ValueError, match=sentence):
        combine("own", values("small-rec"))


def test_each_listed_value_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"model.gate,model.cell": tune.choice([("fixed", "skip"), ("lstm", "skip"), ("fixed", "skip")])}
    monkeypatch.setitem(SPACES, "own", Space("one's own", (), lambda values: listed))
    found = combine("own+optim.lr=0.001,1e-3,1e-2", values("small-rec"))
    assert [domain.categories for domain in found.values()] == [[("fixed", "skip"), ("lstm", "skip")], [1e-3, 1e-2]]


def test_named_spaces_leave_out_what_does_not_fit_the_preset() -> None:
    """A window whose new tokens do not divide the segment, and fewer heads than share keys."""
    preset = "wikitext-gpt2-rec-overlap-30"
    found = [some["model.window"] for some in grid(combine("window", values(preset)), points=1)]
    assert found == [75, 150, 300]  # not 600, of which 570 tokens are new
    for window in found:
        with_fields(PRESETS[preset], {"model.window": window})
    sizes = {"model.d_model": 64, "model.heads": 4, "model.kv_heads": 4, "model.mlp_dim": 128}
    found = grid(combine("size", values("pg19-llama-overlap-50", **sizes)), points=1)
    assert [some["model.heads"] for some in found] == [4, 8]


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("rec-table-1", 14),
        ("rec-table-3-window", 6),
        ("rec-table-3-states", 5),
        ("rec-section-4.3", 4),
        ("rec-table-4", 12),
    ],
)
def test_the_papers_tables_are_rows_of_presets(table: str, rows: int) -> None:
    found = grid(combine(table, values("pg19-rec-fixed-skip")), points=1)
    assert len(found) == rows and {some["preset"] for some in found} <= set(PRESETS)
    if table == "rec-table-1":
        assert len(grid(combine(table, values("github-rec-fixed-skip")), points=1)) == 11


@pytest.mark.parametrize(
    ("table", "rows"), [("staircase-figure-2", 6), ("staircase-table-2", 12), ("staircase-table-3", 7)]
)
def test_the_staircase_papers_tables_are_rows_too(table: str, rows: int) -> None:
    for preset in ("small-rec", "walk-xl"):
        found = [some["preset"] for some in grid(combine(table, values(preset)), points=1)]
        assert len(found) == len(set(found)) == rows and set(found) <= set(PRESETS)
        assert {name.startswith("walk-") for name in found} == {preset == "walk-xl" and table == "staircase-figure-2"}


@pytest.mark.parametrize("preset", ["algorithm-staircase", "enwik8-cached-staircase"])
def test_staircases_of_any_passes_and_chunk_are_runs(preset: str) -> None:
    found = grid(combine("staircase-passes", values(preset)), points=1)
    assert len(found) == (12 if preset == "algorithm-staircase" else 6)
    for some in found:
        with_fields(PRESETS[preset], some)


def test_table_5_takes_every_store_of_the_folder(tmp_path: Path) -> None:
    for name in ("512", "4000"):
        (tmp_path / name / "pg19" / "train").mkdir(parents=True)
        (tmp_path / name / "pg19" / "train" / "manifest.json").touch()
    found = combine("rec-table-5", values("pg19-rec-fixed-skip", **{"data.store": str(tmp_path)}))
    assert sorted(found["data.store"].categories) == [str(tmp_path / "4000"), str(tmp_path / "512")]


def test_every_space_says_what_it_is_about() -> None:
    assert all(space.about for space in SPACES.values())


def decisions(name: str, results: Sequence[tuple[str, int, float]]) -> list[bool]:
    """Whether the scheduler of this name stops each trial at its result: its name, its tokens and its value."""
    rule = scheduler(name, {}, rung_tokens=10, trial_tokens=90)
    trials = {trial: Trial("trial", trial_id=trial, stub=True) for trial, *_ in results}
    nobody: Any = None  # Tune's controller, which these do not ask
    for trial in trials.values():
        rule.on_trial_add(nobody, trial)
    told = [(trials[trial], {"tokens": tokens, "value": value}) for trial, tokens, value in results]
    return [rule.on_trial_result(nobody, trial, result) == rule.STOP for trial, result in told]


def test_asha_stops_the_worse_at_a_rung_and_decides_the_same_again() -> None:
    results = [("a", 10, 3.0), ("b", 10, 2.0), ("c", 10, 5.0), ("b", 30, 1.5), ("d", 10, 1.0), ("d", 30, 1.9)]
    assert decisions("asha", results) == [False, False, True, False, False, True] == decisions("asha", results)


def test_median_stops_what_is_worse_than_the_others() -> None:
    assert decisions("median", [("a", 10, 1.0), ("b", 10, 2.0), ("c", 10, 3.0)]) == [False, False, True]


def test_optuna_suggests_the_same_again_when_its_calls_are_repeated() -> None:
    pytest.importorskip("optuna")
    domains = combine(TOGETHER, values("small-rec"))

    def suggested() -> list[dict[str, Any]]:
        searcher, found = Searcher("optuna", domains, seed=3), []
        for i in range(14):
            found.append(searcher.suggest(str(i)))
            searcher.result(str(i), 10, found[-1]["optim.lr"])
            searcher.complete(str(i), 10, None if i == 2 else found[-1]["optim.lr"])
        return found

    assert suggested() == suggested()


def test_optuna_continues_from_what_it_drew_in_an_earlier_start() -> None:
    pytest.importorskip("optuna")
    domains = combine(TOGETHER, values("small-rec"))
    first = Searcher("optuna", domains, seed=3)
    drawn = [Draw(f"{i:03d}", f"{i:03d}", first.suggest(f"{i:03d}") or {}) for i in range(12)]
    again = Searcher("optuna", domains, seed=3, drawn=drawn)
    for draw_ in drawn:
        again.recall(draw_.name)
        again.complete(draw_.name, 10, draw_.values["optim.lr"])
    assert again.suggest("012") not in [draw_.values for draw_ in drawn]


def test_optuna_draws_other_trials_after_a_restart_while_it_still_draws_at_random() -> None:
    pytest.importorskip("optuna")
    domains = combine("lr", values("small-rec"))
    first = Searcher("optuna", domains, seed=0)
    drawn = [Draw(f"{i:03d}", f"{i:03d}", first.suggest(f"{i:03d}") or {}) for i in range(3)]
    again = Searcher("optuna", domains, seed=0, drawn=drawn)
    again.recall(drawn[-1].name)
    more = [again.suggest(f"{i:03d}") or {} for i in range(3, 6)]
    assert len({one["optim.lr"] for one in [*(each.values for each in drawn), *more]}) == 6


def test_bohb_without_its_packages_says_what_to_install() -> None:
    with pytest.raises(ValueError, match="pip install hpbandster ConfigSpace"):
        Searcher("bohb", combine("lr", values("small-rec")), seed=0)


def test_listed_values_are_as_they_were_written_and_drawn_ones_short() -> None:
    domains = combine("optim.lr=0.0012345,0.0012349", values("demo-rec"))
    assert [some["optim.lr"] for some in grid(domains, points=2)] == [0.0012345, 0.0012349]
    assert draw(domains, seed=0, index=0)["optim.lr"] in (0.0012345, 0.0012349)
    drawn = draw(combine("optim.lr=1e-4..1e-2", values("demo-rec")), seed=0, index=0)["optim.lr"]
    assert drawn == float(f"{drawn:.3g}")


def test_ranges_of_ones_own_are_drawn_suggested_and_laid_out() -> None:
    domains = {"model.states": tune.randint(8, 65), "optim.max_grad_norm": tune.uniform(0, 2)}
    some = Searcher("optuna", domains, seed=0).suggest("001")
    assert some is not None
    assert type(some["model.states"]) is int and some["optim.max_grad_norm"] == float(
        f"{some['optim.max_grad_norm']:.3g}"
    )
    assert grid({"optim.max_grad_norm": domains["optim.max_grad_norm"]}, points=3) == [
        {"optim.max_grad_norm": value} for value in (0.0, 1.0, 2.0)
    ]
    whole = [each["model.states"] for each in grid({"model.states": domains["model.states"]}, points=3)]
    assert whole[0] == 8 and whole[-1] == 64 and all(type(value) is int for value in whole)
    with pytest.raises(ValueError, match="takes lists, and ranges with two ends"):
        grid({"optim.max_grad_norm": tune.randn()}, points=2)


def test_fields_are_drawn_independently_and_for_good() -> None:
    domains = combine("optim.lr=1e-4..1e-2+optim.weight_decay=1e-4..1e-2", values("small-rec"))
    drawn = [draw(domains, seed=0, index=i) for i in range(8)]
    assert all(each["optim.lr"] != each["optim.weight_decay"] for each in drawn)
    # A sweep that resumes depends on it: the draws of a seed may never change.
    domains = combine("optim.lr=1e-4..1e-2+seed=0,1,2,3", values("small-rec"))
    found = [tuple(draw(domains, seed=0, index=i).values()) for i in range(3)]
    assert found == [(0.000576, 3), (0.00312, 2), (0.00274, 2)]


def test_rates_and_shapes_are_those_around_the_preset() -> None:
    given = values("small-rec")
    rate = given["optim.lr"]
    final = given["schedule.min_lr_ratio"] + 0.03
    lr = combine("lr", given)["optim.lr"]
    assert (lr.lower, lr.upper) == (rate / 10, rate * 10)
    rates = [each["optim.lr"] for each in grid(combine("optimizer", given), 1) if each["optim.name"] == "adamw"]
    assert rates == pytest.approx([rate / 3, rate, rate * 3], rel=1e-2)
    shapes = grid(combine("schedule", {**given, "schedule.min_lr_ratio": final}), 1)
    kept = {each["schedule.min_lr_ratio"] for each in shapes if each["schedule.name"] != "cosine"}
    assert kept == {final}


def test_blanks_around_a_plus_are_none_of_the_spaces() -> None:
    assert parts_of("lr + states") == ["lr", "states"]
    assert parts_of("optim.lr=1e-3,3e-3 + model.states=16") == ["optim.lr=1e-3,3e-3", "model.states=16"]
    assert parts_of("optim.lr=1e+3..1e+4") == ["optim.lr=1e+3..1e+4"]
