"""What Ray Train gets of a run, and the sentence on an error that it wraps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.places import Place
from pipelines.cluster import ray_train
from pipelines.config.run import PlacementConfig


def test_ray_is_given_no_argument_that_its_dashboard_would_show(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run's config may hold the address of an MLflow server with its password."""
    given: list[Any] = []
    seen: list[dict[str, Any]] = []

    class Trainer:
        def __init__(self, worker: Any, **arguments: Any) -> None:
            self.worker = worker
            given.append(arguments)

        def fit(self) -> None:
            self.worker()

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    monkeypatch.setattr(ray_train, "reservations", set)
    arguments = {"uri": "http://user:secret@host"}
    error = ray_train.run_workers(seen.append, arguments, 1, PlacementConfig(), False, Place.parse(tmp_path), "run")
    assert (error, seen) == (None, [arguments])
    assert "scaling_config" in str(given) and "secret" not in str(given)


def test_a_worker_that_lost_another_is_quoted_without_gloos_advice() -> None:
    gloo = (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [192.0.2.2]:22197: Connection reset by peer. "
        "This is typically caused by a remote worker hanging. Check the logs of the remote worker before reporting an error."
    )
    assert ray_train.first_line(RuntimeError(gloo)) == "Read error [192.0.2.2]:22197: Connection reset by peer"
    assert ray_train.first_line(RuntimeError("Traceback:\n  disk full\nmore")) == "disk full"
    assert ray_train.first_line(RuntimeError()) == "RuntimeError"
