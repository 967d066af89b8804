"""What the kill benchmarks stand on: each moment is one that a run comes to, and what counts as a kill is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.killing import BUCKET_MOMENTS, MODELS, MOMENTS, TINY, Group, Trap, before_call, function_of, make_store


@dataclass(frozen=True)
class Witness(Trap):
    """Writes down the moments that come, and kills nobody."""

    folder: str

    def lay(self) -> None:
        for i, moment in enumerate(MOMENTS):
            path = Path(self.folder) / str(i)
            before_call(*function_of(moment), lambda *_, path=path, **__: path.touch())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    return [*MODELS["slide"], *TINY, "--steps", "3", "--data.store", str(make_store(folder)), "--root", str(folder)]


@pytest.mark.long
def test_a_run_comes_to_every_moment(words: list[str], tmp_path: Path) -> None:
    witnesses: dict[int, Any] = {}
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        witnesses[rank] = Witness("", 0, 0, str(tmp_path / str(rank)))
    with Group([*words, "--run", "seen"], 2, tmp_path / "log", witnesses) as group:
        assert group.wait() == [0, 0], group.said()
    seen = [
        {moment for i, moment in enumerate(MOMENTS) if (tmp_path / str(rank) / str(i)).exists()} for rank in range(2)
    ]
    assert seen[0] == set(MOMENTS)
    assert seen[0] - seen[1] == {"log", "upload to MLflow", "commit", "pruning"}  # what the kills leave to rank 0


def test_those_of_a_bucket_are_there() -> None:
    for moment in BUCKET_MOMENTS:  # test_bucket_runs.py kills at them
        assert callable(getattr(*function_of(moment)))


@pytest.mark.slow
def test_only_a_kill_counts(words: list[str], tmp_path: Path) -> None:
    mine = [*words, "--tracking.backend", "none"]
    with Group([*mine, "--run", "killed"], 2, tmp_path / "log", {1: Trap("optimizer", 1, 0)}) as group:
        group.wait_until_killed([1])
    with (
        Group([*mine, "--steps", "0"], 1, tmp_path / "refused") as group,
        pytest.raises(AssertionError, match=r"\[\(0, 2\)\]"),
    ):
        group.wait_until_killed([0])
    with (
        Group([*mine, "--run", "done"], 1, tmp_path / "done") as group,
        pytest.raises(AssertionError, match=r"statuses: \[\]"),
    ):
        group.wait_until_killed([0])
