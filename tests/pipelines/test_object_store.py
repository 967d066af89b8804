"""Corpus and store in an object store, over a real S3 API: prepared, resumed, read, trained from and evaluated like local ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import store as stores
from data_prep.corpora import CORPORA
from data_prep.manifest import MissingSplit, StoreError
from data_prep.places import Place
from data_prep.store import SegmentStore
from pipelines.metrics_file import read_records
from pipelines.prepare import PrepareConfig, prepare
from pipelines.train import main as train
from tests.pipelines.conftest import TINY
from tests.s3_server import ENVIRONMENT
from tests.small_corpus import contents

pytest.importorskip("moto", reason="the S3 server of the tests is in the extra dev")

ROOT = Path(__file__).parents[2]


def upload(folder: Path, uri: str) -> None:
    for name, data in contents(folder).items():
        (Place.parse(uri) / name).write_atomically(data)


def objects(uri: str) -> dict[str, bytes]:
    return {file.name: file.place.read_bytes() for file in Place.parse(uri).list(recursive=True) if not file.is_dir}


KILLED = """
import os, signal, sys
from data_prep import sharding
from pipelines.prepare import main
def killed(*arguments):
    commit(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
commit, sharding.commit_part = sharding.commit_part, killed
main(sys.argv[1:])
"""


def test_prepared_from_s3_to_s3_after_a_kill_and_trained_from(
    bucket: Callable[[str], str], make_config: Callable[..., PrepareConfig], text_folder: Path, tmp_path: Path
) -> None:
    upload(text_folder, bucket("corpus"))
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
    figures = [
        [
            record.metrics.get("train/bits_per_token")
            for record in read_records(tmp_path / "runs" / name / "metrics.jsonl")
        ]
        for name in ("s3", "local")
    ]
    assert figures[0] == figures[1] and any(figures[0])


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


def test_credentials_in_a_uri_are_in_no_record(
    endpoint: str, make_config: Callable[..., PrepareConfig], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    uri = f"s3://testing:testing-secret@books/credentials?endpoint_override={endpoint}&scheme=http"
    prepare(make_config(store=uri))
    words = [
        "--root",
        str(tmp_path / "runs"),
        "--steps",
        "2",
        "--validate-every",
        "0",
        "--data.store",
        uri,
        "--run",
        "s3",
    ]
    train([*TINY, *words, "--tracking.backend", "none"])
    output = capfd.readouterr()
    assert "s3://books/credentials" in output.out and "testing-secret" not in output.out + output.err
    written = {**contents(tmp_path / "runs"), **objects(uri)}
    assert written and not [name for name, data in written.items() if b"testing-secret" in data]
