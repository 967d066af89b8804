"""Saves a run's checkpoints without holding up the loop: a copy in memory is taken at once, and a thread writes it to the disk.

    saver = Saver(RunPlace.of(config).folder / "checkpoints", CheckpointConfig(every=200), world, lanes=8)
    saver.save(200, model=…, optimizer=…, per_lane=…, per_process=…, meta=…)     # returns when all of it is copied
    saver.close()                                                                # returns when it is on the disk

Each process has such a thread. It writes the file of its own lanes into `.step-00000200.<token>.tmp` and beside it a note of its
size and checksum. The thread of rank 0 writes the weights, waits for the notes of all the others, writes checkpoint.json, and
renames the folder. The threads need no collective: these belong to the loop. One save at a time: the next one waits for it.

Where the run is in a bucket, each thread uploads its file and note to `checkpoints/step-00000200.<token>/` there, and rank 0 the
run's records and then checkpoint.json, which makes it a checkpoint. The bucket has no folder that could be renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from data_prep.errors import UserError, first_cause, is_users
from data_prep.manifest import write_atomically
from data_prep.places import Place
from pipelines.checkpoints.checkpoint import (
    SCHEMA,
    Checkpoint,
    CheckpointError,
    digest_file,
    digest_json,
    flatten_optimizer,
    folder_of,
    folders,
    lanes_file,
    name_of,
    step_of,
)
from pipelines.checkpoints.run_place import RECORDS, RunPlace, upload
from pipelines.config.run import CheckpointConfig

PEER_SECONDS = 600.0
"""How long rank 0 waits for the files of the others: they write at the same time, so this is a folder that is not shared."""


class SaveError(Exception):
    """A checkpoint could not be written. Those before it are intact."""


class Unwritable(SaveError, UserError):
    """It cannot be written before a person has made room, or mended what is in the way."""


class Processes(Protocol):
    """The processes that save together; training.world.World is such."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def lanes(self, total: int, rank: int | None = None) -> tuple[int, int]: ...
    def any(self, flag: bool) -> bool: ...
    def first(self, number: int) -> int: ...


