"""Where a run comes from: the commit of the code, and the user."""

from __future__ import annotations

import contextlib
import getpass
import os
import subprocess

from pipelines import PACKAGE_ROOT


def git_commit() -> str | None:
    """The commit of this code, ending in -dirty when files differ from it; None outside a git checkout of it."""
    here = PACKAGE_ROOT / "__init__.py"

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=quiet).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # else it is the commit of whatever this is installed in
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def user_name() -> str | None:
    with contextlib.suppress(KeyError, OSError):  # a container may have no name for its user
        return getpass.getuser()
    return None
