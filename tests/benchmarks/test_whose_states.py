"""Recurrent states exchanged between documents: what is exchanged, and what is scored."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import whose_states
from benchmarks.whose_states import bits_per_token, exchanged
from common.errors import UserError
from recur_models import RecConfig

REC = RecConfig(2, 16, heads=2, head_dim=8, mlp_dim=32, window=4, states=4, recurrent_layers=(2,), dropout=0.0)


def test_recurrent_states_alone_are_exchanged() -> None:
    initial = {"layers.1.states": torch.zeros(3, 2), "layers.1.states_count": torch.zeros(3), "keys": torch.zeros(3)}
    state = {"layers.1.states": torch.arange(6.0).view(3, 2), "layers.1.states_count": torch.ones(3).long()}
    state["keys"] = torch.arange(3.0)
    assert exchanged(state, initial, "own") is state
    rolled = exchanged(state, initial, "another's")
    assert rolled["layers.1.states"].tolist() == [[4, 5], [0, 1], [2, 3]]
    averaged = exchanged(state, initial, "mean")
    assert averaged["layers.1.states"].tolist() == [[2, 3]] * 3
    assert averaged["layers.1.states_count"].tolist() == [1, 1, 1]
    cleared = exchanged(state, initial, "cleared")
    assert not cleared["layers.1.states"].any() and not cleared["layers.1.states_count"].any()
    for made in (rolled, averaged, cleared):
        assert torch.equal(made["keys"], state["keys"])


def test_all_blocks_but_the_first_are_scored() -> None:
    torch.manual_seed(0)
    model = REC.build(20).eval()
    ids = torch.randint(19, (3, 13))
    with torch.inference_mode():
        nats, _ = model(ids[:, :-1], targets_BT=ids[:, 1:])
    assert bits_per_token(model, ids, "own") == pytest.approx(nats[:, 4:].mean().item() / math.log(2), rel=1e-5)
    twice = ids[:1].expand(2, -1)  # two documents that are alike have the same states
    for whose in ("another's", "mean"):
        assert bits_per_token(model, twice, whose) == pytest.approx(bits_per_token(model, twice, "own"), rel=1e-5)
        assert bits_per_token(model, ids, whose) != pytest.approx(bits_per_token(model, ids, "own"), rel=1e-5)


@pytest.mark.slow
def test_a_run_is_read_and_one_without_recurrent_states_is_refused(
    train_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whose_states.main([str(train_model("rec fixed:skip", "--steps", "2")), "--split", "train", "--blocks", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["own", "another's", "mean", "cleared"]
    assert lines[-4].endswith("+0.0000")
    whose_states.main(
        [str(train_model("memorizing", "--steps", "2", name="memory")), "--split", "train", "--blocks", "3"]
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-3:]] == ["own", "another's", "cleared"]
    with pytest.raises(UserError, match="no recurrent states"):
        whose_states.main([str(train_model("slide", "--steps", "2", name="other"))])
    with pytest.raises(UserError, match="give 2 or more"):
        whose_states.main(["runs/none", "--blocks", "1"])
