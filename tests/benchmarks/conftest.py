"""The small runs of tests/pipelines are also what benchmarks are tried on."""

from tests.pipelines.conftest import store, train, train_model

__all__ = ["store", "train", "train_model"]
