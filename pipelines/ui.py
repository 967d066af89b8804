"""Open MLflow's pages on the runs below a folder, at this machine's own address.

python -m pipelines.ui --root runs
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines.terminal import cli
from pipelines.tracking import UI_ENVIRONMENT, ui_command


@dataclass(frozen=True)
class UiConfig:
    """What is shown, and where."""

    root: Path = Path("runs")
    """Folder of all runs, which holds mlflow.db."""
    port: int = 5000
    """Port on 127.0.0.1."""


def main(argv: list[str]) -> None:
    config = cli.parse(UiConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    if not (config.root / "mlflow.db").exists():
        raise FileNotFoundError(
            f"{config.root} holds no mlflow.db: train something first (make demo), or name the --root of your runs"
        )
    print(
        f"MLflow on the runs below {config.root}: http://127.0.0.1:{config.port} (choose “Model training” at the left; Ctrl-C ends)"
    )
    sys.stdout.flush()
    os.execve(sys.executable, ui_command(config.root, config.port), {**os.environ, **UI_ENVIRONMENT})


if __name__ == "__main__":
    cli.run(main)
