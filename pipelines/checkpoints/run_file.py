"""A run as a file that takes a preset's place on the command line: a sweep's best.json, or any run's config.json.

presets_with(PRESETS, argv)        # the presets, and `runs/sweep/best.json` where the command line names it
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from pipelines.config.dotted import read_run
from pipelines.config.run import TrainConfig, to_json


def presets_with(presets: Mapping[str, TrainConfig], argv: Sequence[str]) -> Mapping[str, TrainConfig]:
    """The presets, and the file that the command line names in place of one: a sweep's best.json, or a run's config.json."""
    if not argv or not argv[0].endswith(".json"):
        return presets
    path = Path(argv[0])
    try:
        values = json.loads(path.read_text("utf-8"))
        values = values.get("config", values)
        name = str(values["run"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a run's config: it is damaged, or something else ({error})") from None
    run = read_run(values, str(path))
    return {**presets, argv[0]: dataclasses.replace(run, run=name)}


def as_preset(config: TrainConfig) -> dict[str, Any]:
    """A run as JSON for a file that `presets_with` reads; without credentials, and without the place in a sweep."""
    values = to_json(config)
    values["tracking"]["parent"] = ""
    return values
