"""The table of today's models: equal sizes, one row each, and what it measures beside the scores."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from pipelines.config.run import ModelSettings
from pipelines.presets import PRESETS
from recur_models import LSTMConfig, MixersConfig
from recur_models.mixers import MixerName
from studies.names import NAMES_PRESETS
from studies.papers import PAPERS
from studies.papers.measuring import written_per_second
from studies.papers.tables import Run
from studies.papers.today import LABELS, NAMES, ON_BYTES, ON_PG19, ON_PG19_400M, TASK_DATA
from studies.state_tracking import MODELS, MODELS_FOR_MANY_PAIRS, MODELS_FOR_RECALL, MODELS_FOR_STEPS, TASKS

VOCABULARY = 257


def beside_embeddings(name: str) -> int:
    costs = PRESETS[name].model.costs(32_001)
    return costs.parameters - costs.embedding_parameters


def test_models_on_text_have_as_many_parameters() -> None:
    counts = {name: model.costs(VOCABULARY).parameters for name, model in ON_BYTES.items()}
    assert counts == pytest.approx(dict.fromkeys(counts, 576_000), rel=0.003)
    for name, model in ON_BYTES.items():
        assert sum(parameter.numel() for parameter in model.build(VOCABULARY).parameters()) == counts[name]


def test_each_of_todays_models_has_presets_of_all_sizes() -> None:
    mixers = {*get_args(MixerName), "delta-window", "mamba2-window"} - {"window"}
    for name in mixers | {"rmt", "armt"}:
        large = f"pg19-mixers-{name}" if name in mixers else f"pg19-{name}"
        assert {f"tiny-bytes-{name}", f"small-{name}", large, f"{large}-400M"} <= PRESETS.keys()


def test_memory_tokens_at_large_scale_have_the_size_of_the_mixers() -> None:
    for name in ("rmt", "armt"):
        assert beside_embeddings(f"pg19-{name}") == pytest.approx(beside_embeddings("pg19-slide-13L"), rel=0.003)
        assert beside_embeddings(f"pg19-{name}-400M") == pytest.approx(400_000_000, rel=0.003)


@pytest.mark.parametrize(
    ("names", "parameters"),
    [
        ([f"pg19-mixers-{name}" for name in ON_PG19], beside_embeddings("pg19-slide-13L")),
        ([f"pg19-mixers-{name}-400M" for name in ON_PG19_400M], 400_000_000),
    ],
)
def test_large_models_have_as_many_parameters_and_states_of_one_size(names: list[str], parameters: int) -> None:
    assert {name: beside_embeddings(name) for name in names} == pytest.approx(
        dict.fromkeys(names, parameters), rel=0.003
    )
    with torch.device("meta"):
        built = [PRESETS[name].model.build(257) for name in names if "slstm" not in name]  # its State is vectors
    states = [model.initial_state(1)["layers.0.states"].numel() for model in built]
    assert states == pytest.approx([states[0]] * len(states), rel=0.01)  # mLSTM has a normaliser beside


@pytest.mark.parametrize(
    "models",
    [MODELS, MODELS_FOR_RECALL, MODELS_FOR_MANY_PAIRS, MODELS_FOR_STEPS],
    ids=["products", "recall", "many-pairs", "steps"],
)
def test_mixers_on_the_tasks_have_the_size_of_the_others(models: dict[str, ModelSettings]) -> None:
    assert list(models) == list(MODELS)
    sizes = {name: model.costs(33) for name, model in models.items()}
    counts = {name: costs.parameters - costs.embedding_parameters for name, costs in sizes.items()}
    assert counts == pytest.approx(dict.fromkeys(counts, 51_500), rel=0.03)


def test_every_row_names_presets_and_data_that_there_are() -> None:
    table = PAPERS["today"]["table-1"]
    assert len({row.label for row in table.rows}) == len(ON_BYTES)
    assert set(LABELS) < set(ON_BYTES)
    runs = [run for row in table.rows for of in row.runs.values() for run in of.values()]
    assert all(isinstance(run, Run) and run.preset in PRESETS for run in runs)
    assert set(TASK_DATA) == set(TASKS)
    assert {row.runs["tiny"][NAMES].preset for row in table.rows} == set(NAMES_PRESETS)


def test_state_of_a_lane_is_counted_in_bytes() -> None:
    # Two layers of h and c, 8 numbers of four bytes each.
    assert LSTMConfig(layers=2, d_model=8, window=4).state_bytes(VOCABULARY) == 2 * 2 * 8 * 4
    # H × E × V of float32 for each layer.
    mixers = MixersConfig(layers=("retention",) * 3, d_model=8, heads=2, key_dim=3, value_dim=5, window=4, mlp_dim=8)
    assert mixers.state_bytes(VOCABULARY) == 3 * 2 * 3 * 5 * 4


def test_a_model_is_timed_while_it_writes() -> None:
    threads = torch.get_num_threads()
    mixers = MixersConfig(layers=("retention",), d_model=8, heads=1, key_dim=4, value_dim=4, window=4, mlp_dim=8)
    rate = written_per_second(mixers, VOCABULARY)
    assert 1 < rate < 1e6
    assert torch.get_num_threads() == threads
