"""Where a run is: a folder, or a place in a bucket with a working folder on each machine that trains or reads it.

    run = RunFolder.parse("s3://bucket/runs/mine")
    run.folder                                        # where this machine's processes write and read files
    run.publish("metrics.jsonl")                      # from the working folder to the bucket
    run.fetch("metrics.jsonl")                        # and back
    run.open_checkpoint("step-00000200.0badc0de")     # through a verified copy in the working folder

A local run's folder is its working folder, and nothing is copied. In a bucket the layout is the same:

    <run>/config.json  metrics.jsonl  mlflow_run.json  logs/  stop
    <run>/checkpoints/step-00000200.0badc0de/…        files of all ranks; checkpoint.json is written last (saving.py)

A checkpoint's folder without checkpoint.json is an unfinished upload and no checkpoint. Its name ends in a token of the start that
made it, so that a process of an earlier start, which may still be alive, cannot spoil it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from common.background import in_background
from common.errors import sentence
from common.lock import file_lock
from common.places import TEMPORARY, Place
from data_prep.cache import cache_folder
from pipelines.checkpoints.checkpoint import NAME, Checkpoint, read_meta, step_of
from pipelines.checkpoints.errors import CheckpointError, PickledError, RemovedError, retry_if_removed
from pipelines.checkpoints.nearby import remedy_near
from pipelines.config.run import REPORTS, TrainConfig

TRAIN_FIRST = "train the run first, or name a checkpoint's folder"
"""The remedy where a folder holds no checkpoint."""
RECORDS = ("metrics.jsonl", "mlflow_run.json")
"""The files that rank 0 needs, besides a checkpoint, to continue the curve."""
PUBLISH_SECONDS = 10.0
"""How often a growing file is published again."""
UNUSED_SECONDS = 3600.0
"""Age at which a local copy of a bucket's checkpoint may be removed, counted from when it was last opened."""
CHUNK = 4 << 20
COMMITTED = re.compile(rf"{NAME.pattern}/checkpoint\.json")
"""The path, below checkpoints/, that shows that a checkpoint's upload to a bucket was finished."""

Folder = TypeVar("Folder", Path, Place)

_publishing = threading.Lock()  # so that an older state of a file never replaces a newer one
_published: dict[Path, tuple[int, int]] = {}


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, or its place in a bucket."""

    place: Place
    trains: bool = False
    """Whether this process trains the run. Other processes have another working folder, to spare the trainer's files."""

    @staticmethod
    def parse(text: str | Path | Place) -> RunFolder:
        """The folder of a run that this process only reads. Looks at no file. Raises PlaceError for an unknown kind of URI."""
        return RunFolder(Place.parse(text))

    @staticmethod
    def of(config: TrainConfig) -> RunFolder:
        """The folder of a run that this process trains."""
        return RunFolder(Place.parse(config.root) / config.run, trains=True)

    @property
    def is_local(self) -> bool:
        return self.place.is_local

    @property
    def folder(self) -> Path:
        """The working folder on this machine. Runs in one folder have their working folders in one folder, too."""
        if self.is_local:
            return Path(self.place.path)
        parent = self.place.parent
        root = f"{parent.name or 'root'}-{xxhash.xxh3_64_hexdigest(parent.recorded.encode())[:8]}"
        return cache_folder() / ("runs" if self.trains else "read") / root / self.place.name

    @property
    def checkpoints(self) -> Place:
        return self.place / "checkpoints"

    # Files

    def publish(self, *names: str) -> None:
        """Copy working files that changed since their last copy to the bucket. Raises OSError where it cannot be written."""
        if self.is_local:
            return
        with _publishing:
            for name in names:
                path = self.folder / name
                with contextlib.suppress(FileNotFoundError):
                    state = (path.stat().st_size, path.stat().st_mtime_ns)
                    if _published.get(path) != state:
                        copy(Place.parse(path), self.place / name)
                        _published[path] = state

    def publish_report(self, written: Sequence[Path], known: Sequence[str]) -> None:
        """Publish a report's files, and remove files with other ``known`` names: an earlier report left them."""
        names = [path.name for path in written]
        for name in sorted(set(known) - set(names)):
            (self.folder / name).unlink(missing_ok=True)
            (self.place / name).delete()
        self.publish(*names)

    def fetch(self, *names: str) -> None:
        """Copy files from the bucket to the working folder.

        Files that the bucket lacks come from another run of this name, and are removed here. But a bucket with checkpoints had a
        curve, which was published before them. If the bucket has lost it, the local metrics.jsonl is the only copy and stays. A
        local log stays if it continues the bucket's: its last lines, such as the stacks of a hang, were not published in time.
        """
        if self.is_local:
            return
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                local = path.read_bytes() if path.suffix == ".log" and path.exists() else None
                if local is None or not local.startswith((self.place / name).read_bytes()):
                    copy(self.place / name, Place.parse(path))
            except FileNotFoundError:
                if name != "metrics.jsonl" or not self.checkpoint_names():
                    path.unlink(missing_ok=True)

    @contextmanager
    def published(self, *names: str) -> Iterator[None]:
        """Publish files while the block runs, every few seconds, and at its end."""
        if self.is_local:
            yield
            return
        with in_background(partial(self._publish_until, names), "publish"):
            yield

    def _publish_until(self, names: Sequence[str], over: threading.Event) -> None:
        warned = False
        with contextlib.suppress(OSError):  # partial files of a process that was killed while publishing
            for name in names:
                for file in (self.place / name).parent.list():
                    if file.name.startswith(f"{Path(name).name}.") and file.name.endswith(TEMPORARY):
                        file.place.delete()
        while True:
            last = over.wait(PUBLISH_SECONDS)
            try:
                self.publish(*names)
                warned = False
            except OSError as error:
                if not warned:
                    told = f"warning: {self.place} cannot be written ({sentence(error)}): later"
                    print(told, file=sys.stderr, flush=True)
                warned = True
            if last:
                return

    # Checkpoints

    def checkpoint_names(self) -> list[str]:
        """Names of the checkpoints, damaged or not, the newest first; in a bucket those whose upload was finished."""
        kind = NAME if self.is_local else COMMITTED
        found = (kind.fullmatch(file.name) for file in self.checkpoints.list(recursive=not self.is_local))
        names = [match[0].removesuffix("/checkpoint.json") for match in found if match]
        return sorted(names, key=lambda name: (step_of(name), name), reverse=True)

    def unfinished(self) -> list[Place]:
        """Unfinished saves: those being written, and those that a killed start has left."""
        names = self.checkpoint_names()
        beginning = ".step-" if self.is_local else "step-"
        found = [file for file in self.checkpoints.list() if file.is_dir and file.name.startswith(beginning)]
        return [file.place for file in found if file.name not in names]

    def complete_checkpoints(self) -> list[Checkpoint]:
        """Checkpoints that are complete by their records, the newest first."""
        return self.examined()[0]

    @retry_if_removed
    def examined(self) -> tuple[list[Checkpoint], list[str]]:
        """Checkpoints that are complete by their records (in a bucket: their meta), newest first; a sentence for each other one."""
        complete: list[Checkpoint] = []
        complaints: list[str] = []
        for name in self.checkpoint_names():
            folder = self.folder / "checkpoints" / name
            try:
                if self.is_local:
                    complete.append(Checkpoint.open_unverified(folder))
                else:
                    complete.append(Checkpoint(folder, read_meta(self.checkpoints / name)))
            except (CheckpointError, PermissionError) as error:
                self.check_is_there(name, error)
                complaints.append(sentence(error))
        return complete, complaints

    def beyond(self, step: int) -> dict[str, int]:
        """Names of checkpoints after ``step``, and when each was written. A run that resumes at ``step`` found them damaged."""
        return {name: self._written(name) for name in self.checkpoint_names() if step_of(name) > step}

    def newest_step(self, passed_over: Mapping[str, int] | None = None) -> int:
        """Step of the newest checkpoint by name; 0 without one. One that was ``passed_over`` counts once it is written again."""
        old = passed_over or {}
        names = [name for name in self.checkpoint_names() if name not in old or self._written(name) != old[name]]
        return max(map(step_of, names), default=0)

    def _written(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError):  # it is being written again
            return (self.checkpoints / name).changed()
        return 0

    @retry_if_removed
    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is complete and undamaged, and a sentence for each newer one that is not.

        Raises CheckpointError when there are checkpoints and none of them is good, PickledError when one holds a pickle.
        """
        complaints: list[str] = []
        for name in self.checkpoint_names():
            try:
                return self.open_checkpoint(name), complaints
            except PickledError:
                raise
            except CheckpointError as error:
                self.check_is_there(name, error)
                complaints.append(str(error))
        if complaints:
            raise CheckpointError(
                f"no checkpoint below {self.checkpoints} can be used ({complaints[0]}): restore one, or name another run"
            )
        return None, []

    def check_is_there(self, name: str, error: Exception) -> None:
        """Raise RemovedError if a checkpoint could not be read, with this error, because it was removed meanwhile."""
        if name not in self.checkpoint_names():
            raise RemovedError(str(error)) from error

    def open_checkpoint(self, name: str) -> Checkpoint:
        """Open and verify a checkpoint. One in a bucket is copied to the working folder first; a damaged copy is made again. Making
        a copy removes other copies that nobody has opened for an hour.

        Raises CheckpointError naming what is wrong.
        """
        folder = self.folder / "checkpoints" / name
        if self.is_local:
            return Checkpoint.open(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.parent / ".fetching", "another process", patience=3600):
            with contextlib.suppress(CheckpointError):
                found = Checkpoint.open(folder)
                os.utime(folder)
                return found
            for other in folder.parent.glob("step-*"):
                if other == folder or other.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            for file in (self.checkpoints / name).list():
                if not file.is_dir and not file.name.startswith(".") and not file.name.endswith(TEMPORARY):
                    folder.mkdir(exist_ok=True)
                    with contextlib.suppress(FileNotFoundError):  # the training run has just removed it
                        copy(file.place, Place.parse(folder / file.name))
            return Checkpoint.open(folder)


def root_of(folder: Folder, run: str) -> Folder:
    """The folder of all runs, which holds MLflow's file, from a run's folder and name. A trial's name is <sweep>/trials/<id>."""
    above = folder
    for part in reversed(run.split("/")):
        if above.name != part:
            return folder.parent
        above = above.parent
    return above


