"""How the comparison of models on tasks calls our entry scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import state_tracking
from common.errors import UserError


def test_a_folder_with_a_blank_in_its_name_is_one_word(tmp_path: Path) -> None:
    root = tmp_path / "my runs"
    training = state_tracking.training(state_tracking.BenchConfig(root=root), "walk", "lstm", 3)
    words = training.job().words
    assert words[words.index("--root") + 1] == str(root) and words[words.index("--seed") + 1] == "3"
    assert words[words.index("--data.store") + 1].startswith(str(root / "stores/symbols"))
    assert state_tracking.read("walk", "lstm", 3, training) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_once": 0}, "--at-once is 0: give 1 or more"),
        ({"seeds": ()}, "--seeds names nothing: give one or more"),
        ({"tasks": ("walks",)}, "'walks' is not among these: did you mean 'walk'"),
    ],
)
def test_options_that_name_nothing_to_train_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        state_tracking.BenchConfig(**options)  # pyrefly: ignore
