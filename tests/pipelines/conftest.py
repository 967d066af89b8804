"""What several tests of pipelines/ share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.small_runs import TINY

if TYPE_CHECKING:
    from tests.ray_sweeps import Here, Make


@pytest.fixture
def here(store: Path, tmp_path: Path) -> Make:
    """Plan a sweep of TINY on the small store, one trial at a time: the space, then further words."""
    from tests.ray_sweeps import Here  # imports Ray Tune

    def make(space: str, *extra: str, name: str = "sweep") -> Here:
        tiny = ["--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", name, "--num-workers", "1"]
        return Here([space, *TINY[1:], *tiny, "--num-cpus", "1", *extra])

    return make
