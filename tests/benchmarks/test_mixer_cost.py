"""What the benchmark of the mixers compares is the same computation, ours and transformers'."""

from __future__ import annotations

import pytest
import torch

from benchmarks import mixer_cost
from common.errors import UserError


@pytest.mark.parametrize("rule", [mixer_cost.delta_rule, mixer_cost.memory])
def test_both_rules_give_the_same(rule: object) -> None:
    ours, theirs = rule(128)  # pyrefly: ignore
    torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-4)


def test_both_models_give_the_same() -> None:
    with mixer_cost.mamba2(128) as (ours, same_chunks, own_chunks), torch.no_grad():
        for theirs in (same_chunks, own_chunks):
            torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-4)


def test_a_segment_of_no_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="give a multiple of 128"):
        mixer_cost.BenchConfig(segment=100)
