"""What a figure was measured on, and the rate of a plain matrix product there: the floor that models are held against."""

from __future__ import annotations

import os
import platform
import statistics
import time

import torch

from data_prep.errors import UserError


def describe() -> str:
    """One line: processor, cores, threads, versions."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), processor)
    except OSError:
        pass
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} × {processor}"
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def resident(field: str = "VmRSS", pid: int | str = "self") -> int:
    """Bytes of a process: `VmRSS` now, `RssAnon` without pages of files, `VmHWM` at most. Raises OSError and StopIteration where
    it is gone."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) * 1024


def check_rounds(rounds: int) -> None:
    """Raises UserError for so few that nothing is left of them."""
    if rounds < 3:
        raise UserError(f"--rounds is {rounds}, and the first two do not count: give 3 or more")


def matrix_rate(size: int = 2048, repeats: int = 7) -> float:
    """FLOP/s of a float32 product of two size² matrices: the median of some repeats."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds[1:])
