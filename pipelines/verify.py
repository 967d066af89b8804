"""Check every byte of a store, a corpus or a split, and report every fault and its place. The exit status is 2 if there is any.

python -m pipelines.verify runs/store
python -m pipelines.verify runs/store/pg19/train
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.progress import DownloadColumn, TransferSpeedColumn

from common.errors import UserError
from data_prep.verification import find_splits, split_bytes, verify_split
from pipelines.terminal import cli
from pipelines.terminal.output import bar, lines
from pipelines.terminal.tables import counted


@dataclass(frozen=True)
class VerifyConfig:
    """What is checked."""

    store: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STORE")]
    """A store, the folder of a corpus in it, or of a split; local or any URI that pyarrow.fs opens."""

    def __post_init__(self) -> None:
        if not self.store:
            raise UserError("STORE is empty: give a store, the folder of a corpus in it, or of a split")


def main(argv: list[str]) -> int:
    """Verify every byte of stores. Returns 2 where something is wrong."""
    config = cli.parse(VerifyConfig, argv, __doc__)
    folders = find_splits(config.store)
    sizes = {folder: split_bytes(folder) for folder in folders}
    total = sum(sizes.values())
    console = lines()
    start = time.perf_counter()
    faults: list[str] = []
    with bar("verifying", total, DownloadColumn(), TransferSpeedColumn(), console=console) as update:
        for folder in folders:
            update(description=f"{folder.parent.name}/{folder.name}")
            found = verify_split(folder, lambda size: update(advance=size))
            said = counted(len(found), "fault") if found else "good"
            console.print(f"{folder}: {sizes[folder] / 1e6:,.1f} MB, {said}")
            for fault in found:
                console.print(f"  {fault}")
            faults += found
    seconds = time.perf_counter() - start
    checked = f"{counted(len(folders), 'split')}, {total / 1e6:,.1f} MB in {seconds:.1f} s"
    if faults:
        print(f"error: {counted(len(faults), 'fault')} in {checked}", file=sys.stderr)
        return 2
    print(f"every byte is as it was written: {checked}")
    return 0


if __name__ == "__main__":
    cli.run(main)
