"""Corpus and store in an object store, over a real S3 API: prepared, resumed, read, trained from and evaluated like local ones."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import places
from common.places import Place
from data_prep import committing
from data_prep import store as stores
from data_prep.corpora import CORPORA
from data_prep.manifest import MissingSplit, StoreError
from data_prep.parts import PartPlan, PartResult, write_part
from data_prep.plan import SplitPlan
from data_prep.store import SegmentStore
from data_prep.tokenizers import load_tokenizer
from data_prep.verification import verify_split
from pipelines.checkpoints import run_folder
from pipelines.checkpoints.run_folder import RECORDS, RunFolder
from pipelines.prepare import PrepareConfig, prepare
from pipelines.train import main as train
from tests.s3_server import ENVIRONMENT, publish
from tests.small_corpus import contents
from tests.small_runs import TINY, values_of

pytest.importorskip("moto", reason="the S3 server of the tests is in the extra dev")

ROOT = Path(__file__).parents[2]


def objects(uri: str) -> dict[str, bytes]:
    return {file.name: file.place.read_bytes() for file in Place.parse(uri).list(recursive=True) if not file.is_dir}


KILLED = """
import os, signal, sys
from data_prep import committing
from pipelines.prepare import main
def killed(*arguments):
    commit(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
commit, committing.commit_part = committing.commit_part, killed
main(sys.argv[1:])
"""


@pytest.mark.long
def test_prepared_from_s3_to_s3_after_a_kill_and_trained_from(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], text_folder: Path, tmp_path: Path
) -> None:
    publish(text_folder, bucket("corpus"))
    made = make_config(corpus=CORPORA["text"](source=bucket("corpus")), store=bucket("store"))
    words = ["text", "--source", bucket("corpus"), "--store", bucket("store"), "--segment-length", "64"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *words, "--part-bytes", "4000", "--num-workers", "0"],
        cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(MissingSplit, match=r"s3://books/.*/store/text/train was not finished"):
        SegmentStore.open(bucket("store"), "text", "train")

    prepare(made)
    local = make_config(store=str(tmp_path / "local"))
    prepare(local)
    assert objects(bucket("store")) == contents(Path(local.store))

    run = ["--root", str(tmp_path / "runs"), "--steps", "3", "--validate-every", "2"]
    train([*TINY, *run, "--data.store", bucket("store"), "--run", "s3"])
    train([*TINY, *run, "--data.store", local.store, "--run", "local"])
    ours, theirs = (values_of(tmp_path / "runs" / name, "train/bits_per_token") for name in ("s3", "local"))
    assert len(ours) == 3 and ours == theirs


def test_where_to_look_opens_there(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(make_config(store=bucket("store")))
    (look,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Look: "))
    assert SegmentStore.open(shlex.split(look)[-1], cache="none").manifest.split == "train"


def test_damage_in_a_bucket_is_named_and_memory_is_bounded(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    prepare(make_config(store=bucket("store")))
    store = SegmentStore.open(bucket("store"), "text", "train", cache="none")
    monkeypatch.setattr(stores, "REMOTE_BYTES", 1)
    text = store.tokenizer().decode(store.tokens(0, 0, 40))
    for document in range(len(store.lengths)):
        store.tokens(document, 0, int(store.lengths[document]))
    assert len(store._batches) == 1 and store.tokenizer().decode(store.tokens(0, 0, 40)) == text
    part = Place.parse(bucket("store")) / "text" / "train" / "part-00001.arrow"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_atomically(bytes(data))
    for cache in ("none", str(tmp_path / "cache")):
        with pytest.raises(StoreError, match=r"s3://books/.*/part-00001\.arrow is damaged in record batch 0"):
            SegmentStore.open(bucket("store"), "text", "train", cache=cache).verify()


class Unclosable:
    """A stream to an object whose upload fails when it is ended, as far as its writer hears: S3 has it nevertheless."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        raise OSError("the network is gone")


@pytest.mark.parametrize("fault", ["raised", "interrupted", "closing"])
def test_a_failed_rewrite_keeps_the_object_that_stood(
    bucket: Callable[[str], str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.parse(bucket("folder")) / "metrics.jsonl"
    place.write_atomically(b"old")
    real = place.filesystem

    class Failing:
        type_name = real.type_name

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def open_output_stream(self, *arguments: Any, **options: Any) -> Unclosable:
            return Unclosable(real.open_output_stream(*arguments, **options))

    if fault == "closing":
        monkeypatch.setattr(Place, "filesystem", Failing())
    with pytest.raises((OSError, KeyboardInterrupt)), place.writing() as stream:
        stream.write(b"new" * (4 << 20))  # more than a part of an upload
        if fault != "closing":
            raise OSError if fault == "raised" else KeyboardInterrupt
    monkeypatch.undo()
    assert place.read_bytes() == b"old" and [file.name for file in place.parent.list()] == ["metrics.jsonl"]


def test_objects_too_large_to_be_copied_are_written_too(
    bucket: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.parse(bucket("folder")) / "part"
    monkeypatch.setattr(places, "MAX_COPIED", {"s3": 5})
    for data in (b"small", b"larger", b"s"):
        place.write_atomically(data)
        assert place.read_bytes() == data and [file.name for file in place.parent.list()] == ["part"]


def test_an_interrupted_publication_keeps_the_curve(
    bucket: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = RunFolder.parse(bucket("runs/mine"))
    run.folder.mkdir(parents=True)
    curve = run.folder / "metrics.jsonl"
    curve.write_text("step 1\n")
    run.publish("metrics.jsonl")

    def interrupted(source: Any, target: Any, size: int) -> None:
        target.write(b"half")
        raise KeyboardInterrupt

    curve.write_text("step 1\nstep 2\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder.shutil, "copyfileobj", interrupted)
        run.publish("metrics.jsonl")
    run.fetch("metrics.jsonl")
    with (run.place / "metrics.jsonl").staged().open_output() as killed:  # before it got its name
        killed.write(b"half")
    with run.published("metrics.jsonl"):
        pass
    assert curve.read_text() == "step 1\n" and [file.name for file in run.place.list()] == ["metrics.jsonl"]


def test_a_curve_that_a_bucket_with_checkpoints_lacks_stays(
    bucket: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = RunFolder.parse(bucket("runs/mine"))
    for checkpoints in (True, False):
        run.folder.mkdir(parents=True, exist_ok=True)
        for name in RECORDS:
            (run.folder / name).write_text("{}")
        committed = run.checkpoints / "step-00000005.0badc0de" / "checkpoint.json"
        committed.write_atomically(b"{}") if checkpoints else committed.delete()
        run.fetch(*RECORDS)
        assert [path.name for path in run.folder.iterdir()] == ["metrics.jsonl"] * checkpoints


@pytest.mark.parametrize("moment", ["clear_split", "commit_part", "write_table", "_manifest", "tidy_split"])
def test_two_machines_prepare_the_same_in_a_bucket_at_once(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, moment: str,
) -> None:  # fmt: skip
    """The second one begins and ends while the first one is at a moment: no lock of this machine keeps it out."""
    monkeypatch.setattr("pipelines.prepare.file_lock", lambda *_: nullcontext())
    made = make_config(store=bucket("store"), splits=("train", "validation"))
    function, calls = getattr(committing, moment), []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        calls.append(moment)
        second = len(calls) == 2
        if second and moment != "clear_split":
            prepare(made)
        result = function(*arguments, **options)
        if second and moment == "clear_split":  # the other one meets what this one has done
            prepare(made)
        return result

    monkeypatch.setattr(committing, moment, meanwhile)
    prepare(made)
    assert len(calls) >= 2
    monkeypatch.undo()
    local = make_config(store=str(tmp_path / "local"), splits=made.splits)
    prepare(local)
    assert objects(made.store) == contents(Path(local.store))


def test_a_late_worker_replaces_nothing(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig]
) -> None:
    """It was begun by a preparation that was killed, and ends when the split has long been finished."""
    made = make_config(store=bucket("store"), splits=("train",))
    prepare(made)
    before = objects(made.store)
    folder = made.place / "train"
    late = PartPlan(made.corpus, 64, 0, 0, (), np.empty(0, np.uint64), "another", 1)
    write_part(folder, late, load_tokenizer(made.place / "tokenizer"))
    after = objects(made.store)
    left = set(after) - set(before)
    assert {name: after[name] for name in before} == before and len(left) == 1
    assert [fault for fault in verify_split(folder, lambda _: None) if "run the same prepare command again" in fault]
    prepare(made)
    assert objects(made.store) == before and not verify_split(folder, lambda _: None)


def test_two_machines_that_prepare_different_things_make_no_mixture(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_config(store=bucket("store"), splits=("train",))
    function = committing.commit_part

    def replaced(folder: Place, plan: SplitPlan, index: int, staged: Place, result: PartResult) -> None:
        if index:
            result = dataclasses.replace(result, fingerprint="of another plan")
        function(folder, plan, index, staged, result)

    monkeypatch.setattr(committing, "commit_part", replaced)
    with pytest.raises(StoreError, match="another machine prepares something else in s3://books/"):
        prepare(made)


def test_credentials_in_a_uri_are_in_no_record(
    endpoint: str, make_config: Callable[..., PrepareConfig], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    uri = f"s3://testing:testing-secret@books/credentials?endpoint_override={endpoint}&scheme=http"
    prepare(make_config(store=uri))
    where = ["--data.store", uri, "--root", str(tmp_path / "runs"), "--run", "s3"]
    train([*TINY, *where, "--steps", "2", "--validate-every", "0", "--tracking.backend", "none"])
    output = capfd.readouterr()
    assert "s3://books/credentials" in output.out and "testing-secret" not in output.out + output.err
    written = {**contents(tmp_path / "runs"), **objects(uri)}
    assert written and not [name for name, data in written.items() if b"testing-secret" in data]
