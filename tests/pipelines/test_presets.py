"""The named runs: that they are the paper's rows, and that each can be built, written down and read back."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.corpora import CORPORA
from pipelines.config.run import TrainConfig, to_json
from pipelines.prepare import commands, prepare
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import read_records
from pipelines.train import main
from recur_models import MODELS, MemorizingConfig, RecConfig, SlideConfig, StaircaseConfig, XLConfig, model_from_json
from studies.papers import staircase
from studies.papers.block_recurrent import PAPER_PRESETS, SCALES, TOKENS_PER_STEP
from studies.state_tracking import MODELS as STATE_TRACKING_MODELS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_and_comes_back_from_json(name: str) -> None:
    preset = PRESETS[name]
    assert preset.run == name
    assert model_from_json(json.loads(json.dumps(to_json(preset)))["model"]) == preset.model


def of_table_1(corpus: str) -> dict[str, TrainConfig]:
    names = [
        *("xl-512", "xl-1024", "xl-2048", "slide-12L", "slide-13L"),
        *(f"rec-{gate}-{cell}" for gate in ("lstm", "fixed") for cell in ("dual", "single", "skip")),
        *(() if corpus == "github" else ("feedback-lstm-single", "feedback-fixed-skip", "memorizing-64k")),
    ]
    return {name: PRESETS[f"{corpus}-{name}"] for name in names}


@pytest.mark.parametrize(("corpus", "rows"), [("pg19", 14), ("arxiv", 14), ("github", 11)])
def test_table_1_has_all_its_rows(corpus: str, rows: int) -> None:
    table = of_table_1(corpus)
    assert len(table) == rows
    for name, preset in table.items():
        model: Any = preset.model
        assert preset.data.corpus == corpus and model.d_model == 1024
        long = 4096 if name.startswith(("slide", "rec", "feedback")) else model.window
        assert preset.data.segment_length == long
        assert model.window == (int(name.removeprefix("xl-")) if name.startswith("xl") else 512)
        millions = (model.costs(32_000).parameters - 32_000 * 1024) / 1e6
        if not name.startswith(("feedback", "rec")):  # MODELS' numbers on these: tests/recur_models/test_parts.py
            assert round(millions) == (164 if name == "slide-13L" else 151)
    feedback = PRESETS["pg19-feedback-lstm-single"].model
    assert isinstance(feedback, RecConfig) and (feedback.gate, feedback.cell, feedback.feedback) == (
        "lstm",
        "single",
        True,
    )
    memorizing = PRESETS["pg19-memorizing-64k"].model
    assert isinstance(memorizing, MemorizingConfig) and (memorizing.memory, memorizing.memory_place) == (65_536, 9)


def test_all_rows_read_as_many_tokens_in_a_step() -> None:
    for name, preset in PAPER_PRESETS.items():
        assert preset.tokens_per_step == TOKENS_PER_STEP * (4 if name.startswith("github") else 1), name
    assert PRESETS["pg19-xl-512"].data.lanes == 256 and PRESETS["pg19-slide-12L"].data.lanes == 32  # section 4.1


def test_rates_are_those_of_appendix_c() -> None:
    for name, preset in PAPER_PRESETS.items():
        lr, schedule, steps = preset.optim.lr, preset.schedule.name, preset.steps
        assert preset.optim.name == "adafactor" and preset.schedule.warmup_steps == 1000
        if name.startswith("github"):
            assert (lr, schedule, steps) == (0.005, "cosine", 250_000)
        elif name.startswith("arxiv"):
            assert (lr, schedule, steps) == (0.5, "inverse-sqrt", 500_000)
        elif "scale" in name:
            assert (lr, lr * preset.schedule.min_lr_ratio, schedule) == (0.01, 0.001, "cosine")
        else:
            assert (lr, schedule, steps) == (1.0, "inverse-sqrt", 500_000)


def test_table_3_changes_one_thing_at_a_time() -> None:
    for window in (128, 256, 512):
        assert PRESETS[f"pg19-rec-fixed-skip-window-{window}"].model == RecConfig(window=window, states=512)
        assert PRESETS[f"pg19-slide-12L-window-{window}"].model == SlideConfig(layers=12, window=window)
    for states in (128, 256, 512, 1024, 2048):
        assert PRESETS[f"pg19-rec-fixed-skip-states-{states}"].model == RecConfig(states=states)


@pytest.mark.parametrize("scale", SCALES)
def test_table_4_compares_equal_parameters_and_flops(scale: str) -> None:
    rec, xl = (PRESETS[f"pg19-scale-{scale}-{name}"].model for name in ("rec", "xl"))
    assert isinstance(rec, RecConfig) and isinstance(xl, XLConfig)
    tall = scale in ("650M", "1.3B")
    assert (rec.layers, rec.recurrent_layers, xl.layers) == ((24, (10, 20), 26) if tall else (12, (10,), 13))
    ours, theirs = rec.costs(32_000), xl.costs(32_000)
    assert ours.parameters / theirs.parameters == pytest.approx(1, abs=0.03)
    assert ours.flops_per_token / theirs.flops_per_token == pytest.approx(1, abs=0.03)
    expected = {"40M": 40.4, "80M": 80.2, "150M": 160.4, "325M": 319.8, "650M": 640, "1.3B": 1279}[scale]
    assert (ours.parameters - ours.embedding_parameters) / 1e6 == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("ours", "theirs", "vocab_size"),
    [
        ("study-rec", "study-slide", 257),
        ("study-rec", "study-xl", 257),
        ("recall-rec", "recall-slide", 257),
    ],
)
def test_studies_compare_nearly_equal_parameters_on_the_same_batches(ours: str, theirs: str, vocab_size: int) -> None:
    rec, other = PRESETS[ours], PRESETS[theirs]
    parameters, others = (preset.model.costs(vocab_size).parameters for preset in (rec, other))
    assert 0.97 * others <= parameters <= others
    assert replace(rec, model=other.model, run=theirs) == other


def test_the_command_line_knows_every_model() -> None:
    for name, config in MODELS.items():
        data = replace(PRESETS["small-rec"].data, segment_length=8 * config().block)
        preset = replace(PRESETS["small-rec"], model=config(), data=data, run=name)
        given = cli.parse_preset({name: preset}, [name, "--model.dropout", "0.25"], "Train.")
        assert given == replace(preset, model=config(dropout=0.25))  # pyrefly: ignore


SYMBOLS = {"algorithm": 23, "walk": 68, "enwik8": 257, "reddit": 8001, "tiny-enwik8": 257}


@pytest.mark.parametrize("task", SYMBOLS)
def test_models_of_a_task_have_the_same_parameters_and_read_the_same_tokens(task: str) -> None:
    rows = {
        name.removeprefix(f"{task}-"): run for name, run in staircase.PRESETS.items() if name.startswith(f"{task}-")
    }
    expected = rows["staircase"].model.costs(SYMBOLS[task]).parameters
    for name, run in rows.items():
        assert replace(run, model=rows["staircase"].model) == rows["staircase"]
        if not name.endswith(("2x", "small")) and (task, name) != ("reddit", "feedback"):
            assert run.model.costs(SYMBOLS[task]).parameters == pytest.approx(expected, rel=0.03), name
    assert {run.model.name for run in rows.values()} == {
        *("staircase", "cached-staircase", "feedback-transformer", "transformer-xl", "universal-transformer", "lstm"),
        *(("slide", "rec") if task == "tiny-enwik8" else ()),
    }


def test_reddits_models_have_the_parameters_of_table_2() -> None:
    millions = {"xl": 117, "xl-2x": 218, "feedback": 102, "cached-staircase": 117, "staircase-8": 117, "universal": 120}
    for name, count in {**millions, "universal-2-small": 29, "universal-16-small": 29}.items():
        assert round(PRESETS[f"reddit-{name}"].model.costs(8001).parameters / 1e6) == count, name


def test_algorithms_settings_are_those_that_are_known() -> None:
    run, model = PRESETS["algorithm-staircase"], PRESETS["algorithm-staircase"].model
    assert isinstance(model, StaircaseConfig) and (model.layers, model.d_model, model.mlp_dim) == (4, 256, 1024)
    assert (model.chunk, model.passes * model.chunk, model.dropout) == (64, 128, 0.2)
    assert (run.optim.lr, run.optim.max_grad_norm, run.schedule.warmup_steps) == (1e-4, 0.1, 1000)
    assert PRESETS["walk-staircase"].data.order == "sequential"


@pytest.mark.slow
def test_a_step_of_each_model_of_a_task_on_programs(tmp_path: Path) -> None:
    """At full width; of few lanes, in short segments."""
    corpus = CORPORA["algorithm"](train=4, validation=2, test=0)
    where = ["--data.store", str(tmp_path / "store"), "--root", str(tmp_path / "runs"), "--tracking.backend", "none"]
    prepare(replace(commands()["algorithm"], corpus=corpus, store=str(tmp_path / "store"), num_workers=0))
    tiny = shlex.split("--data.lanes 2 --data.segment-length 128 --steps 1 --num-workers 0 --use-gpu no")
    for model in ("staircase", "cached-staircase", "feedback", "xl", "universal", "lstm"):
        name = f"algorithm-{model}"
        main([name, *where, *tiny, "--validate-every", "0"])
        records = read_records(tmp_path / "runs" / name / "metrics.jsonl")
        # Ten labels or more. A model that knows nothing and guesses one of ten values has four right in 1 % of draws.
        assert 0.6 < records[0].metrics["train/error_rate"] <= 1, name


def test_the_small_tasks_compare_equal_parameters() -> None:
    """benchmarks/state_tracking.py: beside embeddings, of which the tied ones make the logits too; the table prints the totals."""
    sizes: dict[str, int] = {}
    for name, model in STATE_TRACKING_MODELS.items():
        costs = model.costs(13)
        sizes[name] = costs.parameters - costs.embedding_parameters
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes
