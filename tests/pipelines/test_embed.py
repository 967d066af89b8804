"""Embeddings of whole documents: the same however they are read, never of another document, and never half a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest
import torch

from common.errors import UserError
from common.places import Place
from data_prep.lanes import EvaluationLanes
from data_prep.store import SegmentStore
from pipelines import embed, export
from pipelines.inference import embedding
from pipelines.inference.embedding import Embeddings, Means, Texts, texts_of_store
from pipelines.prepare import PrepareConfig, prepare
from pipelines.training import reading
from pipelines.training.reading import read_segments
from recur_models import RecurrentModel
from tests.recur_models.conftest import pairwise_configs

CONFIGS = pairwise_configs()
Rows = dict[str, dict[int, np.ndarray]]


def texts(*lengths: int) -> Texts:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 30, length) for length in lengths]
    ids = [f"text {i}" for i in range(len(documents))]

    def read(document: int, start: int, stop: int) -> np.ndarray:
        return documents[document][start:stop]

    return Texts(ids, np.array(lengths), np.arange(len(lengths)), read, bod_id=30, before=1, fingerprint="")


def whole(model: RecurrentModel, some: Texts, lanes: int, segment_length: int) -> list[np.ndarray]:
    """The embeddings of each document, whose pieces must follow one another."""
    found: list[list[np.ndarray]] = [[] for _ in some.ids]
    sizes = {"lanes": min(lanes, len(some.ids)), "segment_length": segment_length, "block": model.block}
    schedule = EvaluationLanes(some.lengths + some.before, **sizes)
    with torch.no_grad():
        for segment in read_segments(model, some, schedule, (0, schedule.lanes), torch.device("cpu"), hidden=True):
            for document, offset, hidden_nD in some.spans(segment):
                assert offset == sum(map(len, found[document]))
                found[document].append(hidden_nD.copy())
    return [np.concatenate(pieces) for pieces in found]


@pytest.mark.parametrize("name", CONFIGS)
def test_neither_lanes_nor_segments_nor_other_documents_change_an_embedding(name: str) -> None:
    torch.manual_seed(0)
    model = CONFIGS[name].build(31).eval()
    some = texts(13, 1, 30, 4, 7)
    expected = whole(model, some, 1, model.block)
    assert [len(rows) for rows in expected] == some.lengths.tolist()
    for document in range(len(some.ids)):  # alone, in one pass
        alone = whole(model, some.part(range(document, document + 1)), 4, 8 * model.block)
        np.testing.assert_allclose(alone[0], expected[document], rtol=1e-5, atol=1e-5)
    for lanes, blocks in ((2, 3), (5, 2)):
        for ours, theirs in zip(whole(model, some, lanes, blocks * model.block), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    read = torch.tensor([[30, *some.read(0, 0, 13), 0, 0, 0, 0]])[:, : -(-14 // model.block) * model.block]
    theirs: Any = model
    with torch.no_grad():
        logits = theirs(read)[0][0, 1:14]
        hidden = torch.from_numpy(expected[0])
        output = getattr(theirs, "output", None)  # None where the embedding is it
        made = hidden @ theirs.embedding.weight.T if output is None else output(hidden)
    torch.testing.assert_close(made, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("every", [1, 3, 7, 100])
def test_means_over_tokens_in_any_pieces(every: int) -> None:
    rows = np.random.default_rng(0).normal(size=(25, 4)).astype(np.float32)
    expected = [rows[start : start + every].mean(0) for start in range(0, 25, every)]
    for cuts in ([], [1, 2, 9], list(range(1, 25)), [0, 14]):
        means, found, offsets = Means(every, np.array([25])), [], []
        for start, stop in zip([0, *cuts], [*cuts, 25], strict=True):
            at, made = means.add(0, start, rows[start:stop])
            offsets += at.tolist()
            found.append(made)
        assert offsets == list(range(0, 25, every))
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5, atol=1e-6)


def table(folder: Path) -> Rows:
    found: Rows = {}
    for row in pyarrow.dataset.dataset(str(folder), format="arrow").to_table().to_pylist():
        rows = found.setdefault(row["document"], {})
        assert row["offset"] > max(rows, default=-1)  # in order, each once
        rows[row["offset"]] = np.array(row["embedding"])
    return found


def test_the_command_of_a_run_and_of_its_export(
    train_model: Callable[..., Path], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_model("gpt2-rec", "--steps", "6", "--validate-every", "3", "--checkpoint.every", "3")
    out = tmp_path / "out"
    embed.main([str(run), "--split", "validation", "--output", str(out)])
    said = capsys.readouterr().out
    assert f'read them  pyarrow.dataset.dataset("{out}", format="arrow")' in said
    split = SegmentStore.open(store, "text", "validation")
    lengths = {document.id: document.tokens for document in split.manifest.documents}
    found = table(out)
    assert {name: list(rows) for name, rows in found.items()} == {n: list(range(m)) for n, m in lengths.items()}
    assert json.loads((out / "_embeddings.json").read_text())["rows"] == sum(lengths.values())

    name = next(iter(lengths))
    export.main([str(run), "--output", str(tmp_path / "exported")])
    words = [str(tmp_path / "exported"), "--store", str(store), "--corpus", "text", "--split", "validation"]
    words += ["--documents", name, "--every", "16", "--dtype", "float16"]
    embed.main([*words, "--output", str(tmp_path / "pooled")])
    pooled = table(tmp_path / "pooled")
    every = np.stack(list(found[name].values()))
    assert list(pooled) == [name] and list(pooled[name]) == list(range(0, lengths[name], 16))
    for offset, mean in pooled[name].items():
        np.testing.assert_allclose(mean, every[offset : offset + 16].mean(0), atol=2e-3)

    text = split.tokenizer().decode(split.tokens(0, 0, lengths[name]))
    (tmp_path / "text.txt").write_text(text)
    embed.main([str(run), "--file", str(tmp_path / "text.txt"), "--output", str(tmp_path / "file")])
    of_file = np.stack(list(table(tmp_path / "file")["text.txt"].values()))
    np.testing.assert_allclose(of_file, every, rtol=1e-5, atol=1e-5)
    extract: Any = import_module("transformers").pipeline(
        "feature-extraction", model=str(tmp_path / "exported"), tokenizer=str(tmp_path / "exported")
    )
    np.testing.assert_allclose(extract(text, return_tensors=True)[0, 1:], every, rtol=1e-4, atol=1e-5)


def test_what_was_stopped_goes_on_and_nothing_half_written_has_a_name(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "PART_TOKENS", 300)
    run, out = train("--steps", "5"), tmp_path / "out"
    words = [str(run), "--split", "validation", "--output", str(out)]
    embed.main([*words[:-1], str(tmp_path / "undisturbed")])
    parts = sorted(path.name for path in (tmp_path / "undisturbed").glob("*.arrow"))
    assert len(parts) == 2
    real, steps = reading.hidden_states, 0

    def stops(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 27:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(reading, "hidden_states", stops)
    with pytest.raises(KeyboardInterrupt):
        embed.main(words)
    begun = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert begun and begun.keys() < set(parts)
    (out / f"{parts[-1]}.1.0123abcd.tmp").write_bytes(b"ARROW1")  # of a process that was killed
    with pytest.raises(UserError, match=r"of another model, text or option: remove .*out, or choose another --output"):
        embed.main([*words, "--every", "2"])
    embed.main(words)
    assert {path.name for path in out.iterdir()} == {*parts, "_embeddings.json"}
    assert all((out / name).stat().st_mtime_ns == when for name, when in begun.items())
    for name in parts:
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_segments_far_longer_than_every_document_take_no_more_memory(
    train: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    run = train("--steps", "2", "--validate-every", "0")
    longest = int(SegmentStore.open(store, "text", "test").lengths.max()) + 1  # with begin-of-document
    enough = -(-longest // 8) * 8
    assert enough > 32  # as in training
    for length in (enough, 10**12):
        embed.main([str(run), "--segment-length", str(length), "--output", str(tmp_path / str(length))])
    one, other = ((tmp_path / str(length) / "part-00000.arrow").read_bytes() for length in (enough, 10**12))
    assert one == other


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "does not exist: name the folder of a run"),
        ("{run} --every 0", "--every is 0: it must be at least 1"),
        ("{run} --split tset", "did you mean 'test'"),
        ("{run} --documents doc", "has no document 'doc' with tokens: its ids are such as test/doc0.txt"),
        ("{run} --documents a --file b", "--file and --documents are both given"),
        ("{run} --file {run}/empty", "empty holds no text"),
        ("{run} --output {run}", "holds other files .*name a folder of its own with --output"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    words: str, message: str, train: Callable[..., Path], tmp_path: Path
) -> None:
    run = train("--steps", "2", "--validate-every", "0") if "{run}" in words else tmp_path
    (run / "empty").write_text("")
    with pytest.raises(UserError, match=message):
        embed.main(
            [*words.format(run=run).split(), *([] if "--output" in words else ["--output", str(tmp_path / "o")])]
        )
    assert not (tmp_path / "o").exists()


def test_a_folder_of_something_else_keeps_its_files(train: Callable[..., Path], tmp_path: Path) -> None:
    run = train("--steps", "2", "--validate-every", "0")
    (tmp_path / "mine").mkdir()
    for name in ("draft.tmp", "zz-notes.txt"):
        (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(UserError, match=r"holds other files"):
        embed.main([str(run), "--output", str(tmp_path / "mine")])
    assert {file.name for file in (tmp_path / "mine").iterdir()} >= {"draft.tmp", "zz-notes.txt"}


def test_other_documents_of_a_split_are_other_embeddings(make_config: Callable[..., PrepareConfig]) -> None:
    config = make_config()
    prepare(config)
    store = SegmentStore.open(config.store, "text", "train")
    names = store.documents.texts("id")
    chosen = [texts_of_store(store, ids) for ids in ((), names[:1], names[1:2])]
    prints = {Embeddings(Place.parse("out"), each, 8, "w", 1, "float32").fingerprint for each in chosen}
    assert len(prints) == 3
