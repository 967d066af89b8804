"""Tests of file permissions as an ordinary user: root, who runs the tests in a container, may read and write everything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user may enter and write to, unlike root's `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def let_all_read(folder: Path) -> None:
    """Let every user read a folder and all that is in it, whatever the umask."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Run the block as `nobody` if the tests run as root, and unchanged otherwise."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
