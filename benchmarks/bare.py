"""The command line of benchmarks that also run without tyro, on a GPU machine where no package can be installed.

config = bare.parse(BenchConfig, argv, "What it does.")        # as pipelines.terminal.cli has it, where that can be imported
bare.run(main)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def command_line() -> ModuleType | None:
    """The module pipelines.terminal.cli; None without tyro."""
    try:
        from pipelines.terminal import cli
    except ModuleNotFoundError as missing:
        if missing.name != "tyro":
            raise
        return None
    return cli


def parse(config: type[T], argv: Sequence[str], description: str) -> T:
    """Read a dataclass of numbers, texts, paths, choices and tuples of them from the words of the command line."""
    cli = command_line()
    if cli:
        return cli.parse(config, argv, description=description)
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    hints = get_type_hints(config)
    for field in fields(config):  # pyrefly: ignore
        several = get_origin(hints[field.name]) is tuple
        kind = get_args(hints[field.name])[0] if several else hints[field.name]
        choices = get_args(kind) if all(isinstance(choice, str) for choice in get_args(kind)) else ()
        options: dict[str, Any] = {"nargs": "*"} if several else {}
        if choices:
            kind = str
        elif get_args(kind):
            kind = Path
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=kind, choices=choices or None, default=field.default, **options)
    words = vars(parser.parse_args(argv))
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in words.items()})


def run(main: Callable[[list[str]], int]) -> None:
    """Call `main` with the words of the command line and exit with its status."""
    cli = command_line()
    if cli:
        cli.run(main)
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:  # the user's mistake
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
