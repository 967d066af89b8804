"""Saves a run's checkpoints without holding up the loop: a copy in memory is taken at once, and a thread writes it to the disk.

    saver = Saver(RunFolder.of(config), CheckpointConfig(every=200), world, lanes=8)
    saver.save(200, model=…, optimizer=…, per_lane=…, per_process=…, meta=…)     # returns when all of it is copied
    saver.close()                                                                # returns when it is on the disk

Each process has such a thread. It writes the file of its own lanes and, beside it, a note of the file's size and checksum. The
thread of rank 0 also writes the weights, waits for the notes of all others, and writes checkpoint.json, which completes the
checkpoint. The threads use no collectives: these belong to the loop. One save runs at a time; the next one waits for it.

All write into one folder, whose name holds a random token of this start of the run, so that no other start writes there. In a local
folder it is `.step-00000200.<token>.tmp`, and is renamed to `step-00000200` in the end. In a bucket, where nothing can be renamed,
it is `checkpoints/step-00000200.<token>/`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from common.errors import UserError, first_cause, is_users
from common.places import Place, sync
from pipelines.checkpoints.checkpoint import (
    SCHEMA,
    digest_json,
    flatten_optimizer,
    lanes_file,
    name_of,
    writing_tensors,
)
from pipelines.checkpoints.retention import give_name, prune, remove
from pipelines.checkpoints.run_folder import RECORDS, RunFolder, upload
from pipelines.config.run import CheckpointConfig

PEER_SECONDS = 600.0
"""Seconds that rank 0 waits for the files of the others. All write at the same time, so a longer wait means an unshared folder."""


class SaveError(Exception):
    """A checkpoint could not be written. Those before it, if any, are intact."""


class Unwritable(SaveError, UserError):
    """A checkpoint that cannot be written until a person makes room or removes the obstacle."""


class Processes(Protocol):
    """The interface of the processes that save together; training.world.World has it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def lanes(self, total: int, rank: int) -> tuple[int, int]:
        """First lane of a rank and the end (not included), of ``total`` lanes."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process. All must call this."""
        ...

    def broadcast_str(self, text: str) -> str:
        """Rank 0's text. All must call this."""
        ...


