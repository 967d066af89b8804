"""Whether two passes over a text, or models over seeds, differ by more than chance: against scipy, and in sentences."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipelines.reports.evaluation import read_report, write_report
from pipelines.reports.evaluation_findings import leads, remark_on, remarks
from pipelines.reports.sweep_findings import against_baseline
from pipelines.reports.sweep_result import MetricPoint, SweepResult, TrialResult
from pipelines.tracking.chance import edges_of, paired, paired_over_seeds, student_t
from pipelines.tracking.score import Evaluation, Score
from tests.small_evaluations import REC, SLIDE

BIT = math.log(2)


@pytest.mark.parametrize("groups", [5, 12, 200])
def test_groups_of_one_size_are_scipys_paired_test(groups: int) -> None:
    rng = np.random.default_rng(0)
    one_G, other_G = rng.normal(40, 5, groups), rng.normal(41, 5, groups)
    found = paired(one_G, other_G, np.full(groups, 16))
    assert found
    expected = stats.ttest_rel(other_G, one_G)
    assert found.mean == pytest.approx((other_G - one_G).mean() / 16)
    assert found.mean / found.error == pytest.approx(expected.statistic)
    interval = expected.confidence_interval(0.95)
    assert found.margin == pytest.approx((interval.high - interval.low) / 2 / 16, rel=0.002)
    assert found.beyond_chance == (expected.pvalue < 0.05)


def test_no_difference_is_found_in_noise_and_a_small_one_where_there_is_one() -> None:
    rng = np.random.default_rng(0)
    sizes_G = rng.integers(20, 400, 30)
    false = true = 0
    for _ in range(400):
        one_G = 3 * sizes_G + rng.normal(0, 1, 30) * np.sqrt(sizes_G)
        noise_G = rng.normal(0, 0.2, 30) * np.sqrt(sizes_G)
        same, more = (paired(one_G, one_G + noise_G + shift * sizes_G, sizes_G) for shift in (0.0, 0.01))
        assert same and more
        false, true = false + same.beyond_chance, true + more.beyond_chance
    assert false <= 40 and true >= 380  # 5 % are expected


def test_seeds_on_a_text_without_chance_are_scipys_welch_test() -> None:
    rng = np.random.default_rng(0)
    sizes_G = np.arange(10, 22)
    ours_S, theirs_S = rng.normal(4, 0.1, 3), rng.normal(4.3, 0.2, 4)
    found = paired_over_seeds(np.outer(ours_S, sizes_G), np.outer(theirs_S, sizes_G), sizes_G)
    assert found
    expected = stats.ttest_ind(theirs_S, ours_S, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx(theirs_S.mean() - ours_S.mean())
    assert (found.degrees, found.margin) == (
        pytest.approx(expected.df),
        pytest.approx((interval.high - interval.low) / 2),
    )

    # One training is taken to vary as the other model's do: Student's test with one against three.
    alone = paired_over_seeds(np.outer(ours_S, sizes_G), np.outer(theirs_S[:1], sizes_G), sizes_G)
    assert alone and alone.degrees == pytest.approx(2)
    assert alone.error == pytest.approx(ours_S.std(ddof=1) * math.sqrt(1 / 3 + 1))

    # The same trainings, read in two ways, are paired.
    changes_S = np.array([0.1, 0.2, 0.12])
    again = paired_over_seeds(
        np.outer(ours_S, sizes_G), np.outer(ours_S + changes_S, sizes_G), sizes_G, same_trainings=True
    )
    expected = stats.ttest_rel(ours_S + changes_S, ours_S)
    assert again and again.mean / again.error == pytest.approx(expected.statistic)
    assert again.degrees == pytest.approx(2)


def test_one_seed_each_is_the_paired_test_of_the_text() -> None:
    rng = np.random.default_rng(0)
    one_G, other_G, sizes_G = rng.normal(40, 5, 12), rng.normal(41, 5, 12), np.full(12, 16)
    assert paired_over_seeds(one_G[None], other_G[None], sizes_G) == paired(one_G, other_G, sizes_G)
    assert paired_over_seeds(np.ones((2, 4)), np.ones((2, 4)), np.ones(4)) is None
    same = paired_over_seeds(np.ones((2, 9)), np.ones((2, 9)), np.ones(9))
    assert same and not same.beyond_chance


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 10.0])
def test_seeds_of_equal_models_seldom_differ(spread: float) -> None:
    """``spread``: what seeds differ by, in standard errors of the text."""
    rng = np.random.default_rng(0)
    sizes_G = np.full(16, 50)
    found = 0
    for _ in range(500):
        ours_SG, theirs_SG = (4 + rng.normal(0, spread, (2, 1)) + rng.normal(0, 1, (2, 16)) for _ in range(2))
        theirs_SG += rng.normal(0, 4, 16)
        difference = paired_over_seeds(ours_SG * sizes_G, theirs_SG * sizes_G, sizes_G)
        assert difference
        found += difference.beyond_chance
    assert found <= 40  # 25 are expected


@pytest.mark.parametrize("degrees", [1, 1.5, 2, 3, 7.3, 12, 999])
def test_students_t_is_scipys(degrees: float) -> None:
    assert student_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-4)


def test_too_little_text_shows_nothing() -> None:
    assert paired(np.ones(4), np.full(4, 2.0), np.full(4, 10)) is None
    assert paired(np.ones(9), np.ones(8), np.full(9, 10)) is None
    same = paired(np.ones(9), np.ones(9), np.full(9, 10))
    assert same and not same.beyond_chance


@pytest.mark.parametrize(
    ("buckets", "groups"),
    [([3] * 12, 12), ([1] * 3000, 1000), ([40], 20), ([30, 90, 2], 16), ([1, 2, 0], 3), ([0] * 12, 0)],
)
def test_groups_are_documents_or_where_these_are_few_their_parts(buckets: list[int], groups: int) -> None:
    starts = np.concatenate([[0], np.cumsum(buckets)])
    edges = edges_of(starts)
    assert len(edges) - 1 == groups and edges[-1] == starts[-1] and (np.diff(edges) > 0).all()
    if sum(size > 0 for size in buckets) < 10:
        assert set(starts) <= set(edges)  # no part is of two documents


def scored(bits: Any, errors: Any = None) -> Score:
    """Twelve documents of 100 tokens and 200 bytes, of so many bits a token."""
    bits_G = np.broadcast_to(np.asarray(bits, float), 12)
    nats = tuple((bits_G * 100 * BIT).tolist())
    groups: dict[str, Any] = {"group_nats": nats, "group_tokens": (100,) * 12}
    if errors is not None:
        groups |= {"group_errors": tuple(errors), "errors": sum(errors)}
    return Score(
        sum(nats), 1200, 300, 2400 * (errors is None), 12, 1200, (sum(nats),), (1200,), share_beyond=0.9, **groups
    )


NOISE = np.tile([0.01, -0.01], 6)


@pytest.mark.parametrize(
    ("cleared", "says"),
    [
        (4.4 + NOISE, r"^clearing its recurrent states costs 0\.2000 bits per byte \(10\.0%\), so they carry something$"),
        (4.001 + NOISE, r"changes nothing beyond chance \(\+0\.0005 ± 0\.003\d bits per byte\): the model does not use them yet"),
        (3.999 + NOISE, r"changes nothing beyond chance \(-0\.0005 ± 0\.003\d bits per byte\): the model does not use them yet"),
        (4.00002, r"costs 0\.00001 bits per byte \(0\.0%\), so they carry next to nothing$"),
        (4.0, r"changes nothing beyond chance \(\+0\.0000 ± 0\.0000 bits per byte\): the model does not use them yet"),
        (3.6 + NOISE, r"saves 0\.2000 bits per byte \(10\.0%\): the model predicts better without them"),
    ],
)  # fmt: skip
def test_states_carry_something_where_clearing_them_costs_more_than_chance(cleared: Any, says: str) -> None:
    assert re.search(says, remark_on(scored(4.0), scored(cleared)))


@pytest.mark.parametrize(
    ("unigram", "says"),
    [(2.1, "so they carry something"), (1.99, "no better than the unigram reference")],
)
def test_states_carry_something_only_where_the_model_beats_the_unigram_reference(unigram: float, says: str) -> None:
    assert says in remark_on(scored(4.0), scored(4.4 + NOISE), unigram)


def test_a_few_tokens_say_nothing_of_states() -> None:
    short = replace(scored(4.4), group_nats=(1.0,), group_tokens=(1,))
    carried = replace(scored(4.0), group_nats=(0.9,), group_tokens=(1,))
    said = "costs 0.2000 bits per byte (10.0%), but the split is too short to tell this from chance"
    assert said in remark_on(carried, short)
    assert said.replace("costs", "saves").replace("10.0%", "9.1%") in remark_on(short, carried)
    first = replace(short, share_beyond=0.1), replace(carried, share_beyond=0.1)
    equal = replace(first[0], nats=carried.nats)
    assert "cannot be seen: most tokens are in the first segment" in remark_on(first[1], equal)
    late = replace(REC, carried=first[1], cleared_states=equal, cleared_all=None)
    for place, option in (
        ("", "shorter --segment-length"),
        ("at-64", "smaller --clear-at"),
        ("every-4", "smaller --clear-every"),
    ):
        (said,) = remarks(replace(late, cleared_at=place and f"-cleared-{place}"))
        assert said.endswith(f"; try a {option}")


def test_a_single_clearing_does_not_say_that_states_are_unused() -> None:
    little = replace(REC, carried=scored(4.0), cleared_states=scored(4.001 + NOISE), cleared_all=None)
    for cleared_at in ("", "-cleared-every-4"):
        assert "the model does not use them yet" in remarks(replace(little, cleared_at=cleared_at))[0]
    (said,) = remarks(replace(little, cleared_at="-cleared-at-64"))
    assert "changes nothing beyond chance" in said and "does not use" not in said and "leave out --clear-at" in said


def test_all_of_the_state_has_a_sentence_of_its_own() -> None:
    both = replace(REC, carried=scored(4.0), cleared_states=scored(4.2 + NOISE), cleared_all=scored(4.4 + NOISE))
    states, everything = remarks(both)
    assert states == "clearing its recurrent states costs 0.1000 bits per byte (5.0%), so they carry something"
    assert everything == "clearing all of its State costs 0.2000 bits per byte (10.0%), so it carries something"
    assert remarks(replace(both, cleared_states=None)) == [everything]  # a window, or --clear everything
    assert remarks(replace(both, cleared_all=None)) == [states]
    assert remarks(replace(both, cleared_all=both.cleared_states)) == [states]  # the states are all of it
    assert remarks(SLIDE) == []
    unigram = remarks(both, unigram=1.9)
    assert len(unigram) == 2 and unigram[1].endswith("train it for longer before you judge its State")
    said = [remark_on(scored(4.0), scored(bits + NOISE), what="State") for bits in (4.001, 3.6)]
    assert "the model does not use it yet" in said[0] and said[1].endswith("predicts better without it")


def test_a_labelled_split_beside_texts_hides_no_lead() -> None:
    best = replace(REC, carried=scored(4.0))
    other = replace(SLIDE, carried=scored(4.8))
    labelled = replace(SLIDE, name="labelled", carried=scored(1.0, [3] * 12))
    expected = leads([best, other])
    assert expected == leads([labelled, best, other]) == leads([best, other, labelled])
    assert leads([replace(best, carried=replace(best.carried, bytes=0))]) == []


def test_the_worth_of_states_shows_if_half_of_the_tokens_can_show_it() -> None:
    assert replace(scored(4.0), share_beyond=0.5).shows_worth
    assert not replace(scored(4.0), share_beyond=0.4).shows_worth


def test_a_lead_within_chance_is_none() -> None:
    best = replace(REC, carried=scored(4.0))
    clear, close = (
        replace(SLIDE, name=name, carried=scored(bits + NOISE)) for name, bits in (("far", 4.2), ("near", 4.001))
    )
    old = replace(SLIDE, name="old", carried=replace(scored(4.8), group_nats=()))
    said = leads([best, clear, close, old])
    assert said[0] == "demo-rec needs 4.8% fewer bits per byte than far"
    assert said[1].startswith("demo-rec and near are level: 0.02% apart in bits per byte, within chance (± 0.1")
    assert said[2] == "demo-rec needs 16.7% fewer bits per byte than old, chance not known"
    pieces = replace(close.carried, tokens=close.carried.tokens // 4, group_tokens=(0,) * 12)
    (level,) = leads([best, replace(close, carried=pieces)])
    assert level == said[1]  # whatever its tokens are
    errors = [
        replace(REC, name=name, carried=scored(1.0, wrong))
        for name, wrong in (("a", [3] * 12), ("b", [9, 9] + [3] * 10))
    ]
    assert leads(errors) == ["a and b are level: 3.00% and 4.00% of the labels are wrong, within chance"]
    errors[1] = replace(errors[1], carried=scored(1.0, [9, 8] * 6))
    assert leads(errors) == ["a is wrong in 3.00% of the labels, b in 8.50%"]


def seeds(name: str, *bits: float) -> list[Evaluation]:
    """Trainings of one model, of so many bits a token."""
    return [
        replace(
            SLIDE,
            name=f"{name}-s{seed}",
            carried=scored(each + NOISE * (name != "rec")),
            checkpoint=f"runs/{name}-s{seed}",
            seed=seed,
            config_hash=name,
        )
        for seed, each in enumerate(bits)
    ]


def test_one_training_each_does_not_say_what_seeds_change() -> None:
    (rec,), (far,), (near,) = seeds("rec", 4.0), seeds("far", 4.2), seeds("near", 4.001)
    said = leads([rec, far, near])
    assert said[0] == "rec-s0 needs 4.8% fewer bits per byte than far-s0 (one training each)"
    assert said[1].startswith("rec-s0 and near-s0 are level: 0.02% apart in bits per byte, within chance (± 0.1")
    # The same weights, read in another way
    assert leads([rec, replace(far, checkpoint=rec.checkpoint)]) == [
        "rec-s0 needs 4.8% fewer bits per byte than far-s0"
    ]


def test_a_lead_within_the_chance_of_seeds_is_none() -> None:
    rec, slide = seeds("rec", 4.1, 4.0), seeds("slide", 4.12, 4.03)
    (said,) = leads([*slide, *rec])  # and nothing of rec-s1 against rec-s0
    assert re.fullmatch(
        r"rec \(2 seeds\) and slide \(2 seeds\) are level: 0\.61% apart in bits per byte, within chance \(± 7\.\d\d%\)",
        said,
    )
    lone = leads([*seeds("rec", 4.0, 4.01, 4.02), *seeds("far", 5.0)])
    assert lone == ["rec (3 seeds) needs 19.8% fewer bits per byte than far-s0 (one training)"]
    wider = [replace(e, name=f"wide-{e.name}", config_hash="wide") for e in rec]
    wider = [replace(e, carried=scored(bits)) for e, bits in zip(wider, (4.09, 3.99), strict=True)]
    assert leads([*rec, *wider]) == ["wide-rec (2 seeds) needs 0.2% fewer bits per byte than rec (2 seeds)"]
    old = [replace(e, carried=replace(e.carried, group_nats=())) for e in slide]
    assert leads([*rec, *old]) == [
        "rec (2 seeds) needs 0.6% fewer bits per byte than slide (2 seeds), chance not known"
    ]


def test_errors_are_compared_over_seeds() -> None:
    def labelled(name: str, *wrong: int) -> list[Evaluation]:
        found = zip(seeds(name, *[1.0] * len(wrong)), wrong, strict=True)
        return [replace(e, carried=scored(1.0, [each + 1, each] * 6)) for e, each in found]

    assert leads([*labelled("a", 2, 6), *labelled("b", 4, 8)]) == [
        "a (2 seeds) and b (2 seeds) are level: 4.50% and 6.50% of the labels are wrong, within chance"
    ]
    assert leads([*labelled("b", 30, 31), *labelled("a", 2, 3)]) == [
        "a (2 seeds) is wrong in 3.00% of the labels, b (2 seeds) in 31.00%"
    ]


def test_parts_that_two_models_cut_elsewhere_are_not_compared() -> None:
    """Few documents are compared in parts, which end with blocks of the model."""
    one = replace(scored(4.0), documents=2)
    assert one.less_than(replace(scored(4.2), documents=2))
    assert one.less_than(replace(scored(4.2), documents=2, bucket=256)) is None


def test_other_text_under_the_same_name_is_not_compared() -> None:
    ours = replace(REC, carried=scored(4.0))
    assert leads([ours, replace(SLIDE, carried=replace(scored(4.4), bytes=1))]) == []


def test_a_report_keeps_the_groups(tmp_path: Path) -> None:
    one = replace(REC, carried=scored(4.0), cleared_states=scored(4.4 + NOISE), cleared_all=None)
    write_report([one], tmp_path)
    (read,) = read_report(tmp_path)
    assert read.cleared_states and remark_on(read.carried, read.cleared_states).endswith("carry something")


def test_a_trial_that_is_level_with_the_preset_does_not_beat_it() -> None:
    def trial(name: str, best: float, baseline: bool = False) -> TrialResult:
        return TrialResult(name, {}, "finished", best=MetricPoint(10, best), baseline=baseline)

    def said(best: float) -> str:
        trials = (trial("000", 4.0, True), trial("001", best))
        return against_baseline(
            SweepResult("s", "small-rec", "validation/bits_per_token", ("optim.lr",), trials, None), trials[1]
        )

    assert said(3.5) == (
        "it beats small-rec itself (trial 000, 4.0000) by 0.5000, with one seed each: train more seeds to see how far they "
        "differ"
    )
    assert said(3.99999) == "it is level with small-rec itself (trial 000, 4.0000)"
    stopped = replace(trial("000", 4.0, True), status="stopped", steps=10)
    sweep = SweepResult(
        "s", "small-rec", "validation/bits_per_token", ("optim.lr",), (stopped, trial("001", 2.5)), None
    )
    assert against_baseline(sweep, sweep.trials[1]).startswith(
        "it beats small-rec itself (trial 000, 4.0000, stopped at step 10) by 1.5000"
    )
    failed = replace(trial("000", 2.0, True), status="failed")
    sweep = SweepResult("s", "small-rec", "validation/bits_per_token", ("optim.lr",), (failed, trial("001", 2.5)), None)
    assert (
        against_baseline(sweep, sweep.trials[1])
        == "trial 000, which is small-rec itself, has no result to compare with"
    )
