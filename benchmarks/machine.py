"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from common.errors import UserError, nearest


def processors() -> str:
    """Number and name of the processors, as in "2 × AMD EPYC"."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), processor)
    except OSError:
        pass
    return f"{os.cpu_count()} × {processor}"


def describe() -> str:
    """One line: processor, cores, threads, versions."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processors()
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def resident(field: str = "VmRSS", pid: int | str = "self") -> int:
    """Resident bytes of a process: `VmRSS` now, `RssAnon` without pages of files, `VmHWM` the peak. Raises OSError or StopIteration
    if it has ended."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024


def check_presets(*names: str) -> None:
    """Raise UserError for a preset that is not there."""
    from pipelines.presets import PRESETS

    for name in names:
        if name not in PRESETS:
            raise UserError(
                f"there is no preset {name!r}: {nearest(name, PRESETS, 'python -m pipelines.train --presets lists them')}"
            )


def check_rounds(rounds: int) -> None:
    """Raises UserError for fewer than 3 rounds, since the first two do not count."""
    if rounds < 3:
        raise UserError(f"--rounds is {rounds}, and the first two do not count: give 3 or more")


def cpu_seconds(work: Callable[[], object]) -> float:
    """The processor's seconds for ``work``: other work beside it does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


def wall_seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of ``work``, for work that more than one thread shares."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def seconds_in_turns(
    rounds: int, steps: dict[str, Callable[[], float]], back_and_forth: bool = False
) -> dict[str, list[float]]:
    """Seconds of each step, which it returns itself, in each round that counts: the first two do not.

    ``back_and_forth``: every other round, from the first on, begins with the last step.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        backwards = back_and_forth and number % 2 == 0
        for name in reversed(steps) if backwards else steps:
            seconds[name].append(steps[name]())
    return {name: each[2:] for name, each in seconds.items()}


def ratios(upper: Sequence[float], lower: Sequence[float], form: str = ".2f") -> str:
    """`median_and_range` of the rounds' ratios."""
    return median_and_range([a / b for a, b in zip(upper, lower, strict=True)], form)


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """The values' median with their range, as in "1.08 (1.03 to 1.20)"."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
