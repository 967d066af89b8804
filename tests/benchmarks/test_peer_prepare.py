"""The peers of the preparation read halves that are as even as those of the bare processes."""

from __future__ import annotations

from benchmarks.peer_prepare import halves


def test_halves_are_as_even_as_sizes_let_them() -> None:
    items = [(str(size), "x" * size) for size in (1, 2, 3, 4, 9)]
    made = [[name for name, _ in half] for half in halves(items)]
    assert made == [["9", "1"], ["4", "3", "2"]]
