"""The commands, a script each (`throughline train`, `python -m pipelines.train`), and the rooms of what they share
(docs/architecture.md).
"""

import os
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder of the commands. Beside it are the other packages that run with it."""
PACKAGES = ("common", "data_prep", "recur_models", "tune_spaces", "pipelines", "studies")
"""All of ours, which are sent to machines and compared on them together."""


def python_path() -> str:
    """PYTHONPATH of a command of ours that another one starts: our own modules first, whatever its working directory."""
    return os.pathsep.join(filter(None, (str(PACKAGE_ROOT.parent), os.environ.get("PYTHONPATH", ""))))
