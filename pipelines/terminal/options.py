"""The options of a command, as its `--help` lists them, and the sentence for one that it does not have."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from pipelines.terminal import home


def unknown(words: Sequence[str], read: Callable[[Sequence[str]], object]) -> str:
    """The error message for words that tyro did not recognize."""
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
    owners = models_with(written)
    if owners:
        others = (
            " or ".join(owners) if len(owners) <= 4 else f"{', '.join(owners[:3])} or one of {len(owners) - 3} others"
        )
        return f"unknown option {written}: this preset's model lacks this field; name a preset of {others}"
    near = nearest_option(written, known)
    return f"unknown option {written}: {f'did you mean {near}?' if near else '--help lists the options'}"


def models_with(option: str) -> list[str]:
    """Names of the models that have the field of an option such as --model.window; empty for other options."""
    group, _, name = option.rpartition(".")
    if group != "--model":
        return []
    from recur_models import MODELS  # only for this message: torch takes seconds to import

    field = name.replace("-", "_")
    return sorted(
        model for model, config in MODELS.items() if field in {each.name for each in dataclasses.fields(config)}
    )


def nearest_option(option: str, options: Collection[str]) -> str:
    """The option among ``options`` that a person who typed an unknown one means: one that is spelt almost like it, or one with
    its name in a group. Empty where there is none.
    """
    grouped = [known for known in options if known.rpartition(".")[2] == option.lstrip("-")]
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.6) or grouped
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
