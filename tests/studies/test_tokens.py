"""Token by token: every token once, words and distances, a planted name on top, and the command on one and on two runs."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from common.errors import UserError
from common.lock import Locked, file_lock
from common.places import Place
from data_prep.store import SegmentStore
from data_prep.tokenizers import BytesTokenizer, HuggingFaceTokenizer
from pipelines.inference.report_folder import UNFINISHED_LOSSES
from pipelines.inference.trained import config_of, find_checkpoint
from pipelines.reports.characters import writing_of
from pipelines.training import reading
from pipelines.training.reading import SEGMENTS
from pipelines.training.scoring import Scoring
from studies import token_figures, tokens
from studies.token_comparison import TokenComparison
from studies.token_figures import NO_WORDS, plot_distance
from studies.token_losses import TokenLosses, token_nats
from studies.tokens import main
from studies.words import Words, around, by_distance, pieces_of, rare, tokens_of, where, words_of
from tests.mlflow_server import Server
from tests.small_corpus import flip
from tests.small_tokenizers import MOVES, moves_tokenizer

WRITE = writing_of(BytesTokenizer())


def words(text: str, *nats: np.ndarray, document: int = 0) -> Words:
    tokens = BytesTokenizer().encode(text)
    return words_of(WRITE, tokens, nats or [np.ones(len(tokens))], document)


def test_a_word_has_all_its_tokens_and_knows_where_it_stood_last() -> None:
    found = words("the cat saw Tom and the cat, Tom", np.arange(32.0))
    assert found.text_N.tolist() == ["the", "cat", "saw", "Tom", "and", "the", "cat", "Tom"]
    assert found.offset_N.tolist() == [0, 4, 8, 12, 16, 20, 24, 29]
    assert found.before_N.tolist() == [0, 0, 0, 0, 0, 20, 20, 17]
    assert found.name_N.tolist() == [False, False, False, True, False, False, False, True]
    assert found.nats_MN[0].tolist()[:2] == [0 + 1 + 2, 4 + 5 + 6]


def test_a_word_that_shares_a_token_has_stood_there_too() -> None:
    pieces = ["Anna.", " saw", " Anna", ".", "Anna saw"]
    found = words_of(lambda ids: "".join(pieces[token] for token in ids), np.array([0, 1, 2, 3, 4, 2]), [np.ones(6)])
    assert found.text_N.tolist() == ["saw", "Anna", "saw", "Anna"] and found.before_N.tolist() == [0, 2, 3, 1]
    pieces = ["Anna.", " Anna", " anna"]  # a name by all four of its places
    found = words_of(lambda ids: "".join(pieces[token] for token in ids), np.array([0, 0, 0, 1, 2, 2]), [np.ones(6)])
    assert found.text_N.tolist() == ["Anna", "anna", "anna"] and found.name_N.tolist() == [True, False, False]


def test_a_word_of_several_pieces_ends_in_its_last() -> None:
    pieces = {1: " hel", 2: "lo", 3: " wor", 4: "ld.", 5: "x"}
    found = words_of(
        lambda ids: "".join(pieces[token] for token in ids), np.array([1, 2, 3, 4, 5]), [np.array([1.0, 2, 4, 8, 16])]
    )
    assert found.text_N.tolist() == ["hello", "world", "x"]
    assert found.nats_MN.tolist() == [[3, 4, 16]]  # `ld.` ends in no word


def test_letters_beyond_ascii_stay_in_their_words() -> None:
    assert words("café naïve über").text_N.tolist() == ["café", "naïve", "über"]


def test_a_character_of_several_tokens_is_written_once_by_the_last_of_them() -> None:
    text = "“Hello” said Anna—who. Hello Anna’s été"
    found = words(text, np.arange(float(len(text.encode()))))
    assert found.text_N.tolist() == ["Hello", "said", "Anna", "who", "Hello", "Anna", "s", "été"]
    assert found.before_N[4] == text.encode().index(b"Hello", 10) - 3 == found.offset_N[4] - found.offset_N[0]
    assert found.tokens_N.tolist()[-1] == 5 and found.nats_MN[0, -1] == sum(range(len(text.encode()))[-5:])
    pieces = pieces_of(WRITE, BytesTokenizer().encode(text).tolist())
    assert "".join(piece or "" for piece in pieces) == text and pieces[:4] == [None, None, "“", "H"]
    assert pieces_of(WRITE, BytesTokenizer().encode("é").tolist()[:1]) == ["\N{REPLACEMENT CHARACTER}"]


def test_a_letter_behind_a_sign_for_no_letter_is_whole() -> None:
    """U+FFFD in a text, which reads as a token that has a part of a letter does."""
    found = pieces_of(WRITE, BytesTokenizer().encode("\ufffdéabc😀\ufffd").tolist())
    assert found == [*[None, None, "\ufffd"], None, "é", *"abc", *[None, None, None, "😀"], *[None, None, "\ufffd"]]
    assert words("\ufffdéabc").text_N.tolist() == ["éabc"]
    broken = [0x80, 0x61, 0xC3, 0x62, 0x63]  # bytes that are no letters
    assert "".join(piece or "" for piece in pieces_of(WRITE, broken)) == WRITE(broken) == "\ufffda\ufffdbc"


def test_a_blank_is_kept_before_the_words_of_a_vocabulary_without_letters() -> None:
    write = writing_of(HuggingFaceTokenizer(moves_tokenizer().to_str().encode()))
    assert [write([i]) for i in range(len(MOVES))] == [f" {move}" for move in MOVES]


def test_where_a_word_stood_is_told_by_window_and_segment() -> None:
    assert where(0, 10, 500, 500) == "not before"
    assert where(10, 10, 500, 500) == "in the window"
    assert where(40, 10, 500, 550) == "in the segment"
    assert where(60, 10, 500, 550) == "in an earlier segment"


def test_distances_are_powers_of_two_with_means_of_each_model() -> None:
    text = " ".join(["zebra"] * 9)
    nats = np.arange(len(text), dtype=float)
    rows = by_distance(words(text, nats, 2 * nats), least=2)
    assert [(row["from"], row["to"], row["words"]) for row in rows] == [(4, 7, 8)]
    first = [sum(range(6 * i, 6 * i + 5)) for i in range(1, 9)]  # the blank before a word is no part of it in bytes
    assert rows[0]["nats"] == pytest.approx([np.mean(first), 2 * np.mean(first)])
    assert rows[0]["errors"][0] == pytest.approx(np.std(first, ddof=1) / np.sqrt(8))
    assert rows[0]["difference"] == pytest.approx(-np.mean(first))
    assert rows[0]["difference_error"] == pytest.approx(np.std(first, ddof=1) / np.sqrt(8))
    shifted = by_distance(words(text, nats, nats - 2), least=2)[0]  # each word's five tokens
    assert shifted["difference"] == pytest.approx(10) and shifted["difference_error"] == pytest.approx(0, abs=1e-12)


def test_rare_words_are_those_beyond_the_most_frequent() -> None:
    found = words("a a a b b c")
    assert found.at(rare(found, 1)).text_N.tolist() == ["b", "b", "c"]


def test_the_tokens_of_a_word_are_taken_apart_with_its_name_and_its_distance() -> None:
    first, second = np.arange(11.0), np.zeros(11)
    found = tokens_of(words("Al is Al ok", first, second), [first, second])
    assert found.text_N.tolist() == ["Al", "Al", "is", "is", "Al", "Al", "ok", "ok"]
    assert found.offset_N.tolist() == [0, 1, 3, 4, 6, 7, 9, 10] and set(found.tokens_N.tolist()) == {1}
    assert found.nats_MN.tolist() == [[0, 1, 3, 4, 6, 7, 9, 10], [0] * 8]
    assert found.before_N.tolist() == [0, 0, 0, 0, 6, 6, 0, 0]
    assert found.name_N.tolist() == [text == "Al" for text in found.text_N]


def test_a_planted_name_stands_on_top_with_its_distance() -> None:
    """A rare invented name every 5,000 bytes, which one model knows and the other does not."""
    rng = np.random.Generator(np.random.Philox(3))
    filler = rng.choice(["one", "two", "three", "four", "five"], 12_000).tolist()
    parts, places, text = [], [], ""
    while len(text) < 45_000:
        if len(text) >= 5000 * (len(places) + 1):
            places.append(len(text))
            text += "Zorblax "
        text += filler.pop() + " "
    parts.append(text)
    base = rng.random(len(text))
    better = base + rng.normal(0, 0.1, len(text))
    for place in places[1:]:
        better[place : place + 7] = 0.0
    tokens = BytesTokenizer().encode(text)
    comparison = TokenComparison(
        ("slide", "rec"), "made/test", ["made"], [len(tokens)], lambda _: tokens, lambda _: (base, better), WRITE,
        words(text, base, better), window=16, segment=256, cut=0, shown=0, shown_tokens=1000, count=len(places) - 1,
    )  # fmt: skip
    rows = comparison.rows
    assert {(row["word"], row["name"], row["where"]) for row in rows} == {("Zorblax", True, "in an earlier segment")}
    assert {row["token"]: row["last_seen"] for row in rows} == {b: b - a for a, b in itertools.pairwise(places)}
    assert all(row["gain"] > 0 and row["text"][1] == "Zorblax" for row in rows)
    far = [row for row in replace(comparison, common=5).distance_rows if row["from"]]
    everywhere = comparison.positions()
    sums = [row["gain"] * (row["to"] - row["from"]) for row in everywhere]
    assert len(sums) == 100 and sum(sums) == pytest.approx(float((base - better).sum()))
    assert [(row["from"], row["to"], row["words"]) for row in far] == [(4096, 8191, len(places) - 1)]


@pytest.mark.parametrize("lengths", [[640], [100] * 12, [300, 0, 7, 40]])
def test_a_difference_within_chance_is_told_from_one_beyond_it(lengths: list[int]) -> None:
    rng = np.random.default_rng(0)
    first = [rng.random(length) for length in lengths]
    noise = [rng.normal(0, 0.3, length) for length in lengths]
    for gain, told in ((0.0, r"^[+-]0\.0\d{3}, within chance: ± 0\.0\d{3}$"), (0.2, r"^-0\.[23]\d{3} ± 0\.0\d{3}$")):
        last = [one + some - gain for one, some in zip(first, noise, strict=True)]
        comparison = TokenComparison(
            ("slide", "rec"), "made/test", [""] * len(lengths), lengths, lambda _: np.zeros(0, int),
            lambda document, last=last: (first[document], last[document]), WRITE, words(""), window=16, segment=256, cut=0,
            shown=0, shown_tokens=1000,
        )  # fmt: skip
        assert re.search(told, comparison.difference()), comparison.difference()
        found = comparison.facts["difference"]
        sums = np.concatenate(first).sum(), np.concatenate(last).sum()
        assert found.mean == pytest.approx((sums[1] - sums[0]) / sum(lengths)) and found.groups >= 12


@pytest.fixture
def trained(train: Callable[..., Path]) -> Path:
    return train("--steps", "4", "--validate-every", "4")


def test_every_token_is_there_once_and_sums_to_the_score(trained: Path, store: Path, tmp_path: Path) -> None:
    checkpoint, split = find_checkpoint(trained), SegmentStore.open(store, "text", "test")
    model = config_of(checkpoint)
    for lanes in (1, 3):
        path = tmp_path / f"{lanes}.arrow"
        with TokenLosses.make(path, split, {"lanes": lanes}) as nats:
            sizes: dict[str, Any] = {"lanes": lanes, "segment_length": 32, "shards": lanes}
            place: dict[str, Any] = {"reset": SEGMENTS, "folder": nats.parent}
            scoring = Scoring(checkpoint, model, split, ("nothing",), **sizes, **place)
            losses = replace(scoring.reading, sink=partial(token_nats, nats, split.lengths))
            losses.read(1, lambda _: None)
        [score] = replace(scoring, folder=tmp_path / "sums").scores(1, lambda _: None)
        losses = TokenLosses.open(path, {"lanes": lanes})
        assert losses is not None
        documents = range(len(split.lengths))
        nats = np.concatenate([losses.column("nats", d) for d in documents])
        assert len(nats) == split.lengths.sum() and np.isfinite(nats).all()
        assert nats.sum(dtype=np.float64) == pytest.approx(score.nats, rel=1e-6)
        for document in documents:
            length = int(split.lengths[document])
            assert losses.column("token", document).tolist() == split.tokens(document, 0, length).tolist()
            assert losses.column("offset", document).tolist() == list(range(length))
    with pa.memory_map(str(path)) as file:
        assert pa.ipc.open_file(file).schema.names == ["document", "offset", "token", "nats"]


def test_what_is_damaged_or_of_another_key_is_not_there(trained: Path, store: Path, tmp_path: Path) -> None:
    split, path = SegmentStore.open(store, "text", "test"), tmp_path / "losses.arrow"
    with pytest.raises(KeyboardInterrupt), TokenLosses.make(path, split, {}):
        raise KeyboardInterrupt
    assert not list(tmp_path.glob("*.arrow")) and TokenLosses.open(path, {}) is None
    with TokenLosses.make(path, split, {"weights": "a"}) as nats:
        np.memmap(nats, np.float32, "r+")[:] = 1.0
    assert TokenLosses.open(path, {"weights": "a"}) is not None
    assert TokenLosses.open(path, {"weights": "b"}) is None
    flip(path)
    assert TokenLosses.open(path, {"weights": "a"}) is None


@pytest.mark.long
def test_two_runs_are_compared_on_one_page(
    train: Callable[..., Path], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [train("--steps", "4", "--seed", seed, name=name) for seed, name in (("0", "first"), ("1", "second"))]
    words = [*map(str, runs)]
    main(words)
    out = capsys.readouterr().out
    folder = tmp_path / "runs" / "reports" / "tokens-first-vs-second"
    assert ": 1 document, " in out
    assert not (tmp_path / "runs" / "mlflow.db").exists()  # the runs were tracked nowhere
    page = (folder / "tokens.html").read_text("utf-8")
    assert "second against first" in page and "<mark>" in page and page.count("<tr>") > 10
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert (folder / "position.png").stat().st_size > 1000 and (folder / "distance.png").stat().st_size > 1000
    bits = [float(x) for x in re.search(r"first (\S+), second (\S+) \(", out).groups()]  # pyrefly: ignore
    assert all(0 < value < 20 for value in bits)
    losses = folder / "first.arrow"
    before = losses.stat().st_mtime_ns
    main(words)
    assert "first: first.arrow is there already" in capsys.readouterr().out and losses.stat().st_mtime_ns == before
    losses.write_bytes(losses.read_bytes()[:-8])
    tracked = ("--tracking.backend", "mlflow", "--tracking.uri", server.uri, "--tracking.experiment", "tokens")
    main(words)
    assert "first: first.arrow is there already" not in capsys.readouterr().out
    assert not (folder / "documents.png").exists()  # of one document
    each = tmp_path / "each"
    main([*map(str, runs), "--split", "train", "--per-document", "2", "--output", str(each), *tracked])
    (found,) = server.runs("tokens")
    files = {file["path"] for file in server.call("artifacts/list", run_id=found["info"]["run_id"])["files"]}
    assert {"tokens.html", "position.png", "documents.png", "distance.png", "words.csv", "positions.csv"} <= files
    with open(each / "words.csv", newline="") as file:
        documents = [row["document"] for row in csv.DictReader(file)]
    assert 0 < max(map(documents.count, documents)) <= 2 < len(documents)
    assert json.loads((folder / "first.json").read_text())["xxh3"]


@pytest.mark.usefixtures("short_documents")
def test_so_many_documents_are_drawn_with_the_top_tokens_of_each(
    train: Callable[..., Path], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's Figures 4 and 5: five books at random, and the four tokens of each with the largest gain."""
    run = train("--steps", "4")
    given = [str(run), "--split", "train", "--per-document", "3", "--tracking.backend", "none"]
    drawn = [*given, "--documents", "2", "--by", "token"]
    main([*drawn, "--output", str(tmp_path / "one")])
    manifest = SegmentStore.open(store, "text", "train").manifest
    out = capsys.readouterr().out
    assert "6 tokens that run predicts better by most, at most 3 of each document" in out
    with open(tmp_path / "one/words.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    titles = {row["document"] for row in rows}
    assert len(rows) == 6 and len(titles) == 2 < len(manifest.documents)
    losses = pa.ipc.open_file(tmp_path / "one/run.arrow").read_all()
    cleared = pa.ipc.open_file(tmp_path / "one/run-cleared.arrow").read_all()
    gains = cleared["nats"].to_numpy() - losses["nats"].to_numpy()
    numbers = {document.title or document.id: number for number, document in enumerate(manifest.documents)}
    for row in rows:
        there = (losses["document"].to_numpy() == numbers[row["document"]]) & (
            losses["offset"].to_numpy() == int(row["token"])
        )
        assert gains[there].tolist() == pytest.approx([float(row["gain"])], abs=1e-6)
    page = (tmp_path / "one/tokens.html").read_text("utf-8")
    drawn_from = f"text/train, drawn at random from its {len(manifest.documents)} documents: "
    assert drawn_from in page and "Tokens that run predicts better" in page
    main([*drawn, "--output", str(tmp_path / "two")])
    assert (tmp_path / "two/words.csv").read_bytes() == (tmp_path / "one/words.csv").read_bytes()
    left_out = next(number for title, number in numbers.items() if title not in titles)
    with pytest.raises(
        UserError, match=rf"--document is {left_out}, which is none of the 2 that --documents draws: \d+"
    ):
        main([*drawn, "--document", str(left_out), "--output", str(tmp_path / "one")])


def test_one_run_is_compared_with_its_states_cleared(train: Callable[..., Path], tmp_path: Path) -> None:
    run = train("--steps", "4")
    main([str(run), "--tracking.backend", "none"])
    folder = tmp_path / "runs" / "reports" / "tokens-run-cleared-vs-run"
    page = (folder / "tokens.html").read_bytes()
    assert len(list(folder.glob("*.arrow"))) == 2
    main([str(run), "--clear", "everything", "--tracking.backend", "none"])
    assert (folder / "tokens.html").read_bytes() == page
    everything = (tmp_path / "runs/reports/tokens-run-all-cleared-vs-run/tokens.html").read_text("utf-8")
    assert "run against run-all-cleared" in everything
    main([str(run), str(run), "--clear", "states", "--clear-at", "24", "--common", "0", "--tracking.backend", "none"])
    folder = tmp_path / "runs/reports/tokens-run@4.1-vs-run@4.2-cleared-at-24-vs-run@4.2"
    with open(folder / "distances.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    means = [[float(row[name]) for name in ("run@4.1", "run@4.2", "run@4.2-cleared-at-24")] for row in rows]
    assert rows and all(one == two for one, two, _ in means) and any(two != three for _, two, three in means)
    names = ("run@4.2.arrow", "run@4.2-cleared-at-24.arrow")
    kept, cleared = (pa.ipc.open_file(folder / name).read_all() for name in names)
    changed = kept["nats"].to_numpy() != cleared["nats"].to_numpy()
    beyond = kept["offset"].to_numpy() >= 24
    assert not changed[~beyond].any() and changed[beyond].mean() > 0.5


def test_a_block_of_an_lstm_is_no_window(train_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[TokenComparison] = []
    monkeypatch.setattr(tokens, "print_comparison", found.append)
    main([str(train_model("lstm")), "--tracking.backend", "none"])
    assert [comparison.window for comparison in found] == [0]


@pytest.mark.long
@pytest.mark.usefixtures("short_documents")
def test_a_killed_pass_goes_on_where_it_was_and_its_losses_are_the_same(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [str(train("--steps", "4")), "--split", "train", "--tracking.backend", "none", "--num-workers", "1"]
    main([*given, "--output", str(tmp_path / "whole")])
    monkeypatch.setattr(reading, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(reading, "SAVE_SHARE", 1e9)
    real, begun, read, left = reading.read_segments, list[int](), list[int](), 6

    def killed(*args: Any, **how: Any) -> Iterator[Any]:
        begun.append(how["begin"])
        read.append(0)
        for segment in real(*args, **how):
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            read[-1] += 1
            yield segment

    monkeypatch.setattr(reading, "read_segments", killed)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        main([*given, "--output", str(out)])
    assert [path.name.startswith(UNFINISHED_LOSSES) for path in out.iterdir()] == [True]
    main([*given, "--output", str(out)])
    assert begun == [0, 5, 0]  # the cleared pass, which resumed, and the carried one
    assert not list(out.glob(".*"))
    steps, left, twice = read[-1], read[-1] + 3, [given[0], *given, "--output", str(tmp_path / "twice")]
    with pytest.raises(KeyboardInterrupt):
        main(twice)
    main(twice)
    assert begun[3:] == [0, 0, 2] and read[3:] == [steps, 2, steps - 2]  # the second pass over the same weights, too
    for path in (tmp_path / "whole").glob("*.arrow"):
        assert path.read_bytes() == (out / path.name).read_bytes()
    main([*given, "--output", str(tmp_path / "two"), "--num-workers", "2"])
    for path in (tmp_path / "whole").glob("*.arrow"):
        one, two = (
            pa.ipc.open_file(folder / path.name).read_all()["nats"].to_numpy()
            for folder in (path.parent, tmp_path / "two")
        )
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_runs_that_train_may_remove_the_checkpoints_that_are_compared(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read, so that the newest now is; and while the first run is read."""
    words = ("--steps", "2", "--validate-every", "0", "--checkpoint.every", "1")
    runs = [train(*words, name=name) for name in ("one", "two")]
    find_output = tokens.output_for
    compare = tokens.compare_passes
    steps: list[int] = []

    def find_while_one_trains(*found: Any) -> Place:
        shutil.rmtree(runs[0] / "checkpoints" / "step-00000002", ignore_errors=True)
        return find_output(*found)

    def compare_while_both_train(config: Any, passes: list[tokens.Pass], folder: Path) -> TokenComparison:
        for run in runs:
            shutil.rmtree(run / "checkpoints")
        steps.extend(each.target.checkpoint.step for each in passes)
        return compare(config, passes, folder)

    monkeypatch.setattr(tokens, "output_for", find_while_one_trains)
    monkeypatch.setattr(tokens, "compare_passes", compare_while_both_train)
    main([*map(str, runs), "--output", str(tmp_path / "report"), "--tracking.backend", "none"])
    assert steps == [1, 2] and (tmp_path / "report" / "tokens.html").exists()
    assert not list((tmp_path / "report").glob(f"{UNFINISHED_LOSSES}*"))


def test_no_pass_is_taken_for_another_or_for_a_column(train: Callable[..., Path], tmp_path: Path) -> None:
    first, second, third = (
        train("--steps", "4", "--seed", str(seed), name=name)
        for seed, name in enumerate(("run-cleared", "gain", "run"))
    )
    main([*map(str, (first, second, third)), "--clear", "states", "--tracking.backend", "none"])
    (folder,) = (tmp_path / "runs/reports").glob("tokens-*")
    names = ["run-cleared", "gain.2", "run-cleared.2", "run"]
    nats = [pa.ipc.open_file(folder / f"{name}.arrow").read_all()["nats"].to_numpy() for name in names]
    assert all((one != other).any() for one, other in itertools.combinations(nats, 2))
    main([*map(str, (first, second)), "--output", str(folder), "--tracking.backend", "none"])
    with open(folder / "words.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(
        float(row["gain"]) == pytest.approx(float(row["run-cleared"]) - float(row["gain.2"]), abs=1e-9) for row in rows
    )


@pytest.mark.usefixtures("short_documents")
def test_what_is_cleared_at_segments_is_so_whatever_the_lanes(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("--steps", "4")
    where = ["--split", "train", "--segment-length", "24", "--tracking.backend", "none"]
    (tmp_path / "1" / f"{UNFINISHED_LOSSES}left").mkdir(parents=True)
    for lanes in ("1", "3"):
        main([str(run), *where, "--lanes", lanes, "--output", str(tmp_path / lanes)])
    assert not list((tmp_path / "1").glob(".*"))  # what a killed command had left, and the lock
    one, three = (pa.ipc.open_file(tmp_path / n / "run-cleared.arrow").read_all()["nats"].to_numpy() for n in "13")
    np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-5)
    with file_lock(tmp_path / "1", "a test"), pytest.raises(Locked, match=r"another pipelines\.tokens is writing"):
        main([str(run), *where, "--output", str(tmp_path / "1")])


def test_bad_input_is_one_sentence(trained: Path, train: Callable[..., Path]) -> None:
    for words, sentence in (
        ([str(trained)] * 2 + ["--clear-every", "2"], "give --clear states or --clear everything too"),
        ([str(trained), "--clear-every", "2", "--clear-at", "8"], "give one of the two"),
        ([str(trained), "--segment-length", "-8"], "--segment-length is -8: it must be at least 0"),
        ([str(trained), "--clear-at", "9"], "--clear-at is 9, inside a block of run: give a multiple of 8"),
        (
            [str(trained), "--clear-at", "8000000"],
            r"--clear-at is 8,000,000, and the longest document of .*: give less",
        ),
        ([str(trained), "--words", "0"], "--words is 0"),
        ([str(trained), "--documents", "-1"], "--documents is -1: it must be at least 0"),
        ([str(trained), "--document", "99"], "--document is 99"),
        ([str(trained), "--document", "-2"], "--document is -2: it must be at least -1"),
    ):
        with pytest.raises(UserError, match=sentence):
            main([*words, "--tracking.backend", "none"])


def test_where_a_word_stood_is_told_to_the_token() -> None:
    assert where(50, 10, 500, 550) == "in the segment"  # as the first token of it
    assert where(51, 10, 500, 550) == "in an earlier segment"
    made = TokenComparison(
        ("slide", "rec"), "made/test", ["a", "b", "c"], [5, 9, 7], lambda _: np.zeros(0, int), lambda _: (), WRITE, words(""),
        window=10, segment=256, cut=500, shown=0, shown_tokens=1000,
    )  # fmt: skip
    assert [made.place(20, offset) for offset in (499, 500, 520)] == [
        "in the segment",
        "in an earlier segment",
        "in the segment",
    ]
    assert replace(made, cut=0).place(20, 512) == "in an earlier segment"
    assert made.longest(2) == [1, 2]


def test_a_model_that_attends_to_nothing_has_no_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(token_figures, "save_figure", lambda figure, *_, **_how: figures.append(figure))
    made = TokenComparison(
        ("slide", "lstm"), "made/test", ["a"], [700], lambda _: np.zeros(0, int), lambda _: (), WRITE, words(""),
        window=0, segment=256, cut=0, shown=0, shown_tokens=1000,
    )  # fmt: skip
    assert made.place(1, 600) == "in the segment" and made.place(0, 600) == "not before"
    for window in (0, 16):
        plot_distance(replace(made, window=window), tmp_path / "distance.png")
    marks = [[text.get_text() for text in figure.axes[0].texts] for figure in figures]
    assert marks == [["segment", NO_WORDS], ["window", "segment", NO_WORDS]]
    rare_word = " ".join(["zebra"] * 9)
    costs = np.arange(len(rare_word), dtype=float)
    plot_distance(replace(made, words=words(rare_word, costs, costs), common=0), tmp_path / "distance.png")
    assert [text.get_text() for text in figures[-1].axes[0].texts] == ["segment"]


def test_a_word_that_is_as_often_small_is_no_name() -> None:
    assert words("Rose rose Tom").name_N.tolist() == [False, False, True]


def test_the_text_around_a_word_is_what_touches_it() -> None:
    left, word, right = around(lambda ids: "".join(f"w{i} " for i in ids), np.arange(300), 150, 2)
    assert (len(left), word, len(right)) == (80, "w150 w151 ", 80)
    assert left.endswith("w148 w149 ") and right.startswith("w152 w153 ")
