"""Reads the JSON files in a folder that transformers saved, and names its weight files.

eos_token_ids(Path("smollm2"))           # (2,)
weight_files(Path("smollm2"))            # ("model.safetensors",)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import parse_json, read_text

RELEASED = "give it as it was released"
"""The remedy for a file that is not what transformers saved."""
FETCHED = "fetch it again, or save the model with save_pretrained, which writes safetensors"
"""The remedy for a folder without weights."""


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The ids at which transformers ends a text: generation_config.json's, else config.json's. Raises UserError as `read_json`."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = read_json(file).get("eos_token_id")
        if found is None:
            continue
        ids = found if isinstance(found, list) else [found]
        if not all(type(index) is int and index >= 0 for index in ids):
            raise UserError(f"{file} has eos_token_id {found}, which are not token ids: {RELEASED}")
        return tuple(ids)
    return ()


def weight_files(folder: Path, remedy: str = FETCHED) -> tuple[str, ...]:
    """Names of a folder's safetensors files: one alone comes first, as in transformers, which leaves an older index beside it.

    Raises UserError, with the remedy, where one is missing; also where the index of several is damaged.
    """
    index = folder / "model.safetensors.index.json"
    names: list[Any] = ["model.safetensors"]
    if index.is_file() and not (folder / names[0]).is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise UserError(f"{index} names no weights: fetch the folder again, or save it again with save_pretrained")
        names = sorted(set(map(str, weight_map.values())))
    for name in names:
        if name != Path(name).name or not (folder / name).is_file():
            other = next((path.name for path in sorted(folder.glob("*.bin"))), None)
            told = f"; it has {other}, which may run code and is not opened" if other else ""
            raise UserError(f"{folder} has no {name}{told}: {remedy}")
    return tuple(names)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file. Raises UserError if the file holds something else."""
    if not file.is_file():
        return {}
    try:
        values = parse_json(read_text(file, RELEASED))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): {RELEASED}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} is not a JSON object: {RELEASED}")
    return values


def check_is_no_adapter(path: str | Path) -> None:
    """Raise UserError for a folder with an adapter of PEFT's and no model."""
    folder = os.path.expanduser(path)
    if os.path.isfile(f"{folder}/adapter_config.json") and not os.path.exists(f"{folder}/config.json"):
        raise UserError(
            f"{folder} holds an adapter and no model: merge it first, with PEFT's merge_and_unload() and save_pretrained(), and "
            "name the folder that they make"
        )
