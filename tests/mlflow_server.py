"""A real MLflow server on loopback, which tests query through its REST API only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.killing import unused_port
from tests.waiting import answers, wait_until


@dataclass
class Server:
    """A running MLflow."""

    uri: str
    process: subprocess.Popen[bytes]
    folder: Path
    """Holds its database and artifacts."""

    def call(self, endpoint: str, **query: str) -> dict[str, Any]:
        url = f"{self.uri}/api/2.0/mlflow/{endpoint}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    def post(self, endpoint: str, **body: Any) -> dict[str, Any]:
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.uri}/api/2.0/mlflow/{endpoint}", data, kind)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, run_id: str) -> dict[str, Any]:
        return self.call("runs/get", run_id=run_id)["run"]

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        found = self.call("experiments/get-by-name", experiment_name=experiment)["experiment"]
        return self.post("runs/search", experiment_ids=[found["experiment_id"]]).get("runs", [])

    def points(self, run_id: str, key: str) -> list[dict[str, Any]]:
        return self.call("metrics/get-history", run_id=run_id, metric_key=key).get("metrics", [])

    def steps(self, run_id: str, key: str) -> list[int]:
        return sorted(point["step"] for point in self.points(run_id, key))

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """A server with its database and artifacts in the folder."""
    port = unused_port()
    store = [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    options = ["--serve-artifacts", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, *options],
            cwd=folder,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that a signal reaches its worker too
        )
    running = Server(f"http://127.0.0.1:{port}", process, folder)
    try:
        wait_until(lambda: answers(f"{running.uri}/health"))
        yield running
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
