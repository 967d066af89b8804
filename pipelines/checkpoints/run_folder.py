"""Where a run is: a folder, or a place in a bucket with a working folder on each machine that trains or reads it.

    run = RunFolder.parse("s3://bucket/runs/mine")
    run.folder                                        # where this machine's processes write and read files
    run.publish("metrics.jsonl")                      # from the working folder to the bucket
    run.fetch("metrics.jsonl")                        # and back
    run.open_checkpoint("step-00000200.0badc0de")     # through a verified copy in the working folder

Where the run is a folder, that is its working folder, and nothing is copied. In a bucket it looks the same:

    <run>/config.json  metrics.jsonl  mlflow_run.json  logs/  stop
    <run>/checkpoints/step-00000200.0badc0de/…        files of all ranks; checkpoint.json is written last (saving.py)

A folder without checkpoint.json is an upload that was not finished: it is no checkpoint. Its name ends in a token of the start that
made it, so that a process of an earlier start, which may live on unseen, can spoil nothing.
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
from pathlib import Path
from typing import TypeVar

import xxhash

from common.lock import file_lock
from common.places import TEMPORARY, Place
from data_prep.cache import cache_folder
from pipelines.checkpoints.checkpoint import NAME, Checkpoint, CheckpointError, PickledError, read_meta, step_of
from pipelines.config.run import TrainConfig

RECORDS = ("metrics.jsonl", "mlflow_run.json")
"""The files that rank 0 needs, besides a checkpoint, to continue the curve."""
PUBLISH_SECONDS = 10.0
"""How often a growing file is published again."""
UNUSED_SECONDS = 3600.0
CHUNK = 4 << 20
COMMITTED = re.compile(rf"{NAME.pattern}/checkpoint\.json")

Folder = TypeVar("Folder", Path, Place)

_publishing = threading.Lock()  # so that an older state of a file never follows a newer one
_published: dict[Path, tuple[int, int]] = {}


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, or its place in a bucket."""

    place: Place
    trains: bool = False
    """Whether this is a process that trains the run: others have another working folder, so as not to replace what it writes."""

    @staticmethod
    def parse(text: str | Path | Place) -> RunFolder:
        """For a process that reads the run. Raises PlaceError for a URI that nothing here opens; looks at no file."""
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
        """The working folder on this machine. Those of runs beside each other are beside each other."""
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
        """Copy files of the working folder that have changed since. Raises OSError where the bucket cannot be written."""
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
        """Publish a report's files, and remove those of the ``known`` names that it does not have: an earlier one left them."""
        names = [path.name for path in written]
        for name in sorted(set(known) - set(names)):
            (self.folder / name).unlink(missing_ok=True)
            (self.place / name).delete()
        self.publish(*names)

    def fetch(self, *names: str) -> None:
        """Bring files of the working folder to what the bucket has.

        Those that it has not are of another run that had this name, and are removed. But a bucket with checkpoints had a curve,
        which was published before them: where it has lost it, what is here is all that is left.
        """
        if self.is_local:
            return
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
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
        over = threading.Event()
        thread = threading.Thread(target=self._publish_until, args=(over, names), name="publish", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _publish_until(self, over: threading.Event, names: Sequence[str]) -> None:
        told = False
        with contextlib.suppress(OSError):  # what a process was publishing when it was killed
            for name in names:
                for file in (self.place / name).parent.list():
                    if file.name.startswith(f"{Path(name).name}.") and file.name.endswith(TEMPORARY):
                        file.place.delete()
        while True:
            last = over.wait(PUBLISH_SECONDS)
            try:
                self.publish(*names)
                told = False
            except OSError as error:
                if not told:
                    print(f"warning: {self.place} cannot be written ({error}): later", file=sys.stderr, flush=True)
                told = True
            if last:
                return

    # Checkpoints

    def checkpoint_names(self) -> list[str]:
        """Checkpoints, good or not, the newest first; in a bucket those whose upload was finished."""
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
        """Those that are complete by their records, the newest first; those of a bucket are not here to be opened."""
        found = []
        for name in self.checkpoint_names():
            folder = self.folder / "checkpoints" / name
            place = self.checkpoints / name
            with contextlib.suppress(CheckpointError):
                local = self.is_local
                found.append(Checkpoint.open_unverified(folder) if local else Checkpoint(folder, read_meta(place)))
        return found

    def beyond(self, step: int) -> dict[str, int]:
        """Checkpoints of later steps by name, and when they were written. A run that resumes at ``step`` found them damaged."""
        return {name: self._written(name) for name in self.checkpoint_names() if step_of(name) > step}

    def newest_step(self, passed_over: Mapping[str, int] | None = None) -> int:
        """By the names of checkpoints; 0 where there is none. Those that were ``passed_over`` count when they are made anew."""
        old = passed_over or {}
        names = [name for name in self.checkpoint_names() if name not in old or self._written(name) != old[name]]
        return max(map(step_of, names), default=0)

    def _written(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError):  # being made anew
            return (self.checkpoints / name).changed()
        return 0

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
                complaints.append(str(error))
        if complaints:
            raise CheckpointError(
                f"no checkpoint below {self.checkpoints} can be used ({complaints[0]}): restore one, or name another run"
            )
        return None, []

    def open_checkpoint(self, name: str) -> Checkpoint:
        """A verified checkpoint; one of a bucket through a copy in the working folder, which is made anew where it is damaged.
        Copies that nobody has opened for an hour are removed when another one is made.

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
                    with contextlib.suppress(FileNotFoundError):  # a run that is training has just taken it away
                        copy(file.place, Place.parse(folder / file.name))
            return Checkpoint.open(folder)


def root_of(folder: Folder, run: str) -> Folder:
    """The folder of all runs, which holds MLflow's file, by a run's folder and name: a trial is called <sweep>/trials/<id>."""
    above = folder
    for part in reversed(run.split("/")):
        if above.name != part:
            return folder.parent
        above = above.parent
    return above


def find_run(text: str | Path) -> tuple[RunFolder, str]:
    """The run at a path or URI, and the checkpoint's name where that is what it names. Raises CheckpointError where nothing is."""
    place = Place.parse(text)
    if not place.is_dir():
        what = "is no folder" if place.exists() else "does not exist"
        near = difflib.get_close_matches(place.name, [file.name for file in place.parent.list() if file.is_dir], n=1)
        remedy = f"did you mean {place.parent / near[0]}?" if near else "name the folder of a run or of a checkpoint"
        raise CheckpointError(f"{text if place.is_local else place} {what}: {remedy}")
    if (place / "checkpoint.json").exists():
        return RunFolder(place.parent.parent), place.name
    if (place / "sweep.json").exists():
        raise CheckpointError(
            f"{place} is a sweep: name the folder of one of its trials; its best.json says which is the best"
        )
    return RunFolder(place), ""


def upload(path: Path, place: Place) -> None:
    """Copy a file to a place where nothing stands, whatever its size: it is whole there or not at all."""
    with open(path, "rb") as file, place.open_output() as stream:
        shutil.copyfileobj(file, stream, CHUNK)


def copy(source: Place, target: Place) -> None:
    """Copy a file in the place of what stands there; another process may do so at the same time. Raises FileNotFoundError."""
    with source.open_stream() as file, target.writing() as stream:
        shutil.copyfileobj(file, stream, CHUNK)
