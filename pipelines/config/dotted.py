"""A run's fields by dotted names: set some of them, and write the command that repeats it.

with_fields(PRESETS["small-rec"], {"optim.lr": 3e-4, "model.states": 64})
options(config, PRESETS["small-rec"])             ["--optim.lr", "0.0003", "--model.states", "64"]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError, given_by_user, nearest
from pipelines.config.run import TrainConfig, flatten, to_json


def with_fields(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The same run with other values in these fields, all set at once.

    Raises UserError for a field that the run does not have, for a value of another kind, and for values that do not go together.
    """
    before = flatten(to_json(config))
    parts: dict[str, dict[str, Any]] = {}
    for field, value in values.items():
        part, _, name = field.rpartition(".")
        owner = getattr(config, part, None) if part else config
        known = {f.name for f in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
        if name not in known or dataclasses.is_dataclass(getattr(owner, name)):
            raise UserError(no_field(config, field))
        stood = before.get(field)
        if isinstance(stood, (int, float)) and not isinstance(value, (int, float)) and field != "num_workers":
            raise UserError(f"{field} is {value!r}: give a value such as {stood}")
        if isinstance(stood, list) and not isinstance(value, (list, tuple)):
            value = [value]
        parts.setdefault(part, {})[name] = tuple(value) if isinstance(value, list) else value
    with given_by_user(ValueError):  # from a model's config, for example
        changed = {part: dataclasses.replace(getattr(config, part), **some) for part, some in parts.items() if part}
        return dataclasses.replace(config, **changed, **parts.get("", {}))


def no_field(config: TrainConfig, field: str) -> str:
    """The error message for a name that is no field of a run, or that cannot be set."""
    if field in ("model", "model.name"):
        return f"{field} cannot be set: another model has other fields, which its presets set: choose another preset"
    settable = [name for name in flatten(to_json(config)) if name != "model.name"]
    return f"a run of {config.model.name} has no field {field!r}: {nearest(field, settable)}"


def changes(config: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    """The fields that ``base`` lacks or that have another value there, with this run's values."""
    ours = flatten(to_json(config))
    theirs = flatten(to_json(base))
    # JSON has no credentials.
    whole = {"tracking.uri": config.tracking.uri, "data.store": config.data.store, "root": config.root}
    return {key: whole.get(key, value) for key, value in ours.items() if key not in theirs or theirs[key] != value}


def options(config: TrainConfig, base: TrainConfig) -> list[str]:
    """The options that make a run out of another one, as they are typed; without credentials."""
    changed = changes(config, base).items()
    return [word for field, value in changed if field != "model.name" for word in words_of(field, value)]


def words_of(field: str, value: Any) -> list[str]:
    """The option that gives a field a value, as it is typed; without credentials."""
    option = field.replace("_", "-")
    if isinstance(value, bool):
        group, dot, name = option.rpartition(".")
        return [f"--{group}{dot}{'' if value else 'no-'}{name}"]
    if isinstance(value, list):
        return [f"--{option}", *map(without_credentials, value)]
    return option_words(f"--{option}", without_credentials(value))


def option_words(option: str, value: str) -> list[str]:
    """An option and its value on a command line. They are one word if the value begins with a dash, as an option does."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]
