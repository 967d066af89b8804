"""What a run says of itself to MLflow: what it reads, and the commit of the code."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Literal

from pipelines import PACKAGE_ROOT


@dataclass(frozen=True)
class DatasetInfo:
    """What a run reads, as MLflow lists it beside the run."""

    name: str
    digest: str
    """Fingerprint of the data, up to 36 characters."""
    source: str
    documents: int
    tokens: int
    context: Literal["training", "evaluation"] = "training"


def git_commit() -> str | None:
    """The commit of this code, ending in -dirty when files differ from it; None outside a git checkout of it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE_ROOT), *words]
        quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=quiet).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it is the commit of whatever this is installed in
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
