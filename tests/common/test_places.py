"""Places: local folders and URIs behind one class."""

from __future__ import annotations

import errno
import os
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from common.credentials import without_credentials
from common.errors import is_users
from common.places import TEMPORARY, Place
from common.uris import PlaceError
from tests.ordinary_user import ordinary_user


@pytest.fixture(params=["local", "file", "mock"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder `a b` to write to, on different file systems."""
    text = {"local": f"{tmp_path}/a b", "file": f"file://{tmp_path}/a%20b", "mock": "mock:///a%20b"}[request.param]
    place = Place.parse(text)
    place.make_folder()
    return place


def test_files_are_written_listed_read_and_deleted(place: Place):
    assert Place.parse(place.text) == place == pickle.loads(pickle.dumps(place))
    assert place.name == "a b" and (place / "x" / "y").parent == place / "x" and place.is_dir()
    (place / "sub").make_folder()
    (place / "sub" / "é.txt").write_atomically("ü".encode())
    (place / "b").write_atomically(b"12345")
    (place / "b").write_atomically(b"123")
    assert [(f.name, f.bytes, f.is_dir) for f in place.list()] == [("b", 3, False), ("sub", 0, True)]
    assert [f.name for f in place.list(recursive=True)] == ["b", "sub", "sub/é.txt"]
    assert (place / "sub" / "é.txt").read_bytes().decode() == "ü"
    assert (place / "b").size() == 3 and (place / "b").is_file() and not (place / "c").exists()
    with (place / "b").open_random() as file:
        file.seek(1)
        assert file.read(5) == b"23"
    (place / "sub").delete()
    (place / "b").delete()
    (place / "b").delete()
    assert place.list() == [] and (place / "nowhere").list(recursive=True) == []
    with pytest.raises(FileNotFoundError):
        (place / "b").open_stream()
    with pytest.raises(FileNotFoundError):
        (place / "b").size()


def test_a_write_that_fails_leaves_nothing(place: Place):
    with pytest.raises(KeyError), (place / "b").writing() as stream:
        stream.write(b"half")
        raise KeyError
    assert place.list() == []


def test_a_reader_may_rename_the_folder_of_a_new_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As rank 0 does with a checkpoint's folder when it finds the last note."""
    folder = tmp_path / "folder"
    folder.mkdir()
    replace = os.replace

    def replace_and_rename(source: str, target: str) -> None:
        replace(source, target)
        folder.rename(tmp_path / "renamed")

    monkeypatch.setattr(os, "replace", replace_and_rename)
    (Place.parse(folder) / "note").write_atomically(b"x")
    assert (tmp_path / "renamed" / "note").read_bytes() == b"x"


def test_a_disk_that_takes_no_more_names_the_file(tmp_path: Path):
    full = Place.parse(tmp_path / "full")
    (tmp_path / f"full.1.0123abcd{TEMPORARY}").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        Place.parse(tmp_path / f"full.1.0123abcd{TEMPORARY}").open_output() as stream,
    ):
        stream.write(b"x")
    assert (caught.value.filename, caught.value.strerror) == (full.path, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []

    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most[1]))  # as on a file system that has no larger files
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            full.write_atomically(b"x" * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert caught.value.filename == full.path and is_users(caught.value)


def test_nothing_is_deleted_from_a_read_only_disk(place: Place, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", refused)  # such a disk does not look first whether there is something to delete
    (place / "nothing").delete()


def test_a_folder_with_odd_names_and_links(tmp_path: Path):
    (tmp_path / os.fsdecode(b"\xff.txt")).write_bytes(b"x")
    (tmp_path / "nothing").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "empty").write_bytes(b"")
    listed = Place.parse(tmp_path).list(recursive=True)
    assert [(f.name, f.bytes) for f in listed] == [("empty", 0), ("loop", 0), (os.fsdecode(b"\xff.txt"), 1)]
    assert listed[-1].place.read_bytes() == b"x" and listed[0].place.read_bytes() == b""
    with listed[0].place.open_random() as file:
        assert file.size() == 0


def test_a_folder_above_is_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "mine" / "checkpoints")
    monkeypatch.chdir(tmp_path / "runs" / "mine" / "checkpoints")
    assert Place.parse("..") == Place.parse(tmp_path / "link" / "..") == Place.parse(tmp_path / "runs" / "mine")
    assert (Place.parse("..").name, Place.parse("../..").parent.path) == ("mine", str(tmp_path))
    with pytest.raises(PlaceError, match="~nobody-of-that-name/x begins in a home folder that is not known here"):
        Place.parse("~nobody-of-that-name/x")


