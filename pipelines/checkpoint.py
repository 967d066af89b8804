"""Checkpoints: one folder per step with everything that a run needs to go on bit for bit; safetensors and JSON, no pickle.

    <run>/checkpoints/step-00000200/
        model.safetensors           weights                                              (rank 0)
        optimizer.safetensors       the optimizer's tensors; its scalars are in the JSON  (rank 0)
        lanes-0-4-of-8.safetensors  what the process that owns lanes 0 to 3 has          (each rank)
            lanes/state/…           their State; lanes/digest: a digest of all that each has read
            process/…               its generators' state, its sums since the last log
        checkpoint.json             step, config, fingerprints, size and checksum of each file; written last

All ranks write into a temporary folder, which rank 0 renames when every file is there: a folder of this name is complete or
damaged, and the checksums tell which.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from data_prep.manifest import write_atomically
from data_prep.store import SegmentStore
from pipelines.world import World

SCHEMA = 1


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and the contents of its checkpoint.json."""

    folder: Path
    meta: Mapping[str, Any]

    @property
    def step(self) -> int:
        return self.meta["step"]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read and verify every file. Raises CheckpointError naming what is wrong."""
        path = folder / "checkpoint.json"
        try:
            meta = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{folder} is not a checkpoint: it has no checkpoint.json") from None
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None
        if not isinstance(meta, dict) or meta.get("schema") != SCHEMA or meta.get("digest") != _digest_json(meta):
            raise CheckpointError(
                f"{path} is damaged, or was written by another version (its own checksum does not fit)"
            )
        for name, expected in meta["files"].items():
            try:
                found = _digest_file(folder / name)
            except OSError:
                raise CheckpointError(f"{folder} is incomplete: {name} is missing or unreadable") from None
            if found != (expected["bytes"], expected["xxh3"]):
                raise CheckpointError(
                    f"{folder / name} is damaged: its size or checksum is not what checkpoint.json records"
                )
        return cls(folder, meta)

    def weights(self) -> dict[str, Tensor]:
        return _load(self.folder / "model.safetensors")

    def optimizer(self) -> dict[str, Any]:
        """The optimizer's state_dict."""
        return _unflatten_optimizer(_load(self.folder / "optimizer.safetensors"), self.meta["optimizer"])

    def lanes(self, start: int, stop: int) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """What belongs to these global lanes (State and more), gathered from whichever files hold it; and what the process
        that owned just these lanes had saved of its own (generators), or None when the lanes were divided in another way.
        """
        if self._file(start, stop) in self.meta["files"]:
            tensors = _load(self.folder / self._file(start, stop))
            return _under("lanes/", tensors), _under("process/", tensors)
        parts: dict[str, list[Tensor]] = {}
        for first, last in self._ranges():
            rows = slice(max(start, first) - first, min(stop, last) - first)
            if rows.start < rows.stop:
                for name, value in _under("lanes/", _load(self.folder / self._file(first, last))).items():
                    parts.setdefault(name, []).append(value[rows])
        return {name: torch.cat(values) for name, values in parts.items()}, None

    def total(self, name: str) -> Tensor:
        """The sum over all processes of something that each had saved of its own."""
        files = [self.folder / self._file(first, last) for first, last in self._ranges()]
        return torch.stack([_under("process/", _load(file))[name] for file in files]).sum(0)

    def _ranges(self) -> list[tuple[int, int]]:
        """The ranges of lanes that the processes owned, in order."""
        found = [re.fullmatch(r"lanes-(\d+)-(\d+)-of-\d+\.safetensors", name) for name in self.meta["files"]]
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _file(self, start: int, stop: int) -> str:
        return lanes_file(start, stop, self.meta["lanes"])


def lanes_file(start: int, stop: int, lanes: int) -> str:
    """Name of the file of the process that owns lanes ``start`` to ``stop`` (not included) of ``lanes``."""
    return f"lanes-{start}-{stop}-of-{lanes}.safetensors"


