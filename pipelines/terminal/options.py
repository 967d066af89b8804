"""The options of a command, as its `--help` lists them: the sentence for one that it lacks, and checks of their values."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError, begins_with, last_part
from pipelines.terminal import home

COUNTS = 1 << 53
SEEDS = 1 << 63
"""Upper bounds of seeds, and of other whole numbers (COUNTS), so that products of counts still have 64 bits."""
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that end or reorder a line in which a name or a path is printed."""
TEXT = "text"
"""The metadata of a field that takes text, which may have several lines: ``field(default="", metadata={TEXT: True})``."""
NOT_A_NUMBER = {
    "invalid literal for int() with base 10": "a whole number in digits, such as 1000",
    "could not convert string to float": "a number, such as 0.5 or 1e-3",
}
"""The beginnings of Python's messages for a text that is no number, and what to write instead."""
OTHER_WORDS = {
    "learning-rate": "lr",
    "batch-size": "lanes",
    **dict.fromkeys(("seq-len", "seq-length", "sequence-length", "context-length", "block-size"), "segment-length"),
    **dict.fromkeys(("epochs", "max-steps", "iterations"), "steps"),
    **dict.fromkeys(("grad-clip", "clip-grad-norm"), "max-grad-norm"),
    "dtype": "precision",
    "device": "use-gpu",
    "output-dir": "root",
}
"""Words of other programs, and the last part of the option here that means the same or decides it."""
URI_AS_PATH = re.compile(r"[a-zA-Z][\w+.-]+:/")
"""Beginning of a URI that was parsed as a path, which drops a slash."""


def unknown(
    words: Sequence[str],
    read: Callable[[Sequence[str]], object],
    preset: str = "",
    presets: Mapping[str, Any] | None = None,
) -> str:
    """The error message for words that tyro did not recognize. ``presets``: those among which ``preset`` was chosen."""
    option = next((word for word in words if word.startswith("-")), None)
    if option is None:
        split = (
            "; `ray submit` cuts values at spaces and drops quotes: give such a value with `ray job submit --working-dir . -- "
            f"python -m pipelines.{Path(sys.argv[0]).stem} …`"
        )
        told = f"unexpected argument {words[0]!r}: options begin with --, and --help lists them"
        return told + (split if home.submitted_script() else "")
    written = option.partition("=")[0]
    known = options(read)
    if written in ("--model", "--model.name") and any(each.startswith("--model.") for each in known):
        return f"unknown option {written}: another model has other fields, which its presets set: name another preset"
    if last_part(written).startswith("resume"):
        return f"unknown option {written}: trainings, sweeps, preparations and tables resume when their command is repeated"
    having = presets_with(written, presets or {})
    if having and preset not in having:
        closest = difflib.get_close_matches(preset, having, n=1, cutoff=0)[0]
        others = len(having) - 1
        have = f" and {others} other preset{'s' * (others > 1)} have it" if others else " has it"
        return f"unknown option {written}: {preset} lacks it; {closest}{have}"
    near = nearest_option(written, known)
    return f"unknown option {written}: {f'did you mean {near}?' if near else '--help lists the options'}"


def without_value(words: Sequence[str], read: Callable[[Sequence[str]], object], option: str, needed: object) -> str:
    """The error message for an option that lacks its value, or one of the ``needed`` number of values. ``words``: the command line.

    A value that begins with a dash was taken for another option.
    """
    if not option.startswith("-"):
        return f"{option.upper()} is missing: write ./ before a path that begins with a dash"
    said = f"{option} has no value: give one" if needed == 1 else f"{option} needs {needed} values: give them"
    after = ""
    for word, following in pairwise(words):
        if word.replace("_", "-") == option:
            after = following
    if needed != 1 or not after.startswith("-") or after.partition("=")[0] in options(read):
        return f"{said} after the option"
    return f"{option} has no value: write {option}={shlex.quote(after)} if {after} is meant"


def not_of_type(option: str, message: str) -> str:
    """The error message for a value that an option cannot take. ``message``: tyro's, with that of Python."""
    for begin, wanted in NOT_A_NUMBER.items():
        found = re.search(rf"(?m){re.escape(begin)}: (.*)$", message)
        if found:
            return f"{option} is {found[1]}: write {wanted}"
    several = re.search(r"arguments:? (\[.*?\])", message)
    if several:
        return f"{option} is {several[1]}, which it cannot take: --help shows the type of each value"
    return f"{option}: {message}; --help lists the options"


