"""Segment files of a store in a bucket on this machine's disk: fetched once, verified, made anew when damaged, and bounded."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from common.places import Place
from data_prep.cache import SegmentCache, cache_folder
from data_prep.manifest import PartEntry
from data_prep.store import SegmentStore
from pipelines.prepare import PrepareConfig, prepare
from tests.s3_server import uri_in_bucket

pytest.importorskip("moto", reason="the S3 server of the tests is in the extra dev")
Open = Callable[..., SegmentStore]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that were fetched."""
    names: list[str] = []
    fetch = SegmentCache._fetch

    def counted(self: SegmentCache, place: Place, *arguments: object) -> bool:
        names.append(place.name)
        time.sleep(0.02)
        return fetch(self, place, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentCache, "_fetch", counted)
    return names


@pytest.fixture
def open_store(
    endpoint: str, make_config: Callable[..., PrepareConfig], tmp_path: Path, request: pytest.FixtureRequest
) -> Open:
    uri = uri_in_bucket(endpoint, request.node.name)
    prepare(make_config(store=uri))
    return lambda cache="": SegmentStore.open(uri, "text", "train", cache=cache or str(tmp_path / "cache"))


def all_tokens(store: SegmentStore) -> np.ndarray:
    return np.concatenate([store.tokens(i, 0, length) for i, length in enumerate(store.lengths.tolist())])


def test_each_part_is_fetched_once_whoever_needs_it(open_store: Open, fetched: list[str], tmp_path: Path) -> None:
    expected = all_tokens(open_store("none"))
    assert not fetched and not (tmp_path / "cache").exists()
    stores = [open_store() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:  # a lock of a file is as good between threads as between processes
        found = list(pool.map(all_tokens, stores))
    assert all(np.array_equal(tokens, expected) for tokens in found)
    parts = stores[0].manifest.parts
    assert len(parts) > 2 and sorted(fetched) == [part.name for part in parts]
    assert not list((tmp_path / "cache").glob("*.tmp"))
    assert np.array_equal(all_tokens(open_store()), expected) and len(fetched) == len(parts)


@pytest.mark.parametrize("damage", ["a byte", "the footer", "truncated", "emptied"])
def test_a_damaged_copy_is_fetched_again(
    open_store: Open, fetched: list[str], tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = all_tokens(open_store())
    count = len(fetched)
    copy = sorted((tmp_path / "cache").glob("*.arrow"))[0]
    data = bytearray(copy.read_bytes())
    if damage in ("a byte", "the footer"):
        data[len(data) // 2 if damage == "a byte" else -20] ^= 1
    copy.write_bytes({"truncated": data[:100], "emptied": b""}.get(damage, data))
    assert np.array_equal(all_tokens(open_store()), expected) and len(fetched) == count + 1
    told = capfd.readouterr().err
    assert ("in the cache is damaged: fetching it again" in told) == (damage in ("a byte", "the footer"))


def test_the_folder_is_bounded_and_leftovers_go(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    sizes = [part.bytes for part in store.manifest.parts]
    cache = SegmentCache(tmp_path / "small", most_bytes=max(sizes) * 2)
    cache.folder.mkdir()
    staged = cache.folder / "0123456789abcdef-1.arrow.1.01234567.tmp"
    others = [cache.folder / name for name in ("mine.arrow", "notes.tmp", "weights.safetensors")]
    for path in (staged, *others):
        path.write_bytes(b"x" * 4000)
        os.utime(path, (0, 0))
    (cache.folder / "folder.tmp").mkdir()
    for part in store.manifest.parts:
        assert cache.file(store.place / part.name, part)
        assert sum(path.stat().st_size for path in cache.folder.glob("?" * 16 + "-*.arrow")) <= cache.most_bytes
    last = store.manifest.parts[-1]
    assert (cache.folder / f"{last.xxh3}-{last.bytes}.arrow").exists() and not staged.exists()
    assert all(path.exists() for path in others)  # the user's own


def test_a_file_that_another_process_begins_to_read_stays(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked for the file after it was listed as the one used longest ago: it would open a file that is gone."""
    store = open_store()
    first, second, *_, last = store.manifest.parts
    cache = SegmentCache(tmp_path / "small", most_bytes=last.bytes)
    earlier = [cache.folder / f"{part.xxh3}-{part.bytes}.arrow" for part in (first, second)]
    cache.folder.mkdir()
    for age, (path, part) in enumerate(zip(earlier, (first, second), strict=True)):
        path.write_bytes(b"x" * part.bytes)
        os.utime(path, (age, age))
    unlink = Path.unlink

    def unlink_while_it_is_used(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path == earlier[0]:
            assert cache.file(store.place / second.name, second) == earlier[1]

    monkeypatch.setattr(Path, "unlink", unlink_while_it_is_used)
    assert cache.file(store.place / last.name, last)
    assert [path.exists() for path in earlier] == [False, True]


def test_a_file_that_is_removed_before_it_is_opened_is_fetched_again(
    open_store: Open, fetched: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a user, or by another process that needs the room. A part that the bucket lacks is still an error."""
    expected = all_tokens(open_store("none"))
    store = open_store()
    gone = store.manifest.parts[1].name
    find = SegmentCache.file

    def find_and_remove(cache: SegmentCache, place: Place, entry: PartEntry) -> Path | None:
        path = find(cache, place, entry)
        if path and place.name == gone and fetched.count(gone) == 1:
            path.unlink()
        return path

    monkeypatch.setattr(SegmentCache, "file", find_and_remove)
    assert np.array_equal(all_tokens(store), expected) and fetched.count(gone) == 2
    assert capfd.readouterr().err.count("in the cache is gone: fetching it again") == 1
    (store.place / store.manifest.parts[0].name).delete()
    with pytest.raises(FileNotFoundError):
        all_tokens(SegmentStore(store.place, store.manifest, store.documents, cache=f"{store.cache}-2"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_costs_the_cache_alone(
    open_store: Open, number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = all_tokens(open_store("none"))

    def without(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    assert np.array_equal(all_tokens(open_store()), expected)
    assert capfd.readouterr().err.count("no cache in") == 1


def test_a_disk_without_room_costs_the_cache_alone(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = all_tokens(open_store("none"))

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SegmentCache, "_fetch", full)
    assert np.array_equal(all_tokens(open_store()), expected)
    assert capfd.readouterr().err.count("no cache in") == 1


def test_another_process_opens_it_with_the_same_cache(open_store: Open, fetched: list[str]) -> None:
    assert not pickle.loads(pickle.dumps(open_store("none")))._mapped
    store = open_store()
    expected, count = all_tokens(store), len(fetched)
    again = pickle.loads(pickle.dumps(store))
    assert np.array_equal(all_tokens(again), expected) and len(fetched) == count


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "throughline" and SegmentCache.of("") == SegmentCache(
        tmp_path / "throughline" / "segments"
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "throughline"
    assert SegmentCache.of("none") is None
    with pytest.raises(UserError, match=r"data\.cache is s3:.*: name a folder that each machine has, or none"):
        SegmentCache.of("s3://bucket/cache")