def reports_of(run: RunFolder) -> Place:
    """The folder of reports beside a run, or beside the sweep that it is a trial of."""
    sweep = run.place.parent.parent
    beside = sweep if is_sweep(sweep) else run.place
    return beside.parent / REPORTS


def is_sweep(place: Place) -> bool:
    """Whether `pipelines.tune` wrote the folder."""
    return (place / "sweep.json").is_file()


def find_run(text: str | Path) -> tuple[RunFolder, str]:
    """The run at a path or URI, and the checkpoint's name if the path is one's. Raises CheckpointError where there is neither."""
    place = Place.parse(text)
    named = str(text) or place.path if place.is_local else place
    if not place.is_dir():
        what = "is no folder" if place.exists() else "does not exist"
        near = difflib.get_close_matches(place.name, [file.name for file in place.parent.list() if file.is_dir], n=1)
        remedy = f"did you mean {place.parent / near[0]}?" if near else "name the folder of a run or of a checkpoint"
        raise CheckpointError(f"{named} {what}: {remedy}")
    if (place / "checkpoint.json").exists():
        return RunFolder(place.parent.parent), place.name
    if is_sweep(place):
        raise CheckpointError(
            f"{place} is a sweep: name the folder of one of its trials; its best.json says which is the best"
        )
    if not (place / "checkpoints").is_dir() and not (place / "config.json").exists():
        remedy = remedy_near(place, TRAIN_FIRST)
        raise CheckpointError(f"{named} holds no checkpoint: {remedy}")
    return RunFolder(place), ""


def upload(path: Path, place: Place) -> None:
    """Copy a file of any size to a new place. It is whole there, or not there at all."""
    with open(path, "rb") as file, place.open_output() as stream:
        shutil.copyfileobj(file, stream, CHUNK)


def copy(source: Place, target: Place) -> None:
    """Copy a file, replacing the target. Other processes may do so at the same time. Raises FileNotFoundError."""
    with source.open_stream() as file, target.writing() as stream:
        shutil.copyfileobj(file, stream, CHUNK)
