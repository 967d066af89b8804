"""The prepare command from its words to its bytes: refusals, resuming, and the same store from any number of workers."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from common.places import Place
from data_prep import committing, training_sample
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.pg19 import Pg19
from data_prep.corpora.text import Text
from data_prep.documents import SPLITS, CorpusError, Document, Skipped, Source
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from data_prep.tokenizers import TokenizerError
from pipelines.prepare import PrepareConfig, commands, main, prepare
from pipelines.terminal import cli
from tests.shared_data import need
from tests.small_corpus import contents, words

ROOT = Path(__file__).parents[2]


def command(made: PrepareConfig, **options: object) -> list[str]:
    """The words of the command line that give a config."""
    fields = {"source": made.corpus.source, "store": made.store, "segment-length": made.segment_length}
    fields |= {"part-bytes": made.part_bytes, "num-workers": made.num_workers, **options}
    return ["text", *(word for name, value in fields.items() for word in (f"--{name}", str(value)))]


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.prepare", *words],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_command_line(make_config, capsys: pytest.CaptureFixture[str]) -> None:
    main(command(make_config()))
    out = capsys.readouterr().out
    assert out.startswith("text: 10 documents, 0.0 MB, splits train, validation, test; tokenizer bytes; to ")
    assert "Next: python -m pipelines.train" in out
    table = {
        line.split()[0]: line.split() for line in out.splitlines() if line and line.split()[0] in ("split", "train")
    }
    headings = "split documents skipped bytes words tokens bytes/token tokens/word files/ids"
    assert " ".join(table["split"]) == headings
    assert table["train"][1:3] == ["6", "1"]
    assert not list(make_config().folder.rglob("*.tmp")) and not list(make_config().folder.rglob("ledger"))


def test_the_next_commands_take_a_store_that_begins_with_a_dash(
    make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(make_config(store="-s"))
    out = capsys.readouterr().out
    assert "--data.corpus text --data.store ./-s\n" in out and "pipelines.inspect ./-s/text/train\n" in out


def test_prepared_twice_is_already_prepared(make_config, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config())
    before = contents(make_config().folder)
    stamps = {path: path.stat().st_mtime_ns for path in make_config().folder.rglob("*.arrow")}
    capsys.readouterr()
    prepare(make_config())
    assert capsys.readouterr().out.count("already prepared") == 3
    assert contents(make_config().folder) == before
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


@pytest.mark.ray
@pytest.mark.slow
def test_same_bytes_from_any_number_of_workers(make_config, tmp_path: Path, ray_session: None) -> None:
    stores = []
    for workers in (0, 1, 2):
        made = make_config(
            store=str(tmp_path / f"store{workers}"),
            num_workers=workers,
            tokenizer="sentencepiece-bpe:400",
            part_bytes=1000,
        )
        prepare(made)
        stores.append(contents(made.folder))
    assert stores[0] == stores[1] == stores[2]
    assert len([name for name in stores[0] if name.startswith("train/part-")]) == 4


@pytest.mark.ray
def test_errors_in_tasks_are_sentences(make_config, text_folder: Path, ray_session: None) -> None:
    (text_folder / "train" / "doc2.txt").write_bytes(b"ab\xff")
    with pytest.raises(CorpusError, match=r"doc2\.txt is not UTF-8: byte 0xff at offset 2") as caught:
        prepare(make_config(num_workers=2))
    assert "\n" not in str(caught.value)
    assert not make_config().folder.exists()  # nothing is written before every document was read


KILLED = """
import os, signal, sys
from data_prep import committing
from pipelines.prepare import main
commit, count = committing.commit_part, 0
def counted(*arguments):
    global count
    commit(*arguments)
    count += 1
    if count >= int(sys.argv[1]):  # other threads count too, and may have come further
        os.killpg(0, signal.SIGKILL)  # Ray's workers too