class Saver:
    """Saves the steps of one run. Every process makes one, and all call the same methods in the same order."""

    def __init__(
        self,
        run: RunFolder,
        config: CheckpointConfig,
        world: Processes,
        lanes: int,
        on_disk: Callable[[int, Mapping[str, Any], str], None] | None = None,
    ) -> None:
        """``on_disk``: called by rank 0's thread for each complete checkpoint, with its step, its checkpoint.json and its place."""
        self._run = run
        self._config = config
        self._world = world
        self._lanes = lanes
        self._on_disk = on_disk
        self._files = [lanes_file(*world.lanes(lanes, rank), lanes) for rank in range(world.size)]
        self._token = world.broadcast_str(secrets.token_hex(4))  # no process of an earlier start has it
        self._copies: dict[str, Tensor] = {}  # reused, so that memory stays as it is from the second save on
        self._thread: threading.Thread | None = None
        self._own_files_done = threading.Event()
        self._give_up = threading.Event()
        self._error: SaveError | None = None
        self._together: Place | None = None
        """Where the files of all ranks of the newest save meet."""
        left = run.unfinished() if world.rank == 0 else []
        if not run.is_local:  # each machine has a working folder of its own
            left += RunFolder.parse(run.folder).unfinished()
        # A process of an earlier start that lives on unseen finds its files gone, and its save fails.
        for place in left:
            if self._token not in place.name:
                place.delete()

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        per_lane: Mapping[str, Tensor],
        per_process: Mapping[str, Tensor],
        meta: Mapping[str, Any],
    ) -> None:
        """Copy the contents of a step's checkpoint, and have the thread write them. ``per_lane``: tensors of own lanes (first
        dimension: lane). ``per_process``: tensors of this process. ``meta``: further values for JSON, taken from rank 0.

        Raises SaveError when the previous save failed and `on_failure` is "stop".
        """
        self._settle()
        own = {f"lanes/{key}": value for key, value in per_lane.items()}
        own |= {f"process/{key}": value for key, value in per_process.items()}
        files = {self._files[self._world.rank]: own}
        values: dict[str, Any] = {}
        if self._world.rank == 0:
            tensors, scalars = flatten_optimizer(optimizer.state_dict())
            files |= {"model.safetensors": model.state_dict(), "optimizer.safetensors": tensors}
            values = {"schema": SCHEMA, "step": step, "world": self._world.size, "lanes": self._lanes}
            values = json.loads(json.dumps({**values, "optimizer": scalars, **meta}))  # a copy, as of the tensors
        copies = {name: self._copy(name, tensors) for name, tensors in files.items()}
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        self._own_files_done.clear()
        self._give_up.clear()
        self._thread = threading.Thread(target=self._write, args=(step, copies, values), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise SaveError when the last save has failed and `on_failure` is "stop"."""
        if self._error is not None and self._config.on_failure == "stop":
            raise self._error

    def close(self) -> None:
        """Wait for the last save. Raises SaveError when it failed, whatever `on_failure` is: there is no next one."""
        self._settle()
        if self._error is not None:
            raise self._error

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint, 0 where there is none; None where the bucket does not answer."""
        with contextlib.suppress(OSError):
            return self._run.newest_step()
        return None

    def abandon(self) -> None:
        """The run ends, perhaps by an error. Finish the save under way, but wait for other processes only two seconds more."""
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
        if self._error is not None and self._together is not None and self._world.rank == 0:
            with contextlib.suppress(OSError):  # a silent bucket: the next start removes it
                self._together.delete()  # a rank may have written after rank 0 had removed the rest
        self.check()

    def _copy(self, file: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of tensors in this machine's memory. Copies from a GPU may still be under way when this returns."""
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
        """Write this process's files; rank 0 then completes the checkpoint. An error is kept for the loop (`_failed`)."""
        run = self._run
        checkpoint = name_of(step, self._token)
        # `staged`: where this process writes. `together`: where the files of all meet. For a bucket, each process writes into a
        # folder of its own: the processes of one machine share the working folder, and each removes what it has uploaded.
        own = "" if run.is_local else f".{self._world.rank}"
        staged = run.folder / "checkpoints" / f".{checkpoint}{own}.tmp"
        together = Place.parse(staged) if run.is_local else run.checkpoints / checkpoint
        self._together = together
        self._error = None
        try:
            # A local run's folder is there since the start of the run. Where somebody has removed it, saving fails: without its
            # config.json a checkpoint could not be used.
            staged.parent.mkdir(parents=not run.is_local, exist_ok=True)
            staged.mkdir(exist_ok=True)
            notes = {name: _write_file(staged / name, tensors) for name, tensors in files.items()}
            if not run.is_local:
                for name in files:
                    upload(staged / name, together / name)
                shutil.rmtree(staged)
            if self._world.rank > 0:
                for name, note in notes.items():
                    _note(together, name).write_atomically(json.dumps(note).encode())
            else:
                self._own_files_done.set()
                values["files"] = notes | self._notes_of_the_others(together)
                values["digest"] = digest_json(values)
                self._commit(step, together, values)
        except Exception as error:  # of any kind: the loop must learn of it
            self._failed(step, error, staged, together)
        finally:
            self._own_files_done.set()

    def _notes_of_the_others(self, folder: Place) -> dict[str, Any]:
        """Size and checksum of the files of all other ranks, as they arrive."""
        deadline = time.monotonic() + PEER_SECONDS
        notes: dict[str, Any] = {}
        missing = self._files[1:]
        while True:
            late = time.monotonic() > deadline
            given_up = self._give_up.is_set()  # read before the notes: by then a failed rank has written its note
            for name in missing:
                with contextlib.suppress(FileNotFoundError):
                    note = json.loads(_note(folder, name).read_bytes())
                    if "failed" in note:
                        raise (Unwritable if note["users"] else SaveError)(note["failed"])
                    notes[name] = note
            missing = [name for name in missing if name not in notes]
            if not missing:
                return notes
            if given_up or late:
                kind = SaveError if given_up else Unwritable
                raise kind(f"{missing[0]} was not written; is {folder.parent} shared by all workers?")
            self._give_up.wait(0.01 if folder.is_local else 0.2)

    def _commit(self, step: int, together: Place, values: Mapping[str, Any]) -> None:
        """Complete the checkpoint by writing checkpoint.json, its last file. A local folder then gets its final name."""
        self._run.publish(*RECORDS)  # so that the bucket has the curve up to the checkpoint of a resumed run
        for file in together.list():
            if file.name.endswith(".note"):
                file.place.delete()
        (together / "checkpoint.json").write_atomically(json.dumps(values, indent=1).encode())
        place = together
        if self._run.is_local:
            place = self._run.checkpoints / name_of(step)
            give_name(together, place)
        try:
            prune(self._run, place.name, self._config)
        except OSError as error:
            print(f"warning: older checkpoints could not be removed: {error}", file=sys.stderr, flush=True)
        if self._on_disk:
            self._on_disk(step, values, place.recorded)

    def _failed(self, step: int, error: Exception, staged: Path, together: Place) -> None:
        """Keep an error for the loop and remove what was written. A rank other than 0 leaves a note, which rank 0 waits for."""
        told = error if isinstance(error, SaveError) else f"rank {self._world.rank}: {first_cause(error)}"
        kept = "no other one was saved" if self.newest_step() == 0 else "those before it are intact"
        self._error = (Unwritable if is_users(error) else SaveError)(
            f"the checkpoint of step {step} could not be written ({told}); {kept}: make room or correct the cause, and repeat the "
            "command"
        )
        if self._world.rank == 0:
            shutil.rmtree(staged, ignore_errors=True)
            if not self._run.is_local:
                with contextlib.suppress(OSError):
                    remove(together)
        else:
            name = self._files[self._world.rank]
            (staged / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # otherwise rank 0 learns of it at the next save
                note = {"failed": str(told), "users": is_users(error)}
                _note(together, name).write_atomically(json.dumps(note).encode())
        if self._config.on_failure == "warn" and (self._world.rank == 0 or not isinstance(error, SaveError)):
            print(f"warning: {self._error}", file=sys.stderr, flush=True)


def _write_file(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    with writing_tensors(path):
        save_file(dict(tensors), path)
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors writes for its owner alone, whatever the umask
    sync(path)
    return {"bytes": path.stat().st_size, "xxh3": Place.parse(path).xxh3()}


def _note(folder: Place, name: str) -> Place:
    """File with the size and checksum of another rank's file, or the reason why there is none."""
    return folder / f".{name}.note"
