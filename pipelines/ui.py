"""Open MLflow's pages on the runs below a folder, at this machine's own address.

python -m pipelines.ui --root runs
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from pipelines.config.run import MLFLOW_ARTIFACTS, MLFLOW_DATABASE, TrackingConfig
from pipelines.terminal import cli
from pipelines.tracking.client import check_tracking, tracking_uri

ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Without these MLflow calls home, and starts seven workers that nothing of ours uses."""


@dataclass(frozen=True)
class UiConfig:
    """Runs to show, and the port."""

    root: Path = Path("runs")
    """Folder of all runs, which holds mlflow.db."""
    port: int = 5000
    """Port on 127.0.0.1."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            raise UserError(f"port is {self.port}: give one from 1 to 65535")


def main(argv: list[str]) -> None:
    """Serve MLflow's pages on the runs below a folder until Ctrl-C."""
    config = cli.parse(UiConfig, argv, __doc__)
    if not (config.root / MLFLOW_DATABASE).exists():
        raise UserError(
            f"{config.root} holds no mlflow.db: train something first, name the --root of your runs, or open the address of your "
            "server if MLFLOW_TRACKING_URI or --tracking.uri named one"
        )
    check_tracking(TrackingConfig(), config.root)
    check_port(config.port)
    at = f"http://127.0.0.1:{config.port}"
    print(
        f"MLflow on the runs below {config.root}: {at} (choose “Model training” at the left; Ctrl-C ends)", flush=True
    )
    os.execve(sys.executable, command(config.root, config.port), {**os.environ, **ENVIRONMENT})


def check_port(port: int) -> None:
    """Raise UserError if another program has the port: MLflow would say so in its log alone, and end with status 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} cannot be used ({error.strerror}): give another --port") from None


def command(root: Path, port: int) -> list[str]:
    """The command that serves MLflow's pages on the runs below ``root``, to this machine alone."""
    words = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(TrackingConfig(), root)]
    words += ["--default-artifact-root", (root.absolute() / MLFLOW_ARTIFACTS).as_uri()]
    return [*words, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


if __name__ == "__main__":
    cli.run(main)
