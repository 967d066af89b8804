"""Where commands stand, which cluster they join, and what they say under `ray submit`."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from common.errors import UserError
from pipelines.cluster import ray_session
from pipelines.terminal import home

PROJECT = Path(__file__).parents[2]
STARTS_RAY = """
from pipelines.cluster import ray_session
from pipelines.terminal import cli
cli.run(lambda words: ray_session.start())
"""


def test_relative_paths_begin_in_the_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    home.enter()
    assert Path.cwd() == PROJECT
    monkeypatch.setenv("THROUGHLINE_HOME", str(tmp_path))
    home.enter()
    assert Path.cwd() == tmp_path
    monkeypatch.setenv("THROUGHLINE_HOME", str(tmp_path / "not-mounted"))
    with pytest.raises(
        ValueError, match="not-mounted, where relative paths begin: No such file or directory; mount it"
    ):
        home.enter()
    home.follow()  # a worker continues


def test_a_user_without_a_home_folder_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)  # as in a container that is run as any user
    with pytest.raises(UserError, match="no home folder, which Ray and MLflow ask for: set HOME"):
        home.enter()


def test_a_temporary_folder_whose_name_is_too_long_for_sockets(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "RAY_TMPDIR": str(tmp_path / ("x" * 60))}
    done = subprocess.run([sys.executable, "-c", STARTS_RAY], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "too long for Ray's sockets: set RAY_TMPDIR to a shorter one" in done.stderr


def test_a_job_without_shared_folder_does_not_write_into_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "_ray_pkg_0123"
    copy.mkdir()
    monkeypatch.chdir(copy)
    monkeypatch.setenv("HOME", str(tmp_path))
    home.enter()
    assert Path.cwd() == tmp_path


def test_the_interface_that_reaches_an_address() -> None:
    interface = home.interface_towards("127.0.0.1:1")
    assert "127.0.0.1" in [row.address for row in psutil.net_if_addrs()[interface]]
    assert home.interface_towards("") == "" and home.interface_towards("no-such-host.invalid:1") == ""


def test_a_laptop_joins_nothing_and_a_node_its_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        assert ray_session.cluster_address() == ""  # somebody's session runs here: it is not ours
        monkeypatch.setenv("RAY_ADDRESS", "local")
        assert ray_session.cluster_address() == ""
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        assert ray_session.cluster_address() == address
        monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
        assert ray_session.cluster_address() == "10.1.2.3:6379"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert ray_session.cluster_address() == ""  # it has ended, and left its file


def test_an_address_for_jobs_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    script = STARTS_RAY
    environment = {**os.environ, "RAY_ADDRESS": "http://127.0.0.1:8265", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "submit this command with `ray job submit" in done.stderr


def submitted(tmp_path: Path, *words: str, changed: str = "") -> subprocess.CompletedProcess[str]:
    """What `ray submit` does on a node: the script alone, in the home folder, its words joined unquoted."""
    shutil.copy(PROJECT / "pipelines" / "verify.py", tmp_path)
    with open(tmp_path / "verify.py", "a") as script:
        script.write(changed)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"}
    line = " ".join([sys.executable, "~/verify.py", *words])
    return subprocess.run(["bash", "-c", line], env=environment, cwd=tmp_path, capture_output=True, text=True)


def test_words_that_ray_submit_has_cut_are_refused_with_the_remedy(tmp_path: Path) -> None:
    done = submitted(tmp_path, "my", "store")
    assert done.returncode == 2
    assert "unexpected argument 'store'" in done.stderr
    assert "`ray submit` cuts values at spaces" in done.stderr
    assert "`ray job submit --working-dir . -- python -m pipelines.verify …`" in done.stderr
    (tmp_path / "runs").mkdir()
    done = submitted(tmp_path, "runs/a.b,c:d/e")  # dots, commas, colons and slashes arrive
    assert "runs/a.b,c:d/e" in done.stderr and "unexpected" not in done.stderr and "warning" not in done.stderr


def test_a_script_that_is_newer_than_the_modules_says_so(tmp_path: Path) -> None:
    done = submitted(tmp_path, "nowhere", changed="\n# changed on the laptop\n")
    assert "warning: this script differs from" in done.stderr and "ray rsync-up cluster.yaml" in done.stderr


def test_a_cluster_that_cannot_be_joined_is_one_sentence() -> None:
    script = STARTS_RAY
    environment = {
        **os.environ,
        "RAY_ADDRESS": "127.0.0.1:1",
        "PYTHONPATH": str(PROJECT),
        "RAY_gcs_rpc_server_connect_timeout_s": "2",
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "error: the Ray cluster at 127.0.0.1:1 (RAY_ADDRESS) cannot be joined" in done.stderr
    assert "export RAY_AUTH_MODE=token" in done.stderr
    assert "Traceback" not in done.stderr
