"""The models that are known by name. `recur_models` registers its own; a plug-in registers its own by `register`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from recur_models.protocol import ModelConfig

MODELS: dict[str, type[ModelConfig]] = {}
"""Every model's config class by its name."""

Config = TypeVar("Config", bound=ModelConfig)


def register(config: type[Config]) -> type[Config]:
    """Make a model known by its config's ``name``, as a decorator of the config. Raises ValueError for another model's name."""
    if MODELS.setdefault(config.name, config) is not config:
        raise ValueError(
            f"the model {config.name!r} is there already, as {MODELS[config.name].__qualname__}: choose another name"
        )
    return config


def model_from_json(values: Mapping[str, Any]) -> ModelConfig:
    """The config that `ModelConfig.to_json` wrote. Raises ValueError when the model or a field is unknown."""
    name = values.get("name")
    if name not in MODELS:
        raise ValueError(
            f"the model {name!r} is unknown: if a plug-in has it, name its module in THROUGHLINE_PLUGINS; this version knows "
            f"{', '.join(sorted(MODELS))}"
        )
    return MODELS[name].from_json(values)
