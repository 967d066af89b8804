"""Every model behind one protocol: ``MODELS[name]`` is a frozen config class whose ``build(vocab_size)`` makes the model."""

from common.choices import Recompute
from recur_models.block_recurrent import RecConfig
from recur_models.feedback_transformer import FeedbackTransformerConfig
from recur_models.gpt2 import GPT2Config, GPT2RecConfig
from recur_models.llama import LlamaConfig, LlamaRecConfig
from recur_models.lstm import LSTMConfig
from recur_models.mamba2_model import Mamba2Config
from recur_models.memorizing import MemorizingConfig
from recur_models.memory_tokens import ARMTConfig, RMTConfig
from recur_models.mixers import MixersConfig
from recur_models.protocol import IGNORED, RECURRENT, ModelConfig, RecurrentModel, State, clear, detach, reset
from recur_models.registry import MODELS, model_from_json, register
from recur_models.sliding_window import SlideConfig, XLConfig
from recur_models.staircase import CachedStaircaseConfig, StaircaseConfig
from recur_models.transformer_xl import TransformerXLConfig, UniversalTransformerConfig
from recur_models.vanilla import VanillaConfig

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
    MixersConfig,
    RMTConfig,
    ARMTConfig,
    GPT2Config,
    GPT2RecConfig,
    LlamaConfig,
    LlamaRecConfig,
    Mamba2Config,
):
    register(config)

__all__ = [
    "IGNORED",
    "MODELS",
    "RECURRENT",
    "ARMTConfig",
    "CachedStaircaseConfig",
    "FeedbackTransformerConfig",
    "GPT2Config",
    "GPT2RecConfig",
    "LSTMConfig",
    "LlamaConfig",
    "LlamaRecConfig",
    "Mamba2Config",
    "MemorizingConfig",
    "MixersConfig",
    "ModelConfig",
    "RMTConfig",
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
