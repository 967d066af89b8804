"""The lock of a folder: between processes, over NFS as far as one machine can tell, and gone without a trace."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from common.lock import Locked, file_lock
from pipelines.prepare import PrepareConfig, prepare
from tests.small_corpus import contents

ROOT = Path(__file__).parents[2]


def test_another_process_meets_the_lock_on_a_file(tmp_path: Path) -> None:
    """Only a file that is open for writing can be locked over NFS; the program flock stands for another machine."""
    with file_lock(tmp_path / "a" / "b", "a test"):
        taken = subprocess.run(["flock", "--nonblock", str(tmp_path / "a" / "b" / ".lock"), "true"], check=False)
        assert taken.returncode == 1
        with pytest.raises(Locked, match="another one is writing to"), file_lock(tmp_path / "a" / "b", "another one"):
            pass
    assert contents(tmp_path) == {} and not (tmp_path / "a").exists()  # as it was


def test_one_at_a_time_however_many_wait(tmp_path: Path) -> None:
    """Each removes the file that the others wait for."""
    inside, most, turns = 0, 0, 0

    def turn() -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            with file_lock(tmp_path / "folder", "a thread", patience=60):
                inside += 1
                most, turns = max(most, inside), turns + 1
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 20) and contents(tmp_path) == {}


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    words = "import os; from common.lock import file_lock\nwith file_lock(os.environ['FOLDER'], 'x'): os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", words], cwd=ROOT, env={**os.environ, "FOLDER": str(tmp_path)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL and contents(tmp_path) == {".lock": b""}
    with file_lock(tmp_path, "a test"):
        pass
    assert contents(tmp_path) == {}


def test_what_was_prepared_is_there_in_a_store_that_is_read_only(
    make_config: Callable[..., PrepareConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(make_config())
    opened, tried = os.open, set[str]()

    def read_only(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            tried.add(os.path.basename(path))
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    monkeypatch.setattr(os, "open", read_only)
    assert len(prepare(make_config())) == 3
    assert tried == {".lock"}  # and nothing else is written


def test_a_folder_that_is_gone_for_a_moment_is_not_taken_for_one_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the folder between two looks of a waiting process, which once continued without a lock."""
    (folder := tmp_path / "folder").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the answer for a folder that is not there
    with file_lock(folder, "a test"):
        assert contents(tmp_path) == {"folder/.lock": b""}
        with pytest.raises(Locked), file_lock(folder, "another one"):
            pass


def test_without_locks_across_machines_there_is_one_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flock = fcntl.flock

    def unsupported(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "a" / ".lock"):
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with file_lock(tmp_path / "a", "a test"):
        assert "another machine is not kept out" in capsys.readouterr().err
        with pytest.raises(Locked), file_lock(tmp_path / "a", "another one"):
            pass
    assert contents(tmp_path) == {} and not (tmp_path / "a").exists()


WAITS = """
import os, sys, time
from data_prep import sharding
from pipelines.prepare import main
def waits(*arguments):
    open(sys.argv[1], "w").close()
    while os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    return scan(*arguments)
scan, sharding.scan_group = sharding.scan_group, waits
main(sys.argv[2:])
"""


def test_two_preparations_of_one_store_at_once(make_config: Callable[..., PrepareConfig], tmp_path: Path) -> None:
    """The second one is told at once, while the first one still scans, and spoils nothing."""
    made, gate = make_config(store=str(tmp_path / "both")), tmp_path / "scanning"
    words = ["text", "--source", made.corpus.source, "--store", made.store, "--segment-length", "64"]
    first = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(gate), *words, "--part-bytes", "4000", "--num-workers", "0"], cwd=ROOT
    )
    while not gate.exists():
        assert first.poll() is None
        time.sleep(0.01)
    with pytest.raises(Locked, match="another preparation is writing to"):
        prepare(made)
    while first.poll() is None:
        gate.unlink(missing_ok=True)
        time.sleep(0.01)
    assert first.returncode == 0
    alone = make_config()
    prepare(alone)
    assert contents(Path(made.store)) == contents(Path(alone.store)) and os.listdir(made.store) == ["text"]


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"x\\udce9' is not UTF-8: choose another one"),
        file_lock(tmp_path / "x\udce9", "another"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_what_went_wrong_inside_is_told_though_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyError, match="what went wrong"), file_lock(folder, "a test"):
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("a file in the way")
        raise KeyError("what went wrong")


def test_a_link_above_the_folder_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError, match="runs"), file_lock(tmp_path / "runs" / "mine", "another training run"):
        pass
