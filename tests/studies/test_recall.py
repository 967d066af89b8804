"""Recall of names: that reading line by line is reading, and that nothing is known without training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.errors import UserError
from data_prep.corpora.names import ANSWER, LINE, Names
from data_prep.store import SegmentStore
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from recur_models import RecConfig, SlideConfig
from studies.names import MODELS
from studies.recall import measure_recall, predicted_names


def test_the_presets_fit_the_task() -> None:
    models = {name: PRESETS[f"recall-{name}"].model for name in MODELS}
    assert {model.block for model in models.values()} == {LINE}
    sizes = {name: model.costs(257).parameters for name, model in models.items()}
    assert sizes == pytest.approx(dict.fromkeys(sizes, 167_000), rel=0.01)
    slide = PRESETS["recall-slide"].model
    assert isinstance(slide, SlideConfig) and slide.layers < 10  # × window is what it sees, in windows


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
    assert torch.equal(predicted_names(model, inputs_BT, clear_states), whole) is not clear_states


def test_a_model_that_has_learned_nothing_knows_no_name(tmp_path: Path) -> None:
    few = Names(train=20, validation=2, test=7, distances=(1, 10))
    prepare(PrepareConfig(corpus=few, store=str(tmp_path), num_workers=0))
    test = SegmentStore.open(tmp_path, "names", "test")
    rec, slide = (PRESETS[name].model.build(test.vocab_size).eval() for name in ("recall-rec", "recall-slide"))
    for distance in (1, 10):
        result = measure_recall(rec, test, distance)
        assert result.names == 0 and result.names_cleared == 0
        assert measure_recall(slide, test, distance).names_cleared is None
        assert measure_recall(rec, test, distance, cleared=False).names_cleared is None
    with pytest.raises(UserError, match="has no questions about names 3 windows back: prepare it with --distances 3"):
        measure_recall(slide, test, 3)
