"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import math

import torch
from torch import nn

from pipelines.config.run import OptimConfig, ScheduleConfig
from pipelines.training.adafactor import Adafactor


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or Adafactor as the block-recurrent paper sets it (Appendix C); weight decay of matrices alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.name == "adafactor":
        return Adafactor(parameters, lr=config.lr, beta1=config.betas[0], weight_decay=config.weight_decay)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def learning_rate(step: int, steps: int, optim: OptimConfig, schedule: ScheduleConfig) -> float:
    """The rate of optimizer step ``step`` (counted from 0) out of ``steps``."""
    if schedule.name == "inverse-sqrt":
        return optim.lr / math.sqrt(max(step + 1, schedule.warmup, 1))
    warm = min(1.0, (step + 1) / max(schedule.warmup, 1))
    if schedule.name == "constant":
        return optim.lr * warm
    progress = min(1.0, max(0.0, (step - schedule.warmup) / max(1, steps - schedule.warmup)))
    return optim.lr * warm * (schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * progress)))