def test_credentials_are_never_shown(monkeypatch: pytest.MonkeyPatch):
    uri = "s3://KEY:very%2Fsecret@bucket/a%20b?endpoint_override=127.0.0.1:1&scheme=http"
    place = Place.parse(uri) / "train"
    assert place.path == "bucket/a b/train" and Place.parse(place.text) == place
    assert place.shown == str(place) == "s3://bucket/a%20b/train"
    assert place.recorded == "s3://bucket/a%20b/train?endpoint_override=127.0.0.1:1&scheme=http"
    assert without_credentials(uri) == "s3://bucket/a%20b?endpoint_override=127.0.0.1:1&scheme=http"
    assert without_credentials("runs/a") == "runs/a"
    for text in (repr(place), f"{place}", place.recorded):
        assert "KEY" not in text and "secret" not in text


def test_a_rewrite_that_fails_keeps_what_stood(place: Place):
    (place / "b").write_atomically(b"old")
    with pytest.raises(KeyboardInterrupt), (place / "b").writing() as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert (place / "b").read_bytes() == b"old" and [file.name for file in place.list()] == ["b"]


def test_files_of_a_folder_that_may_not_be_searched_are_not_left_out(reachable: Path) -> None:
    folder = reachable / "sub"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    folder.chmod(0o444)
    with ordinary_user(), pytest.raises(PermissionError, match=r"Permission denied: '.*/sub/a\.txt'"):
        Place.parse(reachable).list(recursive=True)


def test_a_file_that_may_not_be_read_is_named(reachable: Path) -> None:
    path = reachable / "a.txt"
    path.write_text("a")
    path.chmod(0)
    with ordinary_user(), pytest.raises(PermissionError, match=r"Permission denied: '.*/a\.txt'"):
        Place.parse(path).read_bytes()


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(NotADirectoryError, match=r"Not a directory: '.*/a\.txt/b'"):
        Place.parse(tmp_path / "a.txt" / "b").read_bytes()


def test_a_file_that_may_not_be_written_is_named_without_its_temporary_name(reachable: Path) -> None:
    reachable.chmod(0o755)
    with ordinary_user(), pytest.raises(PermissionError, match=r"Permission denied: '.*/a\.txt'"):
        (Place.parse(reachable) / "a.txt").write_atomically(b"a")


def test_a_folder_that_is_gone_is_named_without_a_temporary_name(tmp_path: Path) -> None:
    place = Place.parse(tmp_path / "gone" / "a.txt")
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: '[^']*/gone/a\.txt'$"):
        place.write_atomically(b"a")
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: '[^']*/gone/a\.txt'$"):
        place.commit(place.staged())


def test_a_file_that_may_not_be_read_is_named_while_another_is_written(reachable: Path) -> None:
    path = reachable / "a.txt"
    path.write_text("a")
    path.chmod(0)
    written = Place.parse(reachable / "b.txt")
    with ordinary_user(), pytest.raises(PermissionError, match=r"/a\.txt'"), written.writing() as stream:
        stream.write(Place.parse(path).read_bytes())


def test_a_hub_that_cannot_be_reached_is_one_sentence() -> None:
    """pyarrow opens hf:// with a file system in Python, whose libraries have errors of their own."""
    ask = "from common.places import Place; Place.parse('hf://datasets/x/y').exists()"
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    found = subprocess.run(
        [sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert re.search(r"^ConnectionError: hf://datasets/x/y cannot be reached: .*$", found.stderr, re.MULTILINE), (
        found.stderr
    )
