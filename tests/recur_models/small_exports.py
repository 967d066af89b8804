"""Small models as transformers sees them."""

from __future__ import annotations

from typing import Any

import torch

from recur_models import ModelConfig
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from tests.recur_models.conftest import small_configs
from tests.recur_models.small_models import VOCAB, build, tokens

BOD = VOCAB - 1


def wrap(config: ModelConfig) -> Any:
    model = ThroughlineForCausalLM(ThroughlineConfig.of(config, VOCAB)).eval()
    model.model.load_state_dict(build(config).state_dict())
    return model


def representatives() -> dict[str, ModelConfig]:
    """One config of each model, and another of the recurrent one; that decoding is right for all, test_decoding.py says."""
    configs = small_configs()
    return {config.name: config for config in configs.values()} | {"rec-other": configs["rec-lstm-dual-meliad"]}


def text(lanes: int, length: int) -> torch.Tensor:
    """Begin-of-document, then other ids."""
    ids = tokens(lanes, length) % BOD
    ids[:, 0] = BOD
    return ids
