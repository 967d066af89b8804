"""Every model behind one protocol: ``MODELS[name]`` is a frozen config class whose ``build(vocab_size)`` makes the model.

Importing this package also makes the models known to transformers' Auto classes (hf_auto.py), as soon as somebody imports these.
"""

import dataclasses
import importlib
import json
import sys
from typing import Any

from recur_models.block_recurrent import RecConfig, SlideConfig, XLConfig
from recur_models.importing import when_imported
from recur_models.memorizing import MemorizingConfig
from recur_models.protocol import (
    IGNORED,
    RECURRENT,
    ModelConfig,
    Recompute,
    RecurrentModel,
    State,
    clear,
    detach,
    reset,
)
from recur_models.vanilla import VanillaConfig

MODELS: dict[str, type[ModelConfig]] = {
    config.name: config for config in (RecConfig, SlideConfig, XLConfig, MemorizingConfig, VanillaConfig)
}


def model_to_json(config: ModelConfig) -> dict[str, Any]:
    """A model's config as JSON values, its registered name under ``name``. Where nothing is dropped, nothing is said of where."""
    values = {"name": config.name, **json.loads(json.dumps(dataclasses.asdict(config)))}
    if not values.get("dropout"):
        values.pop("dropout_places", None)
    return values


def model_from_json(values: dict[str, Any]) -> ModelConfig:
    """The config that `model_to_json` wrote. Raises ValueError when the model or a field is unknown."""
    values = dict(values)
    name = values.pop("name", None)
    if name not in MODELS:
        raise ValueError(f"the model {name!r} is unknown to this version; it knows {', '.join(sorted(MODELS))}")
    known = {f.name for f in dataclasses.fields(MODELS[name])}
    if values.get("dropout") and "dropout_places" in known:
        values.setdefault("dropout_places", "usual")  # written before there was a choice
    if unknown := sorted(values.keys() - known):
        raise ValueError(f"the model {name!r} has no field {unknown[0]!r} in this version")
    return MODELS[name](**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _register() -> None:
    """Not where a module of ours imports transformers: it is not whole yet, and `hf` imports hf_auto itself."""
    if not any(name.startswith("recur_models.hf") for name in sys.modules):
        importlib.import_module("recur_models.hf_auto")


when_imported("transformers", _register)

__all__ = [
    "IGNORED",
    "MODELS",
    "RECURRENT",
    "MemorizingConfig",
    "ModelConfig",
    "RecConfig",
    "Recompute",
    "RecurrentModel",
    "SlideConfig",
    "State",
    "VanillaConfig",
    "XLConfig",
    "clear",
    "detach",
    "model_from_json",
    "model_to_json",
    "reset",
]
