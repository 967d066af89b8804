"""Commands as jobs: what is done and current, what is tried again, and that stops and kills reach all of them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.places import Listed, Place
from pipelines.training import jobs
from pipelines.training.jobs import Job, JobRecord, content_stamp, run_jobs, start_job
from pipelines.training.stopping import STOPPED_STATUS
from tests.waiting import wait_until

HELP = ("--help",)
"""Words with which every command ends well."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "log"), [("SIGTERM", 75, True), ("SIGINT", 75, True), ("SIGKILL", -9, False)]
)
def test_stopped_or_killed_it_leaves_no_job_behind(tmp_path: Path, number: str, status: int, log: bool) -> None:
    words = ("random-walk", "--train", "5000000", "--num-workers", "0", "--store", str(tmp_path / "store"))  # minutes
    code = f"""from pathlib import Path; from pipelines.training.jobs import Job, run_jobs
run_jobs([Job("walks", "prepare", {words!r}, log={f"Path({str(tmp_path / 'log')!r})" if log else None})])"""
    process = subprocess.Popen([sys.executable, "-c", code])

    def begun() -> list[str]:
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

    wait_until(lambda: (tmp_path / "store").exists())
    children = begun()
    process.send_signal(getattr(signal, number))
    assert process.wait(60) == status and children
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_an_input_that_changed_meanwhile_leaves_a_job_to_be_done_again(tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    (source / "a.txt").write_text("a")
    written = tmp_path / "written"
    written.touch()
    job = Job("read", "inspect", HELP, (source,), (written,))
    record = JobRecord(Place.parse(tmp_path / "jobs.json"))

    def start_and_change(job: Job, at_once: int) -> subprocess.Popen[bytes]:
        (source / "late.txt").write_text("late")
        return start_job(job, at_once)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "start_job", start_and_change)
        assert run_jobs([job], record=record) == {}
    assert not record.is_current(job)
    assert run_jobs([job], record=record) == {} and record.is_current(job)


def test_a_text_behind_a_link_changes_a_folders_stamp(tmp_path: Path) -> None:
    """The corpora follow links."""
    (tmp_path / "books").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "books" / "more").symlink_to(tmp_path / "more")
    before = content_stamp(Place.parse(tmp_path / "books"))
    (tmp_path / "more" / "new.txt").write_text("new")
    assert content_stamp(Place.parse(tmp_path / "books")) != before


