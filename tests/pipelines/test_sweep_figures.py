"""Labels and titles of a sweep's charts, which must neither hide each other nor be cut off."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from pipelines.reports.scales import LABEL, Scale
from pipelines.reports.sweep_figures import set_title


def test_numbers_whose_labels_would_hide_each_other_are_left_out() -> None:
    ticks = Scale([8, 9, 10, 64, 65, 66]).ticks()
    assert [label for _, label in ticks] == ["8", "10", "66"]
    assert [label for _, label in Scale([1e-3, 3e-3, 1e-2]).ticks()] == ["0.001", "0.003", "0.01"]
    assert Scale([7, 7]).ticks() == [(0.5, "7")]


def test_a_long_label_has_several_lines_and_no_word_less() -> None:
    layers = ["window", "delta", "window", "slstm"]
    (_, label), (_, other) = Scale([layers, ["window"] * 4]).ticks()
    assert label.replace("\n", " ") == "window, delta, window, slstm" and other.count("window") == 4
    assert all(len(line) <= LABEL for line in label.splitlines())


@pytest.mark.parametrize("width", [4.7, 9.5])
def test_a_title_is_as_wide_as_its_figure_at_most(width: float) -> None:
    figure = Figure(figsize=(width, 4))
    set_title(figure, "small-rec-lr-states-window-gate: best value against each swept field, lower is better")
    assert 0.5 * width < figure.get_tightbbox().width < width
