"""Whether the values of a space make runs: a value that its option would refuse is refused before a sweep begins.

check_values(config.space, config.metric, config.run_with, domains)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, product
from typing import Any

from common.errors import UserError
from data_prep.store import SegmentStore
from pipelines.config.run import TrainConfig
from pipelines.terminal import cli

RunWith = Callable[[Mapping[str, Any]], TrainConfig]

MOST_COMBINATIONS = 1000
"""How many combinations with other values are tried before a value that does not fit the preset counts as one that fits."""


def check_values(space: str, metric: str, run_with: RunWith, domains: Mapping[str, Any]) -> None:
    """Raise UserError for a listed value or an end of a range that no trial could be trained with, and StoreError for a split that
    one would miss.

    Args:
        run_with: the sweep's run with values in some fields; it raises ValueError where they do not fit together.
    """
    from tune_spaces.drawing import expand, listed_or_ends  # imports Ray Tune: seconds

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
        for value in values:
            combinations = islice(product(*others.values()), MOST_COMBINATIONS if others else 0)
            beside = (expand({key: value, **dict(zip(others, some, strict=True))}) for some in combinations)
            try:
                runs.append(_first_fitting(check, expand({key: value}), beside))
            except ValueError as error:
                told = ", ".join(f"{name} {one}" for name, one in expand({key: value}).items())
                raise UserError(f"the space {space} cannot be searched with {told}: {error}") from None
    read = {(run.data.store, run.data.corpus, split): run for run in runs for split in splits(run)}
    for place in read:
        SegmentStore.open(*place)


def _first_fitting(check: RunWith, alone: Mapping[str, Any], beside: Iterable[Mapping[str, Any]]) -> TrainConfig:
    """The run with these values and the preset's others, or else the first that fits with others of the space ``beside`` them.

    Raises ValueError, as the first one does, where none fits.
    """
    try:
        return check(alone)
    except ValueError:
        for values in beside:
            with contextlib.suppress(ValueError):
                return check(values)
        raise


def splits(run: TrainConfig) -> list[str]:
    """The splits that a run reads."""
    return ["train", "validation"] if run.validate_every else ["train"]
