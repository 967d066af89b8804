"""Our own commands as jobs, which run as a user runs them. Some run side by side, those that are done are skipped, and all are
stopped and killed with this process.

    job = Job("verify mine", "verify", ("runs/store/text",), reads=(store,), log=Path("runs/logs/verify.log"))
    failed = run_jobs([job], at_once=2, record=JobRecord(Place.parse("runs/jobs.json")))

A job is done and current while its fingerprint equals the one in the record. The fingerprint covers its words, what it read and
what it wrote.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.credentials import without_credentials
from common.files import digest, parse_json
from common.lock import file_lock
from common.places import Place
from pipelines import python_path
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.terminal import cli
from pipelines.training.stopping import STOPPED_STATUS, asking_signals_to

FINAL = (0, 2, STOPPED_STATUS, cli.INTERRUPTED_STATUS)
"""Exit statuses after which a job is not tried again: done, a user's error, asked to stop, Ctrl-C."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Job:
    """A command of ours, and the places that it reads and writes."""

    name: str
    module: str
    words: tuple[str, ...]
    reads: tuple[Place | Path, ...] = ()
    writes: tuple[Place | Path, ...] = ()
    unhashed: tuple[str, ...] = ()
    """Words before the others, which the fingerprint leaves out: places of ``reads`` and ``writes``, options of tracking."""
    log: Path | None = None
    """The file that its output goes to; None: to the terminal."""
    may_write: tuple[Place | Path, ...] = ()
    """Places that it writes only with certain inputs."""

    @property
    def argv(self) -> list[str]:
        return [*self.unhashed, *self.words]

    def shown(self) -> str:
        """The command as it is typed, without credentials."""
        return f"python -m pipelines.{self.module} {shlex.join(map(without_credentials, self.argv))}"

    def own_error(self) -> str:
        """The last error that its newest attempt wrote to its log; "" if there is none, or no log."""
        if self.log is None or not self.log.exists():
            return ""
        attempt = self.log.read_text("utf-8", "replace").rpartition("\n$ ")[2]  # each begins with its command
        errors = [line.removeprefix("error: ") for line in attempt.splitlines() if line.startswith("error: ")]
        return errors[-1] if errors else ""

    def input_stamps(self) -> list[str]:
        """The stamps of the places that it reads."""
        return [content_stamp(Place.parse(place)) for place in self.reads]

    def fingerprint(self, inputs: Sequence[str] | None = None) -> str:
        """A hash of its words and of the contents of its places; "" if an output is missing or unknown.

        Args:
            inputs: the stamps of what it read, from before it began; by default as they are now.
        """
        written = [content_stamp(Place.parse(place)) for place in self.writes]
        if not written or not all(written):
            return ""
        perhaps = [content_stamp(Place.parse(place)) for place in self.may_write]
        stamps = [*(self.input_stamps() if inputs is None else inputs), *perhaps, *written]
        words = list(map(without_credentials, self.words))  # a changed password changes nothing of what was done
        return digest([self.module, words, stamps])


def content_stamp(place: Place) -> str:
    """A text that changes with a file or folder: by its newest checkpoint's record, else by names, sizes and times; "" if there
    is none, or if another command removes a file meanwhile.
    """
    if place.name == "checkpoints":
        newest = next(iter(RunFolder(place.parent).checkpoint_names()), "none")
        place = place / newest / "checkpoint.json"
    with contextlib.suppress(FileNotFoundError):  # another command writes there, and has renamed or removed a file
        if place.is_dir():
            files = [file for file in place.list(recursive=True, follow=True) if not file.is_dir]
            return digest(sorted((file.name, file.bytes, file.place.changed()) for file in files))
        if place.is_file() and place.name.endswith((".json", ".csv")):
            return place.xxh3()
        if place.is_file():
            return f"{place.name} {place.size()} {place.changed()}"
    return ""


@dataclass(frozen=True)
class JobRecord:
    """A file with the fingerprints of finished jobs, by their names."""

    file: Place

    def is_current(self, job: Job) -> bool:
        """Whether the job is done, and nothing has changed since."""
        kept = self._fingerprints().get(job.name)
        return bool(kept) and kept == job.fingerprint()

    def keep(self, job: Job, inputs: Sequence[str] | None = None) -> None:
        """Note that the job is done. ``inputs``: as for `Job.fingerprint`."""
        fingerprint = job.fingerprint(inputs)
        with file_lock(self.file.parent, "another command", patience=60.0):
            fingerprints = {**self._fingerprints(), job.name: fingerprint}
            self.file.write_atomically(json.dumps(fingerprints, indent=1).encode())

    def _fingerprints(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError):  # no file yet, or a damaged one: the commands skip what is done
            kept = parse_json(self.file.read_bytes())
            return kept if isinstance(kept, dict) else {}
        return {}


@dataclass
class _Attempt:
    """A job that runs."""

    job: Job
    process: subprocess.Popen[bytes]
    retries: int
    """How often it may fail and begin again."""
    inputs: list[str]
    """The stamps of what it reads, from before it began, since it may miss changes that are made while it runs."""
    began: float = field(default_factory=time.monotonic)
    signals: int = 0
    """Number of this process's signals that it has had."""

    def pass_on(self, asked: Sequence[int]) -> None:
        """Pass on signals that ask to stop, but no Ctrl-C that the job has had from the terminal."""
        for number in asked[self.signals :]:
            if number != signal.SIGINT or self.job.log:
                self.process.send_signal(number)
        self.signals = len(asked)


