"""A run's config from its file, and the words that make it from its preset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import UserError
from pipelines.checkpoints.run_file import presets_with
from pipelines.config.dotted import options, with_fields
from pipelines.config.run import to_json
from pipelines.presets import PRESETS
from pipelines.terminal import cli


@pytest.mark.parametrize("name", ["small-rec", "pg19-memorizing-64k", "pg19-feedback-fixed-skip", "study-xl"])
def test_a_run_is_its_preset_and_the_words_that_changed_it(name: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    other = with_fields(
        preset, {"optim.betas": [0.8, 0.99], "steps": 7, "tracking.experiment": "a b", "model.dropout": 0.1}
    )
    assert cli.parse_preset(PRESETS, [name, *options(other, preset)], "") == other
    file = tmp_path / "some.json"
    for values in (to_json(other), {"config": to_json(other), "trial": "003"}):
        file.write_text(json.dumps(values))
        assert presets_with(PRESETS, [str(file)])[str(file)] == other


def test_only_a_first_word_names_a_file() -> None:
    for words in ([], ["--data.store=runs/nowhere", "small-rec"], ["small-rec", "runs/nowhere"]):
        assert presets_with(PRESETS, words) is PRESETS


def test_a_folder_above_runs_or_in_one_is_no_preset_and_the_runs_are_named(tmp_path: Path) -> None:
    folders = [tmp_path / "runs" / name for name in ("a", "b", "c", "d")]
    for folder in folders:
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    files = ", ".join(f"{folder}/config.json" for folder in folders[:3])
    for above in (tmp_path / "runs", tmp_path):
        with pytest.raises(
            UserError, match=f"{above} is neither .* exported folder: name one of its runs: {files}, …$"
        ):
            presets_with(PRESETS, [str(above)])
    with pytest.raises(UserError, match=rf"checkpoints is neither .*: did you mean {folders[0]}/config.json\?$"):
        presets_with(PRESETS, [str(folders[0] / "checkpoints")])
    (tmp_path / "runs" / "best.json").write_text("{}")
    with pytest.raises(UserError, match=f"is a sweep: train {tmp_path}/runs/best.json, the best trial as a preset$"):
        presets_with(PRESETS, [str(tmp_path / "runs")])


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text('{"run": "a", "model": {"name": "rec"}, "stepz": 3}')
    with pytest.raises(ValueError, match=r"some.json is not a run's config of this version .*stepz"):
        presets_with(PRESETS, [str(file)])
    file.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"some.json is not a run's config of this version .*nested too deeply"):
        presets_with(PRESETS, [str(file)])
    good = to_json(PRESETS["small-rec"])
    for values, problem in (
        ([], "it is no JSON object"),
        ({"architectures": ["X"], "vocab_size": 9}, "it has 'architectures', which no run has"),
        ({name: value for name, value in good.items() if name != "data"}, "it lacks 'data'"),
        ({**good, "model": {}}, "it lacks 'model.name'"),
        ({**good, "model": 7}, "its 'model' is no JSON object"),
        ({**good, "optim": None}, "its 'optim' is no JSON object"),
        ({**good, "optim": {"lrr": 1}}, "it has 'optim.lrr', which no run has"),
    ):
        file.write_text(json.dumps(values))
        with pytest.raises(UserError) as caught:
            presets_with(PRESETS, [str(file)])
        assert str(caught.value) == f"{file} is not a run's config of this version ({problem}): name another file"
    file.write_text(json.dumps({**good, "steps": "many"}))
    with pytest.raises(UserError, match=f"{file}: steps is 'many': it must be a whole number"):
        presets_with(PRESETS, [str(file)])
    with pytest.raises(ValueError, match=r"has no field 'optim.lrr': did you mean 'optim.lr'"):
        with_fields(PRESETS["small-rec"], {"optim.lrr": 1})
    with pytest.raises(ValueError, match=r"tracking.models is 'figures': it must be one of"):
        with_fields(PRESETS["small-rec"], {"tracking.models": "figures"})
    with pytest.raises(ValueError, match=r"model.name cannot be set: another model has other fields"):
        with_fields(PRESETS["small-rec"], {"model.name": "slide"})
