"""Addresses at which MLflow can never keep runs: each is refused before anything begins, in a sentence with its remedy."""

from __future__ import annotations

import errno
import importlib
import socket
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from common.errors import UserError, first_cause
from pipelines import ui
from pipelines.config.run import TrackingConfig
from pipelines.tracking import Tracker, TrackingError, read_run
from pipelines.tracking.client import check_tracking
from tests.mlflow_server import Server

IN_MEMORY = "a database in memory"


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("localhost:5000", "write http://localhost:5000"),
        ("10.0.0.1:5000/mlflow", "write http://10.0.0.1:5000/mlflow"),
        ("http//typo", "write http://typo"),
        ("http:/host:5000", "write http://host:5000"),
        ("http://", "write http://HOST:5000"),
        ("http://host:99999", "write http://HOST:5000"),
        ("htp://host:5000", "did you mean 'http'"),
        ("s3://bucket/runs", "known: http, https, databricks, sqlite"),
        ("file:/runs", "write sqlite:////whole/path/mlflow.db"),
        ("file:///runs", "write sqlite:////whole/path/mlflow.db"),
        ("mlruns", "write sqlite:////whole/path/mlflow.db"),
        ("sqlite://", IN_MEMORY),
        ("sqlite:///", IN_MEMORY),
        ("sqlite:///:memory:", IN_MEMORY),
        ("sqlite:////runs?mode=memory", IN_MEMORY),
        ("sqlite:mlflow.db", "write sqlite://…"),
        ("sqlite://mlflow.db", "write sqlite:////whole/path/mlflow.db"),
        ("postgres://me:secret@host/db", "did you mean 'postgresql'"),
        ("me:secret@host:5000", "is …@host:5000, where"),
        ("//me:secret@host:5000", "is …@host:5000, where"),
        ("http:/me:secret@host:5000", "write http://host:5000"),
        ("http:me:secret@host:5000", "is …@host:5000, where"),
        ("https//me:secret@host:5000", "write https://host:5000"),
        ("postgresql:me:secret@host/db", "is …@host/db, where"),
        ("databricks-uc", "write databricks"),
    ],
)
def test_an_impossible_address_is_refused(uri: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^tracking\.uri is .*MLflow cannot keep runs") as caught:
        TrackingConfig(uri=uri)
    assert remedy in str(caught.value) and "secret" not in str(caught.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert TrackingConfig(backend="none").located().uri == ""
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI is .*MLflow cannot keep runs"):
        TrackingConfig().located()


def test_a_password_whose_end_is_hidden_is_refused_where_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql://me:pa?ss@host/db"
    with pytest.raises(UserError, match=r"the name or password in tracking\.uri has a character that hides its end"):
        TrackingConfig(uri=uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match="the name or password in MLFLOW_TRACKING_URI has a character that hides its"):
        TrackingConfig().located()


def test_what_mlflow_takes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ("", "databricks", "databricks://profile", "http://me:secret@host:5000/x", "https://host/mlflow")
    databases = ("sqlite:////runs/mlflow.db", "sqlite+pysqlite:////x.db", "postgresql+psycopg://me:secret@db/mlflow")
    for uri in (*addresses, *databases):
        assert TrackingConfig(uri=uri).located().uri == uri
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert TrackingConfig(uri="file:/runs").uri == "file:/runs"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["demo-rec"]),
        ("tune", ["lr"]),
        ("evaluate", ["runs/mine"]),
        ("compare", ["runs/mine"]),
        ("tokens", ["runs/mine"]),
        ("continuations", ["runs/mine"]),
        ("vocabulary", ["text"]),
        ("preflight", ["demo-rec"]),
    ],
)
def test_every_command_refuses_it(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"write http://localhost:5000"):
        importlib.import_module(f"pipelines.{command}").main([*words, "--tracking.uri", "localhost:5000"])
    assert not list(tmp_path.iterdir())


