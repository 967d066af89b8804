"""Schedulers, searchers and stoppers of Ray Tune's and of one's own, by their import paths."""

from __future__ import annotations

from typing import Any

import pytest
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher as TuneSearcher

from tests.tune_spaces.test_spaces import values
from tune_spaces import Plateau, Rule, Searcher, combine
from tune_spaces.named import make


class StopsAbove(FIFOScheduler):
    """One's own: stops what is above a limit."""

    def __init__(self, limit: float, metric: str = "") -> None:
        super().__init__()
        self.limit, self.name = limit, metric

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return self.STOP if result[self.name] > self.limit else self.CONTINUE


class Counts(TuneSearcher):
    """One's own: the first category, the second, and so on."""

    def __init__(self, space: dict[str, Any], seed: int) -> None:
        super().__init__()
        self.space, self.at = space, seed

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.at += 1
        return {key: str(self.at % len(domain)) for key, domain in self.space.items()}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...


OWN = "tests.tune_spaces.test_named"


def test_it_is_given_what_it_takes_and_what_is_written() -> None:
    made = make(f"{OWN}:StopsAbove(limit=2.5)", metric="value", mode="min")
    assert (made.limit, made.name) == (2.5, "value")


def test_a_rule_and_a_searcher_of_ones_own() -> None:
    rule = Rule(f"{OWN}:StopsAbove(limit=2.5)", least=1, most=9)
    rule.add("a")
    assert [rule.result("a", 1, value) for value in (2.0, 3.0)] == [False, True]
    searcher = Searcher(f"{OWN}:Counts", combine("states", values("small-rec")), seed=0)
    states = [searcher.suggest(str(i))["model.states"] for i in range(5)]
    assert len(set(states[:4])) == 4 and states[4] == states[0]


def test_tunes_own_by_path_decide_as_by_name() -> None:
    results = [("a", 10, 3.0), ("b", 10, 2.0), ("c", 10, 5.0), ("b", 30, 1.5), ("d", 10, 1.0), ("d", 30, 1.9)]
    path = "ray.tune.schedulers:ASHAScheduler(grace_period=10, max_t=90, reduction_factor=3, stop_last_trials=False)"
    decided: list[list[bool]] = []
    for name in ("asha", path):
        rule = Rule(name, least=10, most=90, reduction=3)
        for trial in "abcd":
            rule.add(trial)
        decided.append([rule.result(*result) for result in results])
    assert decided[0] == decided[1] and any(decided[0])


def test_a_plateau_stops_what_has_come_to_rest() -> None:
    for name in ("plateau", "ray.tune.stopper:TrialPlateauStopper(std=0.01, num_results=4)"):
        stops = Plateau(name)
        assert [stops.result("a", i, value) for i, value in enumerate((3.0, 2.0, 2.0, 2.001, 2.0))] == [False] * 4 + [
            True
        ]
    assert not Plateau("none").result("a", 1, 2.0)
    whole = Plateau("ray.tune.stopper:ExperimentPlateauStopper(top=2, std=0.1)")
    assert not whole.over()
    assert [whole.result(trial, 1, 2.0) for trial in "abc"][-1] and whole.over()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ray.tune.schedulers:Nothing", "has no attribute 'Nothing'"),
        ("no.such.module:Rule", "No module named 'no'"),
        ("ray.tune.schedulers:ASHAScheduler(3)", "not of the form"),
        ("ray.tune.schedulers:ASHAScheduler(max_t=print())", "malformed"),
        ("ray.tune.schedulers:ASHAScheduler(odd=1)", "odd"),
        ("ray.tune.schedulers:ASHAScheduler(", "cannot be made"),
        ("ray.tune.stopper:TrialPlateauStopper", "no scheduler that decides by results alone"),
        ("ray.tune.schedulers:ResourceChangingScheduler", "no scheduler that decides by results alone"),
    ],
)
def test_what_cannot_be_made_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Rule(text, 1, 9)


def test_a_scheduler_is_no_searcher_or_stopper() -> None:
    with pytest.raises(ValueError, match="is no stopper of Ray Tune's"):
        Plateau("ray.tune.schedulers:ASHAScheduler")
    with pytest.raises(ValueError, match="is no searcher of Ray Tune's"):
        Searcher("ray.tune.schedulers:ASHAScheduler", combine("lr", values("small-rec")), seed=0)
