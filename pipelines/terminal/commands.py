"""The commands: in groups, with what each is for, and how a person types them.

summary("train")      "Train a model on a prepared corpus"
typed("train")        "throughline train" or "python -m pipelines.train", as the running command was typed
"""

from __future__ import annotations

import ast
import os
import re
import sys

from pipelines import PACKAGE_ROOT

CONSOLE = "throughline"
"""The console command (pyproject.toml); the names below are its subcommands."""
GROUPS = {
    "Data": ("prepare", "inspect", "verify", "vocabulary"),
    "Training": ("train", "tune", "doctor", "run"),
    "Evaluation": ("evaluate", "compare", "tokens", "continuations", "paper"),
    "Using a trained model": ("generate", "embed", "export"),
    "Machines and tools": ("preflight", "ui", "completion"),
}
"""Every command once: the modules `pipelines/<name>.py`."""
NAMES = tuple(name for names in GROUPS.values() for name in names)


def summary(name: str) -> str:
    """The purpose of a command: the docstring of its module up to the first colon or full stop. The module is not imported."""
    source = (PACKAGE_ROOT / f"{name}.py").read_text("utf-8")
    described = ast.get_docstring(ast.parse(source)) or ""
    return re.split(r"[:.](?=\s|$)", " ".join(described.split()), maxsplit=1)[0]


def program() -> str:
    """The running command as it was typed: `python -m pipelines.train`, `throughline train`, or the script's name."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pipelines."):
        return f"python -m {spec.name}"
    return os.path.basename(sys.argv[0]) or "python"


def typed(name: str) -> str:
    """How a person types another command, beside the one that is running: what a hint says to run next."""
    return f"{CONSOLE} {name}" if program().startswith(f"{CONSOLE} ") else f"python -m pipelines.{name}"
