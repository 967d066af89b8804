"""Parameters and FLOPs as counted from a config, against the built model, torch's counter and the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recur_models import MODELS, ModelConfig, RecConfig, SlideConfig, XLConfig
from recur_models.memorizing import MemorizingConfig
from tests.recur_models.conftest import small_configs

VOCAB = 31
BLOCKS = 6
# d, heads, head size, MLP → total and non-embedding millions, 12 layers, fixed:skip, vocabulary 32,000 (paper, Table 4; MODELS)
SIZES = {
    "40M": ((512, 8, 64, 2048), 56.8, 40.4),
    "80M": ((512, 8, 128, 4096), 96.6, 80.2),
    "150M": ((1024, 8, 128, 4096), 193.2, 160.4),
    "325M": ((1024, 16, 128, 8192), 352.6, 319.8),
}


def counted(config: ModelConfig, backward: bool = False) -> int:
    """FLOPs of a segment of 6 blocks on one lane, after as many before it: a memory is then full."""
    model = config.build(VOCAB)
    text = torch.randint(VOCAB, (1, BLOCKS * model.block))
    _, state = model(text)
    # The CPU's own kernels are not counted.
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        logits, _ = model(text, {name: tensor.detach() for name, tensor in state.items()})
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


def test_parameters_are_those_of_the_built_model(config: ModelConfig) -> None:
    model = config.build(VOCAB)
    cost = config.costs(VOCAB)
    assert cost.parameters == sum(p.numel() for p in model.parameters())
    assert cost.embedding_parameters == model.get_parameter("embedding.weight").numel()


def test_flops_are_those_that_torch_counts(config: ModelConfig) -> None:
    cost = config.costs(VOCAB)
    assert counted(config) == cost.computed_flops * BLOCKS + cost.segment_flops
    assert cost.flops <= cost.computed_flops
    assert cost.flops * BLOCKS == cost.flops_per_token * BLOCKS * config.block
    remembers = isinstance(config, MemorizingConfig)
    assert remembers or cost.training_flops_per_token == 3 * cost.flops_per_token


@pytest.mark.parametrize("name", ["vanilla", "slide-meliad", "xl-paper", "memorizing-meliad"])
def test_flops_of_training_are_those_that_torch_counts(name: str) -> None:
    config = small_configs()[name]
    cost = config.costs(VOCAB)
    assert counted(config, backward=True) == cost.computed_training_flops_per_token * config.block * BLOCKS
    wasted = 3 * (cost.computed_flops - cost.flops) / config.block
    assert cost.computed_training_flops_per_token - cost.training_flops_per_token == pytest.approx(wasted)


def test_a_search_of_the_memory_has_no_backward_pass() -> None:
    config = MemorizingConfig(layers=13)
    cost = config.costs(32_001)
    search = 2 * config.heads * config.head_dim * config.memory
    read = 4 * config.heads * config.head_dim * config.top_k
    assert 3 * cost.flops_per_token - cost.training_flops_per_token == 2 * search + read
    assert 3 * cost.flops_per_token / cost.training_flops_per_token == pytest.approx(1.19, abs=0.01)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_the_scaling_study(size: str) -> None:
    (d, heads, head_dim, mlp), total, without_embeddings = SIZES[size]
    cost = RecConfig(d_model=d, heads=heads, head_dim=head_dim, mlp_dim=mlp).costs(32_000)
    assert round(cost.parameters / 1e6, 1) == total
    # The table subtracts rounded numbers.
    assert (cost.parameters - cost.embedding_parameters) / 1e6 == pytest.approx(without_embeddings, abs=0.1)


@pytest.mark.parametrize(
    ("gate", "cell", "total"),
    [
        ("fixed", "dual", 201.6),
        ("fixed", "single", 203.7),
        ("fixed", "skip", 193.2),
        ("lstm", "dual", 214.2),
        ("lstm", "single", 212.1),
        ("lstm", "skip", 197.4),
    ],
)
def test_parameters_of_the_gates(gate: str, cell: str, total: float) -> None:
    config = RecConfig(gate=gate, cell=cell)  # pyrefly: ignore
    assert round(config.costs(32_000).parameters / 1e6, 1) == total


def test_the_largest_model() -> None:
    config = RecConfig(layers=24, recurrent_layers=(10, 20), d_model=2048, heads=16, head_dim=128, mlp_dim=8192)
    cost = config.costs(32_000)
    assert round(cost.parameters / 1e6, 1) == 1344.9
    assert round((cost.parameters - cost.embedding_parameters) / 1e6) == 1279


def test_a_recurrent_layer_costs_what_a_plain_one_does() -> None:
    thirteen = SlideConfig(layers=13).costs(32_000)
    twelve = RecConfig(layers=12).costs(32_000)
    assert twelve.flops / thirteen.flops == pytest.approx(1.0, abs=0.01)  # section 3.6
    assert twelve.parameters < thirteen.parameters


def test_wider_windows_cost_more() -> None:
    slide = SlideConfig(layers=13).costs(32_000)
    ratios = [XLConfig(window=window).costs(32_000).computed_flops_per_token for window in (512, 1024, 2048)]
    ratios = [flops / slide.computed_flops_per_token for flops in ratios]
    assert (
        ratios == sorted(ratios) and 0.9 < ratios[0] < 0.95 < ratios[2] < 2.11
    )  # the paper's step times: 0.88 to 2.11
    memorizing = MemorizingConfig().costs(32_000).flops_per_token
    assert memorizing / SlideConfig().costs(32_000).flops_per_token > 1.3


def test_every_model_is_counted() -> None:
    assert all(config().costs(10).parameters for config in MODELS.values())
    with pytest.raises(TypeError, match="abstract"):  # one that does not say its costs is no model
        type("Other", (ModelConfig,), {"name": "other", "build": None, "block": 1, "least_blocks": 1})()
    assert replace(SlideConfig(), layers=1).costs(10).block == 512


PAIR = 4 * 2 * 12
"""FLOPs of a pair of query and key in all heads."""


@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        ("vanilla", 3 * PAIR * (4 + 3 + 2 + 1 - 4)),  # layers · pairs of a block whose key comes after the query
        ("slide-meliad", 3 * PAIR * 4 * 4),
        ("xl-paper", 3 * PAIR * 4 * 4),
        ("memorizing-meliad", 3 * PAIR * 4 * 4),
        ("rec-fixed-skip-meliad", 3 * PAIR * 4 * 4),
        (
            "rmt",
            2 * PAIR * (3 * 7 + 6 + 4 * 3),
        ),  # read memory: all behind it; tokens: later ones and the memory that writes
        ("armt", 2 * PAIR * (6 + 4 * 3)),
        ("staircase-zeros", 2 * PAIR * (12 * 11 // 2)),
        ("cached_staircase-zeros", 2 * PAIR * (8 * 7 // 2)),
        ("transformer_xl-zeros", 2 * PAIR * 4 * 4),
        ("universal-zeros", 3 * PAIR * 4 * 4),
        ("feedback_transformer-zeros", 2 * PAIR * (3 + 2 + 1)),
        ("mixers-mamba2", 2 * 2 * (6 + 2 * 8) + 4 * 2 * 6 * 4 * 4),  # two chunks of two tokens; and the window's layer
    ],
)
def test_needed_flops_leave_out_the_pairs_that_no_token_sees(name: str, unseen: int) -> None:
    cost = small_configs()[name].costs(VOCAB)
    assert cost.computed_flops - cost.flops == unseen
