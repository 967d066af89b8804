"""How MLflow is reached: its address, its import, its sqlite file."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path

from data_prep.errors import UserError
from pipelines.config.run import TrackingConfig

REQUEST_SECONDS = 8
"""A single request to a server gets no longer than this; the thread asks again."""


class TrackingError(UserError, ConnectionError):
    """MLflow does not answer or refuses, and the run was told to stop then: it is not started again either."""


def tracking_uri(config: TrackingConfig, root: Path) -> str:
    """The config's URI, or the sqlite file in the folder of all runs."""
    return config.uri or f"sqlite:///{root.absolute() / 'mlflow.db'}"


def is_server(config: TrackingConfig) -> bool:
    """Whether MLflow is reached through a server, which then chooses where artifacts go."""
    return config.uri.startswith(("http:", "https:", "databricks"))


def load_mlflow() -> None:
    """Import MLflow such that no request of it can take minutes and nothing of it talks."""
    settings = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # each failure reaches us as an exception too


def make_database(path: Path) -> None:
    """Make MLflow's tables in a file of another name, and give it its name when all are there: making them takes seconds, and
    MLflow never recovers from a kill in the middle of it. Of two processes that do this at once, the first wins; where there are no
    hard links, almost always.
    """
    if path.exists():
        return
    from mlflow import MlflowClient

    temporary = path.absolute().with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{temporary}").search_experiments(max_results=1)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
