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


@pytest.mark.parametrize("options", [{"at_once": 0}, {"seeds": ()}, {"tasks": ("walks",)}])
def test_what_cannot_be_done_is_a_sentence(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        state_tracking.BenchConfig(**options)  # pyrefly: ignore
