"""Trials from domains: a grid, independent draws, or what Optuna or BOHB suggests.

    grid(domains, points=3)             every combination; a range becomes so many points
    draw(domains, seed=0, index=3)      a pure function: the fourth draw of this seed, whatever was drawn before
    searcher = Searcher("optuna", domains, seed=0); searcher.suggest("003"); searcher.complete("003", 5.1)

All return flat values, with joint keys split: ``{"model.gate": "fixed", "model.cell": "skip"}``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from ray import tune
from ray.tune import search
from ray.tune.search.sample import Categorical, Float, Integer, LogUniform, Quantized

from common.errors import UserError
from tune_spaces import SEARCHERS
from tune_spaces.named import Named

METRIC = "value"
"""The name under which schedulers, stoppers and searchers get the sweep's metric."""


def as_json(value: Any) -> Any:
    """A value as a sweep's files have it: JSON has lists and no tuples."""
    return [as_json(each) for each in value] if isinstance(value, (list, tuple)) else value


def expand(values: Mapping[str, Any]) -> dict[str, Any]:
    """Split joint keys: ``{"a,b": (1, 2)}`` becomes ``{"a": 1, "b": 2}``. Tuples become lists."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        fields = key.split(",")
        each = value if len(fields) > 1 else (value,)
        flat |= dict(zip(fields, map(as_json, each), strict=True))
    return flat


def rounded(domain: Any, value: Any) -> Any:
    """A number drawn from a range: with three significant digits, but within the range, if it has decimals; else whole.

    Listed values stay as written.
    """
    if isinstance(domain, Categorical):
        return value
    if isinstance(domain, Integer):
        return round(value)
    if not isinstance(domain, Float):
        return float(f"{value:.3g}") if isinstance(value, float) else value
    return min(max(float(f"{value:.3g}"), domain.lower), domain.upper)


def draw(domains: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
    """The draw of this index, from 0. Each key has its own random stream."""
    streams = {key: random.Random(f"{seed}/{index}/{key}").getrandbits(32) for key in domains}
    return expand({k: rounded(domain, domain.sample(random_state=streams[k])) for k, domain in domains.items()})


def grid(domains: Mapping[str, Any], points: int) -> list[dict[str, Any]]:
    """Every combination, the last key varying fastest. A range becomes ``points`` values from end to end, spaced as it is drawn.

    Raises ValueError for a domain without two ends, or one that draws multiples of a number alone.
    """
    axes = [_points(domain, points) for domain in domains.values()]
    return [expand(dict(zip(domains, values, strict=True))) for values in product(*axes)]


def _points(domain: Any, points: int) -> list[Any]:
    if isinstance(domain, Categorical):
        return list(domain.categories)
    ends = listed_or_ends(domain)
    if not ends:
        raise ValueError(
            "--search grid takes lists, and ranges with two ends: draw from this space with --search random"
        )
    sampler = domain.get_sampler()
    if isinstance(sampler, Quantized):
        raise ValueError("--search grid takes no quantized ranges: list the values, as in tune.choice([8, 16, 32])")
    low, high = ends
    shares = [i / (points - 1) for i in range(points)] if points > 1 else [0.5]
    by_logarithm = isinstance(sampler, LogUniform)
    found = [low * (high / low) ** share if by_logarithm else low + (high - low) * share for share in shares]
    return list(dict.fromkeys(rounded(domain, value) for value in found))


def listed_or_ends(domain: Any) -> list[Any]:
    """The values of a list, or both ends of a range; empty for a domain without two finite ends."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if not isinstance(domain, Float | Integer) or not math.isfinite(domain.lower) or not math.isfinite(domain.upper):
        return []
    return [domain.lower, domain.upper - 1 if isinstance(domain, Integer) else domain.upper]  # an Integer excludes it


@contextlib.contextmanager
def seeded(text: str) -> Iterator[None]:
    """Seed the global random generators, from which Tune draws, with this text; their states are restored after the block."""
    others = random.getstate(), np.random.get_state()
    random.seed(text)
    np.random.seed(zlib.crc32(text.encode()))
    try:
        yield
    finally:
        random.setstate(others[0])
        np.random.set_state(others[1])


@dataclass(frozen=True)
class Draw:
    """A suggestion of a searcher in an earlier start of the sweep."""

    name: str
    trial: str | None
    """The trial with these values; None if the values did not fit together."""
    values: Mapping[str, Any]


