"""The recall task: that it asks what it says it asks, and that reading line by line is reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.named_lines import ANSWER, LINE, NAMES, call, write_files
from benchmarks.recall import TRAIN_LINES, RecallConfig, answer, ask, corpus
from data_prep.store import SegmentStore
from pipelines.presets import PRESETS
from recur_models import RecConfig, SlideConfig

SMALL = RecallConfig(train_documents=60, test_documents=7, distances=(1, 4, 10))


def test_the_question_stands_at_the_stated_distance_and_nowhere_else() -> None:
    files = corpus(SMALL)
    trained_on = "".join(text for path, text in files.items() if not path.startswith("test/"))
    for distance in SMALL.distances:
        texts = [text for path, text in files.items() if path.startswith(f"test/{distance}/")]
        assert len(texts) == SMALL.test_documents
        for text in texts:
            lines = text.splitlines(keepends=True)
            assert len(lines) == distance + 1 and {len(line.encode()) for line in lines} == {LINE}
            name = lines[0][ANSWER]
            assert lines[0] == f"my name is {name}\n" and lines[-1] == f"your name: {name}\n" and name in NAMES
            assert text.count(name) == 2 and "your" not in "".join(lines[:-1])
            assert name not in trained_on


def test_training_documents_ask_at_every_distance() -> None:
    texts = [text.splitlines() for path, text in corpus(SMALL).items() if path.startswith("train/")]
    assert {len(lines) for lines in texts} == {TRAIN_LINES}
    asked = {i for lines in texts for i, line in enumerate(lines) if line.startswith("your name: ")}
    assert asked == set(range(1, TRAIN_LINES))
    assert all(line[ANSWER] == lines[0][ANSWER] for lines in texts for line in lines if line.startswith("your"))


def test_the_corpus_follows_from_its_seed() -> None:
    assert corpus(SMALL) == corpus(SMALL)
    assert corpus(SMALL) != corpus(replace(SMALL, seed=1))


def test_the_presets_fit_the_task() -> None:
    models = {name: preset.model for name, preset in PRESETS.items() if name.startswith("recall-")}
    assert len(models) == 9 and {model.block for model in models.values()} == {LINE}
    sizes = {name: model.costs(257).parameters for name, model in models.items()}
    assert sizes == pytest.approx(dict.fromkeys(sizes, 167_000), rel=0.01)
    slide = PRESETS["recall-slide"].model
    assert isinstance(slide, SlideConfig) and slide.layers < 10  # × window is what it sees, in windows


def test_another_corpus_in_its_place_and_senseless_options_are_told_of(tmp_path: Path) -> None:
    config = replace(SMALL, root=tmp_path)
    folder = write_files(config.root / "corpus", corpus(config))
    assert write_files(config.root / "corpus", corpus(config)) == folder
    others: list[dict[str, Any]] = [{"seed": 1}, {"test_documents": 3}]
    for other in others:
        with pytest.raises(ValueError, match="made with other options"):
            write_files(config.root / "corpus", corpus(replace(config, **other)))
    wrongs: list[dict[str, Any]] = [{"distances": (0, 4)}, {"distances": ()}, {"test_documents": 0}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="at least 1"):
            replace(SMALL, **wrong)
    with pytest.raises(ValueError, match="did you mean 'recall-rec'"):
        RecallConfig(presets=("recal-rec",))


@pytest.mark.parametrize("clear_states", [False, True])
def test_line_by_line_is_one_pass_but_for_what_is_cleared(clear_states: bool) -> None:
    torch.manual_seed(0)
    model = RecConfig(layers=1, recurrent_layers=(1,), states=4, d_model=32, heads=2, head_dim=16, window=LINE).build(
        257
    )
    model.eval()
    with torch.no_grad():  # states that change much, so that clearing them shows
        model.layers[0].tokens.out.weight.mul_(8)
    inputs_BT = torch.randint(0, 257, (16, 5 * LINE))
    whole = model(inputs_BT)[0][:, -LINE:][:, ANSWER].argmax(-1)
    assert torch.equal(answer(model, inputs_BT, clear_states), whole) is not clear_states


@pytest.mark.slow
def test_a_model_that_has_learned_nothing_knows_no_name(tmp_path: Path) -> None:
    config = replace(SMALL, root=tmp_path)
    folder = write_files(config.root / "corpus", corpus(config))
    call("pipelines.prepare", "text", "--source", str(folder), "--store", str(tmp_path / "store"), "--num-workers", "0")
    test = SegmentStore.open(str(tmp_path / "store"), "text", "test")
    rec, slide = (PRESETS[name].model.build(test.vocab_size).eval() for name in ("recall-rec", "recall-slide"))
    for distance in config.distances:
        result = ask(rec, test, distance)
        assert result.names == 0 and result.names_cleared == 0
        assert ask(slide, test, distance).names_cleared is None