def presets_with(option: str, presets: Mapping[str, Any]) -> list[str]:
    """Names of the presets that have the field of an option such as --model.states."""
    path = option.lstrip("-").replace("-", "_").split(".")
    return [name for name, preset in presets.items() if has_field(preset, path)]


def has_field(config: object, path: Sequence[str]) -> bool:
    """Whether a config has the field, and no group of them, at a path of names, such as model and states."""
    if not path:
        return not dataclasses.is_dataclass(config)
    names = {field.name for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else ()
    return path[0] in names and has_field(getattr(config, path[0]), path[1:])


def nearest_option(option: str, options: Collection[str]) -> str:
    """The option among ``options`` that a person who typed an unknown one means: one with its name in another group, or another
    word for it, or one that begins with it or is spelt almost like it. Empty where there is none.
    """
    written = "--" + option.lstrip("-").replace("_", "-")
    name = last_part(written)
    alike = (
        [known for known in options if last_part(known) == name]
        or [known for known in options if last_part(known) == OTHER_WORDS.get(name)]
        or [known for known in options if begins_with(last_part(known), name) or known.startswith(f"{written}.")]
    )
    near = difflib.get_close_matches(written, alike or options, n=1, cutoff=0.0 if alike else 0.6)
    return next(iter(near), "")


def options(read: Callable[[Sequence[str]], object]) -> list[str]:
    """The options that --help lists. Each begins a line there; those of other programs, in its sentences, do not."""
    help_text = io.StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"  # in a wide terminal tyro sets options side by side
    try:
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(help_text):
            read(["--help"])
    finally:
        os.environ.pop("COLUMNS")
        if width is not None:
            os.environ["COLUMNS"] = width
    lines = re.findall(r"(?m)^(?:│ | {0,2})(--[\w.-]*\w(?:, --[\w.-]*\w)*)", help_text.getvalue())
    return [option for line in lines for option in line.split(", ")]


def check_values(config: object, group: str = "") -> None:
    """Raise UserError for a value that its type allows and nothing here can use. ``group``: prefix of its options, as ``data.``."""
    if not dataclasses.is_dataclass(config):
        return
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = group + field.name.replace("_", "-")
        unnamed = "tyro.conf" in str(field.type)  # a mark: its options have no prefix of its name
        check_values(value, group if unnamed else f"{name}.")
        for element in value if isinstance(value, tuple) else (value,):
            _check_value(f"--{name}", element, is_text=bool(field.metadata.get(TEXT)))


def _check_value(option: str, value: object, is_text: bool) -> None:
    """`check_values` for one value. ``is_text``: whether it may have several lines."""
    if isinstance(value, float) and math.isnan(value):
        raise UserError(f"{option} is nan: give a number")
    most = SEEDS if "seed" in option else COUNTS
    if isinstance(value, int) and abs(value) >= most:
        bound = f"less than {most}" if value > 0 else f"more than -{most}"
        raise UserError(f"{option} is {value}: give {bound}")
    if isinstance(value, str | Path) and not is_text:
        control = CONTROLS.search(str(value))
        if control is not None:
            public = without_credentials(str(value))
            raise UserError(f"{option} is {public!r}: leave out the control character {control[0]!r}")
    if isinstance(value, Path) and URI_AS_PATH.match(str(value)):
        public = without_credentials(str(value).replace(":/", "://", 1))
        path = public.replace("://", ":/", 1)  # as Path writes it
        raise UserError(f"{option} is {path}, a URI: give a file or folder of this machine")


def check_once(config: Any, argv: Sequence[str]) -> None:
    """Raise UserError for an option that takes a list and is given twice: only the last list would count.

    A field in a group, such as --optim.betas, may be given again: scripts add such options to others.
    """
    words = [word.partition("=")[0].replace("_", "-") for word in argv]
    for field in dataclasses.fields(config):
        option = f"--{field.name.replace('_', '-')}"
        if isinstance(getattr(config, field.name), tuple) and words.count(option) > 1:
            raise UserError(
                f"{option} is given twice, and only the last one counts: write all values after one {option}"
            )