committing.commit_part = counted
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_kill_and_resume(make_config, tmp_path: Path, parts: int) -> None:
    whole = make_config(store=str(tmp_path / "whole"))
    prepare(whole)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(parts), *command(make_config())],
        cwd=ROOT, capture_output=True, timeout=120, start_new_session=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    folder = make_config().folder / "train"
    with pytest.raises(StoreError, match="was not finished: run the same prepare command again"):
        SegmentStore.open(folder)
    entries = [path.parents[1] / f"{path.stem}.arrow" for path in folder.parent.glob("*/ledger/*.json")]
    committed = {path: path.stat().st_mtime_ns for path in entries}
    assert len(committed) >= parts
    (folder / "part-00009.arrow.123.0a1b2c3d.tmp").write_bytes(b"left over")
    prepare(make_config())
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in committed.items())  # taken over, not made again
    assert contents(make_config().folder) == contents(whole.folder)


@pytest.mark.ray
@pytest.mark.long
def test_killed_after_some_parts(make_config, text_folder: Path, tmp_path: Path) -> None:
    for i in range(40):
        (text_folder / "train" / f"more{i}.txt").write_text(words(f"more{i}", 3000))
    whole = make_config(store=str(tmp_path / "whole"))
    prepare(whole)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "8", *command(make_config(), **{"num-workers": 2})],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300, start_new_session=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert len(list(make_config().folder.glob("*/ledger/*.json"))) >= 8
    prepare(make_config())
    assert contents(make_config().folder) == contents(whole.folder)


def test_stale_parts_of_another_plan_are_made_anew(
    make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(committing, "write_table", dies)  # every part committed, no manifest
        prepare(make_config(segment_length=32))
    prepare(make_config())
    whole = make_config(store=str(tmp_path / "whole"))
    prepare(whole)
    assert contents(make_config().folder) == contents(whole.folder)


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"segment_length": 32}, r"another segment_length \(64, now 32\): give another --store, or --overwrite"),
        ({"part_bytes": 5000}, r"another part_bytes \(4000, now 5000\)"),
        (
            {"tokenizer": "sentencepiece-bpe:400"},
            r"another tokenizer \(bytes of 257 ids, now sentencepiece-bpe:400 of 401\)",
        ),
    ],
)
def test_a_store_of_other_inputs_is_kept(make_config, fields: dict, difference: str) -> None:
    prepare(make_config())
    before = contents(make_config().folder)
    with pytest.raises(StoreError, match=rf"text/train was prepared with {difference}"):
        prepare(make_config(**fields))
    assert contents(make_config().folder) == before
    prepare(make_config(**fields, overwrite=True))
    assert contents(make_config().folder) != before


def test_a_changed_document_is_noticed(make_config, text_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config(splits=("test",)))
    assert "text: 1 document, " in capsys.readouterr().out
    document = text_folder / "test" / "doc0.txt"
    document.write_text("other words")
    another = r"text/test was prepared with another text "
    with pytest.raises(StoreError, match=another + r"\(documents: 1, now 1; 1 changed \('test/doc0\.txt'\)\): give"):
        prepare(make_config())
    document.rename(document.with_name("new.txt"))
    document.with_name("newer.txt").write_text("more words")
    changes = r"1, now 2; 2 new \('test/new\.txt', …\), 1 gone \('test/doc0\.txt'\)"
    with pytest.raises(StoreError, match=rf"{another}\(documents: {changes}\): give"):
        prepare(make_config())


def test_a_tokenizer_trained_on_another_text_is_another_one(make_config, text_folder: Path) -> None:
    made = make_config(tokenizer="sentencepiece-bpe:400")
    prepare(made)
    (text_folder / "train" / "doc0.txt").write_text(words("other", 500))
    text = r"text \(.*; 1 changed \('train/doc0\.txt'\)\)"
    with pytest.raises(StoreError, match=rf"{text} and tokenizer \((\S+ of 401) ids, now another \1\): give"):
        prepare(made)


