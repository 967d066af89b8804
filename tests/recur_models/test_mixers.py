"""The mixers' rules against transformers' own code, on random inputs with an initial state, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
from transformers.models.xlstm import modeling_xlstm as xlstm

from common.errors import UserError
from recur_models.decoding import begin, read
from recur_models.gated_delta import gated_delta_rule
from recur_models.linear_attention import decayed_attention
from recur_models.mixers import READERS, MixerName, MixersConfig
from recur_models.mlstm import matrix_memory
from recur_models.norms import unit_norm
from recur_models.rwkv7 import MIN_LOG_DECAY, generalised_delta_rule
from recur_models.slstm import scalar_memory

B = 2
T = 50
H = 3
E = 8
V = 12


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


Rule = Literal["delta", "generalised", "decayed", "matrix"]
RULES: tuple[Rule, ...] = get_args(Rule)


def run(
    rule: Rule, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """A rule's outputs and its State after them, made of what all rules can take: ``beta`` decides how much a token writes."""
    if rule == "delta":
        return gated_delta_rule(q, k, v, log_decay, beta, state, **options)
    if rule == "generalised":
        log_decays = (log_decay / 4)[..., None].clamp(MIN_LOG_DECAY).expand_as(k)
        return generalised_delta_rule(q, k, v, log_decays, -k, beta[..., None] * k, state, **options)
    if rule == "decayed":
        return decayed_attention(q, k, v, log_decay, state, **options)
    with_normaliser = torch.cat([state, state[..., :1].abs()], -1)
    return matrix_memory(q, k, v, beta, log_decay, with_normaliser, state.new_zeros(B, H), **options)