class Saver:
    """Saves the steps of one run. Every process makes one, and all call the same methods in the same order."""

    def __init__(
        self,
        root: Path,
        config: CheckpointConfig,
        world: Processes,
        lanes: int,
        run: RunPlace | None = None,
        on_disk: Callable[[int, Mapping[str, Any], str], None] = lambda step, meta, place: None,
    ) -> None:
        """
        Args:
            root: folder of the checkpoints; of a run in a bucket, where files wait for their upload.
            run: where the run is, if not in the folder of `root`.
            on_disk: told, by rank 0's thread, of each checkpoint that is complete: its step, its checkpoint.json, and where it is.
        """
        self._root, self._config, self._world, self._lanes, self._on_disk = root, config, world, lanes, on_disk
        self._run = run if run and not run.is_local else None
        number = world.first(secrets.randbits(31))
        self._token = f"{number:08x}"  # no process of an earlier start has it
        self._number = number if self._run else -1
        self._copies: dict[str, Tensor] = {}  # reused, so that memory stays as it is from the second save on
        self._thread: threading.Thread | None = None
        self._own_files_done, self._give_up = threading.Event(), threading.Event()
        self._error: SaveError | None = None
        root.mkdir(parents=True, exist_ok=True)
        if world.rank == 0:
            for stale in root.glob(".step-*"):
                shutil.rmtree(stale, ignore_errors=True)
            if self._run:
                _remove_unfinished(self._run)

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        per_lane: Mapping[str, Tensor],
        per_process: Mapping[str, Tensor],
        meta: Mapping[str, Any],
    ) -> str:
        """Copy what belongs to the checkpoint of a step, and have it written. Returns the folder or URI that it will be.

        Args:
            per_lane: of own lanes (first dimension: lane).
            per_process: what is this process's own.
            meta: what JSON holds of the rest; rank 0's counts.

        Raises SaveError when the one before could not be written and `on_failure` is "stop".
        """
        self._settle()
        own = {f"lanes/{key}": value for key, value in per_lane.items()}
        files = {lanes_file(*self._world.lanes(self._lanes), self._lanes): own | _under("process/", per_process)}
        values: dict[str, Any] = {}
        if self._world.rank == 0:
            tensors, scalars = flatten_optimizer(optimizer.state_dict())
            files |= {"model.safetensors": model.state_dict(), "optimizer.safetensors": tensors}
            values = {"schema": SCHEMA, "step": step, "world": self._world.size, "lanes": self._lanes}
            values = json.loads(json.dumps({**values, "optimizer": scalars, **meta}))  # a copy too
        copies = {name: self._copy(name, tensors) for name, tensors in files.items()}
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        self._own_files_done.clear()
        self._give_up.clear()
        self._thread = threading.Thread(target=self._write, args=(step, copies, values), name="checkpoint", daemon=True)
        self._thread.start()
        if self._run:
            return (self._run.checkpoints / name_of(step, self._number)).recorded
        return str(folder_of(self._root, step))

    def check(self) -> None:
        """Raises SaveError when a save has failed since, and `on_failure` is "stop"."""
        if self._error is not None and self._config.on_failure == "stop":
            raise self._error

    def close(self) -> None:
        """Wait for the last save. Raises SaveError when it failed, whatever `on_failure` is: there is no next one."""
        self._settle()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """The run has failed: the save that is under way may end if the other processes have written their files too."""
        if self._thread is not None:
            self._own_files_done.wait()
            self._thread.join(2.0)
            self._give_up.set()
            self._thread.join()

    def _settle(self) -> None:
        """Wait until no save is under way."""
        if self._thread is None:
            return
        self._own_files_done.wait()
        if self._world.any(self._error is not None):
            self._give_up.set()
        self._thread.join()
        self._thread = None
        self.check()

    def _copy(self, file: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in this machine's memory; those of a GPU are under way when this returns."""
        copies = {}
        for key, value in tensors.items():
            copy = self._copies.get(f"{file}/{key}")
            if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
                copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                self._copies[f"{file}/{key}"] = copy
            copies[key] = copy.copy_(value.detach(), non_blocking=True)
        return copies

    # The thread

    def _write(self, step: int, files: Mapping[str, Mapping[str, Tensor]], values: dict[str, Any]) -> None:
        folder = self._root / f".step-{step:08d}.{self._token}.tmp"
        self._error = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            notes = {name: _write_file(folder / name, tensors) for name, tensors in files.items()}
            target = self._target(step, folder)
            if self._run:
                for name in files:
                    upload(folder / name, target / name)
                    (folder / name).unlink()
                with contextlib.suppress(OSError):  # another process of this machine has files in it
                    folder.rmdir()
            if self._world.rank > 0:
                for name, note in notes.items():
                    _write_note(target, name, note)
        except Exception as error:  # whatever it is, the loop must hear of it
            self._failed(step, folder, error)
            return
        finally:
            self._own_files_done.set()
        if self._world.rank == 0:
            try:
                target = self._target(step, folder)
                values["files"] = notes | self._notes_of_the_others(target)
                values["digest"] = digest_json(values)
                data = json.dumps(values, indent=1).encode()
                if self._run:
                    self._commit_to_bucket(self._run, target, data)
                    place = target.recorded
                else:
                    self._commit(step, folder, data)
                    place = str(folder_of(self._root, step))
                self._on_disk(step, values, place)
            except Exception as error:
                self._failed(step, folder, error)

    def _target(self, step: int, folder: Path) -> Place:
        """Where the files of a checkpoint come together."""
        return self._run.checkpoints / name_of(step, self._number) if self._run else Place.parse(folder)

    def _notes_of_the_others(self, folder: Place) -> dict[str, Any]:
        """Size and checksum of the files of all other ranks, as they arrive."""
        deadline = time.monotonic() + PEER_SECONDS
        others = range(1, self._world.size)
        waited = [lanes_file(*self._world.lanes(self._lanes, rank), self._lanes) for rank in others]
        notes: dict[str, Any] = {}
        while missing := [name for name in waited if name not in notes]:
            if self._give_up.is_set() or time.monotonic() > deadline:
                kind = SaveError if self._give_up.is_set() else Unwritable
                raise kind(f"{missing[0]} was not written; is {folder.parent} shared by all workers?")
            for name in missing:
                note = _read_note(folder, name)
                if note and "failed" in note:
                    raise (Unwritable if note["users"] else SaveError)(note["failed"])
                if note:
                    notes[name] = note
            self._give_up.wait(0.01 if folder.is_local else 0.2)
        return notes

    def _commit_to_bucket(self, run: RunPlace, target: Place, data: bytes) -> None:
        run.publish(*RECORDS)  # a resumed run finds there the curve up to its checkpoint
        for file in target.list():
            if file.name.endswith(".note"):
                file.place.delete()
        (target / "checkpoint.json").write_atomically(data)
        try:
            prune_bucket(run, target.name, self._config)
        except OSError as error:
            print(f"warning: older checkpoints could not be removed: {error}", file=sys.stderr, flush=True)

    def _commit(self, step: int, folder: Path, data: bytes) -> None:
        for note in folder.glob(".*.note"):
            note.unlink()
        write_atomically(folder / "checkpoint.json", data)
        final = folder_of(self._root, step)
        if final.exists():  # the same step again after falling back: the new one takes its place
            remove(final)
        os.rename(folder, final)
        _sync(self._root)
        try:
            prune(self._root, step, self._config)
        except OSError as error:
            print(f"warning: older checkpoints could not be removed: {error}", file=sys.stderr, flush=True)

    def _failed(self, step: int, folder: Path, error: Exception) -> None:
        told = error if isinstance(error, SaveError) else f"rank {self._world.rank}: {first_cause(error)}"
        self._error = (Unwritable if is_users(error) else SaveError)(
            f"the checkpoint of step {step} could not be written ({told}); those before it are intact: make room or mend the "
            "cause, and repeat the command"
        )
        target = self._target(step, folder)
        if self._world.rank == 0:
            with contextlib.suppress(OSError):
                if self._run:
                    _remove_from_bucket(target)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            name = lanes_file(*self._world.lanes(self._lanes), self._lanes)
            (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # then rank 0 hears of it at the next save
                _write_note(target, name, {"failed": str(told), "users": is_users(error)})
        if self._config.on_failure == "warn" and (self._world.rank == 0 or not isinstance(error, SaveError)):
            print(f"warning: {self._error}", file=sys.stderr, flush=True)


def prune(root: Path, newest: int, config: CheckpointConfig) -> None:
    """Remove what need not be kept, now that the checkpoint of step ``newest`` is on the disk.

    Those of later steps were passed over as damaged when the run fell back: they neither count nor go.
    """
    whole: dict[int, Checkpoint] = {}
    older = [folder for folder in folders(root) if step_of(folder) <= newest]
    for folder in older:
        try:
            whole[step_of(folder)] = Checkpoint.glance(folder)
        except CheckpointError:
            continue  # its place is not taken from one that is whole
    kept = _kept(whole, config)
    for folder in older:
        if step_of(folder) not in kept and step_of(folder) in whole:
            remove(folder)


def prune_bucket(run: RunPlace, newest: str, config: CheckpointConfig) -> None:
    """The same for a run in a bucket, where other starts may have made a checkpoint of the same step."""
    whole: dict[int, Checkpoint] = {}
    older = [name for name in run.checkpoint_names() if step_of(Path(name)) <= step_of(Path(newest))]
    older.sort(key=lambda name: name != newest)  # stable: the newest first, then the others
    chosen: dict[int, str] = {}
    for name in older:
        try:
            meta = json.loads((run.checkpoints / name / "checkpoint.json").read_bytes())
            if meta["digest"] == digest_json(meta):
                whole.setdefault(step_of(Path(name)), Checkpoint(Path(name), meta))
                chosen.setdefault(step_of(Path(name)), name)
        except (ValueError, KeyError, TypeError, OSError):
            continue
    kept = _kept(dict(sorted(whole.items(), reverse=True)), config)
    for name in older:
        step = step_of(Path(name))
        replaced = name != newest and step == step_of(Path(newest))  # the same step again after falling back
        if replaced or (step in whole and (step not in kept or chosen[step] != name)):
            _remove_from_bucket(run.checkpoints / name)


def _remove_from_bucket(folder: Place) -> None:
    """Remove a checkpoint such that no half of it is ever taken for one."""
    (folder / "checkpoint.json").delete()
    folder.delete()


def _kept(whole: Mapping[int, Checkpoint], config: CheckpointConfig) -> set[int]:
    """The steps that are kept, of checkpoints given from the newest on."""
    kept = set(list(whole)[: config.keep]) | {s for s in whole if config.keep_every and s % config.keep_every == 0}
    return kept | set(best(whole)[: config.keep_best])


def _remove_unfinished(run: RunPlace) -> None:
    """Remove what a killed start has left of its uploads. One that lives on unseen finds its files gone, and its save fails."""
    finished = set(run.checkpoint_names())
    for file in run.checkpoints.list():
        if file.name.startswith("step-") and file.name not in finished:
            file.place.delete()


def best(checkpoints: Mapping[int, Checkpoint]) -> list[int]:
    """The steps that were validated at their own step, the best first."""
    scores = {}
    for step, checkpoint in checkpoints.items():
        validation = checkpoint.meta.get("validation") or {}
        if validation.get("step") == step:
            scores[step] = validation["bits_per_token"]
    return sorted(scores, key=lambda step: (scores[step], step))


def remove(folder: Path) -> None:
    """Remove a checkpoint such that no half of it is ever found under its name."""
    doomed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _write_file(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # the system's own, of which it keeps but the number, in its text
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error from None
    _sync(path)
    size, digest = digest_file(path)
    return {"bytes": size, "xxh3": digest}


def _write_note(folder: Place, name: str, note: Mapping[str, Any]) -> None:
    (folder / f".{name}.note").write_atomically(json.dumps(note).encode())


def _read_note(folder: Place, name: str) -> dict[str, Any] | None:
    try:
        return json.loads((folder / f".{name}.note").read_bytes())
    except FileNotFoundError:
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
