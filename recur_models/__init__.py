"""Every model behind one protocol: ``MODELS[name]`` is a frozen config class whose ``build(vocab_size)`` makes the model."""

from collections.abc import Mapping
from typing import Any, TypeVar

from common.choices import Recompute
from recur_models.block_recurrent import RecConfig
from recur_models.feedback_transformer import FeedbackTransformerConfig
from recur_models.gpt2 import GPT2Config, GPT2RecConfig
from recur_models.llama import LlamaConfig, LlamaRecConfig
from recur_models.lstm import LSTMConfig
from recur_models.memorizing import MemorizingConfig
from recur_models.protocol import IGNORED, RECURRENT, ModelConfig, RecurrentModel, State, clear, detach, reset
from recur_models.sliding_window import SlideConfig, XLConfig
from recur_models.staircase import CachedStaircaseConfig, StaircaseConfig
from recur_models.transformer_xl import TransformerXLConfig, UniversalTransformerConfig
from recur_models.vanilla import VanillaConfig

MODELS: dict[str, type[ModelConfig]] = {
    config.name: config
    for config in (
        RecConfig,
        SlideConfig,
        XLConfig,
        MemorizingConfig,
        VanillaConfig,
        StaircaseConfig,
        CachedStaircaseConfig,
        FeedbackTransformerConfig,
        TransformerXLConfig,
        UniversalTransformerConfig,
        LSTMConfig,
        GPT2Config,
        GPT2RecConfig,
        LlamaConfig,
        LlamaRecConfig,
    )
}
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
        raise ValueError(f"the model {name!r} is unknown to this version; it knows {', '.join(sorted(MODELS))}")
    return MODELS[name].from_json(values)


__all__ = [
    "IGNORED",
    "MODELS",
    "RECURRENT",
    "CachedStaircaseConfig",
    "FeedbackTransformerConfig",
    "GPT2Config",
    "GPT2RecConfig",
    "LSTMConfig",
    "LlamaConfig",
    "LlamaRecConfig",
    "MemorizingConfig",
    "ModelConfig",
    "RecConfig",
    "Recompute",
    "RecurrentModel",
    "SlideConfig",
    "StaircaseConfig",
    "State",
    "TransformerXLConfig",
    "UniversalTransformerConfig",
    "VanillaConfig",
    "XLConfig",
    "clear",
    "detach",
    "model_from_json",
    "register",
    "reset",
]
