"""How MLflow is reached: its address, its import, its sqlite file."""

from __future__ import annotations

import logging
import os
import sqlite3
import uuid
from pathlib import Path

from common.credentials import without_credentials
from common.errors import OF_A_FILE, UserError, first_cause
from pipelines.config.address import DATABASES
from pipelines.config.run import MLFLOW_DATABASE, TrackingConfig

MAX_CAUSE_LENGTH = 600
"""Most characters that are shown of an error of MLflow: its remedy often comes last."""
REQUEST_SECONDS = 8
"""Seconds that a single request to a server may take; the thread then asks again."""


class TrackingError(UserError, ConnectionError):
    """MLflow does not answer or refuses, where this must end the command. A run is not started again after it either."""


def tracking_uri(config: TrackingConfig, root: Path) -> str:
    """The config's URI, or the sqlite file in the folder of all runs."""
    return config.uri or f"sqlite:///{root.absolute() / MLFLOW_DATABASE}"


def is_server(config: TrackingConfig) -> bool:
    """Whether MLflow is reached through a server, which then chooses where artifacts go."""
    return config.uri.startswith(("http:", "https:", "databricks"))


def load_mlflow() -> None:
    """Import MLflow with short time limits for requests, and without telemetry and log messages."""
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


TRANSIENT = (401, 408, 409, 429)
"""HTTP statuses of refusals that may pass: somebody corrects the password, or the server is less busy."""
PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Packages of the databases' drivers, where they have another name than the module."""


def check_tracking(config: TrackingConfig, root: Path) -> None:
    """Raise UserError where MLflow can never keep runs in the config's database: its driver is not installed, its file is no
    database, or another version of MLflow has made it. A server is not asked: one that does not answer may answer later.
    """
    uri = tracking_uri(config, root)
    if config.backend == "none" or not uri.startswith(DATABASES):
        return
    if not uri.startswith("sqlite:"):
        _check_driver(uri)
    if uri.startswith("sqlite"):
        path = Path(uri.partition("://")[2].partition("?")[0].removeprefix("/"))
        if path.is_dir():
            raise UserError(f"{path} is a folder, and MLflow's database is a file: name one in it by --tracking.uri")
        if path.exists():
            with path.open("rb"):  # raises PermissionError if it may not be read
                _check_schema(uri)


def _check_driver(uri: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    shown = without_credentials(uri)
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError) as error:
        raise UserError(f"tracking.uri is {shown}, which SQLAlchemy does not take ({error}): correct it") from None
    except ImportError as error:
        package = PACKAGES.get(error.name or "", error.name)
        raise UserError(
            f"tracking.uri is {shown}, and the driver of that database is missing ({error}): pip install '{package}'"
        ) from None


def _check_schema(uri: str) -> None:
    load_mlflow()
    from mlflow import MlflowClient

    try:
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # of any kind: the tracker retries transient ones
        if is_final(error):
            raise UserError(cannot_use(uri, error)) from None


def is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same request again: for a deleted run, say, or a file that is too large."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, UserError) or is_of_another_version(error):
        return True
    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
    else:
        status = getattr(getattr(error, "response", None), "status_code", 0)  # an upload's error
    return isinstance(error, OF_A_FILE) or (400 <= status < 500 and status not in TRANSIENT)


def is_of_another_version(error: BaseException) -> bool:
    """Whether MLflow has found a database that another version of it made, or one that is damaged."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import DatabaseError, OperationalError

    if isinstance(error, MlflowException):
        return "database schema" in str(error)  # this error has no code of its own
    return isinstance(error, CommandError) or (
        isinstance(error, DatabaseError) and not isinstance(error, OperationalError)
    )


def cannot_use(uri: str, error: BaseException) -> str:
    """A sentence on a database of another version, with MLflow's own remedy, or on one that is damaged."""
    shown = without_credentials(uri)
    damage = _damage(error)
    if damage:
        return (
            f"MLflow cannot use the database {shown}: {damage}. Restore a copy of it, move it away to begin a new one, or name "
            "another by --tracking.uri"
        )
    cause = first_cause(error, most=MAX_CAUSE_LENGTH).replace("<database_uri>", shown)
    return (
        f"MLflow cannot use the database {shown}: {cause.rstrip('.')}. If `mlflow db upgrade` does not know that version, a newer "
        "MLflow has made the database: install that one, or name another database by --tracking.uri"
    )


def _damage(error: BaseException) -> str:
    """sqlite's report on a damaged file; "" if it is whole."""
    from sqlalchemy.exc import DBAPIError

    found: BaseException | None = error
    while found is not None:
        origin = found.orig if isinstance(found, DBAPIError) else None
        if isinstance(origin, sqlite3.DatabaseError) and not isinstance(origin, sqlite3.OperationalError):
            return str(origin)
        found = found.__cause__ or found.__context__
    return ""


def make_database(path: Path) -> None:
    """Make MLflow's tables in a temporary file, and rename it when all are there.

    It takes seconds, and MLflow never recovers from a kill in the middle. If two processes do this at once, the first wins; on a
    disk without hard links, almost always.
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
