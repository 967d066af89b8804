"""A corpus that labels its tokens itself: what it says is what the store holds and what a batch asks for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from common.choices import IGNORED
from common.places import Place
from data_prep import segments
from data_prep.documents import NOTHING, SPLITS, CorpusError
from data_prep.lanes import EvaluationLanes, TrainingLanes, read_batch
from data_prep.manifest import Manifest, StoreError
from data_prep.store import SegmentStore
from data_prep.tokenizers import SymbolsTokenizer, TokenizerError, load_tokenizer, save_tokenizer
from data_prep.verification import verify_split
from pipelines.inspect import main as inspect
from pipelines.prepare import PrepareConfig, prepare
from tests.small_corpus import contents
from tests.small_task import Task

Make = Callable[..., PrepareConfig]


@pytest.fixture
def task(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> PrepareConfig:
    monkeypatch.setattr(segments, "BATCH_BYTES", 200)  # several record batches to a part
    made = make_config(corpus=Task(), segment_length=16, part_bytes=500)
    prepare(made)
    return made


def test_the_store_holds_what_the_corpus_says(task: PrepareConfig) -> None:
    for split in SPLITS:
        store = SegmentStore.open(task.store, "task", split)
        tokenizer = store.tokenizer()
        assert store.labelled and isinstance(tokenizer, SymbolsTokenizer) and store.bod_id == 4
        documents = list(task.corpus.read(task.corpus.sources(split)))
        ids = {**{symbol: i for i, symbol in enumerate(task.corpus.symbols())}, NOTHING: IGNORED}
        labels = 0
        for i, document in enumerate(documents):
            length = int(store.lengths[i])
            assert tokenizer.decode(store.tokens(i, 0, length)) == document.text
            targets = [ids[target] for target in document.targets.split()]
            assert store.targets(i, 0, length).tolist() == targets and store.targets(i, 3, 7).tolist() == targets[3:7]
            labels += sum(target != IGNORED for target in targets)
        assert store.manifest.totals.labels == labels > 0 and store.manifest.tokenizer.lossless
        assert verify_split(Place.parse(task.folder / split), lambda size: None) == []
        data = (task.folder / split / "manifest.json").read_bytes()
        assert Manifest.from_json(data, "x").to_json() == data
        file = pa.ipc.open_file(pa.memory_map(str(task.folder / split / "part-00000.arrow")))
        assert file.schema.names == ["document", "offset", "length", "tokens", "targets"]
        with pytest.raises(IndexError):
            store.targets(0, 0, int(store.lengths[0]) + 1)


def test_it_is_prepared_again_only_when_a_target_changed(task: PrepareConfig, tmp_path: Path) -> None:
    before = contents(task.folder)
    prepare(task)
    prepare(dataclasses.replace(task, store=str(tmp_path / "other"), tokenizer="symbols"))
    assert contents(task.folder) == before == contents(tmp_path / "other" / "task")
    changed = dataclasses.replace(task, corpus=Task(flaw=" ".join([NOTHING] * 39 + ["on"])))
    with pytest.raises(StoreError, match="prepared with another text"):
        prepare(changed)


def test_a_count_that_is_not_that_of_the_targets_is_a_fault(task: PrepareConfig) -> None:
    path = task.folder / "train" / "manifest.json"
    manifest = Manifest.from_json(path.read_bytes(), "x")
    totals = dataclasses.replace(manifest.totals, labels=(manifest.totals.labels or 0) + 1)
    path.write_bytes(dataclasses.replace(manifest, totals=totals).to_json())
    (fault,) = verify_split(Place.parse(path.parent), lambda size: None)
    assert f"holds {manifest.totals.labels:,} targets and the manifest says {totals.labels:,}" in fault


def test_inspect_says_that_it_is_labelled(task: PrepareConfig, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ("--segment-length", "16", "--block", "8", "--png", str(tmp_path / "lengths.png"))
    inspect([str(task.folder / "train"), *words])
    labels = SegmentStore.open(task.folder / "train").manifest.totals.labels
    assert f"{labels:,} of its tokens are labelled" in capsys.readouterr().out


def test_the_input_is_the_token_itself(task: PrepareConfig) -> None:
    store = SegmentStore.open(task.store, "task", "train")
    schedule = EvaluationLanes(store.lengths, lanes=3, segment_length=16, block=8)
    seen = np.zeros(len(store.lengths), np.int64)
    for step in range(schedule.steps):
        batch = read_batch(store, schedule, step, 0, 3)
        for lane in range(3):
            for column, document, offset, length in schedule.spans(step, lane):
                own = slice(column * 8, column * 8 + length)
                assert np.array_equal(batch.tokens_BT[lane, own], store.tokens(document, offset, offset + length))
                assert np.array_equal(batch.targets_BT[lane, own], store.targets(document, offset, offset + length))
                assert batch.fresh_BK[lane, column] == (offset == 0)
                seen[document] += length
        idle = np.repeat(batch.document_BK < 0, 8, axis=1)
        assert (batch.targets_BT[idle] == IGNORED).all()
    assert np.array_equal(seen, store.lengths)


def test_documents_are_drawn_as_they_are_listed() -> None:
    lengths = [3, 0, 9, 5, 4]
    listed = TrainingLanes(lengths, lanes=1, segment_length=4, block=4, seed=1, order="sequential")
    assert [listed.order(epoch).tolist() for epoch in (0, 1)] == [[0, 2, 3, 4]] * 2
    starts = [span.document for step in range(14) for span in listed.spans(step, 0) if span.offset == 0]
    assert starts == [0, 2, 3, 4] * 2


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        ("on off", "'train/0' has 40 symbols and 2 targets: give each symbol one"),
        (" ".join(["on"] * 39 + ["sane"]), "'train/0': 'sane' is no symbol of the corpus: write its symbols"),
    ],
)
def test_what_the_corpus_says_is_checked_before_anything_is_written(make_config: Make, flaw: str, said: str) -> None:
    made = make_config(corpus=Task(flaw=flaw))
    with pytest.raises(CorpusError, match=said):
        prepare(made)
    assert not list(made.folder.rglob("*.arrow"))


def test_a_labelled_corpus_has_its_own_tokenizer_and_no_other(make_config: Make) -> None:
    with pytest.raises(
        TokenizerError, match="corpus task labels its tokens, and its symbols are its tokens: leave out"
    ):
        prepare(make_config(corpus=Task(), tokenizer="bytes"))
    with pytest.raises(TokenizerError, match="corpus text labels no tokens, so it has no symbols"):
        prepare(make_config(tokenizer="symbols"))


def test_symbols_are_ids_in_their_order(tmp_path: Path) -> None:
    tokenizer = SymbolsTokenizer(("b", "a", "é"))
    assert tokenizer.encode("a  é\nb").tolist() == [1, 2, 0] and tokenizer.decode([1, 2, 3, 0]) == "a é b"
    assert tokenizer.encode_targets("_ b").tolist() == [IGNORED, 0] and tokenizer.vocab_size == 4
    save_tokenizer(tokenizer, tmp_path)
    kept = load_tokenizer(tmp_path)
    assert isinstance(kept, SymbolsTokenizer) and kept.symbols == ("b", "a", "é")
    assert SymbolsTokenizer(("a", "b", "é")).fingerprint != tokenizer.fingerprint == kept.fingerprint
    with pytest.raises(TokenizerError, match="'x' is no symbol of the corpus: write its symbols \\(b, a, é\\)"):
        tokenizer.encode("a x")
    for symbols, said in ((("a b",), "without blanks"), ((NOTHING,), "not '_'"), (("a", "a"), "2 symbols 1 differ")):
        with pytest.raises(TokenizerError, match=said):
            SymbolsTokenizer(symbols)


def test_ids_and_targets_that_no_document_can_have(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fault of the writer would leave them."""
    config = make_config(corpus=Task(), segment_length=64)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "IGNORED", 0)
        prepare(config)
    folder = config.folder / "train"

    def faults() -> list[str]:
        return verify_split(Place.parse(folder), lambda size: None)

    assert any("has a target in the padding after a document" in fault for fault in faults())
    path = folder / "manifest.json"
    manifest = Manifest.from_json(path.read_bytes(), "x")
    store = SegmentStore.open(folder)
    highest = max(int(store.tokens(i, 0, n).max()) for i, n in enumerate(store.lengths.tolist()))
    for least, said in ((highest, "token"), (1, "target from -1 to")):
        fewer = dataclasses.replace(manifest.tokenizer, vocab_size=least + 1, bod_id=least)
        path.write_bytes(dataclasses.replace(manifest, tokenizer=fewer).to_json())
        assert any(re.search(f"holds (the|a) {said} .*, which no document can have", fault) for fault in faults())