class Searcher:
    """Ray Tune's OptunaSearch or TuneBOHB, or another of its searchers by its import path. It gets categories as labels, because
    they must be plain values.

    After a kill, the searcher gets its earlier draws as points to evaluate, and then their results. Its next draws depend on all
    of them.
    """

    def __init__(self, name: str, domains: Mapping[str, Any], seed: int, drawn: Sequence[Draw] = ()) -> None:
        self._domains = domains
        self._seed = seed
        self._labels = {key: list(map(str, range(len(d)))) for key, d in domains.items() if isinstance(d, Categorical)}
        space = {**domains, **{key: tune.choice(labels) for key, labels in self._labels.items()}}
        path, packages = SEARCHERS.get(name, (name, ""))
        if not all(map(find_spec, packages.split())):
            raise ValueError(
                f"--search {name} needs packages that are not installed: pip install {packages}, or --search random"
            )
        self._left = list(drawn)
        self._drawn: set[str] = set()
        """Trials that the searcher has suggested: it knows no others."""
        instead = f"choose {' or '.join(SEARCHERS)}, or --search random"
        named = Named.parse(path)
        for logger in ("optuna", "hpbandster", "ray.tune.search"):  # imported now: Optuna sets its own level
            logging.getLogger(logger).setLevel(logging.ERROR)
        points = self._points(name, named.given.get("points_to_evaluate", []), drawn)
        if points and "points_to_evaluate" in named.parameters:
            named = dataclasses.replace(named, given={**named.given, "points_to_evaluate": points})
            seed += len(drawn)  # these take no random numbers: the same seed would draw them again after them
        seeds = dict.fromkeys(("seed", "random_state", "random_state_seed"), seed)  # each class has its own name for it
        self._search = named.make(search.Searcher, instead, space=space, metric=METRIC, mode="min", **seeds)
        self._search.set_search_properties(METRIC, "min", space)  # a searcher that has them already ignores this

    def _points(self, name: str, written: Any, drawn: Sequence[Draw]) -> list[dict[str, Any]]:
        """The points that the searcher ``name`` evaluates first: its earlier draws, then those ``written`` with its name that
        it has not drawn yet. Raises ValueError where these are no points of this sweep.
        """
        if not isinstance(written, list) or not all(
            isinstance(point, dict) and point.keys() <= self._domains.keys() for point in written
        ):
            raise ValueError(
                f"{name}: write points_to_evaluate as [{{field: value, …}}, …] of this sweep's: {', '.join(self._domains)}"
            )
        points = [self._point(draw.values) for draw in drawn]
        labelled = [{key: self._labelled(key, point[key]) for key in point} for point in written]
        return points + labelled[len(points) :]

    def _point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's values in the searcher's form: by joint keys, categories as labels."""
        joined = {key: tuple(values[field] for field in key.split(",")) for key in self._domains}
        return {key: self._labelled(key, found if "," in key else found[0]) for key, found in joined.items()}

    def _labelled(self, key: str, value: Any) -> Any:
        """A value in the searcher's form: the label of a category, or the value itself."""
        known = [as_json(each) for each in self._domains[key].categories] if key in self._labels else []
        value = as_json(value)
        if known and value not in known:
            raise ValueError(f"points_to_evaluate: {key} is {value!r}, which is not of this sweep's: {known}")
        return self._labels[key][known.index(value)] if known else value

    def recall(self, trial: str) -> None:
        """Have the searcher repeat its suggestions of an earlier start, up to this trial."""
        while self._left:
            draw = self._left.pop(0)
            found = self.suggest(draw.trial or draw.name)
            if found != draw.values:
                self._drawn.discard(draw.trial or draw.name)  # it takes no points: no trial has this suggestion
            if draw.trial is None:
                self.complete(draw.name, 0, None)
            elif draw.trial == trial:
                return

    def suggest(self, trial: str) -> dict[str, Any] | None:
        """Values for a trial; None if the searcher waits for results or has no more values.

        Raises UserError if it leaves out a field, or gives none of a list's labels ("0", "1", …).
        """
        with seeded(f"{self._seed}/{trial}"):  # BOHB draws from numpy's generator
            values = self._search.suggest(trial)
        if not isinstance(values, dict):
            return None
        self._drawn.add(trial)
        for key in self._domains:
            labels = self._labels.get(key)
            if key not in values or (labels and values[key] not in labels):
                wanted = f"one of the labels {', '.join(labels)}" if labels else "a number"
                raise UserError(f"the searcher suggests {values.get(key)!r} for {key}: it must give {wanted}")
        chosen = {
            key: domain.categories[int(values[key])] if key in self._labels else rounded(domain, float(values[key]))
            for key, domain in self._domains.items()
        }
        return expand(chosen)

    def result(self, trial: str, time: int, value: float) -> None:
        """Pass on a trial's metric after ``time`` tokens."""
        if trial in self._drawn:
            self._search.on_trial_result(trial, self._result(time, value))

    def complete(self, trial: str, time: int, value: float | None) -> None:
        """Pass on the end of a trial, with its metric after ``time`` tokens; ``value`` is None if it failed."""
        result = None if value is None else self._result(time, value)
        if trial in self._drawn:
            self._search.on_trial_complete(trial, result, error=result is None)

    def pause(self, trial: str) -> None:
        """Pass on to TuneBOHB that the scheduler HyperBandForBOHB has paused a trial."""
        if trial in self._drawn and hasattr(self._search, "on_pause"):
            self._search.on_pause(trial)

    def resume(self, trial: str) -> None:
        """Pass on that the scheduler lets a paused trial continue."""
        if trial in self._drawn and hasattr(self._search, "on_unpause"):
            self._search.on_unpause(trial)

    @staticmethod
    def _result(time: int, value: float) -> dict[str, Any]:
        """A result in the form that Tune's searchers take."""
        return {METRIC: value, "training_iteration": time, "hyperband_info": {"budget": time}}
