"""Reads the JSON files in a folder of transformers, apart from sizes and weights.

eos_token_ids(Path("smollm2"))           # (2,)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import UserError


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The ids at which transformers ends a text: generation_config.json's, else config.json's. Raises UserError as `read_json`."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = read_json(file).get("eos_token_id")
        if found is None:
            continue
        ids = found if isinstance(found, list) else [found]
        if not all(type(index) is int and index >= 0 for index in ids):
            raise UserError(f"{file} has eos_token_id {found}, which are no ids: give it as it was released")
        return tuple(ids)
    return ()


def read_json(file: Path) -> dict[str, Any]:
    """An object in JSON; empty where there is no such file. Raises UserError where the file holds something else."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not JSON ({error}): give it as it was released") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no object: give it as it was released")
    return values


def read_text(file: Path) -> str:
    """A text in UTF-8. Raises UserError where the file holds something else."""
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text (byte {error.start}): give it as it was released") from None
