"""The durable record of a run's metrics, `<run>/metrics.jsonl`: one line per call of `Tracker.log`, whatever MLflow does.

    {"step": 120, "time": 1767225600000, "metrics": {"train/bits_per_token": 5.1, …}}        time in ms since the epoch

A line is one write, so that a reader (the progress bar, `pipelines.reports`) sees whole lines, and the death of the process
(not of the machine) loses none. A resumed run drops the lines after its checkpoint, because it makes these steps again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import parse_json, write_atomically


@dataclass(frozen=True)
class Record:
    """The metrics of one step."""

    step: int
    time: int
    """Milliseconds since the epoch. A record that is sent twice has the same time, by which MLflow recognizes it."""
    metrics: Mapping[str, float]

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def read_records(path: Path) -> list[Record]:
    """The whole lines of the file, in order; none where there is no file.

    Lines that are no records are skipped: a crash of the machine can tear the last line, and no metric is worth stopping for.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return list(filter(None, map(parse_record, lines)))


def parse_record(line: bytes | str) -> Record | None:
    """The record of a line; None where the line is none."""
    try:
        values = parse_json(line)
        return Record(int(values["step"]), int(values["time"]), {key: float(v) for key, v in values["metrics"].items()})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def drop_after(path: Path, step: int | None) -> tuple[list[Record], bool]:
    """Rewrite the file, atomically, without the records after ``step``, if any, and without torn lines. Returns what it kept, and
    whether there were later records.
    """
    found = read_records(path)
    kept = [record for record in found if step is None or record.step <= step]
    data = b"".join(record.line() for record in kept)
    if path.exists() and path.read_bytes() != data:
        write_atomically(path, data)
    return kept, len(kept) < len(found)


def opened_at_end(path: Path) -> int:
    """The descriptor of a file to which lines are appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":  # else a torn line would spoil the next one too
        os.write(descriptor, b"\n")
    return descriptor


class MetricsFile:
    """Appends records to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = opened_at_end(path)
        self._pending = b""  # what a full disk did not take

    def append(self, record: Record) -> None:
        """Write the record. Records that a full disk refuses are written with a later one."""
        full = bool(self._pending)
        self._pending += record.line()
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._descriptor, self._pending) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not full:
                print(f"warning: {self.path}: {error.strerror}: metrics wait for room", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write what is pending, and close the file. Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, self._pending)
            os.close(self._descriptor)
        self._descriptor = -1  # the number may soon be another file's
