"""Schedulers, searchers and stoppers of Ray Tune's and of one's own, by their import paths."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher as TuneSearcher

from common.errors import UserError
from tests.tune_spaces.test_spaces import decisions, values
from tune_spaces import SCHEDULERS, combine
from tune_spaces.drawing import Searcher
from tune_spaces.named import Named
from tune_spaces.stopping import scheduler, stopper, within_ranges


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


class First(Counts):
    """The first category, so often; then it has no more. Where it is of no trial's, another one, for ever."""

    def __init__(self, space: dict[str, Any], seed: int, often: int, place: int = 0) -> None:
        super().__init__(space, seed)
        self.often, self.place = often, place

    def suggest(self, trial_id: str) -> Any:
        self.at += 1
        return {key: str(self.place) for key in self.space} if self.at <= self.often else self.FINISHED


OWN = "tests.tune_spaces.test_named"


def test_it_is_given_what_it_takes_and_what_is_written() -> None:
    made = Named.parse(f"{OWN}:StopsAbove(limit=2.5)").make(metric="value", mode="min")
    assert (made.limit, made.name) == (2.5, "value")


class LearnsLater(Counts):
    """It learns the space from Tune, as a searcher that was made without one."""

    def __init__(self) -> None:
        super().__init__({}, 0)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self.space = config
        return True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".foo:Bar", "cannot be made"),
        ("ray.tune.schedulers:create_scheduler(scheduler='hyperband')", "create_scheduler is no class"),
        ("ray.tune.schedulers:TrialScheduler", "TrialScheduler is only what others are made of"),
        ("ray.tune.schedulers:ASHAScheduler(metric='validation/bits_per_token')", "leave metric and mode out"),
        ("ray.tune.schedulers:ASHAScheduler(mode='max')", "lower is better"),
        ("ray.tune.schedulers:ASHAScheduler(time_attr='time_total_s')", "no 'time_total_s': count in tokens or rungs"),
        (
            "ray.tune.schedulers:PopulationBasedTraining(hyperparam_mutations={'lr': [1.0]})",
            "does not vary lr: it varies optim.lr",
        ),
        (
            "ray.tune.schedulers:PopulationBasedTraining(hyperparam_mutations=5)",
            "hyperparam_mutations is 5: write a dict",
        ),
        (
            "ray.tune.schedulers:PopulationBasedTraining(perturbation_interval='x')",
            "perturbation_interval is 'x': write a number",
        ),
        (
            "ray.tune.schedulers.pb2:PB2",
            "PB2 chooses values between two ends: write a range such as optim.lr=1e-4..1e-2",
        ),
        ("ray.tune.schedulers:MedianStoppingRule(grace_period='x')", "grace_period is 'x': write a number"),
        (
            "ray.tune.schedulers:HyperBandScheduler(reduction_factor=1)",
            "reduction_factor is 1: it must be greater than 1",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence_before_anything_begins(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        scheduler(text, combine("optim.lr=1e-3,3e-3", values("small-rec")), rung_tokens=1, trial_tokens=9)


def test_a_stopper_that_fails_at_a_result_is_a_sentence_too() -> None:
    with pytest.raises(
        ValueError, match=r"fails at a result \(TypeError: 'int' object is not callable\): choose plateau"
    ):
        stopper("ray.tune.stopper:FunctionStopper(function=1)")


def test_a_stopper_that_fails_only_when_it_compares_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"TrialPlateauStopper.* fails at a result"):
        stopper("ray.tune.stopper:TrialPlateauStopper(metric_threshold='x')")


@pytest.mark.parametrize("points", ["5", "[5]", "[{'nope': 1}]"])
def test_points_of_another_form_are_a_sentence(points: str) -> None:
    written = f"ray.tune.search.optuna:OptunaSearch(points_to_evaluate={points})"
    with pytest.raises(ValueError, match=r"write points_to_evaluate as \[\{field: value"):
        Searcher(written, combine("lr", values("small-rec")), seed=0)


def test_tunes_own_is_found_in_a_module_of_its_name() -> None:
    assert Named.parse("ray.tune.schedulers:PB2(quantile_fraction=0.5)").kind.__module__ == "ray.tune.schedulers.pb2"


def test_points_to_begin_with_are_written_as_values() -> None:
    space = combine("states+lr", values("small-rec"))
    known = space["model.states"].categories
    written = (
        f"ray.tune.search.optuna:OptunaSearch(points_to_evaluate=[{{'optim.lr': 0.001, 'model.states': {known[2]}}}])"
    )
    assert Searcher(written, space, seed=0).suggest("000") == {"optim.lr": 0.001, "model.states": known[2]}
    with pytest.raises(ValueError, match=r"model\.states is 3, which is not of this sweep's"):
        Searcher(written.replace(f": {known[2]}", ": 3"), space, seed=0)


def test_a_searcher_that_is_told_of_the_space_later() -> None:
    searcher = Searcher(f"{OWN}:LearnsLater", combine("states", values("small-rec")), seed=0)
    assert (searcher.suggest("000") or {})["model.states"]


class Suggests(Counts):
    """Always the same values."""

    def __init__(self, space: dict[str, Any], seed: int, **suggested: Any) -> None:
        super().__init__(space, seed)
        self.suggested = suggested

    def suggest(self, trial_id: str) -> Any:
        return self.suggested


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("lanes=2", "the searcher suggests 2 for lanes: it must give one of the labels 0, 1, 2"),
        ("", "the searcher suggests None for lanes: it must give one of the labels"),
    ],
)
def test_a_searcher_that_gives_no_label_of_a_list_is_refused(written: str, sentence: str) -> None:
    searcher = Searcher(f"{OWN}:Suggests({written})", {"lanes": tune.choice([1, 2, 4])}, seed=0)
    with pytest.raises(UserError, match=sentence):
        searcher.suggest("001")


