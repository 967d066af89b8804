"""Copies of folders of pretrained weights with another config.json, and the errors about those that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def rewritten(folder: Path, place: Path, leave_out: tuple[str, ...] = (), **values: Any) -> Path:
    """Copy a folder to ``place``, with config.json less the fields of ``leave_out`` and with these values. Returns ``place``."""
    shutil.copytree(folder, place)
    was = json.loads((place / "config.json").read_text())
    kept = {name: value for name, value in was.items() if name not in leave_out}
    (place / "config.json").write_text(json.dumps({**kept, **values}))
    return place


def refused(build: Callable[[], object]) -> str:
    """The error, of one line, that refuses to build a model."""
    with pytest.raises(ValueError) as error:
        build()
    assert "\n" not in str(error.value)
    return str(error.value)
