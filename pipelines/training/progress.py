"""Shows a run's progress by reading what rank 0 appends to the run's folder: metrics in `metrics.jsonl`, messages in
`logs/worker-0.log`; where the run is in a bucket, what rank 0 publishes there. A bar on a terminal, else plain lines; the same
whether the loop runs in this process or on another machine.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

from common.background import in_background
from common.places import Place
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.terminal.output import bar, discard
from pipelines.tracking.metrics import METRICS
from pipelines.tracking.metrics_file import Record, parse_record

POLL_SECONDS = 0.5
BUCKET_SECONDS = 3.0


@contextmanager
def messages_into_log(run: RunFolder, rank: int) -> Iterator[None]:
    """Send what this process prints to the end of its log in the run's folder, line by line."""
    name = f"logs/worker-{rank}.log"
    path = run.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    run.fetch(name)  # to append to it
    log = Messages(open(path, "ab", buffering=0), encoding="utf-8", write_through=True)  # noqa: SIM115
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


class Messages(io.TextIOWrapper):
    """A file of messages. A full disk raises no error here: the warning that it is full is such a message."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextmanager
def show_progress(run: Place, first_step: int, steps: int) -> Iterator[None]:
    """While the block runs, show each new record of the run's metrics and each new line of rank 0's messages."""
    earlier = {(record.step, record.time) for record in Tail(run / "metrics.jsonl").records(last=True)}
    with in_background(partial(_watch, run, first_step, steps, earlier), "progress"):
        yield


def _watch(run: Place, first_step: int, steps: int, earlier: set[tuple[int, int]], stop: threading.Event) -> None:
    """Show a run until ``stop``. ``earlier``: steps and times of the records of earlier starts, which are not shown."""
    console = Console()
    latest = {}
    first: Record | None = None
    metrics = Tail(run / "metrics.jsonl")
    messages = Tail(run / "logs" / "worker-0.log")
    with contextlib.suppress(OSError):
        messages.seen = messages.place.size()  # what is there already was shown before
    columns = (MofNCompleteColumn(), TextColumn("{task.fields[detail]}"), TimeElapsedColumn())
    shown: set[tuple[int, tuple[str, ...]]] = set()

    def show(update: Callable[..., None], last: bool) -> None:
        nonlocal first
        for line in messages.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for record in metrics.records(last):
            key = (record.step, tuple(record.metrics))
            if record.step <= first_step or (record.step, record.time) in earlier or key in shown:
                continue
            shown.add(key)
            latest.update(record.metrics)
            update(completed=record.step, detail=_metrics(latest))
            if not console.is_terminal:
                told = f"step {record.step}/{steps} of {run.name}  {_metrics(record.metrics)}"
                print(told + _time_left(first or record, record, steps), flush=True)
            first = first or record

    with bar(f"training {run.name}", steps, *columns, console=console, stays=True) as update:
        update(completed=first_step)
        finishing = False
        while not finishing:
            finishing = stop.is_set()
            try:
                show(update, finishing)
            except BrokenPipeError:  # the training continues
                discard()
            stop.wait(POLL_SECONDS if run.is_local else BUCKET_SECONDS)


class Tail:
    """Reads the lines that are appended to a file. Records in a bucket are read every few seconds, and at the ``last`` call."""

    def __init__(self, place: Place):
        self.place = place
        self.seen = 0
        self._last = b""
        """The line that ends at ``seen``. If another one does, the file was rewritten."""
        self._looked = 0.0

    def records(self, last: bool = False) -> list[Record]:
        """The metrics among the lines since the last call."""
        now = time.monotonic()
        if not (self.place.is_local or last) and now - self._looked < BUCKET_SECONDS:
            return []
        self._looked = now
        return list(filter(None, map(parse_record, self.lines())))

    def lines(self) -> list[str]:
        """The whole lines since the last call; from the beginning if the file was rewritten, as a resume does."""
        try:
            with self.place.open_random() as file:
                file.seek(min(self.seen - len(self._last), file.size()))
                data = file.read()
                if file.size() < self.seen or not data.startswith(self._last):
                    self.seen = 0
                    self._last = b""
                    file.seek(0)
                    data = file.read()
        except OSError:  # it is not there yet; or a bucket was silent for once
            return []
        new = data[len(self._last) :]
        whole = new[: new.rfind(b"\n") + 1]
        self.seen += len(whole)
        self._last = whole[whole.rfind(b"\n", 0, -1) + 1 :] or self._last
        return whole.decode("utf-8", "replace").splitlines()


def _time_left(first: Record, record: Record, steps: int) -> str:
    """An estimate from the time since the ``first`` record, before which Ray and the model started; empty for that one."""
    seconds = (record.time - first.time) / 1000
    if record.step <= first.step or seconds < 0:  # a clock may be set back
        return ""
    return f"  about {seconds / (record.step - first.step) * (steps - record.step):,.0f} s left"


def _metrics(metrics: Mapping[str, float]) -> str:
    told = (metric for metric in METRICS.values() if metric.console and metric.name in metrics)
    return "  ".join(metric.console.format(metrics[metric.name]) for metric in told)
