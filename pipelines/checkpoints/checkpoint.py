"""Checkpoints: one folder per step with everything that a run needs to resume bit for bit; safetensors and JSON, no pickle.

    <run>/checkpoints/step-00000200/
        model.safetensors           weights                                              (rank 0)
        optimizer.safetensors       the optimizer's tensors; its scalars are in the JSON  (rank 0)
        lanes-0-4-of-8.safetensors  tensors of the process that owns lanes 0 to 3        (each rank)
            lanes/state/…           their State; lanes/digest: a digest of all that each has read
            process/…               its generators' state, its sums since the last log
        checkpoint.json             step, config, fingerprints, size and checksum of each file; written last

All ranks write into a temporary folder, and rank 0 renames it when every file is there (saving.py). So a folder with a checkpoint's
name is complete or damaged, and its checksums show which. This module reads checkpoints. A checkpoint lies between two steps, and a
step reads one segment of every lane, so no position inside a step is kept. Nothing draws from Python's or numpy's generators.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import xxhash
from safetensors import SafetensorError, safe_open

from common.errors import UserError
from common.files import parse_json
from common.places import Place
from data_prep.store import SegmentStore
from data_prep.tokenizers import TOKENIZER_FOLDER
from pipelines.checkpoints.errors import CheckpointError, PickledError, RemovedError

if TYPE_CHECKING:  # commands look for a run before they need torch, which takes seconds to import
    from torch import Tensor

SCHEMA = 2
NAME = re.compile(r"step-(\d+)(\.[0-9a-f]+)?")
"""Name of a checkpoint's folder; in a bucket with the token of the start that made it."""
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
"""Endings of files that may hold pickled objects, which run code when they are read."""


class Snapshot(Protocol):
    """A trained model at a step, as commands that use its weights see it: a `Checkpoint`, or an `Exported` folder (exported.py)."""

    @property
    def folder(self) -> Path: ...

    @property
    def meta(self) -> Mapping[str, Any]: ...

    @property
    def step(self) -> int: ...

    @property
    def digest(self) -> str:
        """A digest that changes with the weights."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights by the names of the model's state_dict. Raises CheckpointError where they cannot be read."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and the contents of its checkpoint.json."""

    folder: Path
    meta: Mapping[str, Any]
    weights_kept_in: Path | None = None
    """The folder from which its weights are read, if not its own (cloning.py)."""

    @property
    def step(self) -> int:
        return self.meta["step"]

    @property
    def digest(self) -> str:
        return self.meta["digest"]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read and verify every file. Raises CheckpointError naming what is wrong."""
        checkpoint = cls.open_unverified(folder)
        for name, expected in checkpoint.meta["files"].items():
            try:
                intact = Place.parse(folder / name).xxh3() == expected["xxh3"]
            except FileNotFoundError:
                raise CheckpointError(f"{folder} is incomplete: {name} was removed while it was read") from None
            if not intact:
                raise CheckpointError(f"{folder / name} is damaged: its checksum is not what checkpoint.json records")
        return checkpoint

    @classmethod
    def open_unverified(cls, folder: Path) -> Checkpoint:
        """Read checkpoint.json, and check that each file is there with its recorded size. Tensors are not read.

        Raises CheckpointError where it is damaged, and PermissionError where this user may not read it.
        """
        meta = read_meta(Place.parse(folder))
        for file in Place.parse(folder).list():  # empty if a newer checkpoint has just replaced it
            if file.name.endswith(PICKLES):
                check_is_no_pickle(folder / file.name)
        for name, expected in meta["files"].items():
            if name != Path(name).name:
                raise CheckpointError(f"{folder}/checkpoint.json names {name}, which is not a file of its folder")
            try:
                size = (folder / name).stat().st_size
                check_is_no_pickle(folder / name)
            except PermissionError:
                raise
            except OSError:
                raise CheckpointError(f"{folder} is incomplete: {name} is missing or unreadable") from None
            if size != expected["bytes"]:
                raise CheckpointError(f"{folder / name} is damaged: it has {size} bytes, not {expected['bytes']}")
        checkpoint = cls(folder, meta)
        covered = 0
        for first, last, _ in checkpoint._ranges():
            covered = last if first == covered else -1
        if covered != meta["lanes"] or {"model.safetensors", "optimizer.safetensors"} - meta["files"].keys():
            raise CheckpointError(f"{folder} is incomplete: its files do not cover its {meta['lanes']} lanes")
        return checkpoint

    def weights(self) -> dict[str, Tensor]:
        return load_tensors((self.weights_kept_in or self.folder) / "model.safetensors")

    def optimizer(self) -> dict[str, Any]:
        """The optimizer's state_dict."""
        values = self.meta["optimizer"]
        state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in values["scalars"].items()}
        for name, tensor in load_tensors(self.folder / "optimizer.safetensors").items():
            index, key = name.split("/", 1)
            state.setdefault(int(index), {})[key] = tensor
        return {"state": state, "param_groups": values["groups"]}

    def lanes(self, start: int, stop: int) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Tensors of the global lanes ``start`` to ``stop`` (not included), with the lane as first dimension, gathered from their
        files. The second value: tensors of the process that owned exactly these lanes (generators, sums), or None if none did.
        """
        import torch

        parts: dict[str, list[Tensor]] = {}
        for first, last, path in self._ranges():
            rows = slice(max(start, first) - first, min(stop, last) - first)
            if rows.start < rows.stop:
                tensors = load_tensors(path)
                if (first, last) == (start, stop):
                    return _under("lanes/", tensors), _under("process/", tensors)
                for name, value in _under("lanes/", tensors).items():
                    parts.setdefault(name, []).append(value[rows])
        return {name: torch.cat(values) for name, values in parts.items()}, None

    def total(self, name: str) -> Tensor:
        """The sum over all processes of the tensor ``process/<name>`` that each of them saved."""
        import torch

        return torch.stack([load_tensors(path)[f"process/{name}"] for *_, path in self._ranges()]).sum(0)

    def _ranges(self) -> list[tuple[int, int, Path]]:
        """First lane, end (not included) and file of each process, in the order of lanes."""
        found = [re.fullmatch(r"lanes-(\d+)-(\d+)-of-\d+\.safetensors", name) for name in self.meta["files"]]
        return sorted((int(match[1]), int(match[2]), self.folder / match[0]) for match in found if match)


def shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of a file's tensors by name. The tensors themselves are not read."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (not a mapping)


def lanes_file(start: int, stop: int, lanes: int) -> str:
    """Name of the file of the process that owns lanes ``start`` to ``stop`` (not included) of ``lanes``."""
    return f"lanes-{start}-{stop}-of-{lanes}.safetensors"


def name_of(step: int, token: str = "") -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}" + (f".{token}" if token else "")


def step_of(name: str) -> int:
    """The step in the name of a checkpoint's folder."""
    return int(name.removeprefix("step-").partition(".")[0])


