"""Small models with weights that matter, tokens for them, and what tests of several files ask of them."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kept import kept_bytes
from recur_models import ModelConfig, RecurrentModel, detach
from tests.recur_models.naive import Naive, NaiveVanilla
from tests.recur_models.naive_core import NaiveFeedback, NaiveLSTM, NaiveStaircase, NaiveXL
from tests.recur_models.naive_gpt2 import NaiveGPT2, NaiveLlama
from tests.recur_models.naive_memory_tokens import NaiveARMT, NaiveRMT
from tests.recur_models.naive_mixers import NaiveMamba2, NaiveMixers

VOCAB = 31
BEGIN_AT_ZERO = ("association.value.weight", "first_DR", "norm_bias_Z", "recurrent_HVZ")
"""Parameters that do nothing before training."""


def build(config: ModelConfig, seed: int = 0) -> RecurrentModel:
    torch.manual_seed(seed)
    model = config.build(VOCAB)
    with torch.no_grad():  # scales and norms away from one, so that their place in the equations matters
        for name, parameter in model.named_parameters():
            if name.endswith(("scale", "scale_H", "scale_Z")):
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
            if name.endswith(("gate_H", "memory_weights_L", "layer_weights_L", "key_D")):
                parameter.add_(torch.randn_like(parameter))
            if name.endswith(BEGIN_AT_ZERO) or (name.startswith("recurrence.steps") and not parameter.any()):
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith(("norm.weight", "norm.bias", "ln_1.weight", "ln_1.bias")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def tokens(lanes: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCAB, (lanes, length), generator=torch.Generator().manual_seed(seed))


def fresh_at(lanes: int, blocks: int, *starts: tuple[int, int]) -> torch.Tensor:
    fresh = torch.zeros(lanes, blocks, dtype=torch.bool)
    fresh[:, 0] = True
    for lane, block in starts:
        fresh[lane, block] = True
    return fresh


RESTATEMENTS: dict[str, Any] = {
    **dict.fromkeys(("rec", "slide", "xl", "memorizing"), Naive),
    "vanilla": NaiveVanilla,
    **dict.fromkeys(("staircase", "cached-staircase"), NaiveStaircase),
    **dict.fromkeys(("transformer-xl", "universal-transformer"), NaiveXL),
    "feedback-transformer": NaiveFeedback,
    "lstm": NaiveLSTM,
    "mixers": NaiveMixers,
    "mamba2": NaiveMamba2,
    "rmt": NaiveRMT,
    "armt": NaiveARMT,
    **dict.fromkeys(("gpt2", "gpt2-rec"), NaiveGPT2),
    **dict.fromkeys(("llama", "llama-rec"), NaiveLlama),
}
"""The restatement of each model, by the model's name."""


def gradients(model: RecurrentModel, text: torch.Tensor, blocks: int, cut: bool = True) -> dict[str, torch.Tensor]:
    """Gradients of the summed nats over segments of ``blocks`` blocks, with State ``cut`` from the graph between them."""
    state = model.initial_state(len(text))
    total = torch.zeros(())
    for segment in text.split(blocks * model.block, dim=1):
        nats, state = model(segment, detach(state) if cut else state, None, segment)
        total = total + nats.sum()
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def kept(model: RecurrentModel, blocks: int) -> int:
    """Bytes that the forward pass keeps for the backward pass."""
    text = tokens(2, blocks * model.block)
    return kept_bytes(lambda: model(text, model.initial_state(2), None, text))