def test_a_rule_and_a_searcher_of_ones_own() -> None:
    assert not Named.parse(f"{OWN}:StopsAbove(limit=2.5)").is_exact
    assert all(Named.parse(path).is_exact for path in SCHEDULERS.values())
    assert not Named.parse("ray.tune.stopper:TimeoutStopper(timeout=9)").is_exact  # Tune's own, by the clock
    assert decisions(f"{OWN}:StopsAbove(limit=2.5)", [("a", 1, 2.0), ("a", 1, 3.0)]) == [False, True]
    searcher = Searcher(f"{OWN}:Counts", combine("states", values("small-rec")), seed=0)
    states = [(searcher.suggest(str(i)) or {})["model.states"] for i in range(5)]
    assert len(set(states[:4])) == 4 and states[4] == states[0]


def test_tunes_own_by_path_decide_as_by_name() -> None:
    results = [("a", 10, 3.0), ("b", 10, 2.0), ("c", 10, 5.0), ("b", 30, 1.5), ("d", 10, 1.0), ("d", 30, 1.9)]
    path = "ray.tune.schedulers:ASHAScheduler(grace_period=10, max_t=90, reduction_factor=3, stop_last_trials=False)"
    assert decisions("asha", results) == decisions(path, results) != [False] * 6


def test_what_a_population_changes_stays_within_the_ranges() -> None:
    space = combine("optim.lr=1e-4..1e-2+seed=0,1", values("small-rec")) | {"data.lanes": tune.randint(2, 9)}
    changed = {"trial": "003", "optim.lr": 0.0099 * 1.2, "data.lanes": 8 * 1.2, "seed": 1}
    assert within_ranges(space, changed) == {"trial": "003", "optim.lr": 0.01, "data.lanes": 8, "seed": 1}
    assert within_ranges(space, {"optim.lr": 0.00123456})["optim.lr"] == 0.00123


def test_a_plateau_stops_what_has_come_to_rest() -> None:
    def told(value: float) -> dict[str, float]:
        return {"value": value, "training_iteration": 1}

    for name in ("plateau", "ray.tune.stopper:TrialPlateauStopper(std=0.01, num_results=4)"):
        stops = stopper(name)
        assert [stops("a", told(value)) for value in (3.0, 2.0, 2.0, 2.001, 2.0)] == [False] * 4 + [True]
    assert not stopper("none")("a", told(2.0))
    whole = stopper("ray.tune.stopper:ExperimentPlateauStopper(top=2, std=0.1)")
    assert not whole.stop_all()
    assert [whole(trial, told(2.0)) for trial in "abc"][-1] and whole.stop_all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ray.tune.schedulers:Nothing", "has no attribute 'Nothing'"),
        ("no.such.module:Rule", "No module named 'no'"),
        ("ray.tune.schedulers:ASHAScheduler(3)", "not of the form"),
        ("ray.tune.schedulers:ASHAScheduler(max_t=print())", r"cannot be made: max_t=print\(\) is no plain value"),
        ("ray.tune.schedulers:ASHAScheduler(odd=1)", "odd"),
        ("ray.tune.schedulers:ASHAScheduler(", "cannot be made"),
        ("ray.tune.stopper:TrialPlateauStopper", "no scheduler that decides by results alone"),
        ("ray.tune.schedulers:ResourceChangingScheduler", "no scheduler that decides by results alone"),
    ],
)
def test_what_cannot_be_made_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        scheduler(text, {}, rung_tokens=1, trial_tokens=9)


def test_a_scheduler_is_no_searcher_or_stopper() -> None:
    with pytest.raises(ValueError, match="is no stopper of Ray Tune's"):
        stopper("ray.tune.schedulers:ASHAScheduler")
    with pytest.raises(ValueError, match="is no searcher of Ray Tune's"):
        Searcher("ray.tune.schedulers:ASHAScheduler", combine("lr", values("small-rec")), seed=0)


def test_a_population_is_compared_at_one_step_alone() -> None:
    with pytest.raises(ValueError, match="leave synch=False out"):
        scheduler(
            "ray.tune.schedulers:PopulationBasedTraining(synch=False)",
            combine("lr", values("demo-rec")),
            rung_tokens=1,
            trial_tokens=9,
        )
