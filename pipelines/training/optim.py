"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import nn

from common.errors import UserError
from common.start_up import without_compiler
from pipelines.config.run import OptimConfig, ScheduleConfig
from pipelines.training.adafactor import Adafactor
from recur_models import RecurrentModel


@without_compiler
class AdamW(torch.optim.AdamW):
    """torch's AdamW, with a step that does not import torch's compiler."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or Adafactor with the settings of the block-recurrent paper (Appendix C).

    Weight decay applies to parameters of two dimensions or more. Recurrent parameters form groups of their own if
    ``recurrent_lr_scale`` is not 1: the loop multiplies a group's learning rate by its ``lr_scale``.

    Raises UserError if ``recurrent_lr_scale`` is set and the model has no recurrent parameters.
    """
    scale = config.recurrent_lr_scale
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = list[dict[str, Any]]()

    def add(parameters: Sequence[nn.Parameter], **extra: float) -> None:
        if config.name == "adafactor":  # decays matrices alone by itself
            groups.append({"params": parameters, **extra})
            return
        matrices = [p for p in parameters if p.dim() >= 2]
        vectors = [p for p in parameters if p.dim() < 2]
        groups.append({"params": matrices, "weight_decay": config.weight_decay, **extra})
        groups.append({"params": vectors, "weight_decay": 0.0, **extra})

    if scale == 1:
        add(trained)
    else:
        recurrent = set(map(id, model.recurrent_parameters())) if isinstance(model, RecurrentModel) else set()
        if not recurrent:
            raise UserError(
                f"optim.recurrent_lr_scale is {scale:g}, and the model has no recurrent parameters: leave it at 1"
            )
        add([p for p in trained if id(p) not in recurrent])
        add([p for p in trained if id(p) in recurrent], lr_scale=scale)
    if config.name == "adafactor":
        return Adafactor(groups, lr=config.lr, beta1=config.betas[0], weight_decay=config.weight_decay)
    return AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def learning_rate(step: int, steps: int, optim: OptimConfig, schedule: ScheduleConfig) -> float:
    """The rate of optimizer step ``step`` (counted from 0) out of ``steps``.

    After the warm-up (s: the step counted from 1, w: `warmup_steps`, m: `min_lr_ratio`):

        constant       lr
        inverse-sqrt   lr / √s                                              (block-recurrent paper, Appendix C)
        cosine         lr · (m + (1 − m) · (1 + cos(π · progress)) / 2)     (Loshchilov & Hutter 2017, arXiv 1608.03983)

    progress is (s − 1 − w) / (steps − w), from 0 to 1. During the warm-up, each is multiplied by s / w, as in the block-recurrent
    paper's code. inverse-sqrt then has √w in place of √s.
    """
    warm = min(1.0, (step + 1) / max(schedule.warmup_steps, 1))
    if schedule.name == "inverse-sqrt":
        return optim.lr * warm / math.sqrt(max(step + 1, schedule.warmup_steps, 1))
    if schedule.name == "constant":
        return optim.lr * warm
    progress = min(1.0, max(0.0, (step - schedule.warmup_steps) / max(1, steps - schedule.warmup_steps)))
    least = schedule.min_lr_ratio
    return optim.lr * warm * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress)))
