"""lm-evaluation-harness scores an exported run as we do; skipped where it is not installed (benchmarks/peers.txt)."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.killing import MODELS
from common.errors import UserError
from pipelines.inference.trained import Trained, load


@pytest.mark.parametrize("model", ["rec fixed:skip", "cached-staircase", "lstm"])
def test_windows_cover_every_token_once_and_may_be_the_whole_document(
    model: str, train_model: Callable[..., Path]
) -> None:
    trained = load(train_model(model, "--steps", "5", "--validate-every", "0", "--optim.lr", "1e-2"))
    ids = list(b"It was a bright cold day in April, and the clocks were striking thirteen.")
    whole = harness.nats(trained, [trained.bod_id, *ids[:-1]], ids)
    assert harness.windowed_nats(trained, ids, len(ids)) == pytest.approx(whole)
    assert harness.windowed_nats(trained, ids, 10 * len(ids)) == pytest.approx(whole)
    alone = [harness.nats(trained, [before], [after]) for before, after in itertools.pairwise(ids)]
    first = harness.nats(trained, [trained.bod_id], ids[:1])
    assert harness.windowed_nats(trained, ids, 1) == pytest.approx(first + sum(alone), rel=1e-5)
    assert harness.windowed_nats(trained, ids, 1) != pytest.approx(whole, rel=1e-3)


def test_the_exported_checkpoint_is_the_one_that_is_compared(
    train_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(place: Path, store: str) -> Trained:
        raise UserError(f"loads {place}")

    monkeypatch.setattr(harness, "load", stop)
    with pytest.raises(UserError, match=r"/checkpoints/step-00000001$"):
        harness.main([str(train_model("lstm", "--steps", "1", "--validate-every", "0"))])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
@pytest.mark.parametrize("model", MODELS)
def test_the_harness_scores_what_we_score(
    model: str, train_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_model(model, "--steps", "40", "--validate-every", "0", "--optim.lr", "1e-2")
    assert harness.main([str(run), "--questions", "8"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nequal ") == 4 and "DIFFERENT" not in out
