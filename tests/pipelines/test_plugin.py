"""What only tests/plugin.py defines, a model, a corpus, a metric, a space and a preset, in every command; and the protocol's tests
of that model."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from data_prep.corpora import CORPORA
from pipelines import compare, evaluate, export, generate, prepare, python_path, train, tune
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.run import TrackingConfig
from pipelines.presets import PRESETS
from pipelines.tracking import read_run
from pipelines.tracking.metrics import METRICS
from recur_models import MODELS, ModelConfig
from tests.ray_processes import Meanwhile
from tests.recur_models.test_costs import (  # noqa: F401
    test_flops_are_those_that_torch_counts,
    test_parameters_are_those_of_the_built_model,
)
from tests.recur_models.test_decoding import (  # noqa: F401
    decoder,
    test_any_split_equals_the_parallel_pass,
    test_lanes_can_be_reordered,
    test_padded_lanes_equal_lanes_read_alone,
    test_token_by_token_equals_the_parallel_pass,
)
from tests.recur_models.test_health import (  # noqa: F401
    test_only_recurrent_models_have_metrics_and_all_are_sound,
)
from tests.recur_models.test_models import (  # noqa: F401
    test_a_token_does_not_change_earlier_logits,
    test_any_split_into_segments_equals_one_pass,
    test_bad_input_is_refused_in_a_sentence,
    test_fresh_in_the_middle_equals_starting_anew,
    test_hidden_states_are_what_the_logits_are_made_of,
    test_in_the_shortest_segment_every_parameter_gets_a_gradient,
    test_lanes_do_not_see_each_other,
    test_nats_are_the_cross_entropy_of_the_logits,
    test_state_follows_the_model,
    test_the_initial_state_is_that_of_a_fresh_document,
)
from tune_spaces import SPACES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    """The module, imported; other tests' tables are without it."""
    tables: list[dict[str, Any]] = [MODELS, CORPORA, METRICS, SPACES, PRESETS]  # pyrefly: ignore
    before = [dict(table) for table in tables]
    yield importlib.import_module("tests.plugin")
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@pytest.fixture
def config(plugin: ModuleType) -> ModelConfig:
    """The model that the protocol's tests are run on here."""
    return plugin.GruConfig()


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m` and these words, as they are typed."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("ray_session", "plugin")
def test_all_commands_know_what_a_plugin_defines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, root = str(tmp_path / "store"), tmp_path / "runs"
    quiet = ["--tracking.system-metrics", "off", "--tracking.models", "none"]
    places = ["--data.store", store, "--root", str(root), "--use-gpu", "no", *quiet]
    untracked = ["--tracking.backend", "none"]
    prepare.main(["counting", "--documents", "6", "--store", store, "--segment-length", "32", "--num-workers", "1"])
    assert "counting: 18 documents" in capsys.readouterr().out

    words = ("gru-counting", *places, "--run", "calm", "--num-workers", "0")
    calmly = python("pipelines.train", *words, THROUGHLINE_PLUGINS="tests.plugin")
    assert calmly.returncode == 0 and "perplexity " in calmly.stdout, calmly.stderr  # the console
    killer = Meanwhile(root / "killed", lambda workers: workers[0].kill())
    train.main(["gru-counting", *places, "--run", "killed", "--num-workers", "1"])
    killer.thread.join()
    assert "a worker died" in capsys.readouterr().err
    calm, killed = (root / name / "checkpoints" / "step-00000030" for name in ("calm", "killed"))
    for file in calm.glob("*.safetensors"):
        assert (killed / file.name).read_bytes() == file.read_bytes()

    meta = Checkpoint.open(killed).meta
    stored = read_run(TrackingConfig(), root, meta["mlflow_run"], ("validation/perplexity",))
    assert len([record for record in stored.records if "validation/perplexity" in record.metrics]) == 3  # MLflow
    compare.main([str(root / "calm"), str(root / "killed"), "--output", str(tmp_path / "compared"), *untracked])
    with open(tmp_path / "compared" / "comparison.csv") as file:
        assert all(float(row["best_perplexity"]) > 1 for row in csv.DictReader(file))
    evaluate.main([str(root / "killed"), "--output", str(tmp_path / "report"), *untracked])
    with open(tmp_path / "report" / "table.csv") as file:
        row = next(csv.DictReader(file))
    assert float(row["perplexity"]) == pytest.approx(2 ** float(row["bits_per_token"])) and row["model"] == "gru"

    export.main([str(root / "killed"), "--output", str(tmp_path / "exported")])
    capsys.readouterr()
    texts = []
    for trained in (root / "killed", tmp_path / "exported"):
        generate.main([str(trained), "--prompt", "1 2 3", "--max-new-tokens", "8", "--temperature", "0"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and len(texts[0]) > 1

    words = ["--preset", "gru-counting", "--search", "grid", "--metric", "validation/perplexity", "--baseline", "no"]
    words += [*untracked, "--num-workers", "1", "--max-concurrent-trials", "1"]
    assert tune.main(["width", *places, "--run", "swept", *words]) == 0
    with open(root / "swept" / "report" / "trials.csv") as file:
        trials = list(csv.DictReader(file))
    assert {trial["model.d_model"] for trial in trials} == {"8", "16"}
    assert all(float(trial["best"]) > 1 and trial["status"] == "finished" for trial in trials)


def test_a_command_imports_the_modules_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("from data_prep.corpora import CORPORA, Text\nCORPORA['mine'] = Text\n")
    monkeypatch.chdir(tmp_path)
    known, unknown = (
        python("pipelines.prepare", "--help", THROUGHLINE_PLUGINS=names) for names in ("mine", "mine, mien")
    )
    assert known.returncode == 0 and "  mine  " in known.stdout
    assert unknown.returncode == 2 and unknown.stderr.startswith(
        "error: THROUGHLINE_PLUGINS names mien, which cannot be"
    )


def test_an_error_in_a_plugin_names_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from recur_models.mixers import MixersConfig\nMixersConfig(layers=('sum', 'window'))\n"
    )
    monkeypatch.chdir(tmp_path)
    done = python("pipelines.prepare", "--help", THROUGHLINE_PLUGINS="mine")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: THROUGHLINE_PLUGINS names mine, which stops while it is imported: model.layers"
    )
