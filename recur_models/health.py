"""Measures whether a model uses its recurrent State: metrics of the forward passes inside a `with`, cheap enough for training.

    with watch(model, tokens_BT, state, fresh_BK, targets_BT) as health:
        nats_BT, state = model(tokens_BT, state, fresh_BK, targets_BT)
    health.metrics()    # {"state_share": 0.31, "gate_openness": 0.47, "state_change": 0.12}
    health.warning([0.02, 0.03])    # bits that clearing the State cost in validations: one sentence, or None

- ``state_share``, 0 … 1: the share of recurrent states, or of a kNN memory, in what attention adds to the residual stream. It
  is one of energy, |from states|² / (|from states|² + |from the window|²); for a memory it is its gate, σ(b). Attention's
  weights on states would not do: they have a softmax of their own and always sum to 1, so only the projection behind them can
  vanish. In a staircase it is the share of attention from the newest chunk to earlier ones, also in steps that drain.
- ``gate_openness``, 0 … 1: the share of the new candidate that a gate lets in: 1 − g (fixed) or i (lstm), equations 3 and 7;
  in a feedback transformer, the share of a memory that comes from the layers, not the embedding.
- ``state_change``: rms of a block's change of the states over their rms before it; of mixers that of a segment, unless the stack is
  recomputed block by block.

Each is a mean over layers, lanes and blocks. A model can learn to ignore its states, and then does not recover (section 3.4 and
Appendix B). Clearing the State then costs nothing in validation; at worst the share falls to 0, or the states stop changing. A
model without recurrent State has no metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from recur_models.compiling import is_compiled
from recur_models.protocol import Probe, RecurrentModel

MIN_WORTH = 0.0003
"""Bits per token. The State is ignored if clearing it changes the bits of a validation by less than this, up or down."""
PATIENCE = 2
"""How many validations in a row must show it: early in training, a State that is used later is often worth nothing. Both values
are from results/state_worth, "When the warning about an unused State is right" (`benchmarks.ignored_states`)."""
MIN_SHARE = 0.001
"""The states are ignored below this `state_share`; used only without validations. A larger share proves nothing: it was 0.12 to
0.70 in the run that did not use its State, and 0.12 to 0.62 in those that did. If h_prev is one key beside a window's hundred,
the share begins at 0.009."""
MIN_CHANGE = 0.001
"""The states are constant below this `state_change`; used only without validations. It was 0.07 to 0.50 in the run that did not
use its State, and 0.01 to 0.99 in those that did."""


def is_ignored(worths: Sequence[float], least: float, patience: int) -> bool:
    """Whether the newest ``patience`` of ``worths`` (bits that clearing the State cost) are all below ``least``, up or down."""
    return len(worths) >= patience and all(abs(worth) < least for worth in worths[-patience:])


class Health:
    """Sums of the probes' metrics. They stay on the model's device until `metrics` is called."""

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
        """One sentence if the State is ignored, else None.

        ``worths``: bits per token that clearing it cost in past validations, the newest last. Metrics count only without them.
        """
        metrics = self.metrics()
        if worths:
            if not is_ignored(worths, MIN_WORTH, PATIENCE):
                return None
            evidence = f"clearing it changes validation by {worths[-1]:.4f} bits per token"
        elif metrics.get("state_share", 1.0) < MIN_SHARE:
            evidence = f"only {metrics['state_share']:.2%} of the attention's output comes from it"
        elif metrics.get("state_change", 1.0) < MIN_CHANGE:
            evidence = f"a block changes it by only {metrics['state_change']:.2%}"
        else:
            return None
        return (
            f"the model is learning to ignore its recurrent State: {evidence}; shorter segments, another optim.lr, "
            'or --model.gate lstm of a rec, may help (docs/models.md, "When recurrence pays")'
        )


@contextmanager
def watch(model: RecurrentModel | None, *given: object, health: Health | None = None) -> Iterator[Health]:
    """Record the metrics of every forward pass inside the `with`, in ``health`` if it is given. Without a model there are none.

    The passes inside compute the same results as without it. Compiled code does not run hooks, and an uncompiled pass would change
    rounding, dropout and memory. A compiled model's metrics therefore come from an extra pass over ``given``, the arguments of the
    coming pass: uncompiled, without gradients and dropout.
    """
    health = health or Health()
    if model is None or not is_compiled(model):
        with _hooked(model, health):
            yield health
        return
    training = model.training
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), _hooked(model.eval(), health):
            model(*given)
    finally:
        model.train(training)
    yield health


@contextmanager
def _hooked(model: RecurrentModel | None, health: Health) -> Iterator[None]:
    probes = [] if model is None else model.probes()
    hooks = [hook for probe in probes for hook in _hooks(probe, health)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(probe: Probe, health: Health) -> list[Any]:
    """Hooks that add the probe's metric to ``health`` at each pass."""
    inputs: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0].detach())

    @torch.no_grad()
    def leave(_: nn.Module, __: object, output: Tensor) -> None:
        health.add(probe.name, probe.metric(inputs.pop(), output.detach()))

    last = probe.until or probe.module
    return [probe.module.register_forward_pre_hook(enter), last.register_forward_hook(leave)]
