"""The presets as `train --help` shows them, and the search for one."""

from __future__ import annotations

import re

import pytest

from common.errors import UserError
from pipelines import preflight, prepare, train
from pipelines.presets import GROUPS, PRESETS, catalogue
from pipelines.presets.catalogue import row_of
from pipelines.sweeps.command import read_command
from pipelines.terminal.tables import short
from studies import state_tracking, vocabulary


def test_every_preset_stands_in_the_overview_once() -> None:
    shown = catalogue.overview()
    alone = set(re.findall(r"(?m)^  ([\w.-]+) ", shown))
    patterns = re.findall(r"(?m)^  (\S+\*) .*\((\d+) presets?\)$", shown)
    counts = {pattern: int(count) for pattern, count in patterns}
    assert sum(counts.values()) + len(alone) == len(PRESETS)
    assert all(counts.values()) and alone <= PRESETS.keys()
    every = {pattern: line for lines in GROUPS.values() for pattern, line in lines.items()}
    assert counts.keys() == {pattern for pattern, line in every.items() if line and "*" in pattern}
    assert catalogue.OTHERS not in shown
    assert len(shown.splitlines()) <= 70, "let a pattern of GROUPS stand for some presets, as in DEMO_GROUPS"
    assert max(map(len, shown.splitlines())) < 132


def test_the_overview_begins_with_where_to_start_and_has_a_line_for_each_table() -> None:
    headings = [line for line in catalogue.overview().splitlines() if line.endswith(":") and line[0] != " "]
    assert [heading.partition(" ")[0] for heading in headings] == [
        "Start",
        "Your",
        "Studies",
        "Tasks",
        *["Paper:"] * 3,
        "Today's",
    ]
    lines = dict(re.findall(r"(?m)^  (\S+)  +(.*)$", catalogue.overview()))
    assert lines["small-vanilla"] == "Transformer without memory: nothing passes from one window to the next"
    assert lines["small-xl"] == "Transformer-XL: the previous block's keys and values are read, and get no gradient"
    assert lines["pg19-scale-*"] == "Table 4, 40 million to 1.3 billion parameters (12 presets)"
    assert lines["tiny-walk-*"].endswith(f"({len(state_tracking.MODELS)} presets)")
    assert "tiny-pg19-gpt2-rec-overlap-0" not in lines


def test_the_longest_pattern_counts() -> None:
    for name, pattern in (
        ("pg19-xl-512", "pg19-*"),
        ("pg19-rec-fixed-skip-window-128", "pg19-*-window-*"),
        ("pg19-gpt2-rec-overlap-5", "pg19-gpt2-*"),
        ("tiny-pg19-gpt2-rec-overlap-5", "tiny-*-gpt2-*"),
        ("tiny-permutation-a5-lstm", "tiny-permutation-*"),
    ):
        assert catalogue.place_of(name)[1] == pattern


def found(*words: str) -> list[str]:
    return [line.split()[0] for line in catalogue.search(words).splitlines()[1:-1]]


def test_search_takes_parts_of_names_models_and_corpora_patterns_and_words_of_the_line() -> None:
    assert found("walk", "lstm") == [
        "tiny-walk-lstm",
        "tiny-walk-rec-lstm-dual",
        "tiny-walk-mlstm",
        "tiny-walk-slstm",
        "walk-lstm",
    ]
    assert found("LLAMA", "text") == ["small-llama-rec", "small-llama"]
    assert found("pg19-scale-*") == [name for name in PRESETS if name.startswith("pg19-scale-")]
    assert found("yoshida", "rec", "overlap-50", "tiny") == [
        "tiny-wikitext-gpt2-rec-overlap-50",
        "tiny-pg19-gpt2-rec-overlap-50",
    ]
    assert found("memory", "kNN") == ["small-memorizing"]
    assert found() == list(PRESETS)


def test_search_shows_model_parameters_and_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        train.main(["--presets", "scale-40M-rec", "Table"])
    assert done.value.code == 0
    heading, row, note = capsys.readouterr().out.splitlines()
    assert heading.split() == ["preset", "model", "parameters", "corpus"]
    expected = ["pg19-scale-40M-rec", "rec", "40.4M", "pg19", "Table 4, 40 million to 1.3 billion parameters"]
    assert re.split(r"  +", row) == expected
    assert (
        note
        == "1 preset. Parameters are without embeddings and an output layer of its own, which grow with the tokenizer."
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["smal-rec"], "no preset matches 'smal-rec': did you mean 'small-rec'? (--presets without words lists all)"),
        (["rec", "zzz"], "no preset matches 'rec zzz': --presets without words lists all"),
    ],
)
def test_a_search_without_a_match_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        catalogue.search(words)
    assert str(refused.value) == sentence


def test_commands_that_take_a_preset_list_and_search_them(capsys: pytest.CaptureFixture[str]) -> None:
    for main in (train.main, preflight.main, read_command):
        with pytest.raises(SystemExit):
            main(["--presets", "small-xl"])
        assert capsys.readouterr().out.splitlines()[1].startswith("small-xl")
        with pytest.raises(SystemExit):
            main(["--help"])
        assert "--presets WORD... lists the presets that match all words." in capsys.readouterr().out
    for words in (["small-rek"], ["lr", "--preset", "small-rek"]):
        with pytest.raises(
            UserError, match=r"^unknown preset 'small-rek': did you mean 'small-rec'\? \(--presets lists"
        ):
            (read_command if words[1:] else train.main)(words)


def test_a_preset_without_a_group_stands_under_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "mine", PRESETS["small-xl"])
    assert catalogue.overview().splitlines()[-2] == "Others:"
    assert catalogue.overview().splitlines()[-1].split("  ")[1] == "mine"
    assert "mine" in found("mine")


def test_corpora_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    for main in (prepare.main, vocabulary.main):
        with pytest.raises(SystemExit):
            main(["--help"])
        lines = dict(re.findall(r"(?m)^  (\S+)  +(.*)$", capsys.readouterr().out))
        assert lines["text"] == "A folder of UTF-8 text files"
        assert lines["python-source"] == "The source of Python's standard library; needs no download"


def test_parameters_are_those_that_no_vocabulary_changes() -> None:
    """Also with an output layer of its own: the model has seven symbols in this task, and not 257."""
    config = PRESETS["tiny-permutation-longer-delta"]
    built = config.model.build(7)
    tables = [built.embedding.weight, built.output.weight]  # pyrefly: ignore
    own = sum(weight.numel() for weight in built.parameters()) - sum(table.numel() for table in tables)
    assert row_of("tiny-permutation-longer-delta", config)[2] == short(own)
