"""Real texts, tokenizers and reference outputs, in THROUGHLINE_DATA or ../shared/data; tests that need absent ones skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("THROUGHLINE_DATA") or Path(__file__).parents[2] / "shared" / "data")


def need(*parts: str) -> Path:
    """The path of shared data below SHARED; skips the test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path.name} of the shared data (THROUGHLINE_DATA)")
    return path
