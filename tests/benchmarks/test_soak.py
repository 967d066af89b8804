"""What counts as the same curve after a training under kills."""

from __future__ import annotations

from benchmarks.killing import Point
from benchmarks.soak import same_metrics

CALM: list[Point] = [
    (1, "train/bits_per_token", 8.0),
    (2, "train/bits_per_token", 7.0),
    (2, "validation/bits_per_token", 7.5),
    (3, "train/bits_per_token", 6.0),
    (3, "validation/bits_per_token", 6.5),
]


def test_the_undisturbed_run_alone_may_validate_its_last_step() -> None:
    assert same_metrics(CALM[:-1], CALM, last=3) and same_metrics(CALM, CALM, last=3)


def test_a_metric_that_is_lost_or_another_is_no_curve_of_the_same() -> None:
    assert not same_metrics([*CALM[:2], *CALM[3:]], CALM, last=3)  # a validation before the last step
    assert not same_metrics([*CALM[:3], CALM[4]], CALM, last=3)  # the last step itself
    assert not same_metrics([(1, "train/bits_per_token", 8.5), *CALM[1:]], CALM, last=3)