def test_a_disk_without_room_for_a_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            run_jobs([Job("help", "inspect", HELP, log=log)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert caught.value.filename == str(log)


def test_a_users_error_is_not_tried_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = Job("made up", "verify", (str(tmp_path / "no-such-store"),))
    assert run_jobs([wrong], retries=3) == {wrong: 2}
    streams = capfd.readouterr()
    assert streams.out.count("[1/1] made up: python -m pipelines.verify") == 1 and "trying again" not in streams.err
    assert "[1/1] made up: cannot be done as asked; its own message says why" in streams.err
    logged = replace(wrong, log=tmp_path / "log")
    assert run_jobs([logged]) == {logged: 2}
    assert f"[1/1] made up: {tmp_path}/no-such-store: there is no such folder; " in capfd.readouterr().err
    with (tmp_path / "log").open("a") as log:
        log.write("\n$ the same again\nkilled\n")
    assert logged.own_error() == ""


def test_what_fails_is_tried_again_and_in_turn_no_other_begins(capfd: pytest.CaptureFixture[str]) -> None:
    fails = Job("made up", "no_such_command", ())
    assert run_jobs([fails, Job("next", "inspect", HELP)], retries=2, in_turn=True) == {fails: 1}
    streams = capfd.readouterr()
    assert streams.out.count("[1/2] made up: python -m pipelines.no_such_command") == 3
    assert streams.err.count("[1/2] made up: failed with exit status 1; trying again") == 2
    assert "[1/2] made up: failed with exit status 1; not begun: next" in streams.err


def test_side_by_side_each_fails_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = Job("bad", "inspect", (str(tmp_path / "nothing"),), log=tmp_path / "logs/bad.log")
    good = Job("good", "inspect", HELP, log=tmp_path / "logs/good.log")
    assert run_jobs([bad, good], at_once=2) == {bad: 2}
    streams = capfd.readouterr()
    assert "[2/2] " in streams.out + streams.err and "logs/bad.log" in streams.err
    assert "error: " in (tmp_path / "logs/bad.log").read_text() and "usage" in (tmp_path / "logs/good.log").read_text()


@pytest.mark.parametrize("in_turn", [True, False])
def test_asked_to_stop_it_begins_no_other_and_keeps_what_ended_well(
    in_turn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start_and_ask(job: Job, at_once: int) -> subprocess.Popen[bytes]:
        process = start_job(job, at_once)
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C, which the terminal sends to the command too
        return process

    monkeypatch.setattr(jobs, "start_job", start_and_ask)
    record = JobRecord(Place.parse(tmp_path / "record.json"))
    first = Job("first", "inspect", HELP, writes=(tmp_path,))
    with pytest.raises(SystemExit, match=str(STOPPED_STATUS)):
        run_jobs([first, Job("second", "inspect", HELP)] if in_turn else [first], record=record, in_turn=in_turn)
    assert "stopped; the same command resumes here" in capfd.readouterr().err
    if in_turn:
        assert run_jobs([Job("last", "inspect", HELP)], in_turn=True) == {}  # nothing is left to do
    assert "first" in (tmp_path / "record.json").read_text()


def test_what_is_current_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = JobRecord(Place.parse(tmp_path / "record/jobs.json"))
    read = tmp_path / "read.json"
    written = tmp_path / "written.json"
    read.write_text("1")
    job = Job("job", "inspect", HELP, (read,), (written,), ("--moved", "here"))
    record.keep(job)
    assert not record.is_current(job)  # it has written nothing
    written.write_text("1")
    record.keep(job)
    assert record.is_current(job) and run_jobs([job], record=record) == {}
    assert capfd.readouterr().out == "[1/1] job: done before, and nothing has changed since\n"
    kept = record.file.read_bytes()
    record.file.write_atomically(b"[]")  # damaged
    assert not record.is_current(job)
    record.file.write_atomically(kept)
    others = [
        Job("job", "inspect", HELP, (read,), (written,), ("--moved", "there")),
        Job("job", "inspect", ("-h",), (read,), (written,), job.unhashed),
        Job("job", "inspect", HELP),
    ]
    assert [record.is_current(other) for other in others] == [True, False, False]
    for changed in (read, written):
        before = changed.read_text()
        changed.write_text("2")
        assert not record.is_current(job)
        changed.write_text(before)
    (tmp_path / "record/jobs.json").write_text('{"job": "')  # cut short
    assert not record.is_current(job)


def test_no_secret_is_shown_and_another_password_changes_nothing(tmp_path: Path) -> None:
    def job(password: str) -> Job:
        words = ("--data.store", f"s3://KEY:{password}@books/store?secret_key={password}", "--no-such-option")
        return Job("made up", "verify", words, writes=(tmp_path,), log=tmp_path / "logs/one.log")

    start_job(job("SECRET")).wait()
    said = (tmp_path / "logs/one.log").read_text()
    assert said.startswith("$ python -m pipelines.verify --data.store s3://books/store --no-such-option\n")
    assert "SECRET" not in said
    assert job("SECRET").fingerprint() == job("ANOTHER").fingerprint() != ""


def test_marks_tell_a_changed_file_or_folder(tmp_path: Path) -> None:
    place = Place.parse(tmp_path)
    (tmp_path / "a.json").write_text("1")
    before = content_stamp(place), content_stamp(place / "a.json")
    assert before == (content_stamp(place), content_stamp(place / "a.json")) and all(before)
    (tmp_path / "a.json").write_text("2")
    assert content_stamp(place / "a.json") != before[1] and content_stamp(place) != before[0]
    assert content_stamp(place / "missing.json") == ""
    (tmp_path / "checkpoints").mkdir()
    assert content_stamp(place / "checkpoints") == ""  # none in it


def test_a_folder_that_another_command_writes_has_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two `run` commands for one corpus: one prepares it while the other one looks."""
    staged = tmp_path / "part-00000.arrow.1.0badc0de.tmp"
    list_files = Place.list

    def list_and_rename(place: Place, *options: bool, **more: bool) -> list[Listed]:
        staged.touch()
        found = list_files(place, *options, **more)
        staged.rename(tmp_path / "part-00000.arrow")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Place, "list", list_and_rename)
        assert content_stamp(Place.parse(tmp_path)) == ""
    assert content_stamp(Place.parse(tmp_path)) != ""


def test_another_source_in_a_bucket_has_another_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "changed", lambda place: 0)  # as of an object
    source = tmp_path / "threads.jsonl.gz"
    source.write_bytes(b"one")
    before = content_stamp(Place.parse(source))
    assert before == content_stamp(Place.parse(source))
    source.write_bytes(b"another")
    assert content_stamp(Place.parse(source)) != before
