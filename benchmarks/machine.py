"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence

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


def seconds_in_turns(rounds: int, steps: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds of each step, which it returns itself, in each round that counts: the first two do not."""
    found = [{name: step() for name, step in steps.items()} for _ in range(rounds)][2:]
    return {name: [seconds[name] for seconds in found] for name in steps}


def ratios(upper: Sequence[float], lower: Sequence[float], form: str = ".2f") -> str:
    """`median_and_range` of the rounds' ratios."""
    return median_and_range([a / b for a, b in zip(upper, lower, strict=True)], form)


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """The values' median with their range, as in "1.08 (1.03 to 1.20)"."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
