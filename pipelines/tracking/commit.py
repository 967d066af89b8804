"""The commit of this code, which every run in MLflow is tagged with, and which a benchmark records with its results."""

from __future__ import annotations

import contextlib
import getpass
import subprocess

from pipelines import PACKAGE_ROOT


def git_commit(*besides: str, digits: int = 40) -> str:
    """The commit of this code, ending in -dirty when files differ from it; "" outside a git checkout of it.

    Args:
        besides: folders whose files may differ.
        digits: length of the hash, at least.
    """
    try:
        # Else git would give the commit of the repository around it.
        _git("ls-files", "--error-unmatch", f"{PACKAGE_ROOT.name}/__init__.py")
        changed = _git("diff", "--name-only", "HEAD", "--", ".", *(f":!{folder}" for folder in besides))
        return _git("rev-parse", f"--short={digits}", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def source_tags() -> dict[str, str]:
    """MLflow's tags for the commit and the user of a run; "" where there is no commit."""
    tags = {"mlflow.source.git.commit": git_commit()}
    with contextlib.suppress(KeyError, OSError):  # a container may have no name for its user
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _git(*words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE_ROOT.parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
