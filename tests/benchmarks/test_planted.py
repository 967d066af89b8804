"""The planted names: said once, asked for once at the stated distance, and unknown from training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.planted import PlantedConfig, corpus, write_files
from common.errors import UserError
from data_prep.corpora.names import ANSWER, LINE

SMALL = PlantedConfig(train_documents=30, names=5, every=40)


def test_a_name_is_said_and_asked_for_once_at_its_distance() -> None:
    files, distances = corpus(SMALL)
    tests = [text for path, text in files.items() if path.startswith("test/")]
    trained_on = "".join(text for path, text in files.items() if not path.startswith("test/"))
    assert len(distances) == SMALL.names * SMALL.test_documents == 10
    for text in tests:
        lines = text.splitlines(keepends=True)
        assert len(lines) == SMALL.names * SMALL.every and {len(line.encode()) for line in lines} == {LINE}
        said = [i for i, line in enumerate(lines) if line.startswith("my name is ")]
        assert said == list(range(0, len(lines), SMALL.every))
        for i in said:
            name = lines[i][ANSWER]
            assert text.count(name) == 2 and text.rindex(name) - text.index(name) == distances[name] > 3 * LINE
            assert name not in trained_on


def test_the_corpus_follows_from_its_seed_and_senseless_options_are_told_of() -> None:
    assert corpus(SMALL) == corpus(SMALL) != corpus(replace(SMALL, seed=1))
    with pytest.raises(ValueError, match="every more than 12"):
        replace(SMALL, every=12)


def test_another_corpus_in_its_place_is_told_of(tmp_path: Path) -> None:
    files, _ = corpus(SMALL)
    assert write_files(tmp_path, files) == write_files(tmp_path, files) == tmp_path
    others, _ = corpus(replace(SMALL, seed=1))
    with pytest.raises(UserError, match="made with other options"):
        write_files(tmp_path, others)
