"""The console command `throughline`: each command of pipelines/ as a subcommand.

    throughline train demo-rec        # does what `python -m pipelines.train demo-rec` does
    throughline --help
    throughline completion bash       # pipelines/completion.py

Only the module of the chosen command is imported, so that a command starts as quickly as by `python -m`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

from common.errors import UserError, nearest
from pipelines.terminal import cli
from pipelines.terminal.commands import CONSOLE, GROUPS, NAMES, summary
from pipelines.terminal.output import listing


def start() -> None:
    """The entry point of the installed script (pyproject.toml)."""
    cli.run(main)


def main(argv: list[str]) -> int | None:
    """Run a command with its words. Returns its exit status; 2 without a command. Raises UserError for an unknown one."""
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        print(overview())
        return 0 if name else 2
    if name in ("-V", "--version"):
        print(f"{CONSOLE} {importlib.metadata.version(CONSOLE)}")
        return 0
    if name.startswith("-"):
        raise UserError(f"unknown option {name}: name a command first; {CONSOLE} --help lists them")
    if name not in NAMES:
        raise UserError(f"unknown command {name!r}: {nearest(name, NAMES)}")
    words = argv[1:]
    sys.argv = [f"{CONSOLE} {name}", *words]  # by which messages name the program
    return importlib.import_module(f"pipelines.{name}").main(words)


def overview() -> str:
    """The text of `throughline --help`."""
    groups = "\n\n".join(
        f"{group}:\n{listing({name: summary(name) for name in names}, width=len(max(NAMES, key=len)))}"
        for group, names in GROUPS.items()
    )
    return (
        f"usage: {CONSOLE} COMMAND [options]\n\n"
        f"Recurrent transformers on book-length documents: prepare, train, evaluate.\n\n{groups}\n\n"
        f"{CONSOLE} COMMAND --help describes a command, {CONSOLE} --version prints the version."
    )
