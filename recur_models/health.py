"""Whether a model uses its recurrent State: metrics of the forward passes made inside a `with`, cheap enough to log in training.

    with watch(model, tokens_BT, state, fresh_BK, targets_BT) as health:
        nats_BT, state = model(tokens_BT, state, fresh_BK, targets_BT)
    health.metrics()    # {"state_share": 0.31, "gate_openness": 0.47, "state_change": 0.12}
    health.warning([0.02, 0.03])    # what clearing its State cost in validation; None, or one sentence

- ``state_share``, 0 … 1: of what attention adds to the residual stream, the part that comes from recurrent states or from a kNN
  memory. Tokens attend to states under a softmax of their own, so the mass on them is always 1: what can vanish is the
  projection behind it. In energy: |from states|² / (|from states|² + |from the window|²). For a memory: its gate, σ(b).
- ``gate_openness``, 0 … 1: share of the new candidate that a gate lets in: 1 − g (fixed) or i (lstm), equations 3 and 7.
- ``state_change``: rms of a block's change of the states over their rms before it.

Each is a mean over layers, lanes and blocks. Recurrence has a failure mode in which the model learns to ignore the states and does
not recover (section 3.4 and Appendix B): then clearing the State costs nothing in validation, and at worst the share goes to 0 or
the states stop changing. A model without recurrent State has no metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from recur_models.compiling import is_compiled
from recur_models.protocol import Probe, RecurrentModel

LEAST_WORTH = 0.0003
"""Bits per token by which clearing the State must change the bits of a validation, up or down; below it, the State is ignored."""
PATIENCE = 2
"""Validations in a row that must say so: a State that is used at the end is often worth nothing, or less, early on. Both from the
table in results/state_worth, "When the warning about an unused State is right" (`benchmarks.ignored_states`)."""
LEAST_SHARE = 0.001
"""Below this share of the attention's output, the states are ignored. A backstop where nothing is validated: a larger share proves
nothing, for the run that did not use its State had 0.12 to 0.70, and those that did 0.12 to 0.62; and where h_prev is one key
beside a window's hundred, it begins with 0.009."""
LEAST_CHANGE = 0.001
"""Below this change per block, the states are a constant. A backstop too: 0.07 to 0.50 in the one, 0.01 to 0.99 in the others."""


def is_ignored(worths: Sequence[float], least: float, patience: int) -> bool:
    """Whether clearing the State has changed the newest ``patience`` of these metrics by less than ``least`` bits, up or down."""
    return len(worths) >= patience and all(abs(worth) < least for worth in worths[-patience:])


class Health:
    """Sums of the metrics of the passes probe; they stay on the model's device until they are asked for."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value.detach().float()
        self.counts[name] = self.counts.get(name, 0) + 1

    def metrics(self) -> dict[str, float]:
        """The mean of each metric; empty for a model without recurrent State."""
        return {name: (self.sums[name] / self.counts[name]).item() for name in sorted(self.sums)}

    def warning(self, worths: Sequence[float] = ()) -> str | None:
        """One sentence when the State is being ignored. ``worths``: what clearing it cost in the newest validations, in bits."""
        metrics = self.metrics()
        if worths:  # nothing else counts then
            if not is_ignored(worths, LEAST_WORTH, PATIENCE):
                return None
            told = f"clearing it changes validation by {worths[-1]:.4f} bits per token"
        elif metrics.get("state_share", 1.0) < LEAST_SHARE:
            told = f"only {metrics['state_share']:.2%} of the attention's output comes from it"
        elif metrics.get("state_change", 1.0) < LEAST_CHANGE:
            told = f"a block changes it by only {metrics['state_change']:.2%}"
        else:
            return None
        return (
            f"the model is learning to ignore its recurrent State: {told}; more lanes, another optim.lr, or "
            '--model.gate lstm of a rec, may help (docs/models.md, "When recurrence pays")'
        )


@contextmanager
def watch(model: RecurrentModel | None, *given: object, health: Health | None = None) -> Iterator[Health]:
    """Record diagnostics of every forward pass inside the `with`, into ``health`` if it is given; none without a model. The passes
    compute the same as without it.

    Compiled code does not see hooks, and running a pass uncompiled changes its rounding, its dropout, and what is kept for the
    backward pass. So a compiled model's metrics are those of a pass of their own over ``given``, the arguments of the pass to come:
    uncompiled, without gradients and dropout.
    """
    health = health or Health()
    if model is None or not is_compiled(model):
        with _hooked(model, health):
            yield health
        return
    training = model.training
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), _hooked(model.eval(), health):
        model(*given)
    model.train(training)
    yield health


@contextmanager
def _hooked(model: RecurrentModel | None, health: Health) -> Iterator[None]:
    hooks = [hook for probe in (model.probes() if model is not None else ()) for hook in _hooks(probe, health)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(probe: Probe, health: Health) -> list[Any]:
    given: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        given.append(args[0].detach())

    @torch.no_grad()
    def leave(_: nn.Module, __: object, made: Tensor) -> None:
        health.add(probe.name, probe.metric(given.pop(), made.detach()))

    last = probe.until or probe.module
    return [probe.module.register_forward_pre_hook(enter), last.register_forward_hook(leave)]
