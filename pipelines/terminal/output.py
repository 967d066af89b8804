"""The output of commands: plain lines, and a progress bar if there is a terminal.

out = lines()
with bar("verifying", size, DownloadColumn(), console=out) as update:
    update(advance=4096)
    out.print("a line above the bar")
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


def lines() -> Console:
    """A console that prints sentences as they are, each on one line, and tables in 120 columns where there is no terminal."""
    return Console(highlight=False, soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else 120)


def print_wide(shown: Table, width: int) -> None:
    """Print a table in at least ``width`` columns: in a narrower terminal, or without one, its cells stay readable."""
    Console(width=max(Console().width, width), markup=False).print(shown)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters are shown as Python writes them."""
    return "".join(map(_printable, text))


def _printable(c: str) -> str:
    if c.isprintable() or c == "\n":
        return c
    return {"\t": " ", "\r": ""}.get(c, ascii(c)[1:-1])


def listing(lines: Mapping[str, str], width: int = 0) -> str:
    """Names with a line each, in two columns, as `--help` lists them; ``width``: least width of the names."""
    width = max([width, *map(len, lines)])
    return "\n".join(f"  {name:{width}}  {line}".rstrip() for name, line in lines.items())


def described(noun: str, classes: Mapping[str, type]) -> str:
    """A listing of classes, by the first lines of their docstrings."""
    return f"{noun}:\n{listing({name: first_line(each) for name, each in classes.items()})}"


def first_line(documented: type) -> str:
    """The first line of a class's docstring, without its full stop and without what stands in brackets at its end."""
    line = (documented.__doc__ or "").strip().partition("\n")[0]
    return re.sub(r"( \(.*\))?\.?$", "", line)


def discard() -> None:
    """Discard all further output: its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def bar(
    what: str, total: float | None, *columns: ProgressColumn, console: Console, stays: bool = False
) -> Iterator[Callable[..., None]]:
    """A bar while the block runs, on a terminal alone. Yields a function that moves it: `Progress.update` of rich, less the task.

    A column may show `{task.fields[detail]}`, which an update sets by ``detail=``.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=not stays, disable=not console.is_terminal) as progress:
        yield partial(progress.update, progress.add_task(what, total=total, detail=""))


@contextmanager
def pass_progress(title: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """`bar` with the time that has passed, on a terminal; else one line at the end."""
    console = Console()
    began = time.monotonic()
    with bar(title, total, TimeElapsedColumn(), console=console, stays=True) as update:
        yield update
    if not console.is_terminal:
        print(f"{title}: {time.monotonic() - began:.0f} s", flush=True)
