"""The mixers' rules against transformers' own code, on random inputs with an initial state, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
from transformers.models.xlstm import modeling_xlstm as xlstm

from recur_models.gated_delta import gated_delta_rule
from recur_models.layers import unit_norm
from recur_models.linear_attention import decayed_attention
from recur_models.mlstm import matrix_memory

B, T, H, E, V = 2, 50, 3, 8, 12


def inputs(seed: int = 0) -> dict[str, Tensor]:
    """Random q, k, v, log decays, betas and an initial state, all with gradients."""
    torch.manual_seed(seed)
    found = {
        "q": unit_norm(torch.randn(B, T, H, E)),
        "k": unit_norm(torch.randn(B, T, H, E)),
        "v": torch.randn(B, T, H, V),
        "log_decay": -torch.rand(B, T, H),
        "beta": 2 * torch.rand(B, T, H),
        "initial_state": torch.randn(B, H, E, V),
    }
    return {name: tensor.requires_grad_() for name, tensor in found.items()}


def gradients(found: tuple[Tensor, ...], given: dict[str, Tensor]) -> list[Tensor]:
    """Gradients of a weighted sum of the outputs and the state."""
    torch.manual_seed(1)
    loss = sum((each * torch.randn(each.shape)).sum() for each in found)
    return list(torch.autograd.grad(loss, list(given.values())))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule])
@pytest.mark.parametrize("chunk", [16, 64])
def test_the_gated_delta_rule_is_that_of_transformers(rule: Callable[..., tuple[Tensor, Tensor]], chunk: int) -> None:
    given = inputs()
    q, k, v, log_decay, beta, state = given.values()
    theirs = rule(q, k, v, g=log_decay, beta=beta, initial_state=state, output_final_state=True)
    ours = gated_delta_rule(q, k, v, log_decay, beta, state, chunk=chunk)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    if rule is qwen.torch_chunk_gated_delta_rule:
        for mine, other in zip(gradients(ours, given), gradients(theirs, given), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_the_delta_rule_writes_what_a_key_lacks() -> None:
    """One token after another, as the equation reads."""
    q, k, v, log_decay, beta, state = (tensor.detach() for tensor in inputs(2).values())
    outputs, S = [], state
    for t in range(T):
        S = S * log_decay[:, t].exp()[..., None, None]
        held = torch.einsum("bhev,bhe->bhv", S, k[:, t])
        S = S + torch.einsum("bhe,bhv->bhev", k[:, t], beta[:, t, :, None] * (v[:, t] - held))
        outputs.append(torch.einsum("bhev,bhe->bhv", S, q[:, t]) * E**-0.5)
    made, after = gated_delta_rule(q, k, v, log_decay, beta, state, chunk=16)
    torch.testing.assert_close(made, torch.stack(outputs, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, S, rtol=1e-5, atol=1e-5)


def test_decayed_attention_is_the_sum_that_it_stands_for() -> None:
    q, k, v, log_decay, _, state = (tensor.detach() for tensor in inputs(3).values())
    outputs, S = [], state
    for t in range(T):
        S = S * log_decay[:, t].exp()[..., None, None] + torch.einsum("bhe,bhv->bhev", k[:, t], v[:, t])
        outputs.append(torch.einsum("bhev,bhe->bhv", S, q[:, t]))
    made, after = decayed_attention(q, k, v, log_decay, state, chunk=16)
    torch.testing.assert_close(made, torch.stack(outputs, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, S, rtol=1e-5, atol=1e-5)


def test_the_matrix_memory_is_that_of_transformers() -> None:
    given = inputs(4)
    q, k, v, _, _, state = given.values()
    torch.manual_seed(5)
    written, kept = torch.randn(B, T, H), torch.randn(B, T, H)
    normaliser = torch.randn(B, H, E)
    scale = torch.randn(B, H)
    joined = torch.cat([state, normaliser[..., None]], -1)
    ours, after, m = matrix_memory(
        q * E**-0.5, k, v, written, torch.nn.functional.logsigmoid(kept), joined, scale, chunk=16
    )
    heads_first = [each.transpose(1, 2) for each in (q, k, v, written, kept)]
    found: Any = xlstm.mlstm_recurrent_sequence_native(
        *heads_first,
        c_initial=state,
        n_initial=normaliser,
        m_initial=scale[..., None],
        return_last_states=True,
        eps=1e-6,
    )
    theirs, (C, n, theirs_m) = found
    torch.testing.assert_close(ours, theirs.transpose(1, 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[..., :-1], C, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[..., -1], n, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(m, theirs_m.flatten(1), rtol=1e-5, atol=1e-5)
    used = {name: given[name] for name in ("q", "k", "v", "initial_state")}
    mine, others = (
        gradients((ours, after), used),
        gradients((theirs.transpose(1, 2), torch.cat([C, n[..., None]], -1)), used),
    )
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
