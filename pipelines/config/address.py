"""Checks by its text alone whether MLflow can keep runs at an address.

    check_address("localhost:5000", "tracking.uri")         # UserError: … write http://localhost:5000

A server that does not answer may answer later, and a run does not wait for it. An address that can never answer is a mistake, which
is refused before a run begins.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from urllib.parse import urlsplit

from common.credentials import without_credentials
from common.errors import UserError, nearest

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""The databases that MLflow keeps runs in. An address begins with one of these names, and perhaps a driver: mysql+pymysql."""
CATALOGS = ("databricks-uc", "uc")
KNOWN = ("http", "https", "databricks", *DATABASES)
FOLDERS = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow's variable that lets it keep runs in a folder."""


def check_address(uri: str, named: str) -> None:
    """Raise UserError for an address at which MLflow never answers, or keeps nothing, and for one whose name or password
    `without_credentials` would not find. ``named``: where it was given.
    """
    if _hides_credentials(uri):
        raise UserError(
            f"the name or password in {named} has a character that hides its end, so it could not be removed from "
            "records: write %3F for ?, %23 for #, %2F for /, %27 for '"
        )
    problem = _problem(uri)
    if problem:
        shown = without_credentials(uri)
        if not _is_uri(uri) and re.search(":.*@", shown):  # without :// nothing marks where a password begins
            shown = f"…@{shown.rpartition('@')[2]}"
        raise UserError(f"{named} is {shown}, where MLflow cannot keep runs: {without_credentials(problem)}")


def _hides_credentials(uri: str) -> bool:
    """Whether a character of a name or password hides where it ends."""
    # scheme://name:password@host/…
    scheme, _, rest = uri.partition("://")
    credentials, at, _ = rest.partition("@")
    name, colon, password = credentials.partition(":")
    if not re.fullmatch(r"[\w+.-]+", scheme) or "/" in name or not (colon and at):
        return False
    # Digits after http://NAME: may be a port and no password.
    is_port = scheme in ("http", "https") and re.match(r"\d*[/?#]", password)
    return not is_port and re.search(r"""[?#/'"\s]""", credentials) is not None


def _is_uri(address: str) -> bool:
    return re.match(r"[A-Za-z][\w+.-]*://", address) is not None


def _problem(uri: str) -> str:
    """Why MLflow can keep no runs at an address, or what to write instead; empty where it can."""
    if not uri:
        return ""
    scheme = uri.partition(":")[0].lower()
    if scheme in ("http", "https") and _is_uri(uri):
        return _of_server(uri)
    if scheme.partition("+")[0] in DATABASES:
        return _of_database(uri) if _is_uri(uri) else f"write {scheme}://…"
    if scheme in CATALOGS:
        return "it is a catalog of models; write databricks"
    if scheme == "databricks" or scheme in plugins():
        return ""
    if _is_uri(uri) and scheme != "file":
        return f"MLflow knows no {scheme}: {nearest(scheme, KNOWN)}"
    return _of_folder(uri)


def plugins() -> set[str]:
    """The schemes of addresses that installed plug-ins of MLflow know."""
    return {entry.name for entry in importlib.metadata.entry_points(group="mlflow.tracking_store")}


def _of_server(uri: str) -> str:
    try:
        parts = urlsplit(uri)
        named = parts.hostname
        port = parts.port
    except ValueError as error:  # a port above 65535, say
        return f"{error}; write http://HOST:5000"
    return "" if named and port != 0 else "it names no host or no port; write http://HOST:5000"


def _of_database(uri: str) -> str:
    dialect, _, path = uri.partition("://")
    if not dialect.startswith("sqlite"):
        return ""
    if path.partition("?")[0] in ("", "/", "/:memory:") or "mode=memory" in path:
        return "it is a database in memory, which is lost when the process ends; write sqlite:////whole/path/mlflow.db"
    if re.match(r"/(?!/)", path):
        return "workers run elsewhere, so write the whole path, as in sqlite:////home/…"
    return "" if path.startswith("//") else f"write {dialect}:////whole/path/mlflow.db"


def _of_folder(uri: str) -> str:
    server = re.fullmatch(r"(https?)[:/]+([^:/].*)", uri)
    if server:
        return f"write {server[1]}://{server[2]}"
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri):
        return f"write http://{uri}"
    if os.environ.get(FOLDERS, "").lower() in ("true", "1"):
        return ""
    return f"it keeps none in folders; write sqlite:////whole/path/mlflow.db, http://HOST:5000, or set {FOLDERS}=true"
