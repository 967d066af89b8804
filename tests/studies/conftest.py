"""A study reads what the engine has trained: the fixtures are the engine's."""

from tests.pipelines.conftest import store, train, train_model

__all__ = ["store", "train", "train_model"]
