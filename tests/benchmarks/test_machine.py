"""What benchmarks share: steps take turns, and are compared round by round."""

from __future__ import annotations

from benchmarks import machine


def test_steps_take_turns_and_the_first_two_rounds_do_not_count() -> None:
    made: list[str] = []

    def step(name: str) -> float:
        made.append(name)
        return float(len(made))

    found = machine.seconds_in_turns(4, {"a": lambda: step("a"), "b": lambda: step("b")})
    assert made == ["a", "b"] * 4 and found == {"a": [5.0, 7.0], "b": [6.0, 8.0]}


def test_ratios_are_of_the_same_round() -> None:
    assert machine.ratios([2.0, 8.0, 3.0], [1.0, 2.0, 1.0]) == "3.00 (2.00 to 4.00)"
