"""An evaluation's findings in sentences: the worth of State, and the leading model. A difference within chance counts as none.

remarks(evaluation, unigram=4.1)
leads(evaluations)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Literal

import numpy as np

from pipelines.reports.seeds import members
from pipelines.tracking.chance import Difference, paired_over_seeds
from pipelines.tracking.score import Evaluation, Score

NEXT_TO_NOTHING = 0.0005
"""Share of all bits below which State counts as worth next to nothing, even beyond chance: it prints as 0.0 %."""
CLEARED = {
    "states": ("its recurrent states", "they", "carry", "them"),
    "State": ("all of its State", "it", "carries", "it"),
}
"""The words for what was cleared: its name, the pronouns, and the verb between them."""
ONCE = "-cleared-at-"
"""Beginning of an `Evaluation.cleared_at` of passes that clear State once in a document."""
UNKNOWN = ", chance not known"
"""End of a sentence on a difference that cannot be compared with chance."""
ONE_EACH = " (one training each)"
"""End of a sentence on a lead that is beyond the chance of the text, where that of the seeds is not known."""


def remarks(evaluation: Evaluation, unigram: float | None = None) -> list[str]:
    """What its recurrent states are worth, and what all of its State is, in a sentence each, as far as these were cleared. Where
    both passes have the same sum, the State has no other part, and one sentence suffices.
    """
    carried, states, everything = evaluation.carried, evaluation.cleared_states, evaluation.cleared_all
    at = evaluation.cleared_at
    found = [remark_on(carried, states, unigram, cleared_at=at)] if states else []
    if everything and not (states and states.nats == everything.nats):
        found.append(remark_on(carried, everything, unigram, "State", at))
    return found


def remark_on(
    carried: Score,
    cleared: Score,
    unigram: float | None = None,
    what: Literal["states", "State"] = "states",
    cleared_at: str = "",
) -> str:
    """A sentence on whether a model's State is worth anything yet.

    Args:
        unigram: bits per byte of the unigram reference, if known: a model that is no better has learned too little to judge this.
        what: what was cleared: the recurrent states, or all of the State.
        cleared_at: where, as `Evaluation` has it.
    """
    part, they, carry, them = CLEARED[what]
    unit = "byte" if carried.errors is None else "label"
    per = carried.bytes if carried.errors is None else carried.tokens
    bits = carried.tokens / math.log(2) / per if per else math.nan  # bits per unit for one nat per token
    worth = (cleared.nats - carried.nats) / carried.tokens * bits
    share = cleared.nats / carried.nats - 1 if carried.nats else math.inf
    amount = f"{digits(abs(worth))} bits per {unit}" + (f" ({abs(share):.1%})" if carried.nats else "")
    found = carried.less_than(cleared)
    if worth != 0 and found is None:
        does = "costs" if worth > 0 else "saves"
        return f"clearing {part} {does} {amount}, but the split is too short to tell this from chance"
    if worth > 0 and found and found.beyond_chance:
        if unigram is not None and not carried.bits_per_byte < unigram:
            return (
                f"clearing {part} costs {amount}, but the model predicts no better than the unigram reference: train "
                f"it for longer before you judge its {what}"
            )
        something = "something" if share >= NEXT_TO_NOTHING else "next to nothing"
        return f"clearing {part} costs {amount}, so {they} {carry} {something}"
    if not carried.shows_worth:
        return f"the worth of {part} cannot be seen: {_too_late(cleared_at)}"
    if found and found.beyond_chance:
        return f"clearing {part} saves {amount}: the model predicts better without {them}"
    margin = f" ± {digits(found.margin * bits)}" if found else ""
    nothing = f"clearing {part} changes nothing beyond chance ({worth:+.4f}{margin} bits per {unit})"
    if cleared_at.startswith(ONCE):
        return f"{nothing}. The State is cleared once in a document: leave out --clear-at to see whether the model uses {them}"
    return f"{nothing}: the model does not use {them} yet. Train it for longer; results/state_worth shows such runs"


def _too_late(cleared_at: str) -> str:
    """Why clearing reaches less than half of the tokens, and the option that changes this. ``cleared_at``: as for `remark_on`."""
    if not cleared_at:
        return "most tokens are in the first segment of their document; try a shorter --segment-length"
    option = "--clear-at" if cleared_at.startswith(ONCE) else "--clear-every"
    return f"most tokens come before the first place where State is cleared; try a smaller {option}"


def digits(bits: float) -> str:
    """Bits with four decimals; a smaller number to its first digit that is not 0."""
    return f"{bits:.4f}" if bits >= 5e-5 or not bits > 1e-12 else f"{bits:.{-math.floor(math.log10(bits))}f}"


@dataclass(frozen=True)
class Group:
    """A row of `seeds.members`: the trainings of a model that differ in their seed alone, or one training."""

    name: str
    trainings: list[Evaluation]

    def mean(self, value: Callable[[Evaluation], float]) -> float:
        """The mean of a value over its trainings."""
        return mean(map(value, self.trainings))

    @property
    def checkpoints(self) -> list[str]:
        """Places of the checkpoints that were evaluated. Two groups with the same ones are readings of the same trainings."""
        return [e.checkpoint for e in self.trainings]

    @property
    def named(self) -> str:
        """Its name, and how many trainings it has."""
        seeds = len(self.trainings)
        name = self.name.removesuffix(f", {seeds} seeds")
        return f"{name} ({seeds} seeds)" if seeds > 1 else f"{name} (one training)"


def leads(evaluations: Sequence[Evaluation]) -> list[str]:
    """A sentence for each other model on the best one's text: the lead of the best, in errors if all splits are labelled, else in
    bits per byte. A lead within chance is reported as level. Trainings that differ in the seed alone are one model: their means are
    compared, and chance includes how far the seeds differ (`chance.paired_over_seeds`).
    """
    labelled = all(e.carried.errors is not None for e in evaluations)

    def value(group: Group) -> float:
        return group.mean(lambda e: e.carried.error_rate if labelled else e.carried.bits_per_byte)

    groups = [Group(name, trainings) for name, trainings in members(evaluations).items()]
    groups = [group for group in groups if math.isfinite(value(group))]  # beside texts, a labelled split has no bytes
    if not groups:
        return []
    best = min(groups, key=value)
    lead = _lead_in_errors if labelled else _lead_in_bits
    text = best.trainings[0].text
    return [lead(best, other) for other in groups if other.trainings[0].text == text and value(other) > value(best)]


def _lead_in_errors(best: Group, other: Group) -> str:
    found = _difference(best, other, "errors")
    one, two, end = _names(best, other)
    least, more = (f"{group.mean(lambda e: e.carried.error_rate):.2%}" for group in (best, other))
    if found and not found.beyond_chance:
        return f"{one} and {two} are level: {least} and {more} of the labels are wrong, within chance"
    return f"{one} is wrong in {least} of the labels, {two} in {more}{end if found else UNKNOWN}"


def _lead_in_bits(best: Group, other: Group) -> str:
    found = _difference(best, other, "nats")
    one, two, end = _names(best, other)
    more = other.mean(lambda e: e.carried.nats)
    share = 1 - best.mean(lambda e: e.carried.nats) / more
    if found and not found.beyond_chance:
        margin = found.margin * best.trainings[0].carried.tokens / more
        return f"{one} and {two} are level: {share:.2%} apart in bits per byte, within chance (± {margin:.2%})"
    return f"{one} needs {share:.1%} fewer bits per byte than {two}{end if found else UNKNOWN}"


def _names(best: Group, other: Group) -> tuple[str, str, str]:
    """What both are called, and the end of a sentence on a lead: how far other seeds differ is not known of one training each."""
    if max(len(best.trainings), len(other.trainings)) > 1:
        return best.named, other.named, ""
    return best.name, other.name, "" if best.checkpoints == other.checkpoints else ONE_EACH


def _difference(best: Group, other: Group, what: Literal["nats", "errors"]) -> Difference | None:
    """By how much the best one needs less than the other, per token. None if chance cannot be estimated (`Score.less_than`)."""
    pairs = product(best.trainings, other.trainings)
    if any(one.carried.less_than(two.carried, what) is None for one, two in pairs):
        return None

    def sums(group: Group) -> np.ndarray:
        trainings = sorted(group.trainings, key=lambda e: e.checkpoint)
        return np.array([getattr(e.carried, f"group_{what}") for e in trainings], float)

    tokens_G = np.array(best.trainings[0].carried.group_tokens, np.int64)
    same = sorted(best.checkpoints) == sorted(other.checkpoints)
    return paired_over_seeds(sums(best), sums(other), tokens_G, same_trainings=same)
