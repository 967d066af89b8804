"""The benchmark of a training step with recurrence: its models, and the record that it makes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu_precision, pretrained_step, results
from common.errors import UserError
from pipelines.presets import PRESETS
from recur_models.compiling import is_compiled


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models, steps and products."""
    monkeypatch.setattr(cpu_precision, "SIZES", {32: 1})
    monkeypatch.setattr(
        pretrained_step, "SMOLLM2", pretrained_step.SMOLLM2 | {"d_model": 18, "mlp_dim": 8, "positions": 200}
    )
    monkeypatch.setattr(pretrained_step, "TOKENS", 200)


@pytest.mark.usefixtures("small")
def test_all_models_take_turns_and_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    pretrained_step.main(shlex.split("--layers 5 --vocabulary 9 --rounds 3 --profile 2 --precision float32 --record"))
    printed = capsys.readouterr().out
    table, profile = results.read(tmp_path / "pretrained" / results.JSON).records
    assert [row[0] for row in table.rows] == list(pretrained_step.MODELS)
    assert table.rows[0][3] == "1.00 (1.00 to 1.00)" and all(str(row[0]) in printed for row in table.rows)
    assert [row[4] == results.NONE for row in table.rows] == [False, False, True, False]
    assert "2 lanes, 5 layers, 9 ids, float32" in table.text[0] and table.columns[1].startswith("CPU s")
    assert len(profile.rows) == 8 and "aten::" in "".join(str(row[1]) for row in profile.rows)


@pytest.mark.usefixtures("small")
def test_compiled_models_take_turns_with_others(capsys: pytest.CaptureFixture[str]) -> None:
    config = pretrained_step.BenchConfig(models=("llama-rec-frozen",), compiled=True, lanes=3, vocabulary=9, layers=5)
    plain, compiled = pretrained_step.trainings_of(config).values()
    assert not is_compiled(plain.model) and is_compiled(compiled.model)
    assert not any(each.requires_grad for each in compiled.model.layers.parameters())
    seconds = {"llama-rec-frozen": [4.0, 2.0, 3.0], "llama-rec-frozen, compiled": [2.0, 1.5, 3.0], "product": [1.0] * 3}
    rows = pretrained_step.rows_of({"llama-rec-frozen": plain, "llama-rec-frozen, compiled": compiled}, 600, seconds)
    assert rows[1] == ["llama-rec-frozen, compiled", "2.00 (1.50)", "300", "0.75 (0.50 to 1.00)", results.NONE]
    assert "300 tokens/s" in capsys.readouterr().out


def test_models_have_smollm2s_sizes_and_their_presets_windows() -> None:
    for name, (preset, changes) in pretrained_step.MODELS.items():
        model: Any = pretrained_step.sized(name, layers=30)
        expected: Any = PRESETS[preset].model
        assert (model.window, model.overlap) == (expected.window, expected.overlap) == (100, 0)
        assert model.pretrained == "none" and (model.d_model, model.heads, model.kv_heads) == (576, 9, 3)
        assert all(getattr(model, field) == value for field, value in changes.items())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--rounds 2", "the first two do not"),
        ("--layers 4", "give 5 or more"),
        ("--vocabulary 1", "give 2 or more"),
        ("--lanes 0", "give 1 or more"),
        ("--threads 0", "give 1 or more"),
        ("--models", "name one or more"),
    ],
)
def test_nothing_to_measure_is_a_users_error(words: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pretrained_step.main(words.split())
