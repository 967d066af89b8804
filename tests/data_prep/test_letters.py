"""The letters between which texts are cut have the properties that the proofs in hugging_face.py and sentence_piece.py use."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import regex
from tokenizers import normalizers

from data_prep.tokenizers.hugging_face import NORMALIZERS
from data_prep.tokenizers.letters import LETTERS, members, ranges

EACH = members(LETTERS)


def test_they_are_letters_and_digits_that_nothing_joins() -> None:
    assert {unicodedata.category(c)[0] for c in EACH} == {"L", "N"} and not any(map(unicodedata.combining, EACH))
    assert len(set(EACH)) == len(EACH) and max(len(c.encode()) for c in EACH) == 3
    for c in EACH:  # as graphemes, which Precompiled looks at
        assert regex.findall(r"\X", f"a{c} {c}b") == ["a", c, " ", c, "b"]


def test_ranges_of_members_are_the_members() -> None:
    assert members(ranges(EACH)) == "".join(sorted(EACH))
    assert ranges("badc1é") == "1a-dé" and ranges("") == ""


@pytest.mark.parametrize("name", sorted(NORMALIZERS))
def test_normalizing_keeps_the_space_between_two_of_them(name: str) -> None:
    """Left and right of it are normalized by themselves, and it follows no blank."""
    normalizer: Any = getattr(normalizers, name)()
    for c in EACH:
        left, right = normalizer.normalize_str(f" x{c}"), normalizer.normalize_str(f" {c}y")
        assert normalizer.normalize_str(f" x{c} {c}y") == left + right
        assert not left[-1].isspace() and right[0] == " " and not right[1].isspace()
