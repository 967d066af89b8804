"""Whether the values of a space make runs: a value that its option would refuse is refused before a sweep begins.

check_values(config.space, config.metric, config.run_with, domains, config.own_values(fields(domains)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Any

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.config.run import TrainConfig
from pipelines.terminal import options

RunWith = Callable[[Mapping[str, Any]], TrainConfig]

MAX_COMBINATIONS = 1000
"""Most combinations with other fields' values that are tried for a value, before it is tried with the preset's own values."""


def check_values(
    space: str, metric: str, run_with: RunWith, domains: Mapping[str, Any], own: Mapping[str, Any] | None
) -> None:
    """Raise UserError for a listed value or an end of a range that no trial could be trained with, or whose metric would never be
    logged. Raises StoreError if a split is missing that a trial reads.

    Args:
        run_with: the sweep's run with values in some fields; it raises ValueError where they do not fit together.
        own: the values of the trial that is the preset itself; None where there is no such trial.
    """
    from pipelines.training.scoring import check_logged  # the imports take seconds
    from tune_spaces.drawing import expand, listed_or_ends

    def check(values: Mapping[str, Any]) -> TrainConfig:
        run = run_with(values)
        options.check_values(run)
        if metric.startswith("validation/") and not run.validate_every:
            raise UserError(f"no trial would ever be validated, and {metric} is what trials are compared by")
        return run

    runs = []
    for key, domain in domains.items():
        for value in listed_or_ends(domain):
            try:
                runs.append(_first_fitting(check, _with_others(key, value, domains)))
            except ValueError as error:
                told = ", ".join(f"{name} {one}" for name, one in expand({key: value}).items())
                raise UserError(f"the space {space} cannot be searched with {told}: {error}") from None
    if own is not None or not runs:
        runs.append(check(own or {}))
    stores: dict[tuple[str, str, str], SegmentStore] = {}
    for run in runs:
        for split in splits(run):
            place = run.data.store, run.data.corpus, split
            if place not in stores:
                stores[place] = SegmentStore.open(*place)
        check_logged("--metric", metric, run, stores[run.data.store, run.data.corpus, "train"])


def _with_others(key: str, value: Any, domains: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A value of one key beside the other keys' listed values and ends, at most `MAX_COMBINATIONS` of them; at last by itself,
    beside the preset's own values. That is left out where no trial would have it: the others are lists, and all were tried.
    """
    from ray.tune.search.sample import Categorical

    from tune_spaces.drawing import expand, listed_or_ends

    others = {other: domain for other, domain in domains.items() if other != key}
    found = {other: listed_or_ends(domain) for other, domain in others.items()}
    known = {other: values for other, values in found.items() if values}
    for some in islice(product(*known.values()), MAX_COMBINATIONS):
        yield expand({key: value, **dict(zip(known, some, strict=True))})
    are_lists = all(isinstance(domain, Categorical) for domain in others.values())
    if known and (not are_lists or math.prod(map(len, known.values())) > MAX_COMBINATIONS):
        yield expand({key: value})


def _first_fitting(check: RunWith, candidates: Iterable[Mapping[str, Any]]) -> TrainConfig:
    """The run with the first of the candidates whose values fit together; there is at least one candidate. Raises the first one's
    ValueError where none do.
    """
    refused: ValueError | None = None
    for values in candidates:
        try:
            return check(values)
        except ValueError as error:
            refused = refused or error
    assert refused
    raise refused


def splits(run: TrainConfig) -> list[str]:
    """The splits that a run reads."""
    return ["train", "validation"] if run.validate_every else ["train"]


def fitting(combinations: Iterable[Mapping[str, Any]], run_with: RunWith) -> list[Mapping[str, Any]]:
    """The combinations whose values fit together."""
    found = []
    for values in combinations:
        try:
            run_with(values)
        except ValueError:
            continue
        found.append(values)
    return found
