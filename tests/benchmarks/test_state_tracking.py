"""How the comparison of models on tasks calls our entry scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import state_tracking
from data_prep.errors import UserError


def test_a_folder_with_a_blank_in_its_name_is_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(state_tracking, "call", lambda _, *words: called.extend(words))
    root = tmp_path / "my runs"
    state_tracking.train(state_tracking.BenchConfig(root=root), "walk", "lstm", 3)
    assert called[called.index("--root") + 1] == str(root)
    assert called[called.index("--data.store") + 1] == str(root / "store")


@pytest.mark.parametrize("options", [{"at_once": 0}, {"seeds": ()}, {"tasks": ("walks",)}])
def test_what_cannot_be_done_is_a_sentence(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        state_tracking.BenchConfig(**options)  # pyrefly: ignore
