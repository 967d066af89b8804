"""The commit of this code, which every run in MLflow is tagged with."""

from __future__ import annotations

import subprocess

from pipelines import PACKAGE_ROOT


def git_commit() -> str | None:
    """The commit of this code, ending in -dirty when files differ from it; None outside a git checkout of it."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # else git would give the commit of the repository around it
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE_ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