@pytest.mark.parametrize("rule", RULES)
def test_autocast_changes_no_bit_of_a_rule(rule: Rule) -> None:
    given = [tensor.detach() for tensor in inputs(3).values()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = run(rule, *given)
    for each, plain in zip(under, run(rule, *given), strict=True):
        assert torch.equal(each, plain)


@pytest.mark.parametrize("rule", ["delta", "decayed", "matrix"])
def test_what_is_kept_stays_exact_beside_tokens_that_forget_all(rule: Rule) -> None:
    """In float32 as in float64, though cumulative log decays are in the hundreds: one token in ten forgets much."""
    torch.manual_seed(0)
    share = torch.rand(B, 300, H)
    forgets = torch.rand(B, 300, H) < 0.1
    log_decay = torch.where(forgets, -100 * share, -0.01 * share)
    q, k = (unit_norm(torch.randn(B, 300, H, E)) for _ in range(2))
    v = torch.randn(B, 300, H, V)
    beta = torch.rand(B, 300, H)
    state = torch.randn(B, H, E, V)

    given = [q, k, v, log_decay, beta, state]
    single = run(rule, *given)
    double = run(rule, *(tensor.double() for tensor in given))
    compared = 1 if rule == "matrix" else 2  # its State stands in a scale of its own
    for one, other in zip(single[:compared], double[:compared], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=3e-6, atol=3e-6)


def test_decayed_attention_is_the_sum_that_it_stands_for() -> None:
    q, k, v, log_decay, _, state = (tensor.detach() for tensor in inputs(3).values())
    outputs = []
    S = state
    for t in range(T):
        S = S * log_decay[:, t].exp()[..., None, None] + torch.einsum("bhe,bhv->bhev", k[:, t], v[:, t])
        outputs.append(torch.einsum("bhev,bhe->bhv", S, q[:, t]))
    made, after = decayed_attention(q, k, v, log_decay, state, chunk=16)
    torch.testing.assert_close(made, torch.stack(outputs, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, S, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("length", "chunk", "blocks"), [(50, 64, 2), (48, 32, 2), (48, 64, 3), (45, 16, 5), (48, 16, 4)]
)
def test_a_rule_resets_where_a_block_begins_whatever_its_chunks_are(
    rule: Rule, length: int, chunk: int, blocks: int
) -> None:
    *of_tokens, state = (tensor.detach().double() for tensor in inputs(8).values())

    def made(part: slice, fresh_BK: Tensor) -> tuple[Tensor, ...]:
        given = [*(each[:, part] for each in of_tokens), state]
        return run(rule, *given, chunk=chunk, fresh_BK=fresh_BK)

    fresh_BK = torch.zeros(B, blocks, dtype=torch.bool)
    fresh_BK[:, -1] = True
    outputs, *after = made(slice(0, length), fresh_BK)
    size = length // blocks
    begun = torch.ones(B, 1, dtype=torch.bool)
    before, *_ = made(slice(0, length - size), ~begun)
    last, *after_last = made(slice(length - size, length), begun)
    torch.testing.assert_close(outputs, torch.cat([before, last], 1), rtol=1e-9, atol=1e-9)
    for one, other in zip(after, after_last, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_rule_refuses_blocks_that_are_not_equal() -> None:
    q, k, v, log_decay, beta, state = inputs().values()
    with pytest.raises(
        UserError, match="50 tokens cannot be divided into 3 equal blocks, one for each entry of fresh_BK"
    ):
        gated_delta_rule(q, k, v, log_decay, beta, state, fresh_BK=torch.zeros(B, 3, dtype=torch.bool))


@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_the_generalised_delta_rule_is_the_recurrence_that_it_stands_for(chunk: int) -> None:
    """Also where all numbers of the state decay as fast as they may, to e^−39 over a chunk of 64."""
    q, k, v, _, beta, state = inputs(3).values()
    torch.manual_seed(7)
    log_decay = MIN_LOG_DECAY * torch.rand(B, T, H, E)
    log_decay[:, T // 2 :] = MIN_LOG_DECAY
    log_decay.requires_grad_()
    a = -torch.nn.functional.normalize(torch.randn(B, T, H, E), dim=-1).requires_grad_()
    b = (beta.detach()[..., None] * -a.detach()).requires_grad_()
    outputs = []
    S = state
    for t in range(T):
        found = torch.einsum("bhev,bhe->bhv", S, a[:, t])
        S = S * log_decay[:, t].exp()[..., None] + torch.einsum("bhe,bhv->bhev", b[:, t], found)
        S = S + torch.einsum("bhe,bhv->bhev", k[:, t], v[:, t])
        outputs.append(torch.einsum("bhev,bhe->bhv", S, q[:, t]))
    made = generalised_delta_rule(q, k, v, log_decay, a, b, state, chunk=chunk)
    expected = (torch.stack(outputs, 1), S)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    given = {"q": q, "k": k, "v": v, "log_decay": log_decay, "a": a, "b": b, "state": state}
    for one, other in zip(gradients(made, given), gradients(expected, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_sizes_of_a_block_that_do_not_fit_are_refused() -> None:
    """The message has a number that fits."""
    with pytest.raises(UserError, match=r"chunk is 64, and does not divide model\.window, 96: give --model\.chunk 32"):
        MixersConfig(window=96, chunk=64)
    MixersConfig(window=96, chunk=32)
    with pytest.raises(
        UserError, match=r"window is 2, and model\.conv 4 sees 3 earlier tokens: give --model\.window 3"
    ):
        MixersConfig(window=2)
    MixersConfig(window=3)


def test_long_chunks_of_rwkv7_are_refused() -> None:
    MixersConfig(layers=("rwkv7",), window=256, chunk=64)
    with pytest.raises(UserError, match=r"model\.chunk is 128, and rwkv7's decays over .* give --model\.chunk 64"):
        MixersConfig(layers=("delta", "rwkv7"), window=256, chunk=128)


def test_the_matrix_memory_is_that_of_transformers() -> None:
    given = inputs(4)
    q, k, v, _, _, state = given.values()
    torch.manual_seed(5)
    written = torch.randn(B, T, H, requires_grad=True)
    kept = torch.randn(B, T, H, requires_grad=True)
    normaliser = torch.randn(B, H, E, requires_grad=True)
    scale = torch.randn(B, H, requires_grad=True)
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
    gates = {"written": written, "kept": kept, "normaliser": normaliser, "scale": scale}
    used = {**{name: given[name] for name in ("q", "k", "v", "initial_state")}, **gates}
    mine = gradients((ours, after), used)
    others = gradients((theirs.transpose(1, 2), torch.cat([C, n[..., None]], -1)), used)
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scalar_memory_is_its_recurrence_without_a_stabiliser(dtype: torch.dtype) -> None:
    """Also where input gates reach from e^−100 to e^100. Lane 1 begins a document at the last of three blocks."""
    torch.manual_seed(9)
    gates = torch.randn(B, 48, H, 4 * V, dtype=torch.float64)
    gates[..., 2 * V : 3 * V] *= 30
    drawn = {
        "gates": gates,
        "recurrent": torch.randn(H, V, 4 * V, dtype=torch.float64) / V**0.5,
        "h": torch.randn(B, H, V, dtype=torch.float64),
        "c": torch.randn(B, H, V, dtype=torch.float64),
        "n": torch.rand(B, H, V, dtype=torch.float64) + 0.5,
    }
    given = {name: tensor.requires_grad_() for name, tensor in drawn.items()}
    m = torch.randn(B, H, V, dtype=torch.float64)
    fresh_BK = torch.tensor([[False] * 3, [False, False, True]])
    gates, recurrent, h, c, n = given.values()
    arguments = (gates, recurrent, torch.stack([h, c, n], 1), m)
    ours, states, scale = scalar_memory(*(each.to(dtype) for each in arguments), fresh_BK=fresh_BK)
    c = c * m.exp()
    n = n * m.exp()
    outputs = []
    for t in range(48):
        if t in (0, 16, 32):
            h, c, n = (each * ~fresh_BK[:, t // 16, None, None] for each in (h, c, n))
        z, o, i, f = (gates[:, t] + torch.einsum("bhv,hvz->bhz", h, recurrent)).chunk(4, -1)
        c = torch.sigmoid(f) * c + i.exp() * torch.tanh(z)
        n = torch.sigmoid(f) * n + i.exp()
        h = torch.sigmoid(o) * c / n
        outputs.append(h)
    theirs = torch.stack(outputs, 1)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(states[:, 0], ours[:, -1], rtol=0, atol=0)
    after = states[:, 1:].double() * scale[:, None].double().exp()
    torch.testing.assert_close(after / n[:, None], torch.stack([c, n], 1) / n[:, None], rtol=1e-4, atol=tolerance)
    expected = gradients((theirs,), given)
    for mine, other in zip(gradients((ours,), given), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=10 * tolerance, atol=10 * tolerance)
    # In two calls, the second one with padding that is none: gradients pass through the States between them.
    first_gates, second_gates = gates.to(dtype).split([16, 32], 1)
    weights, *before = (each.to(dtype) for each in arguments[1:])
    first, *carried = scalar_memory(first_gates, weights, *before, fresh_BK=fresh_BK[:, :1])
    valid_BT = torch.ones(B, 32, dtype=torch.bool)
    second, *_ = scalar_memory(second_gates, weights, *carried, fresh_BK=fresh_BK[:, 1:], valid_BT=valid_BT)
    in_two = torch.cat([first, second], 1)
    torch.testing.assert_close(in_two, ours, rtol=tolerance, atol=tolerance)
    for mine, other in zip(gradients((in_two,), given), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=10 * tolerance, atol=10 * tolerance)
    # A document begins although its first token is padding: the State is reset all the same.
    padding_B1 = torch.zeros(B, 1, dtype=torch.bool)
    _, reset, scale = scalar_memory(second_gates[:, :1], weights, *carried, fresh_BK=~padding_B1, valid_BT=padding_B1)
    assert not reset.any() and (scale < -1e29).all()
    if dtype == torch.float32:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again, *_ = scalar_memory(*(each.to(dtype) for each in arguments), fresh_BK=fresh_BK)
        assert torch.equal(again, ours)


def before_silu(y: Tensor) -> Tensor:
    """What SiLU makes y of, for −0.27 < y < 1, found by bisection."""
    low = torch.full_like(y, -1.27)
    high = torch.full_like(y, 2.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = torch.nn.functional.silu(middle) < y
        low = torch.where(below, middle, low)
        high = torch.where(below, high, middle)
    return low


def test_two_keys_with_negative_eigenvalues_can_follow_products_in_s3() -> None:
    """Weights set by hand: an element moves the plane's points by two reflections, and the state is one moved point."""
    angles = torch.tensor([0.0, 1.0, 2.0]) * torch.pi / 3
    lines = torch.stack([angles.cos(), angles.sin()], 1)
    # Elements as pairs of keys, the first of which acts first; β is 0 where a key is None.
    pairs = [(None, None), (0, None), (1, None), (2, None), (0, 1), (1, 0)]
    keys_6RE = torch.stack([torch.stack([lines[r or 0] for r in pair]) for pair in pairs])
    acts_6R = torch.tensor([[r is not None for r in pair] for pair in pairs])
    reflections = torch.eye(2) - 2 * acts_6R[..., None, None] * keys_6RE[..., None] * keys_6RE[..., None, :]
    matrices = reflections[:, 1] @ reflections[:, 0]
    table = torch.stack([((b @ matrices)[:, None] - matrices).flatten(2).norm(dim=2).argmin(1) for b in matrices])

    # β = 2 mirrors the state about the point where S k = v, here the identity matrix: S = 1 − g. The query reads one row of it.
    query = torch.tensor([0.9, 0.3]) / torch.tensor([0.9, 0.3]).norm()
    seen_62 = (torch.eye(2) - matrices).transpose(1, 2) @ query / 2**0.5
    points_62 = torch.nn.functional.rms_norm(seen_62, (2,), eps=1e-6)
    config = MixersConfig(
        layers=("delta",), d_model=8, heads=1, key_dim=2, value_dim=2, mlp_dim=1, window=8, chunk=8, conv=1,
        decays=False, output_gate=False, negative_eigenvalues=True, householders=2, output="own",
    )  # fmt: skip
    model: Any = config.build(6)
    mixer = model.layers[0].mixer
    # SiLU is above −0.28; unit norms undo the keys' 0.5. Small values keep 1 − g near 0 where g is the identity.
    keys_6Z = keys_6RE.flatten(1)
    channels_6Z = before_silu(torch.cat([query.expand(6, 2), 0.5 * keys_6Z, 0.1 * keys_6Z], 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.final_norm.scale.fill_(1.0)
        mixer.norm.scale.fill_(8**-0.5)  # a token's vector has one 1 among eight numbers
        mixer.head_norm.scale.fill_(1.0)
        mixer.convolution.weight.fill_(1.0)
        model.embedding.weight[:, :6] = torch.eye(6)
        mixer.qkv.weight[:, :6] = channels_6Z.T
        mixer.beta.weight[:, :6] = torch.where(acts_6R, 30.0, -30.0).T
        mixer.out.weight[6:] = torch.eye(2)
        # The nearest point's logit is the highest.
        assert model.output is not None
        model.output.weight[:, :6] = -points_62.square().sum(1, keepdim=True)
        model.output.weight[:, 6:] = 2 * points_62
    torch.manual_seed(6)
    text_BT = torch.randint(6, (16, 128))
    now_B = torch.zeros(16, dtype=torch.int64)
    wanted = []
    for element_B in text_BT.T:
        now_B = table[element_B, now_B]
        wanted.append(now_B)
    logits, _ = model(text_BT)
    assert torch.equal(logits.argmax(-1), torch.stack(wanted, 1))


def test_an_unknown_mixer_of_a_plug_in_is_refused() -> None:
    """The command line does not refuse it, since `layers` may be any strings there."""

    @dataclass(frozen=True)
    class Own(MixersConfig):
        layers: tuple[str, ...] = ("delta",)  # pyrefly: ignore

    with pytest.raises(UserError, match=r"model\.layers has 'detla', which is no mixer: did you mean 'delta'\?"):
        Own(layers=("window", "detla"))


def test_keys_that_turn_have_pairs() -> None:
    with pytest.raises(UserError, match=r"model\.key_dim is 5, .*: give an even size, or --model\.no-rotary"):
        MixersConfig(layers=("retention",), key_dim=5, rotary=True)


@pytest.mark.parametrize(
    "option", ["decays", "negative_eigenvalues", "householders", "output_gate", "head_norm", "conv"]
)
def test_an_option_that_no_layer_reads_is_refused(option: str) -> None:
    value = {"householders": 2, "negative_eigenvalues": True, "conv": 3}.get(option, False)
    changed: Any = {option: value}
    MixersConfig(layers=("delta", "mlstm"), **changed).check_new()
    config = MixersConfig(layers=("retention", "mlstm"), **changed)  # a run of before can be opened
    with pytest.raises(UserError, match=rf"model\.{option} is {value}, and no layer reads it: name delta"):
        config.check_new()


@pytest.mark.parametrize("name", READERS["conv"])
def test_a_convolution_sees_nothing_of_an_earlier_document(name: MixerName) -> None:
    """The smallest block: the convolution of the second block's first token reaches back to the first block's first."""
    sizes: dict[str, Any] = {"layers": (name,), "d_model": 16, "heads": 2, "key_dim": 4, "value_dim": 4, "mlp_dim": 8}
    torch.manual_seed(0)
    model = MixersConfig(**sizes, window=3, chunk=3, conv=4).build(20).double().eval()
    tokens_BT = torch.randint(19, (2, 12))
    fresh_BK = torch.tensor([[False, True, False, False], [False, False, True, False]])
    logits, _ = model(tokens_BT, None, fresh_BK)
    for lane, begins in enumerate((3, 6)):
        alone, _ = model(tokens_BT[lane : lane + 1, begins:], None)
        assert torch.allclose(logits[lane : lane + 1, begins:], alone, rtol=0, atol=1e-12)
    with pytest.raises(UserError, match=r"model\.window is 2, .* --model\.window 3 or more, or --model\.conv 3"):
        MixersConfig(**sizes, window=2, chunk=2, conv=4)
    MixersConfig(**sizes | {"layers": ("mlstm", "window")}, window=2, chunk=2, conv=4)  # these have no convolution


@pytest.mark.parametrize("mixer", [name for name in get_args(MixerName) if name != "window"])
def test_a_state_of_bfloat16_weights_is_the_same_token_by_token(mixer: MixerName) -> None:
    torch.manual_seed(0)
    config = MixersConfig(layers=(mixer,), d_model=32, heads=4, key_dim=8, value_dim=8, mlp_dim=16, window=64, chunk=16)
    model = config.build(257).bfloat16().eval()
    text = torch.randint(257, (2, 256))
    with torch.no_grad():
        _, whole = model(text)
        reading = begin(model.incremental_decoder(), lanes=2)
        for token_B1 in text.split(1, 1):
            _, reading = read(model.incremental_decoder(), reading, token_B1, keep=1)
    found = reading.state["layers.0.states"]
    expected = whole["layers.0.states"]
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= 0.01 * expected.norm()


def test_chunks_of_rwkv7_are_no_longer_than_its_window() -> None:
    assert MixersConfig(layers=("rwkv7",), window=64, chunk=128).sizes.chunk == 64


def test_a_negative_spread_of_initial_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.initial_std is -0\.02: give 0 or more"):
        MixersConfig(initial_std=-0.02)
