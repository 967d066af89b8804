"""A marker that is asked for by name must run something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.gpu
def test_on_a_gpu():
    pytest.skip("needs a GPU")

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.slow
def test_slow_too():
    pytest.skip("needs root")
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("-m", "gpu"), 1, "error: no test of -m 'gpu' has run: needs a GPU"),
        (("-m", "slow"), 0, "1 passed, 1 skipped"),
        ((), 0, "1 passed, 2 skipped"),
    ],
)
def test_only_a_marker_whose_tests_all_skip_fails(
    tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    (tmp_path / "test_small.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    slow\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.nothing_ran", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), *words, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout
    assert said in done.stdout