def read_meta(folder: Place) -> dict[str, Any]:
    """The contents of checkpoint.json. Raises CheckpointError where it is missing, damaged or of another version, and
    PermissionError where this user may not read it.
    """
    path = folder / "checkpoint.json"
    try:
        meta = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder} is not a checkpoint: it has no checkpoint.json") from None
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(meta, dict) or meta.get("digest") != digest_json(meta):
        raise CheckpointError(f"{path} is damaged: its own checksum does not fit")
    if meta["schema"] != SCHEMA:
        raise CheckpointError(f"{path} was written by another version of Throughline: train under another --run")
    return meta


def check_fits(checkpoint: Snapshot, store: SegmentStore, override: str) -> None:
    """Raise UserError unless checkpoint and store have the same vocabulary and tokenizer. With an ``override``, the store must also
    be that of the training; the error names this option as the remedy.
    """
    meta = checkpoint.meta
    manifest = store.manifest
    if not meta["tokenizer"]:
        raise UserError(
            f"{checkpoint.folder / 'config.json'} does not record the tokenizer that the model was trained with: export its run "
            "again"
        )
    if meta["tokenizer"] != manifest.tokenizer.fingerprint:
        data = meta["config"]["data"]
        own = f"{data['store']}/{data['corpus']}/{TOKENIZER_FOLDER}" if data["store"] else checkpoint.folder
        raise UserError(
            f"{checkpoint.folder} was trained with another tokenizer ({meta['vocab_size']:,} ids) than {store.folder} was prepared "
            f"with ({manifest.tokenizer.name}, {store.vocab_size:,} ids): prepare the corpus with --tokenizer {own}"
        )
    if meta["vocab_size"] != store.vocab_size:
        raise UserError(
            f"{checkpoint.folder} has embeddings of {meta['vocab_size']} ids, and its tokenizer {store.vocab_size}: "
            f"call resize_token_embeddings({store.vocab_size}) on the model, and save it again"
        )
    if meta["store"] != manifest.fingerprint and override:
        raise UserError(
            f"{checkpoint.folder} was made from another store than {store.folder} (fingerprint {meta['store'][:12]}, "
            f"not {manifest.fingerprint[:12]}): use that store, or add {override}"
        )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises RemovedError where it is gone, CheckpointError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    except FileNotFoundError:
        raise RemovedError(
            f"{path} is gone: if its run trains, repeat the command, or train with a larger --checkpoint.keep"
        ) from None
    except SafetensorError as error:  # other OSErrors may be transient: the next start reads again
        raise CheckpointError(f"{path} cannot be read: {error}") from None


@contextmanager
def writing_tensors(path: Path) -> Iterator[None]:
    """Raise an OSError with this path where safetensors cannot write: its own error has the system's number in the text alone."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def check_is_no_pickle(path: Path) -> None:
    """Raise PickledError if a file's name or first bytes are a pickle's. A safetensors file begins with a length, then JSON."""
    with open(path, "rb") as file:
        head = file.read(9)
    begins = head.startswith((b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and head[8:] != b"{"
    if begins or path.name.endswith(PICKLES):
        raise PickledError(
            f"{path} may hold pickled objects, which run code when they are read: find out who put it there, and remove it"
        )


def digest_json(values: Mapping[str, Any]) -> str:
    """xxh3-64 of JSON values without their own key ``digest``."""
    rest = {key: value for key, value in values.items() if key != "digest"}
    return xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def flatten_optimizer(state_dict: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state_dict: its tensors under flat names (``<index>/<key>``); its groups and scalars for JSON."""
    from torch import Tensor

    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, entries in state_dict["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}/{key}"] = value
            else:
                scalars.setdefault(str(index), {})[key] = value
    return tensors, {"groups": state_dict["param_groups"], "scalars": scalars}
