"""Evaluations of two models on two short documents, whose numbers a hand can compute."""

from __future__ import annotations

import math
from dataclasses import replace

from pipelines.tracking.score import Evaluation, Score

BIT = math.log(2)  # nats


def score(*bits: float, tokens: tuple[int, ...] = (8, 8, 4), byte: int = 40) -> Score:
    """Two documents, of 12 and of 8 tokens, in buckets of 4; ``bits`` per token of each bucket."""
    nats = tuple(b * n * BIT for b, n in zip(bits, tokens, strict=True))
    return Score(sum(nats), sum(tokens), 5, byte, 2, 4, nats, tokens)


REC = Evaluation(
    name="demo-rec",
    model="rec",
    parameters=3_400_000,
    step=180,
    train_tokens=737_280,
    checkpoint="runs/demo-rec/checkpoints/step-00000180",
    split="python-source/test",
    store_fingerprint="f" * 32,
    carried=score(6.0, 4.0, 2.0),
    cleared_states=score(6.0, 5.0, 4.0),
    cleared_all=score(6.0, 6.0, 6.0),
)
SLIDE = replace(REC, name="slide", model="slide", carried=score(6.0, 4.5, 3.0), cleared_states=None, cleared_all=None)
# 8·6 + 8·4 + 4·2 = 88 bits on 20 tokens and 40 bytes; 104 and 120 bits when cleared; slide 96.
