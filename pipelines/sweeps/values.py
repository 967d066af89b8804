"""Whether the values of a space make runs: a value that its option would refuse is refused before a sweep begins.

check_values(config.space, config.metric, config.run_with, domains, config.own_values(fields(domains)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice, product
from typing import Any

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.config.run import TrainConfig
from pipelines.terminal import cli

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
    from ray.tune.search.sample import Categorical  # the imports take seconds

    from pipelines.training.scoring import check_logged
    from tune_spaces.drawing import expand, listed_or_ends

    def check(values: Mapping[str, Any]) -> TrainConfig:
        run = run_with(values)
        cli.check_values(run)
        if metric.startswith("validation/") and not run.validate_every:
            raise UserError(f"no trial would ever be validated, and {metric} is what trials are compared by")
        return run

    known = {key: listed_or_ends(domain) for key, domain in domains.items()}
    runs = []
    for key, values in known.items():
        others = {other: theirs for other, theirs in known.items() if other != key and theirs}
        listed = bool(others) and all(isinstance(domains[other], Categorical) for other in domains if other != key)
        every = math.prod(map(len, others.values()))
        for value in values:
            combinations = islice(product(*others.values()), MAX_COMBINATIONS if others else 0)
            beside = (expand({key: value, **dict(zip(others, some, strict=True))}) for some in combinations)
            alone = [] if listed and every <= MAX_COMBINATIONS else [expand({key: value})]
            try:
                runs.append(_first_fitting(check, chain(beside, alone)))
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
