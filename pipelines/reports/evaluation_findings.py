"""An evaluation's findings in sentences: the worth of recurrent states, and the leading model. A difference within chance counts as
none.

    remark_on(evaluation.carried, evaluation.cleared_states, unigram=4.1)
    leads(evaluations)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.tracking.score import Evaluation, Score

NEXT_TO_NOTHING = 0.0005
"""Share of all bits below which State counts as worth next to nothing, even beyond chance: it prints as 0.0 %."""
UNKNOWN = ", chance not known"
"""End of a sentence on a difference that cannot be compared with chance."""


def remark_on(carried: Score, cleared: Score, unigram: float | None = None) -> str:
    """A sentence on whether a model's recurrent states are worth anything yet. ``unigram`` (bits per byte), if known: a model that
    is no better has learned too little to judge this.
    """
    unit = "byte" if carried.errors is None else "label"
    per = carried.bytes if carried.errors is None else carried.tokens
    bits = carried.tokens / math.log(2) / per if per else math.nan  # bits per unit for one nat per token
    worth = (cleared.nats - carried.nats) / carried.tokens * bits
    share = cleared.nats / carried.nats - 1 if carried.nats else math.inf
    amount = f"{digits(abs(worth))} bits per {unit}" + (f" ({abs(share):.1%})" if carried.nats else "")
    found = carried.less_than(cleared)
    if worth != 0 and found is None:
        does = "costs" if worth > 0 else "saves"
        return f"clearing its recurrent states {does} {amount}, but the split is too short to tell this from chance"
    if worth > 0 and found and found.beyond_chance:
        if unigram is not None and not carried.bits_per_byte < unigram:
            return (
                f"clearing its recurrent states costs {amount}, but the model predicts no better than the unigram reference: train "
                "it for longer before you judge its states"
            )
        carry = "something" if share >= NEXT_TO_NOTHING else "next to nothing"
        return f"clearing its recurrent states costs {amount}, so they carry {carry}"
    if not carried.shows_worth:
        return (
            "the worth of its recurrent states cannot be seen: most tokens are in the first segment of their document; try a "
            "shorter --segment-length"
        )
    if found and found.beyond_chance:
        return f"clearing its recurrent states saves {amount}: it predicts better without them"
    margin = f" ± {digits(found.margin * bits)}" if found else ""
    return (
        f"clearing its recurrent states changes nothing beyond chance ({worth:+.4f}{margin} bits per {unit}): it does not use them "
        "yet. Train it for longer; results/state_worth shows such runs"
    )


def digits(bits: float) -> str:
    """Bits with four decimals; a smaller number to its first digit that is not 0."""
    return f"{bits:.4f}" if bits >= 5e-5 or not bits > 1e-12 else f"{bits:.{-math.floor(math.log10(bits))}f}"


def leads(evaluations: Sequence[Evaluation]) -> list[str]:
    """A sentence for each other model on the best one's text: the lead of the best, in errors if all splits are labelled, else in
    bits per byte. A lead within chance is reported as level.
    """
    labelled = all(e.carried.errors is not None for e in evaluations)

    def value(e: Evaluation) -> float:
        return e.carried.error_rate if labelled else e.carried.bits_per_byte

    evaluations = [e for e in evaluations if math.isfinite(value(e))]  # beside texts, a labelled split has no bytes
    if not evaluations:
        return []
    best = min(evaluations, key=value)
    others = [e for e in evaluations if e.text == best.text and value(e) > value(best)]
    lead = _lead_in_errors if labelled else _lead_in_bits
    return [lead(best, other) for other in others]


def _lead_in_errors(best: Evaluation, other: Evaluation) -> str:
    found = best.carried.less_than(other.carried, "errors")
    least = f"{best.carried.error_rate:.2%}"
    more = f"{other.carried.error_rate:.2%}"
    if found and not found.beyond_chance:
        return f"{best.name} and {other.name} are level: {least} and {more} of the labels are wrong, within chance"
    return f"{best.name} is wrong in {least} of the labels, {other.name} in {more}{'' if found else UNKNOWN}"


def _lead_in_bits(best: Evaluation, other: Evaluation) -> str:
    found = best.carried.less_than(other.carried)
    share = 1 - best.carried.bits_per_byte / other.carried.bits_per_byte
    if found and not found.beyond_chance:
        margin = found.margin * best.carried.tokens / other.carried.nats
        return f"{best.name} and {other.name} are level: {share:.2%} apart in bits per byte, within chance (± {margin:.2%})"
    return f"{best.name} needs {share:.1%} fewer bits per byte than {other.name}{'' if found else UNKNOWN}"