def test_a_missing_driver_names_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        UserError, match=r"postgresql://host/db, and the driver .* is missing .*pip install 'psycopg\[bin"
    ):
        check_tracking(TrackingConfig(uri="postgresql://me:secret@host/db"), tmp_path)
    with pytest.raises(UserError, match=r"postgresql\+typo://host/db, which SQLAlchemy does not take"):
        check_tracking(TrackingConfig(uri="postgresql+typo://me:secret@host/db"), tmp_path)
    check_tracking(TrackingConfig(uri="postgresql://host/db", backend="none"), tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    check_tracking(TrackingConfig(), tmp_path)  # none yet
    with pytest.raises(UserError, match=r"holds no mlflow\.db: train something first"):
        ui.main(["--root", str(tmp_path)])
    path.write_bytes(b"")
    path.write_text("notes on my runs")
    for config in (TrackingConfig(), TrackingConfig(uri=f"sqlite:///{path}")):
        with pytest.raises(UserError, match=r"mlflow\.db: file is not a database.*--tracking\.uri"):
            check_tracking(config, tmp_path)
    with pytest.raises(UserError, match=r"mlflow\.db: file is not a database"):
        ui.main(["--root", str(tmp_path)])
    with pytest.raises(UserError, match=r"mlflow\.db: file is not a database"):
        read_run(TrackingConfig(), tmp_path, "0" * 32, [])
    with pytest.raises(UserError, match="is a folder"):
        check_tracking(TrackingConfig(uri=f"sqlite:///{tmp_path}"), tmp_path)
    assert path.read_text() == "notes on my runs"


def test_a_port_that_another_program_has_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port {port} cannot be used \(.*\): give another --port"):
            ui.main(["--root", str(server.folder), "--port", str(port)])
    assert capsys.readouterr().out == ""


@pytest.fixture
def other_version(server: Server, tmp_path: Path) -> Path:
    """The folder of a database whose tables another version of MLflow has made."""
    with sqlite3.connect(server.folder / "mlflow.db") as source, sqlite3.connect(tmp_path / "mlflow.db") as copy:
        source.backup(copy)
        copy.execute("UPDATE alembic_version SET version_num = 'bda7b8c39065'")
    return tmp_path


def test_a_database_of_another_version_is_refused_with_mlflows_remedy(
    other_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, config = f"sqlite:///{other_version}/mlflow.db", TrackingConfig()
    remedy = f"found version bda7b8c39065.*mlflow db upgrade {uri}.* a newer MLflow has made the database"
    for asked in (config, TrackingConfig(uri=uri)):
        with pytest.raises(UserError, match=remedy):
            check_tracking(asked, other_version)
    with pytest.raises(UserError, match=remedy):
        ui.main(["--root", str(other_version)])
    with pytest.raises(UserError, match=remedy):
        read_run(config, other_version, "0" * 32, [])
    with sqlite3.connect(other_version / "mlflow.db") as database:  # of a newer one, which has a table less too
        database.execute("UPDATE alembic_version SET version_num = 'f00000000000'")
        database.execute("DROP TABLE webhooks")
    database.close()
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    with pytest.raises(UserError, match=r"Can't locate revision identified by 'f00000000000'.*a newer MLflow has made"):
        check_tracking(config, other_version)


@pytest.mark.parametrize("where", ["header", "pages"])
def test_a_damaged_database_is_refused(server: Server, tmp_path: Path, where: str) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(server.folder / "mlflow.db") as source, sqlite3.connect(path) as copy:
        source.backup(copy)
        (page,) = copy.execute("SELECT rootpage FROM sqlite_master WHERE name = 'experiments'").fetchone()
        (size,) = copy.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    begin = 100 if where == "header" else size * (page - 1)
    data[begin : begin + 900] = bytes(range(90, 240)) * 6
    path.write_bytes(data)
    for ask in (lambda: check_tracking(TrackingConfig(), tmp_path), lambda: ui.main(["--root", str(tmp_path)])):
        with pytest.raises(UserError, match=rf"{path}: database disk image is malformed\. Restore a copy") as caught:
            ask()
        assert "upgrade" not in str(caught.value) and "SELECT" not in str(caught.value)


def test_a_long_cause_keeps_its_remedy() -> None:
    error = RuntimeError("refused " + "x" * 1000 + " and so\nrun the migration")
    told = first_cause(error, most=100)
    assert told.startswith("refused x") and told.endswith("x and so run the migration") and len(told) == 99
    assert first_cause(RuntimeError("y" * 100), most=100) == "y" * 100


def test_a_cause_that_was_replaced_by_a_better_error_stays_replaced() -> None:
    try:
        try:
            raise OSError("Detail: [errno 28] No space left on device")
        except OSError:
            raise OSError(errno.ENOSPC, "No space left on device", "a.json") from None
    except OSError as error:
        assert first_cause(error) == "[Errno 28] No space left on device: 'a.json'"


def test_a_run_that_mlflow_refuses_to_show_is_reported_as_that(server: Server, tmp_path: Path) -> None:
    config = TrackingConfig(uri=server.uri)
    with pytest.raises(UserError, match=r"refuses to show the run \.\./x \(.*[Ii]nvalid") as caught:
        read_run(config, tmp_path, "../x", [])
    assert not isinstance(caught.value, TrackingError)


def test_what_mlflow_refuses_for_good_is_said_with_its_whole_remedy(
    other_version: Path, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of a database server, which is not asked before a run begins; and of an experiment that was deleted."""
    experiment = server.post("experiments/create", name="deleted")["experiment_id"]
    server.post("experiments/delete", experiment_id=experiment)
    old = TrackingConfig(uri=f"sqlite:///{other_version}/mlflow.db", system_metrics="off", patience=3600)
    deleted = TrackingConfig(uri=server.uri, experiment="deleted", system_metrics="off", patience=3600)
    for config, remedy in ((old, "run 'mlflow db upgrade <database_uri>' to migrate"), (deleted, "restore it or name")):
        began = time.monotonic()
        tracker = Tracker.start(config, other_version, other_version / "run", "run", {}, {})
        tracker.log({"a": 1.0}, 1)
        assert not tracker.finish() and time.monotonic() < began + 300
        told = capfd.readouterr().err
        assert told.count("refuses this run") == 2 and remedy in told and "does not answer" not in told
        assert "1 records were not sent" in told and "when this is corrected" in told
    with pytest.raises(TrackingError, match="restore it or name another"):
        Tracker.start(
            TrackingConfig(uri=server.uri, experiment="deleted", on_failure="stop"),
            other_version,
            other_version / "stop",
            "stop",
            {},
            {},
        )
