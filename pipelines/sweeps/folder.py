"""Which sweep a folder belongs to: a sweep goes on in its own, and another one is refused.

open_folder(sweep, command, baseline)           # begins the folder with sweep.json, or reads its trials
"""

from __future__ import annotations

import json
from typing import Any

from data_prep.errors import UserError
from pipelines.checkpoints.lock import LOCK
from pipelines.config.run import CHANGEABLE_ON_RESUME, flatten, to_json
from pipelines.sweeps.sweep import Sweep, SweepConfig, write_json
from pipelines.terminal.cli import shown

CHANGEABLE_OF_RUN = tuple(
    name for name in CHANGEABLE_ON_RESUME if name not in ("data.store", "validate_every", "validate_tokens")
)
"""Fields of a run that may differ when a sweep is resumed."""
FIXED_OF_SWEEP = (
    "space",
    "preset",
    "samples",
    "search",
    "points",
    "scheduler",
    "reduction",
    "rung_tokens",
    "equal",
    "metric",
    "baseline",
)
"""Fields of a sweep that may not."""


def identity(config: SweepConfig) -> dict[str, Any]:
    """What makes a sweep this one."""
    values = {name: getattr(config, name) for name in FIXED_OF_SWEEP}
    run = {
        key: value
        for key, value in flatten(to_json(config.train)).items()
        if not any(key == name or key.startswith(name + ".") for name in CHANGEABLE_OF_RUN)
    }
    return values | run


def open_folder(sweep: Sweep, command: str, baseline: dict[str, Any]) -> None:
    """Begin the sweep's folder, or go on in it. Raises ValueError when it is another's."""
    folder, path = sweep.folder, sweep.folder / "sweep.json"
    ours = identity(sweep.config)
    if path.exists():
        try:
            theirs = json.loads(path.read_text("utf-8"))["identity"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): choose another --run") from None
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            if ours.get(key) != theirs.get(key):
                raise UserError(
                    f"{shown(folder)} holds another sweep, with {key}={theirs.get(key)}, and this command says {ours.get(key)}: "
                    "choose another --run"
                )
        sweep.load_trials()
        return
    if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise UserError(f"{shown(folder)} holds something else than a sweep: choose another --run")
    config = sweep.config
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "name": config.train.run,
            "space": config.space,
            "preset": config.preset,
            "seed": config.train.seed,
            "samples": config.samples,
            "search": config.search,
            "scheduler": config.scheduler,
            "metric": config.metric,
            "mode": "min",
            "fields": sweep.fields,
            "command": command,
            "baseline": baseline,
            "identity": ours,
        },
    )
