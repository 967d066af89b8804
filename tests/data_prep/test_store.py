"""What is written is what is read, and every damaged byte is named."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_prep import segments
from data_prep import store as stores
from data_prep.documents import SPLITS
from data_prep.manifest import Manifest, StoreError
from data_prep.store import SegmentStore
from data_prep.tokenizers import BytesTokenizer, TokenizerError, save_tokenizer
from pipelines.prepare import PrepareConfig, prepare
from tests.small_corpus import contents, flip


@pytest.fixture
def prepared(make_config, monkeypatch: pytest.MonkeyPatch) -> PrepareConfig:
    monkeypatch.setattr(segments, "BATCH_BYTES", 3000)  # several record batches to a part
    made = make_config(part_bytes=9000)
    prepare(made)
    return made


def test_tokens_are_those_of_the_documents(prepared: PrepareConfig) -> None:
    for split in SPLITS:
        store = SegmentStore.open(prepared.store, "text", split)
        texts = {item.id: item.text for item in prepared.corpus.read(prepared.corpus.sources(split))}
        tokenizer = store.tokenizer()
        for i, entry in enumerate(store.manifest.documents):
            text = texts[entry.id]
            tokens = store.tokens(i, 0, entry.tokens)
            assert np.array_equal(tokens, tokenizer.encode(text)) and tokenizer.decode(tokens) == text
            assert np.array_equal(store.tokens(i, 3, entry.tokens - 2), tokens[3:-2])
            assert (entry.words, entry.bytes) == (len(text.split()), len(text.encode()))
        left_out = set(texts) - {entry.id for entry in store.manifest.documents}
        assert left_out == ({"train/blank.txt"} if split == "train" else set())
        assert store.lengths.tolist() == [entry.tokens for entry in store.manifest.documents]
        store.verify()


def test_tokens_are_a_view_of_the_file(prepared: PrepareConfig) -> None:
    store = SegmentStore.open(prepared.store, "text", "train")
    before = pa.total_allocated_bytes()
    tokens = store.tokens(0, 0, 500)
    assert pa.total_allocated_bytes() - before < 500 and not tokens.flags.writeable and not tokens.flags.owndata
    with pytest.raises(IndexError):
        store.tokens(0, 0, int(store.lengths[0]) + 1)


def test_manifest_sums(prepared: PrepareConfig) -> None:
    folder = prepared.folder / "train"
    manifest = SegmentStore.open(folder).manifest
    totals = manifest.totals
    assert (totals.documents, totals.skipped) == (6, {"empty": 1}) and len(manifest.parts) > 1
    for name in ("tokens", "words", "bytes"):
        assert getattr(totals, name) == sum(getattr(document, name) for document in manifest.documents)
    rows = 0
    for part in manifest.parts:
        file = pa.ipc.open_file(pa.memory_map(str(folder / part.name)))  # any Arrow reader reads a part
        assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [b.rows for b in part.batches]
        table = file.read_all()
        lengths = table["length"].to_numpy()
        for i in np.unique(table["document"].to_numpy()):
            own = table["document"].to_numpy() == i
            assert lengths[own].sum() == manifest.documents[i].tokens
            assert np.array_equal(table["offset"].to_numpy()[own], 64 * np.arange(own.sum()))
        rows += table.num_rows
    assert rows == sum(part.rows for part in manifest.parts) == sum(-(-d.tokens // 64) for d in manifest.documents)
    assert max(len(part.batches) for part in manifest.parts) > 1


def test_manifest_round_trip(prepared: PrepareConfig) -> None:
    data = (prepared.folder / "train" / "manifest.json").read_bytes()
    manifest = Manifest.from_json(data, "x")
    assert manifest.to_json() == data and str(prepared.folder) not in data.decode()
    assert dataclasses.replace(manifest, fingerprint="x").to_json() != data


def test_documents_are_a_sequence(prepared: PrepareConfig) -> None:
    documents = SegmentStore.open(prepared.folder / "train").manifest.documents
    assert len(documents) == 6 and documents[1:4:2] == [documents[1], documents[3]]
    assert documents[-1] == list(documents)[-1] == documents[5] and documents[5].id == "train/doc5.txt"
    with pytest.raises(IndexError):
        documents[6]


def test_a_changed_byte_anywhere_in_a_part_is_named(prepared: PrepareConfig) -> None:
    folder = prepared.folder / "train"
    entry = SegmentStore.open(folder).manifest.parts[1]
    path = folder / entry.name
    data = path.read_bytes()
    regions = {"its Arrow schema or footer": [0, 9, entry.batches[0].offset - 1]}
    for i, batch in enumerate(entry.batches):
        places = np.linspace(batch.offset, batch.offset + batch.bytes - 1, 12).astype(int)
        regions[f"record batch {i}"] = places.tolist()
    end = entry.batches[-1].offset + entry.batches[-1].bytes
    regions["its Arrow schema or footer"] += [end, (end + len(data)) // 2, len(data) - 1]
    for name, places in regions.items():
        for place in places:
            damaged = bytearray(data)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=rf"{entry.name} is damaged in {name}: .*--overwrite"):
                SegmentStore.open(folder).verify()
    path.write_bytes(data)
    SegmentStore.open(folder).verify()


def test_missing_and_short_parts(prepared: PrepareConfig) -> None:
    part = prepared.folder / "train" / "part-00001.arrow"
    size = part.stat().st_size
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(StoreError, match=rf"part-00001\.arrow has {size - 8} bytes and should have {size}"):
        SegmentStore.open(prepared.store, "text", "train")
    part.unlink()
    with pytest.raises(StoreError, match=r"part-00001\.arrow is missing: prepare this split again with --overwrite"):
        SegmentStore.open(prepared.store, "text", "train")


def test_damaged_manifest(prepared: PrepareConfig) -> None:
    path = prepared.folder / "train" / "manifest.json"
    text = path.read_text(encoding="utf-8")
    for damaged, words in (
        (text.replace('"empty": 1', '"empty": 0'), "its checksum does not match"),
        (text[: len(text) // 2], "is damaged"),
        ("[]", "is damaged"),
        ("", "is damaged"),
        (text.replace('"schema": 2', '"schema": 1', 1), "has schema version 1 and this code reads version 2"),
        (text.replace('"schema": 2', '"schema": 99', 1), "has schema version 99 and this code reads version 2"),
    ):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(StoreError, match=rf"manifest\.json .*{words}.*--overwrite"):
            SegmentStore.open(prepared.store, "text", "train")
    path.write_bytes(b"\xff" + text.encode())
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        SegmentStore.open(prepared.store, "text", "train")


def test_no_store(prepared: PrepareConfig, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no prepared split in .*: prepare it first"):
        SegmentStore.open(tmp_path / "nowhere", "text", "train")
    with pytest.raises(StoreError, match="the store has text: name a corpus of it, or prepare pg19 first"):
        SegmentStore.open(prepared.store, "pg19", "train")
    (Path(prepared.store) / "empty").mkdir()  # is not meant by its own name
    with pytest.raises(StoreError, match=r"no prepared split in .*empty: prepare it first"):
        SegmentStore.open(Path(prepared.store) / "empty")
    for name in ("validatoin", "tset", "other", "tokenizer"):
        with pytest.raises(
            StoreError, match=f"/text has no split {name}, only train, validation, test: name one of them$"
        ):
            SegmentStore.open(prepared.store, "text", name)
    for given in (prepared.folder, prepared.folder / "train"):
        with pytest.raises(StoreError, match=r"/text is a corpus, and not the store that it lies in: give "):
            SegmentStore.open(given, "text", "train")
    with pytest.raises(StoreError, match="did you mean 'text'"):
        SegmentStore.open(prepared.store, "txt", "train")
    with pytest.raises(StoreError, match=r"is not a split but contains splits: name one, such as .*/text/"):
        SegmentStore.open(prepared.store)
    (prepared.folder / "test" / "manifest.json").unlink()
    with pytest.raises(
        StoreError, match=r"/text has no split test, only train, validation: name one of them, or prepare"
    ):
        SegmentStore.open(prepared.store, "text", "test")
    (prepared.folder / "test" / "ledger").mkdir()
    with pytest.raises(StoreError, match="was not finished: run the same prepare command again"):
        SegmentStore.open(prepared.store, "text", "test")


def test_another_tokenizer_beside_the_split(prepared: PrepareConfig, make_config) -> None:
    prepare(make_config(store=f"{prepared.store}2", tokenizer="sentencepiece-bpe:400"))
    shutil.copytree(f"{prepared.store}2/text/tokenizer", prepared.folder / "tokenizer", dirs_exist_ok=True)
    with pytest.raises(StoreError, match="was made with another tokenizer than the one beside it"):
        SegmentStore.open(prepared.store, "text", "train").tokenizer()


def test_a_tokenizer_is_checked_without_being_loaded(make_config) -> None:
    config = make_config(splits=("train",), tokenizer="sentencepiece-bpe:400")
    prepare(config)
    store = SegmentStore.open(config.store, "text", "train")
    folder = config.folder / "tokenizer"
    whole = contents(folder)
    store.check_tokenizer()
    (folder / "tokenizer.model").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer\.model is missing: run the same prepare command again, which"):
        store.check_tokenizer()
    shutil.rmtree(folder)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing: run the same prepare command again, which"):
        store.check_tokenizer()
    prepare(config)  # as the error says
    store.check_tokenizer()
    assert contents(folder) == whole
    save_tokenizer(BytesTokenizer(), folder)
    with pytest.raises(StoreError, match="was made with another tokenizer than the one beside it"):
        store.check_tokenizer()
    flip(folder / "tokenizer.json")
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json is damaged .*: run the same prepare command again, which"
    ):
        store.check_tokenizer()


def test_opens_by_uri(prepared: PrepareConfig) -> None:
    store = SegmentStore.open((prepared.folder / "train").as_uri())
    assert np.array_equal(store.tokens(1, 0, 20), SegmentStore.open(prepared.folder / "train").tokens(1, 0, 20))


def test_no_tokens_before_a_documents_first(prepared: PrepareConfig) -> None:
    store = SegmentStore.open(prepared.store, "text", "train")
    with pytest.raises(IndexError, match="tokens -3:5 of a document"):
        store.tokens(0, -3, 5)


def test_the_batch_that_was_used_longest_ago_goes_first(
    prepared: PrepareConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentStore, "_mapped", False)  # as in a bucket without a cache
    store = SegmentStore.open(prepared.store, "text", "train")
    batches = {(d.part, d.batch): i for i, d in enumerate(store.manifest.documents)}
    (a, first), (b, second), (c, third) = list(batches.items())[:3]
    sizes = [sum(column.nbytes for column in store._read_batch(*key)) for key in (a, b, c)]
    monkeypatch.setattr(stores, "REMOTE_BYTES", sum(sizes) - 1)
    for document in (first, second, first, third):
        store.tokens(document, 0, 1)
    assert list(store._batches) == [a, c]


def test_views_are_kept_of_a_bounded_number_of_documents(
    prepared: PrepareConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "VIEWS", 2)
    store = SegmentStore.open(prepared.store, "text", "train")
    for document in range(len(store.lengths)):
        store.tokens(document, 0, 1)
        assert len(store._documents) <= 2
