"""Every model behind one protocol: ``MODELS[name]`` is a frozen config class whose ``build(vocab_size)`` makes the model."""

from recur_models.block_recurrent import RecConfig, SlideConfig, XLConfig
from recur_models.memorizing import MemorizingConfig
from recur_models.protocol import IGNORED, RECURRENT, ModelConfig, RecurrentModel, State, clear, detach, reset
from recur_models.vanilla import VanillaConfig

MODELS: dict[str, type[ModelConfig]] = {
    config.name: config for config in (RecConfig, SlideConfig, XLConfig, MemorizingConfig, VanillaConfig)
}

__all__ = [
    "IGNORED",
    "MODELS",
    "RECURRENT",
    "MemorizingConfig",
    "ModelConfig",
    "RecConfig",
    "RecurrentModel",
    "SlideConfig",
    "State",
    "VanillaConfig",
    "XLConfig",
    "clear",
    "detach",
    "reset",
]
