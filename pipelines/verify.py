"""Check every byte of a store, a corpus or a split, and say everything that is wrong and where. Exit status 2 where anything is.

python -m pipelines.verify runs/store
python -m pipelines.verify runs/store/pg19/train
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from data_prep.verification import find_splits, split_bytes, verify_split
from pipelines.terminal import cli


@dataclass(frozen=True)
class VerifyConfig:
    """What is checked."""

    store: tyro.conf.Positional[str]
    """A store, the folder of a corpus in it, or of a split; local or any URI that pyarrow.fs opens."""


def main(argv: list[str]) -> int:
    config = cli.parse(VerifyConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    folders = find_splits(config.store)
    sizes = {folder: split_bytes(folder) for folder in folders}
    console, start = Console(highlight=False, soft_wrap=True, markup=False), time.perf_counter()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    faults: list[str] = []
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stdout.isatty()
    ) as bar:
        task = bar.add_task("verifying", total=sum(sizes.values()))
        for folder in folders:
            bar.update(task, description=f"{folder.parent.name}/{folder.name}")
            found = verify_split(folder, lambda size: bar.advance(task, size))
            said = f"{len(found)} fault{'s' * (len(found) > 1)}" if found else "good"
            console.print(f"{folder}: {sizes[folder] / 1e6:,.1f} MB, {said}")
            for fault in found:
                console.print(f"  {fault}")
            faults += found
    seconds = time.perf_counter() - start
    total = sum(sizes.values())
    checked = f"{len(folders)} split{'s' * (len(folders) > 1)}, {total / 1e6:,.1f} MB in {seconds:.1f} s"
    if faults:
        print(f"error: {len(faults)} fault{'s' * (len(faults) > 1)} in {checked}", file=sys.stderr)
        return 2
    print(f"every byte is as it was written: {checked}")
    return 0


if __name__ == "__main__":
    cli.run(main)