def save(
    root: Path,
    step: int,
    *,
    world: World,
    lanes: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    per_lane: Mapping[str, Tensor],
    per_process: Mapping[str, Tensor],
    meta: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of a step; every rank calls this, with what belongs to its own lanes (first dimension: lane) and
    with what is its own.
    """
    final, folder = root / f"step-{step:08d}", root / f".step-{step:08d}.tmp"
    if world.rank == 0:
        for stale in root.glob(".step-*.tmp"):
            shutil.rmtree(stale)
        folder.mkdir(parents=True)
    world.barrier()
    start, stop = world.lanes(lanes)
    name = lanes_file(start, stop, lanes)
    _save(folder / name, _over("lanes/", per_lane) | _over("process/", per_process))
    size, digest = _digest_file(folder / name)
    sums = world.gather(
        torch.tensor([start, stop, size, int(digest[:8], 16), int(digest[8:], 16)], device=world.device)
    )
    if world.rank == 0:
        files = {}
        for first, last, size, high, low in (part.tolist() for part in sums):
            files[lanes_file(first, last, lanes)] = {"bytes": size, "xxh3": f"{high:08x}{low:08x}"}
        tensors, scalars = _flatten_optimizer(optimizer.state_dict())
        for name, content in (("model.safetensors", model.state_dict()), ("optimizer.safetensors", tensors)):
            _save(folder / name, content)
            size, digest = _digest_file(folder / name)
            files[name] = {"bytes": size, "xxh3": digest}
        values = {
            "schema": SCHEMA,
            "step": step,
            "world": world.size,
            "lanes": lanes,
            "files": files,
            "optimizer": scalars,
        }
        values |= json.loads(json.dumps(dict(meta)))
        values["digest"] = _digest_json(values)
        write_atomically(folder / "checkpoint.json", json.dumps(values, indent=1).encode())
        if final.exists():  # the same step again after falling back: the new one takes its place
            shutil.rmtree(final)
        os.rename(folder, final)
        _sync(root)
    world.barrier()
    return final


def newest(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is complete and undamaged, and a sentence for each newer one that is not.

    Raises CheckpointError when there are checkpoints and none of them is good.
    """
    complaints: list[str] = []
    for folder in sorted(root.glob("step-*"), reverse=True):
        try:
            return Checkpoint.open(folder), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    if complaints:
        raise CheckpointError(
            f"no checkpoint below {root} can be used ({complaints[0]}): restore one, or choose another --run"
        )
    return None, []


def check_fits(checkpoint: Checkpoint, store: SegmentStore, *, allow_other_store: bool, override: str) -> None:
    """Raise ValueError unless the checkpoint's vocabulary is the store's, and its training split is (or may be another)."""
    meta, manifest = checkpoint.meta, store.manifest
    if meta["vocab_size"] != manifest.tokenizer.vocab_size or meta["tokenizer"] != manifest.tokenizer.fingerprint:
        raise ValueError(
            f"the vocabulary of {checkpoint.folder} ({meta['vocab_size']} ids) is not that of {store.folder} "
            f"({manifest.tokenizer.name}, {manifest.tokenizer.vocab_size} ids): prepare the corpus with the tokenizer of its run"
        )
    if meta["store"] != manifest.fingerprint and not allow_other_store:
        raise ValueError(
            f"{checkpoint.folder} was made from another store than {store.folder} (fingerprint {meta['store'][:12]}, "
            f"not {manifest.fingerprint[:12]}): use that store, or add {override}"
        )


def prune(root: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints."""
    for folder in sorted(root.glob("step-*"))[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _over(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    _sync(path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_file(path: Path) -> tuple[int, str]:
    digest, size = xxhash.xxh3_64(), 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _digest_json(values: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in values.items() if key != "digest"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def _flatten_optimizer(state_dict: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, entries in state_dict["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}/{key}"] = value
            else:
                scalars.setdefault(str(index), {})[key] = value
    return tensors, {"groups": state_dict["param_groups"], "scalars": scalars}


def _unflatten_optimizer(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in values["scalars"].items()}
    for name, tensor in tensors.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = tensor
    return {"state": state, "param_groups": [dict(group) for group in values["groups"]]}