def test_documents_in_another_order_are_another_text(make_config, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    records = [json.dumps({"text": f"text {id}", "id": id}) for id in "ab"]
    made = make_config(corpus=JsonLines(source=str(file), id_field="id"), splits=("train",))
    file.write_text("\n".join(records))
    prepare(made)
    file.write_text("\n".join(reversed(records)))
    with pytest.raises(StoreError, match=r"with another text \(documents: 2, now 2; in another order\): give"):
        prepare(made)


def test_titles_that_changed_are_named(make_config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stories.jsonl"
    file.write_text(json.dumps({"text": "Once upon a time.", "called": "A story", "also": "Another name"}))
    corpus = JsonLines(source=str(file), title_field="called")
    made = make_config(corpus=corpus, splits=("train",))
    prepare(made)
    prepare(made)
    warning = "jsonl/train keeps the titles it was prepared with; --overwrite replaces them"
    assert warning not in capsys.readouterr().out
    named_anew = replace(made, corpus=replace(corpus, title_field="also"))
    prepare(named_anew)
    assert warning in capsys.readouterr().out
    prepare(replace(named_anew, overwrite=True))
    assert warning not in capsys.readouterr().out
    assert SegmentStore.open(made.folder / "train").documents.texts("title") == ["Another name"]


def test_a_store_whose_files_would_be_read_as_texts_is_refused(make_config, text_folder: Path) -> None:
    within = make_config(store=str(text_folder / "runs" / "store"))
    prepare(within)
    prepare(within)  # none of its files is called *.txt
    (text_folder / "runs" / "store" / "text" / "tokenizer" / "merges.txt").write_text("a b")  # as a GPT-2's has
    with pytest.raises(
        StoreError, match=r"/text lies in .*, and tokenizer/merges\.txt would be read as a text: give --st"
    ):
        prepare(within)
    lines = text_folder / "lines"
    lines.mkdir()
    (lines / "a.jsonl").write_text('{"text": "a"}')
    of_lines = replace(within, corpus=JsonLines(source=str(lines)), store=str(lines / "store"))
    with pytest.raises(StoreError, match=r"tokenizer/tokenizer\.json would be read as a text"):
        prepare(of_lines)
    assert not (lines / "store").exists()


@pytest.mark.parametrize("linked", [False, True])
def test_a_split_s_folder_with_files_of_the_user_is_refused(make_config, tmp_path: Path, linked: bool) -> None:
    """Whatever their names are."""
    source = tmp_path / "texts"
    source.mkdir()
    for i in range(3):
        (source / f"part-{i:05d}.txt").write_text(words(str(i), 400))
    split = tmp_path / "data" / "text" / "train"
    split.parent.mkdir(parents=True)
    if linked:
        split.symlink_to(source)
    else:
        shutil.copytree(source, split)
    config = replace(make_config(store=str(tmp_path / "data")), corpus=Text(source=str(source)))
    reason = (
        "is where" if linked else r"text/train holds part-0000\d\.txt, which no preparation wrote: move it elsewhere"
    )
    with pytest.raises(StoreError, match=reason):
        prepare(config)
    assert len(list(split.iterdir())) == len(list(source.iterdir())) == 3


def test_a_note_in_a_finished_split_s_folder_is_not_overwritten(make_config, tmp_path: Path) -> None:
    config = make_config()
    prepare(config)
    note = config.folder / "train" / "note.md"
    note.write_text("mine")
    prepare(config)  # already prepared
    with pytest.raises(StoreError, match=r"train holds note\.md, which no preparation wrote: move it elsewhere"):
        prepare(replace(config, overwrite=True))
    assert note.read_text() == "mine" and (note.parent / "manifest.json").exists()


@pytest.mark.parametrize("within", ["", "train"])
def test_a_store_that_would_replace_its_source_is_refused(make_config, tmp_path: Path, within: str) -> None:
    """The corpus's folder in the store is the folder of its texts, or one of its splits holds them."""
    source = tmp_path / "data" / "text" / within
    source.mkdir(parents=True)
    (source / "a.txt").write_text(words("a", 400))
    config = replace(make_config(store=str(tmp_path / "data")), corpus=Text(source=str(source)), overwrite=True)
    with pytest.raises(
        StoreError, match=r"data/text is where .*data/text.* lies, and preparing would replace it: give"
    ):
        prepare(config)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [source / "a.txt"]


def test_an_empty_split_leaves_a_folder_that_it_did_not_write(make_config, tmp_path: Path) -> None:
    config = make_config(store=str(tmp_path / "store"))
    notes = config.folder / "test" / "notes.md"
    notes.parent.mkdir(parents=True)
    notes.write_text("not a split")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(words("a", 400))
    prepare(replace(config, corpus=Text(source=str(texts))))
    assert notes.read_text() == "not a split"


def test_a_damaged_chat_template_is_refused_before_anything_is_written(make_config, tmp_path: Path) -> None:
    trained = prepare(make_config(tokenizer="sentencepiece-bpe:400"))
    assert trained["train"].tokenizer.vocab_size == 401
    (tmp_path / "model").mkdir()
    (make_config().folder / "tokenizer" / "tokenizer.model").rename(tmp_path / "model" / "spm.model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{")
    other = make_config(tokenizer=str(tmp_path / "model" / "spm.model"), store=str(tmp_path / "other"))
    with pytest.raises(UserError, match=r"tokenizer_config\.json is not JSON"):
        prepare(other)
    for odd in (
        {"chat_template": 7},
        {"chat_template": ["x"]},
        {"chat_template": [{"template": "x"}]},
    ):
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(odd))
        with pytest.raises(UserError, match="/model has a chat template or special tokens of another form than"):
            prepare(other)
    assert not list(Path(other.store).rglob("*.arrow"))


def test_one_tokenizer_to_a_store(make_config) -> None:
    prepare(make_config())
    with pytest.raises(StoreError, match=r"was prepared with another tokenizer \(bytes\), but a store has only one"):
        prepare(make_config(splits=("train",), tokenizer="sentencepiece-bpe:400", overwrite=True))


def test_overwrite_mends_a_damaged_store(make_config) -> None:
    prepare(make_config())
    before = contents(make_config().folder)
    part = make_config().folder / "train" / "part-00000.arrow"
    part.write_bytes(b"damaged")
    with pytest.raises(StoreError, match="--overwrite"):
        prepare(make_config())
    prepare(make_config(overwrite=True))
    assert contents(make_config().folder) == before


def test_trained_tokenizer_is_reused(make_config, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(make_config(tokenizer="sentencepiece-bpe:400", splits=("train",)))
    assert "training tokenizer" in capsys.readouterr().out
    prepare(make_config(tokenizer="sentencepiece-bpe:400", splits=("validation",)))
    assert "training tokenizer" not in capsys.readouterr().out
    kept = json.loads((make_config().folder / "tokenizer" / "tokenizer.json").read_text())
    assert (kept["kind"], kept["vocab_size"], kept["bod_id"]) == ("sentencepiece", 401, 400)


def test_the_sample_of_a_long_document_is_its_beginning(
    make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_sample, "SAMPLE_BYTES", 100_000)
    (tmp_path / "long" / "train").mkdir(parents=True)
    (tmp_path / "long" / "train" / "a.txt").write_text(words("long", 100_000))
    prepare(make_config(corpus=Text(source=str(tmp_path / "long")), tokenizer="sentencepiece-bpe:400"))
    assert "training tokenizer sentencepiece-bpe:400 on 1 document, 0.1 MB\n" in capsys.readouterr().out


def test_splits_without_documents(make_config, text_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text_folder / "test" / "doc0.txt").write_text(" ")
    assert list(prepare(make_config())) == ["train", "validation"]
    assert "test: no document with text (skipped 1 empty), left out" in capsys.readouterr().out
    with pytest.raises(
        StoreError, match=r"split test of text holds no document with text \(.*\): leave it out of --splits"
    ):
        prepare(make_config(splits=("test",)))


def test_a_corpus_of_blank_files_is_a_sentence(make_config, text_folder: Path) -> None:
    for path in text_folder.rglob("*.txt"):
        path.write_text(" ")
    with pytest.raises(
        StoreError, match=r"text holds no document with text \(skipped 10 empty\): give another --source"
    ):
        prepare(make_config())
    assert not Path(make_config().store).exists()


def test_a_corpus_of_texts_above_the_limit_is_a_sentence(make_config, text_folder: Path) -> None:
    corpus = Text(source=str(text_folder), max_document_bytes=1)
    with pytest.raises(
        StoreError,
        match=r"\(skipped .*10 too large\): give a larger --max-document-bytes, or another --source$",
    ):
        prepare(make_config(corpus=corpus))


@pytest.fixture
def leaking(make_config, text_folder: Path) -> None:
    """A store whose test split holds a text that has moved to train since, where the corpus has no test split any more."""
    prepare(make_config())
    (text_folder / "test" / "doc0.txt").rename(text_folder / "train" / "moved.txt")


def test_a_split_that_is_empty_now_does_not_stay_under_overwrite(leaking: None, make_config) -> None:
    before = contents(make_config().folder)
    for config in (make_config(), make_config(part_bytes=5000, splits=SPLITS)):
        with pytest.raises(StoreError, match=r"was prepared (from something else, and now test|with another)"):
            prepare(config)
    assert contents(make_config().folder) == before
    assert list(prepare(make_config(overwrite=True))) == ["train", "validation"]
    assert {path.name for path in make_config().folder.iterdir()} == {"tokenizer", "train", "validation"}


def test_an_empty_split_that_was_prepared_is_refused(make_config, text_folder: Path) -> None:
    prepare(make_config())
    (text_folder / "test" / "doc0.txt").unlink()
    with pytest.raises(StoreError, match=r"text/test was prepared from something else, and now test holds no document"):
        prepare(make_config())


def test_a_split_that_stays_with_texts_of_another_is_named(
    leaking: None, make_config, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(make_config(splits=("train",), overwrite=True))
    out = capsys.readouterr().out
    assert (
        "text/test stays as it was prepared before, it holds texts that stand in other splits too (1 of train)" in out
    )
    assert "text/validation stays" not in out


def test_names_that_look_like_markup_are_printed_as_they_are(make_config, tmp_path: Path, capsys) -> None:
    store = tmp_path / "s[v2]" / "a[" / "s]"
    prepare(make_config(store=str(store)))
    prepare(make_config(store=str(store)))
    assert str(store) in capsys.readouterr().out.replace("\n", "")


def test_a_second_preparation_is_refused(make_config) -> None:
    from common.lock import file_lock

    with (
        file_lock(make_config().folder, "a test"),
        pytest.raises(ValueError, match="another preparation is writing to"),
    ):
        prepare(make_config())


def test_a_tokenizer_that_is_removed_meanwhile_is_written_again(make_config, text_folder: Path) -> None:
    folder = make_config().folder / "tokenizer"
    removed = []

    class Removing(Text):
        def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
            if folder.is_dir():
                removed.append(shutil.rmtree(folder))
            yield from super().read(sources)

    prepare(make_config(corpus=Removing(source=str(text_folder))))
    assert removed and SegmentStore.open(folder.parent / "train").tokenizer().vocab_size


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a corpus first"),
        (["pg20"], "unknown corpus 'pg20': did you mean 'pg19'?"),
        (["text", "--sorce", "x"], "unknown option --sorce: did you mean --source?"),
        (["text", "--segment-length", "abc"], "--segment-length is 'abc': write a whole number in digits"),
        (["text", "--segment-length", "-1"], "--segment-length is -1: it must be at least 0"),
        (["text", "--part-bytes", "0"], "--part-bytes is 0: it must be at least 1"),
        (["text", "--splits", "tran"], "unknown split 'tran': did you mean 'train'?"),
        (["text", "--splits"], "splits is empty"),
        (["text", "--store", ""], "--store is empty: give a folder, or a URI such as s3://bucket/store"),
        (["text", "--num-workers", "-1"], "--num-workers is -1"),
        (["text"], "corpus text needs a folder: give --source FOLDER"),
        (["text", "--source", "nowhere"], "/nowhere is not there: give --source"),
        (["pg19", "--newline", "none"], "invalid choice 'none'"),
        (
            ["python-source", "--tokenizer", "byts"],
            "unknown tokenizer 'byts', and no such folder: did you mean 'bytes'?",
        ),
    ],
)
def test_wrong_words(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the default store is below it, and no other test's
    monkeypatch.setattr(sys, "argv", ["prepare", *words])
    with pytest.raises(SystemExit) as exit:
        cli.run(main)
    captured = capsys.readouterr()
    assert exit.value.code == 2
    assert captured.err.startswith("error: ") and sentence in captured.err and captured.err.count("\n") == 1


def test_ray_is_started_for_what_takes_longer_than_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    config = commands()["text"]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert config.workers(63_999_999) == 0 < config.workers(64_000_000)
    assert replace(config, num_workers=2).workers(1) == 2
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert config.workers(1) > 0


def test_exit_status_and_debug_of_the_real_command(tmp_path: Path) -> None:
    words = ["text", "--source", str(tmp_path), "--store", str(tmp_path / "store")]
    done = run(words)
    assert (
        (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    )
    assert "Traceback" in run(words, THROUGHLINE_DEBUG="1").stderr


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    out = capsys.readouterr().out
    assert exit.value.code == 0 and all(name in out for name in commands())
    with pytest.raises(SystemExit) as exit:
        main(["pg19", "--help"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert "--newline {keep,normalize}" in out and "Folder with train, validation and test" in out


def test_wrong_model_file(make_config, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_text("not a model")
    with pytest.raises(TokenizerError, match=r"x\.model is not a SentencePiece model"):
        prepare(make_config(tokenizer=str(tmp_path / "x.model")))
    assert not make_config().folder.exists()


@pytest.mark.real_data
@pytest.mark.slow
def test_words_of_real_books(make_config) -> None:
    books = need("pg19")
    made = make_config(
        corpus=Pg19(source=str(books)), splits=("validation", "test"), part_bytes=16 << 20, segment_length=1024
    )
    manifests = prepare(made)
    with open(books / "manifest.csv", newline="", encoding="utf-8") as file:
        counted = {(row["split"], row["id"]): (int(row["words"]), int(row["bytes"])) for row in csv.DictReader(file)}
    for split, manifest in manifests.items():
        listed = SegmentStore.open(made.folder / split).manifest.documents
        own = {(split, entry.id): (entry.words, entry.bytes) for entry in listed}
        assert own == {key: value for key, value in counted.items() if key[0] == split}
        assert manifest.totals.tokens == manifest.totals.bytes


def test_an_interrupted_removal_leaves_no_split_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = Place.delete

    def killed(place: Place) -> None:
        if place.name == "train":
            raise KeyboardInterrupt
        delete(place)

    (tmp_path / "train").mkdir()
    for name in ("manifest.json", "part-00000.arrow"):
        (tmp_path / "train" / name).write_bytes(b"x")
    monkeypatch.setattr(Place, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        committing.discard_split(Place.parse(tmp_path / "train"))
    assert not (tmp_path / "train" / "manifest.json").exists()
