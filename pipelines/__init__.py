"""The commands, one script each (`throughline train`, `python -m pipelines.train`), and the packages that they share
(docs/architecture.md).
"""

import os
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parent
"""The folder of this package. The other packages of `PACKAGES` are beside it."""
PACKAGES = ("common", "data_prep", "recur_models", "tune_spaces", "pipelines", "studies")
"""All our packages. They are sent to a cluster's machines together, and their code is compared there."""


def python_path() -> str:
    """PYTHONPATH for a command that another of our commands starts. Our modules come first, whatever the working directory."""
    return os.pathsep.join(filter(None, (str(PACKAGE_ROOT.parent), os.environ.get("PYTHONPATH", ""))))
