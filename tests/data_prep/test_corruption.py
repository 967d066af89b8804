"""Damage of every kind to every file of a store is named at the first read that touches it. None is silent."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.places import Place
from data_prep import committing, segments
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from data_prep.tokenizers import TokenizerError
from data_prep.verification import verify_split
from pipelines.prepare import PrepareConfig, prepare
from tests.small_corpus import contents

FLIPS = 300


@pytest.fixture
def store(make_config: Callable[..., PrepareConfig], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A train split of several parts with several record batches each, and a tokenizer with a file of its own."""
    monkeypatch.setattr(segments, "BATCH_BYTES", 3000)
    made = make_config(splits=("train",), tokenizer="sentencepiece-bpe:400", part_bytes=9000)
    prepare(made)
    return made.folder


def read_everything(folder: Path) -> None:
    """What training, evaluation and generation touch."""
    store = SegmentStore.open(folder / "train")
    store.tokenizer()
    for document in range(len(store.lengths)):
        store.tokens(document, 0, int(store.lengths[document]))


def test_every_flipped_byte_is_named(store: Path) -> None:
    read_everything(store)
    whole = contents(store)
    names = sorted(whole)
    assert names == [
        "tokenizer/tokenizer.json", "tokenizer/tokenizer.model", "train/documents.arrow", "train/manifest.json",
        "train/part-00000.arrow", "train/part-00001.arrow", "train/part-00002.arrow",
    ]  # fmt: skip
    for seed, (name, place) in enumerate(places(whole, random.Random(0))):
        data = bytearray(whole[name])
        data[place] ^= random.Random(seed).randrange(1, 256)
        (store / name).write_bytes(data)
        with pytest.raises((StoreError, TokenizerError), match=r"--overwrite") as caught:
            read_everything(store)
        said = "/text/tokenizer" if name.startswith("tokenizer/") else f"/text/{name}"
        assert said in str(caught.value), (name, place)
        (store / name).write_bytes(whole[name])
    read_everything(store)


def places(whole: dict[str, bytes], generator: random.Random) -> Iterator[tuple[str, int]]:
    """Files and places in them: the first and last bytes of each, then any, each file as often as the others."""
    for name, data in whole.items():
        for place in (0, len(data) - 1):
            yield name, place
    names = sorted(whole)
    for i in range(FLIPS - 2 * len(whole)):
        name = names[i % len(names)]
        yield name, generator.randrange(len(whole[name]))


def test_truncated_missing_and_swapped_files_are_named(store: Path) -> None:
    whole = contents(store)
    for name, data in whole.items():
        for size in {0, 1, len(data) // 2, len(data) - 1}:
            (store / name).write_bytes(data[:size])
            with pytest.raises((StoreError, TokenizerError), match=name.split("/")[1].split(".")[0]):
                read_everything(store)
        (store / name).unlink()
        with pytest.raises((StoreError, TokenizerError), match=r"is missing|there is no prepared split"):
            read_everything(store)
        (store / name).write_bytes(data)
    first, second = store / "train" / "part-00000.arrow", store / "train" / "part-00001.arrow"
    for a, b in ((first, second), (second, first)):
        shutil.copyfile(a, b)
        with pytest.raises(StoreError, match=rf"{b.name} (is damaged|has \d+ bytes)"):
            read_everything(store)
        b.write_bytes(whole[f"train/{b.name}"])
    read_everything(store)


@pytest.mark.parametrize(
    "name", ["train/manifest.json", "train/documents.arrow", "train/part-00000.arrow", "tokenizer/tokenizer.json"]
)
def test_a_file_that_cannot_be_read_does_not_end_the_verification(store: Path, name: str) -> None:
    (store / name).unlink()
    (store / name).mkdir()  # a damaged disk refuses too
    (fault,) = verify_split(Place.parse(store / "train"), done=lambda size: None)
    assert str((store / name).parent) in fault and "cannot be read (Is a directory)" in fault


def test_two_parts_of_one_size_swapped(make_config: Callable[..., PrepareConfig], text_folder: Path) -> None:
    for name in ("doc0", "doc1"):
        (text_folder / "train" / f"{name}.txt").write_text(f"{name} " * 1000)
    made = make_config(splits=("train",))
    prepare(made)
    parts = sorted((made.folder / "train").glob("part-*.arrow"), key=lambda path: path.stat().st_size)
    whole = contents(made.folder)
    pairs = [(a, b) for a in parts for b in parts if a < b and a.stat().st_size == b.stat().st_size]
    assert pairs
    for a, b in pairs:
        a.write_bytes(whole[f"train/{b.name}"])
        b.write_bytes(whole[f"train/{a.name}"])
        with pytest.raises(StoreError, match=r"part-\d+\.arrow is damaged in record batch 0"):
            SegmentStore.open(made.folder / "train").tokens(0, 0, 1)


def test_a_damaged_ledger_or_part_of_an_unfinished_store_is_made_anew(
    make_config: Callable[..., PrepareConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    whole = make_config(store=str(tmp_path / "whole"), splits=("train",))
    prepare(whole)
    made = make_config(splits=("train",))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(committing, "finish_split", dies)
        prepare(made)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(made.folder, unfinished)
    generator = random.Random(0)
    for name in ("ledger/part-00000.json", "ledger/part-00001.json", "part-00000.arrow", "part-00002.arrow"):
        for _ in range(5):
            shutil.rmtree(made.folder)
            shutil.copytree(unfinished, made.folder)
            path = made.folder / "train" / name
            data = bytearray(path.read_bytes())
            data[generator.randrange(len(data))] ^= generator.randrange(1, 256)
            path.write_bytes(data)
            prepare(made)
            assert contents(made.folder) == contents(whole.folder)