@dataclass
class _Queue:
    """The jobs that wait, those that run, and those that failed. `run_jobs` explains its options."""

    total: int
    at_once: int
    record: JobRecord | None
    retries: int
    in_turn: bool
    waiting: list[Job]
    running: list[_Attempt] = field(default_factory=list)
    failed: dict[Job, int] = field(default_factory=dict[Job, int])
    """Their exit statuses."""

    def has_room(self) -> bool:
        """Whether a job that waits could begin."""
        return bool(self.waiting) and len(self.running) < self.at_once

    def title(self, job: Job) -> str:
        """A job's name after the number of jobs that neither wait nor run."""
        return f"[{self.total - len(self.waiting) - len(self.running)}/{self.total}] {job.name}"

    def begin_next(self) -> None:
        """Begin the first of the jobs that wait, unless it is current."""
        job = self.waiting.pop(0)
        if self.record and self.record.is_current(job):
            print(f"{self.title(job)}: done before, and nothing has changed since", flush=True)
        else:
            self.begin(job, self.retries)

    def begin(self, job: Job, retries: int) -> None:
        if job.log is None:
            print(f"{self.title(job)}: {job.shown()}", flush=True)
        inputs = job.input_stamps()
        self.running.append(_Attempt(job, start_job(job, self.at_once), retries, inputs))

    def finished(self) -> list[_Attempt]:
        """The attempts among those that run whose process has ended."""
        return [attempt for attempt in self.running if attempt.process.poll() is not None]

    def settle(self, attempt: _Attempt, status: int) -> None:
        """Record a job that has ended well. Try one that failed again if it has a retry left, else keep its ``status``."""
        self.running.remove(attempt)
        job = attempt.job
        if status == 0:
            if self.record:
                self.record.keep(job, attempt.inputs)
            if job.log:
                print(f"{self.title(job)}: {cli.duration(time.monotonic() - attempt.began)}", flush=True)
        elif status not in FINAL and attempt.retries:
            print(f"{self.title(job)}: {ended(status)}; trying again", file=sys.stderr, flush=True)
            self.begin(job, attempt.retries - 1)
        else:
            self.failed[job] = status
            not_begun = self.waiting if self.in_turn else []
            print(f"{self.title(job)}: {failure(job, status, not_begun)}", file=sys.stderr, flush=True)
            if self.in_turn:
                self.waiting.clear()


def run_jobs(
    jobs: Sequence[Job], at_once: int = 1, record: JobRecord | None = None, retries: int = 0, in_turn: bool = False
) -> dict[Job, int]:
    """Run the jobs that are not current, ``at_once`` of them side by side. Returns the exit statuses of those that failed.

    When asked to stop, it passes that on to running jobs, waits for them, and begins no other.

    Args:
        record: lists the jobs that are done; each job that ends well is added.
        retries: times that a job is tried again where it fails, unless its status is FINAL.
        in_turn: each job needs those before it, so none begins after one that failed. No other work follows the last.

    Raises SystemExit with status 75 when asked to stop before all is done.
    """
    queue = _Queue(len(jobs), at_once, record, retries, in_turn, waiting=list(jobs))
    asked = list[int]()
    with asking_signals_to(lambda number, frame: asked.append(number)):
        while queue.running or (queue.waiting and not asked):
            while queue.has_room() and not asked:
                queue.begin_next()
            for attempt in queue.running:
                attempt.pass_on(asked)
            time.sleep(POLL_SECONDS)
            for attempt in queue.finished():
                queue.settle(attempt, exit_status(attempt.process.returncode, stopping=bool(asked)))
    if asked and (queue.waiting or not in_turn):
        print("stopped; the same command resumes here", file=sys.stderr)
        raise SystemExit(STOPPED_STATUS)
    return queue.failed


def exit_status(returncode: int, stopping: bool) -> int:
    """The exit status as a shell has it. A job that fails while we are ``stopping`` was stopped."""
    status = returncode if returncode >= 0 else 128 - returncode
    return STOPPED_STATUS if stopping and status not in FINAL else status


def failure(job: Job, status: int, not_begun: Sequence[Job]) -> str:
    """How a job failed, where its output is, and the jobs that do not begin because of it."""
    log = f", see {cli.shown(job.log)}" if job.log else ""
    others = f"; not begun: {', '.join(job.name for job in not_begun)}" if not_begun else ""
    why = job.own_error() if status == 2 else ""
    return f"{why or ended(status)}{log}{others}"


def ended(status: int) -> str:
    """An exit status in words."""
    if status in (STOPPED_STATUS, cli.INTERRUPTED_STATUS):
        return "asked to stop, and saved: the same command resumes here"
    if status == 2:
        return "cannot be done as asked; its own message says why"
    return f"killed by signal {status - 128}" if status > 128 else f"failed with exit status {status}"


def start_job(job: Job, at_once: int = 1) -> subprocess.Popen[bytes]:
    """Start a job's command with our own modules, whatever its working directory. It ends with this process, however that ends.

    Each of several jobs ``at_once`` gets its share of the threads. A job with a log has a session of its own, so that Ctrl-C on a
    terminal reaches this process alone.
    """
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        """Linux: kill the job when its parent is gone, so that a repeated command finds no process in a run's folder."""
        if sys.platform == "linux":
            libc.prctl(1, signal.SIGKILL)

    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // at_once, 1))} if at_once > 1 else {}
    if job.log:
        job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab", buffering=0) if job.log else contextlib.nullcontext() as log:
        if log:
            try:
                log.write(f"$ {job.shown()}\n".encode())
            except OSError as error:  # a full disk; the system's error of a write names no file
                raise OSError(error.errno, error.strerror, str(job.log)) from None
        return subprocess.Popen(
            [sys.executable, "-m", f"pipelines.{job.module}", *job.argv],
            env={**threads, **os.environ, "PYTHONPATH": python_path()},
            stdout=log,
            stderr=log and subprocess.STDOUT,
            start_new_session=log is not None,
            preexec_fn=end_with_parent,
        )
