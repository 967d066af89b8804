"""Commands on a terminal, where they draw bars: a pseudo-terminal is their standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.terminal.tables import plain_table, table
from tests.small_runs import TINY


def on_a_terminal(words: Sequence[str]) -> str:
    """What `python -m words` writes to a terminal; it must succeed."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "150"},
    )
    os.close(theirs)
    written = bytearray()
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # how Linux ends the reading of a terminal that nobody has open
        pass
    os.close(ours)
    said = written.decode(errors="replace")
    assert process.wait() == 0, said
    return said


@pytest.mark.slow
def test_bars_are_drawn(text_folder: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    where = ("--store", store, "--tokenizer", "bytes", "--num-workers", "0")
    said = on_a_terminal(["pipelines.prepare", "text", "--source", str(text_folder), *where])
    assert "documents," in said and "MB/s" in said and "Next:" in said
    assert "verifying" in on_a_terminal(["pipelines.verify", store])
    words = [*TINY, "--data.store", store, "--root", str(tmp_path / "runs"), "--run", "mine", "--num-workers", "0"]
    said = on_a_terminal(["pipelines.train", *words])
    assert "training mine" in said and "bits/token" in said
    said = on_a_terminal(["pipelines.evaluate", str(tmp_path / "runs/mine"), "--tracking.backend", "none"])
    assert "State carried" in said


def test_a_narrow_terminal_cuts_no_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """Words and numbers of a table that is wider than the terminal take several lines."""
    names = {str(number): f"column-{number}" for number in range(6)}
    numbers = {key: 123_456_789_000 + int(key) for key in names}
    numeric = {key: (name, ",") for key, name in names.items()}
    words = [f"{numbers[key]:,}" for key in names]
    for made in (table([numbers], numeric, {}), plain_table(list(names.values()), [words])):
        Console(width=60).print(made)
        said = capsys.readouterr().out
        assert "…" not in said
        assert sum(map(said.count, "0123456789")) == 6 + 6 * 12
